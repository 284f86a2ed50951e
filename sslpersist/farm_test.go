package sslpersist

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// world is a farm of named servers and a clock, with connections by hand-made hellos.
type world struct {
	t     testing.TB
	f     *Farm[string]
	now   time.Time
	state map[string]Availability // Up if absent
}

func newWorld(t testing.TB, set *Settings[string]) *world {
	f, err := NewFarm(set)
	require.NoError(t, err)
	return &world{t: t, f: f, now: time.Now(), state: map[string]Availability{}}
}

func (w *world) available(n string) Availability {
	if a, ok := w.state[n]; ok {
		return a
	}
	return Up
}

var clientA, clientB = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")

// connect makes a connection: the client's hello, a choice (metric is what the metric
// would say) and the server's answer. It returns where it went and by what.
func (w *world) connect(client netip.Addr, hello []byte, metric string, answer ...[]byte) (*Conn[string], string, Basis) {
	w.t.Helper()
	c := w.f.Open(client)
	_, err := c.Client(hello)
	require.NoError(w.t, err)
	choice := c.Choose(w.now, w.available)
	n := choice.Node
	if choice.By == ByMetric {
		require.Empty(w.t, n)
		n = metric
	}
	c.Bind(w.now, n)
	for _, b := range answer {
		_, err := c.Server(w.now, b)
		require.NoError(w.t, err)
	}
	return c, n, choice.By
}

func (w *world) want(client netip.Addr, hello []byte, node string, by Basis) {
	w.t.Helper()
	_, n, got := w.connect(client, hello, "metric")
	require.Equal(w.t, by, got)
	if by == ByMetric {
		node = "metric"
	}
	require.Equal(w.t, node, n)
}

func withID(id byte) []byte { return helloSpec{id: fill(32, id)}.client() }

func issues(id byte) []byte { return helloSpec{id: fill(32, id)}.server() }

// Right answers 1, 2 and L78: a known ID goes to its server from any address; an ID the
// server issues on such a connection is bound to the same server.
func TestKnownIDFromAnotherAddress(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.want(clientB, withID(1), "a", BySession)
	_, n, _ := w.connect(clientB, withID(1), "", issues(2))
	require.Equal(t, "a", n)
	w.want(clientA, withID(2), "a", BySession)
	w.want(clientA, withID(1), "a", BySession)
	require.Equal(t, 2, w.f.IDs().Len())
}

// L78: another ID in the clear on the same connection keeps the binding and is learned.
func TestIDChangedMidStream(t *testing.T) {
	w := newWorld(t, nil)
	c, _, _ := w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	_, err := c.Client(withID(1))
	require.NoError(t, err)
	_, err = c.Server(w.now, issues(2))
	require.NoError(t, err)
	w.want(clientA, withID(1), "a", BySession)
	w.want(clientA, withID(2), "a", BySession)
}

// Right answer 3, on connections.
func TestIdleTimeCountsFromTheLastPacket(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.now = w.now.Add(9*time.Minute + 59*time.Second)
	c, n, _ := w.connect(clientA, withID(1), "metric")
	require.Equal(t, "a", n)
	w.now = w.now.Add(9 * time.Minute)
	c.Touch(w.now) // a packet of that connection
	w.now = w.now.Add(9 * time.Minute)
	w.want(clientB, withID(1), "a", BySession)
	w.now = w.now.Add(10*time.Minute + time.Second)
	w.want(clientB, withID(1), "", ByMetric)
	c.Touch(w.now)
	w.want(clientB, withID(1), "", ByMetric) // a late packet revives nothing
}

