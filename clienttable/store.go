package clienttable

import (
	"sync/atomic"
	"time"
)

// Store sets the value of k, with the table's TTL. A value that was there is
// reported as [Replaced]. The error is [ErrFull] or [ErrClosed].
func (t *Table[K, V]) Store(k K, v V) error { return t.StoreLife(time.Now(), k, v, Life{}) }

// StoreAt is [Table.Store] at a time.
func (t *Table[K, V]) StoreAt(now time.Time, k K, v V) error { return t.StoreLife(now, k, v, Life{}) }

// StoreLife is [Table.Store] at a time and with a life.
func (t *Table[K, V]) StoreLife(now time.Time, k K, v V, l Life) error {
	_, _, err := t.put(t.tick(now), &k, &v, l, true)
	return err
}

// LoadOrStore returns the value of k if there is one, as [Table.Load] does, and
// else stores v. loaded is true if the value was there. The error, [ErrFull] or
// [ErrClosed], says that v was not stored; actual is v then.
func (t *Table[K, V]) LoadOrStore(k K, v V) (actual V, loaded bool, err error) {
	return t.LoadOrStoreLife(time.Now(), k, v, Life{})
}

// LoadOrStoreAt is [Table.LoadOrStore] at a time.
func (t *Table[K, V]) LoadOrStoreAt(now time.Time, k K, v V) (actual V, loaded bool, err error) {
	return t.LoadOrStoreLife(now, k, v, Life{})
}

// LoadOrStoreLife is [Table.LoadOrStore] at a time and with a life for an entry
// that is stored.
func (t *Table[K, V]) LoadOrStoreLife(now time.Time, k K, v V, l Life) (actual V, loaded bool, err error) {
	return t.put(t.tick(now), &k, &v, l, false)
}

// meta returns the meta of an entry stored now, without version, and its expiry in
// full. ok is false if it would be gone at once.
func (t *Table[K, V]) meta(now int64, l Life) (m uint64, exp int64, ok bool) {
	no := t.ttlNo
	if l.TTL > 0 {
		no = t.ttls.number(milliseconds(l.TTL))
	}
	exp = now + t.ttls.ms[no]
	m = uint64(exp)<<metaExpAt | uint64(no)<<metaTTLAt | uint64(l.Class&Static)<<metaClassAt
	if l.Fixed {
		m |= metaFixed
	}
	if l.Class == Static {
		exp = never
	}
	return m, exp, l.TTL >= 0 || l.Class == Static
}

// put is Store (replace) and LoadOrStore.
func (t *Table[K, V]) put(now int64, k *K, v *V, l Life, replace bool) (actual V, loaded bool, err error) {
	h := t.hashOf(k)
	if t.kin.Load() != nil {
		t = t.settle(h, k, now)
	}
	no, home, tag := t.home(h)
	s := &t.shards[no]
	m, exp, ok := t.meta(now, l)
	if !ok { // negative TTL: nothing that was there survives, nothing is stored
		if t.closed.Load() {
			return *v, false, ErrClosed
		}
		if replace {
			t.take(now, k, Replaced)
			return *v, false, nil
		}
		actual, loaded = t.load(h, k, now, touchSafe)
		if !loaded {
			actual = *v
		}
		return actual, loaded, nil
	}
	reserved := false
	t.warm(h)
	for {
		s.mu.Lock()
		if s.closed {
			t.unlock(s)
			if reserved {
				t.entries.Add(-1)
			}
			return *v, false, ErrClosed
		}
		if s.left {
			t.unlock(s)
			if reserved {
				t.entries.Add(-1)
			}
			return t.put(now, k, v, l, replace)
		}
		if slot, found := t.find(s, home, tag, k); found {
			actual, loaded = t.putOver(s, slot, now, k, v, m, exp, replace)
			if reserved {
				t.entries.Add(-1)
			}
			return actual, loaded, nil
		}
		if reserved || t.reserve() {
			if slot, found := t.room(s, home, tag, now); found {
				t.occupy(s, slot, tag, k, v, m, exp)
				t.unlock(s)
				t.warnFill(now)
				return *v, false, nil
			}
			// No room near the key's groups although the table has some: with the
			// load the table is built for this hardly happens by chance. Then one of
			// those who sit there has to go as if the table were full.
			if slot, found := t.victim(s, home, tag, now); found {
				t.dismiss(s, slot, now)
				t.unlock(s)
				reserved = true
				continue
			}
			t.entries.Add(-1)
			t.unlock(s)
			break
		}
		t.unlock(s)
		if reserved = t.evict(s, home, tag, now) || t.evictOlder(h, now); !reserved {
			break
		}
		if t.cfg.Full == EvictOldest && t.surplus() && t.evict(s, home, tag, now) {
			t.entries.Add(-1) // and one more: the bound has been lowered
		}
	}
	t.refused.Add(1)
	t.warnFill(now)
	return *v, false, ErrFull
}

