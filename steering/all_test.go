package steering

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// manyNodes are n nodes of some weights.
func manyNodes(n int) (nodes []Node) {
	for i := range n {
		nodes = append(nodes, Node{Name: fmt.Sprint("n", i), Weight: 1 + i%3})
	}
	return nodes
}

// Changes of many nodes at once come to the same as one after the other, with one view for all.
func TestAllAtOnceIsOneByOne(t *testing.T) {
	synctest.Test(t, allAtOnce) // in which both are told at the same moment
}

func allAtOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, m := range []Metric{RoundRobin, LeastConns, Hash} {
		cfg := &Config{Metric: m, RecoveryTime: 3 * time.Second, SlowStart: 10 * time.Second}
		one, all := newPool(t, cfg, manyNodes(50)...), newPool(t, cfg, manyNodes(50)...)
		for round := range 20 {
			time.Sleep(time.Second)
			now := time.Now()
			up, advice := make(map[NodeID]bool), make(map[NodeID]Advice)
			for range 1 + rng.IntN(50) {
				up[NodeID(1+rng.IntN(52))] = rng.IntN(2) == 0
				advice[NodeID(1+rng.IntN(52))] = Advice{Admin: AdminState(rng.IntN(4)), Percent: rng.IntN(200), MaxSessions: rng.IntN(5)}
			}
			before := all.view.Load()
			for id, up := range up {
				one.SetUpAt(now, id, up)
			}
			all.SetUpAllAt(now, up)
			for id, a := range advice {
				require.NoError(t, one.Advise(id, a))
			}
			require.NoError(t, all.AdviseAll(advice))
			one.Step(now)
			all.Step(now)
			for id, want := range one.All() {
				got, ok := all.Status(id)
				require.True(t, ok)
				require.Equal(t, want, got, "%v, round %d", m, round)
			}
			for i := range 20 {
				want, err := one.Pick(client(i))
				got, err2 := all.Pick(client(i))
				require.Equal(t, err, err2)
				if m == Hash {
					require.Equal(t, want, got)
				} else if err == nil {
					one.Release(want)
					all.Release(got)
				}
			}
			after := all.view.Load()
			all.SetUpAllAt(now, up)
			require.NoError(t, all.AdviseAll(advice))
			require.Same(t, after, all.view.Load(), "what is so already makes no view")
			require.NotSame(t, before, after)
		}
	}
}

// Advice with a fault changes nothing, and all faults are told.
func TestAdviseAllRefuses(t *testing.T) {
	p := newPool(t, nil, manyNodes(3)...)
	before := p.view.Load()
	err := p.AdviseAll(map[NodeID]Advice{1: {Admin: Draining}, 2: {MaxSessions: -1}, 3: {Percent: MostPercent + 1}})
	require.ErrorContains(t, err, "node 2: ")
	require.ErrorContains(t, err, "node 3: ")
	require.Same(t, before, p.view.Load())
}

// One call for all nodes of a large pool, and one for each.
func BenchmarkSetUp(b *testing.B) {
	for _, all := range []bool{true, false} {
		b.Run(map[bool]string{true: "at once", false: "one by one"}[all], func(b *testing.B) {
			p := newPool(b, nil, manyNodes(2000)...)
			up := true
			for b.Loop() {
				up = !up
				change := make(map[NodeID]bool)
				for id := range NodeID(2000) {
					if all {
						change[id+1] = up
					} else {
						p.SetUp(id+1, up)
					}
				}
				p.SetUpAll(change)
			}
		})
	}
}
