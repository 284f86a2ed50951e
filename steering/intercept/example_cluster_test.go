package intercept_test

import (
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

func ExampleEngine_SetCluster() {
	e, err := intercept.New(&intercept.Config{
		Nodes: []intercept.Node{{Node: steering.Node{Name: "sh1"}}},
		Rules: []intercept.Rule{{
			Name: "branch", Peer: intercept.PeerAddress, Peers: netip.MustParsePrefix("2001:db8:1::/48"), Targets: []string{"sh1"},
		}},
		Services: []intercept.Row{{Name: "rest"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := &intercept.Packet{
		Src: netip.MustParseAddrPort("[2001:db8:1::1]:4711"), Dst: netip.MustParseAddrPort("[2001:db8:2::1]:443"), Protocol: 6,
		From: intercept.WAN, SYN: true, Peer: netip.MustParseAddr("2001:db8:1::5"),
	}
	for _, state := range []intercept.ClusterState{intercept.Steady, intercept.SerialPartnerDown, intercept.ParallelPeerDown} {
		e.SetCluster(state)
		d := e.Decide(p)
		fmt.Printf("%s: %s, %s, header only %v\n", state, d.Action, d.Reason, d.HeaderOnly)
		e.End(d)
	}
	// Output:
	// steady: redirect, load-balance-rule, header only false
	// serial-partner-down: redirect, load-balance-rule, header only true
	// parallel-peer-down: pass-through, cluster-nonsteady, header only true
}
