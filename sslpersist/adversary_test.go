package sslpersist

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// A client that sends a second hello without waiting for the reply to the first could have
// an ID of its own invention compared with the wrong hello, and stored.
func TestHelloBehindHelloStoresNothing(t *testing.T) {
	first := helloSpec{id: fill(32, 1), ticket: fill(160, 7)}.client()
	second := withID(100)
	for name, pieces := range map[string][][]byte{
		"one chunk":              {append(bytes.Clone(first), second...)},
		"two chunks":             {first, second},
		"torn":                   {append(bytes.Clone(first), second[:7]...), second[7:]},
		"two hellos in a record": {hs(helloSpec{id: fill(32, 1), ticket: fill(160, 7)}.clientMessage(), helloSpec{id: fill(32, 100)}.clientMessage())},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			c := w.f.Open(clientA)
			for _, p := range pieces {
				h, err := c.Client(p)
				require.NoError(t, err)
				require.Equal(t, sid(fill(32, 1)...), h.SessionID)
			}
			c.Bind(w.now, "a")
			_, err := c.Server(w.now, issues(1)) // resumed by the ticket
			require.NoError(t, err)
			require.True(t, c.Resumed())
			require.Zero(t, w.f.IDs().Len())
		})
	}
}

// A second hello behind the first must not write over what the first one's slices point to.
func TestHelloBehindHelloKeepsTheFirst(t *testing.T) {
	first := helloSpec{id: fill(32, 1), sni: "first.example"}.client()
	second := helloSpec{id: fill(32, 2), sni: "other.example"}.client()
	var h Handshake
	_, err := h.Client(first[:20])
	require.ErrorIs(t, err, ErrShort)
	hello, err := h.Client(append(bytes.Clone(first[20:]), second[:len(second)-1]...))
	require.NoError(t, err)
	require.Equal(t, "first.example", string(hello.ServerName))
}

// An ID of a second hello is not the one that was found bound to a node that is down.
func TestRebindingTakesTheIDThatWasFound(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.state["a"] = Down
	c := w.f.Open(clientA)
	_, err := c.Client(withID(1))
	require.NoError(t, err)
	require.Equal(t, ByMetric, c.Choose(w.now, w.available).By)
	retry := helloSpec{id: fill(32, 1), versions: []Version{TLS13}, random: retryRandom}.server()
	_, err = c.Server(w.now, retry)
	require.NoError(t, err)
	_, err = c.Client(withID(100))
	require.NoError(t, err)
	c.Bind(w.now, "b")
	w.want(clientB, withID(100), "", ByMetric)
}

// What an earlier Choose found is void when asked again.
func TestChooseAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.state["a"] = Down
	c := w.f.Open(clientA)
	_, err := c.Client(withID(1))
	require.NoError(t, err)
	require.Equal(t, ByMetric, c.Choose(w.now, w.available).By)
	w.f.Forget("a")
	require.Equal(t, ByMetric, c.Choose(w.now, w.available).By)
	c.Bind(w.now, "b")
	require.Zero(t, w.f.IDs().Len())
	require.Zero(t, w.f.Stats().Rebound)
}

// After a HelloRetryRequest a client may leave out offers, so that their places shift.
func TestRetryShiftsTheOffers(t *testing.T) {
	w := newWorld(t, &Settings[string]{Tickets: true})
	tls13 := []Version{TLS13}
	offer := func(tickets ...[]byte) []byte {
		return helloSpec{id: fill(32, 1), versions: tls13, psks: tickets}.client()
	}
	accept := helloSpec{id: fill(32, 1), versions: tls13, selected: 1}.server()
	for i := range 2 {
		w.connect(clientA, offer(ticketOf(1, i)), "a", accept)
		w.connect(clientA, offer(ticketOf(2, i)), "b", accept)
	}
	w.state["a"], w.state["b"] = Down, AtLimit
	for i := range 2 {
		c, _, by := w.connect(clientA, offer(ticketOf(1, 9), ticketOf(2, 9+i)), "c",
			helloSpec{id: fill(32, 1), versions: tls13, random: retryRandom}.server())
		require.Equal(t, ByMetric, by)
		_, err := c.Client(offer(ticketOf(2, 9+i)))
		require.NoError(t, err)
		_, err = c.Server(w.now, accept)
		require.NoError(t, err)
	}
	w.state["b"] = Up
	w.want(clientB, offer(ticketOf(2, 50)), "b", ByTicket) // b was never down
}

