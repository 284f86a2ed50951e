package policy

import (
	"cmp"
	"slices"
)

// conflict is a pair of rules of one VIP, by rank, that would make the answer depend on
// the order of rules; port and src are in both.
type conflict struct {
	a, b int
	err  error // ErrDuplicate or ErrAmbiguous
	port uint16
	src  u128
}

// conflicts finds the conflicts among the rules of one VIP, which are in order of precedence,
// and stops when report returns false. A group of equal rules is reported as its
// first member with each of the others, and only the first meets rules outside.
//
// The usual configuration, whose ranges are nested or disjoint, costs a sort; only where
// two ranges cross are pairs looked for.
func conflicts(norms []norm, report func(conflict) bool) {
	var rows []crossRow
	for start := 0; start < len(norms); {
		end := start + 1
		for end < len(norms) && norms[end].compareRow(&norms[start]) == 0 {
			end++
		}
		unique, ok := conflictsInRow(norms, start, end, report)
		if !ok {
			return
		}
		n := &norms[start]
		if !n.ports.IsAny() {
			rows = append(rows, crossRow{proto: n.proto, ports: n.ports, rules: unique})
		}
		start = end
	}
	conflictsOfRows(norms, rows, report)
}

// conflictsInRow handles the rules from start to end, all for the same protocol and
// ports. It returns the ranks of one of each group of equal rules, by first address.
func conflictsInRow(norms []norm, start, end int, report func(conflict) bool) (unique []int, ok bool) {
	unique = make([]int, 0, end-start)
	for i := start; i < end; i++ {
		unique = append(unique, i)
	}
	if len(unique) == 1 {
		return unique, true
	}
	slices.SortFunc(unique, func(i, j int) int {
		a, b := &norms[i], &norms[j]
		return cmp.Or(a.src.first.cmp(b.src.first), b.src.last.cmp(a.src.last), cmp.Compare(i, j))
	})
	port := norms[start].ports.First
	kept := unique[:1]
	for _, i := range unique[1:] {
		j := kept[len(kept)-1]
		if norms[i].src != norms[j].src {
			kept = append(kept, i)
		} else if !report(conflict{j, i, ErrDuplicate, port, norms[i].src.first}) {
			return nil, false
		}
	}
	unique = kept
	if nested(unique, func(i int) (u128, u128) { return norms[i].src.first, norms[i].src.last }) {
		return unique, true
	}
	for k, i := range unique {
		a := &norms[i].src
		for _, j := range unique[k+1:] {
			b := &norms[j].src
			if a.last.less(b.first) {
				break
			}
			if a.first.less(b.first) && a.last.less(b.last) && !report(conflict{i, j, ErrAmbiguous, port, b.first}) {
				return nil, false
			}
		}
	}
	return unique, true
}

// nested reports whether no two ranges, which come ordered by first and then from the
// widest, overlap without one containing the other.
func nested[T any](in []T, ends func(T) (first, last u128)) bool {
	open := make([]u128, 0, 32) // ends of the ranges that contain the current one
	for _, r := range in {
		first, last := ends(r)
		for len(open) > 0 && open[len(open)-1].less(first) {
			open = open[:len(open)-1]
		}
		if len(open) > 0 && open[len(open)-1].less(last) {
			return false
		}
		open = append(open, last)
	}
	return true
}

// crossRow is the rules for one range of ports.
type crossRow struct {
	proto Protocol
	ports PortRange
	rules []int  // ranks, by first address
	cover []span // the clients of all of them, disjoint and ascending
}

// conflictsOfRows finds rules whose ranges of ports cross and that share a client.
func conflictsOfRows(norms []norm, rows []crossRow, report func(conflict) bool) {
	slices.SortFunc(rows, func(a, b crossRow) int {
		return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.ports.First, b.ports.First),
			cmp.Compare(b.ports.Last, a.ports.Last))
	})
	for len(rows) > 0 {
		end := 1
		for end < len(rows) && rows[end].proto == rows[0].proto {
			end++
		}
		if group := rows[:end]; !nested(group, crossRow.ends) && !crossing(norms, group, report) {
			return
		}
		rows = rows[end:]
	}
}

func (r crossRow) ends() (first, last u128) {
	return u128{lo: uint64(r.ports.First)}, u128{lo: uint64(r.ports.Last)}
}

func crossing(norms []norm, rows []crossRow, report func(conflict) bool) bool {
	for i := range rows {
		rows[i].unite(norms)
	}
	for i := range rows {
		a := &rows[i]
		for j := i + 1; j < len(rows) && rows[j].ports.First <= a.ports.Last; j++ {
			b := &rows[j]
			if b.ports.First == a.ports.First || b.ports.Last <= a.ports.Last || !meet(a.cover, b.cover) {
				continue
			}
			for _, x := range a.rules {
				for _, y := range b.rules {
					s, o := &norms[x].src, &norms[y].src
					src := maxU128(s.first, o.first)
					if !s.contains(src) || !o.contains(src) {
						continue
					}
					if !report(conflict{x, y, ErrAmbiguous, b.ports.First, src}) {
						return false
					}
				}
			}
		}
	}
	return true
}

// unite computes the cover.
func (r *crossRow) unite(norms []norm) {
	for _, i := range r.rules {
		s := norms[i].src
		if n := len(r.cover); n > 0 && !r.cover[n-1].last.less(s.first) {
			r.cover[n-1].last = maxU128(r.cover[n-1].last, s.last)
		} else {
			r.cover = append(r.cover, s)
		}
	}
}

// meet reports whether two ascending lists of disjoint ranges share an address.
func meet(a, b []span) bool {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].last.less(b[0].first):
			a = a[1:]
		case b[0].last.less(a[0].first):
			b = b[1:]
		default:
			return true
		}
	}
	return false
}
