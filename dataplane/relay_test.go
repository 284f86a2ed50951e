package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/steering"
)

const relayKey = 4711

// balancerOf is the address of the i-th balancer of a test.
func balancerOf(fam family, i byte) netip.Addr {
	if fam.client.Is4() {
		return netip.AddrFrom4([4]byte{172, 16, 9, i})
	}
	b := netip.MustParseAddr("2001:db8:b::").As16()
	b[15] = i
	return netip.AddrFrom16(b)
}

// relays returns n Planes of a cluster that relay to each other.
func relays(t *testing.T, fam family, n int, change ...func(*Config, *Service)) (ps []*testPlane, d *directory) {
	d = new(directory)
	var from []netip.Prefix
	for i := range n {
		a := balancerOf(fam, byte(i+1))
		from = append(from, netip.PrefixFrom(a, a.BitLen()))
	}
	for i := range n {
		ps = append(ps, newPlane(t, fam, append(change, func(c *Config, _ *Service) {
			c.Peers, c.CookieSecret = d, []byte("0123456789abcdef")
			c.Addrs = []netip.Addr{balancerOf(fam, byte(i+1))}
			c.Relay = &Relay{From: from, Key: relayKey}
		})...))
	}
	return ps, d
}

// relayed gives a packet to a balancer that does not know its flow, and what that sends to another one to that one; it
// returns what comes out there.
func relayed(t *testing.T, by, to *testPlane, b []byte) (out [][]byte) {
	t.Helper()
	v, _ := by.send(b)
	require.Equal(t, Held, v)
	_, tunnelled := by.sendAll()
	require.NotEmpty(t, tunnelled, "drops %v", by.drops())
	for _, o := range tunnelled {
		var view wire.View
		require.Equal(t, wire.OK, wire.Parse(o, &view))
		require.Equal(t, to.relay.conf.Addr, addrOf(view.Dst(o)))
		require.Equal(t, by.relay.conf.Addr, addrOf(view.Src(o)))
	}
	if len(tunnelled) == 1 {
		var view wire.View
		wire.Parse(tunnelled[0], &view)
		at, key, ok := wire.OpenTunnel(tunnelled[0], &view, 0)
		require.True(t, ok)
		require.EqualValues(t, relayKey, key)
		require.Equal(t, b, tunnelled[0][at:], "the packet itself is untouched")
	}
	_, out = to.sendAll(tunnelled...)
	return out
}

// A connection with delayed binding, each of whose directions comes by another balancer: until it is spliced, the one that answers for it is sent
// the packets; from then on the others forward them themselves.
func TestRelayDelayed(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		ps, d := relays(t, fam, 3, delayed(Delay{}))
		a, b, c := ps[0], ps[1], ps[2]
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		ours := a.hello(client, 1000)
		// The SYN went to one, the acknowledgement to another: whoever gets that has the connection.
		require.Empty(t, d.m, "a SYN leaves no trace")
		_, node := b.request(client, 1000, ours, "abc")
		require.Len(t, d.m, 2, "as clients and as nodes know it")
		// The node's answer by the third one.
		out := relayed(t, c, b, tcp(node, client, "SA", 500, 1001, ""))
		require.NotEmpty(t, out, "the rest of the handshake, and what the client has sent")
		require.EqualValues(t, 1, c.Stats().Relayed)
		require.EqualValues(t, 1, b.Stats().Received)
		// The client again, by the first one, before the node has acknowledged all: it still needs the second one.
		again := tcp(client, vip, "PA", 1001, ours+1, "abc")
		relayed(t, a, b, again)
		out = relayed(t, c, b, tcp(node, client, "A", 501, 1004, ""))
		require.Len(t, out, 1)
		a.wellFormed(out[0], vip, client)
		// Spliced: all know the numbers now.
		v, _ := c.send(tcp(node, client, "PA", 501, 1004, "welcome"))
		require.Equal(t, Held, v)
		_, out = c.sendAll()
		require.Len(t, out, 1)
		require.Equal(t, ours+1, numbers(out[0]).Seq)
		c.wellFormed(out[0], vip, client)
		require.EqualValues(t, 1, c.Stats().Adopted)
	})
}

