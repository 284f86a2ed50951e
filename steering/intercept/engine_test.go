package intercept

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

func sh(names ...string) (ns []Node) {
	for i, n := range names {
		ns = append(ns, Node{Node: steering.Node{
			Name: n, Capacity: 100, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}), 0),
		}})
	}
	return ns
}

func newEngine(t testing.TB, cfg *Config) *Engine {
	t.Helper()
	e, err := New(cfg)
	require.NoError(t, err)
	return e
}

func id(t testing.TB, e *Engine, name string) steering.NodeID {
	t.Helper()
	id, ok := e.ID(name)
	require.True(t, ok)
	return id
}

// syn is a connection from the LAN; probe, one from the WAN with the peer's probe.
func syn(src, dst string) *Packet {
	return &Packet{Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), Protocol: tcp, SYN: true}
}

func probe(src, dst, peer string) *Packet {
	p := syn(src, dst)
	p.From, p.Peer = WAN, netip.MustParseAddr(peer)
	return p
}

func pre(src, dst string) *Packet {
	p := syn(src, dst)
	p.SYN = false
	return p
}

var net10 = netip.MustParsePrefix("10.0.0.0/8")

func TestOrderOfProcessing(t *testing.T) {
	e := newEngine(t, &Config{
		Nodes: append(sh("a", "b", "c"), Node{Node: steering.Node{Name: "w", Capacity: 100}, Side: WAN}),
		InPath: []InPathRule{
			{Name: "off", Action: Deny, Disabled: true},
			{Name: "telnet", Match: Match{DstPort: Port(23)}, Action: Deny},
			{Name: "guests", Match: Match{VLAN: 66}, Action: Discard},
			{Name: "voice", Match: Match{DstPort: Ports{5060, 5061}}, Action: PassThrough},
			{Name: "v6", Match: Match{Src: netip.MustParsePrefix("2001:db8:1::/48")}, Action: Redirect},
		},
		Rules: []Rule{
			{Name: "to-w", Match: Match{DstPort: Port(443)}, Targets: []string{"w"}},
			{Name: "web", Match: Match{DstPort: Port(80)}, Targets: []string{"a", "b"}},
			{Name: "ssh", Match: Match{DstPort: Port(22)}, Action: PassThrough},
		},
		Services: []Row{
			{Name: "dc", A: Endpoint{Net: net10}, B: Endpoint{Net: netip.MustParsePrefix("172.16.0.0/12")}},
			{Name: "dns", B: Endpoint{Ports: Port(53)}, Protocol: udp, Targets: []string{"c"}},
		},
	})
	for _, tt := range []struct {
		name   string
		p      *Packet
		action Action
		reason Reason
		rule   string
		nodes  []string
	}{
		{"first in-path match: deny", syn("10.1.1.1:1", "10.2.2.2:23"), Deny, ByInPathRule, "telnet", nil},
		{"load-balance rule", syn("10.1.1.1:1", "10.2.2.2:80"), Redirect, ByLoadBalanceRule, "web", []string{"a", "b"}},
		{"a node on the WAN side", syn("10.1.1.1:1", "10.2.2.2:443"), Redirect, ByLoadBalanceRule, "to-w", []string{"w"}},
		{"IPv6", syn("[2001:db8:1::1]:1", "[2001:db8::2]:80"), Redirect, ByLoadBalanceRule, "web", []string{"a", "b"}},
		{"automatic pool", syn("10.1.1.1:1", "10.2.2.2:8080"), Redirect, ByAutomaticPool, "", []string{"c"}},
		{"passed by in-path, no row", syn("10.1.1.1:1", "10.2.2.2:5060"), PassThrough, ByInPathRule, "voice", nil},
		{"passed by in-path, a row", syn("10.1.1.1:1", "172.16.0.1:5060"), Redirect, ByServices, "dc", []string{"a", "b", "c", "w"}},
		{"passed by load-balance, a row", syn("172.17.0.1:1", "10.1.1.1:22"), Redirect, ByServices, "dc", []string{"a", "b", "c", "w"}},
		{"probe from the WAN", probe("172.17.0.1:1", "10.1.1.1:80", "192.0.2.1"), Redirect, ByLoadBalanceRule, "web", []string{"a", "b"}},
		{"pre-existing", pre("10.1.1.1:1", "172.16.0.1:80"), Redirect, ByServices, "dc", []string{"a", "b", "c", "w"}},
		{"nothing matches", pre("192.0.2.1:1", "198.51.100.1:80"), PassThrough, NoRow, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := e.Explain(tt.p)
			d := e.Decide(tt.p)
			require.Equal(t, tt.action, d.Action, "%s", x)
			require.Equal(t, tt.reason, d.Reason)
			require.Equal(t, tt.rule, d.Rule)
			counted := d
			counted.Counted = false
			require.Equal(t, counted, x.Decision, "the explanation is the decision")
			if tt.nodes == nil {
				require.Zero(t, d.Node)
			} else {
				n, ok := e.pool.Name(d.Node)
				require.True(t, ok)
				require.Contains(t, tt.nodes, n)
				require.Equal(t, n == "w", d.Side == WAN)
				require.True(t, d.Counted)
			}
			e.End(d)
		})
	}
	p := syn("10.1.1.1:1", "10.2.2.2:80")
	p.VLAN = 66
	require.Equal(t, Discard, e.Decide(p).Action)
	// The WAN side does not meet the in-path rules; a naked SYN there meets the table.
	p = syn("10.1.1.1:1", "172.16.2.2:23")
	p.From = WAN
	require.Equal(t, ByServices, e.Decide(p).Reason)
	u := pre("192.0.2.1:1", "198.51.100.1:53")
	u.Protocol = udp
	d := e.Decide(u)
	require.Equal(t, "dns", d.Rule)
	require.Equal(t, id(t, e, "c"), d.Node)
	// What a node sent passes; a known flow stays where it is, whatever the rules say.
	p = syn("10.1.1.1:1", "10.2.2.2:80")
	p.Sender = d.Node
	require.Equal(t, FromNode, e.Decide(p).Reason)
	p = syn("10.1.1.1:1", "10.2.2.2:23")
	p.Known = id(t, e, "w")
	d = e.Decide(p)
	require.Equal(t, KnownFlow, d.Reason)
	require.Equal(t, WAN, d.Side)
	require.False(t, d.Counted)
	e.SetUp(p.Known, false)
	require.Equal(t, Deny, e.Decide(p).Action, "its node is gone: decided anew")
}

