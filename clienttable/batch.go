package clienttable

import (
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
	all := len(ks)
	vs, ok = vs[:all], ok[:all]
	if t.kin.Load() != nil {
		t = t.newest() // what is not there is looked for in the smaller one
	}
	tick := t.tick(now)
	var at [batchMax]place
	for len(ks) > 0 {
		n := min(len(ks), batchMax)
		t.fetch(ks[:n], &at)
		for i := range n {
			found := false
			if at[i].slot != noSlot {
				var r hitResult
				vs[i], r = t.hit(at[i].slot, &ks[i], tick, true)
				found = r == hitYes && tick >= t.shards[at[i].shard].reapTo.Load()
			}
			if !found {
				vs[i], found = t.load(at[i].hash, &ks[i], tick, touchSafe)
			}
			ok[i] = found
			if found {
				hits++
			}
		}
		ks, vs, ok = ks[n:], vs[n:], ok[n:]
	}
	if t.count {
		no, _, _ := t.home(at[0].hash)
		t.shards[no].hits.Add(uint64(hits))
		t.shards[no].misses.Add(uint64(all - hits))
	}
	runtime.KeepAlive(t)
	return hits
}

// place is where a key of a batch probably is.
type place struct {
	hash   uint64
	first  uint32 // its groups
	second uint32
	slot   uint32
	shard  uint16
	tag    uint8
}

const noSlot = 1<<32 - 1

// prefetchMax is how many lines are prefetched in one go: the first of them arrive
// while the next keys are hashed.
const prefetchMax = 8

// fetch hashes keys and brings the memory near that their look-ups will need: first
// the tags of all, then the slots of all.
func (t *Table[K, V]) fetch(ks []K, at *[batchMax]place) {
	var lines [prefetchMax]unsafe.Pointer
	n := 0
	for i := range ks {
		p := &at[i&(batchMax-1)]
		p.hash = t.hashOf(&ks[i])
		no, g, tag := t.home(p.hash)
		base := t.shards[no].first / groupSlots
		p.first, p.second, p.shard, p.tag = base+g, base+t.other(g, tag), uint16(no), tag
		lines[n&(prefetchMax-1)] = unsafe.Pointer(t.tagsOf(p.first))
		if n++; n == prefetchMax {
			prefetch(&lines, n)
			n = 0
		}
	}
	prefetch(&lines, n)
	n = 0
	var rest [batchMax]uint8
	left := 0
	for i := range ks {
		p := &at[i&(batchMax-1)]
		m := lanes(atomic.LoadUint64(t.tagsOf(p.first)), p.tag)
		p.slot = laneSlot(p.first, m)
		line := unsafe.Pointer(t.metaOf(p.slot))
		if m == 0 {
			// No look-up is needed to tell where to go next: nothing waits here.
			line = unsafe.Pointer(t.tagsOf(p.second))
			rest[left&(batchMax-1)] = uint8(i)
			left++
		}
		if t.stride%64 != 0 && m != 0 {
			prefetchOne(unsafe.Add(line, t.stride-8)) // the slot may lie on two lines
		}
		lines[n&(prefetchMax-1)] = line
		if n++; n == prefetchMax {
			prefetch(&lines, n)
			n = 0
		}
	}
	prefetch(&lines, n)
	n = 0
	for i := range left {
		p := &at[rest[i&(batchMax-1)]&(batchMax-1)]
		if p.slot = t.candidate(p.second, p.tag); p.slot == noSlot {
			continue
		}
		lines[n&(prefetchMax-1)] = unsafe.Pointer(t.metaOf(p.slot))
		if n++; n == prefetchMax {
			prefetch(&lines, n)
			n = 0
		}
	}
	prefetch(&lines, n)
}

// candidate returns the first slot of a group whose tag fits, or noSlot.
func (t *Table[K, V]) candidate(group uint32, tag uint8) uint32 {
	m := lanes(atomic.LoadUint64(t.tagsOf(group)), tag)
	if m == 0 {
		return noSlot
	}
	return laneSlot(group, m)
}

// warm brings near the memory that a change of a key will need, before the lock is
// taken: a locked instruction would make the accesses wait for each other. In a
// small table, which is in cache, that would be a fifth of the work of a change.
func (t *Table[K, V]) warm(h uint64) {
	if !t.large {
		return
	}
	no, g, tag := t.home(h)
	base := t.shards[no].first / groupSlots
	first, second := base+g, base+t.other(g, tag)
	prefetchOne(unsafe.Pointer(t.tagsOf(second)))
	t.prefetchSlot(preferred(first, tag))
	slot := t.candidate(first, tag)
	if slot == noSlot {
		slot = t.candidate(second, tag)
	}
	ok := slot != noSlot
	if !ok {
		slot, ok = t.freeIn(first, tag) // where a new entry would go
	}
	if !ok {
		slot, ok = t.freeIn(second, tag)
	}
	if ok {
		t.prefetchSlot(slot)
	}
	runtime.KeepAlive(t)
}

// prefetchSlot brings the entry in a slot near.
func (t *Table[K, V]) prefetchSlot(slot uint32) {
	p := t.slotPtr(slot)
	prefetchOne(p)
	if t.stride%64 != 0 {
		prefetchOne(unsafe.Add(p, t.stride-8)) // it may lie on two lines
	}
}
