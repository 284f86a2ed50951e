// Command dataplane uses package dataplane, and with it the primitives it wires.
package main

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

func main() {
	pool, err := steering.NewPool(nil, steering.Node{Name: "web1", Addr: netip.MustParseAddrPort("10.0.0.1:8080")})
	if err != nil {
		log.Fatal(err)
	}
	match, err := policy.ParseMatch("192.0.2.80 tcp/80")
	if err != nil {
		log.Fatal(err)
	}
	table, err := policy.Compile(nil, policy.Rule[*dataplane.Service]{Name: "web", Match: match, Value: &dataplane.Service{Name: "web", Pool: pool}})
	if err != nil {
		log.Fatal(err)
	}
	plane, err := dataplane.New(&dataplane.Config{Policies: table, MaxSessions: 1024, MaxAssociations: 1024})
	if err != nil {
		log.Fatal(err)
	}
	defer plane.Close()
	why, err := plane.ExplainFlow(6, netip.MustParseAddrPort("198.51.100.7:4711"), netip.MustParseAddrPort("192.0.2.80:80"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("dataplane:", why.Verdict, why.Service, why.Node)
}
