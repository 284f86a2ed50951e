package intercept_test

import (
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

func ExampleEngine() {
	e, err := intercept.New(&intercept.Config{
		Nodes: []intercept.Node{
			{Node: steering.Node{Name: "sh1", Capacity: 100}},
			{Node: steering.Node{Name: "sh2", Capacity: 100}, Side: intercept.WAN},
		},
		InPath: []intercept.InPathRule{
			{Name: "no telnet", Match: intercept.Match{DstPort: intercept.Port(23)}, Action: intercept.Deny},
		},
		Rules: []intercept.Rule{
			{Name: "web", Match: intercept.Match{DstPort: intercept.Port(80)}, Targets: []string{"sh2"}},
		},
		Services: []intercept.Row{
			{Name: "dns", B: intercept.Endpoint{Ports: intercept.Port(53)}, Protocol: 17, Targets: []string{"sh1"}},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range []intercept.Packet{
		{Src: netip.MustParseAddrPort("10.1.1.1:4711"), Dst: netip.MustParseAddrPort("10.2.2.2:23"), Protocol: 6, SYN: true},
		{Src: netip.MustParseAddrPort("10.1.1.1:4712"), Dst: netip.MustParseAddrPort("10.2.2.2:80"), Protocol: 6, SYN: true},
		{Src: netip.MustParseAddrPort("10.2.2.2:53"), Dst: netip.MustParseAddrPort("10.1.1.1:999"), Protocol: 17},
		{Src: netip.MustParseAddrPort("10.1.1.1:999"), Dst: netip.MustParseAddrPort("10.2.2.2:123"), Protocol: 17},
	} {
		fmt.Println(e.Explain(&p))
		d := e.Decide(&p)
		// … store the flow; when it ends:
		e.End(d)
	}
	// Output:
	// deny: in-path-rule "no telnet"
	//   in-path rule 0 "no telnet": deny
	// redirect: load-balance-rule "web", node 2 on the wan side
	//   in-path rule 0 "no telnet": another destination port
	//   no in-path rule: redirect
	//   target "sh2": normal pressure, 0 connections of this peer, 0 sessions of 100
	// redirect: network-services "dns", node 1 on the lan side
	//   network services row 0 "dns": node "sh1" by its buckets
	// pass-through: no-row
	//   no row of the network services table
}
