package probe

import (
	"encoding/binary"
	"net/netip"
)

// A TCP segment (RFC 9293 section 3.1) as far as a half-open probe needs it:
//
//	 0  source port | destination port
//	 4  sequence number
//	 8  acknowledgment number
//	12  data offset (4 bits) | reserved | flags | window
//	16  checksum | urgent pointer
//	20  options
const (
	tcpHeader = 20

	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

// appendSegment appends a segment without data.
func appendSegment(b []byte, src, dst netip.AddrPort, seq uint32, flags byte, options ...byte) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = append(b, byte((tcpHeader+len(options))/4)<<4, flags)
	b = binary.BigEndian.AppendUint16(b, 64240) // window
	b = append(b, 0, 0, 0, 0)
	b = append(b, options...)
	binary.BigEndian.PutUint16(b[at+16:], tcpChecksum(src.Addr(), dst.Addr(), b[at:]))
	return b
}

// tcpChecksum is that of the pseudo-header, of either family, and the segment.
func tcpChecksum(src, dst netip.Addr, segment []byte) uint16 {
	sum := uint32(len(segment)) + 6
	add := func(b []byte) {
		for ; len(b) >= 2; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	add(src.AsSlice())
	add(dst.AsSlice())
	add(segment)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// judgeSegment says whether b, a segment from dst to src, answers the SYN with
// sequence number seq: with SYN and ACK, or with RST, which refuses it.
func judgeSegment(b []byte, src, dst netip.AddrPort, seq uint32) (open, refused bool) {
	if len(b) < tcpHeader || binary.BigEndian.Uint16(b) != dst.Port() || binary.BigEndian.Uint16(b[2:]) != src.Port() {
		return false, false
	}
	flags := b[13]
	if flags&tcpACK == 0 || binary.BigEndian.Uint32(b[8:]) != seq+1 {
		return false, false
	}
	return flags&tcpSYN != 0 && flags&tcpRST == 0, flags&tcpRST != 0
}
