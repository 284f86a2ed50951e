package wire

import "encoding/binary"

// TunnelKind is a way to put an IP packet into another.
type TunnelKind uint8

// The kinds. All but IPIP can carry either family in either.
const (
	IPIP  TunnelKind = iota // RFC 2003, 2473, 4213: the inner packet right behind the outer header
	GRE                     // RFC 2784, with a key by RFC 2890
	GUE                     // Generic UDP Encapsulation, variant 0 (draft-ietf-intarea-gue)
	VXLAN                   // RFC 7348: an Ethernet frame in UDP
)

// Tunnel says what lies between an outer IP header and the inner packet. The zero Tunnel is
// IPIP. It may be copied.
type Tunnel struct {
	Kind           TunnelKind
	HasKey         bool
	Key            uint32 // of GRE if HasKey; VXLAN network identifier
	Port           uint16 // UDP destination of GUE and VXLAN
	SrcMAC, DstMAC [6]byte
}

// Overhead returns the length of everything before the inner packet.
func (t *Tunnel) Overhead(outer6 bool) int {
	n := IPv4Len
	if outer6 {
		n = IPv6Len
	}
	switch t.Kind {
	case GRE:
		n += 4
		if t.HasKey {
			n += 4
		}
	case GUE:
		n += 8 + 4
	case VXLAN:
		n += 8 + 8 + 14
	}
	return n
}

// Put writes the outer headers for the inner packet of family inner6, which lies at
// [Tunnel.Overhead] of b and ends with it. src and dst are of one family. sport is the source port of
// UDP tunnels. df is written into an outer IPv4 header, with id as its identification. The outer UDP
// checksum is left out over IPv4 (RFC 7348 section 5) and computed over IPv6.
//
//	IPIP   | outer IP | inner packet
//	GRE    | outer IP | flags 2 | EtherType 2 | key 4, if any | inner packet
//	GUE    | outer IP | UDP 8 | 0, protocol, flags 2 | inner packet
//	VXLAN  | outer IP | UDP 8 | 0x08, 0 3 | VNI 3, 0 | Ethernet 14 | inner packet
func (t *Tunnel) Put(b []byte, src, dst []byte, inner6 bool, tos uint8, sport uint16, df bool, id uint16) {
	h := IPv4Len
	if len(src) == 16 {
		h = IPv6Len
	}
	x := b[h:]
	inner, ether := uint8(ProtoIPv4), uint16(EtherIPv4)
	if inner6 {
		inner, ether = ProtoIPv6, EtherIPv6
	}
	proto := inner
	switch t.Kind {
	case GRE:
		proto = ProtoGRE
		binary.BigEndian.PutUint16(x, 0)
		binary.BigEndian.PutUint16(x[2:], ether)
		if t.HasKey {
			x[0] = 0x20
			binary.BigEndian.PutUint32(x[4:], t.Key)
		}
	case GUE:
		proto = ProtoUDP
		x[8], x[9], x[10], x[11] = 0, inner, 0, 0
	case VXLAN:
		proto = ProtoUDP
		binary.BigEndian.PutUint32(x[8:], 0x08000000)
		binary.BigEndian.PutUint32(x[12:], t.Key<<8)
		copy(x[16:], t.DstMAC[:])
		copy(x[22:], t.SrcMAC[:])
		binary.BigEndian.PutUint16(x[28:], ether)
	}
	if proto == ProtoUDP {
		binary.BigEndian.PutUint16(x, sport)
		binary.BigEndian.PutUint16(x[2:], t.Port)
		binary.BigEndian.PutUint16(x[4:], uint16(len(x)))
		binary.BigEndian.PutUint16(x[6:], 0)
		if h == IPv6Len {
			sum := PseudoSum(src, dst, ProtoUDP, len(x)).AddBytes(x).Checksum()
			if sum == 0 {
				sum = 0xffff
			}
			binary.BigEndian.PutUint16(x[6:], sum)
		}
	}
	PutHeader(b, src, dst, proto, replyTTL, tos, len(b))
	if h == IPv4Len && !df {
		d := Diff(0).Word(0x4000, 0).Word(0, id)
		binary.BigEndian.PutUint16(b[4:], id)
		binary.BigEndian.PutUint16(b[6:], 0)
		binary.BigEndian.PutUint16(b[10:], d.Apply(binary.BigEndian.Uint16(b[10:])))
	}
}

// Quoted reports whether a packet that an ICMP error quotes, of at least 8 bytes behind the IP header, may be one of the tunnel.
func (t *Tunnel) Quoted(b []byte, v *View) bool {
	x := b[v.L4:v.End]
	if len(x) < 8 {
		return false
	}
	switch t.Kind {
	case GRE:
		flags := uint16(0)
		if t.HasKey {
			flags = 0x2000
		}
		return v.Proto == ProtoGRE && binary.BigEndian.Uint16(x) == flags && (!t.HasKey || binary.BigEndian.Uint32(x[4:]) == t.Key)
	case GUE, VXLAN:
		return v.Proto == ProtoUDP && v.DstPort == t.Port
	default:
		return v.Proto == ProtoIPv4 || v.Proto == ProtoIPv6
	}
}

