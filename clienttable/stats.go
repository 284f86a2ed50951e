package clienttable

import (
	"sync/atomic"
	"time"
)

// Stats counts what has happened to a [Table] since it was made. Every entry that
// was stored is either still counted in Entries or in one of the reasons.
type Stats struct {
	// Entries is the number of slots in use: entries, and those that have left but
	// whose removal has not been reported yet. Bound is that of MaxEntries; after Shrink
	// there may be more.
	Entries, Bound int
	// Hits and Misses of Load and LoadBatch, with Config.CountLookups.
	Hits, Misses uint64
	// Stores counts new entries and new values stored over old ones; Updates those
	// changed in place.
	Stores, Updates uint64
	// The entries that have left, by reason.
	Expired, Deleted, Replaced, Evicted, NodeGone uint64
	// Refused counts the stores that ended in ErrFull.
	Refused uint64
	// HalfOpen and Lingering are the numbers of entries in these classes.
	HalfOpen, Lingering int
	// Behind is how many of the entries have yet to be carried over after [Table.Grow] or [Table.Shrink].
	Behind int
	// Moves counts entries moved to make room, or to a larger table; Stashed is the number of entries
	// without room in their groups. Both say how crowded the table is.
	Moves   uint64
	Stashed int
	// RoundedTTLs counts the entries stored with a TTL that was rounded up because
	// more than 216 different ones were in use.
	RoundedTTLs uint64
	// Bytes is the size of the storage, of which the operating system only backs
	// what has been used.
	Bytes uint64
}

// Stats returns the counts. Each is exact, but they are not of one moment.
func (t *Table[K, V]) Stats() (st Stats) {
	t = t.newest()
	t.grow.statsMu.Lock() // nothing is counted twice
	defer t.grow.statsMu.Unlock()
	st = t.stats()
	st.add(&t.grow.past)
	if r := t.kin.Load(); r != nil && r.older != nil {
		older := r.older.stats()
		st.Behind = older.Entries
		st.add(&older)
		st.Entries, st.Bytes = min(st.Entries+older.Entries, t.cfg.MaxEntries), st.Bytes+older.Bytes
		st.HalfOpen, st.Lingering, st.Stashed = st.HalfOpen+older.HalfOpen, st.Lingering+older.Lingering, st.Stashed+older.Stashed
	}
	return st
}

// add adds what o has counted, but not what o has.
func (st *Stats) add(o *Stats) {
	for _, c := range [...]struct{ to, from *uint64 }{
		{&st.Hits, &o.Hits}, {&st.Misses, &o.Misses}, {&st.Stores, &o.Stores}, {&st.Updates, &o.Updates},
		{&st.Expired, &o.Expired}, {&st.Deleted, &o.Deleted}, {&st.Replaced, &o.Replaced}, {&st.Evicted, &o.Evicted}, {&st.NodeGone, &o.NodeGone},
		{&st.Refused, &o.Refused}, {&st.Moves, &o.Moves}, {&st.RoundedTTLs, &o.RoundedTTLs},
	} {
		*c.to += *c.from
	}
}

// stats is Stats for one of the tables of a family.
func (t *Table[K, V]) stats() (st Stats) {
	st.Entries = int(min(t.entries.Load(), int64(t.cfg.MaxEntries)))
	st.Bound = int(t.bound.Load())
	st.Refused = t.refused.Load()
	st.RoundedTTLs = t.ttls.rounded.Load()
	st.Bytes = uint64(t.region.size)
	for i := range t.shards {
		s := &t.shards[i]
		st.Hits += s.hits.Load()
		st.Misses += s.misses.Load()
		st.Moves += s.moves.Load()
		st.Stashed += int(s.stash.Load())
		st.HalfOpen += int(t.classes[0][i].Load())
		st.Lingering += int(t.classes[1][i].Load())
		s.mu.Lock()
		n := s.n
		s.mu.Unlock()
		st.Stores += n.stores
		st.Updates += n.updated
		st.Expired += n.expired
		st.Deleted += n.deleted
		st.Replaced += n.replaced
		st.Evicted += n.evicted
		st.NodeGone += n.nodeGone
	}
	return st
}

// Len returns the number of entries that are alive. It is quick unless there are
// entries that are not and have not been removed: these are looked for.
func (t *Table[K, V]) Len() int { return t.LenAt(time.Now()) }

// LenAt is [Table.Len] at a time.
func (t *Table[K, V]) LenAt(now time.Time) (n int) {
	for _, m := range t.family() {
		n += m.lenAt(t.tick(now))
	}
	return min(n, t.newest().cfg.MaxEntries)
}

// lenAt is LenAt for one of the tables of a family.
func (t *Table[K, V]) lenAt(tick int64) int {
	n := int(t.entries.Load())
	gone := t.gone.Load()
	for i := range t.shards {
		if gone == nil && t.soonest[i].Load() > tick {
			continue
		}
		s := &t.shards[i]
		s.mu.Lock()
		for seg := range s.segMin {
			if gone == nil && s.segMin[seg] > tick {
				continue
			}
			soonest := int64(never)
			t.eachSlot(s, uint32(seg), func(slot uint32) bool {
				m := atomic.LoadUint64(t.metaOf(slot))
				if metaClassOf(m) != Static {
					soonest = min(soonest, tick+metaLeft(m, tick))
				}
				v := t.value(slot)
				if t.state(slot, tick, &v) != 0 {
					n--
				}
				return true
			})
			s.segMin[seg] = soonest
		}
		s.refreshSoonest(t)
		s.mu.Unlock()
	}
	return min(n, t.cfg.MaxEntries)
}

// Info is what a table knows about an entry besides its value.
type Info struct {
	Life Life // for how long it lives, and its class
	// Left is the time until the entry expires; [MaxTTL] for a Static one.
	Left time.Duration
}

// Info returns what is known about k, and leaves its idle time alone.
func (t *Table[K, V]) Info(now time.Time, k K) (v V, in Info, ok bool) {
	tick := t.tick(now)
	t, s, home, tag := t.lock(&k, tick)
	defer t.unlock(s)
	slot, ok := t.find(s, home, tag, &k)
	if !ok {
		return v, in, false
	}
	v = t.value(slot)
	if t.state(slot, tick, &v) != 0 {
		return *new(V), in, false
	}
	m := atomic.LoadUint64(t.metaOf(slot))
	in.Life = t.lifeOf(m)
	in.Left = time.Duration(metaLeft(m, tick)) * time.Millisecond
	if in.Life.Class == Static {
		in.Left = MaxTTL
	}
	return v, in, true
}
