package steering

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// All that is known of a node outlives any reconfiguration that keeps its name: id, counters,
// health, pressure with what its gauges last said, advice, the recovery time and the slow
// start, averages and octets.
func TestEverythingOfANodeSurvives(t *testing.T) {
	p := newPool(t, &Config{RecoveryTime: time.Minute, SlowStart: 40 * time.Second}, nodes(1, 1, 1, 1)...)
	a, b, c := id(t, p, "a"), id(t, p, "b"), id(t, p, "c")
	now := time.Now()
	picks(t, p, 13, false)
	p.Release(a)
	p.Report(a, Gauges{CPU: 0.9})                          // high,
	require.Equal(t, High, p.Report(a, Gauges{CPU: 0.75})) // until below 0.7
	require.NoError(t, p.Advise(a, Advice{Percent: 70, MaxSessions: 99}))
	p.Observe(a, 30*time.Millisecond)
	p.AddOctets(a, 4096)
	p.Tick()
	p.SetUpAt(now, b, false)
	p.SetUpAt(now, c, false)
	p.SetUpAt(now, c, true)
	p.Step(now.Add(80 * time.Second)) // recovered, and half warm
	p.SetUpAt(now.Add(80*time.Second), b, true)

	status := func() map[NodeID]NodeStatus {
		all := map[NodeID]NodeStatus{}
		for id, st := range p.All() {
			st.Share = 0
			all[id] = st
		}
		return all
	}
	before := status()
	require.Equal(t, High, before[a].Pressure)
	require.EqualValues(t, 4096, before[a].Octets)
	require.Equal(t, 30*time.Millisecond, before[a].ResponseTime)
	require.Greater(t, before[a].Total, uint64(before[a].Sessions))
	require.Equal(t, Recovering, before[b].State)
	require.InDelta(t, 0.5, before[c].Warmth, 0.05)

	ns := nodes(1, 1, 1, 1)
	for i, change := range []func() ([]NodeID, error){
		func() ([]NodeID, error) { return p.Set(ns[3], ns[1], ns[0], ns[2]) },
		func() ([]NodeID, error) { return p.Set(append(ns[:4:4], Node{Name: "new"})...) },
		func() ([]NodeID, error) {
			return p.Reconfigure(&Config{Metric: Maglev, TableSize: 251, RecoveryTime: time.Minute, SlowStart: 40 * time.Second}, ns...)
		},
		func() ([]NodeID, error) {
			return p.Reconfigure(&Config{Metric: Response, PanicPercent: 1, RecoveryTime: time.Minute, SlowStart: 40 * time.Second}, ns...)
		},
	} {
		removed, err := change()
		require.NoError(t, err)
		after := status()
		if i == 1 {
			delete(after, id(t, p, "new"))
		}
		if i == 2 {
			require.Len(t, removed, 1)
		} else {
			require.Empty(t, removed)
		}
		require.Equal(t, before, after, "change %d", i)
	}
	require.Equal(t, High, p.Report(a, Gauges{CPU: 0.75}), "the gauge is where it was")
	require.Equal(t, Normal, p.Report(a, Gauges{CPU: 0.65}))
	p.Step(now.Add(100 * time.Second))
	st, _ := p.Status(c)
	require.Equal(t, 1.0, st.Warmth)
	st, _ = p.Status(b)
	require.Equal(t, Recovering, st.State, "a minute from when it came up")
	p.Step(now.Add(141 * time.Second))
	st, _ = p.Status(b)
	require.Equal(t, Available, st.State)
	require.Less(t, st.Warmth, 0.1)
}

// A limit that is lowered refuses new sessions; those there are stay.
func TestLowerLimitKeepsSessions(t *testing.T) {
	for _, m := range allMetrics() {
		p := newPool(t, &Config{Metric: m}, nodes(1, 1)...)
		a := id(t, p, "a")
		for range 5 {
			require.True(t, p.Acquire(a))
		}
		ns := nodes(1, 1)
		ns[0].MaxSessions = 2
		_, err := p.Set(ns...)
		require.NoError(t, err)
		n, ok := p.Sessions(a)
		require.True(t, ok)
		require.EqualValues(t, 5, n)
		require.True(t, p.Usable(a))
		require.Equal(t, "bbbbbb", picks(t, p, 6, true), m)
		for range 4 {
			p.Release(a)
		}
		require.Contains(t, picks(t, p, 64, false), "a", m)
	}
}

