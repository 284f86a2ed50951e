package healthcheck_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
)

// starter is a Starter whose probes take a while, or, with a negative one, until their
// deadline. It keeps count of them.
type starter struct {
	result healthcheck.Result
	after  time.Duration
	live   atomic.Int32 // under way
	most   atomic.Int32
	begun  atomic.Int32
	stops  atomic.Int32
	called atomic.Int32 // Probe was
	refuse atomic.Bool  // to start
}

func (s *starter) Probe(context.Context, netip.AddrPort) healthcheck.Result {
	s.called.Add(1)
	return s.result
}

type starterKey struct{}

type closer struct{ closed atomic.Bool }

func (c *closer) Close() error {
	c.closed.Store(true)
	return nil
}

func (s *starter) Start(sc *healthcheck.Scope, target netip.AddrPort, deadline time.Time, done func(healthcheck.Result)) func() {
	if s.refuse.Load() {
		return nil
	}
	if _, err := sc.Load(starterKey{}, func() (io.Closer, error) { return &closer{}, nil }); err != nil {
		done(healthcheck.Undecided("x", target, err))
		return func() {}
	}
	s.begun.Add(1)
	n := s.live.Add(1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	end := func(r healthcheck.Result) func() {
		return func() {
			s.live.Add(-1)
			done(r)
		}
	}
	var once sync.Once
	if s.after == 0 {
		end(s.result)()
		return func() {}
	}
	r, after := s.result, s.after
	if after < 0 {
		r, after = healthcheck.Failure("x", target, context.DeadlineExceeded), time.Until(deadline)
	}
	timer := time.AfterFunc(after, func() { once.Do(end(r)) })
	return func() {
		s.stops.Add(1)
		timer.Stop()
		once.Do(end(healthcheck.Undecided("x", target, context.Canceled)))
	}
}

func starts(n int, p healthcheck.Prober) (checks []healthcheck.Check) {
	for i := range n {
		checks = append(checks, healthcheck.Check{ID: fmt.Sprint(i), Target: netip.AddrPortFrom(web1.Addr(), uint16(i+1)), Prober: p})
	}
	return checks
}

// Probes that can be started are: at once or later, they lead to the same states, at
// their places in the schedule.
func TestStarter(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 30 * time.Millisecond, -1} {
		synctest.Test(t, func(t *testing.T) {
			s := &starter{result: healthcheck.Passed("x"), after: after}
			results := 0
			m := newMonitor(t, &healthcheck.Config{OnResult: func(healthcheck.Check, healthcheck.Result, healthcheck.Status) { results++ }}, starts(150, s)...)
			stop := start(t, m)
			time.Sleep(29 * time.Second)
			stats := m.Stats()
			stop()
			require.Zero(t, s.called.Load())
			require.Zero(t, s.live.Load())
			require.Zero(t, m.Stats().InFlight)
			want := healthcheck.Active
			if after < 0 {
				want = healthcheck.Failed
			} else {
				require.InEpsilon(t, 150*6, results, 0.1)
			}
			for id, st := range m.All() {
				require.Equal(t, want, st.State, id)
				if after > 0 {
					require.InDelta(t, after, st.Latency, float64(25*time.Millisecond))
				}
			}
			require.LessOrEqual(t, stats.MaxLate, 50*time.Millisecond)
			require.Zero(t, stats.Workers)
			require.Equal(t, uint64(s.begun.Load()), m.Stats().Probes)
		})
	}
}

// A probe that cannot be started is called, as all are in a Step.
func TestStarterThatRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &starter{result: healthcheck.Passed("x")}
		s.refuse.Store(true)
		m := newMonitor(t, nil, starts(50, s)...)
		stop := start(t, m)
		time.Sleep(6 * time.Second)
		require.Zero(t, s.begun.Load())
		require.GreaterOrEqual(t, s.called.Load(), int32(50))
		require.Equal(t, uint64(s.called.Load()), m.Stats().Probes)
		s.refuse.Store(false)
		called := s.called.Load()
		time.Sleep(6 * time.Second)
		require.InDelta(t, called, s.called.Load(), 1)
		require.GreaterOrEqual(t, s.begun.Load(), int32(50))
		stop()
		called = s.called.Load()
		time.Sleep(6 * time.Second)
		n, _, err := m.Step(t.Context())
		require.NoError(t, err)
		require.Equal(t, 50, n)
		require.Equal(t, called+50, s.called.Load())
		for _, st := range m.All() {
			require.Equal(t, healthcheck.Active, st.State)
		}
	})
}

