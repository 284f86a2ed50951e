package clienttable

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Table maps keys to values, each for a limited time. Method names follow
// sync.Map. Use [New]; the zero Table is not usable. A Table must not be copied,
// and is safe for concurrent use.
type Table[K comparable, V any] struct {
	// Read by every look-up, written never.
	tags      unsafe.Pointer // a word of 8 tags per group
	slots     unsafe.Pointer // of stride bytes: meta, and if packed key, value, birth
	stride    uintptr
	birthAt   uintptr                      // offset of birth in a packed slot; 0 if none
	pairs     []atomic.Pointer[pair[K, V]] // by slot, of the heap layout
	groups    uint32                       // per shard, without its stash
	shardBits uint8
	packed    bool
	count     bool // Config.CountLookups
	large     bool // larger than the caches near the processor: see warm
	hash      hasher
	shards    []shard[K, V]
	epoch     time.Time

	// gone, if not nil, holds the owners that were invalidated and whose entries
	// have not all been removed yet.
	gone atomic.Pointer[goneSet]

	// kin, if not nil, says where else entries are: see Grow.
	kin atomic.Pointer[kin[K, V]]

	ttls   ttlTable
	ttlNo  uint8 // of Config.TTL
	cfg    Config[K, V]
	region region
	free   runtime.Cleanup

	// Compact, for the search for something to evict: by shard.
	soonest []atomic.Int64 // no entry of the shard expires earlier
	classes [2][]atomic.Int64

	_       [64]byte
	entries atomic.Int64 // slots in use and reserved
	bound   atomic.Int64 // at most cfg.MaxEntries, which the storage is made for
	hand    atomic.Uint32
	warned  atomic.Int64 // when OnFill was last called, in ms
	closed  atomic.Bool
	refused atomic.Uint64

	owners owners
	sweep  sweeper
	log    *changeLog[K, V] // nil without Config.ChangeLog
	grow   growth[K, V]
}

// pair is an entry of the heap layout.
type pair[K comparable, V any] struct {
	k     K
	v     V
	birth uint64
}

// removed is an entry that has left, to be reported.
type removed[K comparable, V any] struct {
	k   K
	v   V
	why Reason
}

const (
	groupSlots = 8
	tagBytes   = groupSlots
	// segGroups groups make a segment, the unit of sweeping.
	segGroups = 32
	segSlots  = segGroups * groupSlots
)

// shard is a part of the table with a lock for those who change its entries.
type shard[K comparable, V any] struct {
	// moves is counted up whenever an entry moves to its other group, after it has
	// appeared there and before it disappears here: a look-up that finds nothing
	// while moves has changed looks again.
	moves atomic.Uint64
	// stash is the number of entries in the last group, where those go that find
	// no room in theirs.
	stash atomic.Int32
	first uint32 // number of the first slot
	no    uint32 // of the shard
	// reaping is odd while a sweep is at work. Whatever it takes for expired had expired
	// by reapTo.
	reaping atomic.Uint32
	reapTo  atomic.Int64
	hits    atomic.Uint64
	misses  atomic.Uint64
	_       [16]byte

	mu     sync.Mutex
	closed bool
	left   bool // for a larger table: nothing is stored here any more
	used   int
	// segMin[i]: no entry of segment i expires earlier (in ms since the epoch).
	segMin []int64
	// marks has a bit for each slot with a half-open, and with a lingering entry.
	marks   [2][]uint64
	random  rand.PCG
	sweepAt uint32 // segment where the next sweep begins
	limbo   []removed[K, V]
	walkers []*walker[K]
	log     *changeLog[K, V]
	n       shardStats
}

// shardStats is guarded by the shard's lock.
type shardStats struct {
	stores, replaced, updated, deleted, expired, evicted, nodeGone uint64
}

const never = math.MaxInt64

// New returns a table. A nil cfg means all defaults. The error joins one error for
// each fault of cfg, each wrapping [ErrInvalid], or says that the memory is not to
// be had.
func New[K comparable, V any](cfg *Config[K, V]) (*Table[K, V], error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	var log *changeLog[K, V]
	if c.ChangeLog > 0 {
		log = &changeLog[K, V]{ring: make([]Change[K, V], c.ChangeLog)}
	}
	return newTable(c, makeHasher(c.Seed), time.Now(), log)
}