// What follows an SSLv2-compatible hello is ordinary TLS.
func TestSSLv2HelloThenTLS(t *testing.T) {
	var h Handshake
	flight := append(v2Hello(TLS10, fill(16, 3)), records(recHandshake, message(16, fill(48, 1)), 0)...)
	_, err := h.Client(flight)
	require.NoError(t, err)
	require.False(t, h.cdone)
	_, err = h.Server(helloSpec{legacy: TLS10, id: fill(32, 1)}.server())
	require.NoError(t, err)
	l, ok := h.Next()
	require.True(t, ok)
	require.Equal(t, learnID(fill(32, 1)), l)
	// Renegotiation in the clear.
	hello, err := h.Client(withID(1))
	require.NoError(t, err)
	require.Equal(t, sid(fill(32, 1)...), hello.SessionID)
}

// Record layer oddities, each of which must be seen as what it is, in any chunks.
func TestOddRecords(t *testing.T) {
	good := helloSpec{id: fill(32, 1), suites: 3}.clientMessage()
	warning := []byte{recAlert, 3, 3, 0, 2, 1, 112}
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"empty handshake record first":     {append([]byte{22, 3, 1, 0, 0}, records(22, good, 0)...), ErrMalformed},
		"empty handshake record inside":    {append(append(records(22, good[:9], 0), 22, 3, 1, 0, 0), records(22, good[9:], 0)...), ErrMalformed},
		"empty data record inside":         {append(append(records(22, good[:9], 0), 23, 3, 1, 0, 0), records(22, good[9:], 0)...), ErrMalformed},
		"alert inside the header":          {append(append(records(22, good[:2], 0), warning...), records(22, good[2:], 0)...), ErrMalformed},
		"alert inside":                     {append(append(records(22, good[:50], 0), warning...), records(22, good[50:], 0)...), ErrMalformed},
		"alert first":                      {append(bytes.Clone(warning), records(22, good, 0)...), ErrNotTLS},
		"ChangeCipherSpec first":           {append(bytes.Clone(changeCipherSpec), records(22, good, 0)...), ErrNotTLS},
		"another message first":            {records(22, append(message(16, []byte{1}), good...), 0), ErrMalformed},
		"a ServerHello":                    {helloSpec{}.server(), ErrMalformed},
		"record of 18,433 bytes":           {append([]byte{22, 3, 1, 0x48, 1}, good...), ErrMalformed},
		"second record of unknown version": {append(append(records(22, good[:9], 0), 22, 4, 1, 0, 9), good[9:]...), ErrMalformed},
		"SSLv2 of TLS 2":                   {[]byte{0x80, 46, 1, 4, 0}, ErrNotTLS},
		"SSLv2 ID of 33 bytes":             {v2Hello(TLS10, fill(33, 1)), ErrMalformed},
		"SSLv2 too short, of TLS 48":       {[]byte{0x80, 3, 1, 0x30, 0x30}, ErrNotTLS},
		"SSLv2 too short":                  {[]byte{0x80, 8, 1, 3, 1, 0, 0, 0, 0, 0}, ErrMalformed},
		"message of 16 MiB":                {[]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff, 3, 3}, ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseClientHello(c.in)
			require.ErrorIs(t, err, c.want)
			for _, step := range []int{1, 2, 3, 7, 64} {
				var p Parser
				err := ErrShort
				for b := c.in; len(b) > 0 && errors.Is(err, ErrShort); b = b[min(step, len(b)):] {
					_, err = p.Client(b[:min(step, len(b))])
				}
				require.ErrorIs(t, err, c.want, "in steps of %d", step)
			}
		})
	}
	// As many suites as a hello can have, and the largest message there is.
	for _, spec := range []helloSpec{{suites: 32000, id: fill(32, 1)}, {pad: MaxHello - 160, id: fill(32, 1)}} {
		checkChunks(t, records(22, spec.clientMessage(), 0), func(t *testing.T, h ClientHello) {
			require.Equal(t, sid(fill(32, 1)...), h.SessionID)
		})
	}
}

