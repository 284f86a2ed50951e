package clienttable

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
)

// Flow is one direction of a conversation: protocol, source and destination, both
// address families, packed into 40 bytes without pointers or padding. It is
// comparable and meant as a key. IPv4-mapped IPv6 addresses are unmapped and zones
// dropped, so that one flow has one key.
//
// The zero Flow has invalid addresses and protocol 0. A Flow may be copied.
type Flow struct {
	// src, dst: the 16-byte forms as big-endian words; ends: source port,
	// destination port, protocol, and which addresses are valid.
	srcHi, srcLo, dstHi, dstLo, ends uint64
}

const (
	flowSrcValid = 1 << 40
	flowDstValid = 1 << 41
)

// MakeFlow returns the flow of packets of a protocol from src to dst.
func MakeFlow(proto uint8, src, dst netip.AddrPort) Flow {
	s, d := src.Addr().As16(), dst.Addr().As16()
	f := Flow{
		srcHi: binary.BigEndian.Uint64(s[:8]), srcLo: binary.BigEndian.Uint64(s[8:]),
		dstHi: binary.BigEndian.Uint64(d[:8]), dstLo: binary.BigEndian.Uint64(d[8:]),
		ends: uint64(src.Port())<<16 | uint64(dst.Port()) | uint64(proto)<<32,
	}
	if src.Addr().IsValid() {
		f.ends |= flowSrcValid
	}
	if dst.Addr().IsValid() {
		f.ends |= flowDstValid
	}
	return f
}

// MakeFlow4 is [MakeFlow] for the IPv4 addresses and ports of a packet.
func MakeFlow4(proto uint8, src, dst [4]byte, srcPort, dstPort uint16) Flow {
	return Flow{
		srcLo: 0xffff<<32 | uint64(binary.BigEndian.Uint32(src[:])),
		dstLo: 0xffff<<32 | uint64(binary.BigEndian.Uint32(dst[:])),
		ends:  flowSrcValid | flowDstValid | uint64(proto)<<32 | uint64(srcPort)<<16 | uint64(dstPort),
	}
}

// MakeFlow6 is [MakeFlow] for the IPv6 addresses and ports of a packet.
func MakeFlow6(proto uint8, src, dst [16]byte, srcPort, dstPort uint16) Flow {
	return Flow{
		srcHi: binary.BigEndian.Uint64(src[:8]), srcLo: binary.BigEndian.Uint64(src[8:]),
		dstHi: binary.BigEndian.Uint64(dst[:8]), dstLo: binary.BigEndian.Uint64(dst[8:]),
		ends: flowSrcValid | flowDstValid | uint64(proto)<<32 | uint64(srcPort)<<16 | uint64(dstPort),
	}
}

// Src returns where the flow's packets come from.
func (f Flow) Src() netip.AddrPort {
	return netip.AddrPortFrom(wordsAddr(f.srcHi, f.srcLo, f.ends&flowSrcValid != 0), uint16(f.ends>>16))
}

// Dst returns where the flow's packets go to.
func (f Flow) Dst() netip.AddrPort {
	return netip.AddrPortFrom(wordsAddr(f.dstHi, f.dstLo, f.ends&flowDstValid != 0), uint16(f.ends))
}

// Protocol returns the IP protocol number.
func (f Flow) Protocol() uint8 { return uint8(f.ends >> 32) }

// Reverse returns the flow of the answers.
func (f Flow) Reverse() Flow {
	r := Flow{srcHi: f.dstHi, srcLo: f.dstLo, dstHi: f.srcHi, dstLo: f.srcLo}
	r.ends = f.ends&(0xff<<32) | uint64(bits.RotateLeft32(uint32(f.ends), 16)) |
		f.ends&flowSrcValid<<1 | f.ends&flowDstValid>>1
	return r
}

// Hash returns a hash for steering: the same for equal flows and seeds, on every
// machine. It is not the hash a [Table] uses.
func (f Flow) Hash(seed uint64) uint64 {
	h := fold(f.srcHi^seed^mix0, f.srcLo^mix1) ^ fold(f.dstHi^seed^mix2, f.dstLo^mix3)
	return fold(h^mix1, f.ends^seed^mix2)
}

// String returns a form such as "tcp 192.0.2.1:1024 > 198.51.100.7:80".
func (f Flow) String() string {
	b, _ := f.AppendText(nil)
	return string(b)
}

// AppendText appends the form that String returns. The error is always nil.
func (f Flow) AppendText(b []byte) ([]byte, error) {
	switch f.Protocol() {
	case 6:
		b = append(b, "tcp "...)
	case 17:
		b = append(b, "udp "...)
	default:
		b = fmt.Appendf(b, "proto-%d ", f.Protocol())
	}
	b = appendEnd(b, f.Src())
	b = append(b, " > "...)
	return appendEnd(b, f.Dst()), nil
}

func appendEnd(b []byte, a netip.AddrPort) []byte {
	if a.Addr().IsValid() {
		return a.AppendTo(b)
	}
	return fmt.Appendf(b, "-:%d", a.Port())
}

func wordsAddr(hi, lo uint64, valid bool) netip.Addr {
	if !valid {
		return netip.Addr{}
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b).Unmap()
}
