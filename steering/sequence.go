package steering

import "slices"

const (
	maxSequence  = 1 << 16 // slots of a turn table
	smoothBudget = 1 << 22 // slots times nodes a smooth table may cost to build
)

// reduceWeights divides w by its greatest common divisor and, where the sum still
// exceeds limit, scales it down by largest remainder, keeping every weight at 1 or more.
func reduceWeights(w []uint64, limit uint64) []uint64 {
	out := slices.Clone(w)
	var g, sum uint64
	for _, x := range out {
		g = gcd(g, x)
	}
	for i := range out {
		out[i] /= max(g, 1)
		sum += out[i]
	}
	if sum <= limit || uint64(len(out)) >= limit {
		if sum > limit {
			for i := range out {
				out[i] = 1
			}
		}
		return out
	}
	// One slot each beforehand, so that no weight vanishes.
	rest := make([]uint64, len(out))
	for i, x := range out {
		rest[i] = x - min(x, sum/limit)
	}
	quotas := largestRemainder(rest, int(limit)-len(out))
	for i := range out {
		out[i] = 1 + uint64(quotas[i])
	}
	return out
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// largestRemainder splits total into parts proportional to w, each within one of its
// exact share. Equal remainders go to the earlier index.
func largestRemainder(w []uint64, total int) []int {
	quotas := make([]int, len(w))
	var sum uint64
	for _, x := range w {
		sum += x
	}
	if sum == 0 {
		return quotas
	}
	type part struct {
		remainder uint64
		i         int
	}
	parts := make([]part, len(w))
	left := total
	for i, x := range w {
		// Weights are below 2^36 and totals below 2^25.
		n := x * uint64(total)
		quotas[i] = int(n / sum)
		parts[i] = part{n % sum, i}
		left -= quotas[i]
	}
	slices.SortStableFunc(parts, func(a, b part) int {
		switch {
		case a.remainder > b.remainder:
			return -1
		case a.remainder < b.remainder:
			return 1
		}
		return 0
	})
	for _, p := range parts[:left] {
		quotas[p.i]++
	}
	return quotas
}

// rounds lays out turns in rounds: a node of weight w takes part in the first w.
func rounds(w []uint64) []int16 {
	var seq []int16
	turn := make([]int16, len(w))
	for i := range turn {
		turn[i] = int16(i)
	}
	for r := uint64(1); len(turn) > 0; r++ {
		turn = slices.DeleteFunc(turn, func(i int16) bool { return w[i] < r })
		seq = append(seq, turn...)
	}
	return seq
}

// smooth lays out turns as evenly as they go: each step every node earns its weight,
// and the richest, the first of them, pays the sum of all for its turn. Nodes of one
// weight are one class whose members take its turns in order, so that a step costs the
// number of different weights.
func smooth(w []uint64) []int16 {
	type class struct {
		weight, credit int64 // credit of the member whose turn it is
		members        []int16
		at             int
	}
	var classes []class
	var sum int64
	of := map[uint64]int{}
	for i, x := range w {
		sum += int64(x)
		c, ok := of[x]
		if !ok {
			c = len(classes)
			of[x] = c
			classes = append(classes, class{weight: int64(x)})
		}
		classes[c].members = append(classes[c].members, int16(i))
	}
	seq := make([]int16, sum)
	for s := range seq {
		best, first := -1, int16(0)
		for i := range classes {
			c := &classes[i]
			c.credit += c.weight
			m := c.members[c.at]
			if best < 0 || c.credit > classes[best].credit || c.credit == classes[best].credit && m < first {
				best, first = i, m
			}
		}
		c := &classes[best]
		if c.at++; c.at == len(c.members) {
			c.at = 0
			c.credit -= sum
		}
		seq[s] = first
	}
	return seq
}

func smoothLimit(n int) uint64 {
	return uint64(min(maxSequence, max(8*n, smoothBudget/max(n, 1))))
}
