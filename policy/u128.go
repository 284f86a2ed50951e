package policy

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// u128 is an address as a number. IPv4 addresses are numbers below 1<<32; which family
// is meant is always known from the context.
type u128 struct{ hi, lo uint64 }

// family tells IPv4 from IPv6.
type family uint8

const (
	noFamily family = iota
	v4
	v6
)

func (f family) String() string {
	switch f {
	case v4:
		return "IPv4"
	case v6:
		return "IPv6"
	}
	return "no family"
}

func (f family) bits() int {
	if f == v4 {
		return 32
	}
	return 128
}

// max returns the last address of the family.
func (f family) max() u128 {
	if f == v4 {
		return u128{0, 1<<32 - 1}
	}
	return u128{^uint64(0), ^uint64(0)}
}

// split returns an address as a number. IPv4-mapped IPv6 addresses are IPv4 and zones
// are dropped. The slice does not leave the stack. As16 would copy its result, and
// reading a copy just written in other pieces stalls: that was a tenth of a look-up.
func split(a netip.Addr) (u128, family) {
	switch b := a.AsSlice(); len(b) {
	case 4:
		return u128{0, uint64(binary.BigEndian.Uint32(b))}, v4
	case 16:
		x := u128{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}
		if x.hi == 0 && x.lo>>32 == 0xffff {
			return u128{0, x.lo & (1<<32 - 1)}, v4
		}
		return x, v6
	}
	return u128{}, noFamily
}

// as4 returns an address of which Is4 is true.
func as4(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func (f family) addr(x u128) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], x.hi)
	binary.BigEndian.PutUint64(b[8:], x.lo)
	if f == v4 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

func (x u128) less(y u128) bool { return x.hi < y.hi || x.hi == y.hi && x.lo < y.lo }

func (x u128) cmp(y u128) int {
	switch {
	case x.less(y):
		return -1
	case x == y:
		return 0
	}
	return 1
}

func (x u128) inc() u128 {
	lo, carry := bits.Add64(x.lo, 1, 0)
	return u128{x.hi + carry, lo}
}

func (x u128) sub(y u128) u128 {
	lo, borrow := bits.Sub64(x.lo, y.lo, 0)
	return u128{x.hi - y.hi - borrow, lo}
}

func maxU128(x, y u128) u128 {
	if x.less(y) {
		return y
	}
	return x
}

// mask keeps the first n bits of an address of family f.
func (f family) mask(x u128, n int) u128 {
	n += 128 - f.bits()
	switch {
	case n >= 128:
		return x
	case n > 64:
		return u128{x.hi, x.lo &^ (1<<(128-n) - 1)}
	default: // a shift by 64 gives 0 and so clears the half
		return u128{x.hi &^ (1<<(64-n) - 1), 0}
	}
}

// last returns the last address of the prefix of n bits that begins at x.
func (f family) last(x u128, n int) u128 {
	n += 128 - f.bits()
	switch {
	case n >= 128:
		return x
	case n > 64:
		return u128{x.hi, x.lo | (1<<(128-n) - 1)}
	default:
		return u128{x.hi | (1<<(64-n) - 1), ^uint64(0)}
	}
}

// span is an inclusive range of addresses.
type span struct{ first, last u128 }

func (s span) contains(x u128) bool { return !x.less(s.first) && !s.last.less(x) }

func (s span) size() u128 { return s.last.sub(s.first) } // less one, so that it cannot overflow