// A connection whose every request is judged needs its balancer for all its life, and so does one that is parked.
func TestRelayFollowed(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		rules, err := l7.Compile(&l7.Config{Mode: l7.Maintain, Default: l7.Action{Do: l7.Drop}},
			l7.Rule{Index: 1, First: l7.Method{Kind: l7.PathPrefix, Value: "/"}, Action: l7.Action{Do: l7.Farm, Farm: "a"}})
		require.NoError(t, err)
		ps, d := relays(t, fam, 2, func(_ *Config, s *Service) {
			s.Delay, s.Mode = &Delay{Read: ReadHTTP, Rules: rules, Farms: map[string]*steering.Pool{"a": s.Pool}}, clienttable.ServerPerSession
		})
		a, b := ps[0], ps[1]
		client := ap(fam.client, 40000)
		const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
		ours := a.hello(client, 1000)
		_, node := a.request(client, 1000, ours, get)
		out := relayed(t, b, a, tcp(node, client, "SA", 500, 1001, ""))
		require.Contains(t, string(bytes.Join(out, nil)), get)
		next := uint32(1001 + len(get))
		relayed(t, b, a, tcp(node, client, "A", 501, next, ""))
		require.Equal(t, 1, a.Stats().Delay.Kept)
		const reply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
		out = relayed(t, b, a, tcp(node, client, "PA", 501, next, reply))
		require.Len(t, out, 1)
		a.wellFormed(out[0], ap(fam.vip, 80), client)
		require.Equal(t, reply, string(numbers(out[0]).Payload))
		require.Zero(t, b.Stats().Sessions)
		require.Len(t, d.m, 2)
		require.Equal(t, 1, a.KillSessions(func(Session) bool { return true }))
		a.sendAll() // what is due
		require.Empty(t, d.m, "its end is told")
	})
}

// What is too large for the way between balancers: who sent it is told so, and it goes in fragments of the outer packet.
func TestRelaySizes(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		ps, _ := relays(t, fam, 2, delayed(Delay{}))
		a, b := ps[0], ps[1]
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		over, head := 28, 40
		if fam.client.Is6() {
			over, head = 48, 60
		}
		_, out := a.send(tcp(client, vip, "S", 1000, 0, ""))
		ours := numbers(out)
		require.LessOrEqual(t, int(ours.Options.MSS), 1500-over-head, "what clients are told")
		syn, node := a.request(client, 1000, ours.Seq, "abc")
		require.LessOrEqual(t, int(numbers(syn).Options.MSS), 1500-over-head, "what nodes are told")
		// A node that does not care.
		large := tcp(node, client, "SA", 500, 1001, string(make([]byte, 1496-head))) // and an option
		require.Len(t, large, 1500)
		if fam.client.Is4() { // as all TCP does today
			large[6], large[10], large[11] = 0x40, 0, 0
			binary.BigEndian.PutUint16(large[10:], wire.Checksum(large[:20]))
		}
		v, _ := b.send(large)
		require.Equal(t, Held, v)
		_, outs := b.sendAll()
		require.Len(t, outs, 3, "an error and two fragments; drops %v", b.drops())
		var view wire.View
		require.Equal(t, wire.OK, wire.Parse(outs[0], &view))
		require.True(t, view.Has(wire.ICMPError))
		require.Equal(t, node.Addr(), addrOf(view.Dst(outs[0])))
		for _, o := range outs[1:] {
			require.LessOrEqual(t, len(o), 1500)
			require.Equal(t, wire.OK, wire.Parse(o, &view))
			require.True(t, view.Has(wire.Fragment))
		}
		verdicts, got := a.sendAll(outs[2], outs[1]) // in the wrong order
		require.Equal(t, Held, verdicts[0])
		require.NotEmpty(t, got, "drops %v", a.drops())
		require.EqualValues(t, 1, a.Stats().Received)
		require.Empty(t, a.relay.parts.m)
		require.Zero(t, a.relay.parts.bytes)
	})
}

