package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
)

// certs are the certificates in force. They are exchanged as a whole; connections keep theirs.
type certs struct {
	dir, clientCA string
	require       bool
	now           atomic.Pointer[tls.Config]
}

// newCerts reads a directory, and the authorities of client certificates if there is a file of them.
func newCerts(dir, clientCA string, require bool) (*certs, error) {
	c := &certs{dir: dir, clientCA: clientCA, require: require}
	return c, c.reload()
}

// count is the number of certificates in force.
func (c *certs) count() int { return len(c.now.Load().Certificates) }

// reload reads the files. On an error nothing changes.
func (c *certs) reload() error {
	names, err := filepath.Glob(filepath.Join(c.dir, "*.crt"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	var list []tls.Certificate
	var errs []error
	for _, name := range names {
		pair, err := tls.LoadX509KeyPair(name, strings.TrimSuffix(name, ".crt")+".key")
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		list = append(list, pair)
	}
	if len(names) == 0 {
		errs = append(errs, fmt.Errorf("%s: no NAME.crt with a NAME.key", c.dir))
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: list}
	t.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return choose(list, hello), nil }
	if c.clientCA != "" {
		errs = append(errs, c.authorities(t))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.now.Store(t)
	return nil
}

// authorities has a connection ask for client certificates.
func (c *certs) authorities(t *tls.Config) error {
	b, err := os.ReadFile(c.clientCA)
	if err != nil {
		return err
	}
	t.ClientCAs = x509.NewCertPool()
	if !t.ClientCAs.AppendCertsFromPEM(b) {
		return fmt.Errorf("%s: no certificates in it", c.clientCA)
	}
	t.ClientAuth = tls.VerifyClientCertIfGiven
	if c.require {
		t.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return nil
}

// choose chooses by the name that the client asks for; clients that ask for none, or for one that nobody has, get the first.
func choose(list []tls.Certificate, hello *tls.ClientHelloInfo) *tls.Certificate {
	for i := range list {
		if hello.ServerName != "" && list[i].Leaf.VerifyHostname(hello.ServerName) == nil && hello.SupportsCertificate(&list[i]) == nil {
			return &list[i]
		}
	}
	return &list[0]
}

// tlsConfig is how connections of clients are ended: by what is in force when they begin.
func (c *certs) tlsConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return c.now.Load(), nil
	}, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("no certificate") }}
}
