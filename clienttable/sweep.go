package clienttable

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
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

const reapMax = 64

// Sweep removes up to limit entries that have expired or whose owner is gone, and
// returns how many it removed. Its work is bounded: it looks at some 16 times limit
// entries at most, and while no owner is gone it only looks where some may have
// expired. Any number of goroutines may sweep at once.
func (t *Table[K, V]) Sweep(now time.Time, limit int) (freed int) {
	tick := t.tick(now)
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
			if t.Sweep(now, 128) == 0 && !t.due(now) {
				break
			}
		}
	}
}

// due reports whether a sweep has anything to look at.
func (t *Table[K, V]) due(now time.Time) bool {
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
			n, done = t.reapSegment(s, seg, now, limit, out, nil)
			if !done {
				return
			}
			break
		}
	}
	s.refreshSoonest(t)
	return n, true
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
func (t *Table[K, V]) reapSegment(s *shard[K, V], seg uint32, now int64, limit int, out *[reapMax]removed[K, V], gone *goneSet) (n int, done bool) {
	soonest := int64(never)
	base := s.first / groupSlots
	tell := t.cfg.OnRemove != nil
	if tell {
		limit = min(limit, len(out))
	}
	quick := !tell && s.log == nil && t.packed
	for g := seg * segGroups; g < min((seg+1)*segGroups, t.groups+1); g++ {
		word := t.tagsOf(base + g)
		tags := atomic.LoadUint64(word)
		left := tags
		for lane := uint32(0); tags>>(lane*8) != 0 && lane < groupSlots; lane++ {
			if tags>>(lane*8)&0xff == 0 {
				continue
			}
			slot := (base+g)*groupSlots + lane
			m := atomic.LoadUint64(t.metaOf(slot))
			why := Reason(0)
			if metaGone(m, now) {
				why = Expired
			} else if gone != nil && gone.has(t.cfg.Owner(t.value(slot)), t.birth(slot)) {
				why = NodeGone
			}
			if why == 0 {
				if metaClassOf(m) != Static {
					soonest = min(soonest, now+metaLeft(m, now))
				}
				continue
			}
			if n == limit {
				if left != tags {
					storeRelease(word, left)
				}
				return n, false
			}
			if why == Expired && !t.claim(slot, now) {
				// It has been looked up this moment.
				soonest = min(soonest, now+metaLeft(atomic.LoadUint64(t.metaOf(slot)), now))
				continue
			}
			if tell {
				out[n] = removed[K, V]{t.key(slot), t.value(slot), why}
			}
			n++
			if !quick {
				t.vacate(s, slot, why)
				continue
			}
			// As vacate, but with one write for all tags of the word.
			if why == NodeGone {
				t.unlive(slot)
			}
			left &^= 0xff << (lane * 8)
			t.mark(s, slot, metaClassOf(m), Established)
			if g == t.groups {
				s.stash.Add(-1)
			}
			s.used--
			s.count(why)
		}
		if left != tags {
			storeRelease(word, left)
		}
	}
	s.segMin[seg] = soonest
	return n, true
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
