package healthcheck_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
)

var web1 = netip.MustParseAddrPort("192.0.2.1:80")

func always(r healthcheck.Result) healthcheck.Prober {
	return healthcheck.ProberFunc(func(context.Context, netip.AddrPort) healthcheck.Result { return r })
}

var errRefused = errors.New("connection refused")

func failing() healthcheck.Result { return healthcheck.Failure("tcp: connect", web1, errRefused) }

// start runs m until the test ends, and returns what stops it earlier.
func start(t *testing.T, m *healthcheck.Monitor) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	t.Cleanup(cancel)
	return stop
}

// recorder keeps transitions.
type recorder struct {
	mu sync.Mutex
	ts []healthcheck.Transition
}

func (r *recorder) add(t healthcheck.Transition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ts = append(r.ts, t)
}

func (r *recorder) path() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := ""
	for i, t := range r.ts {
		if i == 0 {
			s = t.From.String()
		}
		s += " " + t.To.String()
	}
	return s
}

func newMonitor(t *testing.T, cfg *healthcheck.Config, checks ...healthcheck.Check) *healthcheck.Monitor {
	m, err := healthcheck.NewMonitor(cfg)
	require.NoError(t, err)
	require.NoError(t, m.Set(checks...))
	return m
}

func TestMonitorRiseAndFall(t *testing.T) {
	t.Parallel()
	ok, bad, unk := healthcheck.Passed(""), failing(), healthcheck.Undecided("tcp", web1, errors.New("no route"))
	for _, c := range []struct {
		name       string
		rise, fall int
		results    []healthcheck.Result
		want       string
	}{
		{"first pass is enough", 0, 0, []healthcheck.Result{ok}, "enabled active"},
		{"counts in a row, not over life", 1, 3, []healthcheck.Result{ok, bad, ok, ok, bad, ok, ok, bad, ok}, "enabled active suspect active suspect active suspect active"},
		{"third failure in a row", 1, 3, []healthcheck.Result{ok, bad, bad, bad}, "enabled active suspect failed"},
		{"never up", 1, 3, []healthcheck.Result{bad, bad, bad, bad}, "enabled testing failed"},
		{"rise of two", 2, 3, []healthcheck.Result{ok, ok}, "enabled testing active"},
		{"rise broken by a failure", 2, 3, []healthcheck.Result{ok, bad, ok, ok}, "enabled testing active"},
		{"inconclusive is as if it had not been", 2, 2, []healthcheck.Result{ok, unk, ok, bad, unk, unk, bad}, "enabled testing active suspect failed"},
		{"inconclusive alone changes nothing", 1, 1, []healthcheck.Result{unk, unk}, ""},
		{"silence counts as life", 1, 1, []healthcheck.Result{healthcheck.Assumed("silence")}, "enabled active"},
		{"final failure needs no repetition", 1, 3, []healthcheck.Result{ok, {Verdict: healthcheck.Fail, Err: errRefused, Final: true}}, "enabled active failed"},
		{"fall of one", 1, 1, []healthcheck.Result{ok, bad, ok}, "enabled active failed active"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var rec recorder
				m := newMonitor(t, &healthcheck.Config{OnTransition: rec.add}, healthcheck.Check{
					ID: "a", Target: web1, Prober: healthchecktest.Script(append(c.results, healthcheck.Result{})...), Rise: c.rise, Fall: c.fall,
				})
				stop := start(t, m)
				time.Sleep(5 * time.Second * time.Duration(len(c.results)+2))
				stop()
				require.Equal(t, c.want, rec.path())
			})
		})
	}
}

func TestMonitorReportsInconclusiveWithCause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		cause := errors.New("no route")
		m := newMonitor(t, &healthcheck.Config{OnResult: func(c healthcheck.Check, r healthcheck.Result, st healthcheck.Status) {
			require.Equal(t, healthcheck.Inconclusive, r.Verdict)
			require.EqualError(t, r.Err, "tcp: local: no route")
			n.Add(1)
		}}, healthcheck.Check{ID: "a", Target: web1, Prober: always(healthcheck.Undecided("tcp", web1, cause))})
		stop := start(t, m)
		time.Sleep(60 * time.Second)
		stop()
		require.GreaterOrEqual(t, n.Load(), int32(11))
		st, ok := m.Status("a")
		require.True(t, ok)
		require.Equal(t, healthcheck.Unknown, st.State)
		require.ErrorIs(t, st.Err, cause)
		require.ErrorIs(t, st.Err, healthcheck.ErrLocal)
		require.Zero(t, st.Failures)
	})
}

