package dataplane

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

// Plane forwards packets. Use [New]; it must not be copied. Its methods are safe for
// concurrent use.
type Plane struct {
	cfg   Config // which New has settled, and stays; mu guards Addrs
	epoch time.Time

	capacity  capacity
	followed  *clienttable.Feed[clienttable.Association, binding]
	fragments *fragments
	slab      *slab
	snap      atomic.Pointer[snapshot]
	closed    atomic.Bool

	mu        sync.Mutex // for changes of the snapshot
	pools     []*pool
	serviceNo map[string]uint32
	applied   uint64 // how often a table was
	poolNo    uint32
	told      []uint64 // octets of every node, as far as its pool knows of them
	late      []uint32 // nodes that were lost since the last Step
	roster    roster
	passive   passive

	numbers sync.RWMutex // held by who gives numbers to others, and for reading by who goes by them for long
	looked  time.Time    // when numbers of what is gone were looked for; numbers guards it

	wmu     sync.Mutex
	workers []*Worker
	process sync.Mutex
	readers gate    // of those who look at records outside of a batch
	own     *Worker // of Process

	accel acceleration

	teams      teams
	team       atomic.Pointer[team] // in force; nil: readers handle packets themselves
	spreadOver atomic.Uint32        // the number of workers that clients are spread over

	errors  limiter
	paths   paths
	ident   atomic.Uint32 // of the last outer packet that may be in fragments
	pending pending
	asks    asks

	holds    *holds
	secret   []byte   // of SYN cookies, with which the Plane began; the clock of their timestamps goes by it for good
	secrets  [][]byte // those in force; mu guards them
	synMu    sync.Mutex
	syns     synWatch
	synAlarm int
	watchers atomic.Pointer[watchers]
	flows    flowExport
	inter    *interception
	relay    *relaying // nil without Config.Relay
	lost     lost
}

// binding is the value of an association: which service and node a client got, and when that was told to other balancers, in nanoseconds since
// 1970.
type binding struct {
	node, service uint32
	at            int64
}

// New returns a Plane. The error joins all faults of cfg. The Plane holds memory outside the Go
// heap until Close.
func New(cfg *Config) (*Plane, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		_, bad := (&Plane{cfg: c}).check(c.Policies)
		return nil, errors.Join(err, bad)
	}
	p := &Plane{cfg: c, epoch: time.Now(), serviceNo: make(map[string]uint32), fragments: newFragments(), holds: newHolds(c.MaxHeld), synAlarm: c.SYNAlarm, secret: c.cookieSecret()}
	p.secrets = [][]byte{p.secret}
	p.pending.wake = make(chan struct{}, 1)
	p.snap.Store(&snapshot{narrow: math.MaxInt, settings: c.settings(), labels: func() map[uint32][]farmLabel { return nil }})
	if err = p.makeRoom(); err == nil {
		p.followed = p.followAssociations()
	}
	if c.Intercept != nil {
		p.inter = &interception{conf: c.Intercept, peers: make(map[clienttable.Flow]intercept.Decision)}
		p.inter.pool = &pool{inter: p.inter}
	}
	if c.Relay != nil {
		p.relay = newRelaying(c.Relay)
	}
	if err == nil {
		p.mu.Lock()
		err = p.apply(c.Policies)
		p.mu.Unlock()
	}
	if err != nil {
		p.free()
		return nil, err
	}
	p.accel = acceleration{
		dev: c.Accelerator, want: make(chan clienttable.Flow, maxWanted), installed: make(map[clienttable.Flow]*accelerated),
	}
	p.own = p.newWorker(c.Link, "process")
	p.setWorkers(c.Workers)
	p.flows.conf.Store(c.Flows)
	return p, nil
}

func (p *Plane) free() {
	if t := p.sessions(); t != nil {
		t.Close()
	}
	if t := p.assocs(); t != nil {
		t.Close()
	}
	p.lost.free()
}

// Close gives the tables' memory back, after Run has returned. Sessions are forgotten without being
// ended, and their nodes' counts given back.
func (p *Plane) Close() error {
	if !p.closed.CompareAndSwap(false, true) {
		return nil
	}
	p.quiesce()
	p.flows.end(p, time.Now())
	p.capacity.mu.Lock()
	defer p.capacity.mu.Unlock()
	p.sessions().Clear()
	p.free()
	p.slab.forget()
	return nil
}

const ticksPerSecond = 16

func ticks(d time.Duration) int64 { return int64(d / (time.Second / ticksPerSecond)) }

// tick returns now as the clock of record.alive.
func (p *Plane) tick(now time.Time) uint32 { return uint32(ticks(now.Sub(p.epoch))) }

// time returns the time of a tick.
func (p *Plane) time(tick uint32) time.Time {
	return p.epoch.Add(time.Duration(int32(tick)) * (time.Second / ticksPerSecond))
}

