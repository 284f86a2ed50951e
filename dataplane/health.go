package dataplane

import "github.com/lbprim/lbprim/healthcheck"

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
