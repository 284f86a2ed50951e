// Package tun is a balancer's device on Linux: a network interface whose packets a
// program reads and writes (/dev/net/tun), without Ethernet headers.
//
// # The model
//
// The kernel routes packets into the interface: those for the virtual addresses because of
// [Config.Routes], and the servers' answers, which must pass the balancer once more to get
// their virtual address back, because of [Config.Divert]. What the program writes comes
// out of the interface as if received there, and is routed on. The kernel has already
// decremented the TTL and chooses the next hop; the program only translates.
//
//	client ── c0 ┐ route VIP  ┌─ lb0 ─ Read
//	             ├── kernel ──┤
//	server ── e1 ┘ rule iif e1└─ lb0 ─ Write
//
// Packets may come from an address of this host itself, as the outer ones of tunnels do: the device is set to accept them
// (sysctl accept_local), which takes a /proc/sys that can be written.
//
// # Super-packets
//
// Each packet carries a virtio-net header in the ten bytes before it, so that the kernel hands
// over TCP and UDP data in pieces of up to 64 KiB (TSO, USO) whose checksums are not yet computed,
// and takes them back the same way. That is what makes a TUN device fast. A kernel that
// refuses an offload is asked for less; [Device.Offload] tells what was got.
//
// # Reading
//
// A read that finds nothing is repeated for a moment before the thread sleeps in poll(2),
// since sleeping and waking costs more than a packet. How long adapts to the traffic: an idle
// device sleeps at once and costs no CPU time. Readers should stay on their thread
// (runtime.LockOSThread): the descriptor never blocks, so nothing is handed over.
//
// # Concurrency
//
// A [Device] is one queue of an interface. One goroutine may read it while another
// writes it; different queues are independent. Close may be called by anyone, and ends a
// read that waits.
//
// On other systems than Linux, Open returns an error that wraps errors.ErrUnsupported. Opening a
// device needs CAP_NET_ADMIN in the user namespace that owns the network namespace.
package tun
