package cluster

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/hashicorp/memberlist"
)

// secrets are what is derived from the keys of a cluster (RFC 5869), for its name alone.
type secrets struct {
	ring   *memberlist.Keyring
	client *tls.Config
	server *tls.Config
}

func derive(key []byte, cluster, use string, n int) ([]byte, error) {
	return hkdf.Key(sha256.New, key, []byte(cluster), "lbprim cluster 1 "+use, n)
}

// errStranger is what TLS reports of those who have another key.
var errStranger = errors.New("cluster: the other side has none of our keys")

func newSecrets(keys [][]byte, cluster string) (*secrets, error) {
	var gossip [][]byte
	var accepted []ed25519.PublicKey
	var own ed25519.PrivateKey
	for _, k := range keys {
		g, err := derive(k, cluster, "gossip", 32)
		if err != nil {
			return nil, err
		}
		gossip = append(gossip, g)
		seed, err := derive(k, cluster, "streams", ed25519.SeedSize)
		if err != nil {
			return nil, err
		}
		private := ed25519.NewKeyFromSeed(seed)
		if own == nil {
			own = private
		}
		accepted = append(accepted, private.Public().(ed25519.PublicKey))
	}
	ring, err := memberlist.NewKeyring(gossip, gossip[0])
	if err != nil {
		return nil, fmt.Errorf("cluster: keys: %w", err)
	}
	// The certificate is only a wrapping of the public key.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<34, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, own.Public(), own)
	if err != nil {
		return nil, fmt.Errorf("cluster: certificate: %w", err)
	}
	conf := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: own}},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // there is no authority: the key itself is compared
		SessionTicketsDisabled: true,
		ServerName:             "cluster",
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) > 0 {
				if key, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey); ok {
					for _, a := range accepted {
						if key.Equal(a) {
							return nil
						}
					}
				}
			}
			return errStranger
		},
	}
	return &secrets{ring: ring, client: conf, server: conf}, nil
}