func TestRedirectWithoutTarget(t *testing.T) {
	cfg := &Config{
		Nodes: sh("a", "b"),
		Rules: []Rule{
			{Name: "one", Targets: []string{"a"}},
			{Name: "later", Action: PassThrough},
		},
	}
	e := newEngine(t, cfg)
	require.Equal(t, "one", e.Decide(syn("10.0.0.1:1", "10.0.0.2:80")).Rule)
	e.SetUp(id(t, e, "a"), false)
	d := e.Decide(syn("10.0.0.1:1", "10.0.0.2:80"))
	require.Equal(t, PassThrough, d.Action)
	require.Equal(t, "later", d.Rule)

	// Without the later rule: the automatic pool, without any node named in a rule.
	cfg.Rules = cfg.Rules[:1]
	_, err := e.Set(cfg)
	require.NoError(t, err)
	for range 20 {
		d = e.Decide(syn("10.0.0.1:1", "10.0.0.2:80"))
		require.Equal(t, ByAutomaticPool, d.Reason)
		require.Equal(t, id(t, e, "b"), d.Node)
	}
	// A node named only in a disabled rule is not in the pool; an empty pool passes.
	cfg.Rules = append(cfg.Rules[:1:1], Rule{Name: "off", Targets: []string{"b"}, Disabled: true})
	_, err = e.Set(cfg)
	require.NoError(t, err)
	d = e.Decide(syn("10.0.0.1:1", "10.0.0.2:80"))
	require.Equal(t, PassThrough, d.Action)
	require.Equal(t, NoRule, d.Reason)
}