// Each gauge leads to each level, and back below its own threshold only.
func TestEveryGauge(t *testing.T) {
	th := Thresholds{HighRise: 2, HighFall: 1, SevereRise: 4, SevereFall: 3}
	for _, g := range []struct {
		name     string
		pressure Pressure
		reading  func(x float64) Gauges
	}{
		{"memory", Pressure{Memory: th}, func(x float64) Gauges { return Gauges{Memory: x} }},
		{"cpu", Pressure{CPU: th}, func(x float64) Gauges { return Gauges{CPU: x} }},
		{"sessions", Pressure{Sessions: th}, func(x float64) Gauges { return Gauges{Sessions: x} }},
		{"latency", Pressure{Latency: th}, func(x float64) Gauges { return Gauges{Latency: time.Duration(x * float64(time.Second))} }},
	} {
		p := newPool(t, &Config{Pressure: g.pressure}, nodes(1)...)
		for _, step := range []struct {
			x    float64
			want Level
		}{{1.9, Normal}, {2, High}, {1, High}, {3.9, High}, {4, Severe}, {3, Severe}, {2.9, High}, {1.5, High}, {0.9, Normal}, {9, Severe}, {0, Normal}} {
			require.Equal(t, step.want, p.Report(id(t, p, "a"), g.reading(step.x)), "%s %v", g.name, step.x)
		}
		require.Equal(t, Severe, p.Report(id(t, p, "a"), Gauges{Memory: 9, CPU: 9, Sessions: 9, Latency: 9 * time.Second}))
	}
}

// Own recovery and warm-up times of a node come before those of the farm.
func TestOwnRecoveryTime(t *testing.T) {
	ns := nodes(1, 1, 1)
	ns[0].RecoveryTime, ns[1].RecoveryTime = -1, 5*time.Second
	p := newPool(t, &Config{Metric: RoundRobin, RecoveryTime: time.Minute}, ns...)
	now := time.Now()
	for _, n := range []string{"a", "b", "c"} {
		p.SetUpAt(now, id(t, p, n), false)
		p.SetUpAt(now, id(t, p, n), true)
	}
	require.Equal(t, now.Add(5*time.Second), p.Step(now))
	require.Equal(t, "aaaa", picks(t, p, 4, true))
	p.Step(now.Add(5 * time.Second))
	require.Equal(t, 2, strings.Count(picks(t, p, 4, true), "b"))
	p.Step(now.Add(time.Minute))
	require.Len(t, counts(strings.Split(picks(t, p, 6, true), "")), 3)
}

// A node that was disabled starts slowly when it is enabled again, by the configuration or by advice and whatever came in
// between; and its response times were counted meanwhile.
func TestSlowStartAfterMaintenance(t *testing.T) {
	warmth := func(p *Pool) float64 {
		st, _ := p.Status(id(t, p, "a"))
		return st.Warmth
	}
	for _, tc := range []struct {
		name string
		by   func(p *Pool, s AdminState) error
	}{
		{"configured", func(p *Pool, s AdminState) error {
			_, err := p.Set(Node{Name: "a", Admin: s}, Node{Name: "b"})
			return err
		}},
		{"advised", func(p *Pool, s AdminState) error { return p.Advise(id(t, p, "a"), Advice{Admin: s}) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool(t, &Config{SlowStart: 40 * time.Second}, Node{Name: "a"}, Node{Name: "b"})
				for _, s := range []AdminState{Draining, SessionsShutdown, Enabled} {
					require.NoError(t, tc.by(p, s))
					require.Equal(t, 1.0, warmth(p), "%v is no maintenance", s)
				}
				for _, way := range [][]AdminState{{}, {Draining}, {SessionsShutdown, Draining}} {
					require.NoError(t, tc.by(p, Disabled))
					for _, s := range way {
						require.NoError(t, tc.by(p, s))
						time.Sleep(time.Hour)
						p.Step(time.Now())
					}
					require.NoError(t, tc.by(p, Enabled))
					require.Less(t, warmth(p), 0.1, "after %v", way)
					time.Sleep(time.Minute)
					p.Step(time.Now())
					require.Equal(t, 1.0, warmth(p))
				}
				// Enabled while down, it starts slowly when it is up, and only then.
				p.SetUp(id(t, p, "a"), false)
				require.NoError(t, tc.by(p, Disabled))
				require.NoError(t, tc.by(p, Enabled))
				time.Sleep(time.Minute)
				p.Step(time.Now())
				p.SetUp(id(t, p, "a"), true)
				require.Less(t, warmth(p), 0.1)
			})
		})
	}
}

// Response begins with the averages there are, not with those of the time of the first sample.
func TestResponseFromAnotherMetric(t *testing.T) {
	p := newPool(t, nil, nodes(1, 1)...)
	a, b := id(t, p, "a"), id(t, p, "b")
	p.Observe(a, 10*time.Millisecond)
	p.Observe(b, 10*time.Millisecond)
	p.SetUp(b, false) // a view is built
	p.SetUp(b, true)
	for range 60 {
		p.Observe(b, 30*time.Millisecond)
	}
	_, err := p.Reconfigure(&Config{Metric: Response}, nodes(1, 1)...)
	require.NoError(t, err)
	st, _ := p.Status(a)
	require.InDelta(t, 0.75, st.Share, 0.01)
}
