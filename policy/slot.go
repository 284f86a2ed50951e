package policy

import "math/bits"

// slot is all that a look-up reads of the usual VIP, which has a handful of rules: two
// cache lines with values of a word, both of which can be asked for before either is there.
//
// The rules are held side by side against the packet, without a branch: the processor cannot
// guess which one will match, and a wrong guess costs more than all comparisons. What is found
// is in lanes, a byte for each rule, of which the lowest bit counts.
//
//	word    IPv4                     IPv6
//	0       VIP                      0-3   VIP
//	1-5     ports, first and last    4-8   ports
//	6-15    clients, first and last  9-18  clients, the upper halves of the first ones
//	19-20   meta
//	21                               by how many bits to shift clients of rule 1-4
//
// meta has, from the low end, for each rule the protocol classes as bits, the length of the VIP
// prefix, the flags, and the shift of rule 0 for IPv6.
type slot[V any] struct {
	words  [slotWords]uint32
	values [slotRules]V
}

const (
	slotRules = 5
	slotWords = 22

	lanes    = 0x01_01_01_01_01
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
	s.words[0] = uint32(vip.vip.lo)
	if fam == v6 {
		s.put64(0, vip.vip.hi)
		s.put64(2, vip.vip.lo)
	}
	meta := uint64(vip.bits)<<bitsAt | slotUsed<<flagsAt
	s.put64(19, meta|slotLarge<<flagsAt)
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
			s.words[1+i] = ports
			s.words[6+2*i], s.words[7+2*i] = uint32(n.src.first.lo), uint32(n.src.last.lo)
			continue
		}
		shift := bits.Len64(n.src.first.hi ^ n.src.last.hi)
		if n.src.first.lo != 0 || ^n.src.last.lo != 0 || v6.last(n.src.first, 64-shift) != n.src.last || v6.mask(n.src.first, 64-shift) != n.src.first {
			return false // not a prefix of up to /64
		}
		s.words[4+i] = ports
		s.put64(9+2*i, n.src.first.hi)
		if i == 0 {
			meta |= uint64(shift) << shiftsAt
		} else {
			s.words[21] |= uint32(shift) << (8 * (i - 1))
		}
	}
	s.put64(19, meta)
	return true
}

func (s *slot[V]) word64(i int) uint64   { return uint64(s.words[i]) | uint64(s.words[i+1])<<32 }
func (s *slot[V]) put64(i int, x uint64) { s.words[i], s.words[i+1] = uint32(x), uint32(x>>32) }
func (s *slot[V]) meta() uint64          { return s.word64(19) }
func (s *slot[V]) ports(at int) (f, l int64) {
	w := s.words[at]
	return int64(w & 0xffff), int64(w >> 16)
}

// is reports whether the slot is of the prefix of n bits at x.
func (s *slot[V]) is(fam family, x u128, n uint8) bool {
	if uint16(s.meta()>>bitsAt)&(slotUsed<<8|0xff) != slotUsed<<8|uint16(n) {
		return false
	}
	if fam == v4 {
		return s.words[0] == uint32(x.lo)
	}
	return s.word64(0) == x.hi && s.word64(2) == x.lo
}

// touch reads both cache lines.
func (s *slot[V]) touch() uint32 { return s.words[0] ^ s.words[19] }

func (s *slot[V]) large() bool { return s.meta()&(slotLarge<<flagsAt) != 0 }

// resolve is what service.resolve is for slots that are not large.
func (s *slot[V]) resolve(fam family, class, port uint32, src u128, visit func(rows []uint32)) uint32 {
	meta := s.meta()
	rows := meta >> (class & 7) & lanes
	hits := rows
	if fam == v4 {
		rows &^= s.outside(1, int64(port))
		hits = rows &^ s.foreign4(int64(src.lo))
	} else {
		rows &^= s.outside(4, int64(port))
		hits = rows &^ s.foreign6(src.hi, meta)
	}
	if meta&(slotStrict<<flagsAt) != 0 && rows != 0 {
		first := bits.TrailingZeros64(rows) / 8
		end := bits.TrailingZeros64(meta>>(flagsAt+tiersAt)&0xf>>first|1<<slotRules) + first
		rows &= 1<<(8*end+8) - 1
		hits &= rows
	}
	if visit != nil {
		for r := rows; r != 0; r &= r - 1 {
			i := uint32(bits.TrailingZeros64(r) / 8)
			visit([]uint32{i, i + 1})
		}
	}
	if hits == 0 {
		return 0
	}
	return uint32(bits.TrailingZeros64(hits))/8 + 1
}

// outside returns the lanes of rules whose ports, from word at, do not hold x. A difference
// below zero, whose sign is then moved to the lane, says so.
func (s *slot[V]) outside(at int, x int64) (out uint64) {
	for i := range slotRules {
		first, last := s.ports(at + i)
		out |= uint64((x-first)|(last-x)) >> 63 << (8 * i)
	}
	return out
}

// foreign4 returns the lanes of rules whose clients do not hold x, an address of IPv4.
func (s *slot[V]) foreign4(x int64) (out uint64) {
	for i := range slotRules {
		first, last := int64(s.words[6+2*i]), int64(s.words[7+2*i])
		out |= uint64((x-first)|(last-x)) >> 63 << (8 * i)
	}
	return out
}

// foreign6 is foreign4 for the upper half of an address of IPv6.
func (s *slot[V]) foreign6(x, meta uint64) (out uint64) {
	shifts := uint64(s.words[21])<<8 | meta>>shiftsAt
	for i := range slotRules {
		d := (x ^ s.word64(9+2*i)) >> (shifts >> (8 * i) & 0xff)
		out |= (d | -d) >> 63 << (8 * i)
	}
	return out
}
