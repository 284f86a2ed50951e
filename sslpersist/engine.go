package sslpersist

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// engine is what all tables of the package are made of: keys of up to 32 bytes bound to
// nodes, each until it was idle for the time of its node, never more than a limit, and
// never a live one evicted.
type engine[N comparable] struct {
	seed   maphash.Seed
	epoch  time.Time
	max    int64
	ttl    func(N) time.Duration
	owners owners[N]
	shards []shard
	hand   atomic.Uint32 // where Sweep goes on
	slots  atomic.Int64  // entries, expired and forgotten ones included
	feed   *feed[N]      // nil without one
	stats  counters
	want   uint64 // length of the keys, 0 is any
}

// counters are what TableStats is made of.
type counters struct {
	hits, misses, learned, refreshed, moved, refused, expired, forgotten, shared atomic.Uint64
}

const (
	maxShards     = 64
	shardEntries  = 16384
	maxMaxEntries = 1 << 26
)

func newEngine[N comparable](entries int, ttl func(N) time.Duration, remember int) *engine[N] {
	shards := 1
	if n := entries / shardEntries; n > 1 {
		shards = min(maxShards, 1<<(bits.Len(uint(n-1))))
	}
	e := &engine[N]{
		seed:   maphash.MakeSeed(),
		epoch:  time.Now(),
		max:    int64(entries),
		ttl:    ttl,
		shards: make([]shard, shards),
	}
	e.owners.byNode = make(map[N]uint32)
	e.owners.list.Store(new([]*owner[N]))
	for i := range e.shards {
		e.shards[i].due.Store(never)
	}
	if remember > 0 {
		e.feed = newFeed[N](remember)
	}
	return e
}

// horizon bounds times to 73 years before and after the epoch, so that no difference of
// two overflows: the zero time.Time, for one, is further away.
const horizon = 1 << 61

func (e *engine[N]) nano(t time.Time) int64 {
	return min(max(int64(t.Sub(e.epoch)), -horizon), horizon)
}

func (e *engine[N]) time(nano int64) time.Time { return e.epoch.Add(time.Duration(nano)) }

// locate hashes k. Callers choose IDs to some degree, so the hash is seeded.
func (e *engine[N]) locate(k *key) (*shard, uint32) {
	var b [maxKey + 1]byte
	copy(b[:], k.b[:])
	b[maxKey] = byte(k.n)
	h := maphash.Bytes(e.seed, b[:])
	return &e.shards[h>>32&uint64(len(e.shards)-1)], uint32(h)
}

// dead reports whether the entry may no longer be seen.
func dead[N comparable](en *entry, o *owner[N], now int64) bool {
	return o.gone.Load() || now-en.last >= o.ttl.Load()
}

// lookup returns the node of k. With touch the idle time starts anew.
func (e *engine[N]) lookup(k *key, now int64, touch bool) (n N, ok bool) {
	s, hash := e.locate(k)
	s.mu.Lock()
	slot := s.find(k, hash)
	if slot == 0 {
		s.mu.Unlock()
		e.stats.misses.Add(1)
		return n, false
	}
	en := s.at(slot)
	o := e.owners.get(en.owner())
	if dead(en, o, now) {
		e.drop(s, slot, o)
		s.mu.Unlock()
		e.stats.misses.Add(1)
		return n, false
	}
	if touch {
		e.touch(s, slot, o, now, true)
	}
	s.mu.Unlock()
	e.stats.hits.Add(1)
	return o.node, true
}

