package clienttable

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// batchMax is how many look-ups LoadBatch overlaps at once.
const batchMax = 32

// LoadBatch is [Table.LoadAt] for many keys: vs[i] and ok[i] become the result for
// ks[i], and hits is the number found. It waits for memory once for many keys
// instead of once for each. vs and ok must be at least as long as ks.
func (t *Table[K, V]) LoadBatch(now time.Time, ks []K, vs []V, ok []bool) (hits int) {
	if len(ks) == 0 {
		return 0
	}
	vs, ok = vs[:len(ks)], ok[:len(ks)]
	tick := t.tick(now)
	var hs [batchMax]uint64
	for len(ks) > 0 {
		n := min(len(ks), batchMax)
		h := hs[:n]
		t.fetch(ks[:n], h)
		for i := range h {
			vs[i], ok[i] = t.load(h[i], &ks[i], tick, true)
			if ok[i] {
				hits++
			}
			if t.count {
				t.countLookup(h[i], ok[i])
			}
		}
		ks, vs, ok = ks[n:], vs[n:], ok[n:]
	}
	return hits
}

// fetch hashes keys and touches the memory that their look-ups will need: first
// all tags, then all slots, so that the waits of one kind overlap.
func (t *Table[K, V]) fetch(ks []K, hs []uint64) {
	var sink uint64
	for i := range ks {
		h := t.hashOf(&ks[i])
		hs[i] = h
		no, g, _ := t.home(h)
		sink += atomic.LoadUint64((*uint64)(t.tagPtr(t.shards[no].first/groupSlots + g)))
	}
	for _, h := range hs {
		no, g, tag := t.home(h)
		base := t.shards[no].first / groupSlots
		if slot, ok := t.candidate(base+g, tag); ok {
			sink += atomic.LoadUint64(t.metaOf(slot))
		} else if slot, ok := t.candidate(base+t.other(g, tag), tag); ok {
			sink += atomic.LoadUint64(t.metaOf(slot))
		}
	}
	runtime.KeepAlive(sink)
}

// candidate returns the first slot of a group whose tag fits.
func (t *Table[K, V]) candidate(group uint32, tag uint16) (slot uint32, ok bool) {
	p := t.tagPtr(group)
	if m := lanes(atomic.LoadUint64((*uint64)(p)), tag); m != 0 {
		return group*groupSlots + uint32(bits.TrailingZeros64(m))>>4, true
	}
	if m := lanes(atomic.LoadUint64((*uint64)(unsafe.Add(p, 8))), tag); m != 0 {
		return group*groupSlots + 4 + uint32(bits.TrailingZeros64(m))>>4, true
	}
	return 0, false
}
