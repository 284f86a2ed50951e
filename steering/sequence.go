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
// and the richest pays the sum of all for its turn.
func smooth(w []uint64) []int16 {
	var sum int64
	for _, x := range w {
		sum += int64(x)
	}
	credit := make([]int64, len(w))
	seq := make([]int16, sum)
	for s := range seq {
		best := 0
		for i := range credit {
			credit[i] += int64(w[i])
			if credit[i] > credit[best] {
				best = i
			}
		}
		credit[best] -= sum
		seq[s] = int16(best)
	}
	return seq
}

func smoothLimit(n int) uint64 {
	return uint64(min(maxSequence, max(8*n, smoothBudget/max(n, 1))))
}
