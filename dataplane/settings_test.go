package dataplane

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// TestSetMaxHeld: with more room those that were refused find some, with less nobody loses his place.
func TestSetMaxHeld(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{Read: ReadHTTP, Rules: byHost(t)}), func(c *Config, _ *Service) { c.MaxHeld = 5 })
		vip := ap(fam.vip, 80)
		const clients, head = 9, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
		var ours [clients]uint32
		begin := func(i int) Verdict {
			v, _ := p.send(tcp(ap(fam.client, uint16(1000+i)), vip, "PA", 8, ours[i]+1, head[:1]))
			return v
		}
		end := func(i int) string {
			_, out := p.sendAll(tcp(ap(fam.client, uint16(1000+i)), vip, "PA", 9, ours[i]+1, head[1:]))
			require.NotEmpty(t, out, "drops %v", p.drops())
			return string(numbers(out[len(out)-1]).Payload)
		}
		for i := range clients {
			ours[i] = p.hello(ap(fam.client, uint16(1000+i)), 7)
		}
		for i := range 6 {
			begin(i)
		}
		require.Equal(t, 5, p.Stats().Delay.Held)
		require.EqualValues(t, 1, p.drops()[HoldsFull])
		require.NoError(t, p.SetMaxHeld(7))
		begin(5) // once more, as clients do
		begin(6)
		require.Equal(t, 7, p.Stats().Delay.Held)
		require.EqualValues(t, 1, p.drops()[HoldsFull])
		require.NoError(t, p.SetMaxHeld(2))
		begin(7)
		require.Equal(t, 7, p.Stats().Delay.Held)
		require.EqualValues(t, 2, p.drops()[HoldsFull])
		for i := range 7 {
			require.Contains(t, end(i), "404", "whoever had a place goes on")
		}
		p.now = p.now.Add(20 * time.Second)
		p.sendAll()
		require.Zero(t, p.Stats().Delay.Held)
		for i := range clients {
			ours[i] = p.hello(ap(fam.client, uint16(1000+i)), 7)
			begin(i)
		}
		require.Equal(t, 2, p.Stats().Delay.Held)
		for _, n := range []int{-1, mostEntries + 1} {
			require.ErrorContains(t, p.SetMaxHeld(n), "MaxHeld = ")
			require.ErrorIs(t, p.SetMaxHeld(n), ErrInvalid)
		}
		require.EqualValues(t, 2, p.holds.most.Load())
		require.NoError(t, p.SetMaxHeld(0))
		require.EqualValues(t, DefaultMaxHeld, p.holds.most.Load())
	})
}

func TestSetSYNAlarm(t *testing.T) {
	p := newPlane(t, families2()[0], delayed(Delay{}))
	p.Step(p.now)
	client, vip := p.fam.client, ap(p.fam.vip, 80)
	for i := range 100 {
		p.send(tcp(ap(client, uint16(1000+i)), vip, "S", 1, 0, ""))
	}
	second := func() bool {
		p.now = p.now.Add(time.Second)
		p.Step(p.now)
		return p.Stats().Delay.Alarm
	}
	require.False(t, second())
	require.NoError(t, p.SetSYNAlarm(100))
	require.True(t, second())
	require.NoError(t, p.SetSYNAlarm(1000))
	require.False(t, second())
	require.ErrorContains(t, p.SetSYNAlarm(-1), "SYNAlarm = -1: want 1 to 268435456, or 0 for 10000")
	require.NoError(t, p.SetSYNAlarm(0))
	require.Equal(t, DefaultSYNAlarm, p.synAlarm)
}

func TestSetCheckQuotes(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	quoted := tcp(ap(fam.vip, 80), ap(fam.client, 1), "A", 1, 1, "data")
	quoted[10] ^= 0x55
	for i, on := range []bool{true, false, true} {
		p.SetCheckQuotes(on)
		require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", p.svc))), "which leaves it alone")
		before := p.drops()[BadQuote]
		p.send(unreachable(fam.router, fam.vip, quoted, 8))
		require.Equal(t, on, p.drops()[BadQuote] > before, "%d", i)
	}
}

