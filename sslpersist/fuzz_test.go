package sslpersist

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lbprim/lbprim/internal/testenv"
)

// addSeeds gives f the hellos this file makes itself, and the captures where they are.
func addSeeds(f *testing.F, dir string, add func([]byte)) {
	f.Helper()
	if dir == "c2s" {
		add(fullSpec().client())
		add(records(recHandshake, fullSpec().clientMessage(), 100))
		add(v2Hello(TLS10, fill(16, 3)))
		add(helloSpec{id: fill(33, 1)}.client())
	} else {
		add(helloSpec{id: fill(32, 1), will: true}.server())
		add(slices.Concat(helloSpec{id: fill(32, 1), will: true}.server(), records(recHandshake, newTicketMessage(fill(100, 3)), 0), changeCipherSpec))
		add([]byte{0x80, 0x0b, 4, 1, 1, 0, 2, 0, 0, 0, 0, 0, 0})
	}
	for _, row := range []string{"expected/tls_payloads.jsonl", "tls/go_crypto_tls_transcripts.jsonl", "tls/boringssl_fuzz_seeds.jsonl"} {
		if _, err := os.Stat(filepath.Join(sharedOrNothing(), filepath.FromSlash(row))); err != nil {
			continue
		}
		switch row[0] {
		case 'e':
			for _, p := range readLines[payloadRow](f, row) {
				if dir == "c2s" {
					add(p.C2S)
				} else {
					add(p.S2C)
				}
			}
		case 't':
			if row == "tls/boringssl_fuzz_seeds.jsonl" {
				for _, s := range readLines[seedRow](f, row) {
					for _, at := range s.Offsets {
						add(s.B64[at:])
					}
				}
				continue
			}
			for _, r := range readLines[transcriptRow](f, row) {
				add(r.bytes(dir))
			}
		}
	}
}

// sharedOrNothing is testenv.Shared for those who can do without.
func sharedOrNothing() string {
	if os.Getenv("LBPRIM_SHARED") == "require" {
		return filepath.Join("..", "..", "shared", "data")
	}
	dir := filepath.Join("..", "..", "shared", "data")
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}

func FuzzParseClientHello(f *testing.F) {
	addSeeds(f, "c2s", func(b []byte) { f.Add(b, uint8(1)) })
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		h, err := ParseClientHello(b)
		checkError(t, err)
		again, err2 := feedAll(b, int(step), (*Parser).Client)
		if !errors.Is(err2, err) || err == nil && !sameHello(h, again) {
			t.Fatalf("at once %+v, %v; in pieces of %d %+v, %v", h, err, step, again, err2)
		}
		if err == nil {
			for p := range h.ALPN() {
				_ = p[0]
			}
			for p := range h.PSKIdentities() {
				_ = p[0]
			}
		}
	})
}

func FuzzParseServerHello(f *testing.F) {
	addSeeds(f, "s2c", func(b []byte) { f.Add(b, uint8(1)) })
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		h, err := ParseServerHello(b)
		checkError(t, err)
		again, err2 := feedAll(b, int(step), (*Parser).Server)
		if !errors.Is(err2, err) || err == nil && h != again {
			t.Fatalf("at once %+v, %v; in pieces of %d %+v, %v", h, err, step, again, err2)
		}
	})
}

func feedAll[T any](b []byte, step int, feed func(*Parser, []byte) (T, error)) (h T, err error) {
	var p Parser
	err = ErrShort
	for step = max(step, 1); len(b) > 0 && errors.Is(err, ErrShort); {
		n := min(step, len(b))
		h, err = feed(&p, b[:n])
		b = b[n:]
	}
	return h, err
}

func checkError(t *testing.T, err error) {
	t.Helper()
	for _, known := range []error{nil, ErrShort, ErrNotTLS, ErrMalformed, ErrTooLarge, ErrAlert} {
		if errors.Is(err, known) {
			return
		}
	}
	t.Fatalf("unknown error %v", err)
}

func sameHello(a, b ClientHello) bool {
	return a.Version == b.Version && a.LegacyVersion == b.LegacyVersion && a.SessionID == b.SessionID &&
		string(a.ServerName) == string(b.ServerName) && (a.Ticket == nil) == (b.Ticket == nil) && string(a.Ticket) == string(b.Ticket) &&
		a.HasPSK == b.HasPSK && a.EarlyData == b.EarlyData && a.SSLv2 == b.SSLv2 &&
		string(a.alpn) == string(b.alpn) && string(a.psks) == string(b.psks)
}

var _ = testenv.Shared
