package clienttable

import (
	"iter"
	"slices"
	"sync/atomic"
	"time"
)

// walker goes through the segments of a shard while entries come and go. An entry
// that moves meanwhile is neither missed nor met twice.
type walker[K comparable] struct {
	at     uint32 // segments before it have been visited
	skip   map[K]struct{}
	missed []K
}

// moved is told, under the shard's lock, that k moved between segments.
func (w *walker[K]) moved(k K, from, to uint32) {
	switch {
	case from < w.at && to >= w.at:
		if i := slices.Index(w.missed, k); i >= 0 {
			w.missed = slices.Delete(w.missed, i, i+1) // it has yet to be met
			return
		}
		if w.skip == nil {
			w.skip = make(map[K]struct{})
		}
		w.skip[k] = struct{}{}
	case from >= w.at && to < w.at:
		if _, ok := w.skip[k]; ok {
			delete(w.skip, k) // it went there and came back
			return
		}
		if !slices.Contains(w.missed, k) {
			w.missed = append(w.missed, k)
		}
	}
}

// entry is an entry as a walk finds it.
type entry[K comparable, V any] struct {
	k     K
	v     V
	meta  uint64
	birth uint64
	in    *Table[K, V]
}

// All iterates over the entries that are alive, in no order, at the time of the
// first step. Entries that are there throughout the iteration are met exactly once,
// those that come or go meanwhile once or not at all. A key that is removed and stored again
// is another entry. The loop's body runs outside
// of all locks and may use the table.
func (t *Table[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		t.AllAt(time.Now())(yield)
	}
}

// AllAt is [Table.All] at a time.
func (t *Table[K, V]) AllAt(now time.Time) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		t.walk(t.tick(now), func(e *entry[K, V]) bool { return yield(e.k, e.v) })
	}
}

// walk calls f for every entry that is alive.
func (t *Table[K, V]) walk(now int64, f func(e *entry[K, V]) bool) {
	buf := make([]entry[K, V], 0, segSlots)
	tour := new(tour[K, V])
	defer tour.end()
	for t = t.family()[0]; t != nil; t = t.follower() {
		tour.begin(t)
		for i := range t.shards {
			if !t.walkShard(tour, &t.shards[i], now, buf, f) {
				return
			}
		}
		tour.to(len(t.shards), nil)
	}
}

func (t *Table[K, V]) walkShard(tour *tour[K, V], s *shard[K, V], now int64, buf []entry[K, V], f func(e *entry[K, V]) bool) bool {
	w := new(walker[K])
	tour.to(int(s.no), w)
	s.mu.Lock()
	s.walkers = append(s.walkers, w)
	defer func() {
		s.mu.Lock()
		for i, o := range s.walkers {
			if o == w {
				s.walkers = append(s.walkers[:i], s.walkers[i+1:]...)
				break
			}
		}
		if len(s.walkers) == 0 {
			s.walkers = nil
		}
		s.mu.Unlock()
	}()
	take := func(slot uint32) bool {
		e := entry[K, V]{t.key(slot), t.value(slot), atomic.LoadUint64(t.metaOf(slot)), t.birth(slot), t}
		if t.state(slot, now, &e.v) != 0 || tour.met(e.k) {
			return true
		}
		if len(w.skip) > 0 {
			if _, ok := w.skip[e.k]; ok {
				delete(w.skip, e.k)
				return true
			}
		}
		buf = append(buf, e)
		return true
	}
	for more := true; more; {
		buf = buf[:0]
		for _, k := range w.missed {
			_, home, tag := t.home(t.hashOf(&k))
			// One that has left and come back meanwhile may lie ahead.
			if slot, ok := t.find(s, home, tag, &k); ok && (slot-s.first)/segSlots < w.at {
				take(slot)
			}
		}
		w.missed = w.missed[:0]
		if int(w.at) < len(s.segMin) {
			t.eachSlot(s, w.at, take)
			w.at++
		} else {
			more = false
		}
		s.mu.Unlock()
		for i := range buf {
			if !f(&buf[i]) {
				return false
			}
		}
		s.mu.Lock()
	}
	s.mu.Unlock()
	return true
}
