package healthcheck

// damper counts results in a row, and turns each into the event it means. It is
// the whole of the rise and fall rules: pure, small, and tested against published
// truth tables.
//
// The first result is not special: from the start Rise passes in a row make a
// target active, and Fall failures in a row make it failed. A result that breaks
// a row starts the count anew, and an inconclusive one is as if it had not been.
type damper struct {
	run       int32 // passes in a row if positive, failures if negative
	wasDown   bool  // has failed since it was last up, so that the hold-down applies
	goodSince int64 // time of the first pass of the run
}

// limits is what a damper is asked to keep to.
type limits struct {
	rise, fall int32
	hold       int64 // ns
	draining   bool
}

// add counts a result at time now for a target in state s.
func (d *damper) add(now int64, v Verdict, final bool, s State, l limits) Event {
	switch {
	case v.OK():
		if d.run <= 0 {
			d.run, d.goodSince = 0, now
		}
		if d.run < 1<<30 {
			d.run++
		}
		if s.KeepsSessions() {
			return PassOnce
		}
		if d.run < l.rise || d.wasDown && now-d.goodSince < l.hold {
			return PassOnce
		}
		d.wasDown = false
		if l.draining {
			return RiseDraining
		}
		return Rise
	case v == Fail:
		if d.run > 0 {
			d.run = 0
		}
		if d.run > -1<<30 {
			d.run--
		}
		if final || -d.run >= l.fall {
			d.wasDown = true
			return Fall
		}
		return FailOnce
	}
	return NoEvent
}

// holdUntil returns when the hold-down ends if all goes well, or 0.
func (d *damper) holdUntil(l limits) int64 {
	if !d.wasDown || l.hold == 0 || d.run <= 0 {
		return 0
	}
	return d.goodSince + l.hold
}
