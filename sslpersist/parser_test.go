package sslpersist

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func collect[T any](seq func(func(T) bool)) (out []T) {
	for v := range seq {
		out = append(out, v)
	}
	return out
}

func fullSpec() helloSpec {
	return helloSpec{
		id: fill(32, 1), sni: "www.example.org", alpn: []string{"h2", "http/1.1"},
		versions: []Version{0x6a6a, TLS13, TLS12}, ticket: fill(40, 7),
		psks: [][]byte{fill(100, 9), []byte("second")}, early: true,
	}
}

func checkFull(t *testing.T, h ClientHello) {
	t.Helper()
	require.Equal(t, TLS13, h.Version)
	require.Equal(t, TLS12, h.LegacyVersion)
	require.Equal(t, sid(fill(32, 1)...), h.SessionID)
	require.Equal(t, "www.example.org", string(h.ServerName))
	require.Equal(t, [][]byte{[]byte("h2"), []byte("http/1.1")}, collect(h.ALPN()))
	require.Equal(t, fill(40, 7), h.Ticket)
	require.Equal(t, [][]byte{fill(100, 9), []byte("second")}, collect(h.PSKIdentities()))
	require.True(t, h.HasPSK)
	require.True(t, h.EarlyData)
	require.False(t, h.SSLv2)
}

func TestClientHelloFields(t *testing.T) {
	h, err := ParseClientHello(fullSpec().client())
	require.NoError(t, err)
	checkFull(t, h)
}

func TestTicketExtensionEmptyAndAbsent(t *testing.T) {
	h, err := ParseClientHello(helloSpec{ticket: []byte{}}.client())
	require.NoError(t, err)
	require.NotNil(t, h.Ticket)
	require.Empty(t, h.Ticket)
	h, err = ParseClientHello(helloSpec{}.client())
	require.NoError(t, err)
	require.Nil(t, h.Ticket)
}

func TestServerHelloFields(t *testing.T) {
	h, err := ParseServerHello(helloSpec{id: fill(32, 5), will: true}.server())
	require.NoError(t, err)
	require.Equal(t, ServerHello{Version: TLS12, LegacyVersion: TLS12, SessionID: sid(fill(32, 5)...), WillTicket: true}, h)

	h, err = ParseServerHello(helloSpec{id: fill(32, 5), versions: []Version{TLS13}, selected: 2}.server())
	require.NoError(t, err)
	require.Equal(t, ServerHello{Version: TLS13, LegacyVersion: TLS12, SessionID: sid(fill(32, 5)...), HasPSK: true, PSK: 1}, h)

	h, err = ParseServerHello(helloSpec{legacy: SSL30, id: fill(32, 5), noExt: true}.server())
	require.NoError(t, err)
	require.Equal(t, SSL30, h.Version)

	h, err = ParseServerHello(helloSpec{id: fill(32, 5), versions: []Version{TLS13}, random: retryRandom}.server())
	require.NoError(t, err)
	require.True(t, h.HelloRetryRequest)
}

func TestServerHelloOfDraftsHasNoID(t *testing.T) {
	for _, v := range []Version{0x7f0e, 0x7f12, 0x7f13, 0x7f15, TLS13} {
		body := append(u16(int(v)), fill(32, 0)...)
		body = append(body, 0x13, 0x02)
		body = append(body, vec16(extension(40, fill(36, 0)))...)
		h, err := ParseServerHello(records(recHandshake, message(msgServerHello, body), 0))
		require.NoError(t, err)
		require.Equal(t, ServerHello{Version: v, LegacyVersion: v}, h)
	}
	h, err := ParseServerHello(records(recHandshake, message(msgRetryRequest, []byte{0x7f, 0x13, 0, 0}), 0))
	require.NoError(t, err)
	require.True(t, h.HelloRetryRequest)
}

func TestServerHelloBehindWarning(t *testing.T) {
	hello := helloSpec{id: fill(32, 5)}.server()
	warning := []byte{recAlert, 3, 3, 0, 2, 1, 112}
	h, err := ParseServerHello(slices.Concat(warning, hello))
	require.NoError(t, err)
	require.Equal(t, sid(fill(32, 5)...), h.SessionID)
	_, err = ParseServerHello([]byte{recAlert, 3, 3, 0, 2, 2, 40})
	require.ErrorIs(t, err, ErrAlert)
}