// Nothing is taken from those who are no balancers, or have another key; and nothing is sent to them.
func TestRelayRefuses(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		ps, d := relays(t, fam, 2, delayed(Delay{}))
		a, b := ps[0], ps[1]
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		inner := tcp(client, vip, "S", 1000, 0, "")
		outer := func(src netip.Addr, key uint32) []byte {
			y := wire.Tunnel{Kind: wire.GRE, HasKey: true, Key: key}
			p := make([]byte, y.Overhead(fam.client.Is6())+len(inner))
			copy(p[len(p)-len(inner):], inner)
			y.Put(p, src.AsSlice(), a.relay.conf.Addr.AsSlice(), fam.client.Is6(), 0, 0, true, 0)
			return p
		}
		v, _ := a.send(outer(b.relay.conf.Addr, relayKey))
		require.Equal(t, Answered, v, "drops %v", a.drops())
		v, _ = a.send(outer(b.relay.conf.Addr, relayKey+1))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, a.drops()[ForeignTunnel])
		v, _ = a.send(outer(fam.n1, relayKey))
		require.Equal(t, Passed, v, "no business of the Plane's")
		require.EqualValues(t, 1, a.Stats().Received)
		// An owner that is none.
		old := a.hello(ap(fam.client, 40001), 1) + 1<<31 // no cookie of these days, whenever this runs
		for _, text := range []string{"web\x00@" + fam.elsewhere.String(), "web\x00@", "web\x00@x", "web", "web\x00@" + a.relay.conf.Addr.String()} {
			d.Announce(wire.ProtoTCP, client, vip, itself, text)
			v, _ = a.send(tcp(client, vip, "A", 1, old, "x"))
			require.Equal(t, Held, v)
			_, out := a.sendAll()
			require.Len(t, out, 1)
			require.NotZero(t, numbers(out[0]).Flags&splice.RST, "%q", text)
		}
		require.Zero(t, a.Stats().Relayed)
		require.Error(t, a.adopt(a.now, plainFlow(wire.ProtoTCP, client, vip), "n1", "web\x00@"+fam.elsewhere.String(), wire.ACK))
		// A relayed packet that nobody knows is not sent on.
		for _, n := range []string{"web\x00@" + b.relay.conf.Addr.String()} {
			d.Announce(wire.ProtoTCP, client, vip, itself, n)
		}
		inner = tcp(client, vip, "A", 1, old, "x")
		v, out := a.send(outer(b.relay.conf.Addr, relayKey))
		require.Equal(t, Answered, v)
		require.NotZero(t, numbers(out).Flags&splice.RST)
	})
}

func TestRelayFaults(t *testing.T) {
	_, err := New(&Config{Relay: &Relay{Addr: netip.MustParseAddr("192.0.2.1"), From: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, MTU: 5}})
	for _, want := range []string{"Config.Peers", "Relay.Addr", "Relay.From[0]", "Relay.Key", "Relay.MTU = 5"} {
		require.ErrorContains(t, err, want)
	}
	_, err = New(&Config{Peers: new(directory), Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Relay: &Relay{Key: 1}})
	require.ErrorContains(t, err, "Relay.From")
}

