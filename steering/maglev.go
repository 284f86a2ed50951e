package steering

import (
	"cmp"
	"fmt"
	"math/bits"
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
	Name   string
	Weight int
}

// A MaglevTable maps hashes to nodes so that every node gets its share to within one
// slot and a change moves few (Eisenbud et al., NSDI 2016, section 3.4). It depends on
// names, weights, size and seed, not on the order of the shares. It is immutable and
// safe for concurrent use; use [NewMaglevTable].
type MaglevTable struct {
	live []int16 // what Lookup reads; base where all nodes are in full
	base []int16
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
	t.base = fill(size, fills, sorted)
	t.live = t.base
	return t
}

// Lookup returns the index of the share that hash belongs to, or -1 when none has any
// part. Any hash will do, a counter too.
func (t *MaglevTable) Lookup(hash uint64) int {
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
	n.live = t.base
	if !whole {
		n.live = t.overlay(all)
	}
	return &n
}

// Slots returns the node of each slot, a copy.
func (t *MaglevTable) Slots() []int16 { return slices.Clone(t.live) }

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
	table := make([]int16, size)
	if len(fills) == 0 {
		for i := range table {
			table[i] = -1
		}
		return table
	}
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
			table[p] = t.index
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

// maxDraws bounds the draws for one slot; when all meet nodes that are down, the slot
// goes by highest score among the living ones. Both ways move only slots of the node
// that changed.
const maxDraws = 256

func (t *MaglevTable) overlay(parts []uint8) []int16 {
	base, keys, seed := t.base, t.keys, t.seed
	live := slices.Clone(base)
	keep := func(s uint64, i int16) bool {
		part := parts[i]
		return part == FullPart || part > 0 && uint8(fold(s^keys[i], k3)>>58) < part
	}
	var alive []int16
	held := make([]uint8, len(parts)) // 1 for nodes below their full part
	for i, part := range parts {
		if part > 0 && t.walk[i].skip != 0 { // those of weight 0 have no walk
			alive = append(alive, int16(i))
		}
		if part < FullPart {
			held[i] = 1
		}
	}
	if len(alive) == 0 {
		for s := range live {
			live[s] = -1
		}
		return live
	}
	m, salt := uint64(len(base)), seed*k1^k2
	redraw := func(s uint64) int16 {
		x := fold(s^salt, k0)
		for range maxDraws {
			x = x*6364136223846793005 + 1442695040888963407
			d := reduce(x, m)
			j := base[d]
			if parts[j] == FullPart || parts[j] > 0 && keep(d, j) {
				return j
			}
		}
		return highest(alive, keys, s)
	}
	// A node's slots lie along its permutation, about q ln q steps for q slots.
	steps := 0
	for i, h := range held {
		steps += int(h) * int(t.walk[i].quota) * bits.Len32(uint32(t.walk[i].quota))
	}
	if steps < len(base)/2 {
		for i := range held {
			if held[i] == 0 {
				continue
			}
			w := t.walk[i]
			for n := w.quota; n > 0; {
				if s := w.pos; base[s] == int16(i) {
					n--
					if !keep(uint64(s), int16(i)) {
						live[s] = redraw(uint64(s))
					}
				}
				w.pos = wrap(w.pos+w.skip, uint32(len(base)))
			}
		}
		return live
	}
	// The slots in question are gathered first, without a branch the processor would
	// guess wrong for one slot in N.
	var found [512]uint32
	for s := 0; s < len(base); s += len(found) {
		n := 0
		for k, i := range base[s:min(s+len(found), len(base))] {
			found[n&(len(found)-1)] = uint32(s + k)
			n += int(held[i])
		}
		for _, s := range found[:n] {
			if i := base[s]; parts[i] == 0 || !keep(uint64(s), i) {
				live[s] = redraw(uint64(s))
			}
		}
	}
	return live
}

func highest(nodes []int16, keys []uint64, key uint64) int16 {
	best, score := nodes[0], uint64(0)
	for _, i := range nodes {
		if x := fold(key^k0, keys[i]|1); x >= score {
			best, score = i, x
		}
	}
	return best
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
