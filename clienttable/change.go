package clienttable

import (
	"sync/atomic"
	"time"
)

// Delete removes k. It reports whether it was there.
func (t *Table[K, V]) Delete(k K) bool {
	_, ok := t.take(t.tick(time.Now()), &k, Deleted)
	return ok
}

// DeleteAt is [Table.Delete] at a time.
func (t *Table[K, V]) DeleteAt(now time.Time, k K) bool {
	_, ok := t.take(t.tick(now), &k, Deleted)
	return ok
}

// LoadAndDelete removes k and returns the value it had.
func (t *Table[K, V]) LoadAndDelete(k K) (v V, ok bool) {
	return t.take(t.tick(time.Now()), &k, Deleted)
}

// LoadAndDeleteAt is [Table.LoadAndDelete] at a time.
func (t *Table[K, V]) LoadAndDeleteAt(now time.Time, k K) (v V, ok bool) {
	return t.take(t.tick(now), &k, Deleted)
}

// take removes k.
func (t *Table[K, V]) take(now int64, k *K, why Reason) (v V, ok bool) {
	t, s, home, tag := t.lock(k, now)
	slot, found := t.find(s, home, tag, k)
	if !found {
		t.unlock(s)
		return v, false
	}
	out := t.expel(s, slot, now, why)
	t.entries.Add(-1)
	t.unlock(s)
	if t.cfg.OnRemove != nil {
		t.cfg.OnRemove(out.k, out.v, out.why)
	}
	if out.why != why {
		return v, false
	}
	return out.v, true
}

// DeleteFunc removes the entries for which del returns true, and returns how many
// these were. del is called outside of all locks and may use the table; if the value
// of a key changes right after del has seen it, the new one is removed.
func (t *Table[K, V]) DeleteFunc(del func(k K, v V) bool) (n int) {
	for k, v := range t.All() {
		if del(k, v) && t.Delete(k) {
			n++
		}
	}
	return n
}

// Clear removes all entries there are.
func (t *Table[K, V]) Clear() {
	t.DeleteFunc(func(K, V) bool { return true })
	for _, m := range t.family() {
		m.clearDead()
	}
}

// clearDead removes what is not alive any more.
func (t *Table[K, V]) clearDead() {
	now := t.tick(time.Now())
	var out [reapMax]removed[K, V]
	for i := range t.shards {
		s := &t.shards[i]
		for seg := range s.segMin {
			for done := false; !done; {
				var n int
				s.mu.Lock()
				n, done = t.reapSegment(s, uint32(seg), now, segSlots, &out, t.gone.Load())
				t.entries.Add(-int64(n))
				t.unlock(s)
				t.report(out[:min(n, reapMax)])
			}
		}
	}
}

// SetTTL gives k another TTL, from now on. It reports whether k was there.
func (t *Table[K, V]) SetTTL(k K, ttl time.Duration) bool { return t.SetTTLAt(time.Now(), k, ttl) }

// SetTTLAt is [Table.SetTTL] at a time.
func (t *Table[K, V]) SetTTLAt(now time.Time, k K, ttl time.Duration) bool {
	return t.alter(t.tick(now), &k, func(l Life) Life {
		l.TTL = ttl
		return l
	})
}

// SetLife gives k another life, from now on: when its handshake is complete, or
// when its session has ended. It reports whether k was there.
func (t *Table[K, V]) SetLife(now time.Time, k K, l Life) bool {
	return t.alter(t.tick(now), &k, func(Life) Life { return l })
}

