package clienttable

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// Load returns the value of k, and restarts its idle time unless it is fixed.
func (t *Table[K, V]) Load(k K) (v V, ok bool) { return t.LoadAt(time.Now(), k) }

// LoadAt is [Table.Load] at a time.
func (t *Table[K, V]) LoadAt(now time.Time, k K) (v V, ok bool) {
	h := t.hashOf(&k)
	v, ok = t.load(h, &k, t.tick(now), touchSafe)
	if t.count {
		t.newest().countLookup(h, ok)
	}
	return
}

// Peek returns the value of k and leaves its idle time alone.
func (t *Table[K, V]) Peek(k K) (v V, ok bool) { return t.PeekAt(time.Now(), k) }

// PeekAt is [Table.Peek] at a time.
func (t *Table[K, V]) PeekAt(now time.Time, k K) (v V, ok bool) {
	return t.load(t.hashOf(&k), &k, t.tick(now), touchNot)
}

func (t *Table[K, V]) countLookup(h uint64, ok bool) {
	no, _, _ := t.home(h)
	if ok {
		t.shards[no].hits.Add(1)
	} else {
		t.shards[no].misses.Add(1)
	}
}

// touching is whether a look-up restarts the idle time of what it finds.
type touching uint8

const (
	touchNot    touching = 0
	touchUnsafe touching = 1 // and the caller makes sure that no sweep is removing it
	makesSure   touching = 2 // the look-up does
	touchSafe            = touchUnsafe | makesSure
	alone       touching = 4 // nothing is looked for in another table: see loadKin
)

// load looks k up, whose hash is h, without a lock, but for loadBehind.
func (t *Table[K, V]) load(h uint64, k *K, now int64, touch touching) (v V, ok bool) {
	no, home, tag := t.home(h)
	s := &t.shards[no]
	base := s.first / groupSlots
	if t.large {
		// So that one wait is for both, the tags and the entry, half the time. A third less.
		t.prefetchSlot(preferred(base+home, tag))
	}
again:
	moves := s.moves.Load()
	g := home
	for round := 0; ; round++ {
		for m := lanes(atomic.LoadUint64(t.tagsOf(base+g)), tag); m != 0; m &= m - 1 {
			slot := laneSlot(base+g, m)
			v, got := t.hit(slot, k, now, touch&touchUnsafe != 0)
			switch got {
			case hitYes:
				if touch&makesSure != 0 && now < s.reapTo.Load() {
					return t.loadBehind(s, h, k, now, touch)
				}
				runtime.KeepAlive(t)
				return v, true
			case hitNo:
				continue
			case hitGone:
				runtime.KeepAlive(t)
				return *new(V), false
			}
			if t.tagAt(slot) == tag {
				pause(slot, t)
			}
			goto again
		}
		if round == 0 {
			if g = t.other(home, tag); g != home {
				continue
			}
		}
		if round <= 1 && s.stash.Load() != 0 {
			round, g = 1, t.groups
			continue
		}
		break
	}
	// Asked for before moves: when kin is dropped, all it had has moved here.
	r := t.kin.Load()
	if s.moves.Load() != moves {
		goto again
	}
	if r != nil && touch&alone == 0 {
		return t.loadKin(r, h, k, now, touch)
	}
	runtime.KeepAlive(t)
	return v, false
}

// loadBehind is load for a hit whose clock is behind that of a sweep of the shard. The
// sweep may have taken the entry for expired before its idle time was restarted, by this
// look-up or another one with such a clock, and be about to remove it. A look-up whose
// clock is not behind cannot meet that: what is alive by its clock is by that of the sweep.
// As a look-up asks for reapTo after it has restarted the idle time, and a sweep sets
// reapTo before it looks at any, one of them notices the other.
//
//go:noinline
func (t *Table[K, V]) loadBehind(s *shard[K, V], h uint64, k *K, now int64, touch touching) (v V, ok bool) {
	if r := s.reaping.Load(); r&1 == 0 {
		v, ok = t.load(h, k, now, touch&^makesSure)
		if s.reaping.Load() == r {
			return v, ok // no sweep was at work
		}
	}
	_, home, tag := t.home(h)
	s.mu.Lock()
	slot, found := t.find(s, home, tag, k)
	if !found {
		t.unlock(s)
		if r := t.kin.Load(); r != nil && touch&alone == 0 {
			return t.loadKin(r, h, k, now, touch)
		}
		return *new(V), false
	}
	defer t.unlock(s)
	if v = t.value(slot); t.state(slot, now, &v) != 0 {
		return *new(V), false
	}
	t.touch(slot, now)
	return v, true
}

