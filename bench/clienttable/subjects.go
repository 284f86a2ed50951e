//go:build linux

package main

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/Yiling-J/theine-go"
	"github.com/dgraph-io/ristretto/v2"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/expirable"
	"github.com/jellydator/ttlcache/v3"
	"github.com/lbprim/lbprim/clienttable"
	"github.com/maypok86/otter/v2"
	"github.com/puzpuzpuz/xsync/v4"
)

var subjectNames = []string{"ours", "shards", "otter", "lru", "expirable", "ristretto", "ttlcache", "theine", "xsync", "syncmap", "rwmap"}

// ttl is of all subjects; shorter where those that know only the clock of the machine are
// to expire.
var ttl = 2 * time.Hour

func newSubject(name string, n int) subject {
	switch name {
	case "ours":
		t, err := clienttable.New(&clienttable.Config[key, value]{MaxEntries: n, TTL: ttl, Layout: clienttable.Packed, Full: clienttable.EvictOldest})
		if err != nil {
			panic(err)
		}
		return &ours{t: t}
	case "shards":
		s := &shards{seed: maphash.MakeSeed()}
		for i := range s.s {
			s.s[i].m = make(map[key]*timed, n/len(s.s))
		}
		return s
	case "otter":
		return otterSubject{otter.Must(&otter.Options[key, value]{MaximumSize: n, ExpiryCalculator: otter.ExpiryAccessing[key, value](ttl)})}
	case "lru":
		c, err := lru.New[key, value](n)
		if err != nil {
			panic(err)
		}
		return lruSubject{c}
	case "expirable":
		return expirableSubject{expirable.NewLRU[key, value](n, nil, ttl)}
	case "ristretto":
		c, err := ristretto.NewCache(&ristretto.Config[string, value]{NumCounters: int64(n) * 10, MaxCost: int64(n), BufferItems: 64, IgnoreInternalCost: true})
		if err != nil {
			panic(err)
		}
		return &ristrettoSubject{c}
	case "ttlcache":
		return ttlSubject{ttlcache.New(ttlcache.WithTTL[key, value](ttl), ttlcache.WithCapacity[key, value](uint64(n)))}
	case "theine":
		c, err := theine.NewBuilder[key, value](int64(n)).Build()
		if err != nil {
			panic(err)
		}
		return theineSubject{c}
	case "xsync":
		return xsyncSubject{xsync.NewMap[key, *timed](xsync.WithPresize(n))}
	case "syncmap":
		return &syncSubject{}
	case "rwmap":
		return &rwSubject{m: make(map[key]*timed, n)}
	}
	panic("no subject " + name)
}

type ours struct {
	t  *clienttable.Table[key, value]
	vs [32]value
	ok [32]bool
}

func (s *ours) load(now time.Time, k key) bool { _, ok := s.t.LoadAt(now, k); return ok }
func (s *ours) store(now time.Time, k key, v value) {
	if err := s.t.StoreAt(now, k, v); err != nil {
		panic(err)
	}
}
func (s *ours) del(now time.Time, k key) { s.t.DeleteAt(now, k) }
func (s *ours) len() int                 { return s.t.Len() }
func (s *ours) close()                   { s.t.Close() }
func (s *ours) loadBatch(now time.Time, ks []key) int {
	return s.t.LoadBatch(now, ks, s.vs[:], s.ok[:])
}

// timed is a value in a map with an expiry that slides.
type timed struct {
	exp atomic.Int64
	v   value
}

func makeTimed(now time.Time, v value) *timed {
	e := &timed{v: v}
	e.exp.Store(now.UnixNano() + int64(ttl))
	return e
}

func (e *timed) touch(now time.Time) bool {
	n := now.UnixNano()
	if e.exp.Load() <= n {
		return false
	}
	e.exp.Store(n + int64(ttl))
	return true
}

type shards struct {
	seed maphash.Seed
	s    [64]struct {
		sync.Mutex
		m map[key]*timed
		_ [40]byte
	}
}

func (s *shards) load(now time.Time, k key) bool {
	p := &s.s[maphash.Comparable(s.seed, k)&63]
	p.Lock()
	e := p.m[k]
	ok := e != nil && e.touch(now)
	p.Unlock()
	return ok
}

func (s *shards) store(now time.Time, k key, v value) {
	p := &s.s[maphash.Comparable(s.seed, k)&63]
	e := makeTimed(now, v)
	p.Lock()
	p.m[k] = e
	p.Unlock()
}

func (s *shards) del(_ time.Time, k key) {
	p := &s.s[maphash.Comparable(s.seed, k)&63]
	p.Lock()
	delete(p.m, k)
	p.Unlock()
}

func (s *shards) len() (n int) {
	for i := range s.s {
		n += len(s.s[i].m)
	}
	return
}
func (s *shards) close() {}

// expire removes what has expired three hours from now.
func (s *shards) expire() {
	later := time.Now().Add(3 * time.Hour).UnixNano()
	for i := range s.s {
		p := &s.s[i]
		p.Lock()
		for k, e := range p.m {
			if e.exp.Load() <= later {
				delete(p.m, k)
			}
		}
		p.Unlock()
	}
}

type otterSubject struct{ c *otter.Cache[key, value] }

