package dataplane

import (
	"iter"
	"slices"
	"time"

	"github.com/lbprim/lbprim/steering"
)

// Nodes, services and ways have numbers, by which records name them and counters are found. A number outlives what has it, since records of
// sessions do; once there is none, another one gets it. So what a Plane keeps of them grows with how many there are at a time, and not with how many
// there ever were: where they come and go with every release of what they serve, that is thousands in a week.
//
// What a number stands for never changes while anybody may go by it. Who does so by a snapshot is a batch, or has entered Plane.readers, or
// has Plane.numbers for reading. Between two owners a number is nobody's until all who knew the former one have ended:
//
//	gone        no configuration in force has it: nothing new is begun with it
//	named       by a session, a held connection, an association, a connection that was lost, a datagram in fragments: it stays
//	nobody's    in the snapshot in force, while batches under way may know it still
//	spare       no batch knows the former owner

const (
	// leastGone is how many of one kind that are gone are worth a look at all that may name them: at least that many, and as many as are left.
	leastGone = 64
	// lookPause is how long after a look the next one may be: sessions of nodes that are gone are removed step by step.
	lookPause = 30 * time.Second
	// lookStep is at how many records one look is taken while nobody may reuse any.
	lookStep = 1 << 16
	// clockSkew is by how much the clock of a batch may be behind that of Step: what has aged less long ago may be used again.
	clockSkew = time.Minute
)

// spareNumbers are those that can be given to others.
type spareNumbers struct {
	nodes, services []uint32
	ways            []uint16
}

// take returns a spare number, if there is one. The list itself stays as other snapshots have it.
func take[T any](spare *[]T) (no T, ok bool) {
	last := len(*spare) - 1
	if last < 0 {
		return no, false
	}
	no = (*spare)[last]
	*spare = (*spare)[:last]
	return no, true
}

// newNode makes a node with a number, and gives it a place in the snapshot that is being made.
func (s *snapshot) newNode(id steering.NodeID) *node {
	n := &node{id: id, seen: new(witness)}
	if no, ok := take(&s.spare.nodes); ok {
		n.no = no
		s.nodes[no] = n
	} else {
		n.no = uint32(len(s.nodes))
		s.nodes = append(s.nodes, n)
	}
	s.byID[id] = n
	return n
}

// noNode takes the place of a node whose number can be given to another one.
func noNode(no uint32) *node { return &node{no: no, pool: new(pool), seen: new(witness), gone: true} }

// newService returns a number for a service, which is to be put in its place in the snapshot that is being made. again says that another one
// had the number.
func (s *snapshot) newService() (no uint32, again bool) {
	if no, ok := take(&s.spare.services); ok {
		return no, true
	}
	s.services = append(s.services, nil)
	return uint32(len(s.services) - 1), false
}

// named iterates over the services that have a number.
func (s *snapshot) named() iter.Seq[*service] {
	return func(yield func(*service) bool) {
		for _, svc := range s.services {
			if svc != nil && !yield(svc) {
				return
			}
		}
	}
}

// serviceName returns the name of a service by its number.
func (s *snapshot) serviceName(no uint32) string {
	if svc := s.service(no); svc != nil {
		return svc.conf.Name
	}
	return ""
}

// byID finds nodes by their identity.
func byID(nodes []*node) map[steering.NodeID]*node {
	m := make(map[steering.NodeID]*node, len(nodes))
	for _, n := range nodes {
		if n.id != 0 {
			m[n.id] = n
		}
	}
	return m
}

// departed are nodes, services and ways that are gone, by number.
type departed struct {
	nodes    map[uint32]*node
	services map[uint32]bool
	ways     map[uint16]bool
}

func (d *departed) empty() bool { return len(d.nodes)+len(d.services)+len(d.ways) == 0 }

// departed returns what is gone, and whether that is worth a look.
func (s *snapshot) departed() (d departed, many bool) {
	d = departed{make(map[uint32]*node), make(map[uint32]bool), make(map[uint16]bool)}
	for _, n := range s.nodes {
		if n.gone && n.id != 0 {
			d.nodes[n.no] = n
		}
	}
	inForce := make([]bool, len(s.ways))
	for svc := range s.named() {
		if svc.live {
			inForce[svc.way] = true
		} else {
			d.services[svc.no] = true
		}
	}
	for no, y := range s.ways {
		if y != nil && !inForce[no] {
			d.ways[uint16(no)] = true
		}
	}
	enough := func(gone, numbers, spare int) bool { return gone >= leastGone && 2*gone >= numbers-spare }
	return d, enough(len(d.nodes), len(s.nodes), len(s.spare.nodes)) || enough(len(d.services), len(s.services), len(s.spare.services)) ||
		enough(len(d.ways), len(s.ways), len(s.spare.ways))
}

