package probe

import "time"

// Where many probes are begun one after the other, the poller would wake the engine for
// each answer from nearby. Those that come in a burst are read unasked instead: when some
// more have been begun, or a moment later. Only those not there by then are waited for.
const (
	gatherBurst = 200 * time.Microsecond // between two of a burst
	gatherMost  = 8                      // so many are begun before the first is read
	gatherTime  = time.Millisecond       // or so long after
)

// gathering is what waits to be read unasked. It is guarded by the engine's lock.
type gathering struct {
	waits []*wait
	last  time.Time // when the last was begun
	at    time.Time // when to read all; zero: there are none
}

// gather has w wait to be read unasked if it is one of a burst. next, if not nil, is what
// its caller is to read now.
func (e *engine) gather(w *wait, until time.Time) (next *wait, ok bool) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	g := &e.gathering
	burst := now.Sub(g.last) < gatherBurst
	g.last = now
	if !burst || e.closed || w.stopped {
		return nil, false
	}
	e.push(w, until)
	g.waits = append(g.waits, w)
	if g.at.IsZero() {
		g.at = now.Add(gatherTime)
		e.arm(g.at)
	}
	for len(g.waits) > gatherMost && next == nil {
		if g.waits[0].at != 0 {
			next = g.waits[0]
			e.unwait(next)
		}
		copy(g.waits, g.waits[1:])
		g.waits[len(g.waits)-1] = nil
		g.waits = g.waits[:len(g.waits)-1]
	}
	return next, true
}

// readGathered reads all that wait for it, if it is time. The lock is held but for the
// reading itself.
func (e *engine) readGathered(now time.Time) {
	g := &e.gathering
	if g.at.IsZero() || now.Before(g.at) {
		return
	}
	waits := g.waits
	g.waits, g.at = nil, time.Time{}
	for _, w := range waits {
		if w.at == 0 {
			continue // it has ended
		}
		e.unwait(w)
		e.mu.Unlock()
		w.owner.ready()
		e.mu.Lock()
	}
	if g.waits == nil {
		clear(waits)
		g.waits = waits[:0]
	}
}
