package dataplane

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/steering"
)

func delayed(d Delay) func(*Config, *Service) {
	return func(_ *Config, s *Service) { s.Delay, s.Mode = &d, clienttable.ServerPerSession }
}

// numbers returns what a packet's TCP header says.
func numbers(b []byte) (seg splice.Segment) {
	var v wire.View
	if wire.Parse(b, &v) != wire.OK || !splice.Parse(b[v.L4:v.End], &seg) {
		panic("bad segment")
	}
	return seg
}

// hello does a handshake of client with the Plane, and returns the Plane's sequence number.
func (p *testPlane) hello(client netip.AddrPort, isn uint32) (ours uint32) {
	p.t.Helper()
	vip := ap(p.fam.vip, 80)
	v, out := p.send(tcp(client, vip, "S", isn, 0, ""))
	require.Equal(p.t, Answered, v, "drops %v", p.drops())
	p.wellFormed(out, vip, client)
	s := numbers(out)
	require.EqualValues(p.t, splice.SYN|splice.ACK, s.Flags)
	require.Equal(p.t, isn+1, s.Ack)
	return s.Seq
}

// request sends the client's first bytes, and returns the SYN to the node.
func (p *testPlane) request(client netip.AddrPort, isn, ours uint32, data string) (syn []byte, node netip.AddrPort) {
	p.t.Helper()
	_, out := p.sendAll(tcp(client, ap(p.fam.vip, 80), "PA", isn+1, ours+1, data))
	require.NotEmpty(p.t, out, "a SYN, and an acknowledgement unless it waits for the answer; drops %v", p.drops())
	require.LessOrEqual(p.t, len(out), 2)
	s := numbers(out[0])
	if s.Flags&splice.SYN == 0 && len(out) == 2 {
		out[0], out[1] = out[1], out[0]
		s = numbers(out[0])
	}
	require.EqualValues(p.t, splice.SYN, s.Flags)
	require.Equal(p.t, isn, s.Seq)
	f, _ := parseFlow(out[0])
	p.wellFormed(out[0], client, f.Dst)
	for _, b := range out[1:] {
		require.Equal(p.t, isn+1+uint32(len(data)), numbers(b).Ack)
	}
	return out[0], f.Dst
}

// spliceUp brings a connection to the splice with a request of data.
func (p *testPlane) spliceUp(client netip.AddrPort, isn, theirs uint32, data string) (node netip.AddrPort, ours uint32) {
	p.t.Helper()
	ours = p.hello(client, isn)
	_, node = p.request(client, isn, ours, data)
	_, out := p.send(tcp(node, client, "SA", theirs, isn+1, ""))
	s := numbers(out)
	require.Equal(p.t, data, string(s.Payload))
	require.Equal(p.t, theirs+1, s.Ack)
	p.wellFormed(out, client, node)
	v, got := p.send(tcp(node, client, "A", theirs+1, isn+1+uint32(len(data)), ""))
	if v == Held { // until the answer, or for a while
		p.now = p.now.Add(50 * time.Millisecond)
		_, outs := p.sendAll()
		require.Len(p.t, outs, 1)
		got = outs[0]
	}
	p.wellFormed(got, ap(p.fam.vip, 80), client)
	require.Equal(p.t, ours+1, numbers(got).Seq)
	require.Equal(p.t, isn+1+uint32(len(data)), numbers(got).Ack)
	require.Zero(p.t, p.Stats().Delay.Held)
	return node, ours
}

// byHost are rules that look at HTTP.
func byHost(t testing.TB, rules ...l7.Rule) *l7.Policy {
	rules = append(rules, l7.Rule{Index: 99, First: l7.Method{Kind: l7.Host, Value: "gone.example"}, Action: l7.Action{Do: l7.Redirect, Location: "http://new.example/"}})
	p, err := l7.Compile(&l7.Config{Default: l7.Action{Do: l7.Reply, Code: 404}}, rules...)
	require.NoError(t, err)
	return p
}

func TestDelayedSessionsAreSaved(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{}))
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		node, ours := p.spliceUp(client, 1000, 500, "abc")
		p.hello(ap(fam.client, 4001), 1)
		var b bytes.Buffer
		_, err := p.WriteTo(&b)
		require.NoError(t, err)
		q := newPlane(t, fam, delayed(Delay{}))
		res, err := q.Restore(&b)
		require.NoError(t, err)
		require.Equal(t, 1, res.Sessions)
		got := q.forwarded(tcp(node, client, "PA", 501, 1004, "welcome"), vip, client)
		require.Equal(t, ours+1, numbers(got).Seq)
		got = q.forwarded(tcp(client, vip, "A", 1004, ours+8, ""), client, node)
		require.EqualValues(t, 508, numbers(got).Ack)
	})
}