// TestSetProxies: who is a proxy may change; a session of a proxy's stays with the service behind it, whoever is one.
func TestSetProxies(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		front := mustPool(t, new(steering.IDs), steering.RoundRobin, steering.Node{Name: "proxy", Addr: ap(fam.elsewhere, 8443)})
		p := newPlane(t, fam, func(c *Config, s *Service) {
			ids := new(steering.IDs)
			front = mustPool(t, ids, steering.RoundRobin, steering.Node{Name: "proxy", Addr: ap(fam.elsewhere, 8443)})
			s.Pool = mustPool(t, ids, steering.RoundRobin, steering.Node{Name: "n1", Addr: ap(fam.n1, 8080)})
			in := rule("behind", fam.vip.String()+" tcp/80", s)
			in.Internal = true
			c.Policies = table(t, rule("front", fam.vip.String()+" tcp/80", &Service{Name: "front", Pool: front}), in)
		})
		vip, node := ap(fam.vip, 80), ap(fam.n1, 8080)
		goes := func(port uint16, dst netip.AddrPort) {
			t.Helper()
			own := ap(fam.client, port)
			p.forwarded(tcp(own, vip, "S", 1, 0, ""), own, dst)
		}
		goes(1, ap(fam.elsewhere, 8443))
		require.NoError(t, p.SetProxies(fam.client))
		goes(2, node)
		require.NoError(t, p.SetProxies(fam.client2))
		goes(3, ap(fam.elsewhere, 8443))
		own := ap(fam.client, 2)
		p.forwarded(tcp(node, own, "SA", 1, 2, ""), vip, own)
		p.forwarded(tcp(own, vip, "A", 2, 2, "x"), own, node)
		require.ErrorContains(t, p.SetProxies(fam.client, netip.Addr{}), "Proxies[1]")
		goes(4, ap(fam.elsewhere, 8443))
	})
}

func TestSetAccelerateAfter(t *testing.T) {
	fam := families2()[0]
	p := newAccelerating(t, fam)
	require.NoError(t, p.SetAccelerateAfter(64))
	client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
	node := p.open(client)
	more := func(n int) {
		for range n {
			p.put(tcp(client, vip, "A", 101, 501, "ask"))
			p.put(tcp(node, client, "A", 501, 104, "answer"))
		}
		p.Step(p.now)
	}
	more(30)
	require.Empty(t, p.s.flows)
	require.NoError(t, p.SetAccelerateAfter(32))
	more(10)
	require.Len(t, p.s.flows, 2)
	require.NoError(t, p.SetAccelerateAfter(0))
	require.EqualValues(t, DefaultAccelerateAfter, p.snap.Load().accelerateAfter)
	require.ErrorContains(t, p.SetAccelerateAfter(-5), "AccelerateAfter = -5")
	more(10)
	require.Len(t, p.s.flows, 2)
}