func TestPeerKinds(t *testing.T) {
	rule := Rule{Name: "r", Targets: []string{"a"}}
	naked, probed := syn("10.0.0.1:1", "10.0.0.2:80"), probe("10.0.0.1:1", "10.0.0.2:80", "192.0.2.7")
	for _, tt := range []struct {
		peer          PeerKind
		peers         string
		naked, probed bool
	}{
		{AnyPeer, "", true, true},
		{ProbeOnly, "", false, true},
		{NonProbe, "", true, false},
		{PeerAddress, "192.0.2.0/24", false, true},
		{PeerAddress, "192.0.2.8/32", false, false},
	} {
		r := rule
		r.Peer = tt.peer
		if tt.peers != "" {
			r.Peers = netip.MustParsePrefix(tt.peers)
		}
		e := newEngine(t, &Config{Nodes: sh("a", "b"), Rules: []Rule{r}})
		require.Equal(t, tt.naked, e.Decide(naked).Rule == "r", "%v naked", tt.peer)
		require.Equal(t, tt.probed, e.Decide(probed).Rule == "r", "%v probed", tt.peer)
	}
}

// Two equal nodes, one high: 2:1; one severe: all to the other; both severe: none, with
// the reason. Flows there are stay.
func TestPressureOfPassThrough(t *testing.T) {
	e := newEngine(t, &Config{Nodes: sh("a", "b"), Services: []Row{{Name: "all"}}, Buckets: 4096})
	a, b := id(t, e, "a"), id(t, e, "b")
	share := func() float64 {
		n := 0
		for i := range 12000 {
			p := pre(fmt.Sprintf("10.0.%d.%d:%d", i>>8&255, i&255, 1024+i), "198.51.100.1:80")
			q := &Packet{Src: p.Dst, Dst: p.Src, Protocol: tcp, From: WAN}
			d, r := e.Decide(p), e.Decide(q)
			require.Equal(t, d.Node, r.Node, "both directions meet the same node")
			e.End(d)
			e.End(r)
			if d.Node == a {
				n++
			}
		}
		return float64(n) / 12000
	}
	require.InDelta(t, 0.5, share(), 0.01)
	e.SetPressure(b, steering.High)
	require.InDelta(t, 2.0/3, share(), 0.01)
	e.SetPressure(b, steering.Severe)
	require.Equal(t, 1.0, share())
	p := pre("10.0.0.1:1", "198.51.100.1:80")
	p.Known = b
	require.Equal(t, b, e.Decide(p).Node, "flows there are stay")
	e.SetPressure(a, steering.Severe)
	d := e.Decide(pre("10.0.0.1:1", "198.51.100.1:80"))
	require.Equal(t, PassThrough, d.Action)
	require.Equal(t, SeverePressure, d.Reason)
	// Optimised connections are not refused.
	d = e.Decide(syn("10.0.0.1:1", "10.0.0.2:80"))
	require.True(t, d.Optimized)
	e.SetUp(a, false)
	e.SetUp(b, false)
	require.Equal(t, NoNode, e.Decide(pre("10.0.0.1:1", "198.51.100.1:80")).Reason)
}

func TestClusterStates(t *testing.T) {
	cfg := &Config{Nodes: sh("a"), Services: []Row{{Name: "all"}}}
	rows := []struct {
		state                        ClusterState
		allow, optimised, pass, head bool
	}{
		{Steady, false, true, true, false},
		{SerialPartnerDown, false, true, true, true},
		{ParallelPeerDown, false, false, false, true},
		{ParallelPeerDown, true, true, false, true},
		{PairDown, false, false, false, true},
		{PairDown, true, true, false, true},
	}
	for i := range 2 * len(rows) {
		tt := rows[i/2]
		cfg.AllowFailure = tt.allow
		cfg.Nodes[0].Side = WAN - cfg.Nodes[0].Side // in turn on either side
		e := newEngine(t, cfg)
		e.SetCluster(tt.state)
		d := e.Decide(syn("10.0.0.1:1", "10.0.0.2:80"))
		require.Equal(t, tt.optimised, d.Action == Redirect, tt.state)
		require.Equal(t, tt.head, d.HeaderOnly)
		if d.Node != 0 {
			require.Equal(t, cfg.Nodes[0].Side, d.Side)
		}
		d = e.Decide(pre("10.0.0.1:1", "10.0.0.2:80"))
		require.Equal(t, tt.pass, d.Action == Redirect, tt.state)
		if !tt.pass {
			require.Equal(t, ClusterNonsteady, d.Reason)
		}
		p := pre("10.0.0.1:1", "10.0.0.2:80")
		p.Known = id(t, e, "a")
		require.Equal(t, Redirect, e.Decide(p).Action, "flows there are stay")
	}
}

