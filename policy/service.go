package policy

import "slices"

// service is the compiled rules of one VIP. It never changes.
type service[V any] struct {
	vip  u128
	bits uint8
	fam  family

	// small holds the program where it fits, beside the key that the look-up has
	// just compared; else large does.
	small [smallWords]uint32
	large prog

	values []V        // by rank; apart from the rules, which look-ups need not touch
	rules  []*Rule[V] // by rank, that is by precedence
}

const smallWords = 26 // makes service three cache lines of 64 bytes

func newService[V any](n *norm, p prog, rules []*Rule[V]) *service[V] {
	s := &service[V]{vip: n.vip, bits: n.bits, fam: n.fam, rules: rules}
	if len(p) <= smallWords {
		copy(s.small[:], p)
	} else {
		s.large = slices.Clone(p)
	}
	s.values = make([]V, len(rules))
	for i, r := range rules {
		s.values[i] = r.Value
	}
	return s
}

// program returns the compiled tables.
func (s *service[V]) program() prog {
	if s.large != nil {
		return s.large
	}
	return s.small[:]
}

// prefix returns the VIP as a norm, for comparing.
func (s *service[V]) prefix() norm { return norm{fam: s.fam, bits: s.bits, vip: s.vip} }

// lookup returns the rank of the rule that holds the packet, plus one, or zero. This is
// the one search there is: visit is nil on the fast path and else is shown each
// table of rules that the search reads, in the order of their lowest ranks.
func (s *service[V]) lookup(src u128, proto uint8, port uint16, visit func(rows []uint32)) uint32 {
	p := s.program()
	v := p.key32(0, portKey(proto, port))
	switch {
	case v == 0:
		return 0
	case v&direct != 0:
		if visit != nil {
			rank := v &^ direct
			visit([]uint32{rank, rank + 1})
		}
		return v&^direct + 1
	case v&chained == 0:
		if visit != nil {
			visit(p.rows(v))
		}
		return p.source(s.fam, v, src)
	}
	at := v & operand
	best := ^uint32(0)
	for pairs := p[at+1 : at+1+2*p[at]]; len(pairs) >= 2 && pairs[0] < best; pairs = pairs[2:] {
		if visit != nil {
			visit(p.rows(pairs[1]))
		}
		if hit := p.source(s.fam, pairs[1], src); hit != 0 && hit-1 < best {
			best = hit - 1
		}
	}
	return best + 1
}

// source returns the value of the table of sources at o.
func (p prog) source(fam family, o uint32, src u128) uint32 {
	if fam == v4 {
		return p.key32(o, uint32(src.lo))
	}
	return p.key128(o, src)
}
