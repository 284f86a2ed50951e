package intercept

import (
	"iter"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lbprim/lbprim/steering"
)

// rememberedPeers is how many remote peers without connections are remembered.
const rememberedPeers = 1 << 16

// A ClusterState is how the other balancers of the cluster are. The zero ClusterState is
// Steady.
type ClusterState uint8

const (
	// Steady: all are up.
	Steady ClusterState = iota
	// SerialPartnerDown: the failover partner on the same links is down. Traffic is
	// still redirected, by headers only.
	SerialPartnerDown
	// ParallelPeerDown: a balancer on other links is down. New pass-through traffic
	// passes by; optimised connections go on where Config.AllowFailure says so.
	ParallelPeerDown
	// PairDown: both of a failover pair are down. As ParallelPeerDown.
	PairDown
)

// An Engine decides about intercepted traffic, see the package comment. It must not be
// copied; use [New].
type Engine struct {
	view    atomic.Pointer[view]
	cluster atomic.Uint32

	mu   sync.Mutex
	cfg  Config
	pool *steering.Pool // the nodes: ids, health, pressure, counts

	peersMu sync.Mutex
	peers   map[netip.Addr]map[steering.NodeID]int // open connections
	served  map[steering.NodeID]int                // remote peers with open connections
	sets    map[int]*peerSet                       // of the view in force
	// The node that served a peer whose connections have all ended.
	last *lru.LRU[netip.Addr, steering.NodeID]
}

// A view is a configuration, compiled, and the state of the nodes.
type view struct {
	inPath   []InPathRule
	rules    []Rule
	nodes    []node
	sides    map[steering.NodeID]Side
	targets  [][]int // of each rule: indices of nodes
	auto     []int
	services *services
	fates    []fate // of each row
	farms    []*farm
	fairV2   bool
	slack    int
	sets     map[int]*peerSet // by rule with fair peering of its own
	allow    bool
}

type node struct {
	id       steering.NodeID
	name     string
	side     Side
	capacity int
	level    steering.Level
	state    steering.Availability
	limit    int
	up       bool
	usable   bool // may take new optimised sessions
}

// A fate is what becomes of the flows of a row.
type fate struct {
	name string // of the row
	farm int32  // number, -1 to pass through
}

// A farm is a set of nodes pass-through traffic is spread over.
type farm struct {
	buckets *steering.Buckets
	nodes   []int // of each share
	why     Reason
}

// New makes an engine. All faults of cfg are reported at once. A nil cfg has no nodes
// and lets everything pass.
func New(cfg *Config) (*Engine, error) {
	last, err := lru.NewLRU[netip.Addr, steering.NodeID](rememberedPeers, nil)
	if err != nil {
		return nil, err
	}
	e := &Engine{peers: map[netip.Addr]map[steering.NodeID]int{}, served: map[steering.NodeID]int{}, last: last}
	if _, err := e.set(cfg); err != nil {
		return nil, err
	}
	return e, nil
}

// Set replaces the configuration. Nodes whose name stays keep their id, counters,
// health, pressure and affinity; the ids of the others are returned. A fault changes
// nothing. Config.IDs cannot change.
func (e *Engine) Set(cfg *Config) (removed []steering.NodeID, err error) { return e.set(cfg) }

