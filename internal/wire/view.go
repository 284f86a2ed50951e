package wire

import "encoding/binary"

// Mark is a set of facts about a packet.
type Mark uint16

// What a View may say of a packet.
const (
	Fragment   Mark = 1 << iota // first or later fragment; an atomic fragment is none
	LaterFrag                   // fragment without a transport header
	MoreFrags                   // fragment that is not the last one
	Ports                       // SrcPort and DstPort are set
	Routed                      // IPv6 routing header with segments left, or home address: an end is another than the header says
	Authentic                   // authentication header: addresses cannot be translated
	Options                     // IPv4 options or IPv6 extension headers
	ICMPError                   // ICMP or ICMPv6 error, which quotes a packet
	EchoAsk                     // echo request; SrcPort is its identifier, DstPort zero
	EchoAnswer                  // echo reply; DstPort is its identifier, SrcPort zero
	NoSum                       // UDP or UDP-Lite without a checksum
	Cut                         // quoted packet that goes on beyond the quotation
)

// View says where things lie in one IP packet. Offsets count from the packet's first byte.
// The zero View describes no packet; [Parse] fills it anew each time. A View has no
// pointers and may be copied.
type View struct {
	Version  uint8 // 4 or 6
	Proto    uint8 // of the upper layer, behind extension headers
	TCPFlags uint8
	Type     uint8 // ICMP type
	Code     uint8 // ICMP code
	srcOff   uint8 // of the source address; the destination follows it
	addrLen  uint8
	Mark     Mark

	SrcPort, DstPort uint16 // TCP, UDP, SCTP, UDP-Lite, DCCP; see EchoAsk for ICMP

	L4      uint32 // the upper-layer header; for a later fragment its payload
	Payload uint32 // behind the upper-layer header
	End     uint32 // of the packet by its own length; link padding lies behind it
	SumOff  uint32 // transport checksum; 0 where there is none (in this fragment)
	finalAt uint32 // final destination in a routing header; 0 if there is none
	homeAt  uint32 // home address in a destination options header; 0 if there is none

	FragOff uint32 // fragment offset in bytes
	FragID  uint32
	FragAt  uint32 // IPv6 fragment header, also of an atomic fragment; 0 if there is none
}

// maxExt bounds the extension headers of one packet; real chains have one or two, and
// RFC 8504 section 5.3 lets a host set such limits.
const maxExt = 10

// Src returns the source address as it stands in b.
func (v *View) Src(b []byte) []byte {
	return b[v.srcOff : v.srcOff+v.addrLen : v.srcOff+v.addrLen]
}

// Dst returns the destination address as it stands in b.
func (v *View) Dst(b []byte) []byte {
	o := v.srcOff + v.addrLen
	return b[o : o+v.addrLen : o+v.addrLen]
}

// FinalDst is [View.Dst], or the address that a routing header names as the last one. The
// pseudo-header contains that one (RFC 8200 section 8.1).
func (v *View) FinalDst(b []byte) []byte {
	if v.finalAt != 0 {
		return b[v.finalAt : v.finalAt+16 : v.finalAt+16]
	}
	return v.Dst(b)
}

// FinalSrc is [View.Src], or the home address of a mobile node, which the
// pseudo-header contains instead (RFC 6275 section 11.3.1).
func (v *View) FinalSrc(b []byte) []byte {
	if v.homeAt != 0 {
		return b[v.homeAt : v.homeAt+16 : v.homeAt+16]
	}
	return v.Src(b)
}

// Has reports whether all of m holds.
func (v *View) Has(m Mark) bool { return v.Mark&m == m }

// IsPing reports whether the packet is an echo request or reply.
func (v *View) IsPing() bool { return v.Mark&(EchoAsk|EchoAnswer) != 0 }

// PayloadLen is the number of bytes behind the upper-layer header.
func (v *View) PayloadLen() int { return int(v.End) - int(v.Payload) }

