package flowshare

import (
	"context"
	"slices"
	"time"
)

const (
	// sweepEvery is how often a part of the items is looked through.
	sweepEvery = 250 * time.Millisecond
	// longest is how long a Layer sleeps at most.
	longest = time.Second
	// again is how long it waits after a failure.
	again = 10 * time.Millisecond
)

// Step does what is due, and returns when it wants to be called next, at the latest.
func (l *Layer) Step(now time.Time) (next time.Time) {
	l.lock()
	defer l.unlock()
	l.at(now)
	l.drain()
	next = l.now.Add(longest)
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	for _, a := range l.asks {
		if !a.deadline.After(l.now) {
			l.stats.TimedOut++
			l.finish(a, Value{}, false)
			continue
		}
		sooner(a.deadline)
	}
	if !l.repairAt.After(l.now) {
		l.repairAt = l.now.Add(l.jitter(l.cfg.RepairEvery))
		l.anybody()
	}
	sooner(l.repairAt)
	if !l.sweepAt.After(l.now) {
		l.sweepAt = l.now.Add(sweepEvery)
		l.sweep()
	}
	sooner(l.sweepAt)
	busy := l.busy
	l.busy = nil
	l.repair(busy)
	for _, p := range busy {
		if p.gone {
			continue
		}
		if !l.pump(p) || p.transfer != nil || p.digest != nil {
			sooner(l.now.Add(max(l.cfg.Batch, again)))
			l.work(p)
		}
		if p.dirty || p.open {
			sooner(later(p.repairAt, l.now.Add(again)))
			l.work(p)
		}
	}
	return next
}

// repair does what is due of comparisons and transfers, for all peers together.
func (l *Layer) repair(busy []*peer) {
	var ask, answer []*peer
	transfers := false
	for _, p := range busy {
		p.busy = false
		if p.gone {
			continue
		}
		due := !p.repairAt.After(l.now)
		if p.open && due {
			p.open, p.dirty = false, true // there was no answer
		}
		l.pump(p)
		if p.dirty && due && len(p.frames) == 0 && p.transfer == nil {
			ask = append(ask, p)
		}
		if p.digest != nil && !l.answerAt.After(l.now) && len(p.frames) == 0 {
			answer = append(answer, p)
		}
		transfers = transfers || p.transfer != nil
	}
	if len(answer) > 0 {
		l.answerAt = time.Time{}
		l.answer(answer)
		transfers = true
	}
	if len(ask) > 0 {
		l.compare(slices.DeleteFunc(ask, func(p *peer) bool { return p.gone }))
	}
	for transfers && l.forward(busy) {
		l.breathe()
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// anybody compares with one of the peers by chance.
func (l *Layer) anybody() {
	if len(l.order) < 2 {
		return
	}
	i := l.cfg.Rand.IntN(len(l.order) - 1)
	if i >= l.view.self {
		i++
	}
	l.soil(l.order[i], 0)
}

// sweep looks through one part of the items.
func (l *Layer) sweep() {
	part := l.sweepPart
	l.sweepPart = (part + 1) % Parts
	now := l.seconds()
	settled := !l.now.Before(l.settled)
	l.store.Range(part, func(f Flow, it Item) bool {
		switch {
		case it.Flags&Tombstone != 0:
			if time.Duration(now-it.Stamp)*time.Second >= l.cfg.Tombstones {
				l.remove(f)
			}
		case !l.live(it.Origin) && it.Flags&Claimed == 0 && time.Duration(now-l.about[it.Origin].gone)*time.Second >= l.cfg.Orphans:
			// The same tombstone everywhere, as nobody answers for the entry.
			l.stats.Orphaned++
			l.origins.use(it.Origin)
			l.put(f, Item{Version: it.Version, Origin: it.Origin, Flags: Tombstone})
		case settled && it.Flags&Unsent == 0 && !l.mine(&f, &it):
			if it.Flags&Claimed == 0 {
				l.remove(f)
				break
			}
			// Nobody tells a balancer that only forwards a flow: it asks by telling.
			for _, h := range l.view.place.Holders(SlotOf(f)) {
				if p := l.order[h]; p != nil {
					l.enqueue(p, &f)
				}
			}
		}
		return true
	})
}

// Run calls Step as needed until ctx is done, and returns its error. Announcements wait
// for [Config.Batch] for others to go with them.
func (l *Layer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			timer.Reset(time.Until(l.Step(time.Now())))
		case <-l.wake:
			timer.Reset(l.cfg.Batch)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-timer.C:
				timer.Reset(time.Until(l.Step(time.Now())))
			}
		}
	}
}
