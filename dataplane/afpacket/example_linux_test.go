package afpacket_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/dataplane/afpacket"
)

// A balancer on the interfaces to clients and to servers: it answers ARP and neighbour discovery for a virtual address, and asks the kernel's
// tables where to send what. (It needs root, so that this is only compiled.)
func Example() {
	interfaces, vip := []string{"eth0", "eth1"}, netip.MustParseAddr("192.0.2.80")
	if err := afpacket.Preflight(interfaces, []netip.Addr{vip}); err != nil {
		var c *afpacket.Conflict
		if errors.As(err, &c) {
			fmt.Println(c.Interface, c.What, "fix:", c.Fix)
		}
		return
	}
	device, err := afpacket.Open(&afpacket.Config{Interfaces: interfaces})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer device.Close()
	if err := device.SetVIPs(vip); err != nil {
		fmt.Println(err)
		return
	}
	hops, err := afpacket.NewHops()
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() { _ = hops.Run(context.Background()) }()
	for _, i := range device.Interfaces() {
		fmt.Println(i.Name, i.Index, i.MAC)
	}
	bufs, sizes := make([][]byte, device.BatchSize()), make([]int, device.BatchSize())
	for i := range bufs {
		bufs[i] = make([]byte, 2048)
	}
	n, err := device.Read(bufs, sizes, 16) // frames from bufs[i][16] on
	if err != nil {
		fmt.Println(err)
		return
	}
	hop, ok := hops.Lookup(netip.MustParseAddr("10.0.0.11"))
	if !ok {
		return // nobody has answered there yet
	}
	for i := range n {
		copy(bufs[i][16:], hop.Dst[:])
		copy(bufs[i][22:], hop.Src[:])
		bufs[i] = bufs[i][:16+sizes[i]]
	}
	_, err = device.Write(bufs[:n], 16)
	var refused *afpacket.SendError
	if errors.As(err, &refused) {
		fmt.Println("interface", refused.Interface, "did not take a frame:", refused.Err)
	}
	var st afpacket.Stats = device.Stats() //nolint:staticcheck // the name of the type is what is shown
	fmt.Printf("%+v\n", st)
}
