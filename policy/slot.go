package policy

import "math/bits"

// slot is all that a look-up reads of the usual VIP, which has a handful of rules: two
// cache lines with values of a word, both of which can be asked for before either is there.
//
// The rules are held side by side against the packet, without a branch: the processor cannot
// guess which one will match, and a wrong guess costs more than all comparisons. What is found
// is in lanes, a byte for each rule, of which the lowest bit counts.
//
//	word   IPv4                                  IPv6
//	0      VIP                                   0-3   VIP
//	1-     first ports, half a word each         4-8   first and last ports
//	3.5-   last ports                            9-18  clients, the upper halves of the first ones
//	6-10   first clients
//	11-15  last clients
//	19-20  meta                                  19-20 meta
//	                                             21    by how many bits to shift clients of rule 1-4
//
// Ports and clients of IPv4 have their sign bits flipped, see outside4.
// meta has, from the low end, for each rule the protocol classes as bits, the length of the VIP
// prefix, the flags, and the shift of rule 0 for IPv6.
type slot[V any] struct {
	head   slotHead
	values [slotRules]V
}

// slotHead is a slot but for the values.
type slotHead [22]uint32

const (
	slotRules = 5

	lanes    = 0x01_01_01_01_01
	sign16   = 1 << 15
	sign32   = 1 << 31
	bitsAt   = 40 // in meta
	flagsAt  = 48
	shiftsAt = 56

	slotUsed   = 1 << 0
	slotLarge  = 1 << 1 // the rules are in the program of the service instead
	slotStrict = 1 << 2
	tiersAt    = 3 // from here, for each rule but the last whether the next is of another tier
)

// The protocol classes of slots, by bit.
const (
	classOther = iota // none of the others: its protocol number is its port
	classTCP
	classUDP
	classSCTP
	classDCCP
	classUDPLite
	classICMP
	classICMPv6
)

var classes = [256]uint8{6: classTCP, 17: classUDP, 132: classSCTP, 33: classDCCP, 136: classUDPLite, 1: classICMP, 58: classICMPv6}

// classify returns the class of a packet and what counts as its port.
func classify(proto uint8, port uint16) (class, x uint32) {
	c := int32(classes[proto])
	none := uint32((c-classTCP)|(classUDPLite-c)) >> 31 // 1 if the protocol has no ports
	mask := -none
	return uint32(c), uint32(port)&^mask | uint32(proto)&mask
}

// classesOf returns the classes and what counts as ports of a rule.
func (n *norm) classesOf() (mask uint8, first, last uint16) {
	first, last = 0, 65535
	if !n.ports.IsAny() {
		first, last = n.ports.First, n.ports.Last
	}
	switch num, isNum := n.proto.Number(); {
	case isNum && classes[num] == classOther:
		return 1 << classOther, uint16(num), uint16(num)
	case isNum:
		return 1 << classes[num], first, last
	case n.proto == Other:
		return 1<<classOther | 1<<classSCTP | 1<<classDCCP | 1<<classUDPLite, first, last
	case n.ports.IsAny():
		return 0xff, first, last
	}
	return 1<<classTCP | 1<<classUDP | 1<<classSCTP | 1<<classDCCP | 1<<classUDPLite, first, last
}

// encode puts down the rules of one VIP, which are in order of precedence. It reports false,
// and puts down just the VIP, if they do not fit in.
func (s *slot[V]) encode(fam family, norms []norm, strict bool) bool {
	*s = slot[V]{}
	vip := &norms[0]
	s.head[0] = uint32(vip.vip.lo)
	if fam == v6 {
		s.head.put64(0, vip.vip.hi)
		s.head.put64(2, vip.vip.lo)
	}
	meta := tag(vip.bits)
	s.head.put64(19, meta|slotLarge<<flagsAt)
	if len(norms) > slotRules {
		return false
	}
	for i := range norms {
		n := &norms[i]
		mask, first, last := n.classesOf()
		meta |= uint64(mask) << (8 * i)
		ports := uint32(first) | uint32(last)<<16
		if strict && i > 0 && n.tier != norms[i-1].tier {
			meta |= 1 << (flagsAt + tiersAt + i - 1)
			meta |= slotStrict << flagsAt
		}
		if fam == v4 {
			s.head.putHalf(2+i, first^sign16)
			s.head.putHalf(7+i, last^sign16)
			s.head[6+i], s.head[11+i] = uint32(n.src.first.lo)^sign32, uint32(n.src.last.lo)^sign32
			continue
		}
		shift := bits.Len64(n.src.first.hi ^ n.src.last.hi)
		if n.src.first.lo != 0 || ^n.src.last.lo != 0 || v6.last(n.src.first, 64-shift) != n.src.last || v6.mask(n.src.first, 64-shift) != n.src.first {
			return false // not a prefix of up to /64
		}
		s.head[4+i] = ports
		s.head.put64(9+2*i, n.src.first.hi)
		if i == 0 {
			meta |= uint64(shift) << shiftsAt
		} else {
			s.head[21] |= uint32(shift) << (8 * (i - 1))
		}
	}
	s.head.put64(19, meta)
	return true
}

