package afpacket_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/lbprim/lbprim/dataplane/afpacket"
)

// All faults come at once, before anything is opened.
func ExampleConfig() {
	_, err := afpacket.Open(&afpacket.Config{Interfaces: []string{"eth0", "eth0"}, BatchSize: 5000, SendBuffer: -1})
	fmt.Println(err)
	// Output:
	// afpacket: config: Interfaces[1]: "eth0": named twice
	// afpacket: config: BatchSize: 5000: want 1 to 1024, or 0 for 64
	// afpacket: config: SendBuffer: -1: want 1 to 1073741824, or 0 for 8388608
}

// A virtual address must not be an address of the host: its kernel would answer for it, too.
func ExampleConflict() {
	err := afpacket.Preflight(nil, []netip.Addr{netip.MustParseAddr("127.0.0.1")})
	var c *afpacket.Conflict
	if errors.As(err, &c) {
		fmt.Println(c.Interface)
		fmt.Println(c.What)
		fmt.Println("fix:", c.Fix)
	}
	// Output:
	// lo
	// VIP 127.0.0.1 is an address of this host, whose kernel would answer for it
	// fix: ip addr del 127.0.0.1 dev lo
}

// Opening takes CAP_NET_RAW; without it the error says so.
func ExampleDevice() {
	device, err := afpacket.Open(&afpacket.Config{Interfaces: []string{"lo"}})
	if errors.Is(err, os.ErrPermission) {
		fmt.Println("open or forbidden")
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	var first afpacket.Interface = device.Interfaces()[0] //nolint:staticcheck // the name of the type is what is shown
	_ = device.Close()
	if _, err = device.Read(make([][]byte, 1), make([]int, 1), 16); errors.Is(err, os.ErrClosed) && first.Name == "lo" && first.Index != 0 {
		fmt.Println("open or forbidden")
	}
	// Output: open or forbidden
}

// Where the kernel would send a packet. Reading its tables needs no privilege.
func ExampleHops() {
	hops, err := afpacket.NewHops()
	if err != nil {
		fmt.Println(err)
		return
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		fmt.Println(err)
		return
	}
	var hop afpacket.Hop
	hop, ok := hops.OnLink(uint32(lo.Index), netip.MustParseAddr("127.0.0.1"))
	fmt.Println("a frame can go there:", ok, "to the MAC", net.HardwareAddr(hop.Dst[:]))

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	fmt.Println(hops.Run(ctx)) // follows the kernel's changes, and closes hops at the end
	// Output:
	// a frame can go there: false to the MAC 00:00:00:00:00:00
	// context canceled
}

// Why the kernel did not take a frame.
func ExampleSendError() {
	var err error = &afpacket.SendError{Interface: 3, Err: syscall.ENOBUFS}
	fmt.Println(err)
	fmt.Println("the queue is full:", errors.Is(err, syscall.ENOBUFS))
	// Output:
	// afpacket: write to interface 3: no buffer space available
	// the queue is full: true
}

// What was lost between two looks at a Device's counts.
func ExampleStats() {
	lost := func(before, now afpacket.Stats) (in, out uint64) {
		return now.KernelDrop - before.KernelDrop + now.Truncated - before.Truncated, now.SendFailed - before.SendFailed
	}
	before := afpacket.Stats{Received: 1000, Sent: 990, KernelDrop: 3, SendFailed: 10, QueueFull: 10}
	now := afpacket.Stats{Received: 5000, Sent: 4988, KernelDrop: 8, SendFailed: 12, QueueFull: 11, Down: 1}
	in, out := lost(before, now)
	fmt.Println(in, "frames were not read in time,", out, "not sent")
	// Output: 5 frames were not read in time, 2 not sent
}
