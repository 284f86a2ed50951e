package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/intercept"
)

const (
	defaultThreshold = flowshare.DefaultThreshold
	defaultHolders   = flowshare.DefaultHolders
	updateWait       = 2 * time.Second
	leaveWait        = 2 * time.Second
	// rejoinEvery is how often members that were lost are looked for.
	rejoinEvery = 2 * time.Second
	// giveUpAfter is for how long they are, unless Config.Join has them.
	giveUpAfter = time.Hour
	// maxLost bounds the addresses of members that may come back.
	maxLost = 4096
)

// A Cluster is this balancer's part in a cluster. Make one with [New]; it must not be copied.
type Cluster struct {
	cfg            Config
	log            *slog.Logger
	self           flowshare.Member
	oldest, newest uint8 // versions
	secrets        *secrets
	socks          *sockets
	flows          *flowshare.Layer
	gossip         *memberlist.TransmitLimitedQueue
	count          counters
	wg             sync.WaitGroup
	news           chan struct{} // tells Run that members have changed
	calls          chan func()   // of the caller's functions
	owed           atomic.Bool   // the state found no room there
	running        context.Context
	stop           context.CancelFunc
	rate           rate // of what is sent of replicas
	started        atomic.Bool
	left           chan struct{}
	leave          sync.Once

	mu       sync.Mutex
	ml       *memberlist.Memberlist
	members  map[string]*member
	lost     map[string]whereabouts // of those who are or were there
	links    map[linkKey]*link
	reports  map[reportKey]*told
	reportNo uint64
	settings [2]map[string]string // must be alike, should be
	digests  [2]digest
	differ   map[string]map[Mismatch]bool
	leads    map[feedKey]*leading
	follows  map[feedKey]*following
	state    intercept.ClusterState
	stated   bool
	upNames  []string

	// What the caller was told, by callOut alone.
	toldState intercept.ClusterState
	toldUp    []string
}

type linkKey struct {
	m     flowshare.Member
	class uint8
}

// counters are behind Stats.
type counters struct {
	refused, malformed, broken, received     atomic.Uint64
	changes, snapshots, restored, notApplied atomic.Uint64
	unknownFeeds, gossipRefused              atomic.Uint64
	streamed, streamsBusy, callsOut, stale   atomic.Uint64
}

// New opens the sockets of a member; [Cluster.Run] joins the others. All faults of cfg are
// reported at once.
func New(cfg *Config) (*Cluster, error) { return newCluster(cfg, oldestVersion, newestVersion) }

func newCluster(cfg *Config, oldest, newest uint8) (*Cluster, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cl := &Cluster{
		cfg: c, log: c.Logger, oldest: oldest, newest: newest, self: flowshare.Member{Name: c.Node, Epoch: uint64(time.Now().UnixNano())},
		news: make(chan struct{}, 1), calls: make(chan func(), 1024), left: make(chan struct{}),
		members: map[string]*member{}, lost: map[string]whereabouts{}, links: map[linkKey]*link{}, reports: map[reportKey]*told{},
		differ: map[string]map[Mismatch]bool{}, leads: map[feedKey]*leading{}, follows: map[feedKey]*following{},
	}
	cl.rate.most = float64(c.FollowRate)
	cl.running, cl.stop = context.WithCancel(context.Background())
	if len(c.Keys) > 0 {
		if cl.secrets, err = newSecrets(c.Keys, c.Name); err != nil {
			return nil, err
		}
	}
	flows := c.Flows
	flows.Self, flows.Transport = cl.self, (*streams)(cl)
	if cl.flows, err = flowshare.New(&flows); err != nil {
		return nil, err
	}
	cl.settings = [2]map[string]string{ownSettings(&c), maps.Clone(c.Advisory)}
	cl.digests = [2]digest{digestOf(cl.settings[0]), digestOf(cl.settings[1])}
	cl.gossip = &memberlist.TransmitLimitedQueue{NumNodes: cl.size, RetransmitMult: 3}
	if cl.socks, err = openSockets(context.Background(), c.Network, c.Bind); err != nil {
		return nil, err
	}
	cl.socks.own = cl.receive
	return cl, nil
}

// Follow adds a table to [Config.Replicas], before Run: one that could not be made before the Cluster, such as a data plane's that has it
// for its peers.
func (c *Cluster) Follow(name string, r Replica) error {
	switch {
	case c.started.Load():
		return errors.New("cluster: Follow after Run")
	case name == "" || len(name) > maxFeedName || r == nil:
		return &steering.FieldError{Field: "cluster.Config.Replicas", Value: fmt.Sprintf("%q", name), Want: "a replica with a name of 1 to 64 bytes"}
	case c.cfg.Replicas[name] != nil:
		return &steering.FieldError{Field: "cluster.Config.Replicas", Value: fmt.Sprintf("%q", name), Want: "a name that no other replica has"}
	}
	c.cfg.Replicas[name] = r
	return nil
}