func TestParseSessionID(t *testing.T) {
	for _, n := range []int{0, 1, 31, 32} {
		for _, size := range []int{0, 1, 20, 60} {
			b := records(recHandshake, helloSpec{id: fill(n, 3), sni: "a.example"}.clientMessage(), size)
			id, err := ParseSessionID(b)
			require.NoError(t, err)
			require.Equal(t, sid(fill(n, 3)...), id)
			for cut := range b {
				id, err := ParseSessionID(b[:cut])
				if err != nil {
					require.ErrorIs(t, err, ErrShort)
				} else {
					require.Equal(t, sid(fill(n, 3)...), id)
					require.GreaterOrEqual(t, cut, 44+n)
				}
			}
		}
	}
	_, err := ParseSessionID(helloSpec{id: fill(33, 1)}.client())
	require.ErrorIs(t, err, ErrMalformed)
	id, err := ParseSessionID(v2Hello(TLS10, fill(16, 3)))
	require.NoError(t, err)
	require.Equal(t, sid(fill(16, 3)...), id)
	b := helloSpec{id: fill(32, 1)}.client()
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = ParseSessionID(b) }))
}

func TestSSLv2CompatibleHello(t *testing.T) {
	for _, v := range []Version{SSL20, SSL30, TLS10, TLS11, TLS12} {
		for _, id := range [][]byte{nil, fill(16, 3), fill(32, 3)} {
			b := v2Hello(v, id)
			h, err := ParseClientHello(b)
			require.NoError(t, err)
			require.Equal(t, ClientHello{Version: v, LegacyVersion: v, SessionID: sid(id...), SSLv2: true}, h)
			for n := range b {
				_, err := ParseClientHello(b[:n])
				require.ErrorIs(t, err, ErrShort, "prefix of %d", n)
			}
			checkChunks(t, b, func(t *testing.T, got ClientHello) { require.Equal(t, h, got) })
		}
	}
	b := v2Hello(TLS10, fill(16, 3))
	b[8] = 33
	_, err := ParseClientHello(b)
	require.ErrorIs(t, err, ErrMalformed)
}

// checkChunks feeds b in many ways and wants the same hello from each.
func checkChunks(t *testing.T, b []byte, check func(*testing.T, ClientHello)) {
	t.Helper()
	for _, size := range []int{1, 2, 3, 5, 9, 10, 100, 1392, len(b)} {
		var p Parser
		for at := 0; at < len(b); at += size {
			end := min(at+size, len(b))
			h, err := p.Client(slices.Clone(b[at:end]))
			if end < len(b) {
				require.ErrorIs(t, err, ErrShort)
				continue
			}
			require.NoError(t, err)
			check(t, h)
			require.NoError(t, p.EOF())
		}
	}
	step := 1 + len(b)/1000
	if underRace {
		step = 1 + len(b)/100
	}
	for cut := 1; cut < len(b); cut += step {
		var p Parser
		_, err := p.Client(b[:cut])
		require.ErrorIs(t, err, ErrShort, "cut at %d", cut)
		h, err := p.Client(b[cut:])
		require.NoError(t, err, "cut at %d", cut)
		check(t, h)
	}
}

func TestHelloInAnyChunksAndRecords(t *testing.T) {
	spec := fullSpec()
	spec.pad = 1200 // about the size of a hello with a post-quantum key share
	msg := spec.clientMessage()
	for _, size := range []int{1, 4, 5, 100, len(msg) - 1, 0} {
		b := records(recHandshake, msg, size)
		h, err := ParseClientHello(b)
		require.NoError(t, err)
		checkFull(t, h)
		checkChunks(t, b, checkFull)
	}
	// One byte, then the rest.
	b := slices.Concat(records(recHandshake, msg[:1], 0), records(recHandshake, msg[1:], 0))
	checkChunks(t, b, checkFull)
}