func TestTouchNeverShortensTheIdleTime(t *testing.T) {
	for _, ttl := range []time.Duration{300 * time.Millisecond, 10 * time.Second, 10 * time.Minute} {
		r := rand.New(rand.NewPCG(uint64(ttl), 1))
		for range 200 {
			w := newWorld(t, &Settings[string]{TTL: ttl})
			c, _, _ := w.connect(clientA, helloSpec{}.client(), "a", issues(1))
			for range 20 {
				w.now = w.now.Add(time.Duration(r.Int64N(int64(ttl) / 8)))
				c.Touch(w.now)
			}
			_, ok := w.f.IDs().PeekAt(w.now.Add(ttl-1), sid(fill(32, 1)...))
			require.True(t, ok)
			_, ok = w.f.IDs().PeekAt(w.now.Add(ttl+min(time.Second, ttl/60)), sid(fill(32, 1)...))
			require.False(t, ok)
		}
	}
}

func TestTouchIsCheap(t *testing.T) {
	w := newWorld(t, nil)
	c, _, _ := w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		w.now = w.now.Add(time.Millisecond)
		c.Touch(w.now)
	}))
}

// Right answer 4 (L65) and 5 (L72): empty and TLS 1.3 IDs are not stored.
func TestNothingToLearn(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, withID(1), "a", helloSpec{}.server())
	w.connect(clientA, withID(1), "a", helloSpec{id: fill(32, 1), versions: []Version{TLS13}}.server())
	w.connect(clientA, helloSpec{}.client(), "a", helloSpec{}.server())
	require.Zero(t, w.f.IDs().Len())
	w.want(clientA, helloSpec{}.client(), "", ByMetric)
}

// Right answer 6: one address, two sites, two bindings.
func TestTwoSitesBehindOneProxy(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{sni: "one.example"}.client(), "a", issues(1))
	w.connect(clientA, helloSpec{sni: "two.example"}.client(), "b", issues(2))
	w.want(clientA, withID(1), "a", BySession)
	w.want(clientA, withID(2), "b", BySession)
}

// L67: a repeated ServerHello and a ticket behind it make one entry.
func TestServerHelloRepeated(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1), issues(1), hs(newTicketMessage(fill(160, 9))))
	require.Equal(t, 1, w.f.IDs().Len())
	require.Equal(t, 1, w.f.Stats().IDs.Entries)
}

// L74: the second hello after a HelloRetryRequest changes nothing.
func TestRetryChangesNoBinding(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	tls13 := []Version{TLS13}
	c, n, by := w.connect(clientB, helloSpec{id: fill(32, 1), versions: tls13}.client(), "b",
		helloSpec{id: fill(32, 1), versions: tls13, random: retryRandom}.server())
	require.Equal(t, "a", n)
	require.Equal(t, BySession, by)
	_, err := c.Client(helloSpec{id: fill(32, 1), versions: tls13}.client())
	require.NoError(t, err)
	_, err = c.Server(w.now, helloSpec{id: fill(32, 1), versions: tls13}.server())
	require.NoError(t, err)
	w.want(clientA, withID(1), "a", BySession)
	require.Equal(t, 1, w.f.IDs().Len())
}

// After a restart of the balancer bindings come back with the resumptions.
func TestEchoBringsBindingsBack(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, withID(1), "a", issues(1))
	w.want(clientB, withID(1), "a", BySession)
	// With a ticket an echo proves nothing about the ID.
	w.connect(clientA, helloSpec{id: fill(32, 2), ticket: fill(99, 1)}.client(), "a", issues(2))
	w.want(clientB, withID(2), "", ByMetric)
}

func TestNodeDownRebinds(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.state["a"] = Down
	_, n, by := w.connect(clientA, withID(1), "b", issues(2))
	require.Equal(t, "b", n)
	require.Equal(t, ByMetric, by)
	w.want(clientB, withID(1), "b", BySession)
	w.want(clientB, withID(2), "b", BySession)
	w.state["a"] = Up
	w.want(clientB, withID(1), "b", BySession)
	s := w.f.Stats()
	require.Equal(t, uint64(1), s.Rebound)
	require.Equal(t, uint64(1), s.Down)
}

