package intercept

import (
	"encoding"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

// Every field of in-path and load-balance rules, that matches and that does not.
func TestMatching(t *testing.T) {
	p := syn("10.1.0.5:1000", "10.2.0.5:80")
	p.VLAN = 12
	six := syn("[2001:db8:1::5]:1000", "[2001:db8:2::5]:80")
	for _, tt := range []struct {
		m         Match
		four, six bool
	}{
		{Match{}, true, true},
		{Match{Src: netip.MustParsePrefix("10.1.0.0/24")}, true, false},
		{Match{Src: netip.MustParsePrefix("10.1.1.0/24")}, false, false},
		{Match{Dst: netip.MustParsePrefix("10.2.0.5/32")}, true, false},
		{Match{Dst: netip.MustParsePrefix("10.2.0.4/32")}, false, false},
		{Match{Src: netip.MustParsePrefix("2001:db8:1::/48"), Dst: netip.MustParsePrefix("2001:db8:2::/48")}, false, true},
		{Match{Src: netip.MustParsePrefix("2001:db8:2::/48")}, false, false},
		{Match{Src: netip.MustParsePrefix("0.0.0.0/0")}, true, false},
		{Match{Dst: netip.MustParsePrefix("::/0")}, false, true},
		{Match{DstPort: Port(80)}, true, true},
		{Match{DstPort: Ports{1, 79}}, false, false},
		{Match{DstPort: Ports{79, 81}}, true, true},
		{Match{VLAN: 12}, true, false},
		{Match{VLAN: 13}, false, false},
		{Match{VLAN: Untagged}, false, true},
	} {
		inPath := newEngine(t, &Config{InPath: []InPathRule{{Name: "r", Match: tt.m, Action: Deny}}})
		balance := newEngine(t, &Config{Nodes: sh("a", "b"), Rules: []Rule{{Name: "r", Match: tt.m, Targets: []string{"a"}}}})
		for i, q := range []*Packet{p, six} {
			want := []bool{tt.four, tt.six}[i]
			require.Equal(t, want, inPath.Decide(q).Action == Deny, "%+v", tt.m)
			require.Equal(t, want, balance.Decide(q).Rule == "r", "%+v", tt.m)
			w := *q // from the WAN, with a probe
			w.From, w.Peer = WAN, netip.MustParseAddr("192.0.2.1")
			require.NotEqual(t, Deny, inPath.Decide(&w).Action, "in-path rules are for the LAN")
			require.Equal(t, want, balance.Decide(&w).Rule == "r", "%+v", tt.m)
		}
	}
}

// Rows that pass flows by come before wider ones that do not, for UDP, TCP passed through and
// pre-existing connections, of both families; the explanation says so.
func TestPassThroughRows(t *testing.T) {
	e := newEngine(t, &Config{
		Nodes: sh("a", "b"),
		Services: []Row{
			{Name: "backup", A: Endpoint{Net: net10}, B: Endpoint{Ports: Ports{5000, 5010}}, PassThrough: true},
			{Name: "six", A: Endpoint{Net: netip.MustParsePrefix("2001:db8:1::/48")}, Protocol: udp, PassThrough: true},
			{Name: "rest"},
		},
		InPath: []InPathRule{{Name: "all", Action: PassThrough}},
	})
	for _, tt := range []struct {
		src, dst string
		proto    uint8
		rule     string
	}{
		{"10.0.0.1:1", "192.0.2.1:5005", udp, "backup"},
		{"192.0.2.1:5005", "10.0.0.1:1", tcp, "backup"},
		{"10.0.0.1:5000", "192.0.2.1:1", tcp, "rest"},
		{"[2001:db8:1::1]:1", "[2001:db8::1]:2", udp, "six"},
		{"[2001:db8::1]:1", "[2001:db8:1::1]:2", udp, "six"},
		{"[2001:db8:1::1]:1", "[2001:db8::1]:2", tcp, "rest"},
	} {
		for _, fresh := range []bool{false, true} {
			p := pre(tt.src, tt.dst)
			p.Protocol, p.SYN = tt.proto, fresh && tt.proto == tcp
			x, d := e.Explain(p), e.Decide(p)
			require.Equal(t, tt.rule, d.Rule, x)
			require.Equal(t, ByServices, d.Reason)
			require.Equal(t, tt.rule == "rest", d.Action == Redirect)
			require.Equal(t, d.Action, x.Decision.Action)
			if d.Action == PassThrough {
				require.Contains(t, x.String(), "pass through")
				require.False(t, d.Counted)
			}
			e.End(d)
		}
	}
}

// UDP flows with an entry do not move because of pressure either; new ones do.
func TestPressureLeavesUDPFlows(t *testing.T) {
	e := newEngine(t, &Config{Nodes: sh("a", "b"), Services: []Row{{Name: "all"}}})
	where := map[int]steering.NodeID{}
	flow := func(i int) *Packet {
		p := pre(fmt.Sprintf("[2001:db8::%x]:5060", i+1), "[2001:db8:9::1]:5060")
		p.Protocol = udp
		return p
	}
	for i := range 200 {
		where[i] = e.Decide(flow(i)).Node
	}
	a := id(t, e, "a")
	for _, l := range []steering.Level{steering.High, steering.Severe} {
		e.SetPressure(a, l)
		for i := range 200 {
			p := flow(i)
			p.Known = where[i]
			d := e.Decide(p)
			require.Equal(t, where[i], d.Node)
			require.Equal(t, KnownFlow, d.Reason)
		}
	}
	for i := range 200 {
		require.NotEqual(t, a, e.Decide(flow(1000+i)).Node)
	}
}

// Gauges of a node lead to its level by the thresholds of the configuration.
func TestReport(t *testing.T) {
	e := newEngine(t, &Config{Nodes: sh("a", "b"), Services: []Row{{Name: "all"}}, Pressure: steering.Pressure{
		Latency: steering.Thresholds{HighRise: 0.1, HighFall: 0.05, SevereRise: 1, SevereFall: 0.5},
	}})
	a, b := id(t, e, "a"), id(t, e, "b")
	for _, step := range []struct {
		latency time.Duration
		want    steering.Level
	}{{99 * time.Millisecond, steering.Normal}, {time.Second, steering.Severe}, {600 * time.Millisecond, steering.Severe}, {60 * time.Millisecond, steering.High}, {0, steering.Normal}} {
		require.Equal(t, step.want, e.Report(a, steering.Gauges{Latency: step.latency}))
		on := map[steering.NodeID]int{}
		for i := range 600 {
			d := e.Decide(pre(fmt.Sprintf("10.0.0.1:%d", i+1), "10.0.0.2:80"))
			on[d.Node]++
			e.End(d)
		}
		switch step.want {
		case steering.Severe:
			require.Equal(t, 600, on[b])
		case steering.High:
			require.InDelta(t, 400, on[b], 60)
		case steering.Normal:
			require.InDelta(t, 300, on[b], 60)
		}
	}
	require.Equal(t, steering.Normal, e.Report(77, steering.Gauges{Latency: time.Hour}), "an unknown node")
	addr, ok := e.Addr(a)
	require.True(t, ok)
	require.Equal(t, "10.9.0.1", addr.Addr().String())
}

// Affinity outlives a reconfiguration, of peers with connections and of those without, and so do
// ids, counts, health and pressure, whatever else changes: rules, rows, order and sides of nodes.
func TestAffinitySurvives(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	e := newEngine(t, &Config{Nodes: sh(names...), Rules: []Rule{{Name: "r", Targets: names, FairPeering: true}}})
	served := map[string]steering.NodeID{}
	open := map[string]Decision{}
	for i := range 12 {
		peer := fmt.Sprintf("2001:db8::%x", i+1)
		d := e.Decide(probe("[2001:db8:1::1]:1", "[2001:db8:2::1]:80", peer))
		served[peer], open[peer] = d.Node, d
		if i%3 == 0 {
			e.End(d)
			delete(open, peer)
		}
	}
	down := id(t, e, "d")
	e.SetUp(down, false)
	e.SetPressure(id(t, e, "c"), steering.High)
	turned := sh("a", "b", "c", "d")
	turned[0], turned[3] = turned[3], turned[0]
	turned[1].Side = WAN
	for _, cfg := range []*Config{
		{Nodes: turned, Rules: []Rule{{Name: "other", Targets: []string{"d", "c", "b", "a"}}}},
		{Nodes: turned, FairPeeringV2: true, PathSelection: true, Slack: 1000, Services: []Row{{Name: "x"}}},
		{Nodes: append(sh(names...), Node{Node: steering.Node{Name: "e", Capacity: 9}}), Rules: []Rule{{Name: "r", Targets: names}}, Seed: 9},
	} {
		removed, err := e.Set(cfg)
		require.NoError(t, err)
		require.Empty(t, removed)
		e.SetUp(down, false)
		x := e.Explain(probe("[2001:db8:1::1]:1", "[2001:db8:2::1]:80", "2001:db8::1"))
		require.Contains(t, x.String(), "high pressure", "pressure stays")
		e.SetPressure(id(t, e, "c"), steering.Normal)
		for peer, node := range served {
			if node == down {
				continue
			}
			d := e.Decide(probe("[2001:db8:1::1]:2", "[2001:db8:2::1]:80", peer))
			require.Equal(t, node, d.Node, "%s of %v", peer, cfg.Rules)
			e.End(d)
		}
		e.SetPressure(id(t, e, "c"), steering.High)
		require.False(t, e.Usable(down), "health stays")
	}
	n := int64(0)
	for _, st := range e.All() {
		n += st.Sessions
	}
	require.EqualValues(t, len(open), n)
	for _, d := range open {
		e.End(d)
	}
	for _, st := range e.All() {
		require.Zero(t, st.Sessions)
	}
}

// Two rules with fair peering of their own: each keeps its targets under a cap of the peers they
// serve, and a peer of one rule is none of the other's.
func TestFairPeeringOfTwoRules(t *testing.T) {
	e := newEngine(t, &Config{Nodes: sh("a", "b", "c", "d"), Slack: -1, Rules: []Rule{
		{Name: "web", Match: Match{DstPort: Port(80)}, Targets: []string{"a", "b"}, FairPeering: true},
		{Name: "mail", Match: Match{DstPort: Port(25)}, Targets: []string{"c", "d"}, FairPeering: true},
	}})
	for i := range 60 {
		peer := fmt.Sprintf("192.0.2.%d", i+1)
		port := "80"
		if i >= 40 {
			port = "25"
		}
		e.Decide(probe("10.0.0.1:1", "10.0.0.2:"+port, peer))
	}
	for name, want := range map[string]int{"a": 20, "b": 20, "c": 10, "d": 10} {
		require.Equal(t, want, e.Peers(id(t, e, name)), name)
	}
}

// Faults of nodes, rules and rows come together, each with its field and value, from Validate, New
// and Set alike.
func TestValidate(t *testing.T) {
	require.NoError(t, new(Config).Validate())
	c := &Config{
		Nodes:    []Node{{Node: steering.Node{Name: "a", Weight: -7}}, {Node: steering.Node{Name: "a"}}},
		Buckets:  1,
		InPath:   []InPathRule{{Name: "p", Match: Match{Src: net10, Dst: netip.MustParsePrefix("::/0"), VLAN: -2}}},
		Rules:    []Rule{{Name: "r", Peer: 9, Targets: []string{"a"}, Match: Match{Dst: netip.PrefixFrom(netip.MustParseAddr("::ffff:10.0.0.0"), 104)}}},
		Services: []Row{{Name: "s", A: Endpoint{Net: netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 99), Ports: Ports{9, 8}}}},
		Pressure: steering.Pressure{CPU: steering.Thresholds{HighRise: 0.5, HighFall: 0.6}},
		IDs:      new(steering.IDs),
	}
	err := c.Validate()
	require.ErrorIs(t, err, steering.ErrInvalid)
	for _, want := range []string{
		`"a".Weight = -7: want`, `"a".Name = a: want a name of its own`, "Buckets = 1: want", `InPath[0] "p".Dst = ::/0: want the family of Src`,
		`InPath[0] "p".VLAN = -2: want`, `Rules[0] "r".Peer = 9: want`, `Rules[0] "r".Dst`, "the IPv4 form", `Services[0] "s".A.Net`,
		`Services[0] "s".A.Ports = 9-8: want`, "CPU.HighFall = 0.6: want",
	} {
		require.ErrorContains(t, err, want)
	}
	_, other := New(c)
	require.EqualError(t, other, err.Error())
	_, other = newEngine(t, nil).Set(c)
	require.EqualError(t, other, err.Error())
	c = &Config{IDs: new(steering.IDs), Nodes: sh("a")}
	require.NoError(t, c.Validate())
	require.EqualValues(t, 1, c.IDs.Next(), "asking takes no id")
}