// Fragments in any order become the packet again; what overlaps, is too much or comes too late does not.
func TestReassembler(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		now := time.Now()
		var r reassembler
		add := func(b []byte) ([]byte, Reason) {
			var v wire.View
			require.Equal(t, wire.OK, wire.Parse(b, &v))
			return r.add(now, b, &v)
		}
		whole := udp(ap(fam.client, 1), ap(fam.elsewhere, 8000), string(make([]byte, 3000)))
		parts := split(whole, 1000, 77)
		for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 2, 0, 1, 1, 3}} {
			var got []byte
			for _, i := range order {
				require.Nil(t, got)
				got, _ = add(parts[i])
			}
			var v wire.View
			require.Equal(t, wire.OK, wire.Parse(got, &v))
			require.True(t, v.HeaderSumOK(got))
			require.False(t, v.Has(wire.Fragment))
			require.Equal(t, whole[v.L4:], got[v.L4:])
		}
		other := split(whole, 992, 77)
		_, why := add(parts[1])
		require.Equal(t, NotDropped, why)
		_, why = add(other[1])
		require.Equal(t, FragmentOverlap, why)
		for _, p := range parts {
			got, _ := add(p)
			require.Nil(t, got, "nothing of it is used")
		}
		now = now.Add(fragmentLife)
		_, why = add(parts[0])
		require.Equal(t, NotDropped, why)
		now = now.Add(fragmentLife)
		for i := range uint32(maxWholes) {
			_, why = add(split(whole, 1000, 1000+i)[0])
			require.Equal(t, NotDropped, why, "those that are too old make room")
		}
		now = now.Add(time.Second)
		_, why = add(split(whole, 1000, 5)[0])
		require.Equal(t, NotDropped, why, "what has waited longest makes room")
		require.Len(t, r.m, maxWholes)
		for i := 1; i < 4; i++ {
			got, _ := add(split(whole, 1000, 5)[i])
			require.Equal(t, i == 3, got != nil)
		}

		// The same where their bytes are too many.
		now = now.Add(fragmentLife)
		long := udp(ap(fam.client, 1), ap(fam.elsewhere, 8000), string(make([]byte, 60000)))
		last := func(id int) []byte { parts := split(long, 1000, uint32(id)); return parts[len(parts)-1] }
		n := 0
		for why = NotDropped; n < maxWholes; n++ {
			if _, why = add(last(2000 + n)); why != NotDropped {
				break
			}
		}
		require.Equal(t, FragmentsFull, why)
		require.Equal(t, maxWholeBytes/60000, n, "each takes as much as its last byte lies behind")
		now = now.Add(fragmentLife)
		_, why = add(last(1))
		require.Equal(t, NotDropped, why)
	})
}

// What this balancer was told of a flow it takes over, without a question: a SYN that is sent again, a datagram.
func TestPeersTold(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		a, b, d := two(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		b.open(ap(fam.client2, 1)) // so that the next one in turn is another node
		_, out := a.send(tcp(client, vip, "S", 100, 0, ""))
		f, _ := parseFlow(out)
		node := f.Dst
		b.forwarded(tcp(client, vip, "S", 100, 0, ""), client, node)
		require.Zero(t, d.finds)
		require.EqualValues(t, 1, b.Stats().Adopted)
		require.Zero(t, b.Stats().Asked)
		b.forwarded(tcp(node, client, "SA", 500, 101, ""), vip, client)
		b.forwarded(tcp(client, vip, "A", 101, 501, ""), client, node)

		_, out = a.send(udp(client, vip, "x"))
		f, _ = parseFlow(out)
		b.forwarded(udp(client, vip, "y"), client, f.Dst)
		require.EqualValues(t, 2, b.Stats().Adopted)

		// A node that takes no new session gets none, whoever says so.
		_, out = a.send(tcp(ap(fam.client, 41000), vip, "S", 100, 0, ""))
		f, _ = parseFlow(out)
		var nodes []steering.Node
		for id, st := range b.pool.All() {
			if addr, _ := b.pool.Addr(id); addr == f.Dst {
				st.Node.Admin = steering.Draining
			}
			nodes = append(nodes, st.Node)
		}
		require.NoError(t, b.SetNodes(b.pool, nodes...))
		_, out = b.send(tcp(ap(fam.client, 41000), vip, "S", 100, 0, ""))
		g, _ := parseFlow(out)
		require.NotEqual(t, f.Dst, g.Dst)
	})
}
