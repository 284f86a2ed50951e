package intercept

import (
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/steering"
)

// A rank orders the targets of a rule for one connection.
type rank struct {
	level    steering.Level
	over     bool // fair peering: another peer would exceed the cap
	affinity int  // connections of this peer
	last     bool // served this peer last, which has no connection now
	fair     bool
	peers    int
	sessions int64
	capacity int64
	name     string
}

// before says whether r is the better choice: less pressure, then the peer's own
// node, then below its cap, then the node it had last, then the fewest peers (with fair peering) and the fewest
// connections for the capacity.
func (r *rank) before(o *rank) bool {
	switch {
	case r.level != o.level:
		return r.level < o.level
	case r.affinity != o.affinity: // nodes that serve the peer are never over
		return r.affinity > o.affinity
	case r.over != o.over:
		return !r.over
	case r.last != o.last:
		return r.last
	}
	if r.fair {
		if x, y := int64(r.peers)*o.capacity, int64(o.peers)*r.capacity; x != y {
			return x < y
		}
	}
	if x, y := r.sessions*o.capacity, o.sessions*r.capacity; x != y {
		return x < y
	}
	if r.capacity != o.capacity {
		return r.capacity > o.capacity
	}
	return r.name < o.name
}

func (r rank) String() string {
	s := fmt.Sprintf("%s pressure, %d connections of this peer, %d sessions of %d", r.level, r.affinity, r.sessions, r.capacity)
	if r.last {
		s += ", served it last"
	}
	if r.fair {
		s += fmt.Sprintf(", %d peers", r.peers)
		if r.over {
			s += " (at its cap)"
		}
	}
	return s
}

func (e *Engine) rank(n *node, by map[steering.NodeID]int, fair bool, caps *capper) rank {
	sessions, _ := e.pool.Sessions(n.id)
	r := rank{
		level: n.level, affinity: by[n.id], fair: fair, peers: e.served[n.id], sessions: sessions,
		capacity: int64(n.capacity), name: n.name,
	}
	// A peer the node serves already is no further peer.
	r.over = fair && r.affinity == 0 && caps.exceeds(n.capacity, r.peers+1)
	return r
}

// A capper knows how many remote peers a node may serve.
type capper struct{ peers, capacity, slack int64 }

// exceeds says whether n peers are more than ceil(peers × capacity ÷ total) × (1 + slack).
func (c *capper) exceeds(capacity, n int) bool {
	if c.capacity == 0 {
		return false
	}
	share := (c.peers*int64(capacity) + c.capacity - 1) / c.capacity
	return int64(n)*100 > share*(100+c.slack)
}

// caps counts peers and capacity: of all usable nodes with fair peering v2, else of the
// rule's targets. by is the connections of the peer in question, which counts too.
func (e *Engine) caps(v *view, rule int, by map[steering.NodeID]int) capper {
	c := capper{slack: int64(v.slack)}
	if v.fairV2 {
		c.peers = int64(len(e.peers))
		for i := range v.nodes {
			if v.nodes[i].usable {
				c.capacity += int64(v.nodes[i].capacity)
			}
		}
		if len(by) == 0 {
			c.peers++
		}
		return c
	}
	set := v.sets[rule]
	c.peers = int64(set.peers)
	for _, i := range v.targets[rule] {
		if v.nodes[i].usable {
			c.capacity += int64(v.nodes[i].capacity)
		}
	}
	if !set.serves(by) {
		c.peers++
	}
	return c
}

// A peerSet counts the remote peers the targets of one rule serve.
type peerSet struct {
	in    map[steering.NodeID]bool
	peers int
}

// serves says whether a peer with connections by node is among them.
func (s *peerSet) serves(by map[steering.NodeID]int) bool {
	for id := range by {
		if s.in[id] {
			return true
		}
	}
	return false
}

// resetSets makes the sets of v's rules with fair peering. A decision that read the view
// before goes by its sets, which then stand still. e.peersMu is held.
func (e *Engine) resetSets(v *view) {
	v.sets = make(map[int]*peerSet)
	for i, r := range v.rules {
		if !r.FairPeering || v.fairV2 {
			continue
		}
		s := &peerSet{in: map[steering.NodeID]bool{}}
		for _, n := range v.targets[i] {
			s.in[v.nodes[n].id] = true
		}
		for _, by := range e.peers {
			if s.serves(by) {
				s.peers++
			}
		}
		v.sets[i] = s
	}
	e.sets = v.sets
}

// count notes a connection of a peer on a node, or with n = -1 its end. e.peersMu is
// held.
func (e *Engine) count(peer netip.Addr, id steering.NodeID, n int) {
	by := e.peers[peer]
	if by == nil {
		if n < 0 {
			return
		}
		by = map[steering.NodeID]int{}
		e.peers[peer] = by
	}
	was := by[id]
	if was+n == 0 || was == 0 {
		if was == 0 && n < 0 {
			return
		}
		delete(by, id)
		for _, s := range e.sets {
			if s.in[id] && !s.serves(by) {
				s.peers += n
			}
		}
		e.served[id] += n
		if e.served[id] == 0 {
			delete(e.served, id)
		}
	}
	if was+n > 0 {
		by[id] = was + n
	} else if len(by) == 0 {
		delete(e.peers, peer)
		e.last.Add(peer, id)
	}
}
