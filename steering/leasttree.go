package steering

import "sync/atomic"

// A leastTree is a tournament: every inner node names the winner of its two children,
// the root the node with the fewest sessions per weight. A change of a count plays the
// matches from that leaf to the root again, so a pick costs the logarithm of the number
// of nodes.
//
// It takes no lock. Whoever changed a count evaluates each match until the stored
// winner is the one he computes; a winner stored from older counts is thereby put right
// by its own writer or by the author of the later change, so that the tree is exact
// whenever nothing is under way.
type leastTree struct {
	win  []atomic.Uint32
	base uint32 // leaf i is at base + i
}

const noLeaf = ^uint32(0)

func newLeastTree(n int) *leastTree {
	base := uint32(1)
	for int(base) < n {
		base *= 2
	}
	t := &leastTree{make([]atomic.Uint32, 2*base), base}
	for i := range t.win {
		t.win[i].Store(noLeaf)
	}
	return t
}

// enter puts leaf i into the tournament.
func (t *leastTree) enter(i int) { t.win[t.base+uint32(i)].Store(uint32(i)) }

func (t *leastTree) root() uint32 { return t.win[1].Load() }

// update plays the matches of leaf i again, up to the first that it neither won before
// nor wins now: nothing above depends on it.
func (t *leastTree) update(g *group, i int) {
	for n := (t.base + uint32(i)) / 2; n > 0; n /= 2 {
		if w, changed := t.play(g, n); !changed && w != uint32(i) {
			return
		}
	}
}

// updateAll plays all matches again.
func (t *leastTree) updateAll(g *group) {
	for n := t.base - 1; n > 0; n-- {
		t.play(g, n)
	}
}

// play stores the winner of match n and says whether it is another than before.
func (t *leastTree) play(g *group, n uint32) (winner uint32, changed bool) {
	for {
		a, b := t.win[2*n].Load(), t.win[2*n+1].Load()
		w := a
		if a == noLeaf || b != noLeaf && g.fewer(int(b), int(a)) {
			w = b
		}
		old := t.win[n].Load()
		if old == w {
			return w, changed
		}
		if t.win[n].CompareAndSwap(old, w) {
			changed = true
		}
	}
}

// fewer says whether node i comes before node j: one with room before a full one, then
// by sessions per weight, then by whose turn it is, then by position.
func (g *group) fewer(i, j int) bool {
	a, b := &g.nodes[i], &g.nodes[j]
	as, bs := a.h.sessions(), b.h.sessions()
	afull, bfull := a.limit != 0 && as >= a.limit, b.limit != 0 && bs >= b.limit
	if afull != bfull {
		return bfull
	}
	if x, y := uint64(as)*b.weight, uint64(bs)*a.weight; x != y {
		return x < y
	}
	if d := int64(a.h.vt.Load() - b.h.vt.Load()); d != 0 {
		return d < 0
	}
	return g.rank(i) < g.rank(j)
}

// rank is the position of node i, counted from the one the seed starts at.
func (g *group) rank(i int) int {
	if i < g.first {
		i += len(g.nodes)
	}
	return i - g.first
}
