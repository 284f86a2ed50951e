package sslpersist

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/crypto/cryptobyte"

	"github.com/lbprim/lbprim/sslpersist"
)

// result keeps the compiler from dropping what is measured.
var result struct {
	id      [33]byte
	session sslpersist.SessionID
	name    []byte
}

// hellos are first flights of crypto/tls: of TLS 1.2, 1.3, and 1.3 with a post-quantum key share.
func hellos(t testing.TB) map[string][]byte {
	out := map[string][]byte{}
	for name, cfg := range map[string]*tls.Config{
		"tls12": {MaxVersion: tls.VersionTLS12},
		"tls13": {CurvePreferences: []tls.CurveID{tls.X25519}},
		"pq":    {CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.X25519}},
	} {
		cfg.ServerName = "www.example.org"
		cfg.NextProtos = []string{"h2", "http/1.1"}
		c := &capture{}
		if err := tls.Client(c, cfg).Handshake(); err == nil {
			t.Fatal("handshake with nobody")
		}
		out[name] = c.sent
	}
	return out
}

// capture is a connection that keeps the first write and then ends.
type capture struct {
	net.Conn
	sent []byte
}

func (c *capture) Write(b []byte) (int, error) {
	if c.sent == nil {
		c.sent = append(c.sent, b...)
	}
	return len(b), nil
}
func (c *capture) Read([]byte) (int, error)         { return 0, io.EOF }
func (c *capture) Close() error                     { return nil }
func (c *capture) SetWriteDeadline(time.Time) error { return nil }

// oursID is ParseSessionID, for comparison with walkID.
func oursID(b []byte) bool {
	id, err := sslpersist.ParseSessionID(b)
	result.session = id
	return err == nil
}

func ours(b []byte) bool {
	h, err := sslpersist.ParseClientHello(b)
	result.name = h.ServerName
	result.session = h.SessionID
	return err == nil
}

// walkID is what one writes by hand to get at the session ID, and no more.
func walkID(b []byte) bool {
	s := cryptobyte.String(b)
	var typ, msg uint8
	var ver, legacy uint16
	var rec, body, id cryptobyte.String
	if !s.ReadUint8(&typ) || typ != 22 || !s.ReadUint16(&ver) || !s.ReadUint16LengthPrefixed(&rec) ||
		!rec.ReadUint8(&msg) || msg != 1 || !rec.ReadUint24LengthPrefixed(&body) ||
		!body.ReadUint16(&legacy) || !body.Skip(32) || !body.ReadUint8LengthPrefixed(&id) || len(id) > 32 {
		return false
	}
	copy(result.id[:], id)
	return true
}

// walkAll goes through the whole hello as ours does: ID, server name, protocols, ticket,
// versions and pre-shared keys, each checked.
func walkAll(b []byte) bool {
	s := cryptobyte.String(b)
	var typ, msg uint8
	var ver, legacy uint16
	var rec, body, id, suites, comp, exts cryptobyte.String
	if !s.ReadUint8(&typ) || typ != 22 || !s.ReadUint16(&ver) || !s.ReadUint16LengthPrefixed(&rec) ||
		!rec.ReadUint8(&msg) || msg != 1 || !rec.ReadUint24LengthPrefixed(&body) ||
		!body.ReadUint16(&legacy) || !body.Skip(32) || !body.ReadUint8LengthPrefixed(&id) || len(id) > 32 ||
		!body.ReadUint16LengthPrefixed(&suites) || !body.ReadUint8LengthPrefixed(&comp) {
		return false
	}
	copy(result.id[:], id)
	if body.Empty() {
		return true
	}
	if !body.ReadUint16LengthPrefixed(&exts) || !body.Empty() {
		return false
	}
	for !exts.Empty() {
		var ext uint16
		var data, list cryptobyte.String
		if !exts.ReadUint16(&ext) || !exts.ReadUint16LengthPrefixed(&data) {
			return false
		}
		switch ext {
		case 0:
			if !data.ReadUint16LengthPrefixed(&list) || !data.Empty() {
				return false
			}
			for !list.Empty() {
				var kind uint8
				var name cryptobyte.String
				if !list.ReadUint8(&kind) || !list.ReadUint16LengthPrefixed(&name) || name.Empty() {
					return false
				}
				if kind == 0 {
					result.name = name
				}
			}
		case 16:
			if !data.ReadUint16LengthPrefixed(&list) || !data.Empty() || list.Empty() {
				return false
			}
			for !list.Empty() {
				var proto cryptobyte.String
				if !list.ReadUint8LengthPrefixed(&proto) || proto.Empty() {
					return false
				}
			}
		case 43:
			if !data.ReadUint8LengthPrefixed(&list) || !data.Empty() {
				return false
			}
			for !list.Empty() {
				var v uint16
				if !list.ReadUint16(&v) {
					return false
				}
				if v > legacy && v&0x0f0f != 0x0a0a {
					legacy = v
				}
			}
		case 41:
			if !data.ReadUint16LengthPrefixed(&list) {
				return false
			}
			for !list.Empty() {
				var psk cryptobyte.String
				if !list.ReadUint16LengthPrefixed(&psk) || !list.Skip(4) {
					return false
				}
			}
		}
	}
	return true
}

var errStop = errors.New("hello seen")

// stdlib lets crypto/tls read the hello, up to GetConfigForClient.
func stdlib() func([]byte) bool {
	cfg := &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		result.name = []byte(h.ServerName)
		return nil, errStop
	}}
	return func(b []byte) bool {
		c := tls.Server(&replay{b: b}, cfg)
		return errors.Is(c.HandshakeContext(context.Background()), errStop)
	}
}

type replay struct {
	net.Conn
	b []byte
}

func (r *replay) Read(b []byte) (int, error) {
	n := copy(b, r.b)
	r.b = r.b[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
func (r *replay) Write(b []byte) (int, error)      { return len(b), nil }
func (r *replay) Close() error                     { return nil }
func (r *replay) SetWriteDeadline(time.Time) error { return nil }

// layer decodes with gopacket, which reads the record's header and no hello.
func layer() func([]byte) bool {
	var l layers.TLS
	return func(b []byte) bool {
		return l.DecodeFromBytes(b, gopacket.NilDecodeFeedback) == nil && len(l.Handshake) == 1
	}
}
