package dataplane

// Device reads and writes packets in batches, in buffers the caller owns. Its shape is
// that of wireguard-go's tun.Device, so that devices need not import this package.
//
// A packet, as read or written, begins at offset of its buffer. What lies before offset
// depends on what else the device implements:
//
//	offset-Headroom      offset-12                  offset
//	|  interface index   |  virtio-net header       |  packet …
//	|  4 bytes, native   |  10 bytes, ends at       |
//	|  (Ported devices)  |  offset (Offloader)      |
//
// The caller passes an offset of at least [Headroom], and buffers with room for
// 65,535 bytes behind it (a super-packet) where the device is an [Offloader].
//
// One goroutine at a time calls Read and one calls Write; Close may be called from any.
type Device interface {
	// Read waits for at least one packet, fills bufs[i][offset:], sets sizes[i] to the length
	// of the packet alone (without anything before offset), and returns how many packets it
	// read, at most len(bufs). A packet that does not fit is dropped and counted by the
	// device, never cut. After Close it returns an error that wraps os.ErrClosed.
	Read(bufs [][]byte, sizes []int, offset int) (n int, err error)
	// Write sends bufs[i][offset:len(bufs[i])] and returns how many of the packets it has
	// taken; the order is kept. An error belongs to bufs[n]: the caller counts that packet as
	// lost and goes on with the next one, unless the error wraps os.ErrClosed. The bytes
	// before offset are the device's to read and to scribble on; the packet itself is not
	// changed. Write does not keep the buffers.
	Write(bufs [][]byte, offset int) (n int, err error)
	// BatchSize is the number of buffers that suits one Read; it never changes.
	BatchSize() int
	// Close makes Read and Write return, now and later.
	Close() error
}

// Headroom is the least offset at which a Plane reads and writes packets: room for what
// devices put before a packet.
const Headroom = 16

// Offloader is implemented by a Device whose buffers carry a virtio-net header before each
// packet, in both directions, so that super-packets (GSO) and partial checksums
// stay as they are. VirtioHeader returns its length: 10 (struct virtio_net_hdr), or 0 for none.
// The header begins at offset-10, its integers are little-endian on every machine this is used on
// (native order, as the kernel's legacy header).
//
//	flags(1) gso_type(1) hdr_len(2) gso_size(2) csum_start(2) csum_offset(2)
//
// csum_start counts from the packet's first byte (offset), Ethernet header included where there is
// one. A Plane writes every packet with a valid header: all zero where nothing is left to do.
type Offloader interface {
	VirtioHeader() int
}

// Framer is implemented by a Device whose packets begin with an Ethernet header, tags
// included: a device that gets a VLAN tag beside the frame puts it back where it was, and
// adds its length to csum_start. Without it, or with Ethernet returning false, packets
// begin with the IP header.
type Framer interface {
	Ethernet() bool
}

// Indexed is implemented by a Device that is a queue of an interface: devices with the same number, unless that is
// 0, are queues of one, and what is to leave by one may as well leave by another.
type Indexed interface {
	Index() int // of the interface, 0 for none
}

// Ported is implemented by a Device that spans several interfaces. With Ports
// returning true, the four bytes at offset-Headroom hold the index of the interface
// a packet came from, and on Write the one it is to leave by.
type Ported interface {
	Ports() bool
}
