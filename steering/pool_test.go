package steering

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSetKeepsWhatStays(t *testing.T) {
	p := newPool(t, nil, nodes(1, 1, 1)...)
	ida, idb, idc := id(t, p, "a"), id(t, p, "b"), id(t, p, "c")
	picks(t, p, 9, false)
	p.SetPressure(idb, High)

	before := p.view.Load()
	removed, err := p.Set(nodes(1, 1, 1)...)
	require.NoError(t, err)
	require.Empty(t, removed)
	require.Same(t, before, p.view.Load(), "the same configuration changes nothing")

	ns := nodes(1, 5, 1)
	removed, err = p.Set(ns[2], ns[1])
	require.NoError(t, err)
	require.Equal(t, []NodeID{ida}, removed)
	require.Equal(t, idb, id(t, p, "b"))
	require.Equal(t, idc, id(t, p, "c"))
	st, ok := p.Status(idb)
	require.True(t, ok)
	require.EqualValues(t, 3, st.Sessions)
	require.Equal(t, High, st.Pressure)
	require.Equal(t, 5, st.Node.Weight)

	// Nothing late reaches the new node of the old name.
	_, err = p.Set(ns...)
	require.NoError(t, err)
	again := id(t, p, "a")
	require.NotEqual(t, ida, again)
	p.Release(ida)
	require.False(t, p.Acquire(ida))
	require.False(t, p.Usable(ida))
	_, ok = p.Addr(ida)
	require.False(t, ok)
	st, _ = p.Status(again)
	require.Zero(t, st.Sessions)
}

func TestFaultsAreReportedAtOnceAndChangeNothing(t *testing.T) {
	p := newPool(t, nil, nodes(1)...)
	before := p.view.Load()
	_, err := p.Set(
		Node{Name: ""}, Node{Name: "x", Weight: -2}, Node{Name: "x", MaxSessions: -1},
		Node{Name: "y", Capacity: -1, Admin: 9},
	)
	require.ErrorIs(t, err, ErrInvalid)
	for _, want := range []string{"Name", `"x".Weight = -2`, "a name of its own", "MaxSessions = -1", "Capacity = -1", "Admin"} {
		require.ErrorContains(t, err, want)
	}
	require.Same(t, before, p.view.Load())

	_, err = NewPool(&Config{
		Metric: 99, ClientBits: 16, TableSize: 10, Buckets: 1, PanicPercent: 101, RecoveryTime: -1, SlowStart: -1,
		Interval: -1, Backup: 7, Pressure: Pressure{CPU: Thresholds{HighRise: 1, HighFall: 2}},
	}, Node{})
	for _, want := range []string{
		"Metric", "ClientBits = 16", "TableSize = 10", "Buckets = 1", "PanicPercent = 101", "RecoveryTime", "SlowStart",
		"Interval", "Backup", "CPU.HighFall", "Name",
	} {
		require.ErrorContains(t, err, want)
	}
	var fe *FieldError
	require.True(t, errors.As(err, &fe))
}

func TestIDsAreSharedAndNeverReused(t *testing.T) {
	ids := new(IDs)
	p := newPool(t, &Config{IDs: ids}, nodes(1, 1)...)
	q := newPool(t, &Config{IDs: ids}, nodes(1, 1)...)
	seen := map[NodeID]bool{}
	for _, pool := range []*Pool{p, q} {
		for id := range pool.All() {
			require.False(t, seen[id])
			require.NotZero(t, id)
			seen[id] = true
		}
	}
	_, ok := p.Addr(id(t, q, "a"))
	require.False(t, ok)
	ids.last.Store(^uint32(0))
	_, err := p.Set(nodes(1, 1, 1)...)
	require.Error(t, err)
	require.Equal(t, 2, p.Len())
}

func TestAdminStates(t *testing.T) {
	for _, tt := range []struct {
		admin                   AdminState
		picked, acquired, keeps bool
	}{
		{Enabled, true, true, true},
		{Draining, false, false, true},
		{SessionsShutdown, false, true, true},
		{Disabled, false, false, false},
	} {
		t.Run(tt.admin.String(), func(t *testing.T) {
			for _, m := range allMetrics() {
				ns := nodes(1, 1)
				ns[0].Admin = tt.admin
				p := newPool(t, &Config{Metric: m, ClientBits: 32}, ns...)
				require.Equal(t, tt.picked, strings.Contains(picks(t, p, 64, true), "a"), m)
				require.Equal(t, tt.acquired, p.Acquire(id(t, p, "a")))
				require.Equal(t, tt.keeps, p.Usable(id(t, p, "a")))
				require.True(t, p.Adopt(id(t, p, "a")))
			}
		})
	}
}

func TestStickyAtLimit(t *testing.T) {
	ns := nodes(1, 1)
	ns[0].MaxSessions = 1
	p := newPool(t, nil, ns...)
	require.True(t, p.Acquire(id(t, p, "a")))
	require.False(t, p.Acquire(id(t, p, "a")))
	p = newPool(t, &Config{StickyOverLimit: true}, ns...)
	require.True(t, p.Acquire(id(t, p, "a")))
	require.True(t, p.Acquire(id(t, p, "a")))
	st, _ := p.Status(id(t, p, "a"))
	require.EqualValues(t, 2, st.Sessions)
	require.Equal(t, AtLimit, st.State)
}

