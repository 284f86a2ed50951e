package healthcheck_test

import (
	"context"
	"errors"
	"fmt"
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

// A callback that blocks for minutes stops the probes of nobody: not with a
// worker to spare, and not with one worker in all.
func TestBlockedCallbackStopsNoProbe(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var n, calls atomic.Int32
			release := make(chan struct{})
			m := newMonitor(t, &healthcheck.Config{MaxConcurrent: workers, OnTransition: func(healthcheck.Transition) { calls.Add(1); <-release }},
				healthcheck.Check{ID: "a", Target: web1, Prober: always(healthcheck.Passed(""))},
				healthcheck.Check{ID: "b", Target: web1, Prober: healthcheck.ProberFunc(func(context.Context, netip.AddrPort) healthcheck.Result {
					n.Add(1)
					return healthcheck.Passed("")
				})})
			stop := start(t, m)
			time.Sleep(5 * time.Minute)
			require.InDelta(t, 60, n.Load(), 3)
			require.Equal(t, int32(1), calls.Load())
			require.LessOrEqual(t, m.Stats().Workers, max(workers, 2))
			close(release)
			time.Sleep(time.Minute)
			require.LessOrEqual(t, m.Stats().Workers, max(workers, 2))
			stop()
			require.Equal(t, int32(2), calls.Load())
			require.Zero(t, m.Stats().Workers)
		})
	}
}

// However often something is reported of a check, it is probed no later.
func TestReportsDelayNoProbe(t *testing.T) {
	t.Parallel()
	for _, r := range []healthcheck.Result{healthcheck.Passed("agent"), {Verdict: healthcheck.Inconclusive}, failing()} {
		synctest.Test(t, func(t *testing.T) {
			var n atomic.Int32
			m := newMonitor(t, &healthcheck.Config{Jitter: -1}, healthcheck.Check{ID: "a", Target: web1, Prober: healthcheck.ProberFunc(
				func(context.Context, netip.AddrPort) healthcheck.Result { n.Add(1); return healthcheck.Passed("") })})
			stop := start(t, m)
			for range 600 {
				time.Sleep(100 * time.Millisecond)
				require.NoError(t, m.Report("a", r))
			}
			stop()
			require.GreaterOrEqual(t, n.Load(), int32(11))
		})
	}
}

// What is triggered is probed at once: also when it was before Run, and when it
// is changed or reported of meanwhile.
func TestTriggerIsNotForgotten(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(*healthcheck.Monitor, healthcheck.Check) error{
		"nothing": func(*healthcheck.Monitor, healthcheck.Check) error { return nil },
		"store":   func(m *healthcheck.Monitor, c healthcheck.Check) error { c.Interval = 2 * time.Hour; return m.Store(c) },
		"report":  func(m *healthcheck.Monitor, _ healthcheck.Check) error { return m.Report("a", failing()) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := healthcheck.Check{ID: "a", Target: web1, Prober: always(healthcheck.Passed("")), Interval: time.Hour, Timeout: time.Second}
				m := newMonitor(t, nil, c)
				require.NoError(t, m.Trigger("a"))
				require.NoError(t, between(m, c))
				time.Sleep(time.Millisecond)
				stop := start(t, m)
				time.Sleep(100 * time.Millisecond)
				st, _ := m.Status("a")
				require.Equal(t, healthcheck.Active, st.State)
				stop()
			})
		})
	}
}

