package policy

import (
	"cmp"
	"iter"
	"maps"
	"slices"
)

// Shadowed iterates over the enabled rules that can never win, in order of precedence,
// each with its cover: the rules of its VIP that win, or end the search, where it would,
// or the rules of longer VIP prefixes that own all addresses of its VIP. This is no fault, but
// seldom what was meant. It reads all that was compiled and is not for the hot path.
func (t *Table[V]) Shadowed() iter.Seq2[*Rule[V], []*Rule[V]] {
	return func(yield func(*Rule[V], []*Rule[V]) bool) {
		if t == nil {
			return
		}
		owned := t.ownedElsewhere()
		for _, s := range t.groups(false) {
			if cover := owned[s]; cover != nil {
				for _, r := range s.rules {
					if !yield(r, cover) {
						return
					}
				}
				continue
			}
			for rank, cover := range s.shadowed(t.cfg.StrictTier) {
				if !yield(s.rules[rank], s.pick(cover)) {
					return
				}
			}
		}
	}
}

func (s *service[V]) pick(ranks []uint32) []*Rule[V] {
	rules := make([]*Rule[V], len(ranks))
	for i, r := range ranks {
		rules[i] = s.rules[r]
	}
	return rules
}

// ownedElsewhere finds the VIP prefixes all of whose addresses are owned by longer
// ones, with the rules of those.
func (t *Table[V]) ownedElsewhere() map[*service[V]][]*Rule[V] {
	owned := make(map[*service[V]][]*Rule[V])
	for i := range t.live {
		for j := range t.live[i] {
			var all []*service[V]
			t.live[i][j].all(func(s *service[V]) bool {
				all = append(all, s)
				return true
			})
			slices.SortFunc(all, func(a, b *service[V]) int {
				return cmp.Or(a.vip.cmp(b.vip), cmp.Compare(a.bits, b.bits))
			})
			for k, s := range all {
				if cover := tiling(s, all[k+1:]); cover != nil {
					owned[s] = cover
				}
			}
		}
	}
	return owned
}

// tiling returns the rules of the widest prefixes among rest that together make up all
// of s, or nil.
func tiling[V any](s *service[V], rest []*service[V]) (rules []*Rule[V]) {
	p := s.prefix()
	whole := p.vipSpan()
	next := whole.first
	for _, o := range rest {
		q := o.prefix()
		part := q.vipSpan()
		switch {
		case next.less(part.first):
			return nil // a gap, or beyond s
		case part.first.less(next):
			continue // inside the part before
		}
		rules = append(rules, o.rules...)
		if part.last == whole.last {
			return rules
		}
		next = part.last.inc()
	}
	return nil
}

// stretch is a range of keys for which one value holds.
type stretch struct {
	first, end uint32
	value      uint32
}

// stretches returns the table of protocols and ports.
func (p prog) stretches() []stretch {
	n := int(p[0] & sizeMask)
	at := 1
	if p[0]&indexed != 0 {
		at += 4 + int(p[at+1])
	}
	starts, values := p[at:at+n], p[at+n:at+n+n+1]
	var out []stretch
	first := uint32(0)
	for i, v := range values {
		end := portless<<16 + 256
		if i < n {
			end = min(end, starts[i])
		}
		if anyPacket(first, end) {
			out = append(out, stretch{first, end, v})
		}
		first = end
	}
	return out
}

// anyPacket reports whether some packet has a key from first to before end. The keys of
// protocols with ports among those without are not used.
func anyPacket(first, end uint32) bool {
	for first < end && first >= portless<<16 && packetHasPorts(uint8(first)) {
		first++
	}
	return first < end
}

