package healthcheck_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
)

func heap() uint64 {
	var ms runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&ms)
	return ms.HeapAlloc + ms.StackInuse
}

// scale runs n targets at 5 s, of which some hang and some fail, each failure with
// a text of its own, and checks that every one is probed as often as it should
// be, that no 100 ms slot has more than twice its share, and that memory and
// goroutines are bounded.
func scale(t *testing.T, n int, d time.Duration, made func(healthcheck.ProberFunc) healthcheck.Prober) {
	before := heap()
	synctest.Test(t, func(t *testing.T) {
		const slot = 100 * time.Millisecond
		begin := time.Now()
		var (
			mu    sync.Mutex
			slots [600]int
		)
		p := healthcheck.ProberFunc(func(ctx context.Context, a netip.AddrPort) healthcheck.Result {
			mu.Lock()
			slots[time.Since(begin)/slot]++
			mu.Unlock()
			switch b := a.Addr().As4()[3]; {
			case b == 1: // hangs
				<-ctx.Done()
				return healthcheck.Failure("tcp: connect", a, ctx.Err())
			case b < 10: // fails
				return healthcheck.Failure("http: status", a, fmt.Errorf("%v at %v: %w", a, time.Now(), errors.New("503 Service Unavailable")))
			case b < 50: // takes a while
				if _, ok := ctx.(quick); !ok {
					time.Sleep(20 * time.Millisecond)
				}
			}
			return healthcheck.Passed("200 OK")
		})
		prober := made(p)
		checks := make([]healthcheck.Check, n)
		for i := range checks {
			a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			checks[i] = healthcheck.Check{ID: "node-" + a.String(), Target: netip.AddrPortFrom(a, 80), Prober: prober}
		}
		m := newMonitor(t, nil, checks...)
		stop := start(t, m)
		time.Sleep(d)
		s := m.Stats()
		bytes := (int(heap()) - int(before)) / n
		goroutines := runtime.NumGoroutine()
		stop()

		share, probes := n/50, 0
		for i, k := range slots[:d/slot] {
			probes += k
			require.LessOrEqual(t, k, 2*share, "slot %d", i)
		}
		t.Logf("%d targets: %d bytes each, %d goroutines, %d probes in %v, late by %v at most", n, bytes, goroutines, probes, d, s.MaxLate)
		require.InEpsilon(t, n*int(d/time.Second)/5, probes, 0.15)
		require.LessOrEqual(t, s.MaxLate, 50*time.Millisecond)
		require.LessOrEqual(t, goroutines, max(256, n/50)+50)
		if !raceEnabled {
			require.LessOrEqual(t, bytes, 2048)
		}
		runtime.KeepAlive(m)
	})
}

func called(p healthcheck.ProberFunc) healthcheck.Prober { return p }

// slowStarted is a prober that is started. What takes a while, or hangs, waits for a timer and not in a
// goroutine.
type slowStarted struct{ healthcheck.ProberFunc }

func (s slowStarted) Start(_ *healthcheck.Scope, a netip.AddrPort, deadline time.Time, done func(healthcheck.Result)) func() {
	wait := time.Duration(0)
	switch b := a.Addr().As4()[3]; {
	case b == 1:
		wait = time.Until(deadline)
	case b >= 10 && b < 50:
		wait = 20 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if wait == 0 {
		done(s.Probe(ctx, a))
		return func() {}
	}
	r := s.Probe(quick{ctx}, a)
	once := sync.OnceFunc(func() { done(r) })
	timer := time.AfterFunc(wait, once)
	return func() {
		timer.Stop()
		once()
	}
}

// quick tells the prober of scale not to wait.
type quick struct{ context.Context }

// 5,000 targets, all of them started.
func TestScaleStarted(t *testing.T) {
	scale(t, 5_000, 15*time.Second, func(p healthcheck.ProberFunc) healthcheck.Prober { return slowStarted{p} })
}

// 100,000 targets.
func TestScale(t *testing.T) {
	if testing.Short() || raceEnabled {
		scale(t, 10_000, 15*time.Second, called)
		return
	}
	scale(t, 100_000, 15*time.Second, called)
}

// Every history full.
func TestScaleMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("memory is another under the race detector")
	}
	scale(t, 5_000, 55*time.Second, called)
}
