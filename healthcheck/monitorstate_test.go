package healthcheck_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
)

func TestMonitorHoldDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		ok, bad := healthcheck.Passed(""), failing()
		m := newMonitor(t, &healthcheck.Config{OnTransition: rec.add, Jitter: -1}, healthcheck.Check{
			ID: "a", Target: web1, Prober: healthchecktest.Script(ok, bad, ok, ok, bad, ok), Fall: 1, HoldDown: 120 * time.Second,
		})
		stop := start(t, m)
		time.Sleep(40 * time.Second)
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Failed, st.State)
		require.False(t, st.HoldUntil.IsZero())
		time.Sleep(4 * time.Minute)
		stop()
		require.Equal(t, "enabled active failed active", rec.path())
		// It counts from the first pass after the last failure.
		require.Equal(t, st.HoldUntil, rec.ts[2].Status.Since)
		require.Equal(t, 140*time.Second, rec.ts[2].Status.Since.Sub(rec.ts[1].Status.Since))
		require.Equal(t, rec.ts[2].Status.Since, rec.ts[2].Status.RampFrom)
		require.Zero(t, rec.ts[0].Status.RampFrom) // no slow start at the start of the process
	})
}

func TestMonitorNoKeepalive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, NoKeepalive: true, Prober: healthcheck.ProberFunc(
			func(context.Context, netip.AddrPort) healthcheck.Result { n.Add(1); return healthcheck.Passed("") })})
		stop := start(t, m)
		time.Sleep(time.Minute)
		require.Equal(t, int32(1), n.Load())
		require.NoError(t, m.Report("a", healthcheck.Result{Verdict: healthcheck.Fail, Final: true, Err: errors.New("21 SYNs unanswered")}))
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Failed, st.State)
		time.Sleep(time.Minute)
		stop()
		st, _ = m.Status("a")
		require.Equal(t, healthcheck.Active, st.State)
		require.Equal(t, int32(2), n.Load())
	})
}

// What is not the active check fails a target and never revives it.
func TestMonitorReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, Prober: always(failing())})
		stop := start(t, m)
		time.Sleep(time.Minute)
		for range 10 {
			require.NoError(t, m.Report("a", healthcheck.Passed("agent: up 100%")))
		}
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Failed, st.State)
		require.Equal(t, "agent: up 100%", st.Note)
		require.Equal(t, healthcheck.Fail, st.StreakVerdict)
		stop()
	})
}

func TestMonitorProberThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := healthcheck.ProberFunc(func(context.Context, netip.AddrPort) healthcheck.Result {
			<-release
			return healthcheck.Passed("")
		})
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, Prober: p})
		stop := start(t, m)
		time.Sleep(time.Minute)
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Failed, st.State)
		require.ErrorContains(t, st.Err, "probe still running")
		s := m.Stats()
		require.Equal(t, 1, s.InFlight)
		require.Equal(t, uint64(1), s.Probes)
		close(release)
		time.Sleep(time.Minute)
		st, _ = m.Status("a")
		require.Equal(t, healthcheck.Active, st.State)
		stop()
	})
}

func TestMonitorProberThatPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, Prober: healthcheck.ProberFunc(
			func(context.Context, netip.AddrPort) healthcheck.Result { panic("oops") })})
		stop := start(t, m)
		time.Sleep(time.Minute)
		stop()
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Unknown, st.State)
		require.ErrorContains(t, st.Err, "prober panicked: oops")
	})
}

func TestMonitorStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, Prober: always(healthcheck.Passed(""))})
		n, next, err := m.Step(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		require.LessOrEqual(t, time.Until(next), 5*time.Second)
		time.Sleep(time.Until(next))
		n, next, err = m.Step(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Greater(t, time.Until(next), 4*time.Second)
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Active, st.State)
	})
}

func TestMonitorRunTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, Prober: always(healthcheck.Passed(""))})
		stop := start(t, m)
		synctest.Wait()
		require.ErrorIs(t, m.Run(t.Context()), healthcheck.ErrRunning)
		_, _, err := m.Step(t.Context())
		require.ErrorIs(t, err, healthcheck.ErrRunning)
		time.Sleep(time.Minute)
		stop()
		st, _ := m.Status("a")
		stop = start(t, m)
		time.Sleep(time.Minute)
		stop()
		st2, _ := m.Status("a")
		require.Equal(t, st.Since, st2.Since)
		require.Greater(t, st2.Probes, st.Probes+10)
	})
}

func TestMonitorHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ok, bad := healthcheck.Passed("fine"), failing()
		m := newMonitor(t, &healthcheck.Config{History: 3}, healthcheck.Check{ID: "a", Target: web1, Prober: healthchecktest.Script(ok, ok, bad, ok, bad)})
		require.Empty(t, m.History("a"))
		stop := start(t, m)
		for st := (healthcheck.Status{}); st.Probes < 5; st, _ = m.Status("a") {
			time.Sleep(100 * time.Millisecond)
		}
		stop()
		h := m.History("a")
		require.Len(t, h, 3)
		require.Equal(t, []healthcheck.Verdict{healthcheck.Fail, healthcheck.Pass, healthcheck.Fail}, []healthcheck.Verdict{h[0].Verdict, h[1].Verdict, h[2].Verdict})
		require.Equal(t, "fine", h[1].Text)
		require.Equal(t, "tcp: connect: connection refused", h[2].Text)
		require.True(t, h[0].At.Before(h[1].At))
		require.Nil(t, m.History("nobody"))
	})
}

