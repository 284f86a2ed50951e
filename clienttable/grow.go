package clienttable

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// kin is where the rest of a table's entries are while it grows (or shrinks: all here that is called
// larger is smaller then), and where all are afterwards.
//
// Each key is in one of the two tables at most. Who changes one first carries its
// entry over, and nothing is stored in the smaller table any more. Look-ups that find nothing in one
// go on in the other: an entry is in the larger table before it leaves the smaller
// one. Those that find something pay nothing for all this, and the others, in a table that has never
// grown, for the reading of one more word.
type kin[K comparable, V any] struct {
	older *Table[K, V] // has entries that are yet to be carried over
	newer *Table[K, V] // or: has taken this one's place
}

// growth is what a table needs to know about its growing.
type growth[K comparable, V any] struct {
	mu    sync.Mutex  // growing begins, or the bound changes
	ahead atomic.Bool // Prefault was called

	// Of a table that is left.
	drain      sync.Mutex
	shard, seg int // where drain has come to
	drained    atomic.Bool

	toursMu sync.Mutex
	tours   []*tour[K, V]

	// Of one that took over.
	statsMu sync.Mutex
	past    Stats // counted by those before
}

// Grow gives the table room for maxEntries entries, at a time, and returns the larger table that
// takes its place. Nothing is lost, look-ups and stores go on meanwhile, and none waits for more than
// one step: [Table.Sweep] carries up to its limit of entries over in each call, [Table.Run] all. Until then, which
// Stats.Behind tells, there are two storages; then the memory of the smaller one is given back. If the table has been told to
// [Table.Prefault], the larger one does before it takes over.
//
// t goes on working, and so does every feed and every iteration that has begun: all its
// methods act on the larger table, and Changes go on with the same numbers. But every look-up in t
// has to find out that there is nothing any more: use the returned table from now on where that matters.
//
// Grow returns t if it has as much room already, and an error if maxEntries
// is not valid, if the memory is not to be had, or [ErrClosed]. If the table is still growing, it first
// completes that. [Table.Shrink] is for less.
func (t *Table[K, V]) Grow(now time.Time, maxEntries int) (*Table[K, V], error) {
	for {
		t = t.newest()
		switch {
		case maxEntries <= 0 || maxEntries > maxMaxEntries:
			return nil, badBound(maxEntries)
		case t.closed.Load():
			return nil, ErrClosed
		case maxEntries > t.cfg.MaxEntries:
		case t.rebound(maxEntries, true):
			return t, nil
		default:
			continue
		}
		if r := t.kin.Load(); r != nil && r.older != nil {
			r.older.drainTo(t, t.tick(now), segSlots, true)
			continue
		}
		if n, err := t.succeed(maxEntries, nil); n != nil || err != nil {
			return n, err
		}
	}
}

// Shrink lowers the bound of the table to maxEntries: for new entries, and at once. None that is there leaves for it, as far as their
// hashes are spread: very few may find no room in a smaller storage that is seven eighths full, and are evicted. While there
// are more, a new one takes the place of one that may be evicted (of two, with [EvictOldest], so that these become fewer), or is refused.
//
// Once the entries fill no more than seven eighths of the new bound, and that is three quarters of the storage's or less, Shrink carries them over to a
// smaller one, as [Table.Grow] does to a larger one, and returns the table that has it. Until then it returns the same table: call it
// again from time to time to have the memory back. It never raises the bound. The errors are those of Grow.
func (t *Table[K, V]) Shrink(_ time.Time, maxEntries int) (*Table[K, V], error) {
	for {
		t = t.newest()
		switch {
		case maxEntries <= 0 || maxEntries > maxMaxEntries:
			return nil, badBound(maxEntries)
		case t.closed.Load():
			return nil, ErrClosed
		case !t.rebound(maxEntries, false):
			continue
		}
		most, bound := int64(t.cfg.MaxEntries), t.bound.Load()
		fits := func() bool { return t.bound.Load() == bound && t.entries.Load() <= bound-bound/8 }
		if t.kin.Load() != nil || bound > most-most/4 || !fits() {
			return t, nil
		}
		if n, err := t.succeed(int(bound), fits); n != nil || err != nil {
			return n, err
		}
	}
}

func badBound(maxEntries int) error {
	return fmt.Errorf("%w: MaxEntries %d: must be 1 to %d", ErrInvalid, maxEntries, maxMaxEntries)
}