// pause waits for a writer that is at work on a slot.
func pause[K comparable, V any](slot uint32, t *Table[K, V]) {
	for range 64 {
		if atomic.LoadUint64(t.metaOf(slot))&metaLive != 0 {
			return
		}
	}
	runtime.Gosched()
}

type hitResult uint8

const (
	hitNo    hitResult = iota // another key
	hitYes                    // found
	hitGone                   // found, but expired or its owner is gone
	hitRetry                  // changed while it was read
)

// hit reads a slot whose tag fits.
func (t *Table[K, V]) hit(slot uint32, k *K, now int64, touch bool) (v V, r hitResult) {
	meta := t.metaOf(slot)
	m := atomic.LoadUint64(meta)
	if !t.packed {
		return t.hitPair(slot, m, k, now, touch)
	}
	if unsafe.Sizeof(*k) == 40 { // as sameKey does, without a call
		a, b := (*[5]uint64)(unsafe.Add(unsafe.Pointer(meta), 8)), (*[5]uint64)(unsafe.Pointer(k))
		if (atomic.LoadUint64(&a[4])^b[4])|(atomic.LoadUint64(&a[1])^b[1])|(atomic.LoadUint64(&a[3])^b[3])|
			(atomic.LoadUint64(&a[0])^b[0])|(atomic.LoadUint64(&a[2])^b[2]) != 0 {
			return v, hitNo
		}
	} else if !t.sameKey(slot, k) {
		return v, hitNo
	}
	if m&metaLive == 0 {
		return v, hitRetry
	}
	// As value does.
	readWords(unsafe.Pointer(&v), unsafe.Add(unsafe.Pointer(meta), 8+uintptr(roundUp8(unsafe.Sizeof(*k)))), unsafe.Sizeof(v))
	if metaGone(m, now) {
		r = hitGone
	} else if gone := t.gone.Load(); gone != nil && t.isGone(gone, slot, m, &v) {
		r = hitGone
	} else {
		r = hitYes
		if touch && m&metaFixed == 0 {
			exp := uint64(now+t.ttls.ms[m>>metaTTLAt&0xff]) << metaExpAt
			if int64(exp-m&metaExp) > 0 {
				if atomic.CompareAndSwapUint64(meta, m, exp|m&^metaExp) {
					return v, hitYes
				}
				return v, hitRetry
			}
		}
	}
	// The expiry counts too, although another look-up may have restarted the idle
	// time and nothing else: without it, versions would come round too soon.
	if atomic.LoadUint64(meta) != m {
		return v, hitRetry
	}
	return v, r
}

// isGone reports whether the owner of v, read from a slot with meta m, is gone. It
// asks Config.Owner only of a value that is whole.
func (t *Table[K, V]) isGone(gone *goneSet, slot uint32, m uint64, v *V) bool {
	birth := t.birth(slot)
	return atomic.LoadUint64(t.metaOf(slot)) == m && gone.has(t.cfg.Owner(*v), birth)
}

// hitPair is hit in the heap layout. Key, value and birth never change within a
// pair, but the slot may get another one, or none, at any time.
func (t *Table[K, V]) hitPair(slot uint32, m uint64, k *K, now int64, touch bool) (v V, r hitResult) {
	p := t.pairs[slot].Load()
	switch {
	case p == nil:
		return v, hitRetry // it is leaving, or has yet to come
	case p.k != *k:
		return v, hitNo
	case m&metaLive == 0:
		return v, hitRetry
	case metaGone(m, now):
		r = hitGone
	default:
		r = hitYes
		if gone := t.gone.Load(); gone != nil && gone.has(t.cfg.Owner(p.v), p.birth) {
			r = hitGone
		} else if exp := uint64(now+t.ttls.ms[m>>metaTTLAt&0xff]) << metaExpAt; touch && m&metaFixed == 0 && int64(exp-m&metaExp) > 0 {
			if atomic.CompareAndSwapUint64(t.metaOf(slot), m, exp|m&^metaExp) {
				return p.v, hitYes
			}
			return v, hitRetry
		}
	}
	if atomic.LoadUint64(t.metaOf(slot)) != m {
		return v, hitRetry
	}
	return p.v, r
}