// No more probes are under way than the bound says, started and called ones together.
func TestStarterBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &starter{result: healthcheck.Passed("x"), after: time.Second}
		var live, most atomic.Int32
		called := healthcheck.ProberFunc(func(context.Context, netip.AddrPort) healthcheck.Result {
			defer live.Add(-1)
			if n := live.Add(1) + s.live.Load(); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(500 * time.Millisecond)
			return healthcheck.Passed("")
		})
		checks := starts(100, s)
		for i := range checks {
			if i%3 == 0 {
				checks[i].Prober = called
			}
		}
		m := newMonitor(t, &healthcheck.Config{MaxConcurrent: 10}, checks...)
		stop := start(t, m)
		time.Sleep(20 * time.Second)
		require.LessOrEqual(t, most.Load(), int32(10))
		require.LessOrEqual(t, s.most.Load(), int32(10))
		require.GreaterOrEqual(t, m.Stats().Queued, 1)
		stop()
		for id, st := range m.All() {
			require.Equal(t, healthcheck.Active, st.State, id)
		}
	})
}

// Started probes that hang leave room to others.
func TestStarterSlowTargets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang, quick := &starter{after: -1}, &starter{result: healthcheck.Passed(""), after: 10 * time.Millisecond}
		checks := starts(120, hang)
		for i := range 20 {
			checks[i].Prober = quick
		}
		m := newMonitor(t, &healthcheck.Config{MaxConcurrent: 20}, checks...)
		defer start(t, m)()
		time.Sleep(time.Minute)
		before := quick.begun.Load()
		time.Sleep(50 * time.Second)
		require.InDelta(t, 200, quick.begun.Load()-before, 25)
	})
}

// A started probe of a check that is gone, or of an old target, is stopped, and does not
// count. The end of Run stops all.
func TestStarterAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &starter{result: healthcheck.Failure("x", web1, errRefused), after: time.Hour}
		check := func(id string, p uint16) healthcheck.Check {
			return healthcheck.Check{ID: id, Target: netip.AddrPortFrom(web1.Addr(), p), Prober: s, Fall: 1, Timeout: 20 * time.Hour}
		}
		var rec recorder
		m := newMonitor(t, &healthcheck.Config{OnTransition: rec.add}, check("moved", 1), check("removed", 2))
		stop := start(t, m)
		time.Sleep(6 * time.Second)
		require.Equal(t, 2, m.Stats().InFlight)
		require.NoError(t, m.Set(check("moved", 3)))
		require.Equal(t, int32(2), s.stops.Load())
		time.Sleep(time.Second)
		require.Equal(t, 1, m.Stats().InFlight)
		require.Equal(t, int32(3), s.begun.Load())
		stop()
		require.Zero(t, m.Stats().InFlight)
		require.Zero(t, s.live.Load())
		require.Equal(t, "", rec.path())
		st, _ := m.Status("moved")
		require.Zero(t, st.Probes)
	})
}

// The check is removed while its probe is being started.
func TestStarterAbandonedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &starter{result: failing(), after: time.Hour}
		var m *healthcheck.Monitor
		p := starterFunc(func(sc *healthcheck.Scope, a netip.AddrPort, at time.Time, done func(healthcheck.Result)) func() {
			m.Delete("0")
			return s.Start(sc, a, at, done)
		})
		m = newMonitor(t, nil, starts(1, p)...)
		defer start(t, m)()
		time.Sleep(6 * time.Second)
		require.Equal(t, int32(1), s.stops.Load())
		require.Zero(t, s.live.Load())
		require.Zero(t, m.Stats().InFlight)
	})
}

type starterFunc func(*healthcheck.Scope, netip.AddrPort, time.Time, func(healthcheck.Result)) func()

func (f starterFunc) Probe(context.Context, netip.AddrPort) healthcheck.Result {
	return healthcheck.Passed("called")
}

func (f starterFunc) Start(s *healthcheck.Scope, a netip.AddrPort, at time.Time, done func(healthcheck.Result)) func() {
	return f(s, a, at, done)
}