// Parse checks the packet in b, which begins with its IP header, and fills v. Bytes
// behind the packet's own length are ignored.
func Parse(b []byte, v *View) Status {
	if plain(b, v) {
		return OK
	}
	return parse(b, v, false)
}

// ParseQuoted is [Parse] for a packet quoted by an ICMP error: it may be cut anywhere behind
// the first 8 bytes of its transport header (RFC 792), and its lengths may exceed it.
func ParseQuoted(b []byte, v *View) Status { return parse(b, v, true) }

func parse(b []byte, v *View, quoted bool) Status {
	*v = View{}
	if len(b) < 20 {
		if len(b) > 0 && b[0]>>4 != 4 && b[0]>>4 != 6 {
			return BadVersion
		}
		return Short
	}
	switch b[0] >> 4 {
	case 4:
		return parse4(b, v, quoted)
	case 6:
		return parse6(b, v, quoted)
	}
	return BadVersion
}

//	0               1               2               3
//
// +-------+-------+---------------+-------------------------------+
// |Version|  IHL  |Type of Service|          Total Length         |
// +---------------+---------------+-----+-------------------------+
// |         Identification        |Flags|     Fragment Offset     |
// +---------------+---------------+-----+-------------------------+
// |  Time to Live |    Protocol   |        Header Checksum        |
// +---------------+---------------+-------------------------------+
// |            Source, Destination, Options (RFC 791)             |
func parse4(b []byte, v *View, quoted bool) Status {
	v.Version, v.srcOff, v.addrLen = 4, 12, 4
	hlen := uint32(b[0]&15) * 4
	total := uint32(binary.BigEndian.Uint16(b[2:]))
	if hlen < 20 {
		return BadHeader
	}
	if total < hlen {
		return BadLength
	}
	if total > uint32(len(b)) {
		if !quoted {
			return Short
		}
		total = uint32(len(b))
		v.Mark |= Cut
		if total < hlen {
			return Short
		}
	}
	if hlen > 20 {
		v.Mark |= Options
	}
	v.Proto, v.L4, v.Payload, v.End = b[9], hlen, hlen, total
	if v.Proto == ProtoAH {
		v.Mark |= Authentic
	}
	if ff := binary.BigEndian.Uint16(b[6:]); ff&0x3fff != 0 {
		v.FragID = uint32(binary.BigEndian.Uint16(b[4:]))
		if s := v.fragment(uint32(ff&0x1fff)*8, ff&0x2000 != 0); s != OK {
			return s
		}
		if v.Mark&LaterFrag != 0 {
			return OK
		}
	}
	return v.upper(b[:total], quoted)
}

// fragment notes a fragment's place and checks what can be checked of it alone.
func (v *View) fragment(off uint32, more bool) Status {
	v.FragOff = off
	v.Mark |= Fragment
	n := v.End - v.L4
	if off > 0 {
		v.Mark |= LaterFrag
	}
	if more {
		v.Mark |= MoreFrags
		if v.Mark&Cut == 0 && n%8 != 0 {
			return BadFragment
		}
	}
	if off+n > 65535 || n == 0 && v.Mark&Cut == 0 {
		return BadFragment
	}
	return OK
}

// +-------+---------------+---------------------------------------+
// |Version| Traffic Class |              Flow Label               |
// +-------+-------+-------+-------+---------------+---------------+
// |         Payload Length        |  Next Header  |   Hop Limit   |
// +-------------------------------+---------------+---------------+
// |                 Source, Destination (RFC 8200)                |
func parse6(b []byte, v *View, quoted bool) Status {
	v.Version, v.srcOff, v.addrLen = 6, 8, 16
	if len(b) < 40 {
		return Short
	}
	end := 40 + uint32(binary.BigEndian.Uint16(b[4:]))
	if end > uint32(len(b)) {
		if !quoted {
			return Short
		}
		end = uint32(len(b))
		v.Mark |= Cut
	}
	v.Proto, v.L4, v.Payload, v.End = b[6], 40, 40, end
	switch v.Proto {
	case ProtoTCP, ProtoUDP, ProtoICMPv6:
	default:
		s := v.extensions(b[:end])
		if s != OK || v.Mark&LaterFrag != 0 {
			return s
		}
	}
	return v.upper(b[:end], quoted)
}

