package healthcheck

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// ErrUnknownPort is returned for a server or port that a [Roster] does not have.
var ErrUnknownPort = errors.New("healthcheck: unknown server or port")

// RosterConfig configures a [Roster]. A nil RosterConfig, and every zero field,
// takes the default.
type RosterConfig struct {
	// OnPort, if not nil, is called when the State or the usability of a port
	// changes, OnServer when the State or the administrative state of a server
	// does, OnAgent when an agent says something new. All calls are made one at a
	// time and in order, without locks; they may call the Roster's methods.
	OnPort   func(PortTransition)
	OnServer func(ServerTransition)
	OnAgent  func(server string, sum AgentReport)
	// OnVirtual, if not nil, is called when a virtual server begins or ceases to have
	// enough usable servers, under the same rules.
	OnVirtual func(VirtualStatus)
	// Monitor configures the Monitor inside. Its OnTransition is called for the
	// transitions of the checks themselves, its OnResult for all results.
	Monitor Config
}

// PortTransition reports that a port changed.
type PortTransition struct {
	From, To State // the states before and after
	// WasUsable is what Status.Usable was before.
	WasUsable bool
	Status    PortStatus
}

// ServerTransition reports that a server changed.
type ServerTransition struct {
	From, To State        // the states before and after
	Status   ServerStatus // the one after
}

// Roster keeps the states of real servers and their ports, as decided by echo
// checks, checks of their own, elements, boolean policies, agents, the data plane
// and the administrator. Make one with [NewRoster]. It must not be copied; its
// methods are safe for concurrent use.
type Roster struct {
	cfg RosterConfig
	m   *Monitor

	mu       sync.Mutex
	policies *Policies
	elements map[string]Check
	servers  map[string]*rserver
	virtuals map[string]*rvirtual
	users    map[string][]*rport // of a check, by its ID
	echo     map[string]*rserver // by ID of echo and agent check
	checks   map[string]seen     // what is known of each check, by ID

	out        []func()
	delivering bool
}

// seen is what a Roster knows of a check.
type seen struct {
	state  State
	change uint64
	err    error // while it is not active
}

// NewRoster returns a Roster without servers.
func NewRoster(cfg *RosterConfig) (*Roster, error) {
	r := &Roster{servers: map[string]*rserver{}, policies: new(Policies)}
	if cfg != nil {
		r.cfg = *cfg
	}
	mc := r.cfg.Monitor
	mc.OnTransition, mc.OnResult = r.transition, r.result
	m, err := NewMonitor(&mc)
	if err != nil {
		return nil, err
	}
	m.watchedOnly = r.cfg.Monitor.OnResult == nil
	r.m = m
	return r, nil
}

// Monitor returns the Monitor inside, for the status and the history of checks.
// Their IDs are "element:NAME", "port:SERVER/PORT", "echo:SERVER" and
// "agent:SERVER". Its Set, Store and Delete must not be used.
func (r *Roster) Monitor() *Monitor { return r.m }

// Set replaces the configuration. Servers and ports whose names stay keep their
// states, as checks do, see [Monitor.Set]. Those that are gone are forgotten
// without a transition. If anything is wrong, Set changes nothing and reports all
// that is wrong, joined.
func (r *Roster) Set(setup Setup) error {
	ps, err := setup.validate()
	if err != nil {
		return err
	}
	r.mu.Lock()
	old := r.servers
	r.policies = ps
	r.servers, r.users, r.echo = map[string]*rserver{}, map[string][]*rport{}, map[string]*rserver{}
	r.elements = make(map[string]Check, len(setup.Elements))
	for _, e := range setup.Elements {
		r.elements[e.ID] = e
	}
	var checks []Check
	for _, conf := range setup.Servers {
		s := old[conf.Name]
		if s == nil {
			s = &rserver{ports: map[string]*rport{}}
		}
		s.conf = conf
		r.servers[conf.Name] = s
		checks = r.enlist(s, checks)
	}
	used := map[string]bool{}
	for id := range r.users {
		used[id] = true
	}
	for name, e := range r.elements {
		if id := elementID(name); used[id] {
			e.ID = id
			checks = append(checks, e)
		}
	}
	if err := r.m.Set(checks...); err != nil {
		r.mu.Unlock()
		return err // cannot happen: validated above
	}
	r.checks = make(map[string]seen, len(checks))
	for i := range checks {
		id := checks[i].ID
		st, _ := r.m.Status(id)
		r.learn(id, st)
	}
	r.enrol(setup.Virtuals)
	r.lookAll()
	for _, v := range r.virtuals {
		r.lookVirtual(v)
	}
	r.mu.Unlock()
	r.deliver()
	return nil
}