func (e *Engine) set(cfg *Config) (removed []steering.NodeID, err error) {
	if cfg == nil {
		cfg = new(Config)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pool != nil && reflect.DeepEqual(*cfg, e.cfg) {
		return nil, nil
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	pc, nodes := cfg.pool()
	if e.pool == nil {
		if e.pool, err = steering.NewPool(pc, nodes...); err != nil {
			return nil, err
		}
	} else {
		if removed, err = e.pool.Reconfigure(pc, nodes...); err != nil {
			return nil, err
		}
	}
	e.cfg = cfg.clone()
	// No connection is chosen while the sets of peers and the rules differ.
	e.peersMu.Lock()
	defer e.peersMu.Unlock()
	if len(removed) > 0 {
		for peer, by := range e.peers {
			for _, id := range removed {
				delete(by, id)
			}
			if len(by) == 0 {
				delete(e.peers, peer)
			}
		}
		for _, id := range removed {
			delete(e.served, id)
		}
	}
	e.publish(true)
	return removed, nil
}

func (c *Config) clone() Config {
	n := *c
	n.Nodes, n.InPath = slices.Clone(c.Nodes), slices.Clone(c.InPath)
	n.Rules, n.Services = slices.Clone(c.Rules), slices.Clone(c.Services)
	for i := range n.Rules {
		n.Rules[i].Targets = slices.Clone(n.Rules[i].Targets)
	}
	for i := range n.Services {
		n.Services[i].Targets = slices.Clone(n.Services[i].Targets)
	}
	return n
}

// publish compiles a view; the rules and rows of the last one stay unless they
// changed; then e.peersMu is held too. e.mu is held.
func (e *Engine) publish(rules bool) {
	c := &e.cfg
	v := &view{inPath: c.InPath, rules: c.Rules, fairV2: c.FairPeeringV2, slack: c.Slack, allow: c.AllowFailure}
	switch v.slack {
	case 0:
		v.slack = 10
	case -1:
		v.slack = 0
	}
	index := make(map[string]int, len(c.Nodes))
	v.sides = make(map[steering.NodeID]Side, len(c.Nodes))
	i := 0
	for id, st := range e.pool.All() {
		n := node{
			id: id, name: st.Node.Name, side: c.Nodes[i].Side, level: st.Pressure, state: st.State, limit: st.Node.MaxSessions,
			capacity: st.Node.Capacity, up: st.Up,
		}
		if n.capacity == 0 {
			n.capacity = max(st.Node.Weight, 1)
		}
		n.usable = n.state == steering.Available || n.state == steering.UnderSeverePressure || n.state == steering.AtLimit
		index[n.name] = i
		v.sides[id] = n.side
		v.nodes = append(v.nodes, n)
		i++
	}
	named := make([]bool, len(v.nodes))
	v.targets = make([][]int, len(v.rules))
	for i, r := range v.rules {
		for _, name := range r.Targets {
			v.targets[i] = append(v.targets[i], index[name])
			named[index[name]] = true
		}
	}
	for i := range v.nodes {
		if !named[i] {
			v.auto = append(v.auto, i)
		}
	}
	if old := e.view.Load(); old != nil && !rules {
		v.services, v.sets, v.fates = old.services, old.sets, old.fates
		v.farms = make([]*farm, len(old.farms))
		for i, f := range old.farms {
			v.farms[i] = &farm{nodes: f.nodes}
		}
	} else {
		v.services = newServices(c.Services)
		v.assign(index)
		e.resetSets(v)
	}
	for _, f := range v.farms {
		f.build(v, c.Buckets, c.Seed)
	}
	e.view.Store(v)
}

// assign finds each row a farm; rows with the same targets share one.
func (v *view) assign(index map[string]int) {
	v.fates = make([]fate, len(v.services.rows))
	made := map[string]int32{}
	for i := range v.services.rows {
		r := &v.services.rows[i]
		v.fates[i] = fate{r.Name, -1}
		if r.PassThrough || r.Disabled {
			continue
		}
		key := strings.Join(r.Targets, "\x00")
		no, ok := made[key]
		if !ok {
			f := new(farm)
			if len(r.Targets) == 0 {
				for n := range v.nodes {
					f.nodes = append(f.nodes, n)
				}
			}
			for _, name := range r.Targets {
				f.nodes = append(f.nodes, index[name])
			}
			no = int32(len(v.farms))
			v.farms = append(v.farms, f)
			made[key] = no
		}
		v.fates[i].farm = no
	}
}

// build makes the bucket table from the state of the nodes.
func (f *farm) build(v *view, buckets int, seed uint64) {
	if buckets == 0 {
		buckets = steering.DefaultBuckets
	}
	f.why = NoNode
	shares := make([]steering.Share, len(f.nodes))
	some := false
	for i, n := range f.nodes {
		x := &v.nodes[n]
		shares[i].Name = x.name
		switch x.state {
		case steering.Available, steering.AtLimit:
			shares[i].Weight = x.capacity * x.level.Factor2()
			some = true
		case steering.UnderSeverePressure:
			f.why = SeverePressure
		}
	}
	if !some {
		return
	}
	b, err := steering.NewBuckets(buckets, seed, shares...)
	if err == nil { // names and weights were validated with the nodes
		f.buckets = b
	}
}

// SetUp reports the health of a node.
func (e *Engine) SetUp(id steering.NodeID, up bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if st, ok := e.pool.Status(id); ok && st.Up != up {
		e.pool.SetUp(id, up)
		e.publish(false)
	}
}

// SetPressure sets the pressure level of a node.
func (e *Engine) SetPressure(id steering.NodeID, l steering.Level) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if st, ok := e.pool.Status(id); ok && st.Pressure != l {
		e.pool.SetPressure(id, l)
		e.publish(false)
	}
}

// Report takes a reading of a node's gauges and returns the level in force after it.
func (e *Engine) Report(id steering.NodeID, r steering.Gauges) steering.Level {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, ok := e.pool.Status(id)
	if !ok {
		return steering.Normal
	}
	l := e.pool.Report(id, r)
	if l != before.Pressure {
		e.publish(false)
	}
	return l
}

// SetCluster reports the state of the cluster.
func (e *Engine) SetCluster(s ClusterState) { e.cluster.Store(uint32(s)) }

// ID returns the id of the node with a name.
func (e *Engine) ID(name string) (steering.NodeID, bool) { return e.pool.ID(name) }

// Addr returns the address of a node.
func (e *Engine) Addr(id steering.NodeID) (netip.AddrPort, bool) { return e.pool.Addr(id) }

// Usable says whether a node may keep the flows it has.
func (e *Engine) Usable(id steering.NodeID) bool { return e.pool.Usable(id) }

// All returns the nodes with their status.
func (e *Engine) All() iter.Seq2[steering.NodeID, steering.NodeStatus] { return e.pool.All() }

// Peers returns how many remote peers have open connections on a node.
func (e *Engine) Peers(id steering.NodeID) int {
	e.peersMu.Lock()
	defer e.peersMu.Unlock()
	return e.served[id]
}
