package steering

import (
	"slices"
	"time"
)

// compile prepares what the metric of g reads.
func (p *Pool) compile(g *group, set []*entry, parts []uint8) {
	weights := make([]uint64, len(g.nodes))
	held := false // some node is held back
	for i := range g.nodes {
		c := &g.nodes[i]
		weights[i] = p.base(c.h) * uint64(c.part)
		held = held || c.part < FullPart
	}
	switch g.metric {
	case Response:
		p.inverse(g, weights, func(h *handle) uint64 { return uint64(h.applied) })
	case Bandwidth:
		p.inverse(g, weights, func(h *handle) uint64 { return h.last })
	}
	if g.metric == LeastConns {
		for i := range g.nodes {
			g.nodes[i].step = max(vtUnit*FullPart/weights[i], 1)
			g.nodes[i].rstep = rvtUnit * FullPart / weights[i]
		}
	}
	reduced := reduceWeights(weights, 1<<62)
	for i := range g.nodes {
		g.nodes[i].weight = reduced[i]
		g.sum += reduced[i]
	}
	switch g.metric {
	case LeastConns:
		g.first = weightedStart(p.cfg.Seed, reduced, g.sum)
		g.vstep = rvtUnit * FullPart / sumOf(weights)
		g.tree = newLeastTree(len(g.nodes))
		for i := range g.nodes {
			if g.nodes[i].part < FullPart && p.warming(g.nodes[i].h) {
				g.warm = append(g.warm, i)
			} else {
				g.tree.enter(i)
			}
		}
		g.tree.updateAll(g)
	case WeightedCyclic:
		// As many in a row as the weight says: only what parts brought in is reduced.
		common := uint64(FullPart)
		for i := range g.nodes {
			common = gcd(common, uint64(g.nodes[i].part))
		}
		var sum uint64
		for _, w := range weights {
			w /= common
			sum += w
			g.cum = append(g.cum, sum)
		}
		g.div = newDivider(sum)
		g.start = seedStart(p.cfg.Seed, sum)
	case RoundRobin, Cyclic:
		if held {
			g.seq = smooth(reduceWeights(weights, smoothLimit(len(weights))))
		} else {
			g.seq = rounds(reduceWeights(weights, maxSequence))
		}
	case SmoothCyclic, Response, Bandwidth, RandomTwo:
		g.seq = smooth(reduceWeights(weights, smoothLimit(len(weights))))
	case Maglev:
		g.table = p.maglev(set).With(parts...)
	case Capacity:
		names := make([]string, len(set))
		caps := make([]uint64, len(set))
		for i, e := range set {
			names[i] = e.h.node.Name
			caps[i] = p.base(e.h) * uint64(parts[i])
		}
		g.seq = assign(p.cfg.Buckets, p.cfg.Seed, names, caps)
	}
	switch g.metric {
	case RoundRobin, Cyclic, SmoothCyclic, Response, Bandwidth:
		g.div = newDivider(uint64(len(g.seq)))
		g.start = seedStart(p.cfg.Seed, uint64(len(g.seq)))
	}
}

// base is the weight of a node before pressure and slow start.
func (p *Pool) base(h *handle) uint64 {
	if !p.cfg.Metric.weighted() {
		return 1
	}
	if p.cfg.Metric == Capacity && h.node.Capacity > 0 {
		return uint64(h.advice.scale(h.node.Capacity, MaxCapacity))
	}
	return uint64(h.weight())
}

// inverse scales weights by the inverse of what measure says of each node, 0 being no
// sample. A node without samples counts as an average one.
func (p *Pool) inverse(g *group, weights []uint64, measure func(*handle) uint64) {
	var sum, n uint64
	for i := range g.nodes {
		if x := measure(g.nodes[i].h); x > 0 {
			// Half the range, so that the sum of all nodes fits.
			sum += min(x, 1<<47)
			n++
		}
	}
	if n == 0 {
		return
	}
	mean := sum / n
	const unit = 1 << 10
	for i := range g.nodes {
		factor := uint64(unit)
		if x := measure(g.nodes[i].h); x > 0 {
			factor = min(max(mulDiv(unit, mean, min(x, 1<<47)), 1), unit*unit)
		}
		weights[i] = max(weights[i]*factor/16, 1)
	}
}

func mulDiv(a, b, c uint64) uint64 { return (a*b + c/2) / c }

func sumOf(w []uint64) (sum uint64) {
	for _, x := range w {
		sum += x
	}
	return sum
}

// seedStart draws a start in [0, n), 0 for seed 0.
func seedStart(seed, n uint64) uint64 {
	if seed == 0 {
		return 0
	}
	return reduce(mix(seed*k0), n)
}

// weightedStart draws a node by weight, the first for seed 0.
func weightedStart(seed uint64, weights []uint64, sum uint64) int {
	x := seedStart(seed, sum)
	for i, w := range weights {
		if x < w {
			return i
		}
		x -= w
	}
	return 0
}

// maglev returns the full table of a set of nodes, the one at hand if it still fits:
// health, pressure and slow starts only lay over it.
func (p *Pool) maglev(set []*entry) *MaglevTable {
	names := make([]string, len(set))
	weights := make([]uint64, len(set))
	for i, e := range set {
		names[i], weights[i] = e.h.node.Name, uint64(e.h.weight())
	}
	key := tableKey{names, weights, p.cfg.TableSize, p.cfg.Seed}
	for i := range p.tables {
		if t := &p.tables[i]; t.table != nil && t.key.equal(&key) {
			return t.table
		}
	}
	which := 0
	if len(set) > 0 && set[0].h.node.Backup {
		which = 1
	}
	p.tables[which] = keptTable{key, newMaglevTable(p.cfg.TableSize, p.cfg.Seed, names, weights)}
	return p.tables[which].table
}

type keptTable struct {
	key   tableKey
	table *MaglevTable
}

type tableKey struct {
	names   []string
	weights []uint64
	size    int
	seed    uint64
}

func (k *tableKey) equal(o *tableKey) bool {
	return k.size == o.size && k.seed == o.seed && slices.Equal(k.names, o.names) && slices.Equal(k.weights, o.weights)
}

// warmUp is the length of h's slow start.
func (p *Pool) warmUp(h *handle) time.Duration { return ownOr(h.node.WarmUp, p.cfg.SlowStart) }

func (p *Pool) recovery(h *handle) time.Duration {
	return ownOr(h.node.RecoveryTime, p.cfg.RecoveryTime)
}

func (p *Pool) warming(h *handle) bool { return !h.warm.IsZero() }

// ownOr returns a node's own duration: 0 stands for the farm's, a negative one for none.
func ownOr(own, farm time.Duration) time.Duration {
	switch {
	case own < 0:
		return 0
	case own == 0:
		return farm
	}
	return own
}