// peek calls f with the record of a session entry, if it still is that entry's, and reports whether it
// was.
func (p *Plane) peek(k clienttable.Flow, r ref, f func(rec *record)) bool {
	defer p.readers.leave(p.readers.enter())
	if now, ok := p.sessions().Peek(k); !ok || now != r {
		return false
	}
	f(&p.slab.recs[r.record()])
	return true
}

// removed is called for every session entry that leaves the table, for whatever reason: the
// entry towards the node gives the node's count back, and takes the entry of the other
// direction with it; so does the other way round.
func (p *Plane) removed(k clienttable.Flow, r ref, why clienttable.Reason) {
	rec := &p.slab.recs[r.record()]
	p.withdraw(k)
	if p.accel.dev != nil {
		p.unaccelerate(k, rec)
	}
	if r.dir() == toNode {
		p.flowEnds(k, rec, why)
		p.release(k, rec.nodeNo)
		if rec.flags&isDelayed != 0 && rec.seam.stage.Load() == replaying {
			p.holds.end(k)
		}
	}
	if why == clienttable.NodeGone && r.dir() == toNode {
		p.lost.add(p, k, rec)
	}
	if why == clienttable.Expired && rec.flags&isTCP != 0 && rec.aged.Or(1)&1 == 0 {
		p.closeAged(r, rec)
	}
	other := rec.other(k.Protocol(), r.dir())
	if rec.entries.Add(-1) <= 0 {
		if rec.flags&isDelayed != 0 {
			p.unread(r.record())
		}
		p.slab.giveBack(r.record())
		return
	}
	if o, ok := p.sessions().Peek(other); ok && o.record() == r.record() && o.dir() != r.dir() {
		p.sessions().Delete(other)
	}
}

func (p *Plane) release(k clienttable.Flow, no uint32) {
	if n := p.snap.Load().nodes[no]; !n.gone || n.pool.inter != nil { // who intercepts remembers flows of nodes that are gone, too
		n.pool.giveBack(k, n.id)
	}
}

// lose makes everything forget a node that may not keep its sessions: at once, and without
// looking for them.
func (p *Plane) lose(n *node) {
	p.forgetNode(n)
	p.late = append(p.late, n.no)
	p.cfg.Logger.Info("node lost", "node", n.name, "addr", n.addr)
}

func (p *Plane) forgetNode(n *node) {
	p.sessions().Invalidate(uint32(n.id))
	p.assocs().Invalidate(uint32(n.id))
	p.loseAccelerated(uint32(n.id))
}

// loseLate has the sessions forgotten that batches, which were under way when a node was lost, have begun with it since.
func (p *Plane) loseLate() {
	p.mu.Lock()
	late := p.late
	p.late = nil
	p.mu.Unlock()
	if len(late) == 0 {
		return
	}
	p.quiesce()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, no := range late {
		if n := p.snap.Load().nodes[no]; !n.keep && n.id != 0 {
			p.forgetNode(n)
		}
	}
}

// SetUp reports a node's health, in every pool of the Plane that has a node of this name, and
// returns how many these are. The sessions of a node that goes down are invalid from
// then on.
func (p *Plane) SetUp(name string, up bool) (pools int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.pools {
		if id, ok := q.ID(name); ok {
			q.SetUp(id, up)
			pools++
		}
	}
	if p.inter != nil {
		if id, ok := p.inter.conf.Engine.ID(name); ok {
			p.inter.conf.Engine.SetUp(id, up)
			pools++
		}
	}
	if pools > 0 {
		if err := p.refresh(); err != nil {
			p.cfg.Logger.Error("pools", "err", err)
		}
	}
	return pools
}

