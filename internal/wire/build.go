package wire

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// Lengths of headers without options, and limits of what an ICMP error quotes.
const (
	IPv4Len = 20
	IPv6Len = 40
	tcpLen  = 20
	icmpLen = 8

	maxError4 = 576  // RFC 1812 section 4.3.2.3
	maxError6 = 1280 // RFC 4443 section 2.4 (c)

	// MaxRST is the length of the longest reset.
	MaxRST = IPv6Len + tcpLen
	// MaxReply is the length of the longest packet that this file builds.
	MaxReply = maxError6
)

// headerLen is the length of an IP header without options for v's family.
func (v *View) headerLen() int {
	if v.Version == 6 {
		return IPv6Len
	}
	return IPv4Len
}

// PutHeader writes an IP header without options for a packet of n bytes in all, which
// b has room for. src and dst are of one family.
func PutHeader(b []byte, src, dst []byte, proto, ttl, tos uint8, n int) {
	if len(src) == 16 {
		h := b[:IPv6Len]
		binary.BigEndian.PutUint32(h, 6<<28|uint32(tos)<<20)
		binary.BigEndian.PutUint16(h[4:], uint16(n-IPv6Len))
		h[6], h[7] = proto, ttl
		copy(h[8:24], src)
		copy(h[24:40], dst)
		return
	}
	h := b[:IPv4Len]
	h[0], h[1] = 0x45, tos
	binary.BigEndian.PutUint16(h[2:], uint16(n))
	binary.BigEndian.PutUint32(h[4:], 0x4000) // no identification needed: not to be fragmented (RFC 6864)
	h[8], h[9] = ttl, proto
	h[10], h[11] = 0, 0
	copy(h[12:16], src)
	copy(h[16:20], dst)
	binary.BigEndian.PutUint16(h[10:], Checksum(h))
}

// replyTTL is what this package's own packets start with.
const replyTTL = 64

// BuildRST writes into dst the reset that answers the TCP packet b, as if its receiver had
// sent it, and returns its length (RFC 9293 section 3.10.7.1): the sequence number is what
// the sender acknowledged, so that it must believe it (RFC 5961). A packet that is itself a
// reset is not answered: the length is 0.
func BuildRST(dst, b []byte, v *View) int {
	if v.Proto != ProtoTCP || v.TCPFlags&RST != 0 || v.Mark&(Fragment|Cut) != 0 {
		return 0
	}
	seq, ack := v.Seq(b)
	if v.TCPFlags&ACK != 0 {
		return putRST(dst, v, v.Dst(b), v.Src(b), v.DstPort, v.SrcPort, ack, 0, RST)
	}
	return putRST(dst, v, v.Dst(b), v.Src(b), v.DstPort, v.SrcPort, 0, seq+v.SegLen(), RST|ACK)
}

// PutRST writes a reset from src to dst with the given numbers and returns its length.
func PutRST(to []byte, version uint8, src, dst *End, seq, ack uint32, flags uint8) int {
	v := View{Version: version, addrLen: 4}
	if version == 6 {
		v.addrLen = 16
	}
	return putRST(to, &v, src.field(&v), dst.field(&v), src.Port, dst.Port, seq, ack, flags)
}

func putRST(to []byte, v *View, src, dst []byte, sport, dport uint16, seq, ack uint32, flags uint8) int {
	h := v.headerLen()
	n := h + tcpLen
	PutHeader(to, src, dst, ProtoTCP, replyTTL, 0, n)
	t := to[h:n]
	binary.BigEndian.PutUint16(t, sport)
	binary.BigEndian.PutUint16(t[2:], dport)
	binary.BigEndian.PutUint32(t[4:], seq)
	binary.BigEndian.PutUint32(t[8:], ack)
	binary.BigEndian.PutUint32(t[12:], 5<<28|uint32(flags)<<16)
	binary.BigEndian.PutUint32(t[16:], 0)
	sum := PseudoSum(src, dst, ProtoTCP, tcpLen).AddBytes(t)
	binary.BigEndian.PutUint16(t[16:], sum.Checksum())
	return n
}

// MayAnswer reports whether an ICMP error may be sent about b (RFC 1122 section 3.2.2, RFC
// 4443 section 2.4 (e)): not about an ICMP error, a later fragment, nor about a packet from or to
// an address that names no single host. Packet too big is the exception for multicast
// destinations, which this function does not make.
func (v *View) MayAnswer(b []byte) bool {
	return v.Mark&(ICMPError|LaterFrag) == 0 && unicast(v.Src(b)) && unicast(v.Dst(b))
}

// BadSource reports whether the source of b is the destination as well, or the address of no single host: an answer
// would go round in circles, or to many.
func (v *View) BadSource(b []byte) bool {
	src := v.Src(b)
	return !unicast(src) || bytes.Equal(src, v.Dst(b))
}

func unicast(a []byte) bool {
	if len(a) == 4 {
		return a[0] != 0 && a[0] < 224
	}
	if a[0] == 0xff {
		return false
	}
	for _, x := range a {
		if x != 0 {
			return true
		}
	}
	return false
}

