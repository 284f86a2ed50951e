package steering

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A node gets as many sessions in a row as its weight says, also where the weights have
// a common divisor; one under pressure gets half as many.
func TestWeightedCyclicRowsAreWeightsLong(t *testing.T) {
	for _, tt := range []struct {
		weights []int
		want    string
	}{
		{[]int{2, 4}, "aabbbbaabbbb"},
		{[]int{3, 3}, "aaabbbaaabbb"},
		{[]int{4}, "aaaa"},
	} {
		p := newPool(t, &Config{Metric: WeightedCyclic}, nodes(tt.weights...)...)
		require.Equal(t, tt.want, picks(t, p, len(tt.want), true))
	}
	p := newPool(t, &Config{Metric: WeightedCyclic}, nodes(4, 2)...)
	p.SetPressure(id(t, p, "a"), High)
	require.Equal(t, 4, strings.Count(picks(t, p, 8, true), "a"))
}

// With places to spare nobody is turned away, whatever others are in the middle of.
func TestNoFalseOverload(t *testing.T) {
	const workers = 4
	for _, m := range allMetrics() {
		ns := nodes(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
		for i := range ns {
			ns[i].MaxSessions = 1
		}
		p := newPool(t, &Config{Metric: m}, ns...)
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range 2000 {
					id, err := p.Pick(client(i*workers + w))
					if err != nil {
						t.Errorf("%v: %v", m, err)
						return
					}
					if i%64 == 0 {
						runtime.Gosched()
					}
					p.Release(id)
				}
			})
		}
		wg.Wait()
	}
}

// A share of a node in its slow start does not depend on how large the weights are.
func TestSlowStartOfHugeWeights(t *testing.T) {
	for _, weight := range []int{1, MaxWeight} {
		ns := make([]Node, 200)
		for i := range ns {
			ns[i] = Node{Name: fmt.Sprintf("n%d", i), Weight: weight}
		}
		p := newPool(t, &Config{SlowStart: time.Hour}, ns...)
		n0 := id(t, p, "n0")
		now := time.Now()
		p.SetUpAt(now, n0, false)
		for range 20_000 { // it comes back empty, and would draw all new sessions
			_, err := p.Pick(Key{})
			require.NoError(t, err)
		}
		p.SetUpAt(now, n0, true)
		p.Step(now.Add(30 * time.Minute))
		got := 0
		for range 20_000 {
			id, err := p.Pick(Key{})
			require.NoError(t, err)
			if id == n0 {
				got++
			}
		}
		require.InDelta(t, 50, got, 10, "weight %d: half a share of 1/200", weight)
	}
}

// 10,000 nodes, huge weights and capacities: nothing overflows, and a change of health
// is not a matter of seconds.
func TestTenThousandNodes(t *testing.T) {
	for _, m := range allMetrics() {
		r := rand.New(rand.NewPCG(1, 2))
		ns := make([]Node, 10_000)
		for i := range ns {
			ns[i] = Node{Name: fmt.Sprintf("n%d", i), Weight: 1 + r.IntN(MaxWeight)}
			if m == Capacity {
				ns[i].Capacity = MaxCapacity - r.IntN(10)
			}
		}
		begin := time.Now()
		p := newPool(t, &Config{Metric: m}, ns...)
		built := time.Since(begin)
		begin = time.Now()
		p.SetUp(1, false)
		t.Logf("%v: built in %v, a change of health takes %v", m, built, time.Since(begin))
		for i := range 100 {
			id, err := p.Pick(client(i))
			require.NoError(t, err)
			require.NotEqual(t, NodeID(1), id)
		}
	}
}

// The obvious way to lay out smooth turns.
func slowSmooth(w []uint64) []int16 {
	sum := int64(sumOf(w))
	credit := make([]int64, len(w))
	seq := make([]int16, sum)
	for s := range seq {
		best := 0
		for i := range credit {
			credit[i] += int64(w[i])
			if credit[i] > credit[best] {
				best = i
			}
		}
		credit[best] -= sum
		seq[s] = int16(best)
	}
	return seq
}

func TestSmoothAgainstTheSlowTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		w := make([]uint64, 1+r.IntN(20))
		most := 1 + r.Uint64N(12)
		for i := range w {
			w[i] = 1 + r.Uint64N(most)
		}
		require.Equal(t, slowSmooth(w), smooth(w), w)
	}
}

// A caller's own clock is kept to by what has no time of its own.
func TestClockOfTheCaller(t *testing.T) {
	p := newPool(t, &Config{SlowStart: 100 * time.Second, Metric: RoundRobin}, nodes(1, 1)...)
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	a, b := id(t, p, "a"), id(t, p, "b")
	p.SetUpAt(now, a, false)
	p.SetUpAt(now, a, true)
	now = now.Add(50 * time.Second)
	p.Step(now)
	for _, change := range []func(){
		func() { p.SetPressure(b, High) },
		func() { p.Report(b, Gauges{CPU: 1}) },
		func() { _, err := p.Set(nodes(1, 2, 3)...); require.NoError(t, err) },
	} {
		change()
		st, _ := p.Status(a)
		require.InDelta(t, 0.5, st.Warmth, 0.05)
	}
	p.Step(now.Add(25 * time.Second))
	st, _ := p.Status(id(t, p, "c"))
	require.InDelta(t, 0.25, st.Warmth, 0.05)
}

// Shares of weight zero get no slot, not even when all others are down.
func TestMaglevZeroWeightGetsNothing(t *testing.T) {
	table, err := NewMaglevTable(251, 0, Share{"a", 1}, Share{"b", 0}, Share{"c", 0})
	require.NoError(t, err)
	for _, s := range table.With(0).Slots() {
		require.EqualValues(t, -1, s)
	}
	for _, s := range table.With(1).Slots() {
		require.EqualValues(t, 0, s)
	}
}
