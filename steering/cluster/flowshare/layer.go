package flowshare

import (
	"sync"
	"time"
)

// A Layer shares the flows of one balancer with the others. Make one with [New]; it must not
// be copied.
type Layer struct {
	cfg  Config
	wake chan struct{} // tells Run that there is work

	queueMu sync.Mutex
	queue   []op
	spare   []op // the queue before, empty; guarded by mu

	mu      sync.Mutex
	begun   time.Time
	now     time.Time
	clock   uint64 // logical
	store   Store
	values  *interner[Value]
	origins *interner[Member]
	about   []aboutOrigin // of each origin
	self    uint32
	view    *view
	peers   map[string]*peer
	order   []*peer // as in view
	busy    []*peer // with something to send
	asks    map[uint64]*ask
	asked   map[Flow]*ask
	lastAsk uint64
	done    []func() // to be called without the lock
	build   *itemFrame
	stats   Stats

	tokens     float64 // bytes that may be sent
	tokensAt   time.Time
	transferAt int // the part that most transfers are at
	sweepPart  int
	sweepAt    time.Time
	settled    time.Time // when items that are none of ours any more may go
	repairAt   time.Time
	answerAt   time.Time // when digests are answered; zero: none waits
}

// An op is an announcement, or a withdrawal if value is zero.
type op struct {
	flow  Flow
	value Value
}

// aboutOrigin is what the view says of an origin.
type aboutOrigin struct {
	at   int32  // index in the view, -1 if it is gone
	gone uint32 // since when, in seconds of the Layer
	seed uint64
}

// maxQueue bounds the announcements waiting for a Step; who comes then does the work.
const maxQueue = 4096

// New returns a Layer without members but itself, or all faults of cfg.
func New(cfg *Config) (*Layer, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Layer{
		cfg: c, wake: make(chan struct{}, 1), store: c.Store, values: newInterner[Value](), origins: newInterner[Member](),
		peers: map[string]*peer{}, asks: map[uint64]*ask{}, asked: map[Flow]*ask{}, build: newItemFrame(),
	}
	l.self = l.origin(c.Self)
	l.view = l.newView(nil, []Member{c.Self})
	l.about[l.self].at = 0
	return l, nil
}

// Announce says that this balancer gave a flow to a node. If another one has announced the
// same, this one only takes note that it forwards the flow, too. A Value that is too long or has
// no node is not shared, which is counted.
func (l *Layer) Announce(f Flow, v Value) {
	if f.IsZero() || !v.fits() {
		l.mu.Lock()
		l.stats.Refused++
		l.mu.Unlock()
		return
	}
	l.push(op{f, v})
}

// Withdraw says that this balancer forwards a flow no more. Its origin takes the entry back
// with that, everywhere, unless somebody else says that he forwards it.
func (l *Layer) Withdraw(f Flow) {
	if !f.IsZero() {
		l.push(op{flow: f})
	}
}

func (l *Layer) push(o op) {
	l.queueMu.Lock()
	l.queue = append(l.queue, o)
	n := len(l.queue)
	l.queueMu.Unlock()
	switch {
	case n == 1:
		l.rouse()
	case n >= maxQueue:
		l.lock()
		l.drain()
		l.unlock()
	}
}

func (l *Layer) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *Layer) lock() { l.mu.Lock() }

// unlock lets go of the lock and calls those who wait for an answer.
func (l *Layer) unlock() {
	done := l.done
	l.done = nil
	l.mu.Unlock()
	for _, f := range done {
		f()
	}
}

// breathe lets others in for a moment: whatever the lock guards may have changed after it.
func (l *Layer) breathe() {
	l.unlock()
	l.lock()
}

// drain works the queue off, in order.
func (l *Layer) drain() {
	l.queueMu.Lock()
	ops := l.queue
	l.queue, l.spare = l.spare[:0], nil
	l.queueMu.Unlock()
	for i := range ops {
		if ops[i].value.Node == "" {
			l.withdraw(ops[i].flow)
		} else {
			l.announce(ops[i].flow, ops[i].value)
		}
	}
	clear(ops)
	l.spare = ops
}

func (l *Layer) announce(f Flow, v Value) {
	l.stats.Announced++
	old, had := l.store.Load(f)
	alive := had && old.Flags&Tombstone == 0
	switch {
	case alive && old.Origin != l.self && l.live(old.Origin), alive && old.Origin == l.self && l.values.things[old.Value] == v:
		if theirs := l.values.things[old.Value]; theirs != v {
			l.conflict(f, v, theirs)
		}
		old.Flags |= Claimed
		l.store.Save(f, old)
		return
	case !had && l.store.Len() >= l.cfg.MaxFlows:
		l.stats.Refused++
		return
	}
	it := Item{Version: l.tick(old.Version), Origin: l.self, Value: l.value(v), Flags: Claimed}
	if !had && l.cfg.Alike != nil {
		if w, ok := l.cfg.Alike(f); ok && w == v {
			it.Flags |= Unsent
			l.stats.Alike++
		}
	}
	l.origins.use(l.self)
	l.put(f, it)
	l.spread(&f, &it)
	if alive && old.Origin != l.self {
		l.stats.Adopted++
	}
}

