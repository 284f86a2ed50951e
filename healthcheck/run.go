package healthcheck

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// minNap and maxNap bound the least time the scheduler sleeps. Probes that start
	// together share the wake-ups of threads and the polls of the network: 1,000
	// checks a second cost a fifth less CPU in batches of 10 ms than of 1 ms.
	minNap, maxNap = time.Millisecond, 10 * time.Millisecond
	// maxEvents is how many undelivered events make the workers wait.
	maxEvents = 4096
	// overrunGrace is how long after its deadline a probe may take to return
	// before the target is failed without it.
	overrunGrace = time.Second
)

// Stats counts what a Monitor did.
type Stats struct {
	Checks   int
	InFlight int // probes running
	Queued   int // due, waiting for a worker
	Workers  int
	Probes   uint64
	Overruns uint64 // probes that did not return in time
	// MaxLate is the longest any probe started after it was due.
	MaxLate time.Duration
}

// Stats returns the counters.
func (m *Monitor) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Checks, s.Queued, s.Workers = len(m.targets), m.quick.len()+m.slow.len(), m.workers
	return s
}

// Run probes until ctx is done, and returns its cause. It waits for the probes in
// flight, whose contexts end with ctx, and for callbacks, so that nothing happens
// after it has returned. It may be called again then, but not while it runs.
func (m *Monitor) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.running {
		m.mu.Unlock()
		return ErrRunning
	}
	m.running = true
	now := m.now()
	for _, t := range m.targets {
		// Spread over one interval from now, however long ago they were added.
		if t.phase == waiting && t.due < now {
			m.schedule(t, t.grid(now))
		}
	}
	m.mu.Unlock()

	var wg sync.WaitGroup
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		m.mu.Lock()
		now := m.now()
		m.pop(now)
		for m.idle < m.quick.len()+m.slow.len() && m.workers < m.limit() {
			m.workers++
			m.idle++
			wg.Go(func() { m.worker(ctx) })
		}
		for range min(m.idle, m.quick.len()+m.slow.len()) {
			m.work.Signal() // never Broadcast: it would wake all that are idle
		}
		sleep := time.Hour
		if len(m.heap) > 0 {
			sleep = max(m.nap(), min(sleep, time.Duration(m.heap[0].due-now)))
		}
		m.wakeAt = now + int64(sleep)
		if len(m.events) > 0 && !m.delivering {
			wg.Go(m.deliver) // not here: a callback that blocks must not stop the schedule
		}
		m.mu.Unlock()
		timer.Reset(sleep)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-m.wake:
		}
	}

	m.mu.Lock()
	m.running = false
	m.work.Broadcast()
	m.room.Broadcast()
	m.mu.Unlock()
	wg.Wait()
	m.mu.Lock()
	m.requeue()
	m.mu.Unlock()
	return context.Cause(ctx)
}

// nap returns the least time to sleep: short against the shortest interval.
func (m *Monitor) nap() time.Duration {
	return min(max(m.shortest/50, minNap), maxNap)
}

// Step makes, one after the other in the calling goroutine, the probes that are
// due, and returns how many, and when the next is due. It is for those who do
// not want Run's goroutines, and returns ErrRunning while Run runs.
func (m *Monitor) Step(ctx context.Context) (n int, next time.Time, err error) {
	m.mu.Lock()
	if m.running {
		m.mu.Unlock()
		return 0, time.Time{}, ErrRunning
	}
	m.running = true
	m.pop(m.now())
	for ctx.Err() == nil {
		t := m.take()
		if t == nil {
			break
		}
		m.probe(ctx, t)
		m.mu.Unlock()
		m.deliver()
		m.mu.Lock()
		n++
	}
	m.running = false
	m.requeue()
	if len(m.heap) > 0 {
		next = m.time(m.heap[0].due)
	}
	m.mu.Unlock()
	return n, next, context.Cause(ctx)
}

// requeue puts what waits for a worker back into the heap.
func (m *Monitor) requeue() {
	for _, q := range []*queue{&m.quick, &m.slow} {
		for t := q.pop(); t != nil; t = q.pop() {
			if !t.gone {
				m.schedule(t, t.due)
			}
		}
	}
}

// schedule puts t into the heap.
func (m *Monitor) schedule(t *target, due int64) {
	m.heap.remove(t)
	t.due, t.phase = due, waiting
	m.push(t)
}

