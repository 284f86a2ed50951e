package afpacket

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is a ring of frames that the kernel fills (TPACKET_V2 of Documentation/networking/packet_mmap.rst). A frame too long for its
// place waits in the socket's receive buffer as well, whole; its place in the ring says when its turn has come. The zero ring is none.
//
// A place is
//
//	struct tpacket2_hdr 32 | struct sockaddr_ll 20 | … | virtio-net header 10 | frame, at tp_mac
type ring struct {
	frames []byte
	next   int // the place that is filled next
	empty  uint8

	used  bool   // since unstick looked
	drops uint64 // of the socket, when it did
}

const (
	ringFrame = 2048
	ringBlock = 1 << 16

	// Within struct tpacket2_hdr.
	ringStatus  = 0
	ringLen     = 4
	ringSnapLen = 8
	ringMAC     = 12
	ringTCI     = 24
	ringTPID    = 26
	ringPktType = 32 + 10 // of struct sockaddr_ll
)

// open has the kernel make a ring of about that many bytes, before the socket is bound.
func (r *ring) open(fd, size int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_COPY_THRESH, 1); err != nil {
		return err
	}
	blocks := max(size/ringBlock, 1)
	req := unix.TpacketReq{Block_size: ringBlock, Block_nr: uint32(blocks), Frame_size: ringFrame, Frame_nr: uint32(blocks * ringBlock / ringFrame)}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return err
	}
	b, err := unix.Mmap(fd, 0, blocks*ringBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		// Without its memory the ring would swallow what comes.
		_ = unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{})
		return err
	}
	*r = ring{frames: b}
	return nil
}

func (r *ring) close() {
	if r.frames != nil {
		_ = unix.Munmap(r.frames)
		r.frames = nil
	}
}

// status is shared with the kernel: until it says that a place is the user's, nothing else there may be read, and once it is the
// kernel's again, nothing written.
func (r *ring) status(place int) *uint32 {
	return (*uint32)(unsafe.Pointer(&r.frames[place*ringFrame+ringStatus]))
}

func (r *ring) places() int { return len(r.frames) / ringFrame }

// after returns the place k places behind another one.
func (r *ring) after(place, k int) int {
	if place += k; place >= r.places() {
		place -= r.places()
	}
	return place
}

// release gives the next n places back to the kernel.
func (r *ring) release(n int) {
	for range n {
		atomic.StoreUint32(r.status(r.next), unix.TP_STATUS_KERNEL)
		r.next = r.after(r.next, 1)
	}
}

// fromRing reads what the ring has, in the order in which it came.
func (p *port) fromRing(bufs [][]byte, offset int, c *counters) (n int, errno unix.Errno) {
	r := &p.ring
	for n < len(bufs) {
		status := atomic.LoadUint32(r.status(r.next))
		if status&unix.TP_STATUS_USER == 0 {
			break
		}
		if status&unix.TP_STATUS_COPY != 0 {
			k, errno := p.whole(bufs[n:], offset, p.in.arrived[n:])
			if n += k; errno != 0 {
				return n, errno
			}
			continue
		}
		h := r.frames[r.next*ringFrame : (r.next+1)*ringFrame]
		mac, have := int(binary.NativeEndian.Uint16(h[ringMAC:])), int(binary.NativeEndian.Uint32(h[ringSnapLen:]))
		a := p.about(h)
		a.lost = have < a.length || mac < virtioLen || mac+have > ringFrame // the receive buffer had no room for the whole
		if !a.lost {
			copy(bufs[n][offset-virtioLen:], h[mac-virtioLen:mac+have])
		}
		p.in.arrived[n] = a
		n++
		r.release(1)
	}
	if n == 0 {
		// An empty ring says nothing of the interface; so ask now and then.
		if r.empty++; r.empty == 0 {
			if p.failed() {
				return 0, unix.ENETDOWN
			}
			p.unstick(c)
		}
	}
	r.used = r.used || n > 0
	return n, 0
}

// unstick gives a ring up in which nothing can arrive any more. The kernel takes a place before it makes the virtio-net header, and
// where it cannot, as for super-packets of SCTP, it neither fills the place nor leaves it: from then on it drops all frames. Which shows by drops although
// the ring is empty, and has been. System calls, which then serve, only fail for such a frame.
func (p *port) unstick(c *counters) {
	r := &p.ring
	if r.frames == nil {
		return
	}
	drops, used := p.countDrops(c), r.used
	grown := drops != r.drops
	r.drops, r.used = drops, false
	if grown && !used && atomic.LoadUint32(r.status(r.next))&unix.TP_STATUS_USER == 0 {
		r.close()
		_ = unix.SetsockoptTpacketReq(p.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{})
	}
}

// about is what the header of a place says of its frame.
func (p *port) about(h []byte) arrived {
	status := binary.NativeEndian.Uint32(h[ringStatus:])
	a := arrived{length: int(binary.NativeEndian.Uint32(h[ringLen:])), kind: h[ringPktType]}
	if status&unix.TP_STATUS_VLAN_VALID != 0 {
		a.tagged, a.tci, a.tpid = true, binary.NativeEndian.Uint16(h[ringTCI:]), 0x8100
		if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			a.tpid = binary.NativeEndian.Uint16(h[ringTPID:])
		}
	}
	return a
}

// whole reads frames that did not fit into their places, as many as follow one another, from the socket.
func (p *port) whole(bufs [][]byte, offset int, to []arrived) (int, unix.Errno) {
	r := &p.ring
	k := 1
	for most := min(len(bufs), r.places()); k < most; k++ {
		const both = unix.TP_STATUS_USER | unix.TP_STATUS_COPY
		if atomic.LoadUint32(r.status(r.after(r.next, k)))&both != both {
			break
		}
	}
	got, errno := p.fromSocket(bufs[:k], offset, to)
	if errno != 0 {
		return 0, errno
	}
	if got == 0 { // which the kernel does not let happen; else the ring would stand still
		got, to[0] = 1, arrived{lost: true}
	}
	for i := range got {
		place := r.after(r.next, i)
		to[i].kind = r.frames[place*ringFrame+ringPktType] // the socket does not know it
	}
	r.release(got)
	return got, 0
}
