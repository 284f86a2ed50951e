package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// End is one end of a flow in the form in which it is written into packets. An IPv4
// address lies in the last four bytes. The zero End is no place to send to.
type End struct {
	Addr [16]byte
	Port uint16
}

// field returns the address as it stands in packets of v's family.
func (e *End) field(v *View) []byte { return e.Addr[16-v.addrLen:] }

// SetSrc rewrites source address and port of b, and every checksum that covers them. The
// port of an echo request is its identifier; a later fragment and a protocol without ports
// change only their address. partial says
// that the transport checksum is left to be completed ([Diff.ApplyPartial]).
func (v *View) SetSrc(b []byte, e *End, partial bool) {
	d := v.setAddr(b, v.Src(b), e)
	p := d
	if v.Mark&Ports != 0 {
		p = d.Word(v.SrcPort, e.Port)
		binary.BigEndian.PutUint16(b[v.L4:], e.Port)
		v.SrcPort = e.Port
	} else if v.Mark&EchoAsk != 0 {
		p = d.Word(v.SrcPort, e.Port)
		binary.BigEndian.PutUint16(b[v.L4+4:], e.Port)
		v.SrcPort = e.Port
	}
	v.fixTransport(b, d, p, partial)
}

// SetDst is [View.SetSrc] for the destination; the port of an echo reply is its identifier.
func (v *View) SetDst(b []byte, e *End, partial bool) {
	d := v.setAddr(b, v.Dst(b), e)
	p := d
	if v.Mark&Ports != 0 {
		p = d.Word(v.DstPort, e.Port)
		binary.BigEndian.PutUint16(b[v.L4+2:], e.Port)
		v.DstPort = e.Port
	} else if v.Mark&EchoAnswer != 0 {
		p = d.Word(v.DstPort, e.Port)
		binary.BigEndian.PutUint16(b[v.L4+4:], e.Port)
		v.DstPort = e.Port
	}
	v.fixTransport(b, d, p, partial)
}

func (v *View) setAddr(b, at []byte, e *End) Diff {
	if v.Version == 4 {
		to := binary.BigEndian.Uint32(e.Addr[12:])
		d := Diff(0).Long(binary.BigEndian.Uint32(at), to)
		binary.BigEndian.PutUint32(at, to)
		h := b[10:12]
		binary.BigEndian.PutUint16(h, d.Apply(binary.BigEndian.Uint16(h)))
		return d
	}
	d := Diff(0).Addr(at, e.Addr[:])
	copy(at, e.Addr[:])
	return d
}

// fixTransport applies the change addr of the pseudo-header, or all with the ports in
// it, to the transport checksum.
func (v *View) fixTransport(b []byte, addr, all Diff, partial bool) {
	if v.SumOff == 0 {
		return
	}
	h := b[v.SumOff : v.SumOff+2]
	sum := binary.BigEndian.Uint16(h)
	switch v.Proto {
	case ProtoUDP, ProtoUDPLite:
		switch {
		case partial:
			sum = addr.ApplyPartial(sum)
		case v.Mark&NoSum == 0:
			sum = all.ApplyUDP(sum)
		}
	case ProtoICMP: // no pseudo-header: only an identifier counts
		if !partial {
			sum = notZero((all - addr).Apply(sum), b[v.L4:v.End])
		}
	default:
		if partial {
			sum = addr.ApplyPartial(sum)
		} else {
			sum = all.Apply(sum)
		}
	}
	binary.BigEndian.PutUint16(h, sum)
}

// notZero returns the updated checksum sum of the ICMP message t. The sum of nothing but zeros, an echo reply of
// identifier and sequence 0, is 0xffff, which an update cannot know: it finds 0 for all that sums up to nothing.
func notZero(sum uint16, t []byte) uint16 {
	if sum != 0 {
		return sum
	}
	for i, c := range t {
		if c != 0 && i != 2 && i != 3 {
			return 0
		}
	}
	return 0xffff
}

// SetTTL writes the time to live or hop limit.
func (v *View) SetTTL(b []byte, ttl uint8) {
	if v.Version == 6 {
		b[7] = ttl
		return
	}
	d := Diff(0).Word(uint16(b[8])<<8, uint16(ttl)<<8)
	b[8] = ttl
	binary.BigEndian.PutUint16(b[10:], d.Apply(binary.BigEndian.Uint16(b[10:])))
}

// TTL returns the time to live or hop limit.
func (v *View) TTL(b []byte) uint8 {
	if v.Version == 6 {
		return b[7]
	}
	return b[8]
}

// TOS returns the type of service or traffic class.
func (v *View) TOS(b []byte) uint8 {
	if v.Version == 6 {
		return b[0]<<4 | b[1]>>4
	}
	return b[1]
}

// SetTOS writes the type of service or traffic class, ECN bits included.
func (v *View) SetTOS(b []byte, tos uint8) {
	if v.Version == 6 {
		b[0] = b[0]&0xf0 | tos>>4
		b[1] = b[1]&0x0f | tos<<4
		return
	}
	d := Diff(0).Word(uint16(b[1]), uint16(tos))
	b[1] = tos
	binary.BigEndian.PutUint16(b[10:], d.Apply(binary.BigEndian.Uint16(b[10:])))
}

// SetFragID writes the identification of a fragment, or of an IPv6 packet with a fragment header.
func (v *View) SetFragID(b []byte, id uint32) {
	if v.FragID == id {
		return
	}
	v.FragID = id
	if v.Version == 6 {
		binary.BigEndian.PutUint32(b[v.FragAt+4:], id)
		return
	}
	d := Diff(0).Word(binary.BigEndian.Uint16(b[4:]), uint16(id))
	binary.BigEndian.PutUint16(b[4:], uint16(id))
	binary.BigEndian.PutUint16(b[10:], d.Apply(binary.BigEndian.Uint16(b[10:])))
}