// push puts t into the heap for t.due, and wakes the scheduler if it would sleep
// longer.
func (m *Monitor) push(t *target) {
	m.heap.push(t)
	if t.due < m.wakeAt {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// replan schedules t anew after a change.
func (m *Monitor) replan(t *target, now, from int64) {
	if t.plan(now, from, m.permille) {
		m.schedule(t, t.due)
	} else {
		m.heap.remove(t)
		t.phase = parked
	}
}

// pop moves what is due from the heap to the queues.
func (m *Monitor) pop(now int64) {
	for len(m.heap) > 0 && m.heap[0].due <= now {
		t := m.heap[0].t
		m.heap.remove(t)
		if t.phase == probing {
			m.overran(t, now)
			continue
		}
		if m.postponed(t, now) {
			continue
		}
		t.phase = ready
		if t.slow {
			m.slow.push(t)
		} else {
			m.quick.push(t)
		}
	}
}

// postponed reports whether t, which is due, has to wait for others, and then
// schedules it later.
func (m *Monitor) postponed(t *target, now int64) bool {
	if !t.check.BringUpLast || !t.settled || m.unsettled == 0 || t.state.KeepsSessions() || t.damper.run <= 0 {
		return false
	}
	if now-t.lastProbe > int64(t.check.Interval)+int64(t.check.FastInterval) {
		return false
	}
	m.schedule(t, now+int64(MinInterval))
	return true
}

// overran fails a target whose probe did not return by its deadline. The probe
// still holds its worker; nothing else can be done about it.
func (m *Monitor) overran(t *target, now int64) {
	t.overrun = true
	m.stats.Overruns++
	err := fmt.Errorf("probe still running %v after it started, though its time was %v",
		time.Duration(now-t.lastProbe).Round(time.Millisecond), t.check.Timeout)
	m.record(t, now, Result{Verdict: Fail, Err: &ProbeError{Op: "deadline", Target: t.check.Target, Err: err}}, true)
	t.due = now + int64(t.check.Interval)
	m.push(t)
}

// take returns a target to probe, or nil. Slow ones must leave a quarter of the
// workers to the others.
func (m *Monitor) take() *target {
	for {
		q := &m.quick
		if m.slowBusy < max(1, m.limit()*3/4) && m.slow.len() > 0 && (q.len() == 0 || m.slow.first().due < q.first().due) {
			q = &m.slow
		}
		t := q.pop()
		if t == nil || !t.gone {
			return t
		}
	}
}

func (m *Monitor) worker(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		t := m.take()
		for t == nil || len(m.events) > maxEvents {
			if !m.running {
				m.idle--
				m.workers--
				if t != nil {
					m.schedule(t, t.due)
				}
				return
			}
			if t == nil {
				m.work.Wait()
				t = m.take()
			} else {
				m.room.Wait()
			}
		}
		m.idle--
		m.probe(ctx, t)
		m.idle++
		if len(m.events) > 0 {
			m.mu.Unlock()
			m.deliver()
			m.mu.Lock()
		}
	}
}

// probe makes one probe of t, with the lock held but for the probe itself.
func (m *Monitor) probe(ctx context.Context, t *target) {
	if t.gone {
		return
	}
	if ctx.Err() != nil {
		m.schedule(t, t.due)
		return
	}
	start := m.now()
	m.stats.MaxLate = max(m.stats.MaxLate, time.Duration(start-t.due))
	m.stats.InFlight++
	m.stats.Probes++
	t.phase, t.lastProbe, t.overrun, t.moved, t.fired = probing, start, false, false, false
	t.due = start + int64(t.check.Timeout) + int64(overrunGrace)
	m.push(t)
	slow := t.slow
	if slow {
		m.slowBusy++
	}
	c := t.check
	m.mu.Unlock()

	r := m.call(ctx, &c)

	m.mu.Lock()
	now := m.now()
	m.stats.InFlight--
	if slow {
		m.slowBusy--
	}
	m.heap.remove(t)
	if t.gone {
		return
	}
	t.slow = now-start > int64(c.Timeout)/2
	switch {
	case ctx.Err() != nil || t.moved:
		// The result is about the end of Run, or about another target.
	case t.overrun:
		// Counted already.
	default:
		if r.Latency == 0 {
			r.Latency = time.Duration(now - start)
		}
		if r.Verdict != Inconclusive {
			t.concluded = start
		}
		m.record(t, now, r, true)
	}
	if t.fired || t.moved {
		m.schedule(t, now)
	} else {
		m.replan(t, now, start)
	}
}

// call makes the probe itself. A prober that panics says nothing about its
// target, and must not take the data plane along.
func (m *Monitor) call(ctx context.Context, c *Check) (r Result) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			m.cfg.Logger.Error("prober panicked", slog.String("check", c.ID), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			r = Undecided("panic", c.Target, fmt.Errorf("prober panicked: %v", p))
		}
	}()
	return c.Prober.Probe(ctx, c.Target)
}

// queue is a first-in first-out list of targets.
type queue struct {
	ts   []*target
	head int
}

func (q *queue) len() int       { return len(q.ts) - q.head }
func (q *queue) first() *target { return q.ts[q.head] }

func (q *queue) push(t *target) {
	if q.head > 1024 && q.head > len(q.ts)/2 {
		n := copy(q.ts, q.ts[q.head:])
		clear(q.ts[n:])
		q.ts, q.head = q.ts[:n], 0
	}
	q.ts = append(q.ts, t)
}

func (q *queue) pop() *target {
	if q.head == len(q.ts) {
		return nil
	}
	t := q.ts[q.head]
	q.ts[q.head] = nil
	q.head++
	if q.head == len(q.ts) {
		q.ts, q.head = q.ts[:0], 0
	}
	return t
}
