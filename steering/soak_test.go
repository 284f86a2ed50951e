package steering

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Picks and releases go on at full speed during 1,000 reconfigurations, in which nodes
// come, go and return. What was counted on the nodes that stay is exactly what is open
// in the end, and nothing was picked that was never configured.
func TestThousandReconfigurations(t *testing.T) {
	for _, m := range []Metric{LeastConns, Maglev} {
		t.Run(m.String(), func(t *testing.T) {
			ns := nodes(1, 2, 3, 4, 5, 6)
			p := newPool(t, &Config{Metric: m, TableSize: 1021}, ns...)
			lasting := map[NodeID]int{}
			for i, n := range ns[:3] {
				lasting[id(t, p, n.Name)] = i
			}
			begin := time.Now()
			var stop atomic.Bool
			var picked atomic.Int64
			var held [2][3]int64
			var wg sync.WaitGroup
			for w := range held {
				wg.Go(func() {
					var ring [256]NodeID
					n := int64(0)
					for i := 0; !stop.Load(); i++ {
						id, err := p.Pick(client(i))
						if err != nil {
							t.Error(err)
							return
						}
						n++
						slot := &ring[i*31%256]
						if *slot != 0 {
							p.Release(*slot)
						}
						*slot = id
					}
					picked.Add(n)
					for _, id := range ring {
						if i, ok := lasting[id]; ok && id != 0 {
							held[w][i]++
						}
					}
				})
			}
			for r := range 1000 {
				next := append(nodes(1+r%3, 2, 3), ns[3+r%3])
				removed, err := p.Set(next...)
				require.NoError(t, err)
				for _, id := range removed {
					require.NotContains(t, lasting, id)
				}
			}
			stop.Store(true)
			wg.Wait()
			rate := float64(picked.Load()) / time.Since(begin).Seconds() / 1e6
			t.Logf("%d picks, %.1f million a second", picked.Load(), rate)
			for nid, st := range p.All() {
				if i, ok := lasting[nid]; ok {
					require.Equal(t, held[0][i]+held[1][i], st.Sessions, st.Node.Name)
				}
			}
		})
	}
}

// A low weight in its slow start never shows more than all of it, and a weight set again
// to what it was at first is that weight.
func TestSlowStartOfLowWeights(t *testing.T) {
	p := newPool(t, &Config{Metric: SmoothCyclic, SlowStart: 30 * time.Second}, nodes(3, 10)...)
	a := id(t, p, "a")
	now := time.Now()
	p.SetUpAt(now, a, false)
	p.SetUpAt(now, a, true)
	for range 40 {
		now = now.Add(time.Second)
		p.Step(now)
		st, _ := p.Status(a)
		require.LessOrEqual(t, st.Warmth, 1.0)
		require.Positive(t, st.Share)
		require.LessOrEqual(t, st.Share, 3.0/13+1e-9)
	}
	for _, w := range []int{5, 10, 1, 10} {
		_, err := p.Set(nodes(3, w)...)
		require.NoError(t, err)
	}
	st, _ := p.Status(a)
	require.InDelta(t, 3.0/13, st.Share, 1e-9)
	require.Equal(t, 300, strings.Count(picks(t, p, 1300, true), "a"))
}
