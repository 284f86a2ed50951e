package intercept

import (
	"errors"
	"net/netip"

	"github.com/lbprim/lbprim/steering"
)

// Decide says what to do with a packet. A decision with Counted set has counted a flow
// on its node: give it back with End, also when another goroutine stored the flow first.
func (e *Engine) Decide(p *Packet) Decision { return e.decide(p, nil) }

// Explain says what Decide would do with p now, and counts nothing.
func (e *Engine) Explain(p *Packet) Explanation {
	x := Explanation{Packet: *p}
	x.Decision = e.decide(p, &tracer{&x})
	return x
}

// End gives a flow back that a Decision counted.
func (e *Engine) End(d Decision) {
	if !d.Counted {
		return
	}
	e.pool.Release(d.Node)
	if !d.Optimized || !d.Peer.IsValid() {
		return
	}
	e.peersMu.Lock()
	defer e.peersMu.Unlock()
	e.count(d.Peer, d.Node, -1)
}

func (e *Engine) decide(p *Packet, tr *tracer) Decision {
	v := e.view.Load()
	cluster := ClusterState(e.cluster.Load())
	d := Decision{Action: PassThrough}
	if p.Sender != 0 {
		d.Reason = FromNode
		if tr != nil {
			tr.step("node %d sent it", p.Sender)
		}
		return d
	}
	if p.Known != 0 {
		if e.pool.Usable(p.Known) {
			d.Action, d.Node, d.Reason = Redirect, p.Known, KnownFlow
			d.Side = v.sides[p.Known]
			if tr != nil {
				tr.step("flow of node %d", p.Known)
			}
			return d
		}
		if tr != nil {
			tr.step("flow of node %d, which is gone", p.Known)
		}
	}
	fresh := p.Protocol == tcp && p.SYN
	switch {
	case fresh && p.From == LAN:
		action, rule := v.byInPath(p, tr)
		switch action {
		case Discard, Deny:
			return Decision{Action: action, Reason: ByInPathRule, Rule: rule}
		case PassThrough:
			return e.pass(v, p, cluster, Decision{Action: PassThrough, Reason: ByInPathRule, Rule: rule}, tr)
		}
		return e.balance(v, p, cluster, tr)
	case fresh && p.Peer.IsValid():
		return e.balance(v, p, cluster, tr)
	}
	return e.pass(v, p, cluster, d, tr)
}

func (v *view) byInPath(p *Packet, tr *tracer) (Action, string) {
	for i := range v.inPath {
		r := &v.inPath[i]
		if r.Disabled {
			continue
		}
		if field := r.Match.miss(p); field != "" {
			if tr != nil {
				tr.step("in-path rule %d %q: another %s", i, r.Name, field)
			}
			continue
		}
		if tr != nil {
			tr.step("in-path rule %d %q: %s", i, r.Name, r.Action)
		}
		return r.Action, r.Name
	}
	if tr != nil {
		tr.step("no in-path rule: redirect")
	}
	return Redirect, ""
}

// balance asks the load-balance rules.
func (e *Engine) balance(v *view, p *Packet, cluster ClusterState, tr *tracer) Decision {
	if (cluster == ParallelPeerDown || cluster == PairDown) && !v.allow {
		if tr != nil {
			tr.step("the cluster is not steady (%s) and failure is not allowed", cluster)
		}
		return e.pass(v, p, cluster, Decision{Action: PassThrough, Reason: ClusterNonsteady}, tr)
	}
	for i := range v.rules {
		r := &v.rules[i]
		if r.Disabled {
			continue
		}
		if field := r.miss(p); field != "" {
			if tr != nil {
				tr.step("load-balance rule %d %q: another %s", i, r.Name, field)
			}
			continue
		}
		if r.Action == PassThrough {
			if tr != nil {
				tr.step("load-balance rule %d %q: pass through", i, r.Name)
			}
			return e.pass(v, p, cluster, Decision{Action: PassThrough, Reason: ByLoadBalanceRule, Rule: r.Name}, tr)
		}
		if d, ok := e.choose(v, p, i, tr); ok {
			d.Reason, d.Rule = ByLoadBalanceRule, r.Name
			d.HeaderOnly = cluster != Steady
			return d
		}
		if tr != nil {
			tr.step("load-balance rule %d %q: no usable target", i, r.Name)
		}
	}
	if d, ok := e.choose(v, p, autoPool, tr); ok {
		d.Reason = ByAutomaticPool
		d.HeaderOnly = cluster != Steady
		return d
	}
	if tr != nil {
		tr.step("the automatic pool has no usable node")
	}
	return e.pass(v, p, cluster, Decision{Action: PassThrough, Reason: NoRule}, tr)
}

