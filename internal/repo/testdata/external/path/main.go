// Command path uses package steering/path alone.
package main

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/lbprim/lbprim/steering/path"
)

func main() {
	e, err := path.New(&path.Config{
		Local: "office",
		Sites: []path.Site{
			{Name: "office", Uplinks: []path.Uplink{{Name: "mpls", Gateway: netip.MustParseAddr("10.1.0.1")}}},
			{Name: "dc", Networks: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
		},
		Balancers: []path.Balancer{{Name: "b1", Interfaces: []path.Interface{{Name: "e0", Prefix: netip.MustParsePrefix("10.1.0.10/24")}}}},
		Rules:     []path.Rule{{Name: "voice", Match: path.Match{DstSite: "dc"}, Uplinks: []string{"mpls"}}},
	}, 1, nil)
	if err != nil {
		log.Fatal(err)
	}
	d := e.Decide(&path.Packet{Src: netip.MustParseAddrPort("10.1.0.5:5060"), Dst: netip.MustParseAddrPort("10.2.0.5:5060"), Protocol: 17})
	fmt.Println("path:", d.Outcome, d.Channel.Uplink)
}
