package path

import (
	"context"
	"sync"
	"time"
)

// A line is a channel and what probing found out about it. Engine.mu guards all but the
// Channel, which never changes.
type line struct {
	Channel
	up       bool
	losses   int
	interval time.Duration // to the next probe, as the back-off has it
	next     time.Time
	asked    bool // a probe is under way
	busy     bool // there was traffic since the last probe
}

// Due returns the channels whose probe is due, each once: until Result is told the
// outcome they are not due again. It returns the time of the next one, the zero time if
// there are no channels.
func (e *Engine) Due(now time.Time) (due []Channel, next time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.view.Load()
	p := e.cfg.Probing.withDefaults()
	for _, name := range v.names {
		u := v.uplinks[name]
		wanted, idle := u.wanted.Swap(false), false
		for _, l := range u.lines {
			l.busy = l.busy || wanted
			if l.asked {
				continue // Result has Run look again
			}
			most := p.Idle // the configuration may have changed
			if l.busy {
				most = p.Interval // traffic is back: do not wait for the idle interval to end
			}
			if l.interval > most {
				l.next = l.next.Add(most - l.interval)
				l.interval = most
			}
			idle = idle || l.interval > p.Interval
			if !now.Before(l.next) {
				l.asked = true
				due = append(due, l.Channel)
			} else if next.IsZero() || l.next.Before(next) {
				next = l.next
			}
		}
		if u.idle.Store(idle); idle && u.wanted.Load() {
			e.poke() // it came in between
		}
	}
	if next.IsZero() && len(due) > 0 {
		next = now.Add(p.Interval)
	}
	return due, next
}

// Result takes the outcome of a probe Due asked for.
func (e *Engine) Result(now time.Time, id ChannelID, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lines[id]
	if l == nil {
		return
	}
	l.asked = false
	p := e.cfg.Probing.withDefaults()
	v := e.view.Load()
	u := v.uplinks[l.Uplink]
	if ok {
		l.losses, l.up = 0, true
	} else if l.losses++; l.losses >= p.Losses {
		l.up = false
	}
	e.choose(u)
	switch {
	case l.busy || !ok && l.up:
		// Under traffic, or about to be lost: no back-off.
		l.interval = p.Interval
	case l.interval == 0:
		l.interval = p.Interval
	default:
		l.interval = min(2*l.interval, p.Idle)
	}
	l.busy = false
	l.next = now.Add(l.interval)
	e.poke()
}

// withdraw takes a probe back: it is due as before.
func (e *Engine) withdraw(id ChannelID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.lines[id]; l != nil {
		l.asked = false
	}
}

// Step probes every channel that is due, one after the other, and returns when the next
// is. probe returns whether the gateway answered over that interface.
func (e *Engine) Step(now time.Time, probe func(Channel) bool) (next time.Time) {
	due, _ := e.Due(now)
	for _, c := range due {
		e.Result(now, c.ID, probe(c))
	}
	return e.next()
}

// next returns when the next probe is due.
func (e *Engine) next() (next time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.lines {
		if l.asked {
			continue
		}
		if next.IsZero() || l.next.Before(next) {
			next = l.next
		}
	}
	return next
}

// Run probes until ctx is done, each probe for at most the timeout and all that are due
// at once, and returns ctx's error.
func (e *Engine) Run(ctx context.Context, probe func(context.Context, Channel) error) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-e.wake:
		}
		due, next := e.Due(time.Now())
		e.mu.Lock()
		timeout := e.cfg.Probing.withDefaults().Timeout
		e.mu.Unlock()
		for _, c := range due {
			wg.Go(func() {
				limited, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				if err := probe(limited, c); err != nil && ctx.Err() != nil {
					e.withdraw(c.ID) // cut off, not lost
				} else {
					e.Result(time.Now(), c.ID, err == nil)
				}
			})
		}
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}