func TestReleaseOneTooManyIsNotCounted(t *testing.T) {
	p := newPool(t, nil, nodes(1)...)
	p.Release(id(t, p, "a"))
	p.Release(0)
	p.Release(12345)
	picks(t, p, 1, false)
	st, _ := p.Status(id(t, p, "a"))
	require.EqualValues(t, 1, st.Sessions)
	require.EqualValues(t, 1, st.Total)
}

// Goroutines pick and release while the pool is reconfigured and nodes flap. In the end
// every node has exactly the sessions that were not given back, and the tournament of
// LeastConns is exact.
func TestCountsSurviveReconfiguration(t *testing.T) {
	for _, m := range allMetrics() {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			ns := nodes(1, 2, 3, 4, 5)
			for i := range ns {
				ns[i].MaxSessions = 1 << 20 * (i % 2)
			}
			p := newPool(t, &Config{Metric: m, TableSize: 251, SlowStart: time.Millisecond}, ns...)
			var held [3][6]atomic.Int64 // by worker and node
			index := map[NodeID]int{}
			for i, n := range ns {
				index[id(t, p, n.Name)] = i
			}
			var wg sync.WaitGroup
			var stop atomic.Bool
			var total atomic.Int64
			for w := range held {
				wg.Go(func() {
					var open []NodeID
					for i := 0; !stop.Load() || i < 2000; i++ {
						id, err := p.Pick(client(i))
						if err != nil {
							continue
						}
						total.Add(1)
						open = append(open, id)
						if len(open) > 50 {
							k := i % len(open)
							p.Release(open[k])
							open[k] = open[len(open)-1]
							open = open[:len(open)-1]
						}
					}
					for _, id := range open {
						held[w][index[id]].Add(1)
					}
				})
			}
			for r := range 200 {
				changed := make([]Node, len(ns))
				copy(changed, ns)
				changed[r%5].Weight = 1 + r%7
				changed[(r+1)%5].Backup = r%3 == 0
				rand.Shuffle(5, func(i, j int) { changed[i], changed[j] = changed[j], changed[i] })
				removed, err := p.Set(changed...)
				require.NoError(t, err)
				require.Empty(t, removed)
				p.SetUp(NodeID(1+r%5), r%4 != 0)
				p.SetPressure(NodeID(1+r%5), Level(r%3))
				p.Step(time.Now())
			}
			stop.Store(true)
			wg.Wait()
			for nid, st := range p.All() {
				var want int64
				for w := range held {
					want += held[w][index[nid]].Load()
				}
				require.Equal(t, want, st.Sessions, st.Node.Name)
			}
			v := p.view.Load()
			for _, pl := range v.plans {
				for _, g := range pl.groups {
					if g.tree == nil || len(g.warm) == len(g.nodes) {
						continue
					}
					best := g.tree.root()
					for i := range g.nodes {
						if g.tree.win[g.tree.base+uint32(i)].Load() != noLeaf && i != int(best) {
							require.False(t, g.fewer(i, int(best)), "tournament is stale")
						}
					}
				}
			}
		})
	}
}

func TestRemovedNodesDuringPicks(t *testing.T) {
	ns := nodes(1, 1, 1, 1)
	p := newPool(t, nil, ns...)
	var wg sync.WaitGroup
	var stop atomic.Bool
	for range 2 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				if id, err := p.Pick(client(i)); err == nil {
					p.Addr(id)
					p.Release(id)
				}
			}
		})
	}
	gone := map[NodeID]bool{}
	for r := range 500 {
		removed, err := p.Set(ns[r%4:]...)
		require.NoError(t, err)
		for _, id := range removed {
			require.False(t, gone[id], "an id came back")
			gone[id] = true
		}
	}
	stop.Store(true)
	wg.Wait()
	for _, st := range p.All() {
		require.Zero(t, st.Sessions)
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	for _, m := range allMetrics() {
		p := newPool(t, &Config{Metric: m}, nodes(1, 2, 3)...)
		k, i := client(7), 0
		require.Zero(t, testing.AllocsPerRun(200, func() {
			i++
			k.Hash += uint64(i)
			id, _ := p.Pick(k)
			p.Addr(id)
			p.Acquire(id)
			p.Usable(id)
			p.Release(id)
			p.Release(id)
		}), m)
	}
}

func TestRunEndsRecoveryAndSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, &Config{Metric: RoundRobin, RecoveryTime: 10 * time.Second, SlowStart: 20 * time.Second}, nodes(1, 1)...)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		share := func() float64 {
			return float64(strings.Count(picks(t, p, 4000, true), "a")) / 4000
		}
		require.InDelta(t, 0.5, share(), 0.01)
		p.SetUp(id(t, p, "a"), false)
		require.Zero(t, share())
		p.SetUp(id(t, p, "a"), true)
		synctest.Wait()
		require.Zero(t, share(), "recovering")
		time.Sleep(9 * time.Second)
		require.Zero(t, share())
		last := 0.0
		time.Sleep(1100 * time.Millisecond)
		for i := range 9 {
			s := share()
			require.Greater(t, s, last, "second %d", i)
			require.Less(t, s, 0.5)
			last = s
			time.Sleep(2 * time.Second)
		}
		time.Sleep(2 * time.Second)
		require.InDelta(t, 0.5, share(), 0.001)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}
