package clienttable

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// evictTries bounds the segments that are searched for an expired entry when a
// new one finds the table full.
const evictTries = 4

// evict removes one entry in favour of a new one, to which its count in entries
// goes. No lock is held.
func (t *Table[K, V]) evict(now int64) bool {
	var out [reapMax]removed[K, V]
	n := uint32(len(t.shards))
	start := t.hand.Add(1)
	tries := 0
	for i := uint32(0); i < n && tries < evictTries; i++ {
		no := (start + i) % n
		for t.soonest[no].Load() <= now && tries < evictTries {
			s := &t.shards[no]
			s.mu.Lock()
			got, _ := t.reap(s, now, 1, &out)
			t.unlock(s)
			if got > 0 {
				t.report(out[:got])
				return true
			}
			tries++
		}
	}
	if t.gone.Load() != nil && t.purge(now, 1, evictTries) > 0 && t.reserve() {
		return true
	}
	for c := range t.classes {
		for i := range n {
			no := (start + i) % n
			if t.classes[c][no].Load() == 0 {
				continue
			}
			s := &t.shards[no]
			s.mu.Lock()
			slot, ok := s.marked(c)
			if ok {
				out[0] = t.expel(s, slot, now, Evicted)
			}
			t.unlock(s)
			if ok {
				t.report(out[:1])
				return true
			}
		}
	}
	if t.cfg.Full != EvictOldest {
		return false
	}
	for i := range min(n, evictTries) {
		s := &t.shards[(start+i)%n]
		s.mu.Lock()
		slot, ok := t.oldest(s, now)
		if ok {
			out[0] = t.expel(s, slot, now, Evicted)
		}
		t.unlock(s)
		if ok {
			t.report(out[:1])
			return true
		}
	}
	return false
}

// expel removes the entry in a slot, for a reason unless it is not alive anyway.
// The shard is locked.
func (t *Table[K, V]) expel(s *shard[K, V], slot uint32, now int64, why Reason) removed[K, V] {
	k, v := t.key(slot), t.value(slot)
	if w := t.state(slot, now, &v); w != 0 {
		why = w
	}
	t.vacate(s, slot, why)
	return removed[K, V]{k, v, why}
}

// report calls OnRemove.
func (t *Table[K, V]) report(out []removed[K, V]) {
	if t.cfg.OnRemove == nil {
		return
	}
	for i := range out {
		t.cfg.OnRemove(out[i].k, out[i].v, out[i].why)
	}
}

// marked returns a slot of a class: HalfOpen for c = 0, Lingering for 1. It goes
// round, so that the oldest tend to be found first. The shard is locked.
func (s *shard[K, V]) marked(c int) (slot uint32, ok bool) {
	words := s.marks[c]
	n := uint32(len(words))
	for i := range n {
		at := (s.scan[c] + i) % n
		if w := words[at]; w != 0 {
			s.scan[c] = at
			return s.first + at*64 + uint32(bits.TrailingZeros64(w)), true
		}
	}
	return 0, false
}

// oldest returns the entry that was used least recently, of two segments: the one
// where an entry may expire first, and one that changes from call to call; in a
// shard of up to four segments, of all. The shard is locked.
func (t *Table[K, V]) oldest(s *shard[K, V], now int64) (slot uint32, ok bool) {
	best := int64(math.MaxInt64)
	look := func(seg uint32) {
		soonest := int64(never)
		t.eachSlot(s, seg, func(i uint32) bool {
			m := atomic.LoadUint64(t.metaOf(i))
			if metaClassOf(m) == Static {
				return true
			}
			left := metaLeft(m, now)
			soonest = min(soonest, now+left)
			if used := left - t.ttls.ms[m>>metaTTLAt&0xff]; used < best {
				best, slot, ok = used, i, true
			}
			return true
		})
		s.segMin[seg] = soonest
	}
	segs := uint32(len(s.segMin))
	if segs <= 4 {
		for seg := range segs {
			look(seg)
		}
		return
	}
	first := uint32(0)
	for seg := range segs {
		if s.segMin[seg] < s.segMin[first] {
			first = seg
		}
	}
	look(first)
	s.sweepAt = (s.sweepAt + 1) % segs
	look(s.sweepAt)
	return
}

// eachSlot calls f for every slot in use of a segment, until it returns false. The
// shard is locked.
func (t *Table[K, V]) eachSlot(s *shard[K, V], seg uint32, f func(slot uint32) bool) {
	base := s.first / groupSlots
	for g := seg * segGroups; g < min((seg+1)*segGroups, t.groups+1); g++ {
		for lane := range uint32(groupSlots) {
			slot := (base+g)*groupSlots + lane
			if t.tagAt(slot) != 0 && !f(slot) {
				return
			}
		}
	}
}