func TestNodeAtLimitKeepsItsBinding(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.state["a"] = AtLimit
	w.want(clientA, withID(1), "", ByMetric)
	w.state["a"] = Up
	w.want(clientA, withID(1), "a", BySession)
	require.Equal(t, uint64(1), w.f.Stats().AtLimit)

	w = newWorld(t, &Settings[string]{OverLimit: true})
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.state["a"] = AtLimit
	w.want(clientA, withID(1), "a", BySession)
}

func TestNodeGone(t *testing.T) {
	w := newWorld(t, &Settings[string]{Tickets: true, ClientAddr: true})
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	require.Equal(t, 2, w.f.Forget("a"))
	w.want(clientA, withID(1), "", ByMetric)
}

func TestTwoServersClaimOneID(t *testing.T) {
	w := newWorld(t, nil)
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.connect(clientA, helloSpec{}.client(), "b", issues(1))
	w.want(clientA, withID(1), "b", BySession)
	require.Equal(t, uint64(1), w.f.Stats().IDs.Moved)
}

func TestFullFarmCounts(t *testing.T) {
	w := newWorld(t, &Settings[string]{MaxEntries: 2})
	for id := range byte(5) {
		w.connect(clientA, helloSpec{}.client(), "a", issues(id+1))
	}
	require.Equal(t, uint64(3), w.f.Stats().IDs.Refused)
	w.want(clientA, withID(1), "a", BySession)
	w.want(clientA, withID(5), "", ByMetric)
}

func TestWaitFinished(t *testing.T) {
	w := newWorld(t, &Settings[string]{WaitFinished: true})
	c, _, _ := w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.want(clientA, withID(1), "", ByMetric)
	_, err := c.Server(w.now, changeCipherSpec)
	require.NoError(t, err)
	w.want(clientA, withID(1), "a", BySession)
	w.connect(clientA, withID(2), "b", issues(2)) // a resumption needs no waiting
	w.want(clientA, withID(2), "b", BySession)
}

func TestOffAndPorts(t *testing.T) {
	w := newWorld(t, &Settings[string]{Ports: []uint16{443, 8443}})
	require.True(t, w.f.Watches(443))
	require.True(t, w.f.Watches(8443))
	require.False(t, w.f.Watches(80))
	w.f.SetOff(true)
	require.False(t, w.f.Watches(443))
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	require.Zero(t, w.f.IDs().Len())
	w.f.SetOff(false)
	require.True(t, w.f.Watches(443))
	f, err := NewFarm[string](nil)
	require.NoError(t, err)
	require.True(t, f.Watches(443))
	f, err = NewFarm(&Settings[string]{Off: true})
	require.NoError(t, err)
	require.False(t, f.Watches(443))
}

func TestSettingsFaultsAllAtOnce(t *testing.T) {
	_, err := NewFarm(&Settings[int]{Ports: []uint16{443, 0, 443}, MaxEntries: -1, TTL: -1, KeyPrefix: 3, MaxAddrs: -2})
	for _, s := range []string{"Ports[1] is 0", "Ports[2] is 443", "MaxEntries is -1", "TTL is -1", "without Tickets", "Prefix is 3", "without ClientAddr", "MaxAddrs is -2"} {
		require.ErrorContains(t, err, s)
	}
}

func TestClientAddress(t *testing.T) {
	w := newWorld(t, &Settings[string]{ClientAddr: true})
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.want(clientA, helloSpec{}.client(), "a", ByAddr)
	w.want(netip.AddrFrom16(clientA.As16()), helloSpec{}.client(), "a", ByAddr) // mapped
	w.want(clientB, helloSpec{}.client(), "", ByMetric)
	w.connect(clientB, helloSpec{}.client(), "", issues(9))
	// The session goes before the address.
	w.want(clientB, withID(1), "a", BySession)
	w.state["a"] = AtLimit
	w.want(clientA, helloSpec{}.client(), "", ByMetric)
	w.state["a"] = Up
	w.want(clientA, helloSpec{}.client(), "a", ByAddr)
	w.state["a"] = Down
	w.connect(clientA, helloSpec{}.client(), "b")
	w.want(clientA, helloSpec{}.client(), "b", ByAddr)
	// Not TLS: the address is all there is.
	c := w.f.Open(clientA)
	_, err := c.Client([]byte("GET / HTTP/1.1"))
	require.ErrorIs(t, err, ErrNotTLS)
	require.Equal(t, Choice[string]{"b", ByAddr}, c.Choose(w.now, w.available))
}

