package dataplane

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
	"github.com/lbprim/lbprim/steering/path"
)

// inPath returns a Plane between clients and hosts elsewhere, with two nodes that are not its service's.
func inPath(t *testing.T, fam family, change ...func(*Config)) (*testPlane, *intercept.Engine) {
	ids := new(steering.IDs)
	any := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if fam.client.Is6() {
		any = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	e, err := intercept.New(&intercept.Config{
		IDs:   ids,
		Nodes: []intercept.Node{{Node: steering.Node{Name: "o1", Addr: ap(fam.n1, 0)}}, {Node: steering.Node{Name: "o2", Addr: ap(fam.n2, 0)}}},
		InPath: []intercept.InPathRule{
			{Match: intercept.Match{DstPort: intercept.Port(23)}, Action: intercept.Deny}, {Match: intercept.Match{DstPort: intercept.Port(25)}, Action: intercept.Discard},
			{Match: intercept.Match{DstPort: intercept.Port(443)}, Action: intercept.PassThrough},
		},
		Rules:    []intercept.Rule{{Name: "lb", Targets: []string{"o1"}}},
		Services: []intercept.Row{{Name: "row", A: intercept.Endpoint{Net: any, Ports: intercept.Port(8000)}, Targets: []string{"o1", "o2"}}},
	})
	require.NoError(t, err)
	for id := range e.All() {
		e.SetUp(id, true)
	}
	pool := mustPool(t, ids, steering.RoundRobin, steering.Node{Name: "n3", Addr: ap(fam.n3, 8080)})
	p := newPlane(t, fam, func(c *Config, s *Service) {
		s.Pool = pool
		c.Addrs = []netip.Addr{fam.router}
		c.Intercept = &Intercept{Engine: e}
		for _, f := range change {
			f(c)
		}
	})
	return p, e
}

// inTunnel wants out to be b in IP in IP to a node, and returns that.
func (p *testPlane) inTunnel(out, b []byte) (node netip.Addr) {
	p.t.Helper()
	var v wire.View
	require.Equal(p.t, wire.OK, wire.Parse(out, &v))
	at, _, ok := wire.OpenTunnel(out, &v, 0)
	require.True(p.t, ok)
	require.Equal(p.t, p.fam.router, addrOf(v.Src(out)))
	require.Equal(p.t, b, out[at:])
	return addrOf(v.Dst(out))
}

func TestIntercept(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p, e := inPath(t, fam)
		from, to := ap(fam.client, 40000), ap(fam.elsewhere, 80)
		send := func(b []byte) (Verdict, []byte) { return p.send(bytes.Clone(b)) }
		redirected := func(b []byte) netip.Addr {
			t.Helper()
			v, out := send(b)
			require.Equal(t, Forwarded, v, "drops %v", p.drops())
			return p.inTunnel(out, b)
		}
		sessions := func() (n int64) {
			for _, st := range e.All() {
				n += st.Sessions
			}
			return n
		}
		x, err := p.ExplainFlow(wire.ProtoTCP, from, to)
		require.NoError(t, err)
		require.Equal(t, "o1", x.Node)
		require.Zero(t, sessions(), "asking counts nothing")

		// A SYN goes by the load-balance rule, and both directions after it.
		syn := tcp(from, to, "S", 100, 0, "")
		v, out := send(syn)
		require.Equal(t, Forwarded, v)
		_, inner := parseFlow(syn)
		require.Less(t, len(out), 2*len(syn)+60)
		require.NotZero(t, inner.TCPFlags)
		require.Equal(t, fam.n1, redirected(tcp(to, from, "A", 500, 101, "x")))
		require.Equal(t, fam.n1, redirected(tcp(from, to, "A", 101, 501, "x")))
		s, ok := p.Session(wire.ProtoTCP, from, to)
		require.True(t, ok)
		require.Equal(t, [2]string{"intercept", "o1"}, [2]string{s.Service, s.NodeName})
		require.EqualValues(t, 2, s.In.Packets)
		require.EqualValues(t, 1, s.Out.Packets)
		require.EqualValues(t, 1, sessions())
		// Errors about it reach the node as well.
		require.Equal(t, fam.n1, redirected(unreachable(fam.router, fam.client, tcp(from, to, "A", 101, 501, "x"), 8)))

		// In-path rules.
		v, out = send(tcp(from, ap(fam.elsewhere, 23), "S", 1, 0, ""))
		require.Equal(t, Answered, v)
		_, view := parseFlow(out)
		require.NotZero(t, view.TCPFlags&wire.RST)
		v, _ = send(tcp(from, ap(fam.elsewhere, 25), "S", 1, 0, ""))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[Discarded])
		v, _ = send(tcp(from, ap(fam.elsewhere, 443), "S", 1, 0, ""))
		require.Equal(t, Passed, v)

		// The network services table, in either direction: datagrams and connections that were there before.
		for i := range uint16(20) {
			there, back := udp(ap(fam.client, 1000+i), ap(fam.elsewhere, 8000), "x"), udp(ap(fam.elsewhere, 8000), ap(fam.client, 1000+i), "y")
			node := redirected(there)
			require.Equal(t, node, redirected(back))
			node = redirected(tcp(ap(fam.elsewhere, 8000), ap(fam.client, 2000+i), "A", 1, 1, "x"))
			require.Equal(t, node, redirected(tcp(ap(fam.client, 2000+i), ap(fam.elsewhere, 8000), "A", 1, 1, "y")))
		}
		require.EqualValues(t, 41, sessions())
		// Nothing matches: it goes by, and so does what is neither TCP nor UDP.
		for _, b := range [][]byte{udp(from, ap(fam.elsewhere, 53), "x"), tcp(from, ap(fam.elsewhere, 81), "A", 1, 1, ""), echo(fam.client, fam.elsewhere, false, 1, 1, "")} {
			v, out = send(b)
			require.Equal(t, Passed, v)
			require.Equal(t, b, out)
		}

		// What a node sends back in a tunnel goes on without another decision; nobody else may.
		wrap := func(src netip.Addr, b []byte) []byte {
			y := wire.Tunnel{}
			w := make([]byte, y.Overhead(fam.client.Is6())+len(b))
			copy(w[len(w)-len(b):], b)
			y.Put(w, src.AsSlice(), fam.router.AsSlice(), fam.client.Is6(), 0, 0, true, 0)
			return w
		}
		b := tcp(from, to, "A", 101, 501, "x")
		v, out = send(wrap(fam.n1, b))
		require.Equal(t, Passed, v)
		require.Equal(t, b, out)
		require.EqualValues(t, 1, p.Stats().Unwrapped)
		v, _ = send(wrap(fam.n3, b))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[ForeignTunnel])
		v, _ = send(wrap(fam.n1, []byte{b[0], 0, 0}))
		require.Equal(t, Dropped, v)

		// A node goes down: its flows are decided about anew, the others stay.
		require.Equal(t, 1, p.SetUp("o1", false))
		require.Equal(t, fam.n2, redirected(udp(ap(fam.client, 1000), ap(fam.elsewhere, 8000), "x")))
		v, _ = send(tcp(from, to, "A", 101, 501, "x"))
		require.Equal(t, Passed, v, "pre-existing, and in no row")
		p.KillSessions(func(Session) bool { return true })
		p.now = p.now.Add(time.Hour)
		for p.Step(p.now) {
		}
		require.Zero(t, sessions(), "every flow is given back")
		require.Zero(t, p.Stats().Sessions)
	})
}

