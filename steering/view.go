package steering

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// A view is everything a pick reads: the nodes of a pool and what prevents them,
// compiled. It never changes.
type view struct {
	metric Metric
	all    []entry
	index  idTable
	names  map[string]int
	plans  [2]plan // pass-through sessions, optimised ones
	sticky bool    // Config.StickyOverLimit
}

// An entry is a configured node.
type entry struct {
	h     *handle
	id    NodeID
	addr  netip.AddrPort
	limit int64
	state Availability // for pass-through sessions
	keep  bool         // may serve the sessions it has
	old   bool         // may serve another session of a client it has, limit aside
	level Level
	warm  int
	// Where the node competes, for the matches of LeastConns.
	g  [2]*group
	at [2]int32
}

// A plan is the groups in the order they are asked.
type plan struct {
	groups []*group
	err    error  // when no group has a node
	why    []Step // nodes that do not compete, for explanations
}

// idTable finds a node by id: open addressing, at most half full.
type idTable struct {
	slots []idSlot
	shift uint8
}

type idSlot struct {
	id NodeID
	at int32
}

func newIDTable(all []entry) idTable {
	bits := 1
	for 1<<bits < 2*len(all) {
		bits++
	}
	t := idTable{make([]idSlot, 1<<bits), uint8(32 - bits)}
	for i := range all {
		s := uint32(all[i].id) * 0x9E3779B1 >> t.shift
		for t.slots[s].id != 0 {
			s = (s + 1) & uint32(len(t.slots)-1)
		}
		t.slots[s] = idSlot{all[i].id, int32(i)}
	}
	return t
}

func (v *view) entry(id NodeID) *entry {
	if id == 0 {
		return nil
	}
	t := &v.index
	s := uint32(id) * 0x9E3779B1 >> t.shift
	for {
		slot := t.slots[s]
		if slot.id == id {
			return &v.all[slot.at]
		}
		if slot.id == 0 {
			return nil
		}
		s = (s + 1) & uint32(len(t.slots)-1)
	}
}

// pick asks the groups in order.
func (v *view) pick(k *Key, tr *tracer) (NodeID, error) {
	pl := &v.plans[0]
	if k.Optimized {
		pl = &v.plans[1]
	}
	if tr != nil {
		tr.e.Steps = append(tr.e.Steps, pl.why...)
	}
	for _, g := range pl.groups {
		if tr != nil {
			tr.enter(g)
		}
		if i := g.pick(k, tr); i >= 0 {
			if tr != nil {
				tr.chosen(g, i)
			}
			return g.nodes[i].h.id, nil
		}
	}
	if len(pl.groups) > 0 {
		return 0, ErrOverload
	}
	return 0, pl.err
}

// matches plays the matches of a node again after its count changed.
func (e *entry) matches() {
	for i, g := range e.g {
		if g != nil && (i == 0 || g != e.g[0]) {
			g.changed(int(e.at[i]))
		}
	}
}

// build compiles a view. Pool.mu is held.
func (p *Pool) build(now time.Time) *view {
	v := &view{
		metric: p.cfg.Metric, all: make([]entry, len(p.nodes)), names: make(map[string]int, len(p.nodes)),
		sticky: p.cfg.StickyOverLimit,
	}
	panicking := p.panicking()
	for i, h := range p.nodes {
		e := &v.all[i]
		*e = entry{
			h: h, id: h.id, addr: h.node.Addr, limit: h.limit(), level: h.level,
			warm: h.warmth(now, p.warmUp(h)),
		}
		up := h.up || panicking
		recovering := h.up && !h.recovered.IsZero() && !panicking
		admin := h.admin()
		e.keep = up && admin != Disabled
		e.old = up && !recovering && (admin == Enabled || admin == SessionsShutdown)
		switch {
		case admin == Disabled:
			e.state = AdminDisabled
		case admin == Draining:
			e.state = AdminDraining
		case admin == SessionsShutdown:
			e.state = AdminSessionsShutdown
		case h.weight() == 0:
			e.state = WeightIsZero
		case !up:
			e.state = DownNow
		case recovering:
			e.state = Recovering
		case h.level == Severe:
			e.state = UnderSeverePressure
		}
		if h.applied == 0 {
			h.applied = h.average
		}
		v.names[h.node.Name] = i
	}
	v.index = newIDTable(v.all)
	p.plan(v)
	return v
}