// extensions walks the extension headers of b and leaves Proto and L4 at the upper layer.
func (v *View) extensions(b []byte) Status {
	n := 0
	for at := uint32(40); ; n++ {
		size := uint32(0)
		switch v.Proto {
		case ProtoHopByHop, ProtoRouting, ProtoDestOpts:
			if v.Proto == ProtoHopByHop && n > 0 {
				return BadExt // RFC 8200 section 4.1: only first
			}
			if at+8 > uint32(len(b)) {
				return v.cutExt()
			}
			size = 8 + uint32(b[at+1])*8
		case ProtoAH:
			if at+8 > uint32(len(b)) {
				return v.cutExt()
			}
			size = 8 + uint32(b[at+1])*4
			v.Mark |= Authentic
		case ProtoFragment:
			size = 8
		default:
			return OK
		}
		if n == maxExt {
			return BadExt
		}
		if at+size > uint32(len(b)) {
			return v.cutExt()
		}
		v.Mark |= Options
		next := b[at]
		switch v.Proto {
		case ProtoRouting:
			if s := v.routing(b, at, size); s != OK {
				return s
			}
		case ProtoDestOpts:
			v.home(b[:at+size], at+2)
		case ProtoFragment:
			if v.FragAt != 0 {
				return BadExt
			}
			v.FragAt = at
			v.FragID = binary.BigEndian.Uint32(b[at+4:])
			ff := binary.BigEndian.Uint16(b[at+2:])
			v.Proto, v.L4, v.Payload = next, at+8, at+8
			if ff&0xfff9 != 0 { // else atomic: a whole packet (RFC 6946)
				if s := v.fragment(uint32(ff&0xfff8), ff&1 != 0); s != OK {
					return s
				}
				if v.Mark&LaterFrag != 0 {
					return OK
				}
			}
		}
		at += size
		v.Proto, v.L4, v.Payload = next, at, at
	}
}

func (v *View) cutExt() Status {
	switch {
	case v.Mark&Cut != 0:
		return Short
	case v.Mark&Fragment != 0:
		return TinyFragment // RFC 7112: the first fragment has the whole chain
	}
	return BadExt
}

// routing notes the final destination of a routing header with segments left.
func (v *View) routing(b []byte, at, size uint32) Status {
	left := uint32(b[at+3])
	if left == 0 {
		return OK
	}
	v.Mark |= Routed
	switch b[at+2] {
	case 0, 2: // addresses in order of travel (RFC 2460, RFC 6275)
		count := (size - 8) / 16
		if left > count {
			return BadExt
		}
		v.finalAt = at + 8 + (count-1)*16
	case 4: // segment routing: the last one comes first (RFC 8754)
		if size < 24 {
			return BadExt
		}
		v.finalAt = at + 8
	}
	return OK
}

// home looks for a home address option (RFC 6275 section 6.3). Options that do not fit are
// the receiver's to refuse.
func (v *View) home(b []byte, at uint32) {
	const homeAddress = 0xc9
	for end := uint32(len(b)); at+2 <= end; {
		if b[at] == 0 { // Pad1
			at++
			continue
		}
		n := 2 + uint32(b[at+1])
		if b[at] == homeAddress && n == 18 && at+n <= end {
			v.homeAt = at + 2
			v.Mark |= Routed
			return
		}
		at += n
	}
}

