package dataplane

import (
	"slices"
	"time"

	"github.com/lbprim/lbprim/steering"
)

// Nodes have numbers, by which records name them and counters are found. A number outlives its node, since records of its sessions do; once there is none,
// another node gets it. So what a Plane keeps of nodes grows with how many there are at a time, and not with how many there ever were: where
// they come and go with every release of what they serve, that is thousands in a week.

const (
	// leastGone is how many nodes that are gone are worth a look at all records: at least that many, and as many as are left.
	leastGone = 64
	// lookPause is how long after a look the next one may be: sessions of nodes that are gone are removed step by step.
	lookPause = 30 * time.Second
	// lookStep is at how many records one look is taken while nobody may reuse any.
	lookStep = 1 << 16
)

// newNode makes a node with a number, and gives it a place in the snapshot that is being made.
func (s *snapshot) newNode(id steering.NodeID) *node {
	n := &node{id: id, seen: new(witness)}
	if last := len(s.spare) - 1; last >= 0 {
		n.no, s.spare = s.spare[last], s.spare[:last]
		s.nodes[n.no] = n
	} else {
		n.no = uint32(len(s.nodes))
		s.nodes = append(s.nodes, n)
	}
	s.byID[id] = n
	return n
}

// noNode takes the place of a node whose number can be given to another one.
func noNode(no uint32) *node { return &node{no: no, pool: new(pool), seen: new(witness), gone: true} }

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

// spareNumbers finds the numbers of nodes that are gone and that no record names any more.
func (p *Plane) spareNumbers(now time.Time) {
	s := p.snap.Load()
	gone := make(map[uint32]*node)
	for _, n := range s.nodes {
		if n.gone && n.id != 0 {
			gone[n.no] = n
		}
	}
	if n := len(s.nodes) - len(s.spare); len(gone) < leastGone || 2*len(gone) < n || !p.looked.IsZero() && now.Sub(p.looked) < lookPause {
		return
	}
	p.looked = now
	p.quiesce() // batches know from now on that these nodes are gone, and begin no session with them
	p.slab.nodes(&p.readers, func(no uint32) { delete(gone, no) })
	if len(gone) == 0 {
		return
	}
	p.each(func(w *workerStats) {
		for no := range gone {
			if int(no) < len(w.nodes) {
				w.nodes[no] = Traffic{}
			}
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	next := *p.snap.Load()
	next.nodes, next.spare = slices.Clone(next.nodes), slices.Clone(next.spare)
	for no, was := range gone {
		if int(no) < len(p.told) {
			p.told[no] = 0
		}
		// A pool that is used again brings its nodes back, and sessions of them may have begun since.
		if n := next.nodes[no]; n.gone && n.lives == was.lives {
			next.nodes[no] = noNode(no)
			next.spare = append(next.spare, no)
		}
	}
	next.byID = byID(next.nodes)
	p.snap.Store(&next)
}
