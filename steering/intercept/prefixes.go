package intercept

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// prefixes finds all networks of a set that contain an address, the longest first. It
// searches the lengths in halves: a marker for a network lies at each length the search
// passes on the way to it and remembers the longest network found so far, so that a
// search takes log2 of the number of lengths in steps (Waldvogel et al., SIGCOMM 1997),
// however many networks there are.
type prefixes struct {
	lengths []uint8 // ascending
	table   hashTable
	parent  []int32 // of each network: the next shorter one that contains it, or -1
	root    int32   // the network of length 0, or -1
}

// A bit string of up to 128 bits, left-aligned.
type word struct{ hi, lo uint64 }

func wordOf(a netip.Addr) word {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return word{uint64(binary.BigEndian.Uint32(b[:])) << 32, 0}
	}
	b := a.As16()
	return word{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (w word) cut(n uint8) word {
	switch {
	case n == 0:
		return word{}
	case n <= 64:
		return word{w.hi &^ (1<<(64-n) - 1), 0}
	default:
		return word{w.hi, w.lo &^ (1<<(128-n) - 1)}
	}
}

type lengthWord struct {
	w word
	n uint8
}

// newPrefixes indexes networks of one family; network i has the number ids[i].
func newPrefixes(nets []netip.Prefix, ids []int32, count int) *prefixes {
	p := &prefixes{parent: make([]int32, count), root: -1}
	exact := make(map[lengthWord]int32, len(nets))
	for i, n := range nets {
		l := uint8(n.Bits())
		exact[lengthWord{wordOf(n.Addr()), l}] = ids[i]
		if l == 0 {
			p.root = ids[i]
		} else {
			p.lengths = append(p.lengths, l)
		}
	}
	slices.Sort(p.lengths)
	p.lengths = slices.Compact(p.lengths)
	// longest network within the first n bits of w
	longest := func(w word, n uint8) int32 {
		for i := len(p.lengths) - 1; i >= 0; i-- {
			if l := p.lengths[i]; l <= n {
				if id, ok := exact[lengthWord{w.cut(l), l}]; ok {
					return id
				}
			}
		}
		return p.root
	}
	marks := make(map[lengthWord]int32, 2*len(nets))
	for i, n := range nets {
		l, w := uint8(n.Bits()), wordOf(n.Addr())
		if l == 0 {
			p.parent[ids[i]] = -1
			continue
		}
		p.parent[ids[i]] = longest(w, l-1)
		lo, hi := 0, len(p.lengths)-1
		for lo <= hi {
			mid := int(uint(lo+hi) >> 1)
			m := p.lengths[mid]
			if m > l {
				hi = mid - 1
				continue
			}
			key := lengthWord{w.cut(m), m}
			if _, ok := marks[key]; !ok {
				marks[key] = longest(key.w, m)
			}
			if m == l {
				break
			}
			lo = mid + 1
		}
	}
	p.table = newHashTable(len(marks))
	for k, id := range marks {
		p.table.put(tableKey{k.w.hi, k.w.lo, uint64(k.n)}, id)
	}
	return p
}

// lookup returns the longest network that contains the address, or -1. The others
// follow by parent.
func (p *prefixes) lookup(w word) int32 {
	best := p.root
	lo, hi := 0, len(p.lengths)-1
	for lo <= hi {
		mid := int(uint(lo+hi) >> 1)
		m := p.lengths[mid]
		c := w.cut(m)
		if id, ok := p.table.get(tableKey{c.hi, c.lo, uint64(m)}); ok {
			best = id
			lo = mid + 1
		} else {
			hi = mid - 1
		}
	}
	return best
}

// A hashTable is an immutable map to int32 with open addressing, at most half full.
type hashTable struct {
	slots []tableSlot
	shift uint8
}

type tableKey [3]uint64

type tableSlot struct {
	key  tableKey
	v    int32
	used bool
}

func newHashTable(n int) hashTable {
	b := max(bits.Len(uint(2*n)), 1)
	return hashTable{make([]tableSlot, 1<<b), uint8(64 - b)}
}

func (t *hashTable) start(k *tableKey) uint64 {
	hi, lo := bits.Mul64(k[0]^0x9E3779B97F4A7C15, k[1]^0xBF58476D1CE4E5B9)
	h := (hi ^ lo ^ k[2]) * 0x94D049BB133111EB
	return (h ^ h>>32) * 0x9E3779B97F4A7C15 >> t.shift
}

func (t *hashTable) put(k tableKey, v int32) {
	mask := uint64(len(t.slots) - 1)
	for s := t.start(&k); ; s = (s + 1) & mask {
		if !t.slots[s].used {
			t.slots[s] = tableSlot{k, v, true}
			return
		}
	}
}

func (t *hashTable) get(k tableKey) (int32, bool) {
	mask := uint64(len(t.slots) - 1)
	for s := t.start(&k); ; s = (s + 1) & mask {
		if slot := &t.slots[s]; !slot.used {
			return 0, false
		} else if slot.key == k {
			return slot.v, true
		}
	}
}