// plan decides which groups compete in which order.
func (p *Pool) plan(v *view) {
	member := func(e *entry) bool { return !e.h.node.Backup }
	backup := func(e *entry) bool { return e.h.node.Backup }
	calm := func(e *entry) bool { return e.state == Available }
	willing := func(e *entry) bool { return e.state == Available || e.state == UnderSeverePressure }

	members := p.group(v, "members", member, calm)
	spares := p.group(v, "backups", backup, calm)
	anyMember := slices.ContainsFunc(v.all, func(e entry) bool { return member(&e) && willing(&e) })
	anySpare := slices.ContainsFunc(v.all, func(e entry) bool { return backup(&e) && willing(&e) })
	// Without pre-emption the backups keep what they took over.
	p.spares = anySpare && (!anyMember || p.spares && p.cfg.NoPreempt)

	pass := &v.plans[0]
	order := func(groups ...*group) (out []*group) {
		for _, g := range groups {
			if g != nil {
				out = append(out, g)
			}
		}
		return out
	}
	switch {
	case p.spares:
		pass.groups = order(spares, members)
	case p.cfg.Backup == BackupWhenDown:
		// Members that are full or pressed are not down.
		pass.groups = order(members)
	default:
		pass.groups = order(members, spares)
	}
	pass.err = reason(v.all)
	pass.why = notCompeting(v.all, pass.groups)

	opt := &v.plans[1]
	if !slices.ContainsFunc(v.all, func(e entry) bool { return e.level != Normal }) {
		*opt = *pass
	} else {
		tier := func(name string, who func(*entry) bool) (out []*group) {
			for _, l := range []Level{Normal, High, Severe} {
				groupName := name
				if l != Normal {
					groupName += " under " + l.String() + " pressure"
				}
				out = append(out, p.group(v, groupName, who, func(e *entry) bool { return willing(e) && e.level == l }))
			}
			return order(out...)
		}
		ms, ss := tier("members", member), tier("backups", backup)
		switch {
		case p.spares:
			opt.groups = slices.Concat(ss, ms)
		case p.cfg.Backup == BackupWhenDown:
			opt.groups = ms
		default:
			opt.groups = slices.Concat(ms, ss)
		}
		opt.err = reason(v.all)
		opt.why = notCompeting(v.all, opt.groups)
	}
	for k := range v.plans {
		for _, g := range v.plans[k].groups {
			for i := range g.nodes {
				e := v.entry(g.nodes[i].h.id)
				e.g[k], e.at[k] = g, int32(i)
			}
		}
	}
}

// reason says why no node competes.
func reason(all []entry) error {
	for i := range all {
		if all[i].state == UnderSeverePressure {
			return ErrPressure
		}
	}
	return ErrNoNode
}

func notCompeting(all []entry, groups []*group) (steps []Step) {
	in := make(map[NodeID]bool, len(all))
	for _, g := range groups {
		for i := range g.nodes {
			in[g.nodes[i].h.id] = true
		}
	}
	for i := range all {
		e := &all[i]
		if in[e.id] {
			continue
		}
		name := "members"
		if e.h.node.Backup {
			name = "backups"
		}
		steps = append(steps, Step{Node: e.h.node.Name, ID: e.id, Group: name, State: e.state, Sessions: e.h.sessions()})
	}
	return steps
}

// group compiles the nodes that are in the set who and may compete, or returns nil.
func (p *Pool) group(v *view, name string, who, compete func(*entry) bool) *group {
	var set []*entry // configured, weight zero aside
	for i := range v.all {
		if e := &v.all[i]; who(e) && e.h.weight() > 0 {
			set = append(set, e)
		}
	}
	m := p.cfg.Metric
	if m.hashed() {
		// Hashes must not depend on the order of the configuration.
		slices.SortFunc(set, func(a, b *entry) int { return cmp.Compare(a.h.node.Name, b.h.node.Name) })
	}
	g := &group{name: name, metric: m, seed: p.cfg.Seed, bits: p.cfg.ClientBits, turn: &p.turns[0], conf: make([]int16, len(set))}
	if len(set) > 0 && set[0].h.node.Backup {
		g.turn = &p.turns[1]
	}
	parts := make([]uint8, len(set))
	for i, e := range set {
		g.conf[i] = -1
		if !compete(e) {
			continue
		}
		c := candidate{
			h: e.h, limit: e.limit, name: e.h.node.Name,
			part: uint8(max(e.level.Factor2(), 1) * e.warm * FullPart / (2 * warmSteps)),
		}
		parts[i] = c.part
		c.tie = hashString(c.name, p.cfg.Seed)
		c.key = c.tie
		if e.addr.IsValid() {
			c.key = mix(HashAddr(e.addr.Addr(), p.cfg.Seed) + uint64(e.addr.Port()))
		}
		g.conf[i] = int16(len(g.nodes))
		g.nodes = append(g.nodes, c)
	}
	if len(g.nodes) == 0 {
		return nil
	}
	p.compile(g, set, parts)
	return g
}

func (g *group) share(i int) float64 {
	if g.sum == 0 {
		return 0
	}
	return float64(g.nodes[i].weight) / float64(g.sum)
}
