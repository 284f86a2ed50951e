package steering

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAdvice is a table of what is configured, what is advised, and what holds.
func TestAdvice(t *testing.T) {
	for _, tc := range []struct {
		name   string
		node   Node
		advice Advice
		state  Availability
		weight int
		limit  int64
	}{
		{"none", Node{Weight: 4, MaxSessions: 9}, Advice{}, Available, 4, 9},
		{"half", Node{Weight: 4}, Advice{Percent: 50}, Available, 2, 0},
		{"more", Node{Weight: 4}, Advice{Percent: 250}, Available, 10, 0},
		{"at least one", Node{Weight: 4}, Advice{Percent: 1}, Available, 1, 0},
		{"at most all", Node{Weight: MaxWeight}, Advice{Percent: MostPercent}, Available, MaxWeight, 0},
		{"nothing", Node{Weight: 4}, Advice{Percent: ZeroWeight}, WeightIsZero, 0, 0},
		{"nothing stays nothing", Node{Weight: ZeroWeight}, Advice{Percent: 500}, WeightIsZero, 0, 0},
		{"lower limit", Node{MaxSessions: 9}, Advice{MaxSessions: 3}, Available, 1, 3},
		{"no higher limit", Node{MaxSessions: 9}, Advice{MaxSessions: 30}, Available, 1, 9},
		{"a limit", Node{}, Advice{MaxSessions: 3}, Available, 1, 3},
		{"draining", Node{}, Advice{Admin: Draining}, AdminDraining, 1, 0},
		{"stricter configured", Node{Admin: Disabled}, Advice{Admin: Draining}, AdminDisabled, 1, 0},
		{"draining is stricter than shutdown", Node{Admin: SessionsShutdown}, Advice{Admin: Draining}, AdminDraining, 1, 0},
		{"shutdown", Node{}, Advice{Admin: SessionsShutdown}, AdminSessionsShutdown, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.node.Name = "a"
			p, err := NewPool(&Config{Metric: LeastConns}, tc.node, Node{Name: "b"})
			require.NoError(t, err)
			id, _ := p.ID("a")
			require.NoError(t, p.Advise(id, tc.advice))
			check := func() {
				st, _ := p.Status(id)
				require.Equal(t, tc.advice, st.Advice)
				require.Equal(t, tc.state, st.State)
				e := p.view.Load().entry(id)
				require.Equal(t, tc.weight, e.h.weight())
				require.Equal(t, tc.limit, e.limit)
			}
			check()
			_, err = p.Set(tc.node, Node{Name: "b", Weight: 7})
			require.NoError(t, err)
			check() // it outlives the configuration
			require.NoError(t, p.Advise(id, Advice{}))
			st, _ := p.Status(id)
			require.Equal(t, Advice{}, st.Advice)
		})
	}
	p, err := NewPool(nil, Node{Name: "a"})
	require.NoError(t, err)
	id, _ := p.ID("a")
	for _, a := range []Advice{{Admin: 9}, {Percent: -2}, {Percent: MostPercent + 1}, {MaxSessions: -1}} {
		require.Error(t, p.Advise(id, a))
	}
	st, _ := p.Status(id)
	require.Equal(t, Advice{}, st.Advice)
	require.NoError(t, p.Advise(12345, Advice{Percent: 5})) // nobody
}

// TestAdviceByMetric has every weighted metric follow half the weight of one of two nodes, and capacity.
func TestAdviceByMetric(t *testing.T) {
	for m := Metric(0); int(m) < metricNames.Len(); m++ {
		if !m.weighted() {
			continue
		}
		p, err := NewPool(&Config{Metric: m}, Node{Name: "a", Weight: 100, Capacity: 1000}, Node{Name: "b", Weight: 100, Capacity: 1000})
		require.NoError(t, err)
		id, _ := p.ID("a")
		require.NoError(t, p.Advise(id, Advice{Percent: 50}))
		st, _ := p.Status(id)
		require.InDelta(t, 1.0/3, st.Share, 0.01, m)
	}
}
