package healthcheck

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The heap against a plain list.
func TestTargetHeap(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	var h targetHeap
	var list []*target
	for range 20000 {
		switch {
		case len(list) == 0 || rnd.IntN(3) > 0 && len(list) < 500:
			x := &target{due: int64(rnd.IntN(1000)), heapAt: -1}
			h.push(x)
			list = append(list, x)
		case rnd.IntN(2) == 0:
			i := rnd.IntN(len(list))
			h.remove(list[i])
			require.Equal(t, int32(-1), list[i].heapAt)
			h.remove(list[i]) // again: nothing
			list = slices.Delete(list, i, i+1)
		default:
			x := h[0].t
			least := slices.MinFunc(list, func(a, b *target) int { return int(a.due - b.due) })
			require.Equal(t, least.due, x.due)
			h.remove(x)
			list = slices.DeleteFunc(list, func(y *target) bool { return y == x })
		}
		require.Len(t, h, len(list))
	}
	for i, it := range h {
		require.Equal(t, int32(i), it.t.heapAt)
		require.Equal(t, it.t.due, it.due)
	}
}

func TestQueue(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	var q queue
	var list []*target
	for i := range 50000 {
		if rnd.IntN(100) < 50+i/2000%2*10-5 {
			x := new(target)
			q.push(x)
			list = append(list, x)
		} else if x := q.pop(); len(list) == 0 {
			require.Nil(t, x)
		} else {
			require.Same(t, list[0], x)
			list = list[1:]
		}
		require.Equal(t, len(list), q.len())
		if len(list) > 0 {
			require.Same(t, list[0], q.first())
		}
	}
}

// Any run of consecutive numbers, and every second or third of them, is spread
// evenly from any start.
func TestSpread(t *testing.T) {
	t.Parallel()
	for _, n := range []int{50, 500, 5000, 100_000} {
		for _, step := range []uint64{1, 2, 3, 10} {
			var slots [50]int
			first := mix(uint64(n) * step)
			for i := range n {
				slots[spread(first+uint64(i)*step, 50)]++
			}
			require.LessOrEqual(t, slices.Max(slots[:]), max(2*n/50, 3), "%d with step %d", n, step)
		}
	}
}

func TestGridKeepsPhase(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 10000 {
		x := &target{seq: rnd.Uint64(), check: Check{Interval: time.Duration(1 + rnd.Int64N(int64(time.Minute)))}}
		now := rnd.Int64N(int64(time.Hour))
		at := x.grid(now)
		require.GreaterOrEqual(t, at, now)
		iv := int64(x.check.Interval)
		if now >= iv {
			require.Less(t, at-now, iv)
		}
		require.Equal(t, at, x.grid(at))
		require.Equal(t, at+iv, x.grid(at+1))
		j := x.jitter(x.check.Interval, 50)
		require.LessOrEqual(t, max(j, -j), iv/20+1)
	}
}

// The second datagram of a UDP bring-up comes a while after the first, when all
// others being brought up had theirs.
func TestBringUpLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		at := map[netip.AddrPort][]time.Time{}
		p := ProberFunc(func(_ context.Context, a netip.AddrPort) Result {
			mu.Lock()
			defer mu.Unlock()
			at[a] = append(at[a], time.Now())
			return Assumed("silence")
		})
		m, err := NewMonitor(nil)
		require.NoError(t, err)
		var checks []Check
		for i := range 50 {
			checks = append(checks, Check{ID: fmt.Sprint(i), Target: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(i+1)), Prober: p, Rise: 2, BringUpLast: true})
		}
		require.NoError(t, m.Set(checks...))
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		go func() { _ = m.Run(ctx) }()
		time.Sleep(11 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		var lastFirst time.Time
		for _, ts := range at {
			if ts[0].After(lastFirst) {
				lastFirst = ts[0]
			}
		}
		for _, ts := range at {
			require.GreaterOrEqual(t, len(ts), 2)
			require.GreaterOrEqual(t, ts[1].Sub(ts[0]), 950*time.Millisecond)
			require.False(t, ts[1].Before(lastFirst))
			require.Less(t, ts[1].Sub(lastFirst), 1200*time.Millisecond)
		}
		for _, st := range m.All() {
			require.Equal(t, Active, st.State)
		}
		cancel()
	})
}