// rebound raises the bound to n, or lowers it; it reports false if another table has taken t's place.
func (t *Table[K, V]) rebound(n int, raise bool) bool {
	t.grow.mu.Lock()
	defer t.grow.mu.Unlock()
	if t.follower() != nil {
		return false
	}
	if is := t.bound.Load(); raise == (int64(n) > is) {
		t.bound.Store(int64(n))
	}
	return true
}

// surplus reports whether there are more entries than the bound allows.
func (t *Table[K, V]) surplus() bool { return t.entries.Load()+t.behind() > t.bound.Load() }

// Growing reports whether [Table.Sweep] has entries to carry over, or to look for such, after [Table.Grow] or [Table.Shrink].
func (t *Table[K, V]) Growing() bool { return t.newest().kin.Load() != nil }

// succeed returns a table of another size that has taken t's place, or nil if one had already. fits, if not nil, is asked once the bound cannot
// change any more, and refuses.
func (t *Table[K, V]) succeed(maxEntries int, fits func() bool) (*Table[K, V], error) {
	t.grow.mu.Lock()
	defer t.grow.mu.Unlock()
	switch {
	case t.kin.Load() != nil || fits != nil && !fits():
		return nil, nil
	case t.closed.Load():
		return nil, ErrClosed
	}
	c := t.cfg
	c.MaxEntries = maxEntries
	n, err := newTable(c, t.hash, t.epoch, t.log)
	if err != nil {
		return nil, err
	}
	if t.grow.ahead.Load() {
		n.Prefault()
	}
	n.warned.Store(t.warned.Load())
	n.kin.Store(&kin[K, V]{older: t})
	t.kin.Store(&kin[K, V]{newer: n})
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.left = true // who was about to store something here notices
		s.mu.Unlock()
	}
	return n, nil
}

// newest returns the table that has taken t's place, or t.
func (t *Table[K, V]) newest() *Table[K, V] {
	for n := t.follower(); n != nil; n = n.follower() {
		if far := n.follower(); far != nil && n.grow.drained.Load() {
			// Nobody has to pass by n any more: only who has it keeps it.
			if r := t.kin.Load(); r.newer == n {
				t.kin.CompareAndSwap(r, &kin[K, V]{newer: far})
			}
		}
		t = n
	}
	return t
}

// follower returns the next larger table after t, or nil.
func (t *Table[K, V]) follower() *Table[K, V] {
	if r := t.kin.Load(); r != nil {
		return r.newer
	}
	return nil
}

// family returns the tables that have entries, the oldest first.
func (t *Table[K, V]) family() []*Table[K, V] {
	t = t.newest()
	if r := t.kin.Load(); r != nil && r.older != nil {
		return []*Table[K, V]{r.older, t}
	}
	return []*Table[K, V]{t}
}

// behind returns how many entries are yet to be carried over to t.
func (t *Table[K, V]) behind() int64 {
	if r := t.kin.Load(); r != nil && r.older != nil {
		return r.older.entries.Load()
	}
	return 0
}

// loadKin goes on with a look-up that has found nothing in t while that was r's.
//
//go:noinline
func (t *Table[K, V]) loadKin(r *kin[K, V], h uint64, k *K, now int64, touch touching) (v V, ok bool) {
	if r.newer != nil {
		return r.newer.load(h, k, now, touch)
	}
	if v, ok = r.older.load(h, k, now, touch|alone); ok {
		return v, true
	}
	// It may have moved in between, here or, if that has come to an end, further on.
	if v, ok = t.load(h, k, now, touch|alone); ok || t.kin.Load() == r {
		return v, ok
	}
	return t.load(h, k, now, touch)
}

// settle carries k over, if it is in the table, and returns the one in which it may be changed.
func (t *Table[K, V]) settle(h uint64, k *K, now int64) *Table[K, V] {
	for {
		r := t.kin.Load()
		switch {
		case r == nil:
			return t
		case r.newer == nil:
			r.older.carry(t, h, k, now)
			return t
		}
		t.carry(r.newer, h, k, now)
		t = r.newer
	}
}

// carry hands one key over.
func (t *Table[K, V]) carry(to *Table[K, V], h uint64, k *K, now int64) {
	if t.grow.drained.Load() {
		return
	}
	no, home, tag := t.home(h)
	s := &t.shards[no]
	s.mu.Lock()
	s.left = true // from now on nobody stores k here
	if slot, ok := t.find(s, home, tag, k); ok {
		t.handOver(s, slot, to, now)
	}
	t.unlock(s)
}

