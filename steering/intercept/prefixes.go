package intercept

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// prefixes finds the longest network of a set that contains an address. The networks cut
// the addresses into intervals, each with one answer: a search among their starts, of
// which, when they are many, an index by the first 16 bits leaves few.
type prefixes struct {
	hi, lo []uint64 // starts, ascending; lo is nil for IPv4
	id     []int32  // of the longest network there, -1 for none
	index  []uint32 // first start with these 16 bits, or nil
}

// A word is an address of up to 128 bits, left-aligned.
type word struct{ hi, lo uint64 }

func wordOf(a netip.Addr) word {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return word{uint64(binary.BigEndian.Uint32(b[:])) << 32, 0}
	}
	b := a.As16()
	return word{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// after returns the first address behind the network of n bits at w, and whether there
// is one.
func (w word) after(n, width int) (word, bool) {
	var step word
	switch {
	case n == 0:
		return word{}, false
	case n <= 64:
		step.hi = 1 << (64 - n)
	default:
		step.lo = 1 << (128 - n)
	}
	lo, carry := bits.Add64(w.lo, step.lo, 0)
	hi, over := bits.Add64(w.hi, step.hi, carry)
	return word{hi, lo}, over == 0
}

type numbered struct {
	start word
	bits  int
	id    int32
}

// newPrefixes indexes different networks of one family; network i has the number
// ids[i]. It notes in parent the next shorter network around each.
func newPrefixes(nets []netip.Prefix, ids, parent []int32, width int) *prefixes {
	sorted := make([]numbered, len(nets))
	for i, n := range nets {
		sorted[i] = numbered{wordOf(n.Addr()), n.Bits(), ids[i]}
	}
	slices.SortFunc(sorted, func(a, b numbered) int {
		switch {
		case a.start.hi != b.start.hi:
			return sign(a.start.hi < b.start.hi)
		case a.start.lo != b.start.lo:
			return sign(a.start.lo < b.start.lo)
		}
		return a.bits - b.bits
	})
	p := &prefixes{hi: []uint64{0}, id: []int32{-1}}
	v6 := width > 32
	if v6 {
		p.lo = []uint64{0}
	}
	emit := func(w word, id int32) {
		if n := len(p.hi) - 1; p.hi[n] == w.hi && (!v6 || p.lo[n] == w.lo) {
			p.id[n] = id
			return
		}
		p.hi, p.id = append(p.hi, w.hi), append(p.id, id)
		if v6 {
			p.lo = append(p.lo, w.lo)
		}
	}
	// The stack holds the networks around the present place.
	var stack []numbered
	top := func() int32 {
		if len(stack) == 0 {
			return -1
		}
		return stack[len(stack)-1].id
	}
	leave := func(until *word) {
		for len(stack) > 0 {
			t := stack[len(stack)-1]
			end, ok := t.start.after(t.bits, width)
			if until != nil && (!ok || until.hi < end.hi || until.hi == end.hi && until.lo < end.lo) {
				return
			}
			stack = stack[:len(stack)-1]
			if ok {
				emit(end, top())
			}
		}
	}
	for _, n := range sorted {
		leave(&n.start)
		parent[n.id] = top()
		emit(n.start, n.id)
		stack = append(stack, n)
	}
	leave(nil)
	if len(p.hi) < 256 {
		return p
	}
	p.index = make([]uint32, 1<<16+1)
	at := 0
	for k := range p.index {
		for at < len(p.hi) && p.hi[at]>>48 < uint64(k) {
			at++
		}
		p.index[k] = uint32(at)
	}
	return p
}

func sign(less bool) int {
	if less {
		return -1
	}
	return 1
}

// lookup returns the longest network that contains the address, or -1.
func (p *prefixes) lookup(w word) int32 {
	lo, hi := uint32(1), uint32(len(p.hi))
	if p.index != nil {
		// The start looked for is among these, or the one before them.
		k := w.hi >> 48
		lo, hi = p.index[k], p.index[k+1]
	}
	for lo < hi {
		mid := (lo + hi) >> 1
		if p.hi[mid] < w.hi || p.hi[mid] == w.hi && (p.lo == nil || p.lo[mid] <= w.lo) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return p.id[lo-1]
}

// A hashTable is an immutable map from pairs of small numbers to int32 with open
// addressing, at most half full.
type hashTable struct {
	slots []tableSlot
	shift uint8
}

type tableSlot struct {
	key uint64
	v   int32 // 0 is an empty slot, else the value + 1
}

func newHashTable(n int) hashTable {
	b := max(bits.Len(uint(2*n)), 1)
	return hashTable{make([]tableSlot, 1<<b), uint8(64 - b)}
}

func (t *hashTable) put(k uint64, v int32) {
	mask := uint64(len(t.slots) - 1)
	for s := k * 0x9E3779B97F4A7C15 >> t.shift; ; s = (s + 1) & mask {
		if t.slots[s].v == 0 {
			t.slots[s] = tableSlot{k, v + 1}
			return
		}
	}
}

func (t *hashTable) get(k uint64) (int32, bool) {
	mask := uint64(len(t.slots) - 1)
	for s := k * 0x9E3779B97F4A7C15 >> t.shift; ; s = (s + 1) & mask {
		if slot := &t.slots[s]; slot.v == 0 {
			return 0, false
		} else if slot.key == k {
			return slot.v - 1, true
		}
	}
}
