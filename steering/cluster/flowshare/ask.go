package flowshare

import (
	"context"
	"time"
)

// An ask is a question to other members about one flow.
type ask struct {
	number   uint64
	flow     Flow
	waiting  []*peer
	deadline time.Time
	done     []func(Value, bool)
}

// Find looks a flow up here, and on a miss asks the members that should know. It calls done
// once, from whichever goroutine learns the answer, before Find returns or at the latest
// at the Step after [Config.AskTimeout]. If nobody knows the flow, Alike has the last word.
func (l *Layer) Find(now time.Time, f Flow, done func(v Value, ok bool)) {
	if f.IsZero() {
		done(Value{}, false)
		return
	}
	l.lock()
	defer l.rouse()
	defer l.unlock()
	l.at(now)
	l.drain()
	if v, ok := l.known(f, false); ok {
		l.stats.Local++
		l.done = append(l.done, func() { done(v, true) })
		return
	}
	if a := l.asked[f]; a != nil {
		a.done = append(a.done, done)
		return
	}
	a := &ask{flow: f, deadline: l.now.Add(l.cfg.AskTimeout), done: []func(Value, bool){done}}
	if len(l.asks) >= l.cfg.MaxAsks {
		l.stats.AsksRefused++
		l.finish(a, Value{}, false)
		return
	}
	l.lastAsk++
	a.number = l.lastAsk
	l.asks[a.number], l.asked[f] = a, a
	frame := askFrame(l.clock, a.number, &f)
	ask := func(p *peer) {
		if p != nil && l.transmit(p, frame, true) {
			a.waiting = append(a.waiting, p)
		}
	}
	if l.view.full {
		for _, p := range l.order {
			ask(p)
		}
	} else {
		for _, h := range l.view.place.Holders(SlotOf(f)) {
			ask(l.order[h])
		}
	}
	l.stats.Asks += uint64(len(a.waiting))
	if len(a.waiting) == 0 {
		l.finish(a, Value{}, false)
	}
}

// finish ends an ask.
func (l *Layer) finish(a *ask, v Value, ok bool) {
	delete(l.asks, a.number)
	if l.asked[a.flow] == a {
		delete(l.asked, a.flow)
	}
	if !ok && l.cfg.Alike != nil {
		v, ok = l.cfg.Alike(a.flow)
	}
	if ok {
		l.stats.Found++
	} else {
		l.stats.NotFound++
	}
	for _, done := range a.done {
		l.done = append(l.done, func() { done(v, ok) })
	}
}

func (l *Layer) onAnswer(p *peer, m *message) {
	a := l.asks[m.number]
	if a == nil || !a.drop(p) {
		l.stats.Unasked++
		return
	}
	if m.found {
		l.finish(a, m.values[0], true)
	} else if len(a.waiting) == 0 {
		l.finish(a, Value{}, false)
	}
}

// drop takes a peer off those who have not answered.
func (a *ask) drop(p *peer) bool {
	for i, w := range a.waiting {
		if w == p {
			a.waiting = append(a.waiting[:i], a.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// giveUpOn ends the asks that wait for members that are gone.
func (l *Layer) giveUpOn() {
	for _, a := range l.asks {
		for _, p := range append([]*peer(nil), a.waiting...) {
			if p.gone {
				a.drop(p)
			}
		}
		if len(a.waiting) == 0 {
			l.finish(a, Value{}, false)
		}
	}
}

// Ask is Find for those who can wait; it needs [Layer.Run], and ends early with ctx.
func (l *Layer) Ask(ctx context.Context, f Flow) (Value, bool) {
	type answer struct {
		v  Value
		ok bool
	}
	c := make(chan answer, 1)
	l.Find(time.Now(), f, func(v Value, ok bool) { c <- answer{v, ok} })
	select {
	case a := <-c:
		return a.v, a.ok
	case <-ctx.Done():
		return Value{}, false
	}
}
