package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/path"
)

// service is a Service in force. Its number is its own, over all that takes its place under its name, until nothing names it any more, see
// numbers.go.
type service struct {
	inline  bool // of redirected flows, see Intercept
	live    bool // the table in force has it
	no      uint32
	again   bool // another one had the number
	conf    Service
	pool    *pool
	delay   *delay // nil: the first packet decides
	timers  *clienttable.Timers
	clients clienttable.Grouping
	locals  [][16]byte
	statics *statics
	way     uint16
	// touch is how often a packet of one direction keeps the entry of the other one alive, in
	// ticks: a sixteenth of the idle time.
	touch uint32
}

// vip is what the Plane knows of a virtual address beside its policies.
type vip struct {
	pools   []*pool
	regular []clienttable.Grouping // the groupings of its services in Regular mode, without repetition
}

// pool is a steering.Pool with what was last seen of it.
type pool struct {
	*steering.Pool // nil of inter
	inter          *interception
	no             uint32
	usable         atomic.Int32
	idle           bool // no service in force uses it
}

// node is a service node. Its number is its own until nothing names it any more, see numbers.go.
type node struct {
	no   uint32
	id   steering.NodeID
	pool *pool
	name string
	addr netip.AddrPort
	seen *witness
	keep bool // it may keep its sessions
	gone bool // its pool does not know it any more

	lives uint32 // how often it has come back after it was gone
}

// snapshot is everything a worker needs beside the tables. It is immutable; a batch uses one.
type snapshot struct {
	table    *policy.Table[*Service]
	services []*service // by number; nil: nobody has it
	ways     []*way     // the same
	narrow   int        // the least MTU of ways of translated packets
	byConf   map[*Service]*service
	vips     map[netip.Prefix]*vip
	nodes    []*node
	spare    spareNumbers
	byID     map[steering.NodeID]*node
	// ends are the addresses that nodes of NAT services answer from, with the answers that
	// belong to sessions.
	ends     map[netip.Addr][]answer
	draining bool
	delays   bool // there is, or was, a service with delayed binding
	settings
	// With Intercept: its service, the nodes by address, and the channels by key.
	inline   *service
	senders  map[netip.Addr]*node
	channels map[uint32]path.Channel
	labels   func() map[uint32][]farmLabel // computed when they are asked for
	// nodeAddrs are where nodes are, computed when they are asked for.
	nodeAddrs func() map[netip.Addr]bool
}

// answer is a set of packets that a node sends only within sessions.
type answer struct {
	proto policy.Protocol
	ports policy.PortRange
}

// Apply puts a table of policies in force. Sessions stay with their nodes, whatever the table says of
// them; a service of the same name takes over counters and sessions. An identical table changes
// nothing. All faults are reported at once, and then nothing changes.
func (p *Plane) Apply(t *policy.Table[*Service]) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.apply(t)
}

// check resolves the services of a table, and finds all that is wrong with them.
func (p *Plane) check(t *policy.Table[*Service]) (map[*Service]Service, error) {
	var errs []error
	confs := make(map[*Service]Service)
	names := make(map[string]*Service)
	if t != nil {
		for r := range t.All() {
			s := r.Value
			if s == nil {
				errs = append(errs, invalid(fmt.Sprintf("rule %q: Value", r.Name), nil, "a service"))
				continue
			}
			if _, seen := confs[s]; !seen {
				c, err := s.resolve()
				if err != nil {
					errs = append(errs, err)
				}
				if o := names[s.Name]; o != nil && err == nil {
					errs = append(errs, invalid(fmt.Sprintf("rule %q: Service.Name", r.Name), s.Name, "a name that no other service has"))
				}
				confs[s], names[s.Name] = c, s
			}
			errs = append(errs, p.fits(r, s)...)
		}
	}
	if p.inter != nil {
		if name := p.inter.conf.Name; names[name] != nil {
			errs = append(errs, invalid(fmt.Sprintf("Service %q.Name", name), name, "another name than that of Config.Intercept"))
		}
	}
	return confs, errors.Join(errs...)
}

