package policy

// service is the rules of one VIP. It never changes. Look-ups read it only if the rules did
// not fit into the VIP's slot.
type service[V any] struct {
	vip   u128
	bits  uint8
	fam   family
	prog  prog       // nil if the rules are in the slot
	rules []*Rule[V] // by rank, that is by precedence

	values []V // of a large service, by rank

	// members is, for each table of sources, its place in the program, the number of
	// rows of rules that it was made of, and for each the first rank and the last plus
	// one. Only Explain and Shadowed read it.
	members []uint32
}

// rowsOf returns the rows of rules that the table of sources at o was made of, as pairs.
func rowsOf(members []uint32, o uint32) []uint32 {
	for m := members; len(m) > 0; m = m[2+2*m[1]:] {
		if m[0] == o {
			return m[2 : 2+2*m[1]]
		}
	}
	return nil
}

// prefix returns the VIP as a norm, for comparing.
func (s *service[V]) prefix() norm { return norm{fam: s.fam, bits: s.bits, vip: s.vip} }

// norms returns the matches of the rules.
func (s *service[V]) norms() []norm {
	norms := make([]norm, len(s.rules))
	for i, r := range s.rules {
		norms[i], _ = r.Match.norm() // was checked when the rule came in
	}
	return norms
}

// resolve returns the rank of the rule that holds the packet, plus one, or zero. This and match4 and
// match6 of slots, for the few rules that fit into one, are the one search there is: visit is nil on the fast path and else is shown the rules
// that the search reads, as pairs of ranks from and to, in the order of their lowest ranks.
func (s *service[V]) resolve(pk *Packet, src u128, visit func(rows []uint32)) uint32 {
	p := s.prog
	v := p.key32(0, portKey(pk.Protocol, pk.Dst.Port()))
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
			visit(rowsOf(s.members, v))
		}
		return p.source(s.fam, v, src)
	}
	at := v & operand
	best := ^uint32(0)
	for pairs := p[at+1 : at+1+2*p[at]]; len(pairs) >= 2 && pairs[0] < best; pairs = pairs[2:] {
		if visit != nil {
			visit(rowsOf(s.members, pairs[1]))
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
