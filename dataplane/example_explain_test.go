package dataplane_test

import (
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

func newPlane() *dataplane.Plane {
	pool, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin}, steering.Node{Name: "web1", Addr: netip.MustParseAddrPort("10.0.0.11:8080")})
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.Compile(nil, policy.Rule[*dataplane.Service]{
		Name:  "web",
		Match: policy.Match{Dst: netip.MustParsePrefix("192.0.2.80/32"), Protocol: policy.TCP, DstPort: policy.Port(80)},
		Value: &dataplane.Service{Name: "web", Pool: pool},
	})
	if err != nil {
		log.Fatal(err)
	}
	plane, err := dataplane.New(&dataplane.Config{Policies: policies})
	if err != nil {
		log.Fatal(err)
	}
	return plane
}

// Why would this connection go where it goes?
func ExamplePlane_ExplainFlow() {
	plane := newPlane()
	defer plane.Close()
	e, err := plane.ExplainFlow(6, netip.MustParseAddrPort("198.51.100.7:40000"), netip.MustParseAddrPort("192.0.2.80:80"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.Verdict, e.Service, e.Node, e.Out)
	e, _ = plane.ExplainFlow(6, netip.MustParseAddrPort("198.51.100.7:40000"), netip.MustParseAddrPort("192.0.2.80:22"))
	fmt.Println(e.Verdict, e.Reason)
	for _, step := range e.Steps {
		var s dataplane.Step = step //nolint:staticcheck // the name of the type is what is shown
		fmt.Println(s.Stage)
	}
	// Output:
	// forwarded web web1 tcp 198.51.100.7:40000 > 10.0.0.11:8080
	// dropped no-policy
	// policy
	// drop
}

// A packet in, a packet out, without a device.
func ExamplePlane_Process() {
	plane := newPlane()
	defer plane.Close()
	packet := []byte{
		0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0x55, 0xd0, 198, 51, 100, 7, 192, 0, 2, 80, // IPv4
		8, 0, 0xf7, 0xfd, 0, 1, 0, 1, // an echo request to the virtual address
	}
	buf := append(make([]byte, dataplane.ReadOffset), packet...)
	verdicts := make([]dataplane.Verdict, 1)
	out := plane.Process(time.Now(), [][]byte{buf}, []int{len(packet)}, dataplane.ReadOffset, verdicts)
	reply := out[0][dataplane.Headroom:]
	fmt.Println(verdicts[0], netip.AddrFrom4([4]byte(reply[12:16])), "answers", netip.AddrFrom4([4]byte(reply[16:20])))
	fmt.Println(plane.Stats().Pings, "ping")
	// Output:
	// answered 192.0.2.80 answers 198.51.100.7
	// 1 ping
}
