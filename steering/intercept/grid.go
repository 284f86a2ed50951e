package intercept

import (
	"math/bits"
	"slices"
)

// A grid finds the first of many rows with ranges of ports at both ends: a tree halves the
// ports at A again and again, a row lies at the few nodes that make up its range, and each
// node has the ports at B of its rows laid over each other. So a look-up asks as many nodes as
// the tree is high, however many rows there are.
type grid struct {
	cuts  []uint16 // starts of the intervals of ports at A that rows do not divide
	nodes []gridNode
}

type gridNode struct {
	first int32 // of its rows
	b     steps
}

// gridWorth is how many rows are asked in turn sooner than a grid.
const gridWorth = 8

func newGrid(rows []Row, ab []int32) *grid {
	cuts := []uint16{0}
	for _, row := range ab {
		p := rows[row].A.Ports
		if cuts = append(cuts, p.First); p.Last < 0xffff {
			cuts = append(cuts, p.Last+1)
		}
	}
	slices.Sort(cuts)
	g := &grid{cuts: slices.Compact(cuts)}
	n := len(g.cuts)
	// Node 1 is the root, 2i and 2i+1 are below i, interval i is node n+i.
	at := make([][]portRow, 2*n)
	for _, row := range ab {
		p := rows[row].A.Ports
		from, _ := slices.BinarySearch(g.cuts, p.First)
		to := n
		if p.Last < 0xffff {
			to, _ = slices.BinarySearch(g.cuts, p.Last+1)
		}
		b := portRow{rows[row].B.Ports, row}
		for l, r := from+n, to+n; l < r; l, r = l/2, r/2 {
			if l%2 == 1 {
				at[l] = append(at[l], b)
				l++
			}
			if r%2 == 1 {
				r--
				at[r] = append(at[r], b)
			}
		}
	}
	g.nodes = make([]gridNode, 2*n)
	for i, rows := range at {
		g.nodes[i].first = noRow
		if len(rows) > 0 {
			g.nodes[i] = gridNode{rows[0].row, newSteps(rows)}
		}
	}
	return g
}

// lookup returns the first row for ports at the ends A and B, or best if that is before it.
func (g *grid) lookup(pa, pb uint16, best int32) int32 {
	i, found := slices.BinarySearch(g.cuts, pa)
	if !found {
		i--
	}
	i += len(g.cuts)
	// From the root, where most rows are: what is found there spares most of the others.
	for k := bits.Len(uint(i)) - 1; k >= 0; k-- {
		if n := &g.nodes[i>>k]; n.first < best {
			best = min(best, n.b.first(pb))
		}
	}
	return best
}