func (p *Plane) apply(t *policy.Table[*Service]) error {
	confs, err := p.check(t)
	if err != nil {
		return err
	}
	old := p.snap.Load()
	next := &snapshot{
		table: t, services: slices.Clone(old.services), ways: slices.Clone(old.ways), narrow: old.narrow, spare: old.spare, byConf: make(map[*Service]*service),
		vips: make(map[netip.Prefix]*vip), draining: old.draining, delays: old.delays, settings: old.settings,
	}
	pools := make(map[*steering.Pool]*pool)
	for _, q := range p.pools {
		pools[q.Pool] = q
	}
	for svc := range old.named() {
		c := *svc
		c.live = false
		next.services[svc.no] = &c
	}
	all, poolNo := slices.Clone(p.pools), p.poolNo
	numbers, used := maps.Clone(p.serviceNo), make(map[*pool]bool)
	for s, c := range confs {
		n, again := next.numberOf(s.Name, numbers)
		use := func(sp *steering.Pool) *pool {
			q := pools[sp]
			if q == nil {
				poolNo++
				q = &pool{Pool: sp, no: poolNo}
				pools[sp] = q
				all = append(all, q)
			}
			used[q] = true
			return q
		}
		q := &pool{}
		if c.Forward != Route {
			q = use(c.Pool)
		}
		svc := &service{no: n, again: again, live: true, conf: c, pool: q, clients: grouping(&c), statics: newStatics(c.Static, nil)} // resolve has seen to it that there is no fault
		if c.Delay != nil {
			svc.delay = p.delayOf(c.Delay, use)
			next.delays = true
		}
		if err := p.lost.need(p, &c); err != nil {
			return err
		}
		svc.timers, _ = clienttable.NewTimers(&c.Ageing) // resolve has seen to it that there is no error
		for _, a := range c.Locals {
			svc.locals = append(svc.locals, a.As16())
		}
		var ok bool
		if svc.way, ok = next.wayOf(&c); !ok {
			return invalid(fmt.Sprintf("Service %q: Forward, Tunnel and MTU", s.Name), maxWays, "fewer different ones, those of sessions from before included")
		}
		svc.touch = touchTicks(shortest(&c.Ageing, svc.timers))
		next.services[n], next.byConf[s] = svc, svc
	}
	if p.inter != nil {
		n, again := next.numberOf(p.inter.conf.Name, numbers)
		if err := p.interceptService(next, n, again); err != nil {
			return err
		}
	}
	if t != nil {
		for r := range t.All() {
			if r.Disabled || r.Internal {
				continue
			}
			v := next.vips[r.Match.Dst]
			if v == nil {
				v = new(vip)
				next.vips[r.Match.Dst] = v
			}
			if c := confs[r.Value]; c.Forward != Route {
				for q := range c.all {
					v.add(pools[q], &c)
				}
			}
		}
	}
	if err := p.publish(next, all); err != nil {
		return err
	}
	p.serviceNo, p.poolNo = numbers, poolNo
	p.applied++
	for _, q := range all {
		q.idle = !used[q]
	}
	return nil
}

// fits reports what of a service does not suit a rule's packets or this Plane.
func (p *Plane) fits(r *policy.Rule[*Service], s *Service) (errs []error) {
	bad := func(field string, value any, want string) {
		errs = append(errs, invalid(fmt.Sprintf("rule %q: Service %q: %s", r.Name, s.Name, field), value, want))
	}
	if s.Forward == DSR && !p.cfg.ethernet() {
		bad("Forward", s.Forward, "another mode, since no device has Ethernet frames")
	}
	if s.Pool == nil || s.Forward == Route {
		return errs
	}
	for _, a := range s.Locals {
		if a.Unmap().Is4() != r.Match.Dst.Addr().Is4() {
			bad("Locals", a, fmt.Sprintf("addresses of the family of %v", r.Match.Dst))
		}
	}
	var nodes []steering.NodeStatus
	for q := range s.all {
		for _, st := range q.All() {
			nodes = append(nodes, st)
		}
	}
	for _, st := range nodes {
		a := st.Node.Addr.Addr().Unmap()
		if !a.IsValid() || s.Forward != Tunnelled && a.Is4() != r.Match.Dst.Addr().Is4() {
			bad(fmt.Sprintf("node %q: Addr", st.Node.Name), st.Node.Addr, fmt.Sprintf("an address of the family of %v", r.Match.Dst))
			continue
		}
		if _, ok := addrIn(p.cfg.Addrs, a.Is6()); !ok && s.Forward == Tunnelled {
			bad("Forward", s.Forward, fmt.Sprintf("Config.Addrs with an address of the family of node %q", st.Node.Name))
		}
	}
	return errs
}

