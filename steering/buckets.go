package steering

import (
	"cmp"
	"slices"
)

// DefaultBuckets is the default number of buckets of the Capacity metric, as in WCCP.
const DefaultBuckets = 256

// assign gives each of n buckets a node so that every node has its exact quota. It is a
// pure function of the names, the weights, n and the seed.
func assign(n int, seed uint64, names []string, weights []uint64) []int16 {
	order := make([]int, 0, len(names))
	for i := range names {
		if weights[i] > 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(names[a], names[b]) })
	sorted := make([]uint64, len(order))
	for j, i := range order {
		sorted[j] = weights[i]
	}
	quotas := largestRemainder(sorted, n)
	type pair struct {
		score uint64
		b, j  int32
	}
	pairs := make([]pair, 0, n*len(order))
	for j, i := range order {
		key := hashString(names[i], seed)
		for b := range n {
			pairs = append(pairs, pair{fold(uint64(b)*k0^k1, key|1), int32(b), int32(j)})
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Compare(b.score, a.score) })
	table := make([]int16, n)
	for b := range table {
		table[b] = -1
	}
	for _, p := range pairs {
		if table[p.b] < 0 && quotas[p.j] > 0 {
			table[p.b] = int16(order[p.j])
			quotas[p.j]--
		}
	}
	return table
}