func (l *Layer) withdraw(f Flow) {
	it, had := l.store.Load(f)
	if !had || it.Flags&Tombstone != 0 {
		return
	}
	l.stats.Withdrawn++
	it.Flags &^= Claimed
	switch {
	case it.Origin == l.self && it.Flags&Unsent == 0:
		l.bury(f, l.tick(it.Version))
	case it.Origin == l.self, !l.mine(&f, &it):
		l.remove(f)
	default:
		l.store.Save(f, it)
	}
}

// bury puts a tombstone of this balancer's in an entry's place, and tells of it.
func (l *Layer) bury(f Flow, version uint64) {
	l.origins.use(l.self)
	t := Item{Version: version, Origin: l.self, Flags: Tombstone}
	l.put(f, t)
	l.spread(&f, &t)
}

// tick advances the logical clock beyond a version, but not beyond what others accept: a member that has it there, by a
// fault, must not silence all.
func (l *Layer) tick(version uint64) uint64 {
	l.clock = min(max(l.clock, version)+1, maxClock)
	return l.clock
}

func (l *Layer) conflict(f Flow, mine, theirs Value) {
	l.stats.Conflicts++
	if l.cfg.OnConflict != nil {
		l.cfg.OnConflict(f, mine, theirs)
	}
}

func (l *Layer) value(v Value) uint32 {
	no, _ := l.values.take(v)
	return no
}

// origin returns the number of m and counts a use.
func (l *Layer) origin(m Member) uint32 {
	no, fresh := l.origins.take(m)
	if !fresh {
		return no
	}
	a := aboutOrigin{at: -1, gone: l.seconds(), seed: mix(seedOf(m.Name), m.Epoch)}
	if l.view != nil {
		a.at = l.view.find(m)
	}
	if int(no) == len(l.about) {
		l.about = append(l.about, a)
	} else {
		l.about[no] = a
	}
	return no
}

func (l *Layer) live(origin uint32) bool { return l.about[origin].at >= 0 }

// put keeps an item in place of the one there was. Its uses were counted.
func (l *Layer) put(f Flow, it Item) {
	old, had := l.store.Load(f)
	it.Stamp = l.seconds()
	l.store.Save(f, it)
	if had {
		l.free(&old)
	}
	if it.Flags&Tombstone != 0 {
		l.stats.Tombstones++
	}
}

func (l *Layer) remove(f Flow) {
	if old, had := l.store.Load(f); had {
		l.store.Delete(f)
		l.free(&old)
	}
}

// free gives back what an item that is gone used.
func (l *Layer) free(it *Item) {
	if it.Flags&Tombstone == 0 {
		l.values.drop(it.Value)
	} else {
		l.stats.Tombstones--
	}
	l.origins.drop(it.Origin)
}

func (l *Layer) seconds() uint32 {
	if l.begun.IsZero() {
		return 0
	}
	return uint32(l.now.Sub(l.begun) / time.Second)
}

// at moves the Layer's clock on; it never goes back.
func (l *Layer) at(now time.Time) {
	if l.begun.IsZero() {
		l.begun, l.now, l.tokensAt = now, now, now
		l.sweepAt, l.repairAt = now.Add(sweepEvery), now.Add(l.jitter(l.cfg.RepairEvery))
	}
	if now.After(l.now) {
		l.now = now
	}
}

// jitter returns half of d to one and a half of it.
func (l *Layer) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(l.cfg.Rand.Int64N(int64(d)+1))
}

// Lookup returns what this balancer itself knows of a flow.
func (l *Layer) Lookup(f Flow) (Value, bool) {
	l.lock()
	defer l.unlock()
	l.drain()
	return l.known(f, false)
}

// known looks a flow up. An entry that is somebody else's to hold, left from other times, may be stale:
// it is good enough for who asks and has a better answer from another one.
func (l *Layer) known(f Flow, stale bool) (Value, bool) {
	it, ok := l.store.Load(f)
	if !ok || it.Flags&Tombstone != 0 || !stale && it.Flags&Claimed == 0 && !l.mine(&f, &it) {
		return Value{}, false
	}
	v := l.values.things[it.Value]
	if v.Node == Itself && !l.live(it.Origin) {
		return Value{}, false
	}
	return v, true
}

// Retable looks at the flows that were not announced because all balancers would choose
// alike, and announces those that Alike has another value for now. Call it after the
// configuration, the health or the pressure that Alike depends on has changed.
func (l *Layer) Retable() {
	if l.cfg.Alike == nil {
		return
	}
	l.walk(func(f Flow, it Item) {
		if it.Flags&Unsent == 0 {
			return
		}
		if v, ok := l.cfg.Alike(f); ok && v == l.values.things[it.Value] {
			return
		}
		it.Flags &^= Unsent
		it.Version = l.tick(it.Version)
		l.store.Save(f, it)
		l.spread(&f, &it)
	})
}

// walk visits all items, and lets others in after each part.
func (l *Layer) walk(visit func(Flow, Item)) {
	for part := range Parts {
		l.lock()
		l.store.Range(part, func(f Flow, it Item) bool { visit(f, it); return true })
		l.unlock()
	}
}