func (v *vip) add(q *pool, c *Service) {
	known := false
	for _, o := range v.pools {
		known = known || o == q
	}
	if !known {
		v.pools = append(v.pools, q)
	}
	if c.Mode.FullKey() {
		return
	}
	m := grouping(c)
	for _, o := range v.regular {
		if o == m {
			return
		}
	}
	v.regular = append(v.regular, m)
}

// grouping returns the grouping of a service that resolve has seen.
func grouping(c *Service) clienttable.Grouping {
	g, _ := clienttable.NewGrouping(c.ClientBits4, c.ClientBits6)
	return g
}

// publish completes next with the nodes of all pools and puts it in force. p.mu is held.
func (p *Plane) publish(next *snapshot, pools []*pool) error {
	next.labels = sync.OnceValue(func() map[uint32][]farmLabel { return farmLabels(next.services) })
	old := p.snap.Load()
	next.nodes, next.spare.nodes = append([]*node(nil), old.nodes...), old.spare.nodes
	next.ends = make(map[netip.Addr][]answer)
	for i, n := range next.nodes {
		c := *n
		c.gone = true
		next.nodes[i] = &c
	}
	next.byID = byID(next.nodes)
	usable := make(map[*pool]int32)
	for _, q := range pools {
		for id, st := range q.All() {
			n := next.byID[id]
			if n != nil && n.pool.Pool != q.Pool {
				return fmt.Errorf("%w: node %q and node %q of another pool have one id: give all pools of a Plane the same steering.IDs in their Config",
					ErrInvalid, st.Node.Name, n.name)
			}
			if n == nil {
				n = next.newNode(id)
			}
			n.pool, n.name, n.gone = q, st.Node.Name, false
			n.addr = netip.AddrPortFrom(st.Node.Addr.Addr().Unmap(), st.Node.Addr.Port())
			n.keep = q.Usable(id)
			if st.State == steering.Available || st.State == steering.AtLimit {
				usable[q]++
			}
		}
	}
	if p.inter != nil {
		if err := p.interceptNodes(next); err != nil {
			return err
		}
	}
	for _, q := range pools {
		q.usable.Store(usable[q])
	}
	if next.table != nil {
		for r := range next.table.All() {
			if f := r.Value.Forward; r.Disabled || f != NAT && f != FullNAT {
				continue
			}
			for q := range r.Value.all {
				for _, st := range q.All() {
					a := answer{proto: r.Match.Protocol, ports: r.Match.DstPort}
					if port := st.Node.Addr.Port(); port != 0 {
						a.ports = policy.PortRange{First: port, Last: port}
					}
					next.addEnd(st.Node.Addr.Addr().Unmap(), a)
				}
			}
		}
	}
	for i, n := range next.nodes {
		if i < len(old.nodes) && old.nodes[i].keep && (!n.keep || n.gone) {
			p.lose(n)
		}
		if n.gone {
			n.keep = false
			delete(p.passive.bound, n.no)
			n.seen.syns.Store(nil)
		} else if i < len(old.nodes) && old.nodes[i].gone {
			n.lives++
			p.passive.looked = min(p.passive.looked, i)
		}
	}
	p.pools = pools
	next.nodeAddrs = sync.OnceValue(func() map[netip.Addr]bool { return addrsOf(next.nodes) })
	p.snap.Store(next)
	return nil
}

func (s *snapshot) addEnd(addr netip.Addr, a answer) {
	for _, o := range s.ends[addr] {
		if o == a {
			return
		}
	}
	s.ends[addr] = append(s.ends[addr], a)
}

// answers reports whether a packet comes from where a node answers only within
// sessions.
func (s *snapshot) answers(src netip.Addr, port uint16, proto uint8) bool {
	for _, a := range s.ends[src] {
		if a.proto.Contains(proto) && !a.ports.IsAny() && a.ports.Contains(port) {
			return true
		}
	}
	return false
}