// reuseNumbers finds the numbers of what is gone and that nothing names any more, and has them given to others.
func (p *Plane) reuseNumbers(now time.Time) {
	if !p.numbers.TryLock() {
		return // a state is being saved, or taken over
	}
	defer p.numbers.Unlock()
	p.mu.Lock()
	s, applied := p.snap.Load(), p.applied
	p.mu.Unlock()
	gone, many := s.departed()
	if !many || !p.looked.IsZero() && now.Sub(p.looked) < lookPause {
		return
	}
	p.looked = now
	p.quiesce() // batches know from now on that all this is gone, and begin nothing with it
	p.keepNamed(now, s, &gone)
	if gone.empty() {
		return
	}
	free := p.vacate(&gone, applied)
	p.quiesce() // whoever knew the former owners has ended
	p.each(func(w *workerStats) {
		for _, no := range free.nodes {
			if int(no) < len(w.nodes) {
				w.nodes[no] = Traffic{}
			}
		}
		for _, no := range free.services {
			if int(no) < len(w.services) {
				w.services[no] = Traffic{}
			}
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, no := range free.nodes {
		if int(no) < len(p.told) {
			p.told[no] = 0
		}
	}
	next := *p.snap.Load()
	next.spare.nodes = slices.Concat(next.spare.nodes, free.nodes)
	next.spare.services = slices.Concat(next.spare.services, free.services)
	next.spare.ways = slices.Concat(next.spare.ways, free.ways)
	p.snap.Store(&next)
}

// keepNamed takes out of what is gone all that something names. What names it may change meanwhile, but only from one of these to a later
// one: a held connection becomes a session, and of a session an association and its loss are remembered.
func (p *Plane) keepNamed(now time.Time, s *snapshot, gone *departed) {
	p.holds.each(func(c *held) {
		delete(gone.services, c.svc.no)
		delete(gone.ways, c.svc.way)
		if c.node != nil {
			delete(gone.nodes, c.node.no)
		}
		if c.kept != nil {
			for i := range c.kept.parked {
				delete(gone.nodes, c.kept.parked[i].node.no)
			}
		}
	})
	p.slab.each(&p.readers, func(rec *record) {
		delete(gone.nodes, rec.nodeNo)
		delete(gone.services, rec.service)
		delete(gone.ways, rec.way)
	})
	p.quiesce()    // batches may still deal with sessions that have ended since
	p.keepOthers() // which keep associations alive once more
	for _, b := range p.assocs().AllAt(now.Add(-clockSkew)) {
		delete(gone.services, b.service)
	}
	if t := p.lost.table.Load(); t != nil {
		for _, no := range t.AllAt(now.Add(-clockSkew)) {
			delete(gone.services, no)
		}
	}
	p.fragments.each(func(c *course) { delete(gone.services, c.service) })
	p.asks.each(func(c *course) { delete(gone.services, c.service) })
	for svc := range s.named() { // a held connection whose service is gone still gets a node, and by the way that the service had last
		if !svc.live && !gone.services[svc.no] {
			delete(gone.ways, svc.way)
		}
	}
}

// vacate makes the numbers of what is gone nobody's, unless it has come back since, or may have.
func (p *Plane) vacate(gone *departed, applied uint64) (free spareNumbers) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := *p.snap.Load()
	next.nodes, next.services, next.ways = slices.Clone(next.nodes), slices.Clone(next.services), slices.Clone(next.ways)
	for no, was := range gone.nodes {
		// A pool that is used again brings its nodes back, and sessions of them may have begun since.
		if n := next.nodes[no]; n.gone && n.lives == was.lives {
			next.nodes[no] = noNode(no)
			free.nodes = append(free.nodes, no)
		}
	}
	next.byID = byID(next.nodes)
	if p.applied == applied {
		for no := range gone.services {
			delete(p.serviceNo, next.services[no].conf.Name)
			next.services[no] = nil
			free.services = append(free.services, no)
		}
		for no := range gone.ways {
			next.ways[no] = nil
			free.ways = append(free.ways, no)
		}
		next.setNarrow()
	}
	p.snap.Store(&next)
	return free
}

// numberOf returns the number of the service with a name, which gets one if it has none. again says that another one had it.
func (s *snapshot) numberOf(name string, numbers map[string]uint32) (no uint32, again bool) {
	if no, ok := numbers[name]; ok {
		return no, s.services[no].again
	}
	no, again = s.newService()
	numbers[name] = no
	return no, again
}
