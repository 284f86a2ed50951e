package dataplane

import (
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// ApplyHealth returns a function for healthcheck.Config.OnTransition that marks nodes up or down. A
// check's ID is the name of the node it checks. Sessions of a node that goes down are
// invalid from then on: a client's next packet is answered by a reset, and its next
// connection goes elsewhere.
func (p *Plane) ApplyHealth() func(healthcheck.Transition) {
	return func(t healthcheck.Transition) {
		up := t.To.Usable()
		if up == t.From.Usable() && t.From != healthcheck.Unknown {
			return
		}
		if t.To == healthcheck.Unknown || t.To == healthcheck.Testing || t.To == healthcheck.Graceful {
			return // nothing is settled, or sessions may stay
		}
		if p.SetUp(t.Check.ID, up) == 0 {
			p.cfg.Logger.Warn("health of an unknown node", "check", t.Check.ID, "state", t.To)
		}
	}
}

// ObserveHealth returns a function for healthcheck.Config.OnResult that tells pools how long their nodes took to pass a
// check, for the Response metric. A check's ID is the name of the node it checks.
func (p *Plane) ObserveHealth() func(healthcheck.Check, healthcheck.Result, healthcheck.Status) {
	return func(c healthcheck.Check, r healthcheck.Result, _ healthcheck.Status) {
		if r.Verdict == healthcheck.Pass && r.Latency > 0 {
			p.observe(c.ID, r.Latency)
		}
	}
}

func (p *Plane) observe(name string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.pools {
		if id, ok := q.ID(name); ok {
			q.Observe(id, took)
		}
	}
}