func TestPeerAffinity(t *testing.T) {
	e := newEngine(t, &Config{Nodes: sh("a", "b", "c"), Rules: []Rule{{Name: "r", Targets: []string{"a", "b", "c"}}}})
	var first steering.NodeID
	var open []Decision
	for i := range 20 {
		d := e.Decide(probe(fmt.Sprintf("10.0.0.1:%d", 1000+i), "10.0.0.2:80", "192.0.2.1"))
		if i == 0 {
			first = d.Node
		}
		require.Equal(t, first, d.Node)
		open = append(open, d)
	}
	require.Equal(t, 1, e.Peers(first))
	other := e.Decide(probe("10.0.0.1:1", "10.0.0.2:80", "192.0.2.2"))
	require.NotEqual(t, first, other.Node, "another peer, the node with fewer connections")
	// Drain is looked at before affinity, pressure too.
	e.SetPressure(first, steering.High)
	require.NotEqual(t, first, e.Decide(probe("10.0.0.1:2", "10.0.0.2:80", "192.0.2.1")).Node)
	e.SetPressure(first, steering.Normal)
	require.Equal(t, first, e.Decide(probe("10.0.0.1:3", "10.0.0.2:80", "192.0.2.1")).Node)
	name, _ := e.pool.Name(first)
	ns := sh("a", "b", "c")
	for i := range ns {
		if ns[i].Name == name {
			ns[i].Admin = steering.Draining
		}
	}
	cfg := &Config{Nodes: ns, Rules: []Rule{{Name: "r", Targets: []string{"a", "b", "c"}}}}
	_, err := e.Set(cfg)
	require.NoError(t, err)
	require.NotEqual(t, first, e.Decide(probe("10.0.0.1:4", "10.0.0.2:80", "192.0.2.1")).Node)
	// With sessions shutdown only its own peers come.
	for i := range ns {
		if ns[i].Name == name {
			ns[i].Admin = steering.SessionsShutdown
		}
	}
	_, err = e.Set(cfg)
	require.NoError(t, err)
	require.Equal(t, first, e.Decide(probe("10.0.0.1:5", "10.0.0.2:80", "192.0.2.1")).Node)
	require.NotEqual(t, first, e.Decide(probe("10.0.0.1:6", "10.0.0.2:80", "192.0.2.3")).Node)
	for _, d := range open {
		e.End(d)
	}
}

