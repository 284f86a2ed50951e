package steering

import (
	"cmp"
	"fmt"
	"slices"
)

// DefaultBuckets is the default number of buckets of the Capacity metric, as in WCCP.
const DefaultBuckets = 256

// Buckets maps hashes to nodes through a small number of buckets, of which every node
// has its exact quota by largest remainder. The table is a pure function of the names,
// the weights, the number of buckets and the seed, whatever came before, and a change
// moves few buckets: measured over random changes, at most twice the minimum in 99 of
// 100, with 256 buckets for up to 8 nodes and with 4096 for up to 20. (A node must hold
// a few buckets for each other node for that.) It is immutable and safe for concurrent use; use [NewBuckets].
type Buckets struct{ table []int16 }

// NewBuckets assigns n buckets (2 or more) to shares with distinct names. Shares of
// weight 0 get none.
func NewBuckets(n int, seed uint64, shares ...Share) (*Buckets, error) {
	if n < 2 || n > maxTableSize {
		return nil, &FieldError{"n", n, fmt.Sprintf("2 to %d", maxTableSize)}
	}
	if err := validateShares(shares, 2*MaxCapacity); err != nil {
		return nil, err
	}
	names := make([]string, len(shares))
	weights := make([]uint64, len(shares))
	for i, s := range shares {
		names[i], weights[i] = s.Name, uint64(s.Weight)
	}
	return &Buckets{assign(n, seed, names, weights)}, nil
}

// Lookup returns the index of the share that hash belongs to, or -1 when none has a
// weight. Any hash will do, a counter too.
func (b *Buckets) Lookup(hash uint64) int {
	return int(b.table[reduce(hash*k0, uint64(len(b.table)))])
}

// Slots returns the node of each bucket, a copy.
func (b *Buckets) Slots() []int16 { return slices.Clone(b.table) }

// assign gives each of n buckets a node so that every node has its exact quota.
//
// Every pair of bucket and node has a score. A bucket asks for its best node first; a
// node that has its quota keeps those with the better scores, and a bucket that is
// turned away asks its next. The outcome is the one stable assignment, in whatever
// order they ask (Gale and Shapley 1962), and it changes little when a quota does.
func assign(n int, seed uint64, names []string, weights []uint64) []int16 {
	order := make([]int, 0, len(names))
	for i := range names {
		if weights[i] > 0 {
			order = append(order, i)
		}
	}
	table := make([]int16, n)
	for b := range table {
		table[b] = -1
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(names[a], names[b]) })
	sorted := make([]uint64, len(order))
	for j, i := range order {
		sorted[j] = weights[i]
	}
	var suitors []suitor
	for j, quota := range largestRemainder(sorted, n) {
		if quota > 0 {
			i := order[j]
			suitors = append(suitors, suitor{key: hashString(names[i], seed) | 1, index: int16(i), quota: quota})
		}
	}
	if len(suitors) == 0 {
		return table
	}
	for b := range table {
		ask := int32(b)
		below := ^uint64(0) // the score of the node that turned it away
		for {
			best, score := -1, uint64(0)
			for j := range suitors {
				if x := suitors[j].score(ask); x < below && (best < 0 || x > score) {
					best, score = j, x
				}
			}
			if best < 0 {
				break // equal scores met: the second pass below fills the gap
			}
			loser, ok := suitors[best].accept(ask, score)
			if !ok {
				break
			}
			if loser == ask {
				below = score
			} else {
				ask, below = loser, suitors[best].score(loser)
			}
		}
	}
	for j := range suitors {
		for _, h := range suitors[j].held {
			table[h.bucket] = suitors[j].index
		}
	}
	for b := range table {
		for j := 0; table[b] < 0; j++ {
			if s := &suitors[j]; len(s.held) < s.quota {
				s.held = append(s.held, bid{})
				table[b] = s.index
			}
		}
	}
	return table
}

// A suitor is a node that collects buckets, at most its quota.
type suitor struct {
	key   uint64
	index int16
	quota int
	held  []bid // a heap, the lowest score first
}

type bid struct {
	score  uint64
	bucket int32
}

func (s *suitor) score(b int32) uint64 { return fold(uint64(b)*k0^k1, s.key) }

// accept takes bucket b, or b in place of the one with the lowest score. It returns the
// bucket that was turned away, if one was.
func (s *suitor) accept(b int32, score uint64) (loser int32, turned bool) {
	h := s.held
	if len(h) < s.quota {
		h = append(h, bid{score, b})
		for i := len(h) - 1; i > 0; {
			up := (i - 1) / 2
			if h[up].score <= h[i].score {
				break
			}
			h[up], h[i] = h[i], h[up]
			i = up
		}
		s.held = h
		return 0, false
	}
	if score < h[0].score {
		return b, true
	}
	loser = h[0].bucket
	h[0] = bid{score, b}
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].score < h[c].score {
			c++
		}
		if h[i].score <= h[c].score {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	return loser, true
}