// upper parses the transport header. b ends with the packet.
func (v *View) upper(b []byte, quoted bool) Status {
	at := v.L4
	n := uint32(len(b)) - at
	t := b[at:]
	bad := BadTransport
	if v.Mark&Fragment != 0 {
		bad = TinyFragment
	}
	switch v.Proto {
	case ProtoTCP:
		if n < 20 {
			if !quoted || n < 8 {
				return bad
			}
			v.SrcPort, v.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
			v.Payload = v.End
			v.Mark |= Ports
			if n >= 18 {
				v.SumOff = at + 16
			}
			return OK
		}
		hlen := uint32(t[12]>>4) * 4
		if hlen < 20 {
			return BadTransport
		}
		if hlen > n {
			if !quoted && v.Mark&Fragment == 0 {
				return BadTransport
			}
			hlen = n // options go on in the next fragment
		}
		v.SrcPort, v.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
		v.TCPFlags = t[13]
		v.SumOff, v.Payload = at+16, at+hlen
		v.Mark |= Ports
	case ProtoUDP:
		if n < 8 {
			return bad
		}
		v.SrcPort, v.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
		v.Payload = at + 8
		v.Mark |= Ports
		if !quoted {
			// A length below the IP payload leaves trailing data outside the datagram
			// (RFC 9868); zero would be a jumbogram.
			if l := uint32(binary.BigEndian.Uint16(t[4:])); l < 8 || l > n && v.Mark&Fragment == 0 {
				return BadTransport
			}
		}
		v.SumOff = at + 6
		if t[6]|t[7] == 0 {
			v.Mark |= NoSum
		}
	case ProtoUDPLite:
		if n < 8 {
			return bad
		}
		// RFC 3828 section 3.1: the checksum covers all, or the header at least.
		if c := uint32(binary.BigEndian.Uint16(t[4:])); !quoted && c != 0 && (c < 8 || c > n && v.Mark&Fragment == 0) {
			return BadTransport
		}
		v.SrcPort, v.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
		v.SumOff, v.Payload = at+6, at+8
		v.Mark |= Ports
		if t[6]|t[7] == 0 {
			v.Mark |= NoSum
		}
	case ProtoDCCP:
		if n < 12 && (!quoted || n < 8) {
			return bad
		}
		hlen := n
		if n >= 12 {
			// RFC 4340 section 5.1: 12 bytes, or 16 with sequence numbers of 48 bits.
			if hlen = uint32(t[4]) * 4; hlen < 12+4*uint32(t[8]&1) {
				return BadTransport
			}
			if hlen > n {
				if !quoted && v.Mark&Fragment == 0 {
					return BadTransport
				}
				hlen = n
			}
		}
		v.SrcPort, v.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
		v.SumOff, v.Payload = at+6, at+hlen
		v.Mark |= Ports
	case ProtoSCTP:
		if n < 12 && (!quoted || n < 8) {
			return bad
		}
		v.SrcPort, v.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
		v.Payload = min(at+12, v.End)
		v.Mark |= Ports
	case ProtoICMP:
		if v.Version == 4 {
			return v.icmp(t, ICMPEcho, ICMPEchoReply, bad)
		}
	case ProtoICMPv6:
		if v.Version == 6 {
			return v.icmp(t, ICMPv6Echo, ICMPv6EchoReply, bad)
		}
	}
	return OK
}

func (v *View) icmp(t []byte, ask, answer uint8, bad Status) Status {
	if len(t) < 4 {
		return bad
	}
	v.Type, v.Code = t[0], t[1]
	v.SumOff, v.Payload = v.L4+2, v.L4+min(8, uint32(len(t)))
	isErr := v.Type < 128
	if v.Version == 4 {
		switch v.Type {
		case ICMPUnreachable, ICMPSourceQuench, ICMPRedirect, ICMPTimeExceeded, ICMPParamProblem:
			isErr = true
		default:
			isErr = false
		}
	}
	if isErr || v.Type == ask || v.Type == answer {
		if len(t) < 8 {
			return bad
		}
		switch v.Type {
		case ask:
			v.SrcPort = binary.BigEndian.Uint16(t[4:])
			v.Mark |= EchoAsk
		case answer:
			v.DstPort = binary.BigEndian.Uint16(t[4:])
			v.Mark |= EchoAnswer
		default:
			v.Mark |= ICMPError
		}
	}
	return OK
}
