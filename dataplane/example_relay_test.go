package dataplane_test

import (
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/dataplane"
)

// What a Relay lacks is said all at once, before any packet is sent.
func ExampleRelay() {
	one := netip.MustParseAddr("192.0.2.11")
	_, err := dataplane.New(&dataplane.Config{Addrs: []netip.Addr{one}, Relay: &dataplane.Relay{MTU: 100}})
	fmt.Println(err)
	plane, err := dataplane.New(&dataplane.Config{
		Addrs: []netip.Addr{one}, Peers: blackboard{},
		Relay: &dataplane.Relay{From: []netip.Prefix{netip.MustParsePrefix("192.0.2.8/29")}, Key: 7},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("relaying", plane.Close())
	// Output:
	// dataplane: invalid configuration: Config.Peers = <nil>: want the other balancers, with Relay
	// dataplane: invalid configuration: Relay.From = none: want the addresses of the balancers
	// dataplane: invalid configuration: Relay.Key = 0: want 1 to 4294967295
	// dataplane: invalid configuration: Relay.MTU = 100: want 576 to 65535, or 0 for 1500
	// relaying <nil>
}
