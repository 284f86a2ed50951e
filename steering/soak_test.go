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
// come, go and return. What was counted on the nodes that stay is exactly what was picked and
// what is open in the end, and nothing was picked that was never configured. Of the metrics
// with a state of their own, and of one with a table, there are a million picks, a thousand
// between two reconfigurations.
func TestThousandReconfigurations(t *testing.T) {
	for _, m := range allMetrics() {
		t.Run(m.String(), func(t *testing.T) {
			between := int64(0)
			if m == LeastConns || m == Maglev {
				between = 1000
			}
			ns := nodes(1, 2, 3, 4, 5, 6)
			p := newPool(t, &Config{Metric: m, TableSize: 1021, ClientBits: 32}, ns...)
			lasting := map[NodeID]int{}
			configured := map[NodeID]bool{}
			for i, n := range ns {
				if i < 3 {
					lasting[id(t, p, n.Name)] = i
				}
				configured[id(t, p, n.Name)] = true
			}
			var stop atomic.Bool
			var done atomic.Int64
			var held [2][3]int64
			var got [2][1 << 10]uint64 // picks of each id, the last for all beyond
			var wg sync.WaitGroup
			begin := time.Now()
			for w := range held {
				wg.Go(func() {
					var ring [256]NodeID
					for i := 0; !stop.Load(); i++ {
						id, err := p.Pick(client(i))
						if err != nil {
							t.Error(err)
							return
						}
						got[w][min(int(id), len(got[w])-1)]++
						slot := &ring[i*31%256]
						if *slot != 0 {
							p.Release(*slot)
						}
						*slot = id
						if i%32 == 31 {
							done.Add(32)
						}
					}
					for _, id := range ring {
						if i, ok := lasting[id]; ok && id != 0 {
							held[w][i]++
						}
					}
				})
			}
			for r := range 1000 {
				for done.Load() < int64(r)*between && !t.Failed() {
					time.Sleep(100 * time.Microsecond)
				}
				next := append(nodes(1+r%3, 2, 3), ns[3+r/2%3])
				removed, err := p.Set(next...)
				require.NoError(t, err)
				for _, id := range removed {
					require.NotContains(t, lasting, id)
				}
				configured[id(t, p, next[3].Name)] = true
			}
			stop.Store(true)
			wg.Wait()
			took := time.Since(begin)
			picked := uint64(0)
			for i := range got[0] {
				n := got[0][i] + got[1][i]
				picked += n
				if n > 0 {
					require.True(t, configured[NodeID(i)], "node %d was picked %d times", i, n)
				}
			}
			t.Logf("%d picks, %.1f million a second", picked, float64(picked)/took.Seconds()/1e6)
			for nid, st := range p.All() {
				if i, ok := lasting[nid]; ok {
					require.Equal(t, held[0][i]+held[1][i], st.Sessions, st.Node.Name)
					require.Equal(t, got[0][nid]+got[1][nid], st.Total, st.Node.Name)
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