// TestSetCookieSecrets: a handshake that began with one secret ends with it for as long as that is accepted, whatever is applied meanwhile; the clock of
// timestamps does not jump.
func TestSetCookieSecrets(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		older, newer := []byte("0123456789abcdef"), []byte("fedcba9876543210")
		p := newPlane(t, fam, delayed(Delay{}), func(c *Config, _ *Service) { c.CookieSecret = older })
		again := func() {
			require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", p.svc))))
		}
		stamp := func() uint32 {
			syn := splice.Segment{Flags: splice.SYN, Options: splice.Options{Timestamps: true}}
			return p.snap.Load().services[0].delay.cookies.Answer(p.now, splice.Tuple{}, &syn).Options.TSVal
		}
		a, b, c, d := ap(fam.client, 1), ap(fam.client, 2), ap(fam.client, 3), ap(fam.client, 4)
		ofA, ofB, at := p.hello(a, 100), p.hello(b, 100), stamp()
		require.NoError(t, p.SetCookieSecrets(newer, older))
		p.request(a, 100, ofA, "abc")
		again()
		require.Equal(t, at, stamp())
		ofC := p.hello(c, 100)
		require.NotEqual(t, ofC, p.hello(d, 100))
		p.request(b, 100, ofB, "abc")
		ofD := p.hello(d, 100)
		require.NoError(t, p.SetCookieSecrets(newer))
		again()
		require.Equal(t, at, stamp())
		p.request(c, 100, ofC, "abc")
		p.request(d, 100, ofD, "abc")

		// Another balancer, which has the former one alone, takes part in a change of what they share.
		q := newPlane(t, fam, delayed(Delay{}), func(c *Config, _ *Service) { c.CookieSecret = older })
		e := ap(fam.client, 5)
		begun := q.hello(e, 100)
		v, _ := p.send(tcp(e, ap(fam.vip, 80), "PA", 101, begun+1, "abc"))
		require.Equal(t, Dropped, v)
		require.NoError(t, p.SetCookieSecrets(older, newer))
		p.request(e, 100, begun, "abc")

		held := p.Stats().Delay.Held
		for _, bad := range [][][]byte{nil, {older, []byte("short")}, {older, older, older, older}} {
			require.ErrorIs(t, p.SetCookieSecrets(bad...), ErrInvalid)
		}
		f := ap(fam.client, 6)
		p.request(f, 100, q.hello(f, 100), "abc")
		require.Equal(t, held+1, p.Stats().Delay.Held)
	})
}

// TestSetRelayFrom: balancers join and leave a cluster.
func TestSetRelayFrom(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		ps, _ := relays(t, fam, 2, delayed(Delay{}))
		a, b := ps[0], ps[1]
		host := func(x netip.Addr) netip.Prefix { return netip.PrefixFrom(x, x.BitLen()) }
		own, other := host(a.relay.conf.Addr), host(b.relay.conf.Addr)
		client := ap(fam.client, 40000)
		ours := a.hello(client, 1000)
		_, node := a.request(client, 1000, ours, "abc")
		answer := tcp(node, client, "SA", 500, 1001, "")
		byB := func() (out [][]byte) {
			v, _ := b.send(answer)
			require.Equal(t, Held, v)
			_, out = b.sendAll()
			return out
		}
		require.NoError(t, b.SetRelayFrom(other))
		byB()
		require.Zero(t, b.Stats().Relayed, "it knows of no such balancer")
		require.NoError(t, b.SetRelayFrom(own, other))
		tunnelled := byB()
		require.Len(t, tunnelled, 1)
		require.EqualValues(t, 1, b.Stats().Relayed)
		require.NoError(t, a.SetRelayFrom(own))
		v, _ := a.send(tunnelled[0])
		require.Equal(t, Passed, v)
		require.NoError(t, a.SetRelayFrom(own, other))
		_, out := a.sendAll(tunnelled[0])
		require.NotEmpty(t, out)
		require.ErrorContains(t, b.SetRelayFrom(), "From = none")
		require.ErrorContains(t, b.SetRelayFrom(netip.PrefixFrom(fam.n1, 8)), "From[0]")
		relayed(t, b, a, tcp(node, client, "A", 501, 1004, ""))
		require.ErrorContains(t, newPlane(t, fam).SetRelayFrom(own), "Config.Relay")
	})
}