// refresh starts the idle time of k anew if k is bound to n.
func (e *engine[N]) refresh(k *key, n N, now int64) bool {
	s, hash := e.locate(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.find(k, hash)
	if slot == 0 {
		return false
	}
	o := e.owners.get(s.at(slot).owner())
	if dead(s.at(slot), o, now) || o.node != n {
		return false
	}
	e.touch(s, slot, o, now, true)
	e.stats.refreshed.Add(1)
	return true
}

func (e *engine[N]) touch(s *shard, slot uint32, o *owner[N], now int64, tell bool) {
	en := s.at(slot)
	before := en.last
	if now <= before {
		return
	}
	s.unlink(slot)
	s.link(slot, now)
	if tell && e.feed != nil {
		// A peer hears of uses, but not of each: eight times in an idle time.
		if step := max(1, o.ttl.Load()/8); before/step != en.last/step {
			e.feed.add(OpRefresh, en.key(), o, e.time(en.last))
		}
	}
}

// drop removes an entry that is dead.
func (e *engine[N]) drop(s *shard, slot uint32, o *owner[N]) {
	if o.gone.Load() {
		e.stats.forgotten.Add(1)
	} else {
		e.stats.expired.Add(1)
	}
	e.free(s, slot, o)
}

func (e *engine[N]) free(s *shard, slot uint32, o *owner[N]) {
	s.remove(slot)
	e.slots.Add(-1)
	o.count.Add(-1)
	o.refs.Add(-1)
}

// store binds k to n. What is known about k loses: the last learner wins. With keep it
// does not: a live binding to another node stays, and moved is true.
func (e *engine[N]) store(k *key, n N, now int64, keep, tell bool) (moved bool, err error) {
	id, o := e.owners.pin(n, e.ttl)
	if o == nil {
		e.stats.refused.Add(1)
		return false, ErrFull
	}
	s, hash := e.locate(k)
	s.mu.Lock()
	if found, moved := e.storeKnown(s, k, hash, id, o, now, keep, tell); found {
		s.mu.Unlock()
		o.refs.Add(-1)
		return moved, nil
	}
	if e.slots.Add(1) > e.max {
		// Another entry must go first, and it may be in any shard.
		e.slots.Add(-1)
		s.mu.Unlock()
		if !e.makeRoom(s, now) {
			o.refs.Add(-1)
			e.stats.refused.Add(1)
			return false, ErrFull
		}
		s.mu.Lock()
		if found, moved := e.storeKnown(s, k, hash, id, o, now, keep, tell); found {
			s.mu.Unlock()
			e.slots.Add(-1)
			o.refs.Add(-1)
			return moved, nil
		}
	}
	slot := s.insert(k, hash, id, now)
	if slot == 0 {
		s.mu.Unlock()
		e.slots.Add(-1)
		o.refs.Add(-1)
		e.stats.refused.Add(1)
		return false, ErrFull
	}
	last := s.at(slot).last
	s.lower(expiry(last, o.ttl.Load()))
	o.count.Add(1)
	if o.gone.Load() {
		s.due.Store(always) // forgotten meanwhile, and its hurry may be over
	}
	e.stats.learned.Add(1)
	if tell && e.feed != nil {
		e.feed.add(OpLearn, *k, o, e.time(last))
	}
	s.mu.Unlock()
	return false, nil
}

// storeKnown is store for a key that is in the table.
func (e *engine[N]) storeKnown(s *shard, k *key, hash, id uint32, o *owner[N], now int64, keep, tell bool) (found, moved bool) {
	slot := s.find(k, hash)
	if slot == 0 {
		return false, false
	}
	en := s.at(slot)
	old := e.owners.get(en.owner())
	if dead(en, old, now) {
		e.drop(s, slot, old)
		return false, false
	}
	if old == o {
		e.touch(s, slot, o, now, tell)
		e.stats.refreshed.Add(1)
		return true, false
	}
	if keep {
		return true, true
	}
	if !tell && en.last > now { // what another table says may be older than what is known here
		if e.feed != nil {
			e.feed.add(OpLearn, *k, old, e.time(en.last)) // it should know better
		}
		return true, true
	}
	now = max(now, en.last) // a copy goes by the later time
	s.unlink(slot)
	en.meta = id<<6 | en.meta&63
	s.link(slot, now)
	s.lower(expiry(en.last, o.ttl.Load()))
	old.count.Add(-1)
	old.refs.Add(-1)
	o.count.Add(1)
	o.refs.Add(1)
	if o.gone.Load() {
		s.due.Store(always)
	}
	e.stats.moved.Add(1)
	if tell && e.feed != nil {
		e.feed.add(OpLearn, *k, o, e.time(en.last))
	}
	return true, true
}

// expiry is last+ttl, at most never.
func expiry(last, ttl int64) int64 {
	if last > 0 && ttl > math.MaxInt64-last {
		return never
	}
	return last + ttl
}

// makeRoom frees a dead entry in favour of an insertion, looking into own first. It
// returns with the place reserved.
func (e *engine[N]) makeRoom(own *shard, now int64) bool {
	for try := -1; try < len(e.shards); try++ {
		s := own
		if try >= 0 {
			s = &e.shards[try]
		}
		if s.due.Load() > now {
			continue
		}
		e.sweepShard(s, now, 16)
		if e.slots.Add(1) <= e.max {
			return true
		}
		e.slots.Add(-1)
	}
	return false
}

// sweepShard frees up to limit dead entries, oldest first.
func (e *engine[N]) sweepShard(s *shard, now int64, limit int) (freed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := int64(never)
	list := *e.owners.list.Load()
	for id := range s.orders {
		if id >= len(list) {
			break
		}
		o := list[id]
		for {
			slot := s.orders[id].tail
			if slot == 0 {
				break
			}
			if !dead(s.at(slot), o, now) {
				due = min(due, expiry(s.at(slot).last, o.ttl.Load()))
				break
			}
			if freed == limit {
				return freed // due stays as it is: more is to be done
			}
			e.drop(s, slot, o)
			freed++
		}
	}
	s.due.Store(due)
	return freed
}

// sweep frees up to limit dead entries, a few of each shard in turn.
func (e *engine[N]) sweep(now int64, limit int) (freed int) {
	const burst = 256
	for idle := 0; idle < len(e.shards) && freed < limit; {
		s := &e.shards[int(e.hand.Add(1))&(len(e.shards)-1)]
		if s.due.Load() > now {
			idle++
			continue
		}
		n := e.sweepShard(s, now, min(burst, limit-freed))
		freed += n
		if n == 0 {
			idle++
		} else {
			idle = 0
		}
	}
	return freed
}

// forget makes all entries bound to n invisible. Its cost does not depend on their number.
func (e *engine[N]) forget(n N) int {
	count := e.owners.forget(n, e.feed)
	if count > 0 {
		e.hurry()
	}
	return count
}

// hurry makes every shard look for dead entries again.
func (e *engine[N]) hurry() {
	for i := range e.shards {
		s := &e.shards[i]
		s.mu.Lock()
		s.due.Store(always)
		s.mu.Unlock()
	}
}

// setTTL changes the idle time of n, for the entries it has as well.
func (e *engine[N]) setTTL(n N, ttl time.Duration) bool {
	o := e.owners.live(n)
	if o == nil {
		return false
	}
	o.ttl.Store(int64(ttl))
	e.hurry()
	return true
}

// remove takes k out.
func (e *engine[N]) remove(k *key) {
	s, hash := e.locate(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot := s.find(k, hash); slot != 0 {
		o := e.owners.get(s.at(slot).owner())
		e.free(s, slot, o)
		if e.feed != nil {
			e.feed.add(OpDelete, *k, o, time.Time{})
		}
	}
}

// removeFrom takes k out if it is bound to n, and does not tell.
func (e *engine[N]) removeFrom(k *key, n N) {
	s, hash := e.locate(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot := s.find(k, hash); slot != 0 {
		if o := e.owners.get(s.at(slot).owner()); o.node == n {
			e.free(s, slot, o)
		}
	}
}

// binding is a copy of an entry.
type binding[N comparable] struct {
	k    key
	node N
	last int64
}

// all returns copies of the live entries. The lock is held for one shard's copy at a
// time and never while the caller works.
func (e *engine[N]) all(now int64) iter.Seq[binding[N]] {
	return func(yield func(binding[N]) bool) {
		var batch []binding[N]
		for i := range e.shards {
			s := &e.shards[i]
			batch = batch[:0]
			s.mu.Lock()
			for slot := uint32(1); slot <= s.top; slot++ {
				en := s.at(slot)
				if en.meta&63 == 0 {
					continue // free
				}
				if o := e.owners.get(en.owner()); !dead(en, o, now) {
					batch = append(batch, binding[N]{en.key(), o.node, en.last})
				}
			}
			s.mu.Unlock()
			for _, b := range batch {
				if !yield(b) {
					return
				}
			}
		}
	}
}

// fingerprint is a short mark of a ticket, to tell it from another. It decides only
// whether two tickets of one server are the same, so it need not be secret.
func fingerprint(b []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for len(b) >= 8 {
		h = (h ^ binary.LittleEndian.Uint64(b)) * prime
		h ^= h >> 29
		b = b[8:]
	}
	for _, c := range b {
		h = (h ^ uint64(c)) * prime
	}
	return h ^ h>>32
}
