package steering

import (
	"cmp"
	"fmt"
	"slices"
)

// DefaultTableSize is the default size of a Maglev table.
const DefaultTableSize = 65537

const maxTableSize = 1 << 24

// FullPart is the part of its share a node has when nothing holds it back, see
// [MaglevTable.With].
const FullPart = 64

// A Share is one entry of a table: who, and how much.
type Share struct {
	Name   string // of the node; unique
	Weight int    // 0 or more; with 0 it gets nothing
}

// A MaglevTable maps hashes to nodes so that every node gets its share to within one
// slot and a change moves few (Eisenbud et al., NSDI 2016, section 3.4). It depends on
// names, weights, size and seed, not on the order of the shares. It is immutable and
// safe for concurrent use; use [NewMaglevTable].
type MaglevTable struct {
	// What Lookup reads: few where the shares are few enough for a byte each, and half the
	// memory fits the caches; else live.
	few  []uint8
	live []int16
	// The full table, one of both.
	baseFew []uint8
	base    []int16

	keys []uint64 // per share, of its name
	walk []filler // per share, its permutation
	seed uint64
}

// NewMaglevTable builds a table of size slots, a prime, for shares with distinct names.
// Shares of weight 0 get no slot.
func NewMaglevTable(size int, seed uint64, shares ...Share) (*MaglevTable, error) {
	if size < 3 || size > maxTableSize || !isPrime(size) {
		return nil, &FieldError{"size", size, fmt.Sprintf("a prime from 3 to %d", maxTableSize)}
	}
	if err := validateShares(shares, MaxWeight); err != nil {
		return nil, err
	}
	names := make([]string, len(shares))
	weights := make([]uint64, len(shares))
	for i, s := range shares {
		names[i], weights[i] = s.Name, uint64(s.Weight)
	}
	return newMaglevTable(size, seed, names, weights), nil
}

func newMaglevTable(size int, seed uint64, names []string, weights []uint64) *MaglevTable {
	t := &MaglevTable{keys: make([]uint64, len(names)), walk: make([]filler, len(names)), seed: seed}
	for i, name := range names {
		t.keys[i] = hashString(name, seed)
	}
	order := make([]int, 0, len(names))
	for i := range names {
		if weights[i] > 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(names[a], names[b]) })
	fills := make([]filler, len(order))
	sorted := make([]uint64, len(order))
	for j, i := range order {
		h := t.keys[i]
		fills[j] = filler{
			index: int16(i),
			pos:   uint32(reduce(mix(h^k1), uint64(size))),
			skip:  uint32(reduce(mix(h^k2), uint64(size-1))) + 1,
		}
		sorted[j] = weights[i]
	}
	for j, quota := range largestRemainder(sorted, size) {
		fills[j].quota = int32(quota)
		t.walk[fills[j].index] = fills[j]
	}
	if len(names) <= maxFew && len(fills) > 0 {
		t.baseFew = fillTable(make([]uint8, size), fills, sorted)
	} else {
		t.base = fill(size, fills, sorted)
	}
	t.few, t.live = t.baseFew, t.base
	return t
}

// maxFew is how many shares have tables of bytes.
const maxFew = 1 << 8

// slot is what a table is made of: the index of a share.
type slot interface{ uint8 | int16 }

// Lookup returns the index of the share that hash belongs to, or -1 when none has any
// part. Any hash will do, a counter too.
func (t *MaglevTable) Lookup(hash uint64) int {
	if len(t.few) != 0 {
		return int(t.few[reduce(hash*k0, uint64(len(t.few)))])
	}
	return int(t.live[reduce(hash*k0, uint64(len(t.live)))])
}

// With returns the table with every node at a part of its share: parts[i] of FullPart,
// 0 being down. Only slots of nodes below their full part move, each to a node drawn
// through the full table; so the result does not depend on what was down before, and
// full parts restore the full table exactly. Parts above FullPart count as FullPart;
// parts left out are full.
func (t *MaglevTable) With(parts ...uint8) *MaglevTable {
	all := make([]uint8, len(t.keys))
	whole := true
	for i := range all {
		all[i] = FullPart
		if i < len(parts) && parts[i] < FullPart {
			all[i], whole = parts[i], false
		}
	}
	n := *t
	n.few, n.live = t.baseFew, t.base
	if whole {
		return &n
	}
	o, ok := t.overlay(all)
	switch {
	case !ok:
		n.few, n.live = nil, nobody(t.size())
	case t.baseFew != nil:
		n.few = lay(o, t.baseFew)
	default:
		n.live = lay(o, t.base)
	}
	return &n
}

func (t *MaglevTable) size() int { return len(t.baseFew) + len(t.base) }

// Slots returns the node of each slot, a copy.
func (t *MaglevTable) Slots() []int16 {
	if t.few == nil {
		return slices.Clone(t.live)
	}
	all := make([]int16, len(t.few))
	for s, i := range t.few {
		all[s] = int16(i)
	}
	return all
}