// pass asks the network services table; d says why the packet is passed so far.
func (e *Engine) pass(v *view, p *Packet, cluster ClusterState, d Decision, tr *tracer) Decision {
	d.HeaderOnly = cluster != Steady
	note := func(why Reason) Decision {
		// What let the packet pass is told unless it was nothing in particular.
		if d.Reason == None {
			d.Reason = why
		}
		return d
	}
	i := v.services.lookup(p.Protocol, p.Src, p.Dst)
	if i < 0 {
		if tr != nil {
			tr.step("no row of the network services table")
		}
		return note(NoRow)
	}
	row := &v.fates[i]
	if row.farm < 0 {
		if tr != nil {
			tr.step("network services row %d %q: pass through", i, row.name)
		}
		return Decision{Action: PassThrough, Reason: ByServices, Rule: row.name, HeaderOnly: d.HeaderOnly}
	}
	if cluster == ParallelPeerDown || cluster == PairDown {
		if tr != nil {
			tr.step("network services row %d %q: the cluster is not steady (%s)", i, row.name, cluster)
		}
		return Decision{Action: PassThrough, Reason: ClusterNonsteady, Rule: row.name, HeaderOnly: true}
	}
	f := v.farms[row.farm]
	if f.buckets == nil {
		if tr != nil {
			tr.step("network services row %d %q: no node, %s", i, row.name, f.why)
		}
		return Decision{Action: PassThrough, Reason: f.why, Rule: row.name, HeaderOnly: d.HeaderOnly}
	}
	h := steering.HashFlow(p.Protocol, p.Src, p.Dst)
	at := f.buckets.Lookup(h)
	for range f.nodes {
		n := &v.nodes[f.nodes[at]]
		if at++; at == len(f.nodes) {
			at = 0
		}
		if n.state != steering.Available && n.state != steering.AtLimit {
			continue
		}
		if tr == nil {
			if !e.pool.Acquire(n.id) {
				continue
			}
		} else {
			if sessions, _ := e.pool.Sessions(n.id); n.limit > 0 && sessions >= int64(n.limit) {
				tr.step("network services row %d %q: node %q is at its limit", i, row.name, n.name)
				continue
			}
			tr.step("network services row %d %q: node %q by its buckets", i, row.name, n.name)
		}
		return Decision{
			Action: Redirect, Node: n.id, Side: n.side, Counted: tr == nil, Reason: ByServices, Rule: row.name, HeaderOnly: d.HeaderOnly,
		}
	}
	return Decision{Action: PassThrough, Reason: AtLimit, Rule: row.name, HeaderOnly: d.HeaderOnly}
}

// autoPool stands for the rule that is no rule.
const autoPool = -1

// choose picks a node for an optimised connection among the targets of a rule.
func (e *Engine) choose(v *view, p *Packet, rule int, tr *tracer) (Decision, bool) {
	targets := v.auto
	if rule != autoPool {
		targets = v.targets[rule]
	}
	e.peersMu.Lock()
	defer e.peersMu.Unlock()
	peer := p.Peer
	if peer.IsValid() {
		peer = peer.Unmap().WithZone("")
	}
	by := e.peers[peer]
	last := steering.NodeID(0)
	if len(by) == 0 && peer.IsValid() {
		if tr != nil {
			last, _ = e.last.Peek(peer)
		} else {
			last, _ = e.last.Get(peer)
		}
	}
	fair := peer.IsValid() && (v.fairV2 || v.sets[rule] != nil)
	var caps capper
	if fair {
		caps = e.caps(v, rule, by)
	}
	refused := map[int]bool(nil)
	for {
		best := -1
		var bestRank rank
		for _, i := range targets {
			n := &v.nodes[i]
			// A node that takes no new clients still takes those it has.
			mine := n.up && n.state == steering.AdminSessionsShutdown && by[n.id] > 0
			if !n.usable && !mine || refused[i] {
				continue
			}
			r := e.rank(n, by, fair, &caps)
			r.last = n.id == last
			if n.limit > 0 && r.sessions >= int64(n.limit) {
				if tr != nil {
					tr.step("target %q is at its limit", n.name)
				}
				continue
			}
			if tr != nil {
				tr.step("target %q: %s", n.name, r)
			}
			if best < 0 || r.before(&bestRank) {
				best, bestRank = i, r
			}
		}
		if best < 0 {
			return Decision{}, false
		}
		n := &v.nodes[best]
		d := Decision{Action: Redirect, Node: n.id, Side: n.side, Optimized: true, Peer: peer}
		if tr != nil {
			return d, true
		}
		if !e.pool.AcquireOptimized(n.id) {
			refused = with(refused, best)
			continue
		}
		d.Counted = true
		if peer.IsValid() {
			e.count(peer, n.id, 1)
		}
		return d, true
	}
}

func with(m map[int]bool, i int) map[int]bool {
	if m == nil {
		m = map[int]bool{}
	}
	m[i] = true
	return m
}

// Restore counts a flow that a node has already, learned from another balancer or from
// a snapshot, and its peer. It says whether the node is known.
func (e *Engine) Restore(id steering.NodeID, peer netip.Addr) (Decision, error) {
	e.peersMu.Lock() // or a node could go between its two counts
	defer e.peersMu.Unlock()
	if !e.pool.Adopt(id) {
		return Decision{}, errUnknown
	}
	d := Decision{Action: Redirect, Node: id, Side: e.view.Load().sides[id], Counted: true, Reason: KnownFlow}
	if peer.IsValid() {
		d.Optimized, d.Peer = true, peer.Unmap().WithZone("")
		e.count(d.Peer, id, 1)
	}
	return d, nil
}

var errUnknown = errors.New("intercept: unknown node")
