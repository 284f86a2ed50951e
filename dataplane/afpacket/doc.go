// Package afpacket is a device of Ethernet frames on one or several interfaces, by
// Linux packet sockets, without cgo.
//
// Frames are read from a ring that is shared with the kernel (packet(7), PACKET_RX_RING), super-packets by recvmmsg, and written by
// sendmmsg, each with a virtio-net header in front (PACKET_VNET_HDR), so that super-packets and unfinished checksums pass
// through whole. A VLAN tag that the kernel took off the frame is put back. Frames that
// this host sent, and frames for another host's MAC, are never delivered.
//
// A [Device] answers ARP and Neighbor Discovery for the virtual addresses it is given
// ([Device.SetVIPs]) and announces them, since no interface of the host carries them.
//
// [OpenQueues] opens the same interfaces several times; the kernel gives all frames of a client's endpoint, both ways, to
// one queue.
//
// The kernel sees every frame as well. [Preflight] finds what would make it answer or forward the
// same packets, or hide them, and says which command mends it.
//
// One goroutine may call Read and another Write; all other methods may be called from any.
// On other systems than Linux, [Open] returns an error that wraps errors.ErrUnsupported.
package afpacket