// nobody is a table where no share has any part.
func nobody(size int) []int16 {
	table := make([]int16, size)
	for s := range table {
		table[s] = -1
	}
	return table
}

// A filler walks the slots in the order of one node's permutation.
type filler struct {
	pos, skip uint32
	quota     int32 // slots it has
	index     int16
}

// fill populates a table: nodes take turns, as often as their weight against the
// largest says, and each takes the next free slot of its permutation until it has its
// quota. With equal weights this is the Maglev algorithm.
func fill(size int, fills []filler, weights []uint64) []int16 {
	if len(fills) == 0 {
		return nobody(size)
	}
	return fillTable(make([]int16, size), fills, weights)
}

func fillTable[T slot](table []T, fills []filler, weights []uint64) []T {
	size := len(table)
	type turn struct {
		pos, skip    uint32
		inverse      uint32 // of skip, once it is needed
		quota        int32
		index        int16
		weight, next uint64
	}
	quotas := largestRemainder(weights, size)
	largest := slices.Max(weights)
	turns := make([]turn, 0, len(fills))
	for j, f := range fills {
		if quotas[j] > 0 {
			turns = append(turns, turn{pos: f.pos, skip: f.skip, quota: int32(quotas[j]), index: f.index, weight: weights[j]})
		}
	}
	// Looking for a free slot is random access: a bitmap keeps it in the first cache.
	taken := make([]uint64, (size+63)/64)
	m := uint32(size)
	// When few are left, a node meets size/left taken slots before a free one, and it is
	// cheaper to ask of each free slot how far along the permutation it lies. That half
	// of all steps falls to the last slots shows in the harmonic series.
	end := tail{m: m}
	few := size / max(isqrt(size)*3/2, 1)
	for left, round := size, uint64(1); len(turns) > 0; round++ {
		done := false
		for j := range turns {
			t := &turns[j]
			if round*t.weight < t.next {
				continue
			}
			t.next += largest
			p := t.pos
			if left > few {
				for taken[p>>6]>>(p&63)&1 != 0 {
					p = wrap(p+t.skip, m)
				}
				taken[p>>6] |= 1 << (p & 63)
			} else {
				if end.free == nil {
					end.collect(taken)
				}
				if t.inverse == 0 {
					t.inverse = inverse(t.skip, m)
				}
				p = end.take(p, t.inverse)
			}
			left--
			table[p] = T(t.index)
			t.pos = wrap(p+t.skip, m)
			if t.quota--; t.quota == 0 {
				done = true
			}
		}
		if done {
			turns = slices.DeleteFunc(turns, func(t turn) bool { return t.quota == 0 })
		}
	}
	return table
}

// wrap takes p below 2m modulo m, without a branch the processor would guess wrong every
// other time.
func wrap(p, m uint32) uint32 {
	p -= m
	return p + m&uint32(int32(p)>>31)
}

// A tail is the last free slots of a table.
type tail struct {
	m    uint32
	div  divider
	free []uint32
}

func (t *tail) collect(taken []uint64) {
	t.div = newDivider(uint64(t.m))
	for s := range t.m {
		if taken[s>>6]>>(s&63)&1 == 0 {
			t.free = append(t.free, s)
		}
	}
}

// take returns the first free slot at or after pos along a permutation, given the
// inverse of its skip: slot s lies (s - pos) / skip steps ahead, modulo the prime m.
func (t *tail) take(pos, inverse uint32) uint32 {
	best, first := 0, ^uint64(0)
	for i, s := range t.free {
		if n := t.div.mod(uint64(s+t.m-pos) * uint64(inverse)); n < first {
			best, first = i, n
		}
	}
	s := t.free[best]
	last := len(t.free) - 1
	t.free[best] = t.free[last]
	t.free = t.free[:last]
	return s
}

// inverse returns 1/a modulo the prime m, by Euclid's algorithm.
func inverse(a, m uint32) uint32 {
	r, next := int64(m), int64(a)
	t, u := int64(0), int64(1)
	for next != 0 {
		q := r / next
		r, next = next, r-q*next
		t, u = u, t-q*u
	}
	if t < 0 {
		t += int64(m)
	}
	return uint32(t)
}

func isqrt(n int) int {
	r := 0
	for (r+1)*(r+1) <= n {
		r++
	}
	return r
}

func isPrime(n int) bool {
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return n >= 2
}

func validateShares(shares []Share, most int) error {
	if len(shares) > MaxNodes {
		return &FieldError{"shares", len(shares), fmt.Sprintf("at most %d", MaxNodes)}
	}
	seen := make(map[string]bool, len(shares))
	for i, s := range shares {
		if s.Weight < 0 || s.Weight > most {
			return &FieldError{fmt.Sprintf("Share[%d] %q.Weight", i, s.Name), s.Weight, fmt.Sprintf("0 to %d", most)}
		}
		if seen[s.Name] {
			return &FieldError{fmt.Sprintf("Share[%d].Name", i), s.Name, "a name of its own"}
		}
		seen[s.Name] = true
	}
	return nil
}
