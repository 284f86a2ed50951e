package policy

import "slices"

// service is the compiled rules of one VIP. It never changes. A look-up in the usual VIP,
// which has a handful of rules, reads the first two or three cache lines of it and
// nothing else.
type service[V any] struct {
	vip   u128
	few   [fewValues]V // the first values
	bits  uint8
	fam   family
	big   bool               // the program is in large
	small [smallWords]uint32 // the program where it fits
	large prog
	*details[V]
}

// details is what look-ups in small services do not read.
type details[V any] struct {
	values []V        // by rank
	rules  []*Rule[V] // by rank, that is by precedence

	// members is, for each table of sources, its place in the program, the number of
	// rows of rules that it was made of, and for each the first rank and the last plus
	// one. Only Explain and Shadowed read it.
	members []uint32
}

const (
	fewValues  = 4
	smallWords = 43 // fills four cache lines, with values of a word
)

func newService[V any](n *norm, p prog, members []uint32, rules []*Rule[V]) *service[V] {
	s := &service[V]{vip: n.vip, bits: n.bits, fam: n.fam}
	s.details = &details[V]{make([]V, len(rules)), rules, slices.Clone(members)}
	if s.big = len(p) > smallWords; s.big {
		s.large = slices.Clone(p)
	} else {
		copy(s.small[:], p)
	}
	for i, r := range rules {
		s.values[i] = r.Value
	}
	copy(s.few[:], s.values)
	return s
}

// value returns the value of a rank.
func (s *service[V]) value(rank uint32) V {
	if rank < fewValues {
		return s.few[rank]
	}
	return s.values[rank]
}

// program returns the compiled tables.
func (s *service[V]) program() prog {
	if s.big {
		return s.large
	}
	return s.small[:]
}

// rowsOf returns the rows of rules that the table of sources at o was made of, as pairs.
func (s *service[V]) rowsOf(o uint32) []uint32 {
	for m := s.members; len(m) > 0; m = m[2+2*m[1]:] {
		if m[0] == o {
			return m[2 : 2+2*m[1]]
		}
	}
	return nil
}

// prefix returns the VIP as a norm, for comparing.
func (s *service[V]) prefix() norm { return norm{fam: s.fam, bits: s.bits, vip: s.vip} }

// resolve returns the rank of the rule that holds the packet, plus one, or zero; v is what the
// table of protocols and ports says. This is the one search there is: visit is nil on the
// fast path and else is shown each table of rules that the search reads, in the order of
// their lowest ranks.
func (s *service[V]) resolve(p prog, v uint32, src u128, visit func(rows []uint32)) uint32 {
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
			visit(s.rowsOf(v))
		}
		return p.source(s.fam, v, src)
	}
	at := v & operand
	best := ^uint32(0)
	for pairs := p[at+1 : at+1+2*p[at]]; len(pairs) >= 2 && pairs[0] < best; pairs = pairs[2:] {
		if visit != nil {
			visit(s.rowsOf(pairs[1]))
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
