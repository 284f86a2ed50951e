package flowshare

import (
	"math/bits"
	"slices"
	"sort"
)

// Slots is how many slots flows fall into. Holders are chosen for a slot, so that they
// need not be computed for each flow.
const Slots = 1 << 15

// MaxHolders bounds [Config.Holders].
const MaxHolders = 8

// A Placement says which members hold the flows of which slot: those whose scores for it
// are highest. It is a pure function of the names, immutable and safe for concurrent use.
type Placement struct {
	names  []string // sorted
	seeds  []uint64 // of each name
	k      int
	table  []uint16 // slot × k: members in the order of their scores
	scores []uint64 // of each of the table
}

// SlotOf returns the slot of a flow.
func SlotOf(f Flow) int { return int(f.Hash() >> (64 - 15)) }

func seedOf(name string) uint64 {
	h := uint64(0xcbf29ce484222325) // FNV-1a, then mixed well below
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	return mix(h, 0x9e3779b97f4a7c15)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return hi ^ lo
}

func score(seed uint64, slot int) uint64 {
	return mix(seed^uint64(slot)*0x9e3779b97f4a7c15, seed+uint64(slot))
}

// NewPlacement computes where the flows of a cluster live, with k holders each; all members
// if there are no more. If prev is the placement before a change of few members, less is
// computed, with the same result.
func NewPlacement(prev *Placement, names []string, k int) *Placement {
	p := &Placement{names: slices.Clone(names), k: max(1, min(k, MaxHolders, len(names)))}
	slices.Sort(p.names)
	p.names = slices.Compact(p.names)
	for _, n := range p.names {
		p.seeds = append(p.seeds, seedOf(n))
	}
	if len(p.names) == 0 {
		return p
	}
	p.k = min(p.k, len(p.names))
	p.table, p.scores = make([]uint16, Slots*p.k), make([]uint64, Slots*p.k)
	to, added := p.relation(prev)
	for slot := range Slots {
		if to != nil && p.keep(prev, slot, to, added) {
			continue
		}
		n := 0
		for i := range p.names {
			n = p.place(slot, n, uint16(i))
		}
	}
	return p
}

// relation maps the members of prev to those of p, -1 for one that is gone, and lists the new
// ones; nil if little would be gained.
func (p *Placement) relation(prev *Placement) (to []int, added []uint16) {
	if prev == nil || prev.k != p.k || len(prev.table) == 0 {
		return nil, nil
	}
	to = make([]int, len(prev.names))
	i := 0
	for j, name := range prev.names {
		for i < len(p.names) && p.names[i] < name {
			added = append(added, uint16(i))
			i++
		}
		to[j] = -1
		if i < len(p.names) && p.names[i] == name {
			to[j] = i
			i++
		}
	}
	for ; i < len(p.names); i++ {
		added = append(added, uint16(i))
	}
	if len(added) > len(p.names)/2 {
		return nil, nil
	}
	return to, added
}

// keep takes the holders of a slot over from prev, unless one of them is gone, and has the new
// members try.
func (p *Placement) keep(prev *Placement, slot int, to []int, added []uint16) bool {
	for j := range p.k {
		i := to[prev.table[slot*p.k+j]]
		if i < 0 {
			return false
		}
		p.table[slot*p.k+j], p.scores[slot*p.k+j] = uint16(i), prev.scores[slot*p.k+j]
	}
	for _, i := range added {
		p.place(slot, p.k, i)
	}
	return true
}

// place puts a member among the n best of a slot if it belongs there, and returns how many
// there are then.
func (p *Placement) place(slot, n int, member uint16) int {
	s := score(p.seeds[member], slot)
	at := slot * p.k
	table, scores := p.table[at:at+p.k], p.scores[at:at+p.k]
	i := n
	for i > 0 && (scores[i-1] < s || scores[i-1] == s && table[i-1] > member) {
		i--
	}
	if i == p.k {
		return n
	}
	n = min(n+1, p.k)
	copy(table[i+1:n], table[i:])
	copy(scores[i+1:n], scores[i:])
	table[i], scores[i] = member, s
	return n
}

// Holders returns the members that hold the flows of a slot, the best first, as indices
// into Names. The caller must not change the slice.
func (p *Placement) Holders(slot int) []uint16 {
	if len(p.table) == 0 {
		return nil
	}
	return p.table[slot*p.k : slot*p.k+p.k : slot*p.k+p.k]
}

// Names returns the members in order. The caller must not change the slice.
func (p *Placement) Names() []string { return p.names }

// index returns the index of a name, -1 if it is none of the members.
func (p *Placement) index(name string) int {
	i := sort.SearchStrings(p.names, name)
	if i == len(p.names) || p.names[i] != name {
		return -1
	}
	return i
}
