package clienttable

import (
	"sync"
	"sync/atomic"
	"time"
)

// Every entry remembers the epoch of the owners in which it was stored. To
// invalidate an owner is to begin an epoch and to note it under the owner: older
// entries of that owner are gone. When a whole pass of the sweep has removed them,
// the note is dropped, so that no memory grows with the number of owners there have
// ever been.
type owners struct {
	epoch   atomic.Uint64
	mu      sync.Mutex
	pending []invalidation
}

type invalidation struct {
	owner uint32
	epoch uint64
}

// Invalidate makes all entries of an owner invisible at once, in constant time,
// and without a look at the entries. They are reported as [NodeGone] when a later
// store or sweep removes them; until then they count against MaxEntries. Entries
// stored later for the same owner are valid. Owner 0 is nobody, and without
// Config.Owner nothing has an owner: then Invalidate does nothing.
//
// It needs 16 bytes for each call, and 16 KiB for each 2048 consecutive owner
// numbers among them, until the sweep has been through the table.
func (t *Table[K, V]) Invalidate(owner uint32) {
	if owner == 0 || t.cfg.Owner == nil {
		return
	}
	// From the oldest on, and on to one that begins to follow meanwhile: see handOver.
	if r := t.kin.Load(); r != nil && r.older != nil {
		r.older.invalidate(owner)
	}
	for {
		t.invalidate(owner)
		r := t.kin.Load()
		if r == nil || r.newer == nil {
			return
		}
		t = r.newer
	}
}

// invalidate is Invalidate for one of the tables of a family.
func (t *Table[K, V]) invalidate(owner uint32) {
	o := &t.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	gone := t.gone.Load()
	if gone == nil {
		gone = new(goneSet)
		t.gone.Store(gone)
	}
	// The note comes before the epoch: an entry born in the new epoch was stored
	// by somebody who could see the note.
	e := o.epoch.Load() + 1
	gone.set(owner, e)
	o.epoch.Store(e)
	o.pending = append(o.pending, invalidation{owner, e})
}

// Invalidated returns the value of an entry that [Table.Invalidate] made invisible and no store or sweep has removed
// yet. It is for what is no longer to be used but still is to be known: that a session has been lost, and not
// merely is unknown. The entry stays as invisible as it is, and no idle time is restarted. It takes a shard's lock.
func (t *Table[K, V]) Invalidated(now time.Time, k K) (v V, ok bool) {
	t = t.newest()
	if r := t.kin.Load(); r != nil && r.older != nil {
		if v, ok = r.older.invalidated(t.tick(now), &k); ok {
			return v, true
		}
	}
	return t.invalidated(t.tick(now), &k)
}

// invalidated is Invalidated for one of the tables of a family.
func (t *Table[K, V]) invalidated(now int64, k *K) (v V, ok bool) {
	if t.gone.Load() == nil {
		return v, false
	}
	h := t.hashOf(k)
	t.warm(h)
	no, home, tag := t.home(h)
	s := &t.shards[no]
	s.mu.Lock()
	defer t.unlock(s)
	slot, found := t.find(s, home, tag, k)
	if !found {
		return v, false
	}
	if was := t.value(slot); t.state(slot, now, &was) == NodeGone {
		return was, true
	}
	return v, false
}

// forget drops the notes up to an epoch.
func (o *owners) forget(in *atomic.Pointer[goneSet], epoch uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	gone := in.Load()
	n := 0
	for _, p := range o.pending {
		if p.epoch > epoch {
			o.pending[n] = p
			n++
			continue
		}
		gone.unset(p.owner, p.epoch)
	}
	o.pending = o.pending[:n]
	if n == 0 {
		o.pending = nil
		in.Store(nil)
	}
}

// goneSet maps owners to the epoch before which their entries are gone: a radix
// tree, as owner numbers lie close together.
type goneSet [1 << 10]atomic.Pointer[goneMid]

// A part without notes is given up, or a table that always has some would keep one for all owners there have ever been.
type (
	goneMid struct {
		parts [1 << 11]atomic.Pointer[goneLeaf]
		n     int // of parts; the owners' lock guards it
	}
	goneLeaf struct {
		notes [1 << 11]atomic.Uint64
		n     int // that are not 0; the owners' lock guards it
	}
)

// has reports whether an entry of owner, born in an epoch, is gone.
func (g *goneSet) has(owner uint32, birth uint64) bool {
	mid := g[owner>>22].Load()
	if mid == nil {
		return false
	}
	leaf := mid.parts[owner>>11&(1<<11-1)].Load()
	return leaf != nil && birth < leaf.notes[owner&(1<<11-1)].Load()
}

// set is called with the owners' lock held.
func (g *goneSet) set(owner uint32, epoch uint64) {
	mid := g[owner>>22].Load()
	if mid == nil {
		mid = new(goneMid)
		g[owner>>22].Store(mid)
	}
	at := &mid.parts[owner>>11&(1<<11-1)]
	leaf := at.Load()
	if leaf == nil {
		leaf = new(goneLeaf)
		at.Store(leaf)
		mid.n++
	}
	if leaf.notes[owner&(1<<11-1)].Swap(epoch) == 0 {
		leaf.n++
	}
}

// unset drops a note, unless a later one has taken its place. It is called with the owners' lock held.
func (g *goneSet) unset(owner uint32, epoch uint64) {
	mid := g[owner>>22].Load()
	if mid == nil {
		return
	}
	at := &mid.parts[owner>>11&(1<<11-1)]
	leaf := at.Load()
	if leaf == nil || !leaf.notes[owner&(1<<11-1)].CompareAndSwap(epoch, 0) {
		return
	}
	if leaf.n--; leaf.n > 0 {
		return
	}
	at.Store(nil)
	if mid.n--; mid.n == 0 {
		g[owner>>22].Store(nil)
	}
}