// shadowed iterates over the ranks of rules that never win, with the ranks of those that
// do in their stead.
func (s *service[V]) shadowed(strict bool) iter.Seq2[uint32, []uint32] {
	return func(yield func(uint32, []uint32) bool) {
		norms := s.norms()
		p, members := s.prog, s.members
		if p == nil {
			b := builder{strict: strict}
			p, members = b.build(s.fam, norms)
		}
		x := shadows{fam: s.fam, norms: norms, wins: make([]bool, len(s.rules)), prog: p, rows: make(map[uint32][]uint32), flats: make(map[uint32]*flat)}
		for m := members; len(m) > 0; m = m[2+2*m[1]:] {
			x.rows[m[0]] = m[2 : 2+2*m[1]]
		}
		all := p.stretches()
		x.mark(all)
		for rank := range s.rules {
			if !x.wins[rank] && !yield(uint32(rank), x.cover(all, rank)) {
				return
			}
		}
	}
}

type shadows struct {
	fam   family
	norms []norm
	wins  []bool
	prog  prog

	rows  map[uint32][]uint32 // by table, see service.members
	flats map[uint32]*flat    // by value
	flattener
}

// ranks returns the ranks of all rules that take part in a value.
func (x *shadows) ranks(v uint32) (ranks []uint32) {
	var tables []uint32
	switch {
	case v == 0:
	case v&direct != 0:
		return []uint32{v &^ direct}
	case v&chained != 0:
		at := v & operand
		for i := range x.prog[at] {
			tables = append(tables, x.prog[at+2+2*i])
		}
	default:
		tables = append(tables, v)
	}
	for _, o := range tables {
		for rows := x.rows[o]; len(rows) > 1; rows = rows[2:] {
			for r := rows[0]; r < rows[1]; r++ {
				ranks = append(ranks, r)
			}
		}
	}
	return ranks
}

// resolve returns the winners for every source.
func (x *shadows) resolve(ranks []uint32) *flat {
	in := make([]paint, len(ranks))
	for i, r := range ranks {
		in[i] = paint{x.norms[r].src, r}
	}
	return x.paint(x.fam, in)
}

// resolved returns the winners for every source of a value. It keeps them: many rules may
// be shadowed in one table.
func (x *shadows) resolved(v uint32) *flat {
	f := x.flats[v]
	if f == nil {
		r := x.resolve(x.ranks(v))
		f = &flat{slices.Clone(r.starts), slices.Clone(r.values)}
		x.flats[v] = f
	}
	return f
}

// mark finds the rules that win anywhere.
func (x *shadows) mark(all []stretch) {
	seen := make(map[uint32]bool)
	for _, st := range all {
		if seen[st.value] {
			continue
		}
		seen[st.value] = true
		ranks := x.ranks(st.value)
		if !slices.ContainsFunc(ranks, func(r uint32) bool { return !x.wins[r] }) {
			continue
		}
		for _, v := range x.resolve(ranks).values {
			if v != 0 {
				x.wins[v-1] = true
			}
		}
	}
}

// cover returns who wins where a rule that never wins would.
func (x *shadows) cover(all []stretch, rank int) []uint32 {
	n := &x.norms[rank]
	cover := make(map[uint32]bool)
	seen := make(map[uint32]bool)
	for _, k := range n.appendKeys(nil, 0) {
		at, _ := slices.BinarySearchFunc(all, k.first, func(st stretch, key uint32) int {
			return cmp.Compare(st.end, key+1)
		})
		for _, st := range all[at:] {
			if st.first > k.last {
				break
			}
			if anyPacket(max(st.first, k.first), min(st.end, k.last+1)) && !seen[st.value] {
				seen[st.value] = true
				x.addCover(cover, st.value, n.src)
			}
		}
	}
	return slices.Sorted(maps.Keys(cover))
}

// addCover adds who wins a value for the sources of a rule.
func (x *shadows) addCover(cover map[uint32]bool, value uint32, src span) {
	f := x.resolved(value)
	i, found := slices.BinarySearchFunc(f.starts, src.first, u128.cmp)
	if found {
		i++
	}
	for ; ; i++ {
		if v := f.values[i]; v != 0 {
			cover[v-1] = true
		} else { // StrictTier: these rules end the search
			for _, r := range x.ranks(value) {
				cover[r] = true
			}
		}
		if i == len(f.starts) || src.last.less(f.starts[i]) {
			return
		}
	}
}