// Every proper prefix of a valid hello asks for more, whatever follows it.
func TestEveryPrefixIsShort(t *testing.T) {
	for _, size := range []int{0, 1, 7, 100} {
		b := records(recHandshake, fullSpec().clientMessage(), size)
		for n := range b {
			_, err := ParseClientHello(b[:n])
			require.ErrorIs(t, err, ErrShort, "records of %d, prefix of %d", size, n)
		}
		s := records(recHandshake, helloSpec{id: fill(32, 1), will: true}.serverMessage(), size)
		for n := range s {
			_, err := ParseServerHello(s[:n])
			require.ErrorIs(t, err, ErrShort, "records of %d, prefix of %d", size, n)
		}
	}
}

// A message cut anywhere inside, with lengths that say it is whole, is malformed.
func TestEveryTruncationIsMalformed(t *testing.T) {
	body := fullSpec().clientMessage()[messageHeader:]
	whole := 0
	for n := range body {
		_, err := ParseClientHello(records(recHandshake, message(msgClientHello, body[:n]), 0))
		if err == nil {
			whole++ // a hello may end before its extensions
			continue
		}
		require.ErrorIs(t, err, ErrMalformed, "body of %d", n)
	}
	require.Equal(t, 1, whole)
	body = helloSpec{id: fill(32, 1), will: true}.serverMessage()[messageHeader:]
	whole = 0
	for n := range body {
		if _, err := ParseServerHello(records(recHandshake, message(msgServerHello, body[:n]), 0)); err == nil {
			whole++
		} else {
			require.ErrorIs(t, err, ErrMalformed)
		}
	}
	require.Equal(t, 1, whole)
}

// L63: a hello that claims up to four bytes more than there are.
func TestHelloClaimsMoreThanPresent(t *testing.T) {
	for more := 1; more <= 4; more++ {
		msg := fullSpec().clientMessage()
		n := len(msg) - messageHeader + more
		msg[2], msg[3] = byte(n>>8), byte(n)
		b := records(recHandshake, msg, 0)
		_, err := ParseClientHello(b)
		require.ErrorIs(t, err, ErrShort)
		var p Parser
		_, err = p.Client(b)
		require.ErrorIs(t, err, ErrShort)
		require.ErrorIs(t, p.EOF(), ErrMalformed)
	}
}

// L64: lengths of the session ID.
func TestSessionIDLengths(t *testing.T) {
	for _, n := range []int{0, 1, 16, 31, 32} {
		id := fill(n, 9)
		h, err := ParseClientHello(helloSpec{id: id}.client())
		require.NoError(t, err)
		require.Equal(t, sid(id...), h.SessionID)
		require.Equal(t, n, h.SessionID.Len())
		require.Equal(t, n == 0, h.SessionID.IsZero())
		s, err := ParseServerHello(helloSpec{id: id}.server())
		require.NoError(t, err)
		require.Equal(t, sid(id...), s.SessionID)
	}
	for _, n := range []int{33, 255} {
		_, err := ParseClientHello(helloSpec{id: fill(n, 9)}.client())
		require.ErrorIs(t, err, ErrMalformed)
		_, err = ParseServerHello(helloSpec{id: fill(n, 9)}.server())
		require.ErrorIs(t, err, ErrMalformed)
	}
}

// L75: what is not TLS is said to be so, and nothing panics.
func TestNotTLS(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	junk := make([]byte, 4096)
	for i := range junk {
		junk[i] = byte(r.Uint32())
	}
	copy(junk, "\x16\xf2\xc8\x49\x92")
	_, err := ParseClientHello(junk)
	require.ErrorIs(t, err, ErrNotTLS)
	for _, s := range []string{"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-OpenSSH", "\x00", "\x16\x04", "\x16\x03\x05", "\x17\x03\x03\x00\x10", "\x15\x03\x01\x00\x02\x02\x28", "\x16\xfe\xfd" /* DTLS */, "\x80\x2e\x02", "\x80\x2e\x01\x07", "\xff\xff\xff"} {
		_, err := ParseClientHello([]byte(s))
		require.ErrorIs(t, err, ErrNotTLS, "%q", s)
	}
	for _, s := range []string{"HTTP/1.1 400 Bad Request\r\n", "220 smtp", "\x14\x03\x03"} {
		_, err := ParseServerHello([]byte(s))
		require.ErrorIs(t, err, ErrNotTLS, "%q", s)
	}
}

