package steering

import (
	"errors"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of [Pool.Pick]. They are fixed values, so that a refusal costs nothing.
var (
	// ErrNoNode: no node is up and enabled with a weight.
	ErrNoNode = errors.New("steering: no node available")
	// ErrOverload: nodes are, and all of them have as many sessions as they may.
	ErrOverload = errors.New("steering: every node is at its limit")
	// ErrPressure: nodes are, and all of them are under severe pressure.
	ErrPressure = errors.New("steering: every node is under severe pressure")
)

// A Pool steers sessions to nodes, see the package comment. It must not be copied; use
// [NewPool]. Its methods are safe for concurrent use.
type Pool struct {
	view  atomic.Pointer[view]
	turns [2]cursor // members, backups

	mu     sync.Mutex
	cfg    Config
	ids    *IDs
	nodes  []*handle // as configured
	tables [2]keptTable
	ahead  time.Duration // of the caller's clock before ours
	spares bool          // the backups have taken over
	wake   chan struct{} // tells Run that something has become due
}

// NewPool makes a pool of nodes. A nil cfg takes every default. All faults of cfg and
// nodes are reported at once.
func NewPool(cfg *Config, nodes ...Node) (*Pool, error) {
	c, err := cfg.resolve()
	if err := errors.Join(err, validateNodes(c.Metric, nodes)); err != nil {
		return nil, err
	}
	p := &Pool{cfg: c, ids: c.IDs, wake: make(chan struct{}, 1)}
	if p.ids == nil {
		p.ids = new(IDs)
	}
	now := time.Now()
	for _, n := range nodes {
		h, err := p.newHandle(n)
		if err != nil {
			return nil, err
		}
		p.nodes = append(p.nodes, h)
	}
	p.publish(now)
	return p, nil
}

var errIDs = errors.New("steering: node ids are exhausted")

func (p *Pool) newHandle(n Node) (*handle, error) {
	h := &handle{id: p.ids.Next(), name: n.Name, node: n, up: !p.cfg.StartDown, wasUp: !p.cfg.StartDown, off: n.Admin == Disabled}
	if h.id == 0 {
		return nil, errIDs
	}
	return h, nil
}

// publish swaps in a new view. p.mu is held, or nobody knows p yet.
func (p *Pool) publish(now time.Time) {
	v := p.build(now)
	p.view.Store(v)
	// Counts that changed while the tournament was set up were played in the old one.
	if v.metric == LeastConns {
		for _, pl := range v.plans {
			for _, g := range pl.groups {
				g.tree.updateAll(g)
			}
		}
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Pick chooses a node for a new session and counts the session on it. It returns
// ErrNoNode, ErrOverload or ErrPressure when there is none. It takes no lock and does
// not allocate.
func (p *Pool) Pick(k Key) (NodeID, error) {
	v := p.view.Load()
	id, err := v.pick(&k, nil)
	if err == nil && p.view.Load() != v {
		p.recount(id)
	}
	return id, err
}

// recount plays the matches of a node in the view in force, after its count changed.
// Whoever changes a count does it once the change is done: a view swapped in later looks
// at all counts itself when it is in force, so none is missed.
func (p *Pool) recount(id NodeID) {
	if e := p.view.Load().entry(id); e != nil {
		e.matches()
	}
}

// Explain says what Pick would do for k now, and counts nothing.
func (p *Pool) Explain(k Key) Explanation {
	v := p.view.Load()
	e := Explanation{Key: k, Metric: v.metric}
	_, e.Err = v.pick(&k, &tracer{&e})
	return e
}

// Acquire counts another session of a client that belongs to node id already. It
// refuses when the node is gone, down, recovering, draining or disabled, and when it is
// at its limit or under severe pressure, unless Config.StickyOverLimit is set. Weight
// zero and sessions shutdown do not prevent it.
func (p *Pool) Acquire(id NodeID) bool { return p.acquire(id, false) }

// AcquireOptimized is Acquire for an optimised session, which pressure does not refuse.
func (p *Pool) AcquireOptimized(id NodeID) bool { return p.acquire(id, true) }

func (p *Pool) acquire(id NodeID, optimized bool) bool {
	v := p.view.Load()
	e := v.entry(id)
	if e == nil || !e.old {
		return false
	}
	limit := e.limit
	if v.sticky {
		limit = 0
	} else if e.level == Severe && !optimized {
		return false
	}
	if !e.h.start(limit) {
		return false
	}
	p.recount(id)
	return true
}

// Adopt counts a session that node id has already, one restored from a snapshot or
// learned from another balancer. Only an unknown node refuses it.
func (p *Pool) Adopt(id NodeID) bool {
	e := p.view.Load().entry(id)
	if e == nil {
		return false
	}
	e.h.start(0)
	p.recount(id)
	return true
}

// Release gives a session back that Pick, Acquire or Adopt counted. Sessions of nodes
// that are gone went with them: releasing them does nothing.
func (p *Pool) Release(id NodeID) {
	v := p.view.Load()
	e := v.entry(id)
	if e == nil {
		return
	}
	e.h.end()
	if w := p.view.Load(); w.metric == LeastConns {
		if w != v {
			e = w.entry(id)
		}
		if e != nil {
			e.matches()
		}
	}
}

// Usable says whether node id may keep the sessions it has: it is known, up and not
// disabled.
func (p *Pool) Usable(id NodeID) bool {
	e := p.view.Load().entry(id)
	return e != nil && e.keep
}

// Sessions returns how many sessions node id has open.
func (p *Pool) Sessions(id NodeID) (int64, bool) {
	if e := p.view.Load().entry(id); e != nil {
		return e.h.sessions(), true
	}
	return 0, false
}

// Addr returns the address of node id.
func (p *Pool) Addr(id NodeID) (netip.AddrPort, bool) {
	if e := p.view.Load().entry(id); e != nil {
		return e.addr, true
	}
	return netip.AddrPort{}, false
}

// ID returns the id of the node with a name.
func (p *Pool) ID(name string) (NodeID, bool) {
	v := p.view.Load()
	if i, ok := v.names[name]; ok {
		return v.all[i].id, true
	}
	return 0, false
}

// Name returns the name of node id.
func (p *Pool) Name(id NodeID) (string, bool) {
	if e := p.view.Load().entry(id); e != nil {
		return e.h.name, true
	}
	return "", false
}

// Metric returns the metric in force.
func (p *Pool) Metric() Metric { return p.view.Load().metric }

// Len returns the number of nodes.
func (p *Pool) Len() int { return len(p.view.Load().all) }

// All returns the nodes with their status, in the order of the configuration.
func (p *Pool) All() iter.Seq2[NodeID, NodeStatus] {
	return func(yield func(NodeID, NodeStatus) bool) {
		for _, s := range p.statuses() {
			if !yield(s.id, s.NodeStatus) {
				return
			}
		}
	}
}

// Status returns the status of node id.
func (p *Pool) Status(id NodeID) (NodeStatus, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.view.Load()
	if e := v.entry(id); e != nil {
		return v.status(e), true
	}
	return NodeStatus{}, false
}

type idStatus struct {
	id NodeID
	NodeStatus
}

func (p *Pool) statuses() []idStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.view.Load()
	out := make([]idStatus, len(v.all))
	for i := range v.all {
		out[i] = idStatus{v.all[i].id, v.status(&v.all[i])}
	}
	return out
}

// status reads what p.mu guards.
func (v *view) status(e *entry) NodeStatus {
	h := e.h
	s := NodeStatus{
		Node: h.node, Up: h.up, Advice: h.advice, State: e.state, Pressure: h.level, Total: h.started.Load(), Sessions: h.sessions(),
		Warmth: float64(e.warm) / warmSteps, ResponseTime: h.average, Octets: h.last,
	}
	if s.State == Available && h.full(e.limit) {
		s.State = AtLimit
	}
	if g := e.g[0]; g != nil && len(v.plans[0].groups) > 0 && v.plans[0].groups[0] == g {
		s.Share = g.share(int(e.at[0]))
	}
	return s
}

// Set replaces the nodes. Nodes whose name stays keep their id, counters, health,
// pressure and slow start; the ids of the others are returned. Picks under way may
// still return one of those. A fault changes nothing; neither does the configuration
// already in force.
func (p *Pool) Set(nodes ...Node) (removed []NodeID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set(p.cfg, nodes)
}

// Reconfigure replaces the configuration and the nodes at once, by the rules of Set.
// Config.IDs cannot change.
func (p *Pool) Reconfigure(cfg *Config, nodes ...Node) (removed []NodeID, err error) {
	c, err := cfg.resolve()
	if err != nil {
		return nil, errors.Join(err, validateNodes(c.Metric, nodes))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.IDs != nil && c.IDs != p.ids {
		return nil, &FieldError{"Config.IDs", "another allocator", "the one the pool has, or nil"}
	}
	c.IDs = p.cfg.IDs
	return p.set(c, nodes)
}

func (p *Pool) set(cfg Config, nodes []Node) (removed []NodeID, err error) {
	if err := validateNodes(cfg.Metric, nodes); err != nil {
		return nil, err
	}
	same := cfg == p.cfg && len(nodes) == len(p.nodes)
	for i := 0; same && i < len(nodes); i++ {
		same = nodes[i] == p.nodes[i].node
	}
	if same {
		return nil, nil
	}
	now := p.now()
	old := make(map[string]*handle, len(p.nodes))
	for _, h := range p.nodes {
		old[h.node.Name] = h
	}
	next := make([]*handle, 0, len(nodes))
	was := p.cfg
	p.cfg = cfg
	for _, n := range nodes {
		h := old[n.Name]
		if h == nil {
			if h, err = p.newHandle(n); err != nil {
				p.cfg = was
				return nil, err
			}
			h.added = true
			if h.up && p.warmUp(h) > 0 {
				h.warm = now
			}
			next = append(next, h)
			continue
		}
		next = append(next, h)
		delete(old, n.Name)
	}
	for i, n := range nodes {
		h := next[i]
		h.node = n
		p.enabled(h, now)
		if cfg.Metric != was.Metric {
			h.applied = 0 // Response begins with what is known now
		}
	}
	for _, h := range p.nodes {
		if old[h.node.Name] == h {
			removed = append(removed, h.id)
		}
	}
	slices.Sort(removed)
	p.nodes = next
	p.publish(now)
	return removed, nil
}
