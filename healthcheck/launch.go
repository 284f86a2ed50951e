package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// launchShare is how many probes due at once are worth another goroutine to start
// them: fewer are started before it would run.
const launchShare = 64

// flight is a probe that was started.
type flight struct {
	m       *Monitor
	ctx     context.Context
	wg      *sync.WaitGroup
	t       *target
	addr    netip.AddrPort
	timeout time.Duration
	start   int64
	slow    bool
	over    atomic.Bool // the result is in, or nobody wants it
	dropped bool        // nobody wants it
}

// launchDue starts the probes that are due and can be started. Where there are many,
// other processors help.
func (m *Monitor) launchDue(ctx context.Context, scope *Scope, wg *sync.WaitGroup) {
	for m.starts.len() > launchShare*(m.helpers+1) && m.helpers < runtime.GOMAXPROCS(0)-1 {
		m.helpers++
		wg.Go(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			defer func() { m.helpers-- }()
			m.launchAll(ctx, scope, wg)
		})
	}
	m.launching = true
	for m.starts.len() > 0 && !m.launchApart(ctx, scope, wg) {
	}
	m.launching = false
}

// launchApart is launchAll in a goroutine of its own, so that a prober that ends its goroutine
// does not end Run's. It reports whether none did.
func (m *Monitor) launchApart(ctx context.Context, scope *Scope, wg *sync.WaitGroup) (whole bool) {
	done := make(chan bool, 1)
	go func() {
		all := false
		defer func() { done <- all }()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.launchAll(ctx, scope, wg)
		all = true
	}()
	m.mu.Unlock()
	defer m.mu.Lock()
	return <-done
}

// launchAll starts what waits, as far as there is room.
func (m *Monitor) launchAll(ctx context.Context, scope *Scope, wg *sync.WaitGroup) {
	for ctx.Err() == nil && len(m.events) <= maxEvents {
		t := m.take(&m.starts)
		if t == nil {
			return
		}
		m.launch(ctx, scope, wg, t)
	}
}

// launch starts a probe of t, with the lock held but for the start itself.
func (m *Monitor) launch(ctx context.Context, scope *Scope, wg *sync.WaitGroup, t *target) {
	p, ok := t.check.Prober.(Starter)
	if !ok { // the check was changed while it waited
		m.calls.push(t)
		if !m.launching {
			m.poke()
		}
		return
	}
	f := &flight{m: m, ctx: ctx, wg: wg, t: t, addr: t.check.Target, timeout: t.check.Timeout, slow: t.slow}
	due := t.due
	f.start = m.depart(t)
	t.flight = f
	wg.Add(1)
	stop := m.unlocked(func() func() { return f.begin(p, scope) })
	switch {
	case stop == nil: // it cannot be started
		if f.land() {
			m.stats.Probes--
		}
		if t.flight == f {
			t.flight = nil
			m.heap.remove(t)
			t.phase, t.due = ready, due
			m.calls.push(t)
			if !m.launching {
				m.poke()
			}
		}
	case t.flight == f && ctx.Err() == nil:
		t.cancel = stop
	case t.flight == f || f.dropped:
		m.mu.Unlock()
		stop()
		m.mu.Lock()
	}
}

// unlocked calls f without the lock, which is held again after it, also when f ends the
// goroutine.
func (m *Monitor) unlocked(f func() func()) func() {
	m.mu.Unlock()
	defer m.mu.Lock()
	return f()
}

// land ends f, and reports whether it had not ended before.
func (f *flight) land() bool {
	if !f.over.CompareAndSwap(false, true) {
		return false
	}
	f.wg.Done()
	f.m.arrive(f.slow)
	if f.m.calls.len() > 0 && f.m.idle > 0 {
		f.m.work.Signal()
	}
	return true
}

// drop gives up on f.
func (f *flight) drop() {
	f.dropped = true
	f.t.flight = nil
	f.land()
}

// landAll ends what is under way, at the end of Run.
func (m *Monitor) landAll(scope *Scope) {
	m.mu.Lock()
	var stops []func()
	for _, t := range m.targets {
		if t.flight != nil && t.cancel != nil {
			stops = append(stops, t.cancel)
		}
	}
	m.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
	_ = scope.Close() // closing what is only read and written has nothing to say
}

// begin calls the prober. One that panics says nothing about its target.
func (f *flight) begin(p Starter, scope *Scope) (stop func()) {
	returned := false
	defer func() {
		v := recover()
		if !returned && v == nil {
			f.done(Undecided("panic", f.addr, errors.New("prober ended its goroutine")))
		}
		if v != nil {
			f.m.cfg.Logger.Error("prober panicked", slog.Any("target", f.addr), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			f.done(Undecided("panic", f.addr, fmt.Errorf("prober panicked: %v", v)))
			stop = func() {}
		}
	}()
	stop = p.Start(scope, f.addr, time.Now().Add(f.timeout), f.done)
	returned = true
	return stop
}

// done takes in the result.
func (f *flight) done(r Result) {
	if f.over.Load() {
		return // without the lock: whoever dropped it may hold that
	}
	m, t := f.m, f.t
	m.mu.Lock()
	defer m.mu.Unlock()
	if !f.land() || t.flight != f {
		return
	}
	t.flight = nil
	m.finish(f.ctx, t, f.addr, f.timeout, f.start, r)
	if len(m.events) > 0 && !m.delivering && !m.launching {
		m.poke()
	}
}