func (s otterSubject) load(_ time.Time, k key) bool      { _, ok := s.c.GetIfPresent(k); return ok }
func (s otterSubject) store(_ time.Time, k key, v value) { s.c.Set(k, v) }
func (s otterSubject) del(_ time.Time, k key)            { s.c.Invalidate(k) }
func (s otterSubject) len() int                          { return s.c.EstimatedSize() }
func (s otterSubject) close()                            { s.c.InvalidateAll(); s.c.StopAllGoroutines() }

func (s otterSubject) due() time.Time { return time.Now().Add(ttl + 2*time.Second) } // its wheel's step
func (s otterSubject) expire()        { s.c.CleanUp() }

type lruSubject struct{ c *lru.Cache[key, value] }

func (s lruSubject) load(_ time.Time, k key) bool      { _, ok := s.c.Get(k); return ok }
func (s lruSubject) store(_ time.Time, k key, v value) { s.c.Add(k, v) }
func (s lruSubject) del(_ time.Time, k key)            { s.c.Remove(k) }
func (s lruSubject) len() int                          { return s.c.Len() }
func (s lruSubject) close()                            { s.c.Purge() }

type expirableSubject struct{ c *expirable.LRU[key, value] }

func (s expirableSubject) load(_ time.Time, k key) bool      { _, ok := s.c.Get(k); return ok }
func (s expirableSubject) store(_ time.Time, k key, v value) { s.c.Add(k, v) }
func (s expirableSubject) del(_ time.Time, k key)            { s.c.Remove(k) }
func (s expirableSubject) len() int                          { return s.c.Len() }
func (s expirableSubject) close()                            { s.c.Purge() }

// ristretto knows no array keys; the bytes of a flow make a string.
type ristrettoSubject struct {
	c *ristretto.Cache[string, value]
}

func (s *ristrettoSubject) load(_ time.Time, k key) bool { _, ok := s.c.Get(str(&k)); return ok }
func (s *ristrettoSubject) store(_ time.Time, k key, v value) {
	s.c.SetWithTTL(string([]byte(str(&k))), v, 1, ttl)
}
func (s *ristrettoSubject) del(_ time.Time, k key) { s.c.Del(str(&k)) }
func (s *ristrettoSubject) len() int               { return int(s.c.MaxCost() - s.c.RemainingCost()) }
func (s *ristrettoSubject) close()                 { s.c.Close() }

type ttlSubject struct{ c *ttlcache.Cache[key, value] }

func (s ttlSubject) load(_ time.Time, k key) bool      { return s.c.Get(k) != nil }
func (s ttlSubject) store(_ time.Time, k key, v value) { s.c.Set(k, v, ttlcache.DefaultTTL) }
func (s ttlSubject) del(_ time.Time, k key)            { s.c.Delete(k) }
func (s ttlSubject) len() int                          { return s.c.Len() }
func (s ttlSubject) close()                            { s.c.DeleteAll() }

// due says when all has expired by the clock of the machine, and expire removes it.
func (s ttlSubject) due() time.Time { return time.Now().Add(ttl) }
func (s ttlSubject) expire()        { s.c.DeleteExpired() }

type theineSubject struct{ c *theine.Cache[key, value] }

func (s theineSubject) load(_ time.Time, k key) bool      { _, ok := s.c.Get(k); return ok }
func (s theineSubject) store(_ time.Time, k key, v value) { s.c.SetWithTTL(k, v, 1, ttl) }
func (s theineSubject) del(_ time.Time, k key)            { s.c.Delete(k) }
func (s theineSubject) len() int                          { return s.c.Len() }
func (s theineSubject) close()                            { s.c.Close() }

type xsyncSubject struct{ m *xsync.Map[key, *timed] }

func (s xsyncSubject) load(now time.Time, k key) bool {
	e, ok := s.m.Load(k)
	return ok && e.touch(now)
}
func (s xsyncSubject) store(now time.Time, k key, v value) { s.m.Store(k, makeTimed(now, v)) }
func (s xsyncSubject) del(_ time.Time, k key)              { s.m.Delete(k) }
func (s xsyncSubject) len() int                            { return s.m.Size() }
func (s xsyncSubject) close()                              { s.m.Clear() }

type syncSubject struct{ m sync.Map }

func (s *syncSubject) load(now time.Time, k key) bool {
	e, ok := s.m.Load(k)
	return ok && e.(*timed).touch(now)
}
func (s *syncSubject) store(now time.Time, k key, v value) { s.m.Store(k, makeTimed(now, v)) }
func (s *syncSubject) del(_ time.Time, k key)              { s.m.Delete(k) }
func (s *syncSubject) len() (n int)                        { s.m.Range(func(any, any) bool { n++; return true }); return }
func (s *syncSubject) close()                              { s.m.Clear() }

type rwSubject struct {
	mu sync.RWMutex
	m  map[key]*timed
}

func (s *rwSubject) load(now time.Time, k key) bool {
	s.mu.RLock()
	e := s.m[k]
	s.mu.RUnlock()
	return e != nil && e.touch(now)
}

func (s *rwSubject) store(now time.Time, k key, v value) {
	e := makeTimed(now, v)
	s.mu.Lock()
	s.m[k] = e
	s.mu.Unlock()
}

func (s *rwSubject) del(_ time.Time, k key) {
	s.mu.Lock()
	delete(s.m, k)
	s.mu.Unlock()
}
func (s *rwSubject) len() int { return len(s.m) }
func (s *rwSubject) close()   {}

func str(k *key) string { return unsafe.String((*byte)(unsafe.Pointer(k)), unsafe.Sizeof(*k)) }
