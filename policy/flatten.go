package policy

import (
	"cmp"
	"slices"
)

// paint is one rule's client range and its rank among the rules of its VIP; a lower
// rank is more specific and wins.
type paint struct {
	span
	rank uint32
}

// flat is the answer for every source: values[i] holds from starts[i-1] up to
// starts[i], where the start before the first is the lowest address. A value is a rank
// plus one, or zero for none.
type flat struct {
	starts []u128
	values []uint32
}

// flattener turns nested, disjoint or overlapping ranges into a flat. It keeps its
// buffers; the result of paint is good until the next call.
type flattener struct {
	flat
	edges []u128
	heap  []paint // by rank, lowest on top; those that have ended go when they come up
}

func (f *flattener) paint(fam family, in []paint) *flat {
	f.starts, f.values, f.edges, f.heap = f.starts[:0], f.values[:0], f.edges[:0], f.heap[:0]
	slices.SortFunc(in, func(a, b paint) int {
		return cmp.Or(a.first.cmp(b.first), cmp.Compare(a.rank, b.rank))
	})
	for _, p := range in {
		f.edges = append(f.edges, p.first)
		if p.last != fam.max() {
			f.edges = append(f.edges, p.last.inc())
		}
	}
	slices.SortFunc(f.edges, u128.cmp)
	f.edges = slices.Compact(f.edges)
	if len(f.edges) == 0 || f.edges[0] != (u128{}) {
		f.values = append(f.values, 0)
	}
	for _, e := range f.edges {
		for len(in) > 0 && in[0].first == e {
			f.push(in[0])
			in = in[1:]
		}
		for len(f.heap) > 0 && f.heap[0].last.less(e) {
			f.pop()
		}
		var v uint32
		if len(f.heap) > 0 {
			v = f.heap[0].rank + 1
		}
		switch {
		case len(f.values) == 0: // the lowest address
			f.values = append(f.values, v)
		case f.values[len(f.values)-1] != v:
			f.starts = append(f.starts, e)
			f.values = append(f.values, v)
		}
	}
	return &f.flat
}

func (f *flattener) push(p paint) {
	f.heap = append(f.heap, p)
	for i := len(f.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if f.heap[up].rank < f.heap[i].rank {
			break
		}
		f.heap[up], f.heap[i] = f.heap[i], f.heap[up]
		i = up
	}
}

func (f *flattener) pop() {
	n := len(f.heap) - 1
	f.heap[0] = f.heap[n]
	f.heap = f.heap[:n]
	for i := 0; ; {
		least := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < n && f.heap[c].rank < f.heap[least].rank {
				least = c
			}
		}
		if least == i {
			return
		}
		f.heap[i], f.heap[least] = f.heap[least], f.heap[i]
		i = least
	}
}
