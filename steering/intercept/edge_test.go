package intercept

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

func TestSetNilIsTheEmptyConfiguration(t *testing.T) {
	e := newEngine(t, &Config{Nodes: sh("a")})
	removed, err := e.Set(nil)
	require.NoError(t, err)
	require.Len(t, removed, 1)
	require.Equal(t, NoRule, e.Decide(syn("10.0.0.1:1", "10.0.0.2:80")).Reason)
}

// A peer whose connections have all ended is remembered: the node that served it before
// knows its data.
func TestPeerAffinityOutlivesConnections(t *testing.T) {
	for _, peer := range []string{"192.0.2.9", "2001:db8::9"} {
		e := newEngine(t, &Config{Nodes: sh("a", "b", "c")})
		first := e.Decide(probe("10.0.0.1:1", "10.0.0.2:80", "192.0.2.1")) // a is busier
		d := e.Decide(probe("10.0.0.1:2", "10.0.0.2:80", peer))
		require.NotEqual(t, first.Node, d.Node)
		e.End(d)
		e.End(first)
		again := e.Decide(probe("10.0.0.1:3", "10.0.0.2:80", peer))
		require.Equal(t, d.Node, again.Node)
		e.End(again)
		require.Zero(t, e.Peers(d.Node))
		e.SetUp(d.Node, false)
		other := e.Decide(probe("10.0.0.1:4", "10.0.0.2:80", peer))
		require.NotEqual(t, d.Node, other.Node)
		e.End(other)
		e.SetUp(d.Node, true)
		require.Equal(t, other.Node, e.Decide(probe("10.0.0.1:5", "10.0.0.2:80", peer)).Node, "the last one counts")
		_, err := e.Set(&Config{Nodes: sh("x", "y")})
		require.NoError(t, err)
		require.Equal(t, Redirect, e.Decide(probe("10.0.0.1:6", "10.0.0.2:80", peer)).Action)
	}
}

// What is remembered does not grow without bounds.
func TestRememberedPeersAreBounded(t *testing.T) {
	e := newEngine(t, &Config{Nodes: sh("a", "b")})
	for i := range 70_000 {
		p := probe("10.0.0.1:1", "10.0.0.2:80", "192.0.2.1")
		p.Peer = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		e.End(e.Decide(p))
	}
	require.LessOrEqual(t, e.last.Len(), rememberedPeers)
	require.Empty(t, e.peers)
}

// Recovery times and slow starts are a pool's; nothing would end them here.
func TestNoRecoveryTimes(t *testing.T) {
	ns := sh("a", "b")
	ns[0].RecoveryTime, ns[1].WarmUp = time.Second, time.Second
	_, err := New(&Config{Nodes: ns})
	require.ErrorIs(t, err, steering.ErrInvalid)
	require.ErrorContains(t, err, `"a".RecoveryTime`)
	require.ErrorContains(t, err, `"b".WarmUp`)
}

// Many targets at their limit are passed over in one go.
func TestManyTargetsAtTheirLimit(t *testing.T) {
	const n = 500
	cfg := &Config{}
	for i := range n {
		cfg.Nodes = append(cfg.Nodes, Node{Node: steering.Node{Name: fmt.Sprintf("n%d", i), MaxSessions: 1}})
	}
	e := newEngine(t, cfg)
	for i := range n {
		require.Equal(t, Redirect, e.Decide(probe("10.0.0.1:1", "10.0.0.2:80", "192.0.2.1")).Action, i)
	}
	begin := time.Now()
	d := e.Decide(probe("10.0.0.1:1", "10.0.0.2:80", "192.0.2.1"))
	require.Equal(t, PassThrough, d.Action)
	t.Log(time.Since(begin))
}

func BenchmarkKnownFlow(b *testing.B) {
	for _, n := range []int{4, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg := &Config{}
			for i := range n {
				cfg.Nodes = append(cfg.Nodes, Node{Node: steering.Node{Name: fmt.Sprintf("n%d", i)}})
			}
			e := newEngine(b, cfg)
			p := pre("10.0.0.1:1", "10.0.0.2:80")
			p.Known = steering.NodeID(n)
			for b.Loop() {
				e.Decide(p)
			}
		})
	}
}

// IPv6 all the way: rules, peers, rows, affinity; probes with a zone too.
func TestIPv6Everywhere(t *testing.T) {
	net := netip.MustParsePrefix
	e := newEngine(t, &Config{
		Nodes:  sh("a", "b", "c"),
		InPath: []InPathRule{{Match: Match{Dst: net("2001:db8:dead::/48")}, Action: Discard}},
		Rules: []Rule{
			{Name: "peer", Peer: PeerAddress, Peers: net("fe80::/10"), Targets: []string{"a"}},
			{Name: "dst", Match: Match{Src: net("2001:db8:1::/48"), DstPort: Port(80)}, Targets: []string{"b"}},
		},
		Services: []Row{{Name: "row", A: Endpoint{Net: net("2001:db8:a::/48")}, B: Endpoint{Net: net("2001:db8:b::/48"), Ports: Port(53)}, Targets: []string{"c"}}},
	})
	require.Equal(t, Discard, e.Decide(syn("[2001:db8::1]:1", "[2001:db8:dead::1]:80")).Action)
	require.Equal(t, id(t, e, "b"), e.Decide(syn("[2001:db8:1::1]:1", "[2001:db8::1]:80")).Node)
	require.Equal(t, id(t, e, "a"), e.Decide(probe("[2001:db8::2]:1", "[2001:db8::1]:80", "fe80::1")).Node)
	require.Equal(t, id(t, e, "a"), e.Decide(probe("[2001:db8::2]:1", "[2001:db8::1]:80", "fe80::1%eth0")).Node)
	for _, p := range []*Packet{pre("[2001:db8:a::1]:9", "[2001:db8:b::1]:53"), pre("[2001:db8:b::1]:53", "[2001:db8:a::1]:9")} {
		require.Equal(t, id(t, e, "c"), e.Decide(p).Node)
		p.Protocol = udp
		require.Equal(t, id(t, e, "c"), e.Decide(p).Node)
	}
	require.Equal(t, NoRow, e.Decide(pre("[2001:db8:a::1]:53", "[2001:db8:b::1]:9")).Reason)
}