// enlist appends the checks of s and its ports.
func (r *Roster) enlist(s *rserver, checks []Check) []Check {
	if s.conf.Echo != nil {
		c := s.conf.echoCheck()
		r.echo[c.ID] = s
		checks = append(checks, c)
	} else {
		s.err, s.silent = nil, false
		if from := s.state; from != Active && from != Graceful {
			s.state = Active // nothing to wait for
			if from != Enabled {
				s.since = time.Now()
				r.tellServer(s, from)
			}
		}
	}
	if s.conf.Agent != nil {
		c := s.conf.agentCheck()
		r.echo[c.ID] = s
		checks = append(checks, c)
	} else {
		s.agent, s.told = AgentReport{}, false
	}
	ports := make(map[string]*rport, len(s.conf.Ports))
	for _, conf := range s.conf.Ports {
		name := conf.name()
		p := s.ports[name]
		if p == nil {
			p = &rport{server: s, check: new(bringUpState), syns: new(SYNCount)}
		}
		p.syns.set(conf.Reassign, conf.DSR)
		p.conf, p.by = conf, conf.decides()
		ports[name] = p
		switch p.by.kind {
		case byElement:
			r.use(elementID(p.by.name), p)
		case byPolicy, byVirtualPolicy:
			for _, e := range r.policies.Elements(p.by.name) {
				r.use(elementID(e), p)
			}
		case byCheck:
			c := conf.Check
			c.ID, c.Target = portID(s.conf.Name, name), p.target()
			if conf.checked != 0 {
				c.Target = netip.AddrPortFrom(c.Target.Addr(), conf.checked)
			}
			c.Prober = &bringUp{conf.L4, conf.L7, conf.FastBringUp, p.check}
			c.HoldDown = 0 // the port sees to it
			r.use(c.ID, p)
			checks = append(checks, c)
		}
	}
	s.ports = ports
	return checks
}

func (r *Roster) use(id string, p *rport) { r.users[id] = append(r.users[id], p) }

// learn takes in the state of a check.
func (r *Roster) learn(id string, st Status) {
	k := seen{state: st.State, change: st.change}
	if st.State != Active {
		k.err = st.Err
	}
	r.checks[id] = k
	for _, p := range r.users[id] {
		if p.by.kind == byCheck {
			p.check.up.Store(st.State.Usable())
		}
	}
}

// transition is the Monitor's OnTransition.
func (r *Roster) transition(t Transition) {
	r.mu.Lock()
	// Set may have seen a later state already.
	if seen, ok := r.checks[t.Check.ID]; ok && t.Status.change > seen.change {
		r.learn(t.Check.ID, t.Status)
		for _, p := range r.users[t.Check.ID] {
			r.look(p)
		}
	}
	r.mu.Unlock()
	r.deliver()
	if f := r.cfg.Monitor.OnTransition; f != nil {
		f(t)
	}
}

// result is the Monitor's OnResult.
func (r *Roster) result(c Check, res Result, st Status) {
	if c.watched {
		r.mu.Lock()
		// Of a target that is no longer the server's it says nothing: Set may have come in between.
		switch s := r.echo[c.ID]; {
		case s == nil:
		case c.ID == agentID(s.conf.Name) && c.Target == s.conf.agentCheck().Target:
			r.agentSaid(s, res)
		case c.ID == echoID(s.conf.Name) && c.Target == s.conf.echoCheck().Target:
			r.stepServer(s, s.echoed(res, st.State))
		}
		r.mu.Unlock()
		r.deliver()
	}
	if f := r.cfg.Monitor.OnResult; f != nil {
		f(c, res, st)
	}
}

func (r *Roster) agentSaid(s *rserver, res Result) {
	if res.Agent == nil || !s.heard(*res.Agent) {
		return
	}
	if f := r.cfg.OnAgent; f != nil {
		name, sum := s.conf.Name, s.agent
		r.out = append(r.out, func() { f(name, sum) })
	}
	r.lookServer(s)
}

// stepServer applies e to s, and looks at its ports.
func (r *Roster) stepServer(s *rserver, e Event) {
	from := s.state
	if !s.step(e, time.Now()) {
		return
	}
	r.tellServer(s, from)
	r.lookServer(s)
}

func (r *Roster) tellServer(s *rserver, from State) {
	if f := r.cfg.OnServer; f != nil {
		t := ServerTransition{from, s.state, s.status()}
		r.out = append(r.out, func() { f(t) })
	}
}

func (r *Roster) lookAll() {
	for _, s := range r.servers {
		r.lookServer(s)
	}
}