func TestDelayedBinding(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{}))
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		ours := p.hello(client, 1000)
		require.Zero(t, p.Stats().Sessions, "nothing is kept of a SYN")
		require.Zero(t, p.Stats().Delay.Held)

		// The bare ACK is enough where nothing is read.
		v, out := p.sendAll(tcp(client, vip, "A", 1001, ours+1, ""))
		require.Equal(t, Held, v[0])
		require.Len(t, out, 1)
		f, _ := parseFlow(out[0])
		node := f.Dst
		_, out = p.sendAll(tcp(client, vip, "PA", 1001, ours+1, "hello"))
		require.EqualValues(t, 1006, numbers(out[0]).Ack)
		require.Equal(t, 1, p.Stats().Delay.Held)

		_, reply := p.send(tcp(node, client, "SA", 77, 1001, ""))
		s := numbers(reply)
		require.Equal(t, "hello", string(s.Payload))
		got := p.forwarded(tcp(node, client, "PA", 78, 1006, "welcome"), vip, client)
		require.Equal(t, ours+1, numbers(got).Seq)
		require.EqualValues(t, 1006, numbers(got).Ack)
		got = p.forwarded(tcp(client, vip, "PA", 1006, ours+8, "more"), client, node)
		require.EqualValues(t, 1006, numbers(got).Seq)
		require.EqualValues(t, 85, numbers(got).Ack)
		st := p.Stats()
		require.Equal(t, DelayStats{Answered: 1, Confirmed: 1, Spliced: 1}, st.Delay)
		require.Equal(t, 1, st.Sessions)

		// Both close; the session ends.
		p.forwarded(tcp(client, vip, "FA", 1010, ours+8, ""), client, node)
		p.forwarded(tcp(node, client, "FA", 85, 1011, ""), vip, client)
		p.forwarded(tcp(client, vip, "A", 1011, ours+9, ""), client, node)
		for s := range p.Sessions() {
			require.Equal(t, clienttable.TCPClosed, s.Phase)
		}
		// The client uses its port again.
		again := p.hello(client, 5000)
		require.NotEqual(t, ours, again)
	})
}

func TestDelayedFullNAT(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		local := fam.elsewhere
		p := newPlane(t, fam, delayed(Delay{}), func(_ *Config, s *Service) { s.Forward, s.Locals = FullNAT, []netip.Addr{local} })
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		ours := p.hello(client, 1000)
		_, out := p.sendAll(tcp(client, vip, "PA", 1001, ours+1, "hi"))
		require.Len(t, out, 2)
		syn := out[1]
		if numbers(syn).Flags != splice.SYN {
			syn = out[0]
		}
		f, _ := parseFlow(syn)
		require.Equal(t, local, f.Src.Addr())
		_, reply := p.send(tcp(f.Dst, f.Src, "SA", 9, 1001, ""))
		p.wellFormed(reply, f.Src, f.Dst)
		got := p.forwarded(tcp(f.Dst, f.Src, "A", 10, 1003, ""), vip, client)
		require.Equal(t, ours+1, numbers(got).Seq)
		p.forwarded(tcp(client, vip, "A", 1003, ours+1, ""), f.Src, f.Dst)
	})
}

func TestDelayedServerRefusesOrIsSilent(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{}))
		client := ap(fam.client, 4000)
		ours := p.hello(client, 1000)
		_, first := p.request(client, 1000, ours, "x")
		_, out := p.send(tcp(first, client, "RA", 0, 1001, ""))
		f, _ := parseFlow(out)
		require.NotEqual(t, first, f.Dst, "the next server")
		require.EqualValues(t, splice.SYN, numbers(out).Flags)

		// That one is silent: the SYN is sent again, then there is nobody left, and the client is told.
		resets := 0
		for range 100 {
			p.now = p.now.Add(100 * time.Millisecond)
			_, outs := p.sendAll()
			for _, b := range outs {
				if f, _ := parseFlow(b); f.Dst == client {
					require.NotZero(t, numbers(b).Flags&splice.RST)
					require.Equal(t, ours+1, numbers(b).Seq)
					resets++
				}
			}
		}
		require.Equal(t, 1, resets)
		st := p.Stats()
		require.Zero(t, st.Delay.Held)
		require.Zero(t, st.Sessions)
		for id := range p.pool.All() {
			n, _ := p.pool.Sessions(id)
			require.Zero(t, n, "every session was given back")
		}
	})
}

func TestDelayedTimeLimit(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{Read: ReadHTTP, Rules: byHost(t)}))
		client := ap(fam.client, 4000)
		ours := p.hello(client, 1000)
		_, out := p.sendAll(tcp(client, ap(fam.vip, 80), "PA", 1001, ours+1, "GET / HT"))
		require.Len(t, out, 1)
		p.now = p.now.Add(4900 * time.Millisecond)
		_, out = p.sendAll()
		require.Empty(t, out)
		p.now = p.now.Add(200 * time.Millisecond)
		_, out = p.sendAll()
		require.Len(t, out, 1)
		require.NotZero(t, numbers(out[0]).Flags&splice.RST)
		require.Zero(t, p.Stats().Delay.Held)
		require.EqualValues(t, 1, p.drops()[TooSlow])
	})
}

