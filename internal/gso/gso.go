// Package gso splits super-packets into single ones, for a device whose kernel does not take them whole: some kernels
// refuse odd segment sizes with EINVAL.
package gso

import (
	"encoding/binary"

	"github.com/lbprim/lbprim/internal/wire"
)

// HeaderLen is the length of struct virtio_net_hdr: flags(1) gso_type(1) hdr_len(2) gso_size(2) csum_start(2) csum_offset(2).
const HeaderLen = 10

const (
	typeTCPv4 = 1
	typeTCPv6 = 4
	typeUDP   = 5
	typeECN   = 0x80 // flag
)

// Splitter holds one super-packet at a time. The zero Splitter is ready for use.
type Splitter struct {
	v     wire.View
	frame []byte // up to the end of the packet
	l3    int
	size  int
}

// Begin looks at a packet and the virtio-net header before it, and returns into how many packets it falls; 0 where it is no
// super-packet, or one that cannot be split. frame must stay as it is until the last Put.
func (s *Splitter) Begin(header, frame []byte, ethernet bool) (n int) {
	*s = Splitter{size: int(binary.NativeEndian.Uint16(header[4:]))}
	proto := uint8(wire.ProtoTCP)
	version := uint8(4)
	switch header[1] &^ typeECN {
	case typeTCPv4:
	case typeTCPv6:
		version = 6
	case typeUDP:
		proto, version = wire.ProtoUDP, 0
	default:
		return 0
	}
	if ethernet {
		f, status := wire.ParseEthernet(frame)
		if status != wire.OK {
			return 0
		}
		s.l3 = f.L3
	}
	if s.size == 0 || wire.Parse(frame[s.l3:], &s.v) != wire.OK || s.v.Proto != proto || version != 0 && s.v.Version != version ||
		s.v.SumOff == 0 || s.v.Mark&wire.Fragment != 0 {
		return 0
	}
	s.frame = frame[:s.l3+int(s.v.End)]
	return s.v.Segments(s.size)
}

// Room is how long a packet that Put writes can be.
func (s *Splitter) Room() int { return s.l3 + int(s.v.Payload) + min(s.size, s.v.PayloadLen()) }

// Put writes the i-th packet, complete with its checksums, to dst, and returns its length.
func (s *Splitter) Put(dst []byte, i int) int {
	copy(dst, s.frame[:s.l3])
	return s.l3 + s.v.PutSegment(dst[s.l3:], s.frame[s.l3:], i, s.size)
}
