package steering

import "sync/atomic"

// A group is the nodes that compete for a session, compiled for one metric. It is
// immutable but for the tournament of LeastConns.
type group struct {
	name   string
	metric Metric
	seed   uint64
	bits   int     // Config.ClientBits
	turn   *cursor // lasting position of the cyclic metrics
	nodes  []candidate
	first  int // where LeastConns starts when all are level

	seq   []int16 // turns, slots or buckets: indices of nodes
	cum   []uint64
	div   divider
	start uint64

	tree  *leastTree
	warm  []int // LeastConns: nodes in their slow start, kept out of the tree
	vstep uint64

	table *MaglevTable
	conf  []int16 // configured nodes → nodes, -1 where not a candidate

	sum uint64 // of all weights, for shares
}

// A candidate is a node as one group sees it.
type candidate struct {
	h      *handle
	limit  int64
	weight uint64 // reduced; 1 where the metric has none
	step   uint64 // LeastConns: virtual time of one turn
	rstep  uint64 // LeastConns: the same, in a slow start
	key    uint64 // of the node's address, or name, for hashed metrics
	tie    uint64 // of the node's name
	part   uint8  // of FullPart: pressure and slow start
	name   string
}

// A cursor outlives the views, so that a new one goes on where the old one was.
type cursor struct {
	next  atomic.Uint64 // cyclic metrics: number of picks so far
	floor atomic.Uint64 // LeastConns: virtual time of the last pick
	clock atomic.Uint64 // LeastConns: virtual time of nodes in their slow start
	_     [64 - 3*8]byte
}

// Units of virtual time. Nodes in their slow start have a finer one: it is divided by the
// sum of all weights.
const (
	vtUnit  = 1 << 24
	rvtUnit = 1 << 40
)

// pick chooses and counts; with a trace it only says what it would do. It returns -1
// when no node has room.
func (g *group) pick(k *Key, tr *tracer) int {
	switch g.metric {
	case LeastConns:
		return g.pickLeast(tr)
	case WeightedCyclic:
		return g.pickRow(tr)
	case Hash:
		return g.pickHash(k.clientHash(g.seed), tr)
	case MinMisses:
		return g.pickScore(k.scoreHash(g.bits, g.seed), tr)
	case PHash:
		return g.pickPersistent(k.clientHash(g.seed), tr)
	case Maglev:
		h := k.flowHash(g.seed)
		return g.pickSlot(g.table.Lookup(h), h, tr)
	case Capacity:
		h := k.flowHash(g.seed)
		return g.pickSlot(int(g.seq[reduce(h, uint64(len(g.seq)))]), h, tr)
	case RandomTwo:
		return g.pickTwo(tr)
	default: // RoundRobin, Cyclic, SmoothCyclic, Bandwidth, Response
		return g.pickTurn(tr)
	}
}

// take counts a session on node i if it has room.
func (g *group) take(i int, tr *tracer) bool {
	c := &g.nodes[i]
	if tr != nil {
		ok := !c.h.full(c.limit)
		if !ok {
			tr.passed(g, i, AtLimit)
		}
		return ok
	}
	return c.h.start(c.limit)
}

// scan takes the first node with room from position i on.
func (g *group) scan(i int, tr *tracer) int {
	for range g.nodes {
		if i >= len(g.nodes) {
			i -= len(g.nodes)
		}
		if g.take(i, tr) {
			return i
		}
		i++
	}
	return -1
}

// advance takes the next number of the cyclic metrics.
func (g *group) advance(tr *tracer) uint64 {
	if tr != nil {
		return g.turn.next.Load()
	}
	return g.turn.next.Add(1) - 1
}

func (g *group) pickTurn(tr *tracer) int {
	s := int(g.div.mod(g.advance(tr) + g.start))
	i := int(g.seq[s])
	if g.take(i, tr) {
		return i
	}
	// The turn passes on: a few steps along the table keep the shares of the others,
	// then any node with room will do.
	last := i
	for range 8 {
		if s++; s == len(g.seq) {
			s = 0
		}
		if j := int(g.seq[s]); j != last {
			if g.take(j, tr) {
				return j
			}
			last = j
		}
	}
	return g.scan(i+1, tr)
}