// A prober that panics takes nothing along, and one that tells twice is heard once.
func TestStarterThatMisbehaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		checks := starts(3, starterFunc(func(*healthcheck.Scope, netip.AddrPort, time.Time, func(healthcheck.Result)) func() { panic("oops") }))
		checks[1].Prober = starterFunc(func(_ *healthcheck.Scope, _ netip.AddrPort, _ time.Time, done func(healthcheck.Result)) func() {
			done(healthcheck.Passed("first"))
			done(failing())
			return func() { done(failing()) }
		})
		stuck := make(chan struct{})
		checks[2].Prober = starterFunc(func(_ *healthcheck.Scope, _ netip.AddrPort, _ time.Time, done func(healthcheck.Result)) func() {
			return sync.OnceFunc(func() {
				close(stuck)
				done(failing())
			})
		})
		checks[2].Fall = 1
		m := newMonitor(t, nil, checks...)
		stop := start(t, m)
		time.Sleep(12 * time.Second)
		st, _ := m.Status("0")
		require.ErrorContains(t, st.Err, "prober panicked: oops")
		require.Equal(t, healthcheck.Enabled, st.State)
		st, _ = m.Status("1")
		require.Equal(t, healthcheck.Active, st.State)
		require.Zero(t, st.Failures)
		st, _ = m.Status("2")
		require.Equal(t, healthcheck.Failed, st.State)
		require.ErrorContains(t, st.Err, "probe still running")
		stop()
		<-stuck
	})
}

// A prober that ends the goroutine it is started in takes nothing along: not Run, nor the
// helpers, nor the probes that wait behind it.
func TestStarterThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 500} { // so many that helpers start some
		synctest.Test(t, func(t *testing.T) {
			s := &starter{result: healthcheck.Passed("")}
			checks := starts(n, s)
			for i := range n / 3 {
				checks[3*i].Prober = starterFunc(func(*healthcheck.Scope, netip.AddrPort, time.Time, func(healthcheck.Result)) func() {
					runtime.Goexit()
					return nil
				})
			}
			m := newMonitor(t, nil, checks...)
			stop := start(t, m)
			time.Sleep(6 * time.Second)
			for id := range m.All() {
				require.NoError(t, m.Trigger(id))
			}
			time.Sleep(16 * time.Second)
			require.Zero(t, m.Stats().InFlight)
			stop()
			for i, c := range checks {
				st, _ := m.Status(c.ID)
				require.GreaterOrEqual(t, st.Probes, uint64(4), c.ID)
				if i%3 == 0 && i < n/3*3 {
					require.Equal(t, healthcheck.Enabled, st.State)
					require.ErrorContains(t, st.Err, "prober ended its goroutine")
					require.ErrorIs(t, st.Err, healthcheck.ErrLocal)
				} else {
					require.Equal(t, healthcheck.Active, st.State)
				}
			}
		})
	}
}

// Many due at once are started by several, each once.
func TestStarterBurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &starter{result: healthcheck.Passed(""), after: time.Millisecond}
		m := newMonitor(t, &healthcheck.Config{MaxConcurrent: 5000}, starts(2000, s)...)
		stop := start(t, m)
		time.Sleep(6 * time.Second)
		begun := s.begun.Load()
		for id := range m.All() {
			require.NoError(t, m.Trigger(id))
		}
		time.Sleep(100 * time.Millisecond)
		require.InDelta(t, 2000+40, s.begun.Load()-begun, 60)
		stop()
	})
}

// A callback that blocks holds started probes back, in the end, and they go on after it.
func TestStarterBackPressure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &starter{result: healthcheck.Passed("")}
		release, blocked := make(chan struct{}), true
		m := newMonitor(t, &healthcheck.Config{OnResult: func(healthcheck.Check, healthcheck.Result, healthcheck.Status) {
			if blocked {
				<-release
				blocked = false
			}
		}}, starts(2000, s)...)
		stop := start(t, m)
		time.Sleep(time.Minute)
		require.InDelta(t, 4096, s.begun.Load(), 200)
		close(release)
		time.Sleep(10 * time.Second)
		require.Greater(t, s.begun.Load(), int32(7000))
		stop()
	})
}

func TestScope(t *testing.T) {
	t.Parallel()
	var s healthcheck.Scope
	fails := errors.New("no descriptors")
	_, err := s.Load(starterKey{}, func() (io.Closer, error) { return nil, fails })
	require.ErrorIs(t, err, fails)
	opened := 0
	open := func() (io.Closer, error) {
		opened++
		return &closer{}, nil
	}
	a, err := s.Load(starterKey{}, open)
	require.NoError(t, err)
	b, err := s.Load(starterKey{}, open)
	require.NoError(t, err)
	require.Same(t, a, b)
	require.Equal(t, 1, opened)
	require.NoError(t, s.Close())
	c, _ := a.(*closer)
	require.True(t, c.closed.Load())
	_, err = s.Load(starterKey{}, open)
	require.ErrorIs(t, err, healthcheck.ErrScopeClosed)
	require.NoError(t, s.Close())
}