func TestFailuresAreCounted(t *testing.T) {
	w := newWorld(t, nil)
	for _, b := range [][]byte{[]byte("GET /"), helloSpec{}.server(), records(22, []byte{1, 1, 0, 0, 0}, 0)} {
		c := w.f.Open(clientA)
		for range 2 {
			_, err := c.Client(b)
			require.Error(t, err)
		}
		require.True(t, c.Done())
		require.Equal(t, ByMetric, c.Choose(w.now, w.available).By)
		c.Bind(w.now, "a")
		_, _ = c.Server(w.now, helloSpec{id: fill(32, 1)}.server())
	}
	c := w.f.Open(clientA)
	_, err := c.Client(helloSpec{}.client())
	require.NoError(t, err)
	_, err = c.Server(w.now, []byte("HTTP/1.1"))
	require.ErrorIs(t, err, ErrNotTLS)
	s := w.f.Stats()
	require.Equal(t, []uint64{1, 1, 1, 1}, []uint64{s.NotTLS, s.Malformed, s.TooLarge, s.NoReply})
	require.Zero(t, w.f.IDs().Len(), "without the client's hello an echo cannot be told from an issue")
}

// ticketOf makes a ticket of a server whose key name is all of one byte.
func ticketOf(name byte, serial int) []byte {
	b := bytes.Repeat([]byte{name}, 16)
	return append(b, fill(150, byte(serial))...)
}

func takesTickets(ticket []byte) []byte { return helloSpec{id: fill(32, 200), ticket: ticket}.client() }

func newTicket(ticket []byte) []byte {
	return hs(helloSpec{will: true}.serverMessage(), newTicketMessage(ticket))
}

func TestTicketKeyNames(t *testing.T) {
	w := newWorld(t, &Settings[string]{Tickets: true})
	w.connect(clientA, takesTickets([]byte{}), "a", newTicket(ticketOf(1, 1)))
	w.want(clientB, takesTickets(ticketOf(1, 1)), "", ByMetric) // once is not enough
	w.connect(clientA, takesTickets([]byte{}), "a", newTicket(ticketOf(1, 1)))
	w.want(clientB, takesTickets(ticketOf(1, 1)), "", ByMetric) // nor is the same again
	w.connect(clientA, takesTickets([]byte{}), "b", newTicket(ticketOf(1, 2)))
	w.want(clientB, takesTickets(ticketOf(1, 1)), "", ByMetric) // nor one of another server
	w.connect(clientA, takesTickets([]byte{}), "a", newTicket(ticketOf(1, 3)))
	w.want(clientB, takesTickets(ticketOf(1, 9)), "a", ByTicket)
	// A client of TLS 1.3 that offers such tickets, also behind others.
	w.want(clientB, helloSpec{versions: []Version{TLS13}, psks: [][]byte{ticketOf(7, 1), ticketOf(1, 5)}}.client(), "a", ByTicket)
	// The ID goes first.
	w.connect(clientA, helloSpec{}.client(), "b", issues(2))
	w.want(clientB, helloSpec{id: fill(32, 2), ticket: ticketOf(1, 9)}.client(), "b", BySession)
	require.Equal(t, 1, w.f.Keys().Len())
	// Short tickets have no name.
	for range 3 {
		w.connect(clientA, takesTickets([]byte{}), "a", newTicket(fill(16, 5)))
	}
	require.Equal(t, 1, w.f.Keys().Len())
}