// A probe of a check that was removed, or got another address, is cancelled, holds
// no worker, and does not count, even if it runs past its deadline.
func TestAbandonedProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		web2 := netip.MustParseAddrPort("[2001:db8::2]:80")
		var cancelled atomic.Int32
		hang := healthcheck.ProberFunc(func(ctx context.Context, a netip.AddrPort) healthcheck.Result {
			if a == web2 {
				return healthcheck.Passed("")
			}
			<-ctx.Done()
			cancelled.Add(1)
			time.Sleep(time.Minute) // it takes no heed
			return healthcheck.Failure("x", a, ctx.Err())
		})
		check := func(id string, a netip.AddrPort) healthcheck.Check {
			return healthcheck.Check{ID: id, Target: a, Prober: hang, Fall: 1, Timeout: 20 * time.Hour}
		}
		var rec recorder
		m := newMonitor(t, &healthcheck.Config{OnTransition: rec.add}, check("moved", web1), check("removed", web1))
		stop := start(t, m)
		time.Sleep(6 * time.Second)
		require.Equal(t, 2, m.Stats().InFlight)
		require.NoError(t, m.Set(check("moved", web2)))
		time.Sleep(time.Second)
		require.Equal(t, int32(2), cancelled.Load())
		st, _ := m.Status("moved")
		require.Equal(t, healthcheck.Active, st.State)
		time.Sleep(2 * time.Minute)
		require.Zero(t, m.Stats().InFlight)
		stop()
		require.Equal(t, "enabled active", rec.path())
		require.Zero(t, m.Stats().Overruns)
	})
}

// A pass that comes after the deadline is none.
func TestLatePassFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, Timeout: time.Second, Fall: 1, Prober: healthcheck.ProberFunc(
			func(context.Context, netip.AddrPort) healthcheck.Result {
				time.Sleep(1500 * time.Millisecond)
				return healthcheck.Passed("")
			})})
		stop := start(t, m)
		time.Sleep(20 * time.Second)
		stop()
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Failed, st.State)
		require.EqualError(t, st.Err, "deadline: passed after 1.5s, though its time was 1s")
	})
}

// A prober that ends its goroutine, as FailNow does, says nothing about the target
// and leaves the Monitor at work.
func TestProberThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMonitor(t, &healthcheck.Config{MaxConcurrent: 1},
			healthcheck.Check{ID: "a", Target: web1, Prober: healthcheck.ProberFunc(func(context.Context, netip.AddrPort) healthcheck.Result { runtime.Goexit(); panic("not here") })},
			healthcheck.Check{ID: "b", Target: web1, Prober: always(healthcheck.Passed(""))})
		stop := start(t, m)
		time.Sleep(time.Minute)
		a, _ := m.Status("a")
		b, _ := m.Status("b")
		stop()
		require.Equal(t, healthcheck.Enabled, a.State)
		require.ErrorContains(t, a.Err, "prober ended its goroutine")
		require.Greater(t, a.Probes, uint64(10))
		require.Greater(t, b.Probes, uint64(10))
		require.Zero(t, m.Stats().Workers)
		require.Zero(t, m.Stats().InFlight)
	})
}

// The panic of a callback reaches whoever made the call, and breaks nothing.
func TestCallbackThatPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		fall := healthcheck.Result{Verdict: healthcheck.Fail, Final: true, Err: errRefused}
		m := newMonitor(t, &healthcheck.Config{OnTransition: func(healthcheck.Transition) { panic(boom) }},
			healthcheck.Check{ID: "a", Target: web1, Prober: always(healthcheck.Passed(""))})
		require.PanicsWithError(t, "boom", func() { _ = m.Report("a", fall) })
		st, ok := m.Status("a")
		require.True(t, ok)
		require.Equal(t, healthcheck.Failed, st.State)
		time.Sleep(6 * time.Second)
		require.PanicsWithError(t, "boom", func() { _, _, _ = m.Step(t.Context()) })
		time.Sleep(6 * time.Second)
		_, _, err := m.Step(t.Context())
		require.NoError(t, err)

		r, err := healthcheck.NewRoster(&healthcheck.RosterConfig{OnPort: func(healthcheck.PortTransition) { panic(boom) }})
		require.NoError(t, err)
		require.PanicsWithError(t, "boom", func() {
			_ = r.Set(healthcheck.Setup{Servers: []healthcheck.Server{{Name: "a", Addr: s1, Ports: []healthcheck.Port{{Port: 80}}}}})
		})
		_, ok = r.Port("a", "80")
		require.True(t, ok)
	})
}