// newTable returns a table of a complete configuration.
func newTable[K comparable, V any](c Config[K, V], hash hasher, epoch time.Time, log *changeLog[K, V]) (t *Table[K, V], err error) {
	t = &Table[K, V]{cfg: c, packed: c.Layout == Packed, count: c.CountLookups, hash: hash, epoch: epoch, log: log}
	t.ttls.init()
	t.ttlNo = t.ttls.number(milliseconds(c.TTL))
	t.warned.Store(math.MinInt64 / 2)
	t.bound.Store(int64(c.MaxEntries))

	nShards := shardCount(c.MaxEntries)
	t.shardBits = uint8(bits.TrailingZeros(uint(nShards)))
	t.groups = shardGroups(c.MaxEntries, nShards)
	perShard := uint64(t.groups+1) * groupSlots
	total := perShard * uint64(nShards)
	stride := uint64(8)
	if t.packed {
		var k K
		var v V
		stride += roundUp8(unsafe.Sizeof(k)) + roundUp8(unsafe.Sizeof(v))
		if c.Owner != nil {
			t.birthAt = uintptr(stride)
			stride += 8
		}
	}
	tagSize := (total/groupSlots*tagBytes + 63) &^ 63
	size := tagSize + total*stride
	if size > math.MaxInt/2 || total > math.MaxUint32 {
		return nil, tooLarge(c.MaxEntries, size)
	}
	t.stride, t.large = uintptr(stride), size > 256<<10
	if t.region, err = newRegion(uintptr(size)); err != nil {
		return nil, err
	}
	t.tags, t.slots = t.region.base, unsafe.Add(t.region.base, tagSize)
	if !t.packed {
		t.pairs = make([]atomic.Pointer[pair[K, V]], total)
	}
	t.free = runtime.AddCleanup(t, region.free, t.region)

	t.soonest = make([]atomic.Int64, nShards)
	t.shards = make([]shard[K, V], nShards)
	for i := range t.classes {
		t.classes[i] = make([]atomic.Int64, nShards)
	}
	segs := (int(t.groups) + 1 + segGroups - 1) / segGroups
	for i := range t.shards {
		s := &t.shards[i]
		s.log = t.log
		s.random.Seed(t.hash.seed[0], uint64(i))
		s.no, s.first = uint32(i), uint32(uint64(i)*perShard)
		s.segMin = make([]int64, segs)
		for j := range s.segMin {
			s.segMin[j] = never
		}
		for j := range s.marks {
			s.marks[j] = make([]uint64, (perShard+63)/64)
		}
		t.soonest[i].Store(never)
		s.reapTo.Store(math.MinInt64)
	}
	return t, nil
}

func roundUp8(n uintptr) uint64 { return (uint64(n) + 7) &^ 7 }

// shardCount keeps shards large enough that chance fills them evenly, and many
// enough that writers seldom meet.
func shardCount(maxEntries int) int {
	n := 1
	for n < 256 && (maxEntries/n > 1<<16 || n < 16 && maxEntries/n >= 1<<12) {
		n *= 2
	}
	return n
}

// shardGroups leaves a twelfth of the slots free, and more in small tables, where it
// costs little, and in small shards, for an uneven spread (five standard deviations).
func shardGroups(maxEntries, shards int) uint32 {
	mean := float64(maxEntries) / float64(shards)
	slots := mean / 0.92
	if shards == 1 {
		slots = max(slots, mean+min(mean, 256)+2*groupSlots)
	} else {
		slots = max(slots, (mean+5*math.Sqrt(mean)+groupSlots)/0.95)
	}
	return uint32(slots/groupSlots) + 1
}

// Close gives the memory back. The entries still there are dropped without a call
// of OnRemove; use [Table.Clear] first to have them reported. Afterwards look-ups
// find nothing and stores return [ErrClosed]. It returns nil, always.
//
// A table that is dropped without Close gives its memory back when the garbage
// collector finds it.
func (t *Table[K, V]) Close() error {
	t = t.newest()
	t.grow.mu.Lock() // a growth that is about to begin comes first
	r := t.kin.Load()
	if r == nil || r.newer == nil {
		if r != nil {
			r.older.close()
		}
		t.close()
		r = nil
	}
	t.grow.mu.Unlock()
	if r != nil {
		return r.newer.Close()
	}
	return nil
}

