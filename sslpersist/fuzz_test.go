package sslpersist

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
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
		if id, idErr := ParseSessionID(b); err == nil && (idErr != nil || id != h.SessionID) {
			t.Fatalf("ID alone %v, %v; hello %+v", id, idErr, h)
		}
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

// Both directions at once, cut as the fuzzer likes: no panic, no allocation beyond the
// bound, and the outcome does not depend on the cuts.
func FuzzHandshake(f *testing.F) {
	client, server := fullSpec().client(), helloSpec{id: fill(32, 9), will: true}.server()
	f.Add(client, server, uint8(3))
	f.Add(helloSpec{id: fill(32, 1), versions: []Version{TLS13}}.client(), slices.Concat(helloSpec{id: fill(32, 1), versions: []Version{TLS13}, random: retryRandom}.server(), changeCipherSpec, server), uint8(1))
	if sharedOrNothing() != "" {
		for _, r := range readLines[transcriptRow](f, "tls/go_crypto_tls_transcripts.jsonl") {
			f.Add(r.bytes("c2s"), r.bytes("s2c"), uint8(7))
		}
		for _, p := range readLines[payloadRow](f, "expected/tls_payloads.jsonl") {
			f.Add(p.C2S, p.S2C, uint8(50))
		}
	}
	f.Fuzz(func(t *testing.T, c2s, s2c []byte, step uint8) {
		var whole, cut Handshake
		_, cerr := whole.Client(c2s)
		checkError(t, cerr)
		_, serr := whole.Server(s2c)
		checkError(t, serr)
		for b := c2s; len(b) > 0; {
			n := min(max(int(step), 1), len(b))
			_, _ = cut.Client(b[:n])
			b = b[n:]
		}
		for b := s2c; len(b) > 0; {
			n := min(max(int(step), 1), len(b))
			_, _ = cut.Server(b[:n])
			b = b[n:]
		}
		if whole.nlessons != cut.nlessons || whole.lessons != cut.lessons || whole.resumed != cut.resumed || whole.reply != cut.reply {
			t.Fatalf("at once %v, in pieces of %d %v", whole.lessons, step, cut.lessons)
		}
		for l, ok := whole.Next(); ok; l, ok = whole.Next() {
			if l.Kind == LearnID && (l.ID.IsZero() || whole.reply.Version.IsTLS13() && whole.reply.SessionID == l.ID) {
				t.Fatalf("learned %v from %+v", l, whole.reply)
			}
		}
		if cap(cut.client.buf) > 2*MaxHello || cap(cut.server.buf) > 2*MaxHello {
			t.Fatal("buffer beyond its bound")
		}
	})
}

func FuzzRestore(f *testing.F) {
	tab := newTestTable(f, nil)
	now := time.Now()
	_ = tab.LearnAt(now, numbered(1), "a")
	_ = tab.LearnAt(now, sid(7), "b")
	var buf bytes.Buffer
	_ = tab.WriteSnapshot(&buf, now, name)
	f.Add(buf.Bytes()[:buf.Len()-sha256.Size])
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum is made right, so that what it protects is read.
		sum := sha256.Sum256(b)
		b = append(b, sum[:]...)
		tab := newTestTable(t, &Config[string]{MaxEntries: 10})
		st, err := tab.Restore(bytes.NewReader(b), now, byName)
		if err != nil && (!errors.Is(err, ErrSnapshot) || tab.Len() != 0) {
			t.Fatal(err)
		}
		if tab.Len() > st.Restored {
			t.Fatalf("%d entries, %+v", tab.Len(), st)
		}
	})
}

func FuzzParseDelta(f *testing.F) {
	b, _ := AppendDelta(nil, Delta[string]{Seq: 1, Op: OpLearn, ID: numbered(1), Node: "a", At: time.Unix(0, 5)}, name)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		d, rest, _, err := ParseDelta(b, byName)
		if err != nil {
			return
		}
		again, err := AppendDelta(nil, d, name)
		if err != nil || !bytes.Equal(append(again, rest...), b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}