func (w *slotHead) word64(i int) uint64   { return uint64(w[i]) | uint64(w[i+1])<<32 }
func (w *slotHead) put64(i int, x uint64) { w[i], w[i+1] = uint32(x), uint32(x>>32) }

// meta returns the words 19 and 20. Asking for them asks for the second cache line.
func (w *slotHead) meta() uint64 { return w.word64(19) }

// tag is what meta has of the VIP of a slot in use.
func tag(n uint8) uint64 { return slotUsed<<flagsAt | uint64(n)<<bitsAt }

const tagMask = (slotUsed<<8 | 0xff) << bitsAt

// is4 reports whether the slot is of the IPv4 prefix with the tag at x.
func (w *slotHead) is4(x uint32, tag uint64) bool { return w[0] == x && w.meta()&tagMask == tag }

func (w *slotHead) is6(x u128, tag uint64) bool {
	return w.word64(2) == x.lo && w.word64(0) == x.hi && w.meta()&tagMask == tag
}

func (w *slotHead) large() bool { return w.meta()&(slotLarge<<flagsAt) != 0 }

// special reports whether the slot is large or strict.
func (w *slotHead) special() bool { return w.meta()&((slotLarge|slotStrict)<<flagsAt) != 0 }

func (w *slotHead) strict() bool { return w.meta()&(slotStrict<<flagsAt) != 0 }

// match4 returns the lanes of the rules that hold a packet, by its class and port and its source.
func (w *slotHead) match4(class, port, src uint32) (hits uint64) {
	return w.meta() >> (class & 7) & lanes &^ outside4(w, port^sign16, src^sign32)
}

// outside4Go returns the lanes of the rules that do not hold a port or do not hold a source, both with
// flipped signs. Lanes may have other bits than the lowest set, and those that are not used any.
func outside4Go(w *slotHead, port, src uint32) (out uint64) {
	x, y := int16(port), int32(src)
	for i := range slotRules {
		if int16(w.half(2+i)) > x || x > int16(w.half(7+i)) || int32(w[6+i]) > y || y > int32(w[11+i]) {
			out |= 1 << (8 * i)
		}
	}
	return out
}

// half returns a half of a word, the lower one first.
func (w *slotHead) half(i int) uint16       { return uint16(w[i/2] >> (i % 2 * 16)) }
func (w *slotHead) putHalf(i int, x uint16) { w[i/2] |= uint32(x) << (i % 2 * 16) }

// match6 is match4 for IPv6; src is the upper half of the source.
func (w *slotHead) match6(class, port uint32, src uint64) (hits uint64) {
	x, meta, n := int64(port), w.meta(), w[21]
	out := outside6(w[4], w.word64(9), meta>>shiftsAt, x, src)
	out |= outside6(w[5], w.word64(11), uint64(n&0xff), x, src) << 8
	out |= outside6(w[6], w.word64(13), uint64(n>>8&0xff), x, src) << 16
	out |= outside6(w[7], w.word64(15), uint64(n>>16&0xff), x, src) << 24
	out |= outside6(w[8], w.word64(17), uint64(n>>24), x, src) << 32
	return meta >> (class & 7) & lanes &^ out
}

// outside6 returns 1 if port x or source y is not one of those of a rule. A difference below zero,
// whose sign is then all that is left, says so of ports.
func outside6(ports uint32, clients, shift uint64, x int64, src uint64) uint64 {
	d := (clients ^ src) >> shift // 0 if src is one of them
	return uint64((x-int64(ports&0xffff))|(int64(ports>>16)-x)|int64(d|-d)) >> 63
}

// rows returns the lanes of the rules for a packet's class and port, whatever its source.
func (w *slotHead) rows(fam family, class, port uint32) (rows uint64) {
	for i := range slotRules {
		first, last := w[4+i]&0xffff, w[4+i]>>16
		if fam == v4 {
			first, last = uint32(w.half(2+i)^sign16), uint32(w.half(7+i)^sign16)
		}
		if first <= port && port <= last {
			rows |= 1 << (8 * i)
		}
	}
	return w.meta() >> (class & 7) & rows
}

// rank returns the rank plus one of the first of hits, or 0.
func rank(hits uint64) uint32 {
	if hits == 0 {
		return 0
	}
	return uint32(bits.TrailingZeros64(hits))/8 + 1
}

// narrow leaves, of the hits among rows, with StrictTier only those in the tier of the first row. The
// rows of that are shown to visit, see [service.resolve].
func (w *slotHead) narrow(rows, hits uint64, visit func(rows []uint32)) uint64 {
	if w.strict() && rows != 0 {
		first := bits.TrailingZeros64(rows) / 8
		last := first + bits.TrailingZeros64(w.meta()>>(flagsAt+tiersAt)&0xf>>first|1<<slotRules)
		rows &= 1<<(8*last+8) - 1
		hits &= rows
	}
	if visit != nil {
		for ; rows != 0; rows &= rows - 1 {
			i := uint32(bits.TrailingZeros64(rows) / 8)
			visit([]uint32{i, i + 1})
		}
	}
	return hits
}