// roundTrip tests the text form of an enumeration of n values.
func roundTrip[T ~uint8, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, n int, text func(T) (encoding.TextMarshaler, fmt.Stringer)) {
	t.Helper()
	seen := map[string]bool{}
	for i := range T(n) {
		m, s := text(i)
		b, err := m.MarshalText()
		require.NoError(t, err)
		require.Equal(t, s.String(), string(b))
		require.False(t, seen[string(b)])
		seen[string(b)] = true
		var back T
		require.NoError(t, P(&back).UnmarshalText(b))
		require.Equal(t, i, back)
		require.ErrorContains(t, P(&back).UnmarshalText([]byte("neither")), string(b), "what would be valid")
	}
	m, _ := text(T(n))
	_, err := m.MarshalText()
	require.Error(t, err)
}

func TestTextRoundTrips(t *testing.T) {
	roundTrip(t, 2, func(v Side) (encoding.TextMarshaler, fmt.Stringer) { return v, v })
	roundTrip(t, 4, func(v Action) (encoding.TextMarshaler, fmt.Stringer) { return v, v })
	roundTrip(t, 4, func(v PeerKind) (encoding.TextMarshaler, fmt.Stringer) { return v, v })
	roundTrip(t, 13, func(v Reason) (encoding.TextMarshaler, fmt.Stringer) { return v, v })
	roundTrip(t, 4, func(v ClusterState) (encoding.TextMarshaler, fmt.Stringer) { return v, v })
	require.Equal(t, []string{"any", "80", "80-90"}, []string{Ports{}.String(), Port(80).String(), Ports{80, 90}.String()})
}