func TestDelayedNodeLost(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{}))
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		node, ours := p.spliceUp(client, 1000, 500, "abc")
		for id, st := range p.pool.All() {
			if st.Node.Addr == node {
				p.SetUp(st.Node.Name, false)
				_ = id
			}
		}
		// A minute later, when no cookie of that time is accepted any more, nor before: the client is reset by what it must believe.
		p.now = p.now.Add(10 * time.Minute)
		v, out := p.send(tcp(client, vip, "A", 1004, ours+1, ""))
		require.Equal(t, Answered, v)
		require.NotZero(t, numbers(out).Flags&splice.RST)
		require.Equal(t, ours+1, numbers(out).Seq)
	})
}

func TestDelayedExplainAndDrain(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{}))
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		e, err := p.ExplainFlow(wire.ProtoTCP, client, vip)
		require.NoError(t, err)
		require.Equal(t, Answered, e.Verdict)
		require.Contains(t, e.String(), "the balancer answers the SYN")
		require.Zero(t, p.Stats().Delay.Answered, "explaining changes nothing")

		node, ours := p.spliceUp(client, 1000, 500, "abc")
		e = p.Explain(tcp(client, vip, "A", 1004, ours+1, ""))
		require.Equal(t, Forwarded, e.Verdict)
		require.Equal(t, node, e.Out.Dst())
		p.Drain(true)
		v, _ := p.send(tcp(ap(fam.client, 4001), vip, "S", 1, 0, ""))
		require.Equal(t, Dropped, v)
		p.forwarded(tcp(client, vip, "A", 1004, ours+1, ""), client, node)
	})
}

// An ICMP error about a translated segment reaches the node with the number that the node sent.
func TestDelayedQuotedNumbers(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{}))
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		node, ours := p.spliceUp(client, 1000, 500, "abc")
		answer := p.forwarded(tcp(node, client, "PA", 501, 1004, "data"), vip, client)
		for _, n := range []int{8, 24} {
			v, out := p.send(unreachable(fam.router, fam.vip, answer, n))
			require.Equal(t, Forwarded, v)
			var view, q wire.View
			require.Equal(t, wire.OK, wire.Parse(out, &view))
			require.True(t, view.SumOK(out))
			quote := view.Quote(out)
			require.Equal(t, wire.OK, wire.ParseQuoted(quote, &q))
			require.EqualValues(t, 501, binary.BigEndian.Uint32(quote[q.L4+4:]))
			require.Equal(t, ap(addrOf(q.Src(quote)), q.SrcPort), node)
		}
		// And one about the client's reaches the client.
		seg := p.forwarded(tcp(client, vip, "PA", 1004, ours+1, "x"), client, node)
		v, out := p.send(unreachable(fam.router, fam.client, seg, 8))
		require.Equal(t, Forwarded, v)
		var view wire.View
		require.Equal(t, wire.OK, wire.Parse(out, &view))
		quote := view.Quote(out)
		require.EqualValues(t, 1004, binary.BigEndian.Uint32(quote[len(quote)-4:]))
	})
}

// A flood of SYNs from addresses that nobody is behind leaves no trace, is noticed, and hinders nobody.
func TestSYNFlood(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{}), func(c *Config, _ *Service) { c.MaxHeld, c.SYNAlarm = 64, 1000 })
		p.Step(p.now)
		many := 1_000_000
		if testing.Short() || underRace || fam.vip.Is6() {
			many = 64_000 // the other family's take long enough
		}
		rng := rand.New(rand.NewPCG(1, 2))
		vip := ap(fam.vip, 80)
		syn := tcp(ap(fam.client, 1), vip, "S", 0, 0, "")
		bufs, sizes := make([][]byte, chunk), make([]int, chunk)
		for i := range bufs {
			bufs[i], sizes[i] = make([]byte, ReadOffset+len(syn)), len(syn)
		}
		var v wire.View
		require.Equal(t, wire.OK, wire.Parse(syn, &v))
		flood := func(n int) {
			answers := 0
			for range n / chunk {
				for _, buf := range bufs {
					b := buf[ReadOffset:]
					copy(b, syn)
					from := wire.End{Port: uint16(1 + rng.IntN(65535)), Addr: fam.client.As16()}
					binary.BigEndian.PutUint16(from.Addr[14:], uint16(1+rng.IntN(65535)))
					u := v
					u.SetSrc(b, &from, false)
				}
				answers += len(p.w.Process(p.now, bufs, sizes, ReadOffset, nil))
			}
			require.Equal(t, n, answers)
		}
		var before, after runtime.MemStats
		flood(4 * chunk)
		runtime.GC()
		runtime.ReadMemStats(&before)
		flood(many)
		runtime.GC()
		runtime.ReadMemStats(&after)
		require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(1<<20))
		st := p.Stats()
		require.Zero(t, st.Sessions)
		require.Zero(t, st.Delay.Held)
		p.spliceUp(ap(fam.client2, 999), 1000, 500, "abc")
		for range 2 {
			p.now = p.now.Add(time.Second)
			p.Step(p.now)
		}
		st = p.Stats()
		require.True(t, st.Delay.Alarm)
		require.InDelta(t, many+4*chunk, st.Delay.HalfOpen, 1)
		for range 5 {
			p.now = p.now.Add(time.Second)
			p.Step(p.now)
		}
		st = p.Stats()
		require.False(t, st.Delay.Alarm)
		require.Zero(t, st.Delay.HalfOpen)
		require.EqualValues(t, 1, st.Delay.Alarms)
	})
}

