package dataplane

import "encoding/binary"

// The virtio-net header before a packet (struct virtio_net_hdr of the Linux ABI).
const (
	virtioLen       = 10
	virtioNeedsCsum = 1

	gsoNone  = 0
	gsoTCPv4 = 1
	gsoUDP   = 3
	gsoTCPv6 = 4
	gsoUDPL4 = 5
	gsoECN   = 0x80
)

// offload is a virtio-net header, read.
type offload struct {
	flags, gsoType    uint8
	hdrLen, gsoSize   uint16
	csumStart, csumAt uint16
}

func readOffload(h []byte) (o offload) {
	_ = h[9]
	return offload{
		flags: h[0], gsoType: h[1], hdrLen: binary.NativeEndian.Uint16(h[2:]), gsoSize: binary.NativeEndian.Uint16(h[4:]),
		csumStart: binary.NativeEndian.Uint16(h[6:]), csumAt: binary.NativeEndian.Uint16(h[8:]),
	}
}

func (o *offload) write(h []byte) {
	_ = h[9]
	h[0], h[1] = o.flags, o.gsoType
	binary.NativeEndian.PutUint16(h[2:], o.hdrLen)
	binary.NativeEndian.PutUint16(h[4:], o.gsoSize)
	binary.NativeEndian.PutUint16(h[6:], o.csumStart)
	binary.NativeEndian.PutUint16(h[8:], o.csumAt)
}

// partial reports whether the checksum at sumAt, counted like csum_start, is left to be
// completed.
func (o *offload) partial(sumAt int) bool {
	return o.flags&virtioNeedsCsum != 0 && int(o.csumStart)+int(o.csumAt) == sumAt
}