// Who reports something gets away, although others add results without end.
func TestReportReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var checks []healthcheck.Check
		for i := range 50 {
			checks = append(checks, healthcheck.Check{ID: fmt.Sprint(i), Target: web1, Prober: always(healthcheck.Passed("")), Interval: 10 * time.Millisecond})
		}
		m := newMonitor(t, &healthcheck.Config{OnResult: func(healthcheck.Check, healthcheck.Result, healthcheck.Status) { time.Sleep(time.Millisecond) }}, checks...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		begin := time.Now()
		require.NoError(t, m.Report("1", healthcheck.Passed("")))
		require.Less(t, time.Since(begin), time.Second)
		time.Sleep(time.Second)
		require.Greater(t, m.Stats().Probes, uint64(1000))
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

// 1,000 checks come and go while probes hang; callbacks call back.
func TestComingAndGoingLeaksNothing(t *testing.T) {
	// Beside no other: it counts goroutines.
	synctest.Test(t, func(t *testing.T) {
		var m *healthcheck.Monitor
		m, err := healthcheck.NewMonitor(&healthcheck.Config{OnTransition: func(tr healthcheck.Transition) {
			_, _ = m.Status(tr.Check.ID)
			switch tr.Status.Probes % 4 {
			case 0:
				m.Delete(tr.Check.ID)
			case 1:
				_ = m.Report(tr.Check.ID, healthcheck.Passed(""))
			case 2:
				_ = m.Store(tr.Check)
			}
		}})
		require.NoError(t, err)
		hang := healthcheck.ProberFunc(func(ctx context.Context, a netip.AddrPort) healthcheck.Result {
			if a.Port()%3 == 0 {
				<-ctx.Done()
				return healthcheck.Failure("x", a, ctx.Err())
			}
			return healthcheck.Passed("")
		})
		stop := start(t, m)
		before := runtime.NumGoroutine()
		for round := range 20 {
			var checks []healthcheck.Check
			for i := range 1000 {
				checks = append(checks, healthcheck.Check{ID: fmt.Sprint(i, "/", round%3), Target: netip.AddrPortFrom(web1.Addr(), uint16(i+1)),
					Prober: hang, Interval: time.Duration(1+round%2) * time.Second, Fall: 1 + round%3})
			}
			require.NoError(t, m.Set(checks...))
			time.Sleep(time.Second)
		}
		require.NoError(t, m.Set())
		time.Sleep(time.Second)
		s := m.Stats()
		require.Zero(t, s.InFlight)
		require.Zero(t, s.Queued)
		require.LessOrEqual(t, runtime.NumGoroutine(), before+s.Workers+50)
		stop()
	})
}

// Servers come up from nothing: 2,000 with two datagrams each. The second ones do
// not come all at once.
func TestBringUpLastIsSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		second := map[int64]int{}
		var checks []healthcheck.Check
		begin := time.Now()
		for i := range 2000 {
			n := 0
			checks = append(checks, healthcheck.Check{ID: fmt.Sprint(i), Target: web1, Rise: 2, BringUpLast: true, Prober: healthcheck.ProberFunc(
				func(context.Context, netip.AddrPort) healthcheck.Result {
					mu.Lock()
					defer mu.Unlock()
					if n++; n == 2 {
						second[int64(time.Since(begin)/(100*time.Millisecond))]++
					}
					return healthcheck.Assumed("")
				})})
		}
		m := newMonitor(t, nil, checks...)
		stop := start(t, m)
		time.Sleep(8 * time.Second)
		stop()
		sum := 0
		for _, k := range second {
			sum += k
			require.LessOrEqual(t, k, 500)
		}
		require.Equal(t, 2000, sum)
	})
}