// Addr is the address and port this member is bound to.
func (c *Cluster) Addr() netip.AddrPort { return c.socks.bind }

// Self is this member in this life.
func (c *Cluster) Self() flowshare.Member { return c.self }

func (c *Cluster) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.members) + 1
}

// changed has Run look at the members.
func (c *Cluster) changed() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// tell has a function of the caller's called, and says so. If he is far behind, some are left out, which is counted.
func (c *Cluster) tell(f func()) bool {
	select {
	case c.calls <- f:
		return true
	default:
		c.count.callsOut.Add(1)
		return false
	}
}

// memberlistConfig is tuned so that two to four members notice a failure within 4 s: a member is probed every 1.5 s at
// the latest, found out at the end of the probe's 0.5 s, and suspected for 1.5 s.
func (c *Cluster) memberlistConfig() *memberlist.Config {
	m := memberlist.DefaultLANConfig()
	m.Name = c.cfg.Node
	m.Label = c.cfg.Name
	m.Transport = c.socks
	m.BindAddr, m.BindPort = c.socks.bind.Addr().String(), int(c.socks.bind.Port())
	m.AdvertiseAddr, m.AdvertisePort = m.BindAddr, m.BindPort
	m.ProbeInterval, m.ProbeTimeout = 500*time.Millisecond, 200*time.Millisecond
	m.SuspicionMult, m.SuspicionMaxTimeoutMult = 3, 1
	m.AwarenessMaxMultiplier = 1
	m.GossipInterval = 100 * time.Millisecond
	m.PushPullInterval = 10 * time.Second
	m.TCPTimeout = 2 * time.Second
	m.DeadNodeReclaimTime = time.Second
	if c.secrets != nil {
		m.Keyring = c.secrets.ring
	}
	d := &delegate{c}
	m.Delegate, m.Events, m.Alive = d, d, d
	m.LogOutput = &logWriter{c: c}
	return m
}

// Run is this member's life in the cluster: it joins, and goes on until ctx is done or [Cluster.Leave] is called. It can be
// called once. When ctx is done it ends without goodbye, as in a crash.
func (c *Cluster) Run(ctx context.Context) error {
	if !c.started.CompareAndSwap(false, true) {
		return errors.New("cluster: Run was called before")
	}
	defer c.wg.Wait()
	defer c.giveUp()
	defer c.stop()
	c.socks.serve()
	ml, err := memberlist.Create(c.memberlistConfig())
	if err != nil {
		_ = c.socks.Shutdown()
		return fmt.Errorf("cluster: %w", err)
	}
	defer func() { _ = ml.Shutdown() }()
	c.mu.Lock()
	c.ml = ml
	c.mu.Unlock()
	c.wg.Go(func() { _ = c.flows.Run(c.running) })
	c.wg.Go(c.callOut)
	c.wg.Go(func() { c.lookForOthers(ml) })
	c.refresh()
	feeds := time.NewTicker(c.cfg.FollowEvery)
	defer feeds.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.left:
			return nil
		case <-c.news:
			c.refresh()
		case now := <-feeds.C:
			if len(c.cfg.Replicas) > 0 {
				c.follow(now)
				c.lead(now)
			}
		}
	}
}

func (c *Cluster) callOut() {
	for {
		select {
		case <-c.running.Done():
			return
		case f := <-c.calls:
			f()
			if c.owed.Swap(false) {
				c.tellState()
			}
		}
	}
}

// tellState tells the caller how things are now, unless he was told so. However far behind he is, the last he hears is how it is.
func (c *Cluster) tellState() {
	c.mu.Lock()
	state, up := c.state, c.upNames
	c.mu.Unlock()
	first := c.toldUp == nil
	if !slices.Equal(up, c.toldUp) {
		if c.toldUp = up; c.cfg.OnMembers != nil {
			c.cfg.OnMembers(slices.Clone(up))
		}
	}
	if first || state != c.toldState {
		if c.toldState = state; c.cfg.OnState != nil {
			c.cfg.OnState(state)
		}
	}
}

// Close releases the sockets of a Cluster that Run was not called for; Run does so itself.
func (c *Cluster) Close() error {
	if c.started.CompareAndSwap(false, true) {
		return c.socks.Shutdown()
	}
	return nil
}

// lookForOthers joins those of Config.Join, and looks for an hour for members that were lost: after a
// partition memberlist does not by itself.
func (c *Cluster) lookForOthers(ml *memberlist.Memberlist) {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-c.running.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		var addrs []string
		there := map[string]bool{c.socks.bind.String(): true}
		for _, m := range c.members {
			there[m.addr] = true
		}
		for name, w := range c.lost {
			switch {
			case there[w.addr]:
			case len(c.lost) > maxLost, !w.since.IsZero() && time.Since(w.since) > giveUpAfter:
				delete(c.lost, name)
			default:
				addrs = append(addrs, w.addr)
			}
		}
		for _, a := range c.cfg.Join {
			if a := a.String(); !there[a] && !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
		c.mu.Unlock()
		slices.Sort(addrs)
		for _, a := range addrs {
			if c.running.Err() != nil {
				return
			}
			if _, err := ml.Join([]string{a}); err != nil {
				c.log.Debug("nobody there", "addr", a, "err", err)
			}
		}
		tick.Reset(rejoinEvery)
	}
}