// A check that never has a result holds up the others' bring-up for an interval,
// no longer.
func TestBringUpLastIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, err := NewMonitor(nil)
		require.NoError(t, err)
		never := ProberFunc(func(ctx context.Context, _ netip.AddrPort) Result { <-ctx.Done(); return Result{} })
		ok := ProberFunc(func(context.Context, netip.AddrPort) Result { return Assumed("") })
		to := netip.MustParseAddrPort("192.0.2.1:53")
		require.NoError(t, m.Set(Check{ID: "never", Target: to, Prober: never, Timeout: time.Hour}, Check{ID: "udp", Target: to, Prober: ok, Rise: 2, BringUpLast: true}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		time.Sleep(17 * time.Second)
		st, _ := m.Status("udp")
		require.Equal(t, Active, st.State)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

// A callback that blocks makes the workers wait, but loses nothing.
func TestBackPressure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		got := map[string]State{}
		n := 0
		m, err := NewMonitor(&Config{MaxConcurrent: 10, OnTransition: func(tr Transition) {
			<-release
			require.Equal(t, got[tr.Check.ID], tr.From)
			got[tr.Check.ID] = tr.To
			n++
		}})
		require.NoError(t, err)
		var checks []Check
		for i := range 500 {
			var k atomic.Int32
			checks = append(checks, Check{ID: fmt.Sprint(i), Target: netip.MustParseAddrPort("192.0.2.1:80"), Fall: 1, Interval: time.Second,
				Prober: ProberFunc(func(context.Context, netip.AddrPort) Result {
					return Result{Verdict: []Verdict{Pass, Fail}[k.Add(1)%2]}
				})})
		}
		require.NoError(t, m.Set(checks...))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		time.Sleep(time.Minute)
		m.mu.Lock()
		require.Greater(t, len(m.events), maxEvents)
		require.LessOrEqual(t, len(m.events), maxEvents+10)
		m.mu.Unlock()
		close(release)
		time.Sleep(10 * time.Second)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Greater(t, n, maxEvents+500*5)
		require.Empty(t, m.events)
	})
}

// Everything at once, for the race detector.
func TestMonitorConcurrentUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m *Monitor
		m, err := NewMonitor(&Config{OnTransition: func(tr Transition) { _ = m.Trigger(tr.Check.ID) }})
		require.NoError(t, err)
		check := func(i int) Check {
			return Check{ID: fmt.Sprint(i), Target: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(i+1)), Interval: 50 * time.Millisecond, Fall: 1,
				Prober: ProberFunc(func(ctx context.Context, _ netip.AddrPort) Result {
					time.Sleep(time.Millisecond)
					return Result{Verdict: Verdict(rand.IntN(4))}
				})}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for range 300 {
					i := rand.IntN(40)
					id := fmt.Sprint(i)
					switch w {
					case 0:
						_ = m.Set(check(i), check(i+100), check(i+200))
					case 1:
						_ = m.Store(check(i), check(i+1))
					case 2:
						m.Delete(id)
					case 3:
						_ = m.Report(id, Result{Verdict: Fail, Final: true})
					case 4:
						for range m.All() {
							m.Stats()
						}
					case 5:
						m.History(id)
						m.Status(id)
						m.Check(id)
					default:
						_ = m.Trigger(id)
					}
					time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
				}
			})
		}
		wg.Wait()
		// It still does its work.
		require.NoError(t, m.Set(check(1), check(2)))
		before, _ := m.Status("1")
		time.Sleep(10 * time.Second)
		after, _ := m.Status("1")
		require.Greater(t, after.Probes, before.Probes+100)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Equal(t, 0, m.Stats().InFlight)
		require.Equal(t, 0, m.Stats().Workers)
		require.GreaterOrEqual(t, m.unsettled, 0)
	})
}

func TestFailWith(t *testing.T) {
	t.Parallel()
	r := FailWith(ErrNoMethod).Probe(t.Context(), netip.AddrPort{})
	require.Equal(t, Fail, r.Verdict)
	require.True(t, r.Final)
	require.ErrorIs(t, r.Err, ErrNoMethod)
}