// lookServer brings the server in line with what is wanted of it, and looks at
// its ports.
func (r *Roster) lookServer(s *rserver) {
	from, admin, now := s.state, s.effective(), time.Now()
	if admin == Draining {
		s.step(Shutdown, now)
	} else {
		s.step(Enable, now)
	}
	if admin == InService && s.was != InService && s.state.Usable() {
		s.ramp = now // after maintenance
	}
	if s.state != from || admin != s.was {
		s.was = admin
		r.tellServer(s, from)
	}
	for _, p := range s.ports {
		r.look(p)
	}
}

// look updates p, and queues what is to be told.
func (r *Roster) look(p *rport) {
	from, usable := p.state, p.usable
	p.update(r.input(p))
	if p.state == from && p.usable == usable {
		return
	}
	if p.usable != usable {
		for _, v := range p.virtuals {
			v.count(p)
		}
	}
	defer func() { // what brings it about is told first
		for _, v := range p.virtuals {
			r.lookVirtual(v)
		}
	}()
	if f := r.cfg.OnPort; f != nil {
		t := PortTransition{from, p.state, usable, p.status()}
		r.out = append(r.out, func() { f(t) })
	}
}

// input gathers what p depends on.
func (r *Roster) input(p *rport) input {
	in := input{now: time.Now()}
	one := func(id string) {
		k := r.checks[id]
		in.truth, in.suspect, in.err = k.state.Truth(), k.state == Suspect, k.err
	}
	switch p.by.kind {
	case byNothing:
		in.truth = IsUp
	case byElement:
		one(elementID(p.by.name))
	case byCheck:
		one(portID(p.server.conf.Name, p.conf.name()))
	default:
		x, _ := r.policies.Explain(p.by.name, r.truth)
		in.truth = x.Truth
		if x.Truth != IsUp {
			in.err = errors.New(x.String())
		}
	}
	return in
}

func (r *Roster) truth(element string) Truth { return r.checks[elementID(element)].state.Truth() }

// deliver calls the user, one goroutine at a time.
func (r *Roster) deliver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.delivering {
		return
	}
	r.delivering = true
	defer func() { r.delivering = false }()
	for len(r.out) > 0 {
		batch := r.out
		r.out = nil
		r.tell(batch)
	}
}

// tell calls the user. The lock is held again after it, also when that panics.
func (r *Roster) tell(batch []func()) {
	r.mu.Unlock()
	defer r.mu.Lock()
	for _, f := range batch {
		f()
	}
}

// tick is how often a Roster looks for what only time brings about.
const tick = 500 * time.Millisecond

// Run probes until ctx is done, and returns its cause. See [Monitor.Run].
func (r *Roster) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- r.m.Run(ctx) }()
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-t.C:
			r.Tick()
		}
	}
}

// Tick looks for what only time brings about: the end of a hold-down, a server
// gone silent. Run calls it twice a second; who does not use Run does so with
// [Monitor.Step].
func (r *Roster) Tick() {
	r.mu.Lock()
	now := time.Now()
	for _, s := range r.servers {
		r.listen(s)
		for _, p := range s.ports {
			if !p.passive.IsZero() && r.passedSince(p) {
				p.passive = time.Time{}
				r.look(p)
			} else if h := p.holdUntil(); !h.IsZero() && !now.Before(h) {
				r.look(p)
			}
		}
	}
	r.mu.Unlock()
	r.deliver()
}

// listen suspects s if it is silent while packets are sent to it, and pings it.
func (r *Roster) listen(s *rserver) {
	limit := s.conf.Silence
	if limit == 0 {
		limit = DefaultSilence
	}
	if limit < 0 || s.conf.Echo == nil {
		return
	}
	gap := s.traffic.silent()
	switch {
	case gap >= limit && s.state == Active:
		r.stepServer(s, Silence)
		s.silent = s.state == Suspect
		_ = r.m.Trigger(echoID(s.conf.Name)) // it exists
	case s.silent && gap == 0:
		r.stepServer(s, Heard)
	}
}

// passedSince reports whether every check that p depends on has been made anew,
// with a result, since the passive check failed p. Whether they passed is for update to see.
func (r *Roster) passedSince(p *rport) bool {
	for _, id := range r.idsOf(p) {
		st, ok := r.m.Status(id)
		if ok && st.concluded.Before(p.passive) {
			return false
		}
	}
	return true
}

func (r *Roster) idsOf(p *rport) (ids []string) {
	switch p.by.kind {
	case byElement:
		ids = append(ids, elementID(p.by.name))
	case byCheck:
		ids = append(ids, portID(p.server.conf.Name, p.conf.name()))
	case byPolicy, byVirtualPolicy:
		for _, e := range r.policies.Elements(p.by.name) {
			ids = append(ids, elementID(e))
		}
	}
	return ids
}