// SetNodes replaces the nodes of a pool by the rules of steering.Pool.Set, and has the Plane
// take note at once. Use it instead of calling Set; a Plane notices changes made otherwise
// within a second.
func (p *Plane) SetNodes(pool *steering.Pool, nodes ...steering.Node) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.snap.Load().table
	var errs []error
	if t != nil {
		for r := range t.All() {
			if !slices.Contains(slices.Collect(r.Value.all), pool) {
				continue
			}
			for _, n := range nodes {
				a, tunnelled := n.Addr.Addr().Unmap(), r.Value.Forward == Tunnelled
				if _, ok := addrIn(p.cfg.Addrs, a.Is6()); a.IsValid() && tunnelled && !ok {
					errs = append(errs, invalid(fmt.Sprintf("rule %q: node %q: Addr", r.Name, n.Name), n.Addr,
						"an address of a family that Config.Addrs has, too"))
				}
				if !a.IsValid() || !tunnelled && r.Value.Forward != Route && a.Is4() != r.Match.Dst.Addr().Is4() {
					errs = append(errs, invalid(fmt.Sprintf("rule %q: node %q: Addr", r.Name, n.Name), n.Addr,
						fmt.Sprintf("an address of the family of %v", r.Match.Dst)))
				}
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if _, err := pool.Set(nodes...); err != nil {
		return err
	}
	return p.refresh()
}

// notice looks at the pools at once.
func (p *Plane) notice() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(); err != nil {
		p.cfg.Logger.Error("pools", "err", err)
	}
}

// refresh looks at all pools anew. p.mu is held.
func (p *Plane) refresh() error {
	old := p.snap.Load()
	next := *old
	return p.publish(&next, p.pools)
}

// Drain has the Plane take no new session, or take them again. Sessions go on.
func (p *Plane) Drain(on bool) { p.alter(func(s *snapshot) { s.draining = on }) }

// SetForeign changes what happens to packets that are for no virtual address and belong to no session, see Config.Foreign.
func (p *Plane) SetForeign(f Foreign) error {
	if int(f) >= foreignNames.Len() {
		return invalid("Foreign", uint8(f), "pass or drop")
	}
	p.alter(func(s *snapshot) { s.foreign = f })
	return nil
}

// SetPingNodes changes how many nodes must be usable for the Plane to answer an echo request, see Config.PingNodes; 0 is 1.
func (p *Plane) SetPingNodes(n int) {
	if n == 0 {
		n = 1
	}
	p.alter(func(s *snapshot) { s.pingNodes = n })
}

// alter puts a snapshot in force that differs from that in force by what change does.
func (p *Plane) alter(change func(s *snapshot)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := *p.snap.Load()
	change(&next)
	p.snap.Store(&next)
}

// stale reports whether a pool has changed without the Plane being told. p.mu is held.
func (p *Plane) stale() bool {
	s := p.snap.Load()
	known := 0
	for _, q := range p.pools {
		usable := int32(0)
		for id, st := range q.All() {
			n := s.byID[id]
			if n == nil || n.gone || n.name != st.Node.Name || n.keep != q.Usable(id) ||
				n.addr != netip.AddrPortFrom(st.Node.Addr.Addr().Unmap(), st.Node.Addr.Port()) {
				return true
			}
			known++
			if st.State == steering.Available || st.State == steering.AtLimit {
				usable++
			}
			if !n.keep && st.Sessions > 0 {
				// Picked just before the node was lost, and stored just after: or not
				// yet swept.
				p.sessions().Invalidate(uint32(id))
			}
		}
		if usable != q.usable.Load() {
			return true
		}
	}
	more, stale := p.staleIntercept(s)
	if known += more; stale {
		return true
	}
	for _, n := range s.nodes {
		if !n.gone {
			known--
		}
	}
	return known != 0
}

// Step does what has to be done from time to time: it removes what has aged, up to a bound,
// takes note of changes of the pools, moves their recovery times and slow starts on by
// steering.Pool.Step, and counts their nodes' octets for them. more says that there is more to remove. [Plane.Run] calls
// it; callers of Process call it about once a second, and where a pool has the Bandwidth metric
// run steering.Pool.Run beside it.
func (p *Plane) Step(now time.Time) (more bool) {
	const limit = 4096
	p.accelerate(now) // first: traffic that the Plane does not see keeps sessions alive, too
	p.keepOthers()
	n := p.sessions().Sweep(now, limit)
	n = max(n, p.assocs().Sweep(now, limit), p.lost.step(now, limit))
	if lost := p.fragments.step(now); lost > 0 {
		p.own.mu.Lock()
		p.own.stats.drops[FragmentLost] += uint64(lost)
		p.own.mu.Unlock()
	}
	for _, k := range p.fragments.takeOver() {
		p.withdraw(k)
	}
	p.paths.step(p.nanos(now))
	p.stepPools(now)
	p.stepPassive(now)
	p.watchSYNs(now)
	p.sweepFarms(now)
	p.loseLate()
	p.reuseNumbers(now)
	p.mu.Lock()
	if p.stale() {
		if err := p.refresh(); err != nil {
			p.cfg.Logger.Error("pools", "err", err)
		}
	}
	p.pools = slices.DeleteFunc(p.pools, func(q *pool) bool { return q.idle && p.empty(q) })
	p.mu.Unlock()
	p.slab.recycle(p.quiesce)
	return n >= limit || p.growing()
}

// empty reports whether a pool that no service uses any more has lost its last session.
func (p *Plane) empty(q *pool) bool {
	for _, st := range q.All() {
		if st.Sessions > 0 {
			return false
		}
	}
	return true
}

// quiesce waits until every batch that is under way has ended, and every other look at a record.
func (p *Plane) quiesce() {
	p.readers.pass()
	p.wmu.Lock()
	ws := slices.Clone(p.workers)
	p.wmu.Unlock()
	for _, w := range ws {
		pass(&w.mu)
	}
}

// pass waits until whoever has a lock has released it.
func pass(l sync.Locker) {
	l.Lock()
	defer l.Unlock()
}

// Process handles packets without any I/O, by the Plane's own worker; see [Worker.Process].
// It is for tests and for I/O of another kind. Calls wait for each other.
func (p *Plane) Process(now time.Time, bufs [][]byte, sizes []int, offset int, verdicts []Verdict) (out [][]byte) {
	p.process.Lock()
	defer p.process.Unlock()
	return p.own.Process(now, bufs, sizes, offset, verdicts)
}