func TestFairPeering(t *testing.T) {
	peer := func(i int) string { return fmt.Sprintf("192.0.%d.%d", i>>8, i&255) }
	for _, tt := range []struct {
		name          string
		v2, rule      bool
		capacities    []int
		wantUnder     bool
		affinityFirst bool
	}{
		{name: "v2 on, rule says no: still applied", v2: true, capacities: []int{100, 100, 200}, wantUnder: true},
		{name: "per rule", rule: true, capacities: []int{100, 100, 200}, wantUnder: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := sh("a", "b", "c")
			total := 0
			for i := range ns {
				ns[i].Capacity = tt.capacities[i]
				total += tt.capacities[i]
			}
			e := newEngine(t, &Config{Nodes: ns, FairPeeringV2: tt.v2, Rules: []Rule{{
				Name: "r", Targets: []string{"a", "b", "c"}, FairPeering: tt.rule,
			}}})
			for i := range 200 {
				// Peers of very different size.
				for c := range 1 + i%7 {
					e.Decide(probe(fmt.Sprintf("10.0.0.1:%d", 1000+c), "10.0.0.2:80", peer(i)))
				}
				for j, n := range ns {
					share := ((i+1)*tt.capacities[j] + total - 1) / total
					require.LessOrEqual(t, float64(e.Peers(id(t, e, n.Name))), float64(share)*1.1, "%d peers", i+1)
				}
			}
			x := e.Explain(probe("10.0.0.1:1", "10.0.0.2:80", peer(5)))
			require.Contains(t, x.String(), "peers")
		})
	}
	// Without it, one node may get more peers than its part.
	e := newEngine(t, &Config{Nodes: sh("a", "b"), Rules: []Rule{{Name: "r", Targets: []string{"a", "b"}}}})
	for range 1000 {
		e.Decide(probe("10.0.0.1:1", "10.0.0.2:80", peer(0)))
	}
	for i := range 100 {
		e.Decide(probe("10.0.0.1:1", "10.0.0.2:80", peer(i+1)))
	}
	require.Equal(t, 101, e.Peers(id(t, e, "a"))+e.Peers(id(t, e, "b")))
	require.GreaterOrEqual(t, max(e.Peers(id(t, e, "a")), e.Peers(id(t, e, "b"))), 100)
}

func TestFaultsAllAtOnce(t *testing.T) {
	e := newEngine(t, nil)
	require.Equal(t, PassThrough, e.Decide(syn("10.0.0.1:1", "10.0.0.2:80")).Action)
	cfg := &Config{
		Nodes:         []Node{{Node: steering.Node{Name: "a", Capacity: 5}}, {Node: steering.Node{Name: "b", Backup: true}, Side: 9}, {}},
		PathSelection: true,
		Slack:         -5,
		InPath: []InPathRule{
			{Name: "x", Match: Match{Src: netip.MustParsePrefix("10.0.0.1/8"), VLAN: 4095}, Action: 9},
			{Name: "x", Match: Match{DstPort: Ports{90, 80}}},
		},
		Rules: []Rule{
			{Name: "none"}, {Name: "unknown", Targets: []string{"zz", "a", "a"}},
			{Name: "deny", Action: Deny}, {Name: "pt", Action: PassThrough, Targets: []string{"a"}},
			{Name: "peer", Peer: PeerAddress, Targets: []string{"a"}},
			{Name: "peers", Peers: net10, Targets: []string{"a"}},
		},
		Services: []Row{
			{Name: "mixed", A: Endpoint{Net: net10}, B: Endpoint{Net: netip.MustParsePrefix("2001:db8::/32")}},
			{Name: "icmp", Protocol: 1}, {Name: "pt", PassThrough: true, Targets: []string{"a"}},
		},
	}
	for _, run := range []func() error{
		func() error { _, err := New(cfg); return err },
		func() error { _, err := e.Set(cfg); return err },
	} {
		err := run()
		require.ErrorIs(t, err, steering.ErrInvalid)
		for _, want := range []string{
			"FairPeeringV2", "Slack", `InPath[0] "x".Match`, "10.0.0.0/8, without bits", "VLAN", `InPath[1] "x".Name`, "DstPort",
			`"none".Targets`, `"zz"`, "each node once", `"deny".Action`, `"pt".Targets`, `"peer".Peers`, `"peers".Peers`,
			`"mixed".B.Net`, `"icmp".Protocol`, "Backup", "Side", `Node[2] "".Name`, "Capacity",
		} {
			if want == `InPath[0] "x".Match` {
				want = `InPath[0] "x".Src`
			}
			require.ErrorContains(t, err, want)
		}
	}
}