// alter changes the life of an entry.
func (t *Table[K, V]) alter(now int64, k *K, change func(Life) Life) bool {
	t, s, home, tag := t.lock(k, now)
	slot, found := t.find(s, home, tag, k)
	if !found {
		t.unlock(s)
		return false
	}
	v := t.value(slot)
	if t.state(slot, now, &v) != 0 {
		t.unlock(s)
		return false
	}
	was := atomic.LoadUint64(t.metaOf(slot))
	if !t.relive(s, slot, now, change(t.lifeOf(was))) {
		out := t.expel(s, slot, now, Expired)
		t.entries.Add(-1)
		t.unlock(s)
		if t.cfg.OnRemove != nil {
			t.cfg.OnRemove(out.k, out.v, out.why)
		}
		return true
	}
	s.n.updated++
	if s.log != nil {
		s.log.store(k, &v, t.lifeOf(atomic.LoadUint64(t.metaOf(slot))))
	}
	t.unlock(s)
	return true
}

// relive gives the entry in a slot a new life, if that is not over at once. The
// shard is locked.
func (t *Table[K, V]) relive(s *shard[K, V], slot uint32, now int64, l Life) bool {
	m, exp, ok := t.meta(now, l)
	if !ok {
		return false
	}
	meta := t.metaOf(slot)
	was := atomic.LoadUint64(meta)
	for !atomic.CompareAndSwapUint64(meta, was, m|was&(metaVersion|metaLive)) {
		was = atomic.LoadUint64(meta)
	}
	t.mark(s, slot, metaClassOf(was), metaClassOf(m))
	t.expect(s, slot, exp)
	return true
}

// lifeOf returns the life in a meta.
func (t *Table[K, V]) lifeOf(m uint64) Life {
	return Life{
		TTL:   time.Duration(t.ttls.ms[m>>metaTTLAt&0xff]) * time.Millisecond,
		Fixed: m&metaFixed != 0,
		Class: metaClassOf(m),
	}
}

// Update changes the value and life of k to what f makes of them, and restarts its
// idle time; a fixed life that f leaves as it is goes on. Nothing else changes the
// entry meanwhile. That is no removal: OnRemove is not called. f is called once if k
// is there, which Update reports, under a lock: it must be fast and must not use the
// table.
func (t *Table[K, V]) Update(now time.Time, k K, f func(v V, l Life) (V, Life)) bool {
	tick := t.tick(now)
	t, s, home, tag := t.lock(&k, tick)
	slot, found := t.find(s, home, tag, &k)
	if !found {
		t.unlock(s)
		return false
	}
	birth := t.owners.epoch.Load()
	old := t.value(slot)
	if t.state(slot, tick, &old) != 0 {
		t.unlock(s)
		return false
	}
	was := atomic.LoadUint64(t.metaOf(slot))
	had := t.lifeOf(was)
	v, l := f(old, had)
	m, exp, ok := t.meta(tick, l)
	if l == had && l.Fixed {
		m, exp = was&^(metaVersion|metaLive), tick+metaLeft(was, tick)
	}
	if !ok {
		out := t.expel(s, slot, tick, Expired)
		out.v = v
		t.entries.Add(-1)
		t.unlock(s)
		if t.cfg.OnRemove != nil {
			t.cfg.OnRemove(out.k, out.v, out.why)
		}
		return true
	}
	if t.cfg.Owner == nil || t.cfg.Owner(v) == t.cfg.Owner(old) {
		birth = t.birth(slot)
	}
	t.rewrite(slot, m, &k, &v, birth)
	t.mark(s, slot, metaClassOf(was), metaClassOf(m))
	t.expect(s, slot, exp)
	s.n.updated++
	s.log.store(&k, &v, t.lifeOf(m))
	t.unlock(s)
	return true
}

// lock locks the shard of a key, and returns its home group and tag: those of the table
// that is to be changed, which is another one if t has grown.
func (t *Table[K, V]) lock(k *K, now int64) (in *Table[K, V], s *shard[K, V], home uint32, tag uint8) {
	h := t.hashOf(k)
	for {
		if t.kin.Load() != nil {
			t = t.settle(h, k, now)
		}
		t.warm(h)
		no, home, tag := t.home(h)
		s = &t.shards[no]
		s.mu.Lock()
		if !s.left {
			return t, s, home, tag
		}
		t.unlock(s)
	}
}