// FragmentLen returns how many payload bytes the fragments of a packet carry if none may be
// longer than mtu: a multiple of 8, or 0 if mtu is too small.
func FragmentLen(v6 bool, mtu int) int {
	h := IPv4Len
	if v6 {
		h = IPv6Len + 8
	}
	return max(0, (mtu-h)&^7)
}

// PutFragment writes into dst the fragment of b that carries n bytes of its payload from off on, and returns its length. An IPv4
// packet may be a fragment itself and have options, of which only those with the copied flag go into fragments that are not the
// first (RFC 791 section 3.1); an IPv6 packet has no extension headers. dst has room for 48 bytes more than n, or for 40 more
// than the header and n.
func PutFragment(dst, b []byte, off, n int, id uint32) int {
	if b[0]>>4 == 6 {
		n = min(n, len(b)-IPv6Len-off)
		copy(dst, b[:IPv6Len])
		ff := uint16(off)
		if IPv6Len+off+n < len(b) {
			ff |= 1
		}
		binary.BigEndian.PutUint16(dst[4:], uint16(8+n))
		dst[6] = ProtoFragment
		dst[40], dst[41] = b[6], 0
		binary.BigEndian.PutUint16(dst[42:], ff)
		binary.BigEndian.PutUint32(dst[44:], id)
		return 48 + copy(dst[48:], b[IPv6Len+off:IPv6Len+off+n])
	}
	const more = 0x2000
	from := int(b[0]&15) * 4
	h := copy(dst, b[:from])
	was := binary.BigEndian.Uint16(b[6:])
	if off > 0 && h > IPv4Len {
		h = IPv4Len + copiedOptions(dst[IPv4Len:], b[IPv4Len:from])
		dst[0] = 0x40 | uint8(h/4)
	}
	n = min(n, len(b)-from-off)
	ff := was&0x1fff + uint16(off/8) | was&more
	if from+off+n < len(b) {
		ff |= more
	}
	binary.BigEndian.PutUint16(dst[2:], uint16(h+n))
	binary.BigEndian.PutUint16(dst[4:], uint16(id))
	binary.BigEndian.PutUint16(dst[6:], ff)
	binary.BigEndian.PutUint16(dst[10:], 0)
	binary.BigEndian.PutUint16(dst[10:], Checksum(dst[:h]))
	return h + copy(dst[h:], b[from+off:from+off+n])
}

// copiedOptions writes those IPv4 options of o into dst that every fragment has, padded to a multiple of four bytes, and
// returns their length. What cannot be read is left out.
func copiedOptions(dst, o []byte) (n int) {
	const copied = 0x80
	for i := 0; i < len(o) && o[i] != optEnd; {
		if o[i] == optNop {
			i++
			continue
		}
		if i+1 >= len(o) || o[i+1] < 2 || i+int(o[i+1]) > len(o) {
			break
		}
		end := i + int(o[i+1])
		if o[i]&copied != 0 {
			n += copy(dst[n:], o[i:end])
		}
		i = end
	}
	for n%4 != 0 {
		dst[n] = optEnd
		n++
	}
	return n
}

// Complete fills in a checksum that was left to be completed: the sum over b from start
// on, the pseudo-header's sum in the field included.
func Complete(b []byte, start, at int, udp bool) {
	sum := Sum(0).AddBytes(b[start:]).Checksum()
	if sum == 0 && udp {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], sum)
}

// Segments returns into how many packets a super-packet of TCP or UDP falls, if each carries at most
// size bytes of its payload.
func (v *View) Segments(size int) int {
	n := v.PayloadLen()
	if size <= 0 || n <= size {
		return 1
	}
	return (n + size - 1) / size
}

// PutSegment writes into dst the i-th of the packets into which the super-packet b falls, and returns
// its length: a packet with lengths, sequence number, flags and checksums of its own.
func (v *View) PutSegment(dst, b []byte, i, size int) int {
	off := i * size
	n := min(size, v.PayloadLen()-off)
	last := off+n == v.PayloadLen()
	h := int(v.Payload)
	copy(dst, b[:h])
	copy(dst[h:], b[h+off:h+off+n])
	out := dst[:h+n]
	if v.Version == 4 {
		binary.BigEndian.PutUint16(out[2:], uint16(h+n))
		binary.BigEndian.PutUint16(out[4:], binary.BigEndian.Uint16(b[4:])+uint16(i))
		hl := int(b[0]&15) * 4
		binary.BigEndian.PutUint16(out[10:], 0)
		binary.BigEndian.PutUint16(out[10:], Checksum(out[:hl]))
	} else {
		binary.BigEndian.PutUint16(out[4:], uint16(h+n-IPv6Len))
	}
	t := out[v.L4:]
	if v.Proto == ProtoTCP {
		binary.BigEndian.PutUint32(t[4:], binary.BigEndian.Uint32(t[4:])+uint32(off))
		if !last {
			t[13] &^= FIN | PSH
		}
		if i > 0 {
			t[13] &^= CWR
		}
	} else {
		binary.BigEndian.PutUint16(t[4:], uint16(8+n))
	}
	w := *v
	w.End = uint32(h + n)
	if sum, ok := w.TransportSum(out); ok {
		binary.BigEndian.PutUint16(out[v.SumOff:], sum)
	}
	return h + n
}
