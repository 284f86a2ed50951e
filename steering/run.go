package steering

import (
	"context"
	"time"
)

// SetUp reports the health of node id. Coming up again begins its recovery time, then
// its slow start. Unknown ids are ignored.
func (p *Pool) SetUp(id NodeID, up bool) { p.SetUpAt(time.Now(), id, up) }

// SetUpAt is SetUp at a given time.
func (p *Pool) SetUpAt(now time.Time, id NodeID, up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = time.Until(now)
	if p.setUp(now, id, up) {
		p.publish(now)
	}
}

// SetUpAll is SetUp for many nodes at once, which takes hardly longer than for one: a pool works out anew who gets what after each call.
func (p *Pool) SetUpAll(up map[NodeID]bool) { p.SetUpAllAt(time.Now(), up) }

// SetUpAllAt is SetUpAll at a given time.
func (p *Pool) SetUpAllAt(now time.Time, up map[NodeID]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = time.Until(now)
	changed := false
	for id, up := range up {
		changed = p.setUp(now, id, up) || changed
	}
	if changed {
		p.publish(now)
	}
}

// setUp reports whether the health of a node has changed. p.mu is held.
func (p *Pool) setUp(now time.Time, id NodeID, up bool) (changed bool) {
	h := p.handle(id)
	if h == nil || h.up == up {
		return false
	}
	h.up = up
	h.recovered, h.warm = time.Time{}, time.Time{}
	if up && (h.wasUp || h.added) {
		if d := p.recovery(h); d > 0 && h.wasUp {
			h.recovered = now.Add(d)
		} else if p.warmUp(h) > 0 {
			h.warm = now
		}
	}
	h.wasUp = h.wasUp || up
	return true
}

// now is the time by the clock of whoever calls SetUpAt and Step. p.mu is held.
func (p *Pool) now() time.Time { return time.Now().Add(p.ahead) }

func (p *Pool) handle(id NodeID) *handle {
	if e := p.view.Load().entry(id); e != nil {
		return e.h
	}
	return nil
}

// Report takes a reading of node id's gauges and returns the level in force after it.
func (p *Pool) Report(id NodeID, r Gauges) Level {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.handle(id)
	if h == nil {
		return Normal
	}
	p.level(h, h.gauger.Update(&p.cfg.Pressure, r))
	return h.level
}

// SetPressure sets the level of node id, for callers who judge it themselves. A later
// Report starts from it.
func (p *Pool) SetPressure(id NodeID, l Level) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.handle(id); h != nil {
		l = min(l, Severe)
		h.gauger.set(l)
		p.level(h, l)
	}
}

func (p *Pool) level(h *handle, l Level) {
	if h.level != l {
		h.level = l
		p.publish(p.now())
	}
}

// Observe feeds a response time of node id, of a health check for instance, into its
// moving average: each sample moves the average by a quarter of the difference. The
// Response metric follows when the average has moved by an eighth.
func (p *Pool) Observe(id NodeID, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.handle(id)
	if h == nil || took < 0 {
		return
	}
	took = max(took, 1)
	if h.average == 0 {
		h.average = took
	} else {
		h.average += (took - h.average) / 4
	}
	if p.cfg.Metric == Response && (h.applied == 0 || abs(h.average-h.applied) > h.applied/8) {
		h.applied = h.average
		p.publish(p.now())
	}
}

func abs(d time.Duration) time.Duration { return max(d, -d) }

// AddOctets counts traffic of node id for the Bandwidth metric. It takes no lock.
func (p *Pool) AddOctets(id NodeID, n uint64) {
	if e := p.view.Load().entry(id); e != nil {
		e.h.octets.Add(n)
	}
}

// Revert gives new sessions back to the members after the backups took over in a pool
// with Config.NoPreempt.
func (p *Pool) Revert() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spares {
		p.spares = false
		p.publish(p.now())
	}
}

// Tick ends the interval in which Bandwidth counts octets: the next interval's shares
// are inverse to what each node moved in this one. Run does it every Config.Interval.
func (p *Pool) Tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tick(p.now())
}

func (p *Pool) tick(now time.Time) {
	changed := false
	for _, h := range p.nodes {
		octets := h.octets.Swap(0)
		changed = changed || octets != h.last
		h.last = octets
	}
	if changed && p.cfg.Metric == Bandwidth {
		p.publish(now)
	}
}

// Step ends recovery times that are over and moves slow starts on. It returns when the
// next step is due, or the zero time when nothing is under way. Run calls it; callers
// with a clock of their own may call it instead.
func (p *Pool) Step(now time.Time) (next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = time.Until(now)
	changed := false
	due := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for i, h := range p.nodes {
		if !h.recovered.IsZero() {
			if now.Before(h.recovered) {
				due(h.recovered)
				continue
			}
			if p.warmUp(h) > 0 {
				h.warm = h.recovered
			}
			h.recovered = time.Time{}
			changed = true
		}
		if h.warm.IsZero() {
			continue
		}
		window := p.warmUp(h)
		warmth := h.warmth(now, window)
		changed = changed || warmth != p.view.Load().all[i].warm
		if warmth == warmSteps {
			h.warm = time.Time{}
			changed = true
			continue
		}
		due(h.warm.Add(window*time.Duration(warmth)/(warmSteps-1) + 1))
	}
	if changed {
		p.publish(now)
	}
	return next
}

// Run steps and ticks until ctx is done, and returns its error.
func (p *Pool) Run(ctx context.Context) error {
	step := time.NewTimer(0)
	defer step.Stop()
	p.mu.Lock()
	interval := p.cfg.Interval
	p.mu.Unlock()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			p.Tick()
			continue
		case <-p.wake:
		case <-step.C:
		}
		p.mu.Lock()
		if p.cfg.Interval != interval {
			interval = p.cfg.Interval
			tick.Reset(interval)
		}
		p.mu.Unlock()
		if next := p.Step(time.Now()); !next.IsZero() {
			step.Reset(time.Until(next))
		}
	}
}

// panicking says whether so few members are up that health is not looked at.
func (p *Pool) panicking() bool {
	if p.cfg.PanicPercent == 0 {
		return false
	}
	up, all := 0, 0
	for _, h := range p.nodes {
		if h.node.Backup || h.admin() != Enabled {
			continue
		}
		all++
		if h.up {
			up++
		}
	}
	return all > 0 && up*100 < p.cfg.PanicPercent*all
}
