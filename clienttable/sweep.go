package clienttable

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// sweeper is where the search for entries of owners that are gone has come to.
type sweeper struct {
	mu      sync.Mutex
	running bool
	epoch   uint64 // owners invalidated up to here are done when the pass is
	shard   int
	seg     int

	hand atomic.Uint32
}

// reapMax is how many entries are reported at once, runStep how many [Table.Run] removes
// by one reading of the clock: some 5 µs without an OnRemove.
const (
	reapMax = 64
	runStep = 512
)

// Sweep removes up to limit entries that have expired or whose owner is gone, and
// returns how many it removed. Its work is bounded: it looks at some 16 times limit
// entries at most, and while no owner is gone it only looks where some may have
// expired. Any number of goroutines may sweep at once.
func (t *Table[K, V]) Sweep(now time.Time, limit int) (freed int) {
	tick := t.tick(now)
	if t.kin.Load() != nil {
		return t.newest().sweepFamily(tick, limit)
	}
	return t.sweepAlone(tick, limit)
}

func (t *Table[K, V]) sweepAlone(tick int64, limit int) (freed int) {
	segs := limit/16 + 2
	if t.gone.Load() != nil {
		freed = t.purge(tick, limit, segs)
	}
	var out [reapMax]removed[K, V]
	n := len(t.shards)
	at := int(t.sweep.hand.Load())
	for range n {
		at %= n
		s := &t.shards[at]
		for t.soonest[at].Load() <= tick {
			if freed >= limit || segs <= 0 {
				t.sweep.hand.Store(uint32(at))
				return freed
			}
			s.mu.Lock()
			got, done := t.reap(s, tick, limit-freed, &out)
			t.entries.Add(-int64(got))
			t.unlock(s)
			t.report(out[:min(got, reapMax)])
			freed += got
			if done {
				segs--
			}
		}
		at++
	}
	return freed
}

// Run sweeps once a second until ctx is done, in steps of bounded work, and returns
// ctx's error. Each second's sweep goes on until nothing is left to remove.
func (t *Table[K, V]) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		for ctx.Err() == nil {
			now := time.Now()
			if t.Sweep(now, runStep) == 0 && !t.due(now) {
				break
			}
		}
	}
}

// due reports whether a sweep has anything to look at.
func (t *Table[K, V]) due(now time.Time) bool {
	t = t.newest()
	if r := t.kin.Load(); r != nil {
		return true
	}
	if t.gone.Load() != nil {
		return true
	}
	tick := t.tick(now)
	for i := range t.soonest {
		if t.soonest[i].Load() <= tick {
			return true
		}
	}
	return false
}

// reap removes up to limit expired entries of one segment of a shard. If there is an
// OnRemove, these are no more than fit into out, where they are written. done is
// false if the segment may hold more. The shard is locked; the caller corrects the
// count of entries.
func (t *Table[K, V]) reap(s *shard[K, V], now int64, limit int, out *[reapMax]removed[K, V]) (n int, done bool) {
	segs := uint32(len(s.segMin))
	for i := range segs {
		seg := s.sweepAt + i
		if seg >= segs {
			seg -= segs
		}
		if s.segMin[seg] <= now {
			s.sweepAt = seg
			return t.reapSegment(s, seg, now, limit, out, nil)
		}
	}
	// Only now, as it asks every segment: until then soonest is merely too low.
	s.refreshSoonest(t)
	return 0, true
}

func (s *shard[K, V]) refreshSoonest(t *Table[K, V]) {
	soonest := int64(never)
	for _, exp := range s.segMin {
		soonest = min(soonest, exp)
	}
	t.soonest[s.no].Store(soonest)
}

// reapSegment removes the entries of a segment that have expired or whose owner is
// in gone, as reap does.
//
// Entries that have expired are not claimed one by one, which would take a locked
// instruction for each and write to it: look-ups that could restart the idle time of
// one at this moment see reapTo, and make sure (loadBehind).
func (t *Table[K, V]) reapSegment(s *shard[K, V], seg uint32, now int64, limit int, out *[reapMax]removed[K, V], gone *goneSet) (n int, done bool) {
	if t.cfg.OnRemove != nil {
		limit = min(limit, len(out))
	}
	s.reaping.Add(1)
	if now > s.reapTo.Load() {
		s.reapTo.Store(now)
	}
	n, done = t.reapGroups(s, seg, now, limit, out, gone)
	s.reaping.Add(1)
	s.used -= n
	return n, done
}

