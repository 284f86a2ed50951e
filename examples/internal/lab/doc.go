// Package lab is a small network to show load balancing on: one client with many addresses, a
// balancer, and servers, which reach each other only through the balancer.
//
//	client ── balancer ──┬── server 1
//	             ╎       ├── server 2
//	          device     └── …
//
// [Kernel] makes it of network namespaces joined by virtual Ethernet, and the device is a TUN
// interface in the balancer's: every byte goes through the kernel's own TCP. [Memory]
// makes it of goroutines with a small TCP and UDP of their own, which build real packets, verify
// every checksum of those they get, and exchange them over an in-memory device. Programs that use
// [Host] run on both unchanged.
//
// [Star] is another network, of hosts that reach each other through a router, for programs that are about sockets.
//
// It is glue for the examples and no part of the library; alone among them it borrows the
// namespaces of this repository's tests (internal/netns).
package lab