// The node that served a peer serves it again while it has connections: peers are counted until the end of theirs.
func TestInterceptPeers(t *testing.T) {
	fam := families2()[0]
	peer := netip.MustParseAddr("198.51.100.77")
	p, e := inPath(t, fam, func(c *Config) {
		c.Intercept.Probe = func([]byte) (netip.Addr, bool) { return peer, true }
	})
	from := ap(fam.client, 40000)
	v, _ := p.send(tcp(from, ap(fam.elsewhere, 80), "S", 1, 0, ""))
	require.Equal(t, Forwarded, v)
	id, _ := e.ID("o1")
	require.Equal(t, 1, e.Peers(id))
	require.Equal(t, 1, p.KillSessions(func(Session) bool { return true }))
	require.Zero(t, e.Peers(id))
	require.Empty(t, p.inter.peers)
}

// Flows of a node that is removed are forgotten with their peers.
func TestInterceptPeersOfRemovedNodes(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p, e := inPath(t, fam, func(c *Config) {
			c.Intercept.Probe = func([]byte) (netip.Addr, bool) { return fam.router, true }
		})
		for i := range uint16(50) {
			v, _ := p.send(tcp(ap(fam.client, 40000+i), ap(fam.elsewhere, 80), "S", 1, 0, ""))
			require.Equal(t, Forwarded, v)
		}
		require.Len(t, p.inter.peers, 50)
		_, err := e.Set(&intercept.Config{
			Nodes: []intercept.Node{{Node: steering.Node{Name: "o2", Addr: ap(fam.n2, 0)}}}, Rules: []intercept.Rule{{Name: "lb", Targets: []string{"o2"}}},
		})
		require.NoError(t, err)
		for p.Step(p.now) {
		}
		p.Step(p.now.Add(time.Second))
		require.Zero(t, p.Stats().Sessions)
		require.Empty(t, p.inter.peers)
		v, _ := p.send(tcp(ap(fam.client, 40000), ap(fam.elsewhere, 80), "S", 1, 0, ""))
		require.Equal(t, Forwarded, v)
		require.Len(t, p.inter.peers, 1)
	})
}