// reapGroups is reapSegment, group by group, but for the count of slots in use.
func (t *Table[K, V]) reapGroups(s *shard[K, V], seg uint32, now int64, limit int, out *[reapMax]removed[K, V], gone *goneSet) (n int, done bool) {
	soonest := int64(never)
	base := s.first / groupSlots
	end := min((seg+1)*segGroups, t.groups+1)
	marked := t.classes[0][s.no].Load()|t.classes[1][s.no].Load() != 0
	for g := seg * segGroups; g < end; g++ {
		word := t.tagsOf(base + g)
		tags := atomic.LoadUint64(word)
		if tags == 0 {
			continue
		}
		// Of the next segment, too.
		prefetchRun(t.slotPtr((base+min(g+reapAhead, t.groups))*groupSlots), t.stride)
		// Bytes of 0xff for the entries that go.
		expired := t.expiredIn(base+g, tags, now, &soonest)
		orphans := uint64(0)
		if gone != nil {
			orphans = t.orphansIn(base+g, tags, expired, gone)
		}
		dead := expired | orphans
		if dead == 0 {
			continue
		}
		for bits.OnesCount64(dead)/8 > limit-n {
			dead &^= 0xff << (uint(63-bits.LeadingZeros64(dead)) &^ 7)
			done = true // the limit is reached in this group
		}
		if dead != 0 {
			t.dropLanes(s, g, dead, dead&^expired, out, n, marked)
			n += bits.OnesCount64(dead) / 8
		}
		if done {
			return n, false
		}
	}
	s.segMin[seg] = soonest
	return n, true
}

// reapAhead is how many groups ahead entries are prefetched.
const reapAhead = 4

// expiredIn returns the lanes of a group whose entries have expired, as bytes of 0xff, and
// lowers soonest to when the next of the others does.
func (t *Table[K, V]) expiredIn(group uint32, tags uint64, now int64, soonest *int64) (expired uint64) {
	p := t.slotPtr(group * groupSlots)
	next := *soonest
	for lane := uint64(0xff); lane != 0; lane <<= 8 {
		if tags&lane != 0 {
			m := atomic.LoadUint64((*uint64)(p))
			switch {
			case metaGone(m, now):
				expired |= lane
			case metaClassOf(m) != Static:
				next = min(next, now+metaLeft(m, now))
			}
		}
		p = unsafe.Add(p, t.stride)
	}
	*soonest = next
	return expired
}

// orphansIn returns the lanes of a group, besides some, whose entries' owner is gone.
func (t *Table[K, V]) orphansIn(group uint32, tags, besides uint64, gone *goneSet) (orphans uint64) {
	for lane := range uint32(groupSlots) {
		at := uint64(0xff) << (lane * 8)
		if tags&at == 0 || besides&at != 0 {
			continue
		}
		if slot := group*groupSlots + lane; gone.has(t.cfg.Owner(t.value(slot)), t.birth(slot)) {
			orphans |= at
		}
	}
	return orphans
}

// dropLanes removes the dead entries of a shard's group, some of them orphans, and
// writes them to out from n on if there is an OnRemove.
func (t *Table[K, V]) dropLanes(s *shard[K, V], g uint32, dead, orphans uint64, out *[reapMax]removed[K, V], n int, marked bool) {
	group := s.first/groupSlots + g
	word := t.tagsOf(group)
	if tell := t.cfg.OnRemove != nil; tell || s.log != nil || orphans != 0 {
		for m := dead & laneTops; m != 0; m &= m - 1 {
			slot, why := laneSlot(group, m), Expired
			if orphans&(m&-m) != 0 {
				why = NodeGone
				t.unlive(slot)
			}
			if tell {
				out[n] = removed[K, V]{t.key(slot), t.value(slot), why}
				n++
			}
			if s.log != nil {
				k := t.key(slot)
				s.log.remove(&k, why)
			}
		}
	}
	storeRelease(word, *word&^dead)
	if !t.packed {
		for m := dead & laneTops; m != 0; m &= m - 1 {
			t.pairs[laneSlot(group, m)].Store(nil)
		}
	}
	if marked {
		lanes := dead & laneOnes * laneGather >> 56
		at := g * groupSlots
		for c := range s.marks {
			w := &s.marks[c][at/64]
			if had := *w & (lanes << (at % 64)); had != 0 {
				*w &^= had
				t.classes[c][s.no].Add(-int64(bits.OnesCount64(had)))
			}
		}
	}
	all, gone := bits.OnesCount64(dead)/8, bits.OnesCount64(orphans)/8
	if g == t.groups {
		s.stash.Add(-int32(all))
	}
	s.n.expired += uint64(all - gone)
	s.n.nodeGone += uint64(gone)
}

// purge goes on with the search for entries whose owner is gone.
func (t *Table[K, V]) purge(now int64, limit, segs int) (freed int) {
	w := &t.sweep
	var out [reapMax]removed[K, V]
	for freed < limit && segs > 0 {
		// Who sweeps at the same time leaves this part to the other.
		if !w.mu.TryLock() {
			return freed
		}
		gone := t.gone.Load()
		if gone == nil {
			w.mu.Unlock()
			return freed
		}
		if !w.running {
			w.running, w.shard, w.seg = true, 0, 0
			w.epoch = t.owners.epoch.Load()
		}
		s := &t.shards[w.shard]
		s.mu.Lock()
		got, done := t.reapSegment(s, uint32(w.seg), now, limit-freed, &out, gone)
		t.entries.Add(-int64(got))
		t.unlock(s)
		if done {
			segs--
			w.seg++
			if w.seg == len(s.segMin) {
				w.seg = 0
				w.shard++
			}
			if w.shard == len(t.shards) {
				w.running = false
				t.owners.forget(&t.gone, w.epoch)
			}
		}
		w.mu.Unlock()
		t.report(out[:min(got, reapMax)])
		freed += got
	}
	return freed
}