func TestSetKeepsState(t *testing.T) {
	cfg := &Config{Nodes: sh("a", "b"), Rules: []Rule{{Name: "r", Targets: []string{"a", "b"}, FairPeering: true}}}
	e := newEngine(t, cfg)
	d := e.Decide(probe("10.0.0.1:1", "10.0.0.2:80", "192.0.2.1"))
	a, b := id(t, e, "a"), id(t, e, "b")
	e.SetPressure(a, steering.High)
	v := e.view.Load()
	removed, err := e.Set(cfg)
	require.NoError(t, err)
	require.Empty(t, removed)
	require.Same(t, v, e.view.Load(), "the same configuration changes nothing")

	next := *cfg
	next.Nodes = append(sh("a", "b"), Node{Node: steering.Node{Name: "c", Capacity: 50}})
	next.Services = []Row{{Name: "all"}}
	_, err = e.Set(&next)
	require.NoError(t, err)
	require.Equal(t, a, id(t, e, "a"))
	require.Equal(t, b, id(t, e, "b"))
	require.Equal(t, 1, e.Peers(d.Node))
	for id, st := range e.All() {
		if id == a {
			require.Equal(t, steering.High, st.Pressure)
		}
	}
	_, err = e.Set(&Config{Nodes: sh("x")})
	require.NoError(t, err)
	require.Zero(t, e.Peers(d.Node))
	e.End(d) // of a node that is gone
	require.Zero(t, e.Peers(d.Node))
}

func TestRestoreAndLimits(t *testing.T) {
	ns := sh("a", "b")
	ns[0].MaxSessions, ns[1].MaxSessions = 2, 1
	e := newEngine(t, &Config{Nodes: ns, Services: []Row{{Name: "all"}}})
	d, err := e.Restore(id(t, e, "a"), netip.MustParseAddr("192.0.2.1"))
	require.NoError(t, err)
	require.Equal(t, 1, e.Peers(id(t, e, "a")))
	_, err = e.Restore(99, netip.Addr{})
	require.Error(t, err)
	for i := range 2 {
		require.Equal(t, Redirect, e.Decide(pre(fmt.Sprintf("10.0.0.1:%d", i+1), "10.0.0.2:80")).Action)
	}
	require.Equal(t, AtLimit, e.Explain(pre("10.0.0.1:9", "10.0.0.2:80")).Decision.Reason)
	require.Equal(t, AtLimit, e.Decide(pre("10.0.0.1:9", "10.0.0.2:80")).Reason)
	require.Equal(t, AtLimit, e.Explain(syn("10.0.0.1:9", "10.0.0.2:80")).Decision.Reason)
	e.End(d)
	require.Zero(t, e.Peers(id(t, e, "a")))
	require.Equal(t, id(t, e, "a"), e.Decide(syn("10.0.0.1:9", "10.0.0.2:80")).Node)
}

// Decisions and ends while the configuration, health and pressure change: no count is
// lost.
func TestConcurrentDecisions(t *testing.T) {
	cfg := &Config{
		Nodes:    sh("a", "b", "c"),
		Rules:    []Rule{{Name: "r", Match: Match{DstPort: Port(80)}, Targets: []string{"a", "b"}, FairPeering: true}},
		Services: []Row{{Name: "all"}},
	}
	e := newEngine(t, cfg)
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for i := range 3000 {
				p := probe(fmt.Sprintf("10.0.0.1:%d", 1+i), "10.0.0.2:80", fmt.Sprintf("192.0.2.%d", r.IntN(50)))
				if r.IntN(2) == 0 {
					p.SYN = false
				}
				e.End(e.Decide(p))
			}
		})
	}
	for i := range 100 {
		next := *cfg
		next.Seed = uint64(i % 3)
		next.FairPeeringV2 = i%2 == 0
		_, err := e.Set(&next)
		require.NoError(t, err)
		e.SetUp(steering.NodeID(1+i%3), i%4 != 0)
		e.SetPressure(steering.NodeID(1+i%3), steering.Level(i%3))
	}
	wg.Wait()
	for id, st := range e.All() {
		require.Zero(t, st.Sessions, st.Node.Name)
		require.Zero(t, e.Peers(id))
	}
	require.Empty(t, e.peers)
	for _, s := range e.sets {
		require.Zero(t, s.peers)
	}
}
