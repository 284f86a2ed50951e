// Command flowshare uses package steering/cluster/flowshare alone: it comes without a membership protocol and its modules.
package main

import (
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

func main() {
	flow := flowshare.MakeFlow(6, netip.MustParseAddrPort("198.51.100.7:4711"), netip.MustParseAddrPort("192.0.2.80:80"))
	holders := flowshare.NewPlacement(nil, []string{"lb1", "lb2", "lb3"}, 2).Holders(flowshare.SlotOf(flow))
	fmt.Println("flowshare:", flow, "has", len(holders), "holders")
}