func TestMalformed(t *testing.T) {
	ext := func(typ int, body ...byte) helloSpec { return helloSpec{extra: extension(typ, body)} }
	spec := fullSpec()
	trailing := spec.clientMessage()
	trailing = message(msgClientHello, append(trailing[messageHeader:], 0))
	cases := map[string][]byte{
		"empty record":             {22, 3, 1, 0, 0},
		"record of 20,000 bytes":   {22, 3, 1, 0x4e, 0x20},
		"message is a ServerHello": helloSpec{}.server(),
		"no ciphers":               records(22, message(1, slices.Concat(helloSpec{}.head(), []byte{0, 0, 1, 0})), 0),
		"odd ciphers":              records(22, message(1, slices.Concat(helloSpec{}.head(), []byte{0, 1, 9, 1, 0})), 0),
		"no compression":           records(22, message(1, slices.Concat(helloSpec{}.head(), []byte{0, 2, 9, 9, 0})), 0),
		"version 2.9":              records(22, helloSpec{legacy: 0x0209}.clientMessage(), 0),
		"trailing byte":            records(22, trailing, 0),
		"alert inside":             slices.Concat(records(22, spec.clientMessage()[:50], 0), []byte{21, 3, 1, 0, 2, 1, 0}),
		"server name list":         ext(0, 0, 5, 0, 0, 9, 'a').client(),
		"server name empty":        ext(0).client(),
		"server name of no bytes":  ext(0, 0, 3, 0, 0, 0).client(),
		"server name of no host":   ext(0, 0, 4, 7, 0, 1, 'a').client(),
		"alpn empty":               ext(16).client(),
		"alpn name empty":          ext(16, 0, 2, 0, 0).client(),
		"alpn name long":           ext(16, 0, 3, 9, 'a', 'b').client(),
		"versions even":            ext(43, 3, 3, 4, 3).client(),
		"versions none":            ext(43, 0).client(),
		"psk none":                 ext(41, 0, 0, 0, 0).client(),
		"psk identity empty":       ext(41, 0, 6, 0, 0, 0, 0, 0, 0).client(),
		"psk identity long":        ext(41, 0, 7, 0, 9, 1, 0, 0, 0, 0).client(),
		"extension twice":          helloSpec{sni: "a", extra: extension(35, nil), ticket: []byte{}}.client(),
		"extension header":         helloSpec{extra: []byte{0, 1, 0}}.client(),
		"extension length":         helloSpec{extra: []byte{0, 1, 0, 9}}.client(),
		"sslv2 of 3 bytes":         {0x80, 3, 1, 3, 1},
		"sslv2 sums":               append(v2Hello(TLS10, nil)[:3:3], 3, 1, 0, 9, 0, 0, 0, 1),
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "sslv2 sums") {
				b = v2Hello(TLS10, nil)
				b[6]++
			}
			_, err := ParseClientHello(b)
			require.ErrorIs(t, err, ErrMalformed)
			require.NotEqual(t, ErrMalformed.Error(), err.Error(), "the error says what")
			var p Parser
			for _, c := range b {
				if _, err = p.Client([]byte{c}); !errors.Is(err, ErrShort) {
					break
				}
			}
			require.ErrorIs(t, err, ErrMalformed)
		})
	}
}

func TestTooLarge(t *testing.T) {
	// The largest that is read: 64 KiB with its header.
	spec := helloSpec{id: fill(32, 3), pad: 64000}
	spec.suites = 3 + (MaxHello-len(spec.clientMessage()))/2
	spec.pad += MaxHello - len(spec.clientMessage())
	require.Len(t, spec.clientMessage(), MaxHello)
	h, err := ParseClientHello(records(recHandshake, spec.clientMessage(), 0))
	require.NoError(t, err)
	require.Equal(t, sid(fill(32, 3)...), h.SessionID)
	spec.suites++
	msg := spec.clientMessage()
	_, err = ParseClientHello(records(recHandshake, msg[:9], 0))
	require.ErrorIs(t, err, ErrTooLarge, "known from the length alone")
	var p Parser
	_, err = p.Client(records(recHandshake, msg, 0))
	require.ErrorIs(t, err, ErrTooLarge)
	require.Nil(t, p.s.buf)
	_, err = p.Client([]byte{0})
	require.ErrorIs(t, err, ErrTooLarge)
}