// reserve counts an entry in, unless the table is full.
func (t *Table[K, V]) reserve() bool {
	behind := t.behind() // first, so that none is missed that is carried over now
	if t.entries.Add(1)+behind <= t.bound.Load() {
		return true
	}
	t.entries.Add(-1)
	return false
}

// putOver handles a key that is in the table; it unlocks the shard.
func (t *Table[K, V]) putOver(s *shard[K, V], slot uint32, now int64, k *K, v *V, m uint64, exp int64, replace bool) (actual V, loaded bool) {
	old := t.value(slot)
	why := t.ends(slot, now, &old)
	if why == 0 {
		if !replace {
			t.touch(slot, now)
			t.unlock(s)
			return old, true
		}
		why = Replaced
	}
	birth := t.owners.epoch.Load()
	was := atomic.LoadUint64(t.metaOf(slot))
	t.rewrite(slot, m, k, v, birth)
	t.mark(s, slot, metaClassOf(was), metaClassOf(m))
	t.expect(s, slot, exp)
	s.count(why)
	s.n.stores++
	if s.log != nil {
		s.log.store(k, v, t.lifeOf(m))
	}
	t.unlock(s)
	if t.cfg.OnRemove != nil {
		t.cfg.OnRemove(*k, old, why)
	}
	return *v, false
}

// occupy puts a new entry into a free slot. The shard is locked.
func (t *Table[K, V]) occupy(s *shard[K, V], slot uint32, tag uint8, k *K, v *V, m uint64, exp int64) {
	t.seat(s, slot, tag, k, v, m, exp, t.owners.epoch.Load())
	s.n.stores++
	if s.log != nil {
		s.log.store(k, v, t.lifeOf(m))
	}
}

// seat is occupy for an entry that is new to the slot, and not to the table.
func (t *Table[K, V]) seat(s *shard[K, V], slot uint32, tag uint8, k *K, v *V, m uint64, exp int64, birth uint64) {
	t.write(slot, m, k, v, birth)
	t.setTag(slot, tag)
	t.mark(s, slot, Established, metaClassOf(m))
	t.expect(s, slot, exp)
	s.used++
	if (slot-s.first)/groupSlots == t.groups {
		s.stash.Add(1)
	}
}

// find returns the slot of k. The shard is locked.
func (t *Table[K, V]) find(s *shard[K, V], home uint32, tag uint8, k *K) (slot uint32, ok bool) {
	base := s.first / groupSlots
	if slot, ok = t.findIn(base+home, tag, k); ok {
		return
	}
	if slot, ok = t.findIn(base+t.other(home, tag), tag, k); ok {
		return
	}
	if s.stash.Load() != 0 {
		return t.findIn(base+t.groups, tag, k)
	}
	return 0, false
}

func (t *Table[K, V]) findIn(group uint32, tag uint8, k *K) (slot uint32, ok bool) {
	for m := lanes(atomic.LoadUint64(t.tagsOf(group)), tag); m != 0; m &= m - 1 {
		if slot = laneSlot(group, m); t.sameKey(slot, k) {
			return slot, true
		}
	}
	return 0, false
}

// state returns 0 for an entry that is alive, else why it is not.
func (t *Table[K, V]) state(slot uint32, now int64, v *V) Reason {
	if metaGone(atomic.LoadUint64(t.metaOf(slot)), now) {
		return Expired
	}
	if gone := t.gone.Load(); gone != nil && gone.has(t.cfg.Owner(*v), t.birth(slot)) {
		return NodeGone
	}
	return 0
}

// ends is state for who is about to remove the entry: if it has expired, no look-up
// restarts its idle time any more. The shard is locked.
func (t *Table[K, V]) ends(slot uint32, now int64, v *V) Reason {
	why := t.state(slot, now, v)
	if why == Expired && !t.claim(slot, now) {
		return t.state(slot, now, v)
	}
	return why
}

// claim makes an entry that has expired invisible, unless a look-up, by a clock that
// is behind, restarts its idle time first. The shard is locked.
func (t *Table[K, V]) claim(slot uint32, now int64) bool {
	meta := t.metaOf(slot)
	for {
		m := atomic.LoadUint64(meta)
		switch {
		case !metaGone(m, now):
			return false
		case m&metaFixed != 0, atomic.CompareAndSwapUint64(meta, m, m&^metaLive):
			return true
		}
	}
}