func TestTicketKeyNamesOfTLS13(t *testing.T) {
	w := newWorld(t, &Settings[string]{Tickets: true})
	tls13 := []Version{TLS13}
	offer := func(ticket []byte) []byte {
		return helloSpec{id: fill(32, 1), versions: tls13, psks: [][]byte{ticket}}.client()
	}
	accept := helloSpec{id: fill(32, 1), versions: tls13, selected: 1}.server()
	refuse := helloSpec{id: fill(32, 1), versions: tls13}.server()
	for i := range 5 {
		w.connect(clientA, offer(ticketOf(2, i)), "a", refuse)
	}
	require.Zero(t, w.f.Keys().Len())
	w.connect(clientA, offer(ticketOf(2, 1)), "a", accept)
	w.connect(clientA, offer(ticketOf(2, 1)), "a", accept) // replayed
	require.Zero(t, w.f.Keys().Len())
	w.connect(clientA, offer(ticketOf(2, 2)), "a", accept)
	w.want(clientB, offer(ticketOf(2, 3)), "a", ByTicket)
	require.Zero(t, w.f.IDs().Len())
}

func TestTicketKeyOfTwoServers(t *testing.T) {
	w := newWorld(t, &Settings[string]{Tickets: true})
	learn := func(n string) {
		for i := range 2 {
			c := w.f.Open(clientA)
			_, err := c.Client(takesTickets([]byte{}))
			require.NoError(t, err)
			c.Bind(w.now, n)
			_, err = c.Server(w.now, newTicket(ticketOf(1, i+int(n[0]))))
			require.NoError(t, err)
		}
	}
	learn("a")
	learn("b")
	require.Equal(t, uint64(1), w.f.Stats().Keys.Shared)
	w.want(clientA, takesTickets(ticketOf(1, 9)), "a", ByTicket)
	// The bound server is down: the other one takes over once it shows that it can.
	w.state["a"] = Down
	for i := range 2 {
		_, n, by := w.connect(clientA, takesTickets(ticketOf(1, 9)), "b", hs(helloSpec{id: fill(32, 200), will: true}.serverMessage(), newTicketMessage(ticketOf(1, 20+i))))
		require.Equal(t, "b", n)
		require.Equal(t, ByMetric, by)
	}
	w.want(clientA, takesTickets(ticketOf(1, 9)), "b", ByTicket)
	require.Equal(t, uint64(1), w.f.Stats().Keys.Moved)
}

// Tickets without a name, as Go makes them, pass through a bounded set.
func TestOneOffPrefixesAreBounded(t *testing.T) {
	w := newWorld(t, &Settings[string]{Tickets: true, MaxOnce: 100})
	r := rand.New(rand.NewPCG(1, 1))
	for range 10_000 {
		ticket := make([]byte, 120)
		for i := range ticket {
			ticket[i] = byte(r.Uint32())
		}
		w.connect(clientA, takesTickets([]byte{}), "a", newTicket(ticket))
	}
	require.Equal(t, 100, w.f.Keys().Waiting())
	require.Zero(t, w.f.Keys().Len())
	w.f.Forget("a")
	require.Zero(t, w.f.Keys().Waiting())
}

func TestKeyPrefixLength(t *testing.T) {
	m := MarkTicket(fill(40, 1))
	require.Equal(t, 16, func() int { n := m.KeyName(16); return n.Len() }())
	for _, n := range []int{0, -1, 33} {
		require.True(t, m.KeyName(n).IsZero())
	}
	w := newWorld(t, &Settings[string]{Tickets: true, KeyPrefix: 4})
	for i := range 2 {
		w.connect(clientA, takesTickets([]byte{}), "a", newTicket(append([]byte("name"), fill(60, byte(i))...)))
	}
	w.want(clientA, takesTickets([]byte("name and more")), "a", ByTicket)
	short := MarkTicket(fill(16, 1))
	require.True(t, short.KeyName(16).IsZero(), "nothing behind the name")
	require.True(t, MarkTicket(nil).IsZero())
}