// What a history keeps of a text is bounded, as a server may have written it.
func TestMonitorHistoryOfLongTexts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, Prober: always(healthcheck.Passed("a" + strings.Repeat("é", 50_000)))})
		require.NoError(t, m.Report("a", healthcheck.Failure("data plane", web1, errors.New(strings.Repeat("x", 50_000)))))
		stop := start(t, m)
		time.Sleep(time.Minute)
		stop()
		h := m.History("a")
		require.Len(t, h, 8)
		for _, r := range h {
			require.LessOrEqual(t, len(r.Text), 1030)
			require.True(t, utf8.ValidString(r.Text))
			require.True(t, strings.HasSuffix(r.Text, "…"))
		}
		require.NoError(t, m.Report("a", healthcheck.Passed(strings.Repeat("\x80", 5000))))
		require.Less(t, len(m.History("a")[7].Text), 1030)
	})
}

func TestCheckErrorsAllAtOnce(t *testing.T) {
	t.Parallel()
	m, err := healthcheck.NewMonitor(nil)
	require.NoError(t, err)
	good := healthcheck.Check{ID: "a", Target: web1, Prober: always(healthcheck.Passed(""))}
	require.NoError(t, m.Set(good))
	err = m.Set(good, good, healthcheck.Check{ID: "x", Interval: time.Millisecond, FastInterval: time.Hour, Timeout: -1, Rise: -1, Fall: -2, HoldDown: -1})
	for _, want := range []string{
		`check "a": ID used by checks 0 and 1, want it unique`,
		`check "x": Target invalid AddrPort, want an address and port`,
		`Prober <nil>, want a prober`,
		`Interval 1ms, want 10ms to 24h`,
		`FastInterval 1h0m0s, want 10ms to Interval`,
		`Timeout -1ns, want 1ms to 24h`,
		`Rise -1, want`, `Fall -2, want`, `HoldDown -1ns, want`,
	} {
		require.ErrorContains(t, err, want)
	}
	// A default that comes from a wrong value is no fault of its own.
	err = healthcheck.Check{ID: "x", Target: web1, Prober: good.Prober, Interval: -1}.Validate()
	require.EqualError(t, err, `healthcheck: check "x": Interval -1ns, want 10ms to 24h`)
	require.Equal(t, 1, m.Len())
	_, err = healthcheck.NewMonitor(&healthcheck.Config{MaxConcurrent: -1, Jitter: 0.7, History: 5000})
	require.ErrorContains(t, err, "MaxConcurrent -1")
	require.ErrorContains(t, err, "Jitter 0.7")
	require.ErrorContains(t, err, "History 5000")
}

// Without keepalive a target that moved is asked once at its new address, and a probe that said nothing is made again.
func TestMonitorNoKeepaliveAsksUntilItKnows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		web2 := netip.MustParseAddrPort("[2001:db8::2]:80")
		var mu sync.Mutex
		var asked []netip.AddrPort
		take := func() []netip.AddrPort {
			mu.Lock()
			defer mu.Unlock()
			out := asked
			asked = nil
			return out
		}
		var local atomic.Bool
		c := healthcheck.Check{ID: "a", Target: web1, NoKeepalive: true, Prober: healthcheck.ProberFunc(
			func(_ context.Context, a netip.AddrPort) healthcheck.Result {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, a)
				switch {
				case local.Load():
					return healthcheck.Undecided("test", a, errors.New("no descriptors"))
				case a == web2:
					return failing()
				}
				return healthcheck.Passed("")
			})}
		m := newMonitor(t, nil, c)
		stop := start(t, m)
		time.Sleep(time.Minute)
		require.Equal(t, []netip.AddrPort{web1}, take())

		local.Store(true)
		require.NoError(t, m.Trigger("a"))
		time.Sleep(time.Minute)
		require.Greater(t, len(take()), 5, "asked for a reason, and not answered")
		local.Store(false)
		time.Sleep(time.Minute)
		take()
		time.Sleep(time.Minute)
		require.Empty(t, take())

		c.Target = web2
		require.NoError(t, m.Set(c))
		time.Sleep(time.Minute)
		require.Contains(t, take(), web2)
		st, _ := m.Status("a")
		require.Equal(t, healthcheck.Failed, st.State)
		stop()
	})
}

// What was asked when Run ended is asked in the next one.
func TestMonitorNoKeepaliveOverTwoRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var hang atomic.Bool
		var n atomic.Int32
		m := newMonitor(t, nil, healthcheck.Check{ID: "a", Target: web1, NoKeepalive: true, Prober: healthcheck.ProberFunc(
			func(ctx context.Context, _ netip.AddrPort) healthcheck.Result {
				n.Add(1)
				if hang.Load() {
					<-ctx.Done()
					return failing()
				}
				return healthcheck.Passed("")
			})})
		stop := start(t, m)
		time.Sleep(time.Minute)
		hang.Store(true)
		require.NoError(t, m.Trigger("a"))
		time.Sleep(time.Second)
		stop()
		hang.Store(false)
		require.EqualValues(t, 2, n.Load())
		stop = start(t, m)
		time.Sleep(time.Minute)
		stop()
		require.EqualValues(t, 3, n.Load())
	})
}
