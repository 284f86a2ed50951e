package wire

import "encoding/binary"

// plain is parse for what nearly all packets are: TCP or UDP right behind an IP header without options or
// extension headers, whole. It returns false for any other packet, and for a broken one, and leaves v alone
// then.
func plain(b []byte, v *View) bool {
	if len(b) < IPv4Len+8 {
		return false
	}
	version, at, src, size, proto, end := uint8(4), uint32(IPv4Len), uint8(12), uint8(4), b[9], uint32(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[0] == 0x45:
		if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
			return false
		}
	case b[0]>>4 == 6 && len(b) >= IPv6Len+8:
		version, at, src, size, proto, end = 6, IPv6Len, 8, 16, b[6], IPv6Len+uint32(binary.BigEndian.Uint16(b[4:]))
	default:
		return false
	}
	if end > uint32(len(b)) {
		return false
	}
	switch proto {
	case ProtoUDP:
		if end < at+8 {
			return false
		}
		t := b[at : at+8 : at+8]
		n := uint32(binary.BigEndian.Uint16(t[4:]))
		if n < 8 || at+n > end {
			return false
		}
		mark := Ports
		if t[6]|t[7] == 0 {
			mark = Ports | NoSum
		}
		v.set(version, proto, src, size, mark, at, end)
		v.Payload, v.SumOff = at+8, at+6
		v.SrcPort, v.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
		return true
	case ProtoTCP:
		if end < at+20 {
			return false
		}
		t := b[at : at+20 : at+20]
		n := uint32(t[12]>>4) * 4
		if n < 20 || at+n > end {
			return false
		}
		v.set(version, proto, src, size, Ports, at, end)
		v.TCPFlags, v.Payload, v.SumOff = t[13], at+n, at+16
		v.SrcPort, v.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
		return true
	}
	return false
}

// set makes v the View of a packet without anything unusual, but for its transport header. A literal of all fields
// would be put together elsewhere and copied: wide loads right behind narrow stores to the same place, for
// which a processor waits until the stores are done. That was half of plain.
func (v *View) set(version, proto, src, size uint8, mark Mark, at, end uint32) {
	*v = View{}
	v.Version, v.Proto, v.srcOff, v.addrLen, v.Mark = version, proto, src, size, mark
	v.L4, v.End = at, end
}

// Rewrite is [View.SetDst] and [View.SetSrc] in one, where neither end is to stay: nil leaves an end alone. It
// mends each checksum once.
func (v *View) Rewrite(b []byte, src, dst *End, partial bool) {
	if v.Mark != Ports || v.Proto != ProtoTCP && v.Proto != ProtoUDP {
		if dst != nil {
			v.SetDst(b, dst, partial)
		}
		if src != nil {
			v.SetSrc(b, src, partial)
		}
		return
	}
	var addrs, ports Diff
	t := b[v.L4 : v.L4+8 : v.L4+8]
	if v.Version == 4 {
		h := b[:IPv4Len:IPv4Len]
		if dst != nil {
			to := binary.BigEndian.Uint32(dst.Addr[12:])
			addrs = addrs.Long(binary.BigEndian.Uint32(h[16:]), to)
			binary.BigEndian.PutUint32(h[16:], to)
		}
		if src != nil {
			to := binary.BigEndian.Uint32(src.Addr[12:])
			addrs = addrs.Long(binary.BigEndian.Uint32(h[12:]), to)
			binary.BigEndian.PutUint32(h[12:], to)
		}
		binary.BigEndian.PutUint16(h[10:], addrs.Apply(binary.BigEndian.Uint16(h[10:])))
	} else {
		if dst != nil {
			addrs = addrs.swap16((*[16]byte)(b[24:40]), &dst.Addr)
		}
		if src != nil {
			addrs = addrs.swap16((*[16]byte)(b[8:24]), &src.Addr)
		}
	}
	if dst != nil {
		ports = ports.Word(v.DstPort, dst.Port)
		binary.BigEndian.PutUint16(t[2:], dst.Port)
		v.DstPort = dst.Port
	}
	if src != nil {
		ports = ports.Word(v.SrcPort, src.Port)
		binary.BigEndian.PutUint16(t, src.Port)
		v.SrcPort = src.Port
	}
	h := b[v.SumOff : v.SumOff+2 : v.SumOff+2]
	sum := binary.BigEndian.Uint16(h)
	switch {
	case partial:
		sum = addrs.ApplyPartial(sum)
	case v.Proto == ProtoUDP:
		sum = (addrs + ports).ApplyUDP(sum)
	default:
		sum = (addrs + ports).Apply(sum)
	}
	binary.BigEndian.PutUint16(h, sum)
}

// swap16 writes an address over another one and records the change.
func (d Diff) swap16(at, to *[16]byte) Diff {
	// Words of 32 bits in two accumulators: 8 of them do not overflow 64 bits.
	a, b := binary.BigEndian.Uint64(at[:8]), binary.BigEndian.Uint64(at[8:])
	x, y := binary.BigEndian.Uint64(to[:8]), binary.BigEndian.Uint64(to[8:])
	binary.BigEndian.PutUint64(at[:8], x)
	binary.BigEndian.PutUint64(at[8:], y)
	a, b = ^a, ^b
	return d + Diff(a>>32+a&(1<<32-1)+b>>32+b&(1<<32-1)) + Diff(x>>32+x&(1<<32-1)+y>>32+y&(1<<32-1))
}
