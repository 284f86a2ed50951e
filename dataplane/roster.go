package dataplane

import (
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

// roster is what a healthcheck.Roster said of nodes. Plane.mu guards it.
type roster struct {
	start  healthcheck.SlowStart
	nodes  map[string]*advised
	agents map[string]healthcheck.AgentReport // by server
}

// advised is one node by its name in the pools.
type advised struct {
	server string
	admin  steering.AdminState
	from   time.Time // of the slow start, zero when it is over
}

// ApplyRoster returns functions for OnPort and OnAgent of healthcheck.RosterConfig. A port decides about the nodes named
// "server/port", or, where no pool has one of that name, about the node that has the server's name and the port's number (or none). A
// port that keeps its sessions and takes no new ones drains its node; one that does neither has lost it. What an agent says of weight and
// sessions holds for all nodes of its server. A node that comes back is given work by the rules of start: [Plane.Step] moves them on.
//
// With [Plane.FeedRoster], the Plane in turn tells the Roster what it sees.
//
// Only one Roster may be applied to a Plane; the last one's slow start holds.
func (p *Plane) ApplyRoster(start healthcheck.SlowStart) (onPort func(healthcheck.PortTransition), onAgent func(string, healthcheck.AgentReport), err error) {
	if err := start.Validate(); err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roster.start = start
	if p.roster.nodes == nil {
		p.roster.nodes, p.roster.agents = make(map[string]*advised), make(map[string]healthcheck.AgentReport)
	}
	return p.portChanged, p.agentSaid, nil
}

func (p *Plane) portChanged(t healthcheck.PortTransition) {
	st := &t.Status
	p.mu.Lock()
	defer p.mu.Unlock()
	name, ids := p.named(st.Server, st.Port, st.Target.Port())
	p.bind(st.Server, st.Port, ids)
	if len(ids) == 0 {
		p.cfg.Logger.Warn("health of an unknown node", "server", st.Server, "port", st.Port, "state", st.State)
		return
	}
	p.obey(st, name, ids)
	p.logRefresh()
}

// obey has nodes be what their port is. p.mu is held.
func (p *Plane) obey(st *healthcheck.PortStatus, name string, ids map[steering.NodeID]*pool) {
	up := st.Usable || st.KeepsSessions
	a := p.roster.nodes[name]
	if a == nil {
		a = &advised{server: st.Server}
		p.roster.nodes[name] = a
	}
	a.from, a.admin = st.RampFrom, steering.Enabled
	if up && !st.Usable {
		a.admin = steering.Draining
	}
	settled := st.State != healthcheck.Enabled && st.State != healthcheck.Testing
	now := time.Now()
	for id, q := range ids {
		p.advise(now, a, q, id)
		if up || settled || st.Admin == healthcheck.OutOfService {
			q.SetUp(id, up)
		}
	}
}

func (p *Plane) agentSaid(server string, r healthcheck.AgentReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roster.agents[server] = r
	now := time.Now()
	for name, a := range p.roster.nodes {
		if a.server == server {
			p.adviseAll(now, name, a)
		}
	}
	p.logRefresh()
}

// named finds the nodes that a port decides about, and what they are called.
func (p *Plane) named(server, port string, number uint16) (name string, ids map[steering.NodeID]*pool) {
	name = server + "/" + port
	if ids = p.ids(name, 0); len(ids) == 0 {
		name = server
		ids = p.ids(name, number)
	}
	return name, ids
}

// ids finds the nodes of a name, and where port is not 0, of that port or of none.
func (p *Plane) ids(name string, port uint16) map[steering.NodeID]*pool {
	found := make(map[steering.NodeID]*pool)
	for _, q := range p.pools {
		id, ok := q.ID(name)
		if !ok {
			continue
		}
		if a, ok := q.Addr(id); port == 0 || ok && (a.Port() == port || a.Port() == 0) {
			found[id] = q
		}
	}
	return found
}

func (p *Plane) adviseAll(now time.Time, name string, a *advised) {
	for _, q := range p.pools {
		if id, ok := q.ID(name); ok {
			p.advise(now, a, q, id)
		}
	}
}

// advise sums up for one node what its port, its agent and its slow start say.
func (p *Plane) advise(now time.Time, a *advised, q *pool, id steering.NodeID) {
	adv := steering.Advice{Admin: a.admin}
	agent := p.roster.agents[a.server]
	limit := -1
	if st, ok := q.Status(id); ok && st.Node.MaxSessions > 0 {
		limit = st.Node.MaxSessions
	}
	if agent.HasMaxConn && (limit < 0 || agent.MaxConn < limit) {
		limit = agent.MaxConn
	}
	percent := 100
	if agent.HasWeight {
		percent = agent.Weight
	}
	if !a.from.IsZero() {
		since := now.Sub(a.from)
		percent = p.roster.start.Weight(since, percent, limit)
		limit = p.roster.start.Sessions(since, limit)
		if p.roster.start.Done(since) {
			a.from = time.Time{}
		}
	}
	switch {
	case limit > 0:
		adv.MaxSessions = limit
	case limit == 0 && adv.Admin == steering.Enabled:
		adv.Admin = steering.Draining // no session at all
	}
	switch {
	case percent <= 0:
		adv.Percent = steering.ZeroWeight
	case percent != 100:
		adv.Percent = min(percent, steering.MostPercent)
	}
	if err := q.Advise(id, adv); err != nil {
		p.cfg.Logger.Error("advice", "node", id, "err", err)
	}
}

// stepRoster moves the slow starts on. p.mu is held.
func (p *Plane) stepRoster(now time.Time) {
	changed := false
	for name, a := range p.roster.nodes {
		if !a.from.IsZero() {
			p.adviseAll(now, name, a)
			if p.roster.start.Done(now.Sub(a.from)) {
				a.from = time.Time{} // also of a node that is not there
			}
			changed = true
		}
	}
	if changed {
		p.logRefresh()
	}
}

// logRefresh looks at all pools anew. p.mu is held.
func (p *Plane) logRefresh() {
	if err := p.refresh(); err != nil {
		p.cfg.Logger.Error("pools", "err", err)
	}
}