func TestParserUsesBuffer(t *testing.T) {
	buf := make([]byte, MaxHello)
	b := records(recHandshake, fullSpec().clientMessage(), 100)
	p := Parser{Buffer: buf}
	h, err := p.Client(b)
	require.NoError(t, err)
	checkFull(t, h)
	buf[0] ^= 0xff
	at := slices.Index(buf, 'w')
	buf[at] = 'W'
	require.Equal(t, "Www.example.org", string(h.ServerName), "aliases the buffer")
	_, err = p.Client(b)
	require.Error(t, err)
	p.Reset()
	h, err = p.Client(b)
	require.NoError(t, err)
	checkFull(t, h)
}

func TestResultAliasesInput(t *testing.T) {
	b := fullSpec().client()
	h, err := ParseClientHello(b)
	require.NoError(t, err)
	at := strings.Index(string(b), "www.")
	b[at] = 'W'
	require.Equal(t, "Www.example.org", string(h.ServerName))
}

func TestParsingDoesNotAllocate(t *testing.T) {
	client := fullSpec().client()
	server := helloSpec{id: fill(32, 5), will: true}.server()
	v2 := v2Hello(TLS10, fill(32, 1))
	many := records(recHandshake, fullSpec().clientMessage(), 100)
	buf := make([]byte, MaxHello)
	none := func(name string, f func()) {
		require.Zero(t, testing.AllocsPerRun(100, f), name)
	}
	none("client", func() { _, _ = ParseClientHello(client) })
	none("sslv2", func() { _, _ = ParseClientHello(v2) })
	none("server", func() { _, _ = ParseServerHello(server) })
	none("short", func() { _, _ = ParseClientHello(client[:len(client)-1]) })
	none("malformed", func() { _, _ = ParseClientHello(server) })
	p := Parser{Buffer: buf}
	none("buffer", func() {
		p.Reset()
		if _, err := p.Client(many); err != nil {
			panic(err)
		}
	})
	none("psks", func() {
		h, _ := ParseClientHello(client)
		for id := range h.PSKIdentities() {
			_ = id
		}
	})
}

// Feeding byte by byte costs a number of steps that grows with the length alone: nothing
// is read again. Time would be a poor witness, so the bytes looked at are counted through
// the buffer: it is only appended to.
func TestByteByByteIsLinear(t *testing.T) {
	spec := helloSpec{id: fill(32, 3), pad: 60000}
	b := records(recHandshake, spec.clientMessage(), 0)
	p := Parser{Buffer: make([]byte, MaxHello)}
	allocs := testing.AllocsPerRun(1, func() {
		p.Reset()
		for i := range b {
			if _, err := p.Client(b[i : i+1]); err != nil && i == len(b)-1 {
				panic(err)
			}
		}
	})
	require.Zero(t, allocs)
}

func BenchmarkParseClientHello(b *testing.B) {
	hello := fullSpec().client()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseClientHello(hello); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseSessionID(b *testing.B) {
	hello := fullSpec().client()
	for b.Loop() {
		if _, err := ParseSessionID(hello); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseServerHello(b *testing.B) {
	hello := helloSpec{id: fill(32, 5), will: true}.server()
	for b.Loop() {
		if _, err := ParseServerHello(hello); err != nil {
			b.Fatal(err)
		}
	}
}

// Cost per byte must not depend on the size of the hello.
func BenchmarkByteByByte(b *testing.B) {
	for name, pad := range map[string]int{"1KiB": 700, "60KiB": 60000} {
		hello := records(recHandshake, helloSpec{id: fill(32, 3), pad: pad}.clientMessage(), 0)
		b.Run(name, func(b *testing.B) {
			p := Parser{Buffer: make([]byte, MaxHello)}
			b.SetBytes(int64(len(hello)))
			for b.Loop() {
				p.Reset()
				for i := range hello {
					_, _ = p.Client(hello[i : i+1])
				}
			}
		})
	}
}
