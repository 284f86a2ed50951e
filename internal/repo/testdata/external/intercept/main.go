// Command intercept uses package steering/intercept alone.
package main

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

func main() {
	e, err := intercept.New(&intercept.Config{
		Nodes: []intercept.Node{{Node: steering.Node{Name: "sh1", Capacity: 100}}},
		Rules: []intercept.Rule{{Name: "web", Match: intercept.Match{DstPort: intercept.Port(80)}, Targets: []string{"sh1"}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	d := e.Decide(&intercept.Packet{Src: netip.MustParseAddrPort("10.1.1.1:4711"), Dst: netip.MustParseAddrPort("10.2.2.2:80"), Protocol: 6, SYN: true})
	fmt.Println("intercept:", d.Action)
	e.End(d)
}