// refresh brings everything in line with the members.
func (c *Cluster) refresh() {
	c.mu.Lock()
	var ids []flowshare.Member
	want := map[linkKey]string{}
	up := []string{c.cfg.Node}
	for _, m := range c.members {
		ids = append(ids, m.id())
		for class := range classes {
			want[linkKey{m.id(), class}] = m.addr
		}
		up = append(up, m.name)
	}
	for k, l := range c.links {
		if addr, ok := want[k]; !ok || addr != l.addr {
			l.cancel()
			delete(c.links, k)
		}
	}
	for k, addr := range want {
		if c.links[k] == nil {
			c.links[k] = c.newLink(c.running, k.m, addr, k.class)
		}
	}
	c.forgetReports()
	state := stateOf(c.cfg.Members, func(name string) bool { return name == c.cfg.Node || c.members[name] != nil })
	changed := !c.stated || state != c.state
	c.state, c.stated = state, true
	slices.Sort(up)
	others := !slices.Equal(up, c.upNames)
	c.upNames = up
	c.differing()
	c.mu.Unlock()
	c.flows.SetMembers(time.Now(), ids)
	if others {
		c.log.Info("members", "up", up)
	}
	if changed {
		c.log.Info("state", "state", state)
	}
	if (others || changed) && !c.tell(c.tellState) {
		c.owed.Store(true)
	}
}

// State says what it means for new flows who is there.
func (c *Cluster) State() intercept.ClusterState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return stateOf(c.cfg.Members, func(name string) bool { return name == c.cfg.Node || c.members[name] != nil })
}

// Members returns the names of those who are up, this balancer included.
func (c *Cluster) Members() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	up := []string{c.cfg.Node}
	for name := range c.members {
		up = append(up, name)
	}
	slices.SortFunc(up, cmp.Compare[string])
	return up
}

// Flows is the layer that shares the flows.
func (c *Cluster) Flows() *flowshare.Layer { return c.flows }

// Announce says that this balancer gave a flow to a node; see flowshare. With Withdraw and Find it makes
// a Cluster what the data plane calls its peers.
func (c *Cluster) Announce(protocol uint8, a, b netip.AddrPort, node, note string) {
	c.flows.Announce(flowshare.MakeFlow(protocol, a, b), flowshare.Value{Node: node, Note: note})
}

// Withdraw says that this balancer forwards a flow no more.
func (c *Cluster) Withdraw(protocol uint8, a, b netip.AddrPort) {
	c.flows.Withdraw(flowshare.MakeFlow(protocol, a, b))
}

// Lookup returns what is known here of a flow.
func (c *Cluster) Lookup(protocol uint8, a, b netip.AddrPort) (node, note string, ok bool) {
	v, ok := c.flows.Lookup(flowshare.MakeFlow(protocol, a, b))
	return v.Node, v.Note, ok
}

// Find looks a flow up, here and then at the members that should know. It calls done once.
func (c *Cluster) Find(protocol uint8, a, b netip.AddrPort, done func(node, note string, ok bool)) {
	c.flows.Find(time.Now(), flowshare.MakeFlow(protocol, a, b), func(v flowshare.Value, ok bool) { done(v.Node, v.Note, ok) })
}

// Leave says goodbye and ends Run. What waits is sent first, as far as ctx and two seconds allow. Flows of this
// balancer stay known to the others, who may take them over.
func (c *Cluster) Leave(ctx context.Context) (err error) {
	c.leave.Do(func() {
		c.mu.Lock()
		ml := c.ml
		c.mu.Unlock()
		if ml == nil {
			err = c.Close()
			close(c.left)
			return
		}
		ctx, cancel := context.WithTimeout(ctx, leaveWait)
		defer cancel()
		for c.flows.Stats().Pending > 0 && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(flowshare.DefaultBatch):
			}
		}
		err = ml.Leave(leaveWait)
		close(c.left)
	})
	return err
}

// streams is the flowshare.Transport of a Cluster.
type streams Cluster

// Send implements flowshare.Transport.
func (s *streams) Send(to flowshare.Member, frame []byte, urgent bool) bool {
	c := (*Cluster)(s)
	c.mu.Lock()
	l := c.links[linkKey{to, classFlows}]
	c.mu.Unlock()
	if l == nil || !l.send(frame, urgent) {
		c.count.streamsBusy.Add(1)
		return false
	}
	return true
}