// An active target whose probes turn inconclusive stays active.
func TestMonitorLocalFailureKeepsState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, Prober: healthchecktest.Script(healthcheck.Passed(""), healthcheck.Undecided("tcp", web1, errors.New("too many open files")))})
		stop := start(t, m)
		time.Sleep(time.Minute)
		stop()
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Active, st.State)
		require.Equal(t, healthcheck.Inconclusive, st.Verdict)
	})
}

func TestMonitorSpreadsFirstProbes(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5000} {
		synctest.Test(t, func(t *testing.T) {
			const slot = 100 * time.Millisecond
			var mu sync.Mutex
			slots := map[int]int{}
			var begin time.Time
			p := healthcheck.ProberFunc(func(context.Context, netip.AddrPort) healthcheck.Result {
				mu.Lock()
				slots[int(time.Since(begin)/slot)]++
				mu.Unlock()
				return healthcheck.Passed("")
			})
			checks := make([]healthcheck.Check, n)
			for i := range checks {
				checks[i] = healthcheck.Check{ID: fmt.Sprint(i), Target: web1, Prober: p}
			}
			m := newMonitor(t, &healthcheck.Config{Seed: uint64(n)}, checks...)
			time.Sleep(time.Hour) // however long before Run they were added
			begin = time.Now()
			stop := start(t, m)
			time.Sleep(30 * time.Second)
			stop()
			total := 0
			for s, k := range slots {
				total += k
				require.LessOrEqual(t, k, 2*n/50, "slot %d", s)
			}
			require.InEpsilon(t, 6*n, total, 0.05)
		})
	}
}

func TestMonitorJitter(t *testing.T) {
	t.Parallel()
	gaps := func(jitter float64) (lo, hi time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			var at []time.Time
			p := healthcheck.ProberFunc(func(context.Context, netip.AddrPort) healthcheck.Result {
				at = append(at, time.Now())
				return healthcheck.Passed("")
			})
			m := newMonitor(t, &healthcheck.Config{Jitter: jitter, Seed: 1}, healthcheck.Check{ID: "a", Target: web1, Prober: p})
			stop := start(t, m)
			time.Sleep(10 * time.Minute)
			stop()
			lo = time.Hour
			for i := range at[1:] {
				d := at[i+1].Sub(at[i])
				lo, hi = min(lo, d), max(hi, d)
			}
		})
		return lo, hi
	}
	lo, hi := gaps(0)
	require.Greater(t, lo, 4400*time.Millisecond)
	require.Less(t, lo, 4900*time.Millisecond)
	require.Greater(t, hi, 5100*time.Millisecond)
	require.Less(t, hi, 5600*time.Millisecond)
	lo, hi = gaps(-1)
	require.Equal(t, []time.Duration{5 * time.Second, 5 * time.Second}, []time.Duration{lo, hi})
}

func TestMonitorFasterInTransition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		ok, bad := healthcheck.Passed(""), failing()
		var at []time.Time
		onResult := func(_ healthcheck.Check, _ healthcheck.Result, st healthcheck.Status) { at = append(at, st.LastProbe) }
		m := newMonitor(t, &healthcheck.Config{OnTransition: rec.add, OnResult: onResult, Jitter: -1}, healthcheck.Check{
			ID: "a", Target: web1, Prober: healthchecktest.Script(ok, bad, bad, bad, bad, ok, ok), Rise: 2, FastInterval: time.Second,
		})
		stop := start(t, m)
		time.Sleep(time.Minute)
		stop()
		require.Equal(t, "enabled testing failed active", rec.path())
		require.Equal(t, 3*time.Second, rec.ts[1].Status.Since.Sub(rec.ts[0].Status.Since))
		require.Greater(t, at[4].Sub(at[3]), 2*time.Second) // failed: nothing is about to change
		require.Equal(t, time.Second, at[6].Sub(at[5]))
	})
}

func TestMonitorBoundsConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		p := healthcheck.ProberFunc(func(ctx context.Context, _ netip.AddrPort) healthcheck.Result {
			n := now.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			<-ctx.Done()
			now.Add(-1)
			return failing()
		})
		checks := make([]healthcheck.Check, 500)
		for i := range checks {
			checks[i] = healthcheck.Check{ID: fmt.Sprint(i), Target: web1, Prober: p}
		}
		m := newMonitor(t, &healthcheck.Config{MaxConcurrent: 20}, checks...)
		stop := start(t, m)
		time.Sleep(time.Minute)
		s := m.Stats()
		stop()
		require.Equal(t, int32(20), most.Load())
		require.Equal(t, 20, s.Workers)
		require.Greater(t, s.Queued, 0)
		require.Equal(t, 500, s.Checks)
	})
}

// Targets that hang must not delay the others, although there are more of them
// than workers.
func TestMonitorSlowTargetsDelayNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := healthcheck.ProberFunc(func(ctx context.Context, _ netip.AddrPort) healthcheck.Result {
			<-ctx.Done()
			return failing()
		})
		var mu sync.Mutex
		last, worst := map[netip.AddrPort]time.Time{}, time.Duration(0)
		quick := healthcheck.ProberFunc(func(_ context.Context, a netip.AddrPort) healthcheck.Result {
			mu.Lock()
			defer mu.Unlock()
			if at, ok := last[a]; ok {
				worst = max(worst, time.Since(at))
			}
			last[a] = time.Now()
			return healthcheck.Passed("")
		})
		var checks []healthcheck.Check
		for i := range 100 {
			checks = append(checks, healthcheck.Check{ID: fmt.Sprint("hang", i), Target: web1, Prober: hang})
			checks = append(checks, healthcheck.Check{ID: fmt.Sprint("quick", i), Target: netip.AddrPortFrom(web1.Addr(), uint16(i+1)), Prober: quick})
		}
		m := newMonitor(t, &healthcheck.Config{MaxConcurrent: 40}, checks...)
		stop := start(t, m)
		time.Sleep(30 * time.Second) // the slow ones are not known yet
		mu.Lock()
		worst = 0
		mu.Unlock()
		time.Sleep(5 * time.Minute)
		stop()
		require.Less(t, worst, 5600*time.Millisecond)
		require.Len(t, last, 100)
	})
}

func TestMonitorOrderOneAtATime(t *testing.T) {
	t.Parallel()
	for name, made := range map[string]func(healthcheck.ProberFunc) healthcheck.Prober{
		"called":              func(p healthcheck.ProberFunc) healthcheck.Prober { return p },
		"started":             func(p healthcheck.ProberFunc) healthcheck.Prober { return started{p, 0} },
		"started, in a while": func(p healthcheck.ProberFunc) healthcheck.Prober { return started{p, 3 * time.Millisecond} },
	} {
		t.Run(name, func(t *testing.T) { orderOneAtATime(t, made) })
	}
}

// started is a prober that can be started, and takes a while.
type started struct {
	healthcheck.ProberFunc
	after time.Duration
}

func (s started) Start(_ *healthcheck.Scope, a netip.AddrPort, _ time.Time, done func(healthcheck.Result)) func() {
	if s.after == 0 {
		done(s.Probe(context.Background(), a))
		return func() {}
	}
	r := s.Probe(context.Background(), a)
	once := sync.OnceFunc(func() { done(r) })
	timer := time.AfterFunc(s.after, once)
	return func() {
		timer.Stop()
		once()
	}
}