func TestInterceptFragments(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p, _ := inPath(t, fam)
		whole := udp(ap(fam.client, 1), ap(fam.elsewhere, 8000), string(make([]byte, 3000)))
		parts := split(whole, 1000, 77)
		v, outs := p.sendAll(parts[1], parts[0], parts[2], parts[3])
		require.Equal(t, []Verdict{Held, Forwarded, Forwarded, Forwarded}, v)
		require.Len(t, outs, 4)
		var node netip.Addr
		for i, b := range [][]byte{parts[0], parts[1], parts[2], parts[3]} {
			n := p.inTunnel(outs[i], b)
			require.True(t, i == 0 || n == node)
			node = n
		}
	})
}

// A channel's key leads out by its interface to its gateway.
func TestChannels(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		bits := 24
		if fam.client.Is6() {
			bits = 64
		}
		gateway := fam.client.Next()
		paths, err := path.New(&path.Config{
			Local:     "here",
			Sites:     []path.Site{{Name: "here", Uplinks: []path.Uplink{{Name: "mpls", Gateway: gateway}}}},
			Balancers: []path.Balancer{{Name: "b1", Interfaces: []path.Interface{{Name: "wan0", Prefix: netip.PrefixFrom(fam.client, bits)}}}},
		}, 1, nil)
		require.NoError(t, err)
		channels := paths.Channels()
		require.Len(t, channels, 1)
		mac := [6]byte{2, 0, 0, 0, 9, 9}
		p, _ := inPath(t, fam, func(c *Config) {
			c.Link = Link{Ethernet: true, Ports: true}
			c.NextHop = func(netip.Addr) (Hop, bool) { return Hop{Port: 1, Dst: [6]byte{2, 1}, MTU: 1500}, true }
			c.Intercept.Paths, c.Intercept.Balancer = paths, "b1"
			c.Intercept.Channel = func(c path.Channel) (Hop, bool) {
				return Hop{Port: 7, Dst: mac, MTU: 1500}, c.Gateway == gateway && c.Interface == "wan0"
			}
		})
		inner := tcp(ap(fam.client2, 5), ap(fam.elsewhere, 80), "A", 1, 1, "to the uplink")
		frame := func(src netip.Addr, key uint32) []byte {
			y := wire.Tunnel{Kind: wire.GRE, HasKey: true, Key: key}
			b := make([]byte, 14+y.Overhead(fam.client.Is6())+len(inner))
			copy(b[len(b)-len(inner):], inner)
			y.Put(b[14:], src.AsSlice(), fam.router.AsSlice(), fam.client.Is6(), 0, 0, true, 0)
			if b[12], b[13] = 8, 0; fam.client.Is6() {
				b[12], b[13] = 0x86, 0xdd
			}
			return b
		}
		v, out := p.send(frame(fam.n2, uint32(channels[0].ID)))
		require.Equal(t, Passed, v, "drops %v", p.drops())
		require.Equal(t, mac[:], out[:6])
		want := bytes.Clone(inner)
		var view wire.View
		wire.Parse(want, &view)
		view.SetTTL(want, 63)
		require.Equal(t, want, out[14:])
		// Another key, or somebody else with the right one.
		v, _ = p.send(frame(fam.n2, uint32(channels[0].ID)+1))
		require.Equal(t, Dropped, v)
		v, _ = p.send(frame(fam.n3, uint32(channels[0].ID)))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[UnknownChannel])
		require.EqualValues(t, 1, p.drops()[ForeignTunnel])
		// A channel that is gone is unknown.
		require.NoError(t, paths.Set(nil))
		p.Step(p.now)
		v, _ = p.send(frame(fam.n2, uint32(channels[0].ID)))
		require.Equal(t, Dropped, v)
	})
}

func TestInterceptFaults(t *testing.T) {
	paths, err := path.New(nil, 1, nil)
	require.NoError(t, err)
	_, err = New(&Config{Intercept: &Intercept{MTU: 5, Tunnel: Tunnel{Kind: 9}, Paths: paths, Balancer: "b1"}})
	for _, want := range []string{"Intercept.Engine", "Intercept.MTU = 5", "Intercept.Tunnel", "Config.Addrs", "Intercept.Balancer = b1"} {
		require.ErrorContains(t, err, want)
	}
}

// A balancer learns from its peers where the other one sends a flow.
func TestInterceptAcrossBalancers(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		d := new(directory)
		cluster := func(c *Config) { c.Peers = d }
		a, _ := inPath(t, fam, cluster)
		b, _ := inPath(t, fam, cluster)
		from, to := ap(fam.client, 40000), ap(fam.elsewhere, 80)
		v, _ := a.send(tcp(from, to, "S", 100, 0, ""))
		require.Equal(t, Forwarded, v)
		back := tcp(to, from, "SA", 500, 101, "")
		v, _ = b.send(back)
		require.Equal(t, Held, v)
		_, out := b.sendAll()
		require.Len(t, out, 1)
		require.Equal(t, uint64(1), b.Stats().Adopted)
		var view wire.View
		require.Equal(t, wire.OK, wire.Parse(out[0], &view))
		require.Equal(t, fam.n1, addrOf(view.Dst(out[0])))
	})
}
