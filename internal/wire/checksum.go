package wire

import (
	"encoding/binary"
	"math/bits"
)

// Sum is a running ones' complement sum (RFC 1071), of at most 64 bits and not yet
// folded. The zero Sum is that of no data.
type Sum uint64

// Add adds 32 bits: two words of the sum, or one in the low half.
func (s Sum) Add(v uint32) Sum {
	r, c := bits.Add64(uint64(s), uint64(v), 0)
	return Sum(r + c)
}

// AddBytes adds b, padded with a zero byte if its length is odd. It must start at an
// even distance from the start of the summed data.
func (s Sum) AddBytes(b []byte) Sum {
	r, c := bits.Add64(uint64(s), sumBytes(b), 0)
	return Sum(r + c)
}

// Fold returns the sum in 16 bits, not complemented.
func (s Sum) Fold() uint16 {
	x := uint64(s)
	x = x>>48 + x>>32&0xffff + x>>16&0xffff + x&0xffff // four words at once: a short chain
	x = x>>16 + x&0xffff
	x = x>>16 + x&0xffff
	return uint16(x)
}

// Checksum returns the Internet checksum: the complement of the folded sum.
func (s Sum) Checksum() uint16 { return ^s.Fold() }

// Checksum returns the Internet checksum of b (RFC 1071).
func Checksum(b []byte) uint16 { return Sum(sumBytes(b)).Checksum() }

// sumBytes sums b as big-endian words, modulo 2^64-1. Sums commute with byte order
// (RFC 1071 section 2 B), so the bulk is added in the machine's order, 8 bytes a step, and
// the result is swapped once.
func sumBytes(b []byte) uint64 {
	var s, c uint64
	for len(b) >= 64 {
		q := b[:64:64]
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(q[0:]), 0)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(q[8:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(q[16:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(q[24:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(q[32:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(q[40:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(q[48:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(q[56:]), c)
		s += c
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), 0)
		s += c
		b = b[8:]
	}
	if len(b) > 0 {
		var t uint64
		for i := len(b) - 1; i >= 0; i-- {
			t = t<<8 | uint64(b[i])
		}
		s, c = bits.Add64(s, t, 0)
		s += c
	}
	return uint64(bits.ReverseBytes16(Sum(s).Fold()))
}

// Diff collects what changes under a checksum: the complements of old words and the new
// words (RFC 1624 equation 3). The zero Diff changes nothing.
type Diff uint64

// Word records the change of one 16-bit word.
func (d Diff) Word(from, to uint16) Diff {
	return d + Diff(^from) + Diff(to)
}

// Long records the change of a 32-bit quantity at an even offset.
func (d Diff) Long(from, to uint32) Diff {
	return d + Diff(^from) + Diff(to)
}

// Addr records the change of a 4- or 16-byte address, given as bytes of equal length.
func (d Diff) Addr(from, to []byte) Diff {
	for len(from) >= 4 && len(to) >= 4 {
		d = d.Long(binary.BigEndian.Uint32(from), binary.BigEndian.Uint32(to))
		from, to = from[4:], to[4:]
	}
	return d
}

// Apply returns sum updated for d. A Diff that amounts to nothing leaves the
// checksum as it is, so that 0xffff never becomes 0x0000 and the other way round.
func (d Diff) Apply(sum uint16) uint16 {
	f := Sum(d).Fold()
	if f+1 <= 1 { // 0 or 0xffff: cheap enough to be inlined
		return sum
	}
	s := uint32(^sum) + uint32(f)
	return ^(uint16(s>>16) + uint16(s))
}

// ApplyUDP is [Diff.Apply] for UDP, where a computed zero is sent as 0xffff (RFC 768).
// The caller leaves a UDP over IPv4 checksum of zero, which means none, alone.
func (d Diff) ApplyUDP(sum uint16) uint16 {
	if sum = d.Apply(sum); sum == 0 {
		return 0xffff
	}
	return sum
}

// ApplyPartial updates a checksum which the sender left to be completed: the field
// holds the folded sum of the pseudo-header, not its complement.
func (d Diff) ApplyPartial(sum uint16) uint16 {
	return ^d.Apply(^sum)
}

// PseudoSum returns the sum of the pseudo-header (RFC 9293 section 3.1, RFC 8200 section
// 8.1) for an upper-layer protocol and length. src and dst are 4 or 16 bytes each.
func PseudoSum(src, dst []byte, proto uint8, length int) Sum {
	s := Sum(proto).Add(uint32(length))
	for len(src) >= 4 {
		s, src = s.Add(binary.BigEndian.Uint32(src)), src[4:]
	}
	for len(dst) >= 4 {
		s, dst = s.Add(binary.BigEndian.Uint32(dst)), dst[4:]
	}
	return s
}
