package steering

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// The constants are the fractional parts of well-known irrationals and the
// multipliers of the SplitMix64 finaliser. They are part of the contract: changing one
// moves every client of every farm.
const (
	k0 = 0x9E3779B97F4A7C15
	k1 = 0xBF58476D1CE4E5B9
	k2 = 0x94D049BB133111EB
	k3 = 0xD1342543DE82EF95
)

// mix is the SplitMix64 finaliser.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * k1
	x = (x ^ x>>27) * k2
	return x ^ x>>31
}

// fold multiplies to 128 bits and folds the halves.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// reduce maps a well-mixed hash to [0, n).
func reduce(h, n uint64) uint64 {
	hi, _ := bits.Mul64(h, n)
	return hi
}

// hashString hashes a node's name: FNV-1a, then mixed with the seed.
func hashString(s string, seed uint64) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix(h + seed*k0)
}

// halves returns the 16 bytes of a as two words. IPv4 addresses are in their IPv4-mapped
// form, so that both forms of one address agree.
func halves(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

func hashHalves(hi, lo, seed uint64) uint64 {
	return fold(lo^seed^k0, fold(hi^k1, k2)^k3)
}

// HashAddr hashes an address. The two forms of an IPv4 address agree, zones are left
// out. The result is fixed between releases.
func HashAddr(a netip.Addr, seed uint64) uint64 {
	hi, lo := halves(a)
	return mix(hashHalves(hi, lo, seed))
}

// An Endpoint is an address and a port as a packet's header has them: the address as two
// words in network order, an IPv4 address in its IPv4-mapped form.
type Endpoint struct {
	Hi, Lo uint64 // the address
	Port   uint16 // 0 where the protocol has none
}

// Endpoint4 is the Endpoint of an IPv4 address.
func Endpoint4(addr uint32, port uint16) Endpoint {
	return Endpoint{Lo: 0xffff<<32 | uint64(addr), Port: port}
}

// EndpointOf returns the Endpoint of a.
func EndpointOf(a netip.AddrPort) Endpoint {
	hi, lo := halves(a.Addr())
	return Endpoint{hi, lo, a.Port()}
}

// HashEndpoints is [HashFlow] for callers who have a packet at hand.
func HashEndpoints(protocol uint8, a, b Endpoint) uint64 {
	x := fold(a.Lo^k0, a.Hi^uint64(a.Port)<<16^k1)
	y := fold(b.Lo^k0, b.Hi^uint64(b.Port)<<16^k1)
	// Sum and product of odd terms are symmetric; together they tell pairs apart.
	return fold(x+y+uint64(protocol)^k2, (x|1)*(y|1)^k3)
}

// HashFlow hashes a flow so that both directions agree, on every balancer. Portless
// protocols have ports of 0. The result is fixed between releases.
func HashFlow(protocol uint8, a, b netip.AddrPort) uint64 {
	return HashEndpoints(protocol, EndpointOf(a), EndpointOf(b))
}

// clientMasked returns the address words MinMisses looks at.
func clientMasked(a netip.Addr, clientBits int) (hi, lo uint64) {
	hi, lo = halves(a)
	if clientBits == 24 {
		if hi == 0 && lo>>32 == 0xffff {
			lo &^= 0xff
		} else {
			lo = 0
		}
	}
	return hi, lo
}

// A divider computes x mod n for a fixed n with one multiplication: the quotient by the
// rounded-down reciprocal is short by at most one.
type divider struct{ n, inverse uint64 }

func newDivider(n uint64) divider {
	if n <= 1 {
		return divider{1, ^uint64(0)}
	}
	q, _ := bits.Div64(1, 0, n)
	return divider{n, q}
}

func (d divider) mod(x uint64) uint64 {
	q, _ := bits.Mul64(x, d.inverse)
	r := x - q*d.n
	if r >= d.n {
		r -= d.n
	}
	return r
}