// L72: a million TLS 1.3 connections leave nothing behind, and neither do a million
// invented IDs or replayed hellos.
func TestAMillionHellosLeaveTheTableEmpty(t *testing.T) {
	t.Parallel()
	count := 1_000_000
	if testing.Short() || underRace {
		count = 20_000
	}
	w := newWorld(t, &Settings[string]{MaxEntries: 1000, Tickets: true, MaxOnce: 100})
	var wg sync.WaitGroup
	for g := range uint64(2) {
		wg.Go(func() {
			hello := helloSpec{id: fill(32, 1), versions: []Version{TLS13, TLS12}, psks: [][]byte{fill(150, 1)}}.client()
			reply := helloSpec{id: fill(32, 1), versions: []Version{TLS13}}.server()
			old := helloSpec{}.server() // TLS 1.2 with an empty ID
			at, sat := bytes.Index(hello, fill(32, 1)), bytes.Index(reply, fill(32, 1))
			psk := bytes.Index(hello, fill(150, 1)[32:]) - 32
			r := rand.New(rand.NewPCG(g, 1))
			for i := range count / 2 {
				for j := range 8 {
					b := byte(r.Uint32())
					hello[at+j], reply[sat+j], hello[psk+j] = b, b, b
				}
				c := w.f.Open(clientA)
				_, _ = c.Client(hello)
				if by := c.Choose(w.now, w.available).By; by != ByMetric {
					t.Error(by)
					return
				}
				c.Bind(w.now, "a")
				if i%2 == 0 {
					_, _ = c.Server(w.now, reply)
				} else {
					_, _ = c.Server(w.now, old)
				}
			}
		})
	}
	wg.Wait()
	s := w.f.Stats()
	require.Zero(t, s.IDs.Entries)
	require.Zero(t, s.IDs.Learned)
	require.Zero(t, s.Keys.Entries)
	require.Zero(t, w.f.Keys().Waiting())
}

func TestFarmConcurrently(t *testing.T) {
	w := newWorld(t, &Settings[string]{MaxEntries: 500, Tickets: true, ClientAddr: true, Feed: 64})
	done := make(chan struct{})
	for g := range byte(4) {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range 500 {
				c := w.f.Open(netip.AddrFrom4([4]byte{10, 0, g, byte(i)}))
				both := make(chan struct{})
				_, _ = c.Client(withID(byte(i)))
				n := c.Choose(w.now, func(string) Availability { return Up }).Node
				if n == "" {
					n = string('a' + rune(i%3))
				}
				c.Bind(w.now, n)
				go func() {
					_, _ = c.Server(w.now, newTicket(ticketOf(byte(i), int(g))))
					_, _ = c.Server(w.now, issues(byte(i)))
					close(both)
				}()
				_, _ = c.Client(withID(byte(i + 1)))
				c.Touch(w.now)
				<-both
				if i%100 == 99 {
					w.f.Forget(n)
					w.f.Sweep(w.now, 10)
					_ = w.f.Stats()
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
}

// One who replays an ID he saw reaches the server that would refuse him anyway: he moves
// nothing, adds nothing, and by looking alone keeps nothing alive.
func TestReplayedIDs(t *testing.T) {
	w := newWorld(t, &Settings[string]{ClientAddr: true})
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	for i := range 1000 {
		c := w.f.Open(clientB)
		_, err := c.Client(withID(1))
		require.NoError(t, err)
		require.Equal(t, Choice[string]{"a", BySession}, c.Choose(w.now, w.available))
		if i%2 == 0 {
			continue // he leaves before he is connected
		}
		c.Bind(w.now, "a")
		_, err = c.Server(w.now, []byte{21, 3, 3, 0, 2, 2, 40})
		require.ErrorIs(t, err, ErrAlert)
	}
	s := w.f.Stats()
	require.Equal(t, 1, s.IDs.Entries)
	require.Zero(t, s.IDs.Moved)
	w.now = w.now.Add(DefaultTTL)
	for range 3 {
		c := w.f.Open(clientB)
		_, err := c.Client(withID(1))
		require.NoError(t, err)
		require.Equal(t, ByMetric, c.Choose(w.now, w.available).By)
	}
}