// handOver moves the entry in a slot to the larger table, or removes it if it is not alive any
// more. The shard is locked.
func (t *Table[K, V]) handOver(s *shard[K, V], slot uint32, to *Table[K, V], now int64) {
	// Before it is known that the owner is not gone: it is noted here first, and there an epoch
	// begins after that.
	epoch := to.owners.epoch.Load()
	k, v := t.key(slot), t.value(slot)
	if t.ends(slot, now, &v) != 0 {
		t.dismiss(s, slot, now)
		return
	}
	no, home, tag := to.home(t.hashOf(&k))
	d := &to.shards[no]
	d.mu.Lock()
	free, ok := to.room(d, home, tag, now)
	if !ok {
		// As in put: this hardly happens by chance.
		if free, ok = to.victim(d, home, tag, now); ok {
			to.dismiss(d, free, now)
		}
	}
	if ok {
		m := t.unlive(slot) // look-ups wait
		t.tell(s, slot, k)
		exp := now + metaLeft(m, now)
		if metaClassOf(m) == Static {
			exp = never
		}
		ttl := to.ttls.number(t.ttls.ms[m>>metaTTLAt&0xff])
		to.seat(d, free, tag, &k, &v, m&^(metaVersion|metaLive|metaTTL)|uint64(ttl)<<metaTTLAt, exp, epoch)
		to.entries.Add(1)
		d.moves.Add(1) // a look-up there that has found nothing looks again
	}
	if t.cfg.OnRemove != nil {
		s.limbo = append(s.limbo, d.limbo...)
		d.limbo = nil
	}
	d.mu.Unlock()
	if !ok {
		t.dismiss(s, slot, now)
		return
	}
	t.leave(s, slot)
	t.entries.Add(-1)
}

// drainStep is how many entries are carried over under one lock.
const drainStep = 16

// drainTo carries up to limit entries over, from where it has come to, unless somebody else does at
// this moment.
func (t *Table[K, V]) drainTo(to *Table[K, V], now int64, limit int, wait bool) {
	w := &t.grow
	for limit > 0 {
		if wait {
			w.drain.Lock()
		} else if !w.drain.TryLock() {
			return
		}
		if w.drained.Load() {
			w.drain.Unlock()
			return
		}
		s := &t.shards[w.shard]
		s.mu.Lock()
		s.left = true
		n := 0
		base := s.first / groupSlots
		end := min(uint32(w.seg+1)*segGroups, t.groups+1)
		for g := uint32(w.seg) * segGroups; g < end && n < drainStep; g++ {
			for m := ^lanes(*t.tagsOf(base + g), 0) & laneTops; m != 0; m &= m - 1 {
				t.handOver(s, base*groupSlots+g*groupSlots+uint32(bits.TrailingZeros64(m))/8, to, now)
				n++
			}
		}
		if n < drainStep {
			if w.seg++; w.seg == len(s.segMin) {
				w.seg = 0
				w.shard++
			}
		}
		out := s.limbo
		s.limbo = nil
		s.mu.Unlock()
		if w.shard == len(t.shards) {
			t.retire(to)
		}
		w.drain.Unlock()
		t.report(out)
		limit -= n + 1
	}
}

// retire ends the growing: nothing is left, and nothing comes any more.
func (t *Table[K, V]) retire(to *Table[K, V]) {
	to.grow.statsMu.Lock()
	past := t.stats()
	to.grow.past.add(&past)
	to.grow.past.add(&t.grow.past)
	to.kin.Store(nil)
	to.grow.statsMu.Unlock()
	t.grow.drained.Store(true)
	t.dropMemory()
}

// sweepFamily is Sweep for a table that has taken or is taking another one's place.
func (t *Table[K, V]) sweepFamily(tick int64, limit int) (freed int) {
	freed = t.sweepAlone(tick, limit)
	if r := t.kin.Load(); r != nil && r.older != nil {
		freed += r.older.sweepAlone(tick, limit-freed)
		r.older.drainTo(t, tick, limit, false)
	}
	return freed
}

// evictOlder is evict in the smaller table, for an entry with hash h of the larger one.
func (t *Table[K, V]) evictOlder(h uint64, now int64) bool {
	r := t.kin.Load()
	if r == nil || r.older == nil {
		return false
	}
	no, home, tag := r.older.home(h)
	if !r.older.evict(&r.older.shards[no], home, tag, now) {
		return false
	}
	t.entries.Add(1)
	r.older.entries.Add(-1)
	return true
}
