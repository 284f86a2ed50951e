package clienttable

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// evictTries bounds the segments that are searched for an expired entry when a
// new one finds the table full.
const evictTries = 4

// evictReap is how many expired entries are removed at once when a new one finds
// the table full.
const evictReap = 16

// evict removes an entry in favour of a new one in shard own, with a home group and
// a tag, to which the count in entries goes. No lock is held.
func (t *Table[K, V]) evict(own *shard[K, V], home uint32, tag uint8, now int64) bool {
	n := uint32(len(t.shards))
	start := t.hand.Add(1)
	if t.evictExpired(start, now) {
		return true
	}
	if t.gone.Load() != nil && t.purge(now, 1, evictTries) > 0 && t.reserve() {
		return true
	}
	for c := HalfOpen; c <= Lingering; c++ {
		// Best one that frees a slot where it is needed.
		if t.classes[c-1][own.no].Load() != 0 {
			own.mu.Lock()
			slot, ok := t.near(own, home, tag, c)
			if !ok {
				slot, ok = own.marked(c)
			}
			if t.finishEviction(own, slot, ok, now) {
				return true
			}
		}
		for i := range n {
			no := (start + i) % n
			if t.classes[c-1][no].Load() == 0 {
				continue
			}
			s := &t.shards[no]
			s.mu.Lock()
			slot, ok := s.marked(c)
			if t.finishEviction(s, slot, ok, now) {
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
		if t.finishEviction(s, slot, ok, now) {
			return true
		}
	}
	return false
}

// evictExpired is the part of evict that looks for expired entries.
func (t *Table[K, V]) evictExpired(start uint32, now int64) bool {
	var out [reapMax]removed[K, V]
	n := uint32(len(t.shards))
	tries := 0
	for i := uint32(0); i < n && tries < evictTries; i++ {
		no := (start + i) % n
		for ; t.soonest[no].Load() <= now && tries < evictTries; tries++ {
			s := &t.shards[no]
			s.mu.Lock()
			got, _ := t.reap(s, now, evictReap, &out)
			t.unlock(s)
			if got > 0 {
				t.entries.Add(int64(1 - got))
				t.report(out[:min(got, reapMax)])
				return true
			}
		}
	}
	return false
}

// finishEviction removes the entry in a slot, if there is one, and unlocks the
// shard.
func (t *Table[K, V]) finishEviction(s *shard[K, V], slot uint32, ok bool, now int64) bool {
	if !ok {
		t.unlock(s)
		return false
	}
	out := t.expel(s, slot, now, Evicted)
	t.unlock(s)
	if t.cfg.OnRemove != nil {
		t.cfg.OnRemove(out.k, out.v, out.why)
	}
	return true
}

// near returns a slot with an entry of a class in one of the two groups of a home
// group and tag. The shard is locked.
func (t *Table[K, V]) near(s *shard[K, V], home uint32, tag uint8, c Class) (slot uint32, ok bool) {
	for _, g := range [2]uint32{home, t.other(home, tag)} {
		at := g * groupSlots
		if m := s.marks[c-1][at/64] >> (at % 64) & 0xff; m != 0 {
			return s.first + at + uint32(bits.TrailingZeros64(m)), true
		}
	}
	return 0, false
}

// victim returns the entry that has to go first of those in the two groups of a
// home group and tag, if any may. The shard is locked.
func (t *Table[K, V]) victim(s *shard[K, V], home uint32, tag uint8, now int64) (slot uint32, ok bool) {
	most := 2
	if t.cfg.Full == EvictOldest {
		most = 3
	}
	bestRank, bestUsed := most+1, int64(0)
	for _, g := range [2]uint32{home, t.other(home, tag)} {
		for lane := range uint32(groupSlots) {
			i := s.first + g*groupSlots + lane
			m := atomic.LoadUint64(t.metaOf(i))
			v := t.value(i)
			rank := [...]int{Established: 3, HalfOpen: 1, Lingering: 2, Static: 4}[metaClassOf(m)]
			if t.state(i, now, &v) != 0 {
				rank = 0
			}
			used := metaLeft(m, now) - t.ttls.ms[m>>metaTTLAt&0xff]
			if rank < bestRank || rank == bestRank && rank <= most && used < bestUsed {
				bestRank, bestUsed, slot, ok = rank, used, i, true
			}
		}
	}
	if ok && bestRank == 0 {
		if v := t.value(slot); t.ends(slot, now, &v) == 0 {
			return t.victim(s, home, tag, now) // it has been looked up this moment
		}
	}
	return
}

// dismiss removes the entry in a slot and leaves the report to unlock. The shard is
// locked.
func (t *Table[K, V]) dismiss(s *shard[K, V], slot uint32, now int64) {
	out := t.expel(s, slot, now, Evicted)
	t.entries.Add(-1)
	if t.cfg.OnRemove != nil {
		s.limbo = append(s.limbo, out)
	}
}

// expel removes the entry in a slot, for a reason unless it is not alive anyway.
// The shard is locked.
func (t *Table[K, V]) expel(s *shard[K, V], slot uint32, now int64, why Reason) removed[K, V] {
	out := removed[K, V]{v: t.value(slot), why: why}
	if t.cfg.OnRemove != nil {
		out.k = t.key(slot)
	}
	if w := t.ends(slot, now, &out.v); w != 0 {
		out.why = w
	}
	t.vacate(s, slot, out.why)
	return out
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

// marked returns a slot of a class, from a random place on: to empty one place
// after the other would crowd the rest. The shard is locked.
func (s *shard[K, V]) marked(c Class) (slot uint32, ok bool) {
	words := s.marks[c-1]
	n := uint32(len(words))
	r := s.random.Uint64()
	start, turn := uint32(uint64(uint32(r))*uint64(n)>>32), uint32(r>>58)
	for i := range n {
		at := start + i
		if at >= n {
			at -= n
		}
		if w := words[at]; w != 0 {
			bit := (uint32(bits.TrailingZeros64(bits.RotateLeft64(w, -int(turn)))) + turn) % 64
			return s.first + at*64 + bit, true
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