// BuildICMPError writes into dst an ICMP or ICMPv6 error from src about the packet b and
// returns its length. rest is the second word of the ICMP header: the MTU, or a pointer.
// The caller asks [View.MayAnswer] first. dst needs room for [MaxReply] bytes.
//
//	+---------------+---------------+-------------------------------+
//	|     Type      |     Code      |           Checksum            |
//	+---------------+---------------+-------------------------------+
//	|                             rest                              |
//	+---------------------------------------------------------------+
//	|         as much of the packet as fits (RFC 792, RFC 4443)     |
func BuildICMPError(dst, b []byte, v *View, src []byte, typ, code uint8, rest uint32) int {
	h, limit, proto := v.headerLen(), maxError4, uint8(ProtoICMP)
	if v.Version == 6 {
		limit, proto = maxError6, ProtoICMPv6
	}
	n := h + icmpLen + copy(dst[h+icmpLen:limit], b[:v.End])
	PutHeader(dst, src, v.Src(b), proto, replyTTL, 0, n)
	t := dst[h:n]
	t[0], t[1] = typ, code
	binary.BigEndian.PutUint16(t[2:], 0)
	binary.BigEndian.PutUint32(t[4:], rest)
	var sum Sum
	if v.Version == 6 {
		sum = PseudoSum(src, v.Src(b), proto, len(t))
	}
	binary.BigEndian.PutUint16(t[2:], sum.AddBytes(t).Checksum())
	return n
}

// EchoReply turns the echo request b into its reply, in place, and returns where the
// reply starts in b: behind options and extension headers, which are not repeated.
func (v *View) EchoReply(b []byte, partial bool) (start int) {
	h := v.headerLen()
	start = int(v.L4) - h
	var src, dst [16]byte
	a := copy(src[:], v.Dst(b))
	copy(dst[:], v.Src(b))
	t := b[v.L4:v.End]
	typ := uint8(ICMPEchoReply)
	if v.Version == 6 {
		typ = ICMPv6EchoReply
	}
	// Swapping the addresses leaves the pseudo-header's sum as it is; a routing
	// header's final destination is not answered here.
	d := Diff(0).Word(uint16(t[0])<<8, uint16(typ)<<8)
	t[0] = typ
	if !partial {
		binary.BigEndian.PutUint16(t[2:], notZero(d.Apply(binary.BigEndian.Uint16(t[2:])), t))
	}
	PutHeader(b[start:], src[:a], dst[:a], v.Proto, replyTTL, v.TOS(b), int(v.End)-start)
	return start
}

// EchoFragment turns a fragment of an echo request into that of its reply, in place. The checksum in the first one covers all
// of them, and changes by the type alone.
func (v *View) EchoFragment(b []byte) {
	var src [16]byte
	n := copy(src[:], v.Src(b))
	copy(v.Src(b), v.Dst(b)) // the sums stay as they are
	copy(v.Dst(b), src[:n])
	v.SetTTL(b, replyTTL)
	if v.Mark&LaterFrag != 0 {
		return
	}
	typ := uint8(ICMPEchoReply)
	if v.Version == 6 {
		typ = ICMPv6EchoReply
	}
	t := b[v.L4:v.End]
	d := Diff(0).Word(uint16(t[0])<<8, uint16(typ)<<8)
	t[0] = typ
	// Never zero: who knows whether the others have anything but zeros, whose sum would be 0xffff. That verifies in either case.
	binary.BigEndian.PutUint16(t[2:], d.ApplyUDP(binary.BigEndian.Uint16(t[2:])))
}

// BuildProbe returns the first packet of a flow: a TCP SYN, an ICMP echo request with the
// source port as its identifier, a UDP or UDP-Lite datagram, an SCTP INIT or a DCCP request without data, or eight zeros of any other
// protocol.
func BuildProbe(proto uint8, src, dst End, v4 bool) []byte {
	return AppendProbe(nil, proto, src, dst, v4)
}

// AppendProbe is BuildProbe behind what is in into.
func AppendProbe(into []byte, proto uint8, src, dst End, v4 bool) []byte {
	v := View{addrLen: 16, Version: 6, Proto: proto}
	h := IPv6Len
	if v4 {
		v.addrLen, v.Version, h = 4, 4, IPv4Len
	}
	size := 8
	switch proto {
	case ProtoTCP:
		size = tcpLen
	case ProtoSCTP:
		size = 12
	case ProtoDCCP:
		size = 20
	}
	at := len(into)
	into = slices.Grow(into, h+size)[:at+h+size]
	b := into[at:]
	clear(b)
	PutHeader(b, src.field(&v), dst.field(&v), proto, replyTTL, 0, len(b))
	t := b[h:]
	switch proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP, ProtoUDPLite, ProtoDCCP:
		binary.BigEndian.PutUint16(t, src.Port)
		binary.BigEndian.PutUint16(t[2:], dst.Port)
	}
	switch proto {
	case ProtoTCP:
		t[12], t[13] = 5<<4, SYN
	case ProtoUDP:
		t[5] = 8
	case ProtoDCCP:
		t[4], t[8] = 20/4, 1 // long sequence numbers
	case ProtoICMP:
		t[0] = ICMPEcho
		binary.BigEndian.PutUint16(t[4:], src.Port)
	case ProtoICMPv6:
		t[0] = ICMPv6Echo
		binary.BigEndian.PutUint16(t[4:], src.Port)
	}
	if proto == ProtoUDP || proto == ProtoUDPLite { // not none
		t[6] = 1
	}
	if Parse(b, &v) == OK && v.SumOff != 0 {
		if sum, ok := v.TransportSum(b); ok {
			binary.BigEndian.PutUint16(b[v.SumOff:], sum)
		}
	}
	return into
}