// TestSettingsUnderLoad: while everything that can be set is set over and over, every packet of a running Plane comes out at the node where its
// session is, and every delayed connection gets its node.
func TestSettingsUnderLoad(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		const sessions, packets, delays = 100, 1500, 60
		older, newer := []byte("0123456789abcdef"), []byte("fedcba9876543210")
		p := newTeamed(t, fam, func(c *Config, s *Service) {
			late := *s
			late.Name, late.Delay = "late", &Delay{}
			c.CookieSecret, c.Workers = older, 2
			c.Policies = table(t, rule("udp", fam.vip.String()+" udp/80", s), rule("tcp", fam.vip.String()+" tcp/80", &late))
		})
		stop, begun, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- func() error {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return nil
					case <-time.After(time.Millisecond):
					}
					one := n%2 == 0
					secrets, proxies := [][]byte{older, newer}, []netip.Addr{fam.elsewhere}
					if one {
						secrets, proxies = [][]byte{newer, older}, nil
					}
					p.SetCheckQuotes(one)
					p.SetPingNodes(n % 3)
					for _, err := range []error{
						p.SetCookieSecrets(secrets...), p.SetMaxHeld(1000 + n%7), p.SetSYNAlarm(1 + n%1000), p.SetProxies(proxies...), p.SetAccelerateAfter(n % 50), p.SetForeign(Foreign(n % 2)),
					} {
						if err != nil {
							return err
						}
					}
					if n == 10 {
						close(begun)
					}
				}
			}()
		}()
		select {
		case <-begun:
		case <-time.After(30 * time.Second):
			t.Fatal("nothing is set")
		}
		got, done := p.stay(packets)
		vip := ap(fam.vip, 80)
		for i := range uint32(packets) {
			for deadline := time.Now().Add(30 * time.Second); i-got.Load() > 100; time.Sleep(50 * time.Microsecond) {
				require.True(t, time.Now().Before(deadline), "packets are lost: %v", p.drops())
			}
			p.outs[0].send(udp(ap(fam.client, 10000+uint16(i%sessions)), vip, "x"))
		}
		require.Empty(t, <-done)
		await := func(flags uint8) (dst netip.AddrPort, s splice.Segment) {
			for {
				b := p.outs[0].receive()
				f, _ := parseFlow(b)
				s := numbers(b)
				require.Zero(t, s.Flags&splice.RST)
				if s.Flags == flags {
					return f.Dst, s
				}
			}
		}
		for i := range delays {
			client := ap(fam.client2, uint16(1000+i))
			p.outs[0].send(tcp(client, vip, "S", 100, 0, ""))
			_, s := await(splice.SYN | splice.ACK)
			p.outs[0].send(tcp(client, vip, "PA", 101, s.Seq+1, "abc"))
			node, _ := await(splice.SYN)
			p.outs[0].send(tcp(node, client, "SA", 500, 101, ""))
		}
		close(stop)
		require.NoError(t, <-ended)
		st := p.Stats()
		require.EqualValues(t, delays, st.Delay.Confirmed)
		require.GreaterOrEqual(t, st.Sessions, sessions)
		require.Empty(t, p.drops())
		_, known := p.Session(wire.ProtoUDP, ap(fam.client, 10000), vip)
		require.True(t, known)
	})
}

// Setting what is set per snapshot leaves the rest of it alone.
func TestSettingsKeepEachOther(t *testing.T) {
	p := newPlane(t, families2()[0])
	require.NoError(t, p.SetForeign(Drop))
	p.SetPingNodes(3)
	p.SetCheckQuotes(true)
	require.NoError(t, p.SetAccelerateAfter(7))
	require.NoError(t, p.SetProxies(p.fam.client))
	want := settings{foreign: Drop, pingNodes: 3, checkQuotes: true, accelerateAfter: 7, proxies: map[netip.Addr]bool{p.fam.client: true}}
	require.Equal(t, want, p.snap.Load().settings)
	for _, tbl := range []*policy.Table[*Service]{nil, table(t, rule("tcp", p.fam.vip.String()+" tcp/80", p.svc))} {
		require.NoError(t, p.Apply(tbl))
		p.Drain(true)
		p.SetUp("n1", false)
		require.Equal(t, want, p.snap.Load().settings)
	}
}