func orderOneAtATime(t *testing.T, made func(healthcheck.ProberFunc) healthcheck.Prober) {
	synctest.Test(t, func(t *testing.T) {
		var inside atomic.Int32
		state := map[string]healthcheck.State{}
		n := 0
		var m *healthcheck.Monitor
		cfg := &healthcheck.Config{OnTransition: func(tr healthcheck.Transition) {
			require.Equal(t, int32(1), inside.Add(1))
			require.Equal(t, state[tr.Check.ID], tr.From)
			require.Equal(t, tr.To, tr.Status.State)
			state[tr.Check.ID] = tr.To
			n++
			time.Sleep(time.Millisecond) // others have to wait
			_, ok := m.Status(tr.Check.ID)
			require.True(t, ok)
			inside.Add(-1)
		}}
		var checks []healthcheck.Check
		for i := range 200 {
			var k atomic.Int32
			checks = append(checks, healthcheck.Check{ID: fmt.Sprint(i), Target: web1, Fall: 1, Interval: time.Second, Prober: made(
				func(context.Context, netip.AddrPort) healthcheck.Result {
					if k.Add(1)%2 == 0 {
						return failing()
					}
					return healthcheck.Passed("")
				})})
		}
		m = newMonitor(t, cfg, checks...)
		stop := start(t, m)
		time.Sleep(20 * time.Second)
		stop()
		require.Greater(t, n, 3000)
	})
}

func TestMonitorSetKeepsState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		a := healthcheck.Check{ID: "a", Target: web1, Prober: always(healthcheck.Passed(""))}
		b := healthcheck.Check{ID: "b", Target: web1, Prober: always(failing())}
		m := newMonitor(t, &healthcheck.Config{OnTransition: rec.add}, a, b)
		stop := start(t, m)
		time.Sleep(30 * time.Second)
		before, _ := m.Status("a")
		require.Equal(t, healthcheck.Active, before.State)
		n := len(rec.ts)

		a.Interval = time.Second // changed
		c := healthcheck.Check{ID: "c", Target: web1, Prober: always(healthcheck.Passed(""))}
		require.NoError(t, m.Set(a, c)) // b removed, c added
		st, ok := m.Status("a")
		require.True(t, ok)
		require.Equal(t, before.Since, st.Since)
		require.Equal(t, before.Probes, st.Probes)
		_, ok = m.Status("b")
		require.False(t, ok)
		time.Sleep(10 * time.Second)
		st2, _ := m.Status("a")
		require.InDelta(t, 10, st2.Probes-st.Probes, 2)
		require.Equal(t, healthcheck.Active, st2.State)
		require.Len(t, rec.ts, n+1) // c up; nothing about a and b
		require.Equal(t, "c", rec.ts[n].Check.ID)

		require.NoError(t, m.Store(b))
		require.Equal(t, 3, m.Len())
		require.Equal(t, 2, m.Delete("b", "c", "nobody"))
		seen := 0
		for id, st := range m.All() {
			require.Equal(t, "a", id)
			require.Equal(t, healthcheck.Active, st.State)
			seen++
		}
		require.Equal(t, 1, seen)
		stop()
		require.NoError(t, m.Set())
		require.Zero(t, m.Len())
	})
}

func TestMonitorTargetMovedWhileProbed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		web2 := netip.MustParseAddrPort("[2001:db8::2]:80")
		p := healthcheck.ProberFunc(func(ctx context.Context, a netip.AddrPort) healthcheck.Result {
			time.Sleep(time.Second)
			if a == web1 {
				return failing()
			}
			return healthcheck.Passed("")
		})
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, Prober: p, Fall: 1})
		stop := start(t, m)
		require.NoError(t, m.Trigger("a"))
		time.Sleep(500 * time.Millisecond)
		require.NoError(t, m.Set(healthcheck.Check{ID: "a", Target: web2, Prober: p, Fall: 1}))
		time.Sleep(2 * time.Second)
		stop()
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Active, st.State) // the late failure of the old address is none
		require.Zero(t, st.Failures)
	})
}

func TestMonitorRemovedWhileProbed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		p := healthcheck.ProberFunc(func(ctx context.Context, a netip.AddrPort) healthcheck.Result {
			<-ctx.Done()
			return failing()
		})
		m := newMonitor(t, &healthcheck.Config{OnTransition: rec.add}, healthcheck.Check{ID: "a", Target: web1, Prober: p, Fall: 1})
		stop := start(t, m)
		require.NoError(t, m.Trigger("a"))
		time.Sleep(time.Second)
		require.NoError(t, m.Set())
		time.Sleep(20 * time.Second)
		stop()
		require.Empty(t, rec.ts)
		require.ErrorIs(t, m.Trigger("a"), healthcheck.ErrUnknownCheck)
		require.ErrorIs(t, m.Report("a", healthcheck.Passed("")), healthcheck.ErrUnknownCheck)
	})
}
