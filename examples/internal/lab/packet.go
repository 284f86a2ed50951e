package lab

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Flags of a TCP segment.
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	flagPSH
	flagACK
)

const (
	protoTCP = 6
	protoUDP = 17
)

// segment is a TCP segment or a UDP datagram, with the addresses around it.
type segment struct {
	proto    byte
	src, dst netip.AddrPort
	seq, ack uint32
	flags    byte
	payload  []byte
}

// bytes builds the packet, with all checksums. A SYN says the MSS.
func (s segment) bytes() []byte {
	var transport []byte
	if s.proto == protoUDP {
		transport = make([]byte, 8, 8+len(s.payload))
		binary.BigEndian.PutUint16(transport[4:], uint16(8+len(s.payload)))
	} else {
		transport = make([]byte, 20, 24+len(s.payload))
		binary.BigEndian.PutUint32(transport[4:], s.seq)
		binary.BigEndian.PutUint32(transport[8:], s.ack)
		transport[13] = s.flags
		binary.BigEndian.PutUint16(transport[14:], window)
		if s.flags&flagSYN != 0 {
			transport = append(transport, 2, 4, mss>>8, mss&0xff)
		}
		transport[12] = byte(len(transport) / 4 << 4)
	}
	binary.BigEndian.PutUint16(transport, s.src.Port())
	binary.BigEndian.PutUint16(transport[2:], s.dst.Port())
	transport = append(transport, s.payload...)
	c := ^sum(transport, pseudo(s.src.Addr(), s.dst.Addr(), s.proto, len(transport)))
	if s.proto == protoUDP && c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(transport[checksumAt(s.proto):], c)

	var b []byte
	if s.src.Addr().Is4() {
		b = make([]byte, 20, 20+len(transport))
		b[0], b[8], b[9] = 0x45, 64, s.proto
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(transport)))
		b[6] = 0x40 // don't fragment
		copy(b[12:], s.src.Addr().AsSlice())
		copy(b[16:], s.dst.Addr().AsSlice())
		binary.BigEndian.PutUint16(b[10:], ^sum(b, 0))
	} else {
		b = make([]byte, 40, 40+len(transport))
		b[0], b[6], b[7] = 0x60, s.proto, 64
		binary.BigEndian.PutUint16(b[4:], uint16(len(transport)))
		copy(b[8:], s.src.Addr().AsSlice())
		copy(b[24:], s.dst.Addr().AsSlice())
	}
	return append(b, transport...)
}

var (
	errDamaged = errors.New("damaged packet")
	errForeign = errors.New("neither TCP nor UDP")
)

// parse reads a packet back and verifies every length and checksum in it.
func parse(b []byte) (s segment, err error) {
	var src, dst netip.Addr
	var t []byte
	switch {
	case len(b) >= 20 && b[0] == 0x45:
		if n := int(binary.BigEndian.Uint16(b[2:])); n < 20 || n != len(b) || sum(b[:20], 0) != 0xffff {
			return s, errDamaged
		}
		s.proto = b[9]
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		t = b[20:]
	case len(b) >= 40 && b[0]>>4 == 6:
		if int(binary.BigEndian.Uint16(b[4:])) != len(b)-40 {
			return s, errDamaged
		}
		s.proto = b[6]
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		t = b[40:]
	default:
		return s, errDamaged
	}
	header := 8
	switch {
	case s.proto != protoTCP && s.proto != protoUDP:
		return s, errForeign
	case len(t) < 8 || s.proto == protoTCP && len(t) < 20:
		return s, errDamaged
	case s.proto == protoTCP:
		header = int(t[12]>>4) * 4
		s.seq, s.ack, s.flags = binary.BigEndian.Uint32(t[4:]), binary.BigEndian.Uint32(t[8:]), t[13]
	}
	if header > len(t) || sum(t, pseudo(src, dst, s.proto, len(t))) != 0xffff {
		return s, errDamaged
	}
	s.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(t))
	s.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(t[2:]))
	s.payload = t[header:]
	return s, nil
}

func checksumAt(proto byte) int {
	if proto == protoUDP {
		return 6
	}
	return 16
}

// pseudo is the sum over the pseudo header (RFC 9293, section 3.1; RFC 8200, section 8.1).
func pseudo(src, dst netip.Addr, proto byte, length int) uint32 {
	n := uint32(proto) + uint32(length)
	n += uint32(sum(src.AsSlice(), 0))
	return n + uint32(sum(dst.AsSlice(), 0))
}

// sum is the ones' complement sum of RFC 1071.
func sum(b []byte, n uint32) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		n += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		n += uint32(b[0]) << 8
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return uint16(n)
}

// ends returns the addresses of a packet without looking further.
func ends(b []byte) (src, dst netip.Addr, ok bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), true
	case len(b) >= 40 && b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), true
	}
	return src, dst, false
}