// Clients with true addresses that send nothing, or ever less than a head, take no more than their share, for no longer than
// the time limit.
func TestSlowClientsAreBounded(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{Read: ReadHTTP, Rules: byHost(t)}), func(c *Config, _ *Service) { c.MaxHeld = 50 })
		vip := ap(fam.vip, 80)
		for i := range 200 {
			c := ap(fam.client, uint16(1000+i))
			ours := p.hello(c, 7)
			p.send(tcp(c, vip, "PA", 8, ours+1, "G"))
		}
		require.Equal(t, 50, p.Stats().Delay.Held)
		require.EqualValues(t, 150, p.drops()[HoldsFull])
		p.now = p.now.Add(6 * time.Second)
		p.sendAll()
		require.Zero(t, p.Stats().Delay.Held)
	})
}

func TestSplicedPacketsAllocateNothing(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam, delayed(Delay{}))
	client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
	node, ours := p.spliceUp(client, 1000, 500, "abc")
	in := [][]byte{tcp(client, vip, "PA", 1004, ours+1, "data"), tcp(node, client, "PA", 501, 1004, "data")}
	bufs, sizes := make([][]byte, 2), make([]int, 2)
	for i, b := range in {
		bufs[i] = append(make([]byte, ReadOffset), b...)
	}
	n := testing.AllocsPerRun(200, func() {
		for i, b := range in {
			copy(bufs[i][ReadOffset:], b)
			sizes[i] = len(b)
		}
		if len(p.w.Process(p.now, bufs, sizes, ReadOffset, nil)) != 2 {
			t.Error("not forwarded")
		}
	})
	require.Zero(t, n)
}

func TestDelayFaults(t *testing.T) {
	fam := families2()[0]
	pool := mustPool(t, new(steering.IDs), steering.RoundRobin, steering.Node{Name: "a", Addr: ap(fam.n1, 1)})
	rules, err := l7.Compile(&l7.Config{Default: l7.Action{Do: l7.Farm, Farm: "none"}})
	require.NoError(t, err)
	for want, s := range map[string]Service{
		"nat or fullnat":     {Forward: Tunnelled, Delay: &Delay{}},
		"Delay = dsr":        {Forward: DSR, Delay: &Delay{}},
		"mid-stream":         {MidStream: Reselect, Delay: &Delay{}},
		"Budget":             {Delay: &Delay{Limits: splice.Limits{Budget: 1 << 20}}},
		"Scale":              {Delay: &Delay{Offer: splice.Offer{Scale: 15}}},
		"rules, to read":     {Delay: &Delay{Read: ReadHTTP}},
		"a farm of Farms":    {Delay: &Delay{Read: ReadHTTP, Rules: rules}},
		"since there are":    {Delay: &Delay{Rules: rules}},
		"none, without Rule": {Delay: &Delay{Farms: map[string]*steering.Pool{"x": pool}}},
	} {
		s.Name, s.Pool = "s", pool
		_, err := New(&Config{Policies: table(t, rule("r", fam.vip.String(), &s))})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	_, err = New(&Config{CookieSecret: []byte("short"), MaxHeld: -1, Devices: []Device{nil}, Policies: table(t, rule("r", fam.vip.String(), &Service{}))})
	for _, want := range []string{"CookieSecret", "MaxHeld", "Devices[0]", `Service "".Name`, `Service "".Pool`} { // all faults of a Config, those of its services too
		require.ErrorContains(t, err, want)
	}
	for r := ReadNothing; r <= ReadHTTP; r++ {
		b, err := r.MarshalText()
		require.NoError(t, err)
		var back Read
		require.NoError(t, back.UnmarshalText(b))
		require.Equal(t, r, back)
	}
}
