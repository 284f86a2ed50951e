package intercept

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

// Every reason there is, explained by the steps that led to it, and the explanation is the
// decision.
func TestEveryReasonIsExplained(t *testing.T) {
	full := sh("a", "b", "c")
	for i := range full {
		full[i].MaxSessions = 1
	}
	one := func(*testing.T, *Engine) {}
	all := []Row{{Name: "all"}}
	seen := map[Reason]bool{None: true} // nothing decided: no explanation
	for _, tt := range []struct {
		name    string
		cfg     *Config
		prepare func(*testing.T, *Engine)
		p       func(*Engine) *Packet
		reason  Reason
		steps   []string
	}{
		{
			"sent by a node", &Config{Nodes: full}, one,
			func(*Engine) *Packet { p := syn("10.0.0.1:1", "10.0.0.2:80"); p.Sender = 2; return p },
			FromNode, []string{"node 2 sent it"},
		},
		{
			"known", &Config{Nodes: full}, one,
			func(*Engine) *Packet { p := pre("10.0.0.1:1", "10.0.0.2:80"); p.Known = 2; return p },
			KnownFlow, []string{"flow of node 2"},
		},
		{
			"known, of a node that is gone", &Config{Nodes: full},
			func(_ *testing.T, e *Engine) { e.SetUp(2, false) },
			func(*Engine) *Packet { p := pre("10.0.0.1:1", "10.0.0.2:80"); p.Known = 2; return p },
			NoRow, []string{"flow of node 2, which is gone", "no row"},
		},
		{
			"discarded", &Config{InPath: []InPathRule{{Name: "r", Action: Discard}}}, one,
			func(*Engine) *Packet { return syn("10.0.0.1:1", "10.0.0.2:80") },
			ByInPathRule, []string{`in-path rule 0 "r": discard`},
		},
		{
			"a rule", &Config{Nodes: full, Rules: []Rule{
				{Name: "no", Match: Match{DstPort: Port(81)}, Targets: []string{"a"}}, {Name: "down", Targets: []string{"a"}}, {Name: "yes", Targets: []string{"b"}},
			}},
			func(_ *testing.T, e *Engine) { e.SetUp(1, false) },
			func(*Engine) *Packet { return syn("10.0.0.1:1", "10.0.0.2:80") },
			ByLoadBalanceRule, []string{`rule 0 "no": another destination port`, `rule 1 "down": no usable target`, `target "b": normal pressure`},
		},
		{
			"at the cap of peers", &Config{Nodes: sh("a", "b"), FairPeeringV2: true, Slack: -1, Rules: []Rule{{Name: "r", Targets: []string{"a"}}, {Name: "s", Targets: []string{"a", "b"}, Match: Match{DstPort: Port(80)}}}},
			func(t *testing.T, e *Engine) {
				require.True(t, e.Decide(probe("10.0.0.1:1", "10.0.0.2:81", "192.0.2.1")).Counted)
			},
			func(*Engine) *Packet { return probe("10.0.0.1:1", "10.0.0.2:80", "192.0.2.2") },
			ByLoadBalanceRule, []string{"1 peers (at its cap)"},
		},
		{
			"the pool", &Config{Nodes: full}, func(_ *testing.T, e *Engine) { e.Decide(syn("10.0.0.1:1", "10.0.0.2:80")) },
			func(*Engine) *Packet { return syn("10.0.0.1:1", "10.0.0.2:80") },
			ByAutomaticPool, []string{"no in-path rule: redirect", `target "a" is at its limit`, `target "b": normal`},
		},
		{
			"no rule", &Config{Nodes: full, Rules: []Rule{{Name: "r", Match: Match{DstPort: Port(81)}, Targets: []string{"a", "b", "c"}}}}, one,
			func(*Engine) *Packet { return syn("10.0.0.1:1", "10.0.0.2:80") },
			NoRule, []string{"the automatic pool has no usable node", "no row"},
		},
		{
			"no row", &Config{Nodes: full}, one,
			func(*Engine) *Packet { return pre("10.0.0.1:1", "10.0.0.2:80") },
			NoRow, []string{"no row of the network services table"},
		},
		{
			"the row, past nodes at their limit and under pressure", &Config{Nodes: full, Services: all},
			func(t *testing.T, e *Engine) {
				d, err := e.Restore(id(t, e, "a"), netip.Addr{})
				require.NoError(t, err)
				require.True(t, d.Counted)
				e.SetPressure(id(t, e, "b"), steering.Severe)
			},
			func(e *Engine) *Packet { // one whose bucket is a's
				for i := 1; ; i++ {
					p := pre("10.0.0.1:1", "10.0.0.2:80")
					p.Src = netip.AddrPortFrom(p.Src.Addr(), uint16(i))
					if f := e.view.Load().farms[0]; f.nodes[f.buckets.Lookup(steering.HashFlow(tcp, p.Src, p.Dst))] == 0 {
						return p
					}
				}
			},
			ByServices, []string{`node "a" is at its limit`, `node "c" by its buckets`},
		},
		{
			"no node", &Config{Nodes: full, Services: all},
			func(_ *testing.T, e *Engine) {
				for i := range steering.NodeID(3) {
					e.SetUp(i+1, false)
				}
			},
			func(*Engine) *Packet { return pre("10.0.0.1:1", "10.0.0.2:80") },
			NoNode, []string{`row 0 "all": no node, no-node`},
		},
		{
			"severe pressure", &Config{Nodes: full, Services: all},
			func(_ *testing.T, e *Engine) {
				for i := range steering.NodeID(3) {
					e.SetPressure(i+1, steering.Severe)
				}
			},
			func(*Engine) *Packet { return pre("10.0.0.1:1", "10.0.0.2:80") },
			SeverePressure, []string{`row 0 "all": no node, severe-pressure`},
		},
		{
			"all at their limit", &Config{Nodes: full, Services: all},
			func(t *testing.T, e *Engine) {
				for i := range steering.NodeID(3) {
					_, err := e.Restore(i+1, netip.Addr{})
					require.NoError(t, err)
				}
			},
			func(*Engine) *Packet { return pre("10.0.0.1:1", "10.0.0.2:80") },
			AtLimit, []string{`node "a" is at its limit`, `node "b" is at its limit`, `node "c" is at its limit`},
		},
		{
			"not steady", &Config{Nodes: full, Services: all}, func(_ *testing.T, e *Engine) { e.SetCluster(PairDown) },
			func(*Engine) *Packet { return syn("10.0.0.1:1", "10.0.0.2:80") },
			ClusterNonsteady, []string{"the cluster is not steady (pair-down) and failure is not allowed", `row 0 "all": the cluster is not steady`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngine(t, tt.cfg)
			tt.prepare(t, e)
			p := tt.p(e)
			x := e.Explain(p)
			require.Equal(t, tt.reason, x.Decision.Reason, x)
			for _, s := range tt.steps {
				require.Contains(t, x.String(), s)
			}
			require.Contains(t, x.String(), tt.reason.String())
			d := e.Decide(p)
			require.Equal(t, d.Action == Redirect && tt.reason != KnownFlow, d.Counted)
			d.Counted = false
			require.Equal(t, x.Decision, d)
			seen[tt.reason] = true
		})
	}
	require.Len(t, seen, reasonNames.Len())
}