// unlive makes an entry invisible whose owner is gone, or which moves, and returns the
// meta it had: no look-up restarts its idle time any more. Of an owner that is gone, a look-up that has
// found the slot, and asks for the owner only after the sweep has dropped the note,
// would else take the entry for alive. The shard is locked.
func (t *Table[K, V]) unlive(slot uint32) (was uint64) {
	meta := t.metaOf(slot)
	for {
		was = atomic.LoadUint64(meta)
		if atomic.CompareAndSwapUint64(meta, was, was&^metaLive) {
			return was
		}
	}
}

// touch restarts the idle time of an entry. The shard is locked.
func (t *Table[K, V]) touch(slot uint32, now int64) {
	meta := t.metaOf(slot)
	for {
		m := atomic.LoadUint64(meta)
		exp := uint64(now+t.ttls.ms[m>>metaTTLAt&0xff]) << metaExpAt
		if m&metaFixed != 0 || int64(exp-m&metaExp) <= 0 || atomic.CompareAndSwapUint64(meta, m, exp|m&^metaExp) {
			return
		}
	}
}

// expect notes when an entry expires. The shard is locked.
func (t *Table[K, V]) expect(s *shard[K, V], slot uint32, exp int64) {
	seg := (slot - s.first) / segSlots
	if exp < s.segMin[seg] {
		s.segMin[seg] = exp
		if exp < t.soonest[s.no].Load() {
			t.soonest[s.no].Store(exp)
		}
	}
}

// mark notes a slot's change of class. The shard is locked.
func (t *Table[K, V]) mark(s *shard[K, V], slot uint32, from, to Class) {
	if from == to {
		return
	}
	i := slot - s.first
	if from == HalfOpen || from == Lingering {
		s.marks[from-1][i/64] &^= 1 << (i % 64)
		t.classes[from-1][s.no].Add(-1)
	}
	if to == HalfOpen || to == Lingering {
		s.marks[to-1][i/64] |= 1 << (i % 64)
		t.classes[to-1][s.no].Add(1)
	}
}

// vacate removes the entry in a slot. The shard is locked. Look-ups that found the
// slot a moment ago may still find the entry there, unless its owner is gone.
func (t *Table[K, V]) vacate(s *shard[K, V], slot uint32, why Reason) {
	if why == NodeGone {
		t.unlive(slot)
	}
	s.count(why)
	if s.log != nil {
		k := t.key(slot)
		s.log.remove(&k, why)
	}
	t.leave(s, slot)
}

// leave frees a slot. The shard is locked.
func (t *Table[K, V]) leave(s *shard[K, V], slot uint32) {
	t.setTag(slot, 0)
	t.mark(s, slot, metaClassOf(atomic.LoadUint64(t.metaOf(slot))), Established)
	if (slot-s.first)/groupSlots == t.groups {
		s.stash.Add(-1)
	}
	s.used--
	if !t.packed {
		t.pairs[slot].Store(nil)
	}
}

func (s *shard[K, V]) count(why Reason) {
	switch why {
	case Expired:
		s.n.expired++
	case Deleted:
		s.n.deleted++
	case Replaced:
		s.n.replaced++
	case Evicted:
		s.n.evicted++
	case NodeGone:
		s.n.nodeGone++
	}
}

// unlock unlocks a shard and reports the entries that had to leave meanwhile.
func (t *Table[K, V]) unlock(s *shard[K, V]) {
	if len(s.limbo) == 0 {
		s.mu.Unlock()
		return
	}
	out := s.limbo
	s.limbo = nil
	s.mu.Unlock()
	if t.cfg.OnRemove != nil {
		for i := range out {
			t.cfg.OnRemove(out[i].k, out[i].v, out[i].why)
		}
	}
}

// warnFill calls OnFill if it is due.
func (t *Table[K, V]) warnFill(now int64) {
	if t.cfg.OnFill == nil {
		return
	}
	n, bound := t.entries.Load()+t.behind(), t.bound.Load()
	if n*100 < int64(t.cfg.FillWarn)*bound {
		return
	}
	last := t.warned.Load()
	// A clock that was set back does not silence the warning for longer.
	if minute := time.Minute.Milliseconds(); now-last < minute && last-now < minute || !t.warned.CompareAndSwap(last, now) {
		return
	}
	t.cfg.OnFill(int(min(n, bound)), int(bound))
}