// TestSetAddrs: tunnels begin at another address, and their sessions stay at their nodes.
func TestSetAddrs(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		taker := &taker{flows: map[clienttable.Flow]Translation{}}
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.Addrs, s.Forward, s.Tunnel = []netip.Addr{fam.elsewhere}, Tunnelled, Tunnel{Kind: GRE, Key: 7}
			c.Accelerator, c.AccelerateAfter = taker, 2
		})
		client, vip := ap(fam.client, 1), ap(fam.vip, 80)
		outer := func() (src, dst netip.Addr) {
			t.Helper()
			v, out := p.send(udp(client, vip, "x"))
			require.Equal(t, Forwarded, v, "drops %v", p.drops())
			var view wire.View
			require.Equal(t, wire.OK, wire.Parse(out, &view))
			return addrOf(view.Src(out)), addrOf(view.Dst(out))
		}
		src, node := outer()
		require.Equal(t, fam.elsewhere, src)
		outer()
		p.Step(p.now)
		f := clienttable.MakeFlow(wire.ProtoUDP, client, vip)
		require.Equal(t, fam.elsewhere, taker.flows[f].Outer)
		before, _ := p.Session(wire.ProtoUDP, client, vip)

		require.NoError(t, p.SetAddrs(fam.router))
		src, dst := outer()
		require.Equal(t, fam.router, src)
		require.Equal(t, node, dst)
		require.Equal(t, fam.router, taker.flows[f].Outer)
		after, _ := p.Session(wire.ProtoUDP, client, vip)
		require.Equal(t, before.In.Packets+1, after.In.Packets, "what the accelerator has forwarded counts once")
		p.Step(p.now)
		after, _ = p.Session(wire.ProtoUDP, client, vip)
		require.Equal(t, before.In.Packets+1+3, after.In.Packets, "and what it has since")

		other := netip.MustParseAddr("2001:db8::9")
		if fam.vip.Is6() {
			other = netip.MustParseAddr("192.0.2.9")
		}
		for _, bad := range []struct {
			addrs []netip.Addr
			want  string
		}{
			{nil, `or another one of the family of node "n1", since there are tunnels`}, {[]netip.Addr{other}, fam.router.String() + " among them"},
			{[]netip.Addr{fam.router, fam.client}, "Addrs[1]"}, {[]netip.Addr{fam.router, {}}, "an address of a host"},
		} {
			require.ErrorContains(t, p.SetAddrs(bad.addrs...), bad.want)
			src, _ = outer()
			require.Equal(t, fam.router, src)
		}
		require.NoError(t, p.SetAddrs(other, fam.elsewhere))
		require.NoError(t, p.SetAddrs(fam.elsewhere), "nothing needs the other family")
		src, dst = outer()
		require.Equal(t, fam.elsewhere, src)
		require.Equal(t, node, dst)

		// The check of a table goes by them, too.
		q := newPlane(t, fam)
		late := *q.svc
		late.Forward = Tunnelled
		next := table(t, rule("udp", fam.vip.String()+" udp/80", &late))
		require.ErrorContains(t, q.Apply(next), "Config.Addrs")
		require.NoError(t, q.SetAddrs(fam.elsewhere))
		require.NoError(t, q.SetAddrs())
		require.ErrorContains(t, q.Apply(next), "Config.Addrs")
		require.NoError(t, q.SetAddrs(fam.elsewhere))
		require.NoError(t, q.Apply(next))
		require.Error(t, q.SetAddrs())
		ps, _ := relays(t, fam, 1)
		require.ErrorContains(t, ps[0].SetAddrs(fam.elsewhere), "Relay.Addr")
		x, _ := inPath(t, fam)
		require.ErrorContains(t, x.SetAddrs(fam.client), "Config.Intercept")
	})
}

// taker is an Accelerator that takes everything, and says of each flow that it has forwarded three packets.
type taker struct {
	flows map[clienttable.Flow]Translation
}

func (a *taker) Install(t Translation) bool { a.flows[t.Flow] = t; return true }
func (a *taker) Usage(f clienttable.Flow) (u Usage, ok bool) {
	u.Packets = 3
	_, ok = a.flows[f]
	return u, ok
}

func (a *taker) Remove(f clienttable.Flow) Usage {
	u, _ := a.Usage(f)
	delete(a.flows, f)
	return u
}