// DontFragment reports whether routers may not fragment the packet.
func (v *View) DontFragment(b []byte) bool { return v.Version == 6 || b[6]&0x40 != 0 }

// Quote returns the packet that an ICMP error quotes. The View must have [ICMPError].
func (v *View) Quote(b []byte) []byte { return b[v.L4+8 : v.End : v.End] }

// SetQuoted rewrites both ends of a quoted packet, with the checksums inside the
// quotation as far as it reaches, and the checksum of the ICMP message around it. outer is the
// error's View on b; inner is that of the quotation, as ParseQuoted left it. A nil end stays.
func (outer *View) SetQuoted(b []byte, inner *View, src, dst *End, partial bool) {
	q := outer.Quote(b)
	old := Sum(0)
	// Everything that changes lies between the start of the quotation and the transport
	// checksum: at most some 60 bytes, so that summing before and after is as
	// good as collecting differences, and cannot miss one.
	span := q[:min(uint32(len(q)), max(inner.L4+8, inner.SumOff+2))]
	old = old.AddBytes(span)
	if src != nil {
		inner.SetSrc(q, src, false)
	}
	if dst != nil {
		inner.SetDst(q, dst, false)
	}
	if partial && outer.Proto == ProtoICMPv6 {
		return // the sum over the message is still to be made
	}
	d := Diff(0).Word(old.Fold(), Sum(0).AddBytes(span).Fold())
	h := b[outer.SumOff : outer.SumOff+2]
	binary.BigEndian.PutUint16(h, d.Apply(binary.BigEndian.Uint16(h)))
}

// SetMTU changes the MTU in an ICMP error of type fragmentation needed or packet too
// big, with the checksum.
func (v *View) SetMTU(b []byte, mtu uint32, partial bool) {
	t := b[v.L4 : v.L4+8]
	d := Diff(0)
	if v.Version == 4 {
		mtu = min(mtu, 0xffff)
		d = d.Word(binary.BigEndian.Uint16(t[6:]), uint16(mtu))
		binary.BigEndian.PutUint16(t[6:], uint16(mtu))
	} else {
		d = d.Long(binary.BigEndian.Uint32(t[4:]), mtu)
		binary.BigEndian.PutUint32(t[4:], mtu)
	}
	if partial {
		return
	}
	binary.BigEndian.PutUint16(t[2:], d.Apply(binary.BigEndian.Uint16(t[2:])))
}

// MTU returns the MTU in an ICMP error of type fragmentation needed or packet too big.
func (v *View) MTU(b []byte) uint32 {
	if v.Version == 4 {
		return uint32(binary.BigEndian.Uint16(b[v.L4+6:]))
	}
	return binary.BigEndian.Uint32(b[v.L4+4:])
}

// FixSCTP computes an SCTP checksum anew (RFC 9260 appendix A): a CRC cannot be updated
// like a sum. The packet must be whole.
func (v *View) FixSCTP(b []byte, table *crc32.Table) {
	t := b[v.L4:v.End]
	binary.LittleEndian.PutUint32(t[8:], 0)
	binary.LittleEndian.PutUint32(t[8:], crc32.Checksum(t, table))
}

// TransportSum computes the transport checksum of a whole packet as it should be in the
// packet. ok is false where the protocol has none that is a sum.
func (v *View) TransportSum(b []byte) (sum uint16, ok bool) {
	if v.SumOff == 0 || v.Mark&Fragment != 0 {
		return 0, false
	}
	end := v.End
	if v.Proto == ProtoUDP {
		if l := v.L4 + uint32(binary.BigEndian.Uint16(b[v.L4+4:])); l >= v.L4+8 && l <= end {
			end = l
		}
	}
	t := b[v.L4:end]
	var s Sum
	if v.Proto != ProtoICMP {
		s = PseudoSum(v.FinalSrc(b), v.FinalDst(b), v.Proto, len(t))
	}
	t = t[:v.covered(t)]
	at := v.SumOff - v.L4 // even
	s = s.AddBytes(t[:at]).AddBytes(t[at+2:])
	sum = s.Checksum()
	if (v.Proto == ProtoUDP || v.Proto == ProtoUDPLite) && sum == 0 {
		sum = 0xffff
	}
	return sum, true
}

// covered returns how many bytes of a transport packet the checksum covers, beside the pseudo-header, which has the length of all.
func (v *View) covered(t []byte) int {
	switch v.Proto {
	case ProtoUDPLite: // RFC 3828 section 3.1
		if n := int(binary.BigEndian.Uint16(t[4:])); n >= 8 {
			return min(n, len(t))
		}
	case ProtoDCCP: // RFC 4340 section 9.2: all, or words of the payload
		if n := int(t[5] & 15); n > 0 {
			return min(int(v.Payload-v.L4)+4*(n-1), len(t))
		}
	}
	return len(t)
}

// SumOK reports whether the transport checksum of a whole packet is right. Packets
// without one are right.
func (v *View) SumOK(b []byte) bool {
	want, ok := v.TransportSum(b)
	if !ok || v.Mark&NoSum != 0 && v.Version == 4 && v.Proto == ProtoUDP {
		return true
	}
	have := binary.BigEndian.Uint16(b[v.SumOff:])
	return have == want || want == 0 && have == 0xffff // which sums up as well
}

// HeaderSumOK reports whether the IPv4 header checksum is right; IPv6 has none.
func (v *View) HeaderSumOK(b []byte) bool {
	return v.Version == 6 || Sum(sumBytes(b[:uint32(b[0]&15)*4])).Fold() == 0xffff
}