// A hello in pieces takes memory of the farm, and gives it back.
func TestSplitHellosTakeNoNewMemory(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	for name, hello := range map[string][]byte{
		"TLS":   helloSpec{id: fill(32, 1), sni: "a.example", pad: 1600}.client(),
		"SSLv2": v2Hello(TLS10, fill(32, 1)),
		"large": records(22, helloSpec{id: fill(32, 1), sni: "a.example", pad: 9000}.clientMessage(), 1000),
	} {
		t.Run(name, func(t *testing.T) {
			answer := helloSpec{id: fill(32, 1)}.server()
			run := func() {
				c := w.f.Open(clientA)
				for b := hello; len(b) > 0; b = b[min(500, len(b)):] {
					_, _ = c.Client(b[:min(30, len(b))])
					_, _ = c.Client(b[min(30, len(b)):min(500, len(b))])
				}
				c.Bind(w.now, c.Choose(w.now, w.available).Node)
				_, _ = c.Server(w.now, answer[:30])
				_, _ = c.Server(w.now, answer[30:])
				require.True(t, c.Resumed())
			}
			run()
			open := testing.AllocsPerRun(20, func() { w.f.Open(clientA) })
			choose := testing.AllocsPerRun(20, func() { w.f.Open(clientA).Choose(w.now, w.available) })
			require.LessOrEqual(t, testing.AllocsPerRun(20, run), max(open, choose)+1) // + the method value
			require.NotEmpty(t, w.f.pool.idle)
		})
	}
}

func TestPoolIsBounded(t *testing.T) {
	var p buffers
	for range 2 * keptBuffers {
		p.put(make([]byte, 10, keptRoom))
	}
	require.Len(t, p.idle, keptBuffers)
	b := p.get()
	require.Empty(t, b)
	require.Equal(t, keptRoom, cap(b))
	p.put(make([]byte, 0, keptRoom+1))
	require.Len(t, p.idle, keptBuffers-1)
}

// Hellos of two connections that share the farm's memory do not mix.
func TestPooledHellosDoNotMix(t *testing.T) {
	w := newWorld(t, nil)
	type half struct {
		c    *Conn[string]
		rest []byte
		name string
	}
	var open []half
	for round := range 50 {
		for i := range 4 {
			name := string(rune('a'+i)) + ".example"
			b := helloSpec{id: fill(32, byte(round)), sni: name, pad: 100 * round}.client()
			h := half{w.f.Open(netip.Addr{}), b[20:], name}
			_, err := h.c.Client(b[:20])
			require.ErrorIs(t, err, ErrShort)
			open = append(open, h)
		}
		h := open[round%len(open)]
		open = append(open[:round%len(open)], open[round%len(open)+1:]...)
		hello, err := h.c.Client(h.rest)
		require.NoError(t, err)
		other, err := open[0].c.Client(open[0].rest)
		require.NoError(t, err)
		require.Equal(t, h.name, string(hello.ServerName))
		require.Equal(t, open[0].name, string(other.ServerName))
		h.c.Bind(w.now, "a")
		open[0].c.Bind(w.now, "a")
		open = open[1:]
	}
}