func (g *group) pickRow(tr *tracer) int {
	x := g.div.mod(g.advance(tr) + g.start)
	lo, hi := 0, len(g.cum)-1
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if x < g.cum[mid] {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return g.scan(lo, tr)
}

func (g *group) pickLeast(tr *tracer) int {
	for range len(g.nodes) + 4 {
		i := -1
		if root := g.tree.root(); root != noLeaf {
			if c := &g.nodes[root]; !c.h.full(c.limit) {
				i = int(root)
			}
		}
		if len(g.warm) > 0 {
			i = g.warmOrElse(i)
		}
		if i < 0 {
			// All are full, or others are in the middle of their matches.
			if i = g.fewest(tr); i < 0 {
				return -1
			}
		}
		if tr != nil {
			return i
		}
		if g.take(i, nil) {
			g.turned(i)
			return i
		}
		g.changed(i) // somebody took the last place
	}
	return g.scan(0, tr)
}

// fewest looks at all nodes in turn, as the tournament would.
func (g *group) fewest(tr *tracer) int {
	best := -1
	for i := range g.nodes {
		c := &g.nodes[i]
		if c.h.full(c.limit) {
			if tr != nil {
				tr.passed(g, i, AtLimit)
			}
		} else if best < 0 || g.fewer(i, best) {
			best = i
		}
	}
	return best
}

// warmOrElse returns the node in its slow start whose turn it is, or i. Having few
// sessions such a node would draw all new ones; so it gets no more than its share of
// turns. When there is no other node they compete among themselves.
func (g *group) warmOrElse(i int) int {
	alone := i < 0
	now := g.turn.clock.Load()
	for _, j := range g.warm {
		c := &g.nodes[j]
		if c.h.full(c.limit) || !alone && c.waits(now) {
			continue
		}
		if i < 0 || g.fewer(j, i) {
			i = j
		}
	}
	return i
}

// turned notes that node i had its turn, and plays its matches again.
func (g *group) turned(i int) {
	c := &g.nodes[i]
	floor, vt := g.turn.floor.Load(), c.h.vt.Load()
	if int64(vt-floor) > 0 {
		g.turn.floor.Store(vt)
	} else {
		// An idle time earns no credit.
		vt = floor
	}
	c.h.vt.Store(vt + c.step)
	if len(g.warm) > 0 {
		now := g.turn.clock.Add(g.vstep)
		if c.part < FullPart {
			rvt := c.h.rvt.Load()
			if d := int64(now - rvt); d > int64(c.rstep) || d < -int64(c.rstep) {
				rvt = now - c.rstep
			}
			c.h.rvt.Store(rvt + c.rstep)
		}
	}
	g.changed(i)
}

// waits says whether the next turn of a node in its slow start is yet to come. A time
// further ahead than one turn is left over from an earlier slow start.
func (c *candidate) waits(now uint64) bool {
	ahead := int64(c.h.rvt.Load() - now)
	return ahead > 0 && ahead <= int64(c.rstep)
}

// changed plays the matches of node i again after its count changed.
func (g *group) changed(i int) {
	if g.tree != nil {
		g.tree.update(g, i)
	}
}

// accepts says whether a node that is held back in part takes the client with hash h.
// It has always the same answer for the same client and part, and a larger part only
// adds clients.
func (c *candidate) accepts(h uint64) bool {
	return c.part >= FullPart || uint8(fold(h^c.tie, k3)>>58) < c.part
}

// draws bounds how often a client is hashed again.
const draws = 64

// again is the next hash of a client that the last one sent to a node held back, or at
// its limit. So the clients of such a node spread over all nodes, as they would have
// with its smaller share.
func again(h uint64) uint64 { return mix(h + k0) }

// draw hashes the client over the nodes until one accepts it and has room.
func (g *group) draw(h uint64, tr *tracer) int {
	for range draws {
		i := int(reduce(h, uint64(len(g.nodes))))
		if g.nodes[i].accepts(h) && g.take(i, tr) {
			return i
		}
		h = again(h)
	}
	return g.scan(int(reduce(h, uint64(len(g.nodes)))), tr)
}

func (g *group) pickHash(h uint64, tr *tracer) int { return g.draw(h, tr) }

func (g *group) pickScore(h uint64, tr *tracer) int {
	for range draws {
		best, score := -1, uint64(0)
		for i := range g.nodes {
			c := &g.nodes[i]
			if c.h.full(c.limit) {
				continue
			}
			s := fold(h^c.key, c.key|1)
			if best < 0 || s > score || s == score && fold(h^c.tie, k2) > fold(h^g.nodes[best].tie, k2) {
				best, score = i, s
			}
		}
		if best < 0 {
			break
		}
		if g.nodes[best].accepts(h) && g.take(best, tr) {
			return best
		}
		h = again(h)
	}
	return g.scan(0, tr)
}

func (g *group) pickPersistent(h uint64, tr *tracer) int {
	if i := int(g.conf[reduce(h, uint64(len(g.conf)))]); i >= 0 {
		if g.nodes[i].accepts(h) && g.take(i, tr) {
			return i
		}
	}
	return g.draw(again(h), tr)
}

func (g *group) pickSlot(slot int, h uint64, tr *tracer) int {
	if slot >= 0 {
		if i := int(g.conf[slot]); i >= 0 && g.take(i, tr) {
			return i
		}
	}
	return g.draw(again(h), tr)
}

func (g *group) pickTwo(tr *tracer) int {
	r := mix(g.advance(tr)*k0 + g.seed)
	n := uint64(len(g.seq))
	i := int(g.seq[reduce(r, n)])
	j := i
	// Another draw that yields the same node is drawn again, a few times.
	for x := r; j == i && len(g.nodes) > 1; {
		x = x*6364136223846793005 + 1442695040888963407
		j = int(g.seq[reduce(x, n)])
		if x&0xf00 == 0 {
			break
		}
	}
	if j != i && g.less(j, i) {
		i, j = j, i
	}
	if g.take(i, tr) {
		return i
	}
	if j != i && g.take(j, tr) {
		return j
	}
	return g.scan(i+1, tr)
}

// less compares sessions per weight.
func (g *group) less(i, j int) bool {
	a, b := &g.nodes[i], &g.nodes[j]
	return uint64(a.h.sessions())*b.weight < uint64(b.h.sessions())*a.weight
}
