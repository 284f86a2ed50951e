package policy

import (
	"cmp"
	"math/bits"
	"slices"
)

// tree arranges the rows of a VIP whose port ranges overlap too deeply for chains. The
// stretches of keys between edges are the leaves of a binary tree; each range of keys is
// cut into the fewest nodes that make it up, and all rows of a node are flattened into
// one table. A packet then meets at most one table a level, whatever the rules.
func (b *builder) tree() {
	leaves := len(b.edges) - 1
	if leaves < 1 {
		return
	}
	size := 1 << bits.Len(uint(leaves-1))

	// With StrictTier a packet must see one tier only, so each has its own nodes.
	tiers := 1
	if b.strict {
		tiers = int(TierAny) + 1
	}
	nodes := make([][]int32, 2*size*tiers)
	tierOf := func(r int32) int {
		if b.strict {
			return int(b.rows[r].tier)
		}
		return 0
	}
	for _, k := range b.keys {
		lo, _ := slices.BinarySearch(b.edges, k.first)
		hi, _ := slices.BinarySearch(b.edges, k.last+1)
		for lo, hi = lo+size, hi+size; lo < hi; lo, hi = lo/2, hi/2 {
			if lo&1 == 1 {
				at := tierOf(k.row)*2*size + lo
				nodes[at] = append(nodes[at], k.row)
				lo++
			}
			if hi&1 == 1 {
				hi--
				at := tierOf(k.row)*2*size + hi
				nodes[at] = append(nodes[at], k.row)
			}
		}
	}
	tables := make([]treeTable, len(nodes))
	for i, rows := range nodes {
		if len(rows) == 0 {
			continue
		}
		slices.Sort(rows)
		t := &tables[i]
		t.tier = b.rows[rows[0]].tier
		t.rank = b.rows[rows[0]].start
		t.total = ^uint32(0)
		for _, r := range rows {
			if b.rows[r].total {
				t.total = b.rows[r].end
				break
			}
		}
		t.at = b.addTable(rows)
	}

	var path []treeTable
	for leaf := range leaves {
		path = path[:0]
		for tier := range tiers {
			for node := leaf + size; node > 0; node /= 2 {
				if t := tables[tier*2*size+node]; t.at != 0 {
					path = append(path, t)
				}
			}
		}
		b.put(b.edges[leaf], b.pathValue(path))
	}
	b.put(b.edges[leaves], 0)
}

// treeTable is the table of one node.
type treeTable struct {
	at    uint32
	rank  uint32 // lowest in the table
	total uint32 // ranks from here on are hidden by a rule for any client
	tier  Tier
}

// pathValue puts down the chain of the tables on the way from a leaf to the root.
func (b *builder) pathValue(path []treeTable) uint32 {
	if len(path) == 0 {
		return 0
	}
	slices.SortFunc(path, func(x, y treeTable) int { return cmp.Compare(x.rank, y.rank) })
	total := ^uint32(0)
	for _, t := range path {
		total = min(total, t.total)
	}
	path = slices.DeleteFunc(path, func(t treeTable) bool {
		return t.rank >= total || b.strict && t.tier != path[0].tier
	})
	if len(path) == 1 {
		return path[0].at
	}
	at := uint32(len(b.prog)) + 1
	b.prog = append(b.prog, uint32(len(path)))
	for _, t := range path {
		b.prog = append(b.prog, t.rank, t.at)
	}
	return chained | at
}
