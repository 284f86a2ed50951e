package tun_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/lbprim/lbprim/dataplane/tun"
)

// All faults come at once, before anything is opened.
func ExampleConfig() {
	_, err := tun.Open(&tun.Config{Name: "much-too-long-a-name", MTU: 576, Routes: []netip.Prefix{{}}})
	fmt.Println(err)
	// Output:
	// tun: Name "much-too-long-a-name": an interface name has 1 to 15 bytes, no slash and no space
	// tun: MTU 576: must be 1280 to 65521
	// tun: Routes[0]: the zero Prefix is no destination
}

// The zero Device is closed, as one that was open is after Close.
func ExampleDevice() {
	var d tun.Device
	bufs, sizes := [][]byte{make([]byte, 65535+16)}, make([]int, 1)
	_, err := d.Read(bufs, sizes, 16)
	fmt.Println(errors.Is(err, os.ErrClosed))
	_, err = d.Write(bufs, 16)
	fmt.Println(errors.Is(err, os.ErrClosed))
	fmt.Println(d.Close(), d.Stats().Read)
	// Output:
	// true
	// true
	// <nil> 0
}

// What the kernel leaves to the program decides how large the buffers have to be.
func ExampleOffload() {
	room := func(left tun.Offload, mtu int) int {
		if left.TCP || left.UDP {
			return 65535 // super-packets
		}
		return mtu
	}
	fmt.Println(room(tun.Offload{Checksum: true, TCP: true, UDP: true}, 1500))
	fmt.Println(room(tun.Offload{}, 1500)) // Config.NoOffload
	// Output:
	// 65535
	// 1500
}

// What was lost between two looks at a Device's counts.
func ExampleStats() {
	lost := func(s tun.Stats) uint64 {
		return s.Oversized + s.Short + s.Again + s.NoBufs + s.Invalid + s.Down + s.Other
	}
	before := tun.Stats{Read: 1000, Written: 990, Again: 10}
	now := tun.Stats{Read: 5000, Written: 4985, Again: 12, Down: 3}
	fmt.Println(lost(now)-lost(before), "of", now.Read-before.Read)
	// Output: 5 of 4000
}