// close is Close for one of the tables of a family.
func (t *Table[K, V]) close() {
	if !t.closed.CompareAndSwap(false, true) {
		return
	}
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.closed = true
		for g := range t.groups + 1 {
			atomic.StoreUint64(t.tagsOf(s.first/groupSlots+g), 0)
		}
		for j := range s.segMin {
			s.segMin[j] = never
		}
		for c := range s.marks {
			clear(s.marks[c])
			t.classes[c][i].Store(0)
		}
		t.entries.Add(-int64(s.used))
		s.used = 0
		s.stash.Store(0)
		t.soonest[i].Store(never)
		s.mu.Unlock()
	}
	t.dropMemory()
}

// dropMemory gives the memory of a table without entries back. Look-ups that began
// earlier may still be reading: it becomes zero, but stays mapped for as long as the
// table can be reached.
func (t *Table[K, V]) dropMemory() {
	for i := range t.pairs {
		t.pairs[i].Store(nil)
	}
	t.region.clear()
	runtime.KeepAlive(t)
}

// Layout returns how the table stores its entries: [Packed] or [Heap].
func (t *Table[K, V]) Layout() Layout { return t.cfg.Layout }

// MaxEntries returns the table's bound, as Config, Grow or Shrink has set it.
func (t *Table[K, V]) MaxEntries() int { return int(t.newest().bound.Load()) }

// tick returns now as milliseconds since the epoch, rounded down.
func (t *Table[K, V]) tick(now time.Time) int64 {
	d := int64(now.Sub(t.epoch))
	ms := d / int64(time.Millisecond)
	if d < 0 && d%int64(time.Millisecond) != 0 {
		ms--
	}
	return ms
}

// home returns a hash's shard, first group within the shard, and tag.
func (t *Table[K, V]) home(h uint64) (shardNo, group uint32, tag uint8) {
	hi := uint32(h >> 32)
	shardNo = uint32(uint64(hi) << t.shardBits >> 32)
	group = uint32(uint64(hi<<t.shardBits) * uint64(t.groups) >> 32)
	tag = uint8(h)
	if tag == 0 {
		tag = 1 // 0 is an empty slot
	}
	return
}

// other returns the second group of an entry with tag in group g, or the first of
// one in its second: it is its own inverse.
func (t *Table[K, V]) other(g uint32, tag uint8) uint32 {
	c := uint32(uint64(uint32(tag)*0x9e3779b1) * uint64(t.groups) >> 32)
	o := c - g
	if c < g {
		o += t.groups
	}
	return o
}

// tagsOf returns the tags of a group of the table, that of its first slot lowest.
func (t *Table[K, V]) tagsOf(group uint32) *uint64 {
	return (*uint64)(unsafe.Add(t.tags, uintptr(group)*tagBytes))
}

func (t *Table[K, V]) slotPtr(slot uint32) unsafe.Pointer {
	return unsafe.Add(t.slots, uintptr(slot)*t.stride)
}

func (t *Table[K, V]) metaOf(slot uint32) *uint64 { return (*uint64)(t.slotPtr(slot)) }

func (t *Table[K, V]) hashOf(k *K) uint64 {
	if t.packed {
		return t.hash.words(unsafe.Pointer(k), unsafe.Sizeof(*k))
	}
	return hashAny(&t.hash, *k)
}

const (
	laneOnes = 0x0101_0101_0101_0101
	laneTops = 0x8080_8080_8080_8080
	laneRest = ^uint64(laneTops)
	// laneGather times a word of which each byte is 0 or 1 has these bits in its highest
	// byte.
	laneGather = 0x0102_0408_1020_4080
)

// lanes returns the top bit of each byte of w that equals tag.
func lanes(w uint64, tag uint8) uint64 {
	x := w ^ uint64(tag)*laneOnes
	return ^(x&laneRest + laneRest | x) & laneTops
}

// laneSlot returns the slot of a group that the lowest bit of lanes stands for.
func laneSlot(group uint32, lanes uint64) uint32 {
	return group*groupSlots + uint32(bits.TrailingZeros64(lanes))>>3
}

// setTag writes a slot's tag. The shard is locked.
func (t *Table[K, V]) setTag(slot uint32, tag uint8) {
	p := t.tagsOf(slot / groupSlots)
	at := slot % groupSlots * 8
	storeRelease(p, *p&^(0xff<<at)|uint64(tag)<<at)
}

func (t *Table[K, V]) tagAt(slot uint32) uint8 {
	return uint8(atomic.LoadUint64(t.tagsOf(slot/groupSlots)) >> (slot % groupSlots * 8))
}
