package flowshare_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/cluster/internal/simnet"
)

func world(t *testing.T, n, flows int, layer flowshare.Config) *simnet.World {
	t.Helper()
	w := simnet.New(simnet.Config{Seed: uint64(n), Layer: layer}, n)
	for i := range flows {
		b := w.Nodes[i%n]
		b.Layer.Announce(flow(i), value(i))
		b.Touch()
	}
	w.Run(500 * time.Millisecond)
	return w
}

// TestKilled: what a balancer that is gone had announced is still known, and who goes on with
// it answers for it.
func TestKilled(t *testing.T) {
	for _, n := range []int{2, 4, 12} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const flows = 240
			w := world(t, n, flows, flowshare.Config{})
			w.Kill(w.Nodes[0])
			w.Run(5 * time.Second)
			_, wrong := agreed(w, flows, all)
			require.Zero(t, wrong, "all flows are known after a failure")

			// Its neighbour takes its flows over, and then they end.
			for i := 0; i < flows; i += n {
				w.Nodes[1].Layer.Announce(flow(i), value(i))
			}
			w.Nodes[1].Touch()
			w.Run(time.Second)
			for i := 0; i < flows; i += n {
				w.Nodes[1].Layer.Withdraw(flow(i))
			}
			w.Nodes[1].Touch()
			w.Run(time.Second)
			_, wrong = agreed(w, flows, func(i int) (flowshare.Value, bool) {
				if i%n == 0 {
					return flowshare.Value{}, false
				}
				return value(i), true
			})
			require.Zero(t, wrong)
		})
	}
}

// TestRestarted: a balancer that comes back knowing nothing is told all, and its former flows
// are not taken for ended.
func TestRestarted(t *testing.T) {
	for _, n := range []int{2, 4, 12} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const flows = 240
			w := world(t, n, flows, flowshare.Config{})
			w.Kill(w.Nodes[0])
			w.Run(200 * time.Millisecond) // nobody has noticed
			w.Restart(w.Nodes[0])
			w.Run(10 * time.Second)
			_, wrong := agreed(w, flows, all)
			require.Zero(t, wrong)
			if n <= flowshare.DefaultThreshold {
				require.Equal(t, flows, w.Nodes[0].Layer.Stats().Flows, "full state for a joiner")
			}
		})
	}
}

// TestPartition: both sides go on, and agree again afterwards, also when tombstones were
// forgotten meanwhile.
func TestPartition(t *testing.T) {
	for _, n := range []int{2, 4, 10} {
		for _, long := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d members, long %v", n, long), func(t *testing.T) {
				const flows = 240
				w := world(t, n, flows, flowshare.Config{Tombstones: 20 * time.Second})
				w.Partition(1, w.Nodes[:n/2]...)
				w.Run(5 * time.Second)
				for i := 0; i < flows; i += 2 { // these end
					w.Nodes[i%n].Layer.Withdraw(flow(i))
					w.Nodes[i%n].Touch()
				}
				for i := flows; i < 2*flows; i++ {
					w.Nodes[i%n].Layer.Announce(flow(i), value(i))
					w.Nodes[i%n].Touch()
				}
				if long {
					w.Run(3 * time.Minute)
				}
				w.Run(5 * time.Second)
				w.Partition(0, w.Nodes[:n/2]...)
				want := func(i int) (flowshare.Value, bool) {
					if i < flows && i%2 == 0 {
						return flowshare.Value{}, false
					}
					return value(i), true
				}
				took, ok := w.Until(time.Second, 3*time.Minute, func() bool {
					_, wrong := agreed(w, 2*flows, want)
					return wrong == 0
				})
				require.True(t, ok, "they agree again")
				t.Logf("agreed again after %v", took)
			})
		}
	}
}

// TestShortQueue: what finds no room in a queue arrives by a comparison.
func TestShortQueue(t *testing.T) {
	w := world(t, 4, 1200, flowshare.Config{MaxPending: 16})
	require.NotZero(t, w.Nodes[0].Layer.Stats().Overflowed)
	w.Run(15 * time.Second)
	for _, b := range w.Nodes {
		require.Equal(t, 1200, b.Layer.Stats().Flows)
	}
}

// TestRate: with a bound on bandwidth everything arrives, later.
func TestRate(t *testing.T) {
	const rate = 20_000
	w := world(t, 3, 6000, flowshare.Config{MaxRate: rate, MaxFrame: 2000})
	start := w.Now
	before := w.Nodes[0].Bytes
	_, ok := w.Until(time.Second, 2*time.Minute, func() bool { return w.Nodes[2].Layer.Stats().Flows == 6000 })
	require.True(t, ok)
	spent := w.Now.Sub(start).Seconds()
	require.NotZero(t, w.Nodes[0].Layer.Stats().Throttled)
	require.LessOrEqual(t, float64(w.Nodes[0].Bytes-before), rate*(spent+1))
}

// TestConflict: two balancers give one flow to different nodes at once.
func TestConflict(t *testing.T) {
	for _, n := range []int{2, 12} {
		told := 0
		w := simnet.New(simnet.Config{Layer: flowshare.Config{OnConflict: func(flowshare.Flow, flowshare.Value, flowshare.Value) { told++ }}}, n)
		w.Nodes[0].Layer.Announce(flow(1), flowshare.Value{Node: "a"})
		w.Nodes[1].Layer.Announce(flow(1), flowshare.Value{Node: "b"})
		w.Nodes[0].Touch()
		w.Nodes[1].Touch()
		w.Run(2 * time.Minute)
		seen := map[string]int{}
		for _, b := range w.Nodes {
			b.Find(flow(1), func(v flowshare.Value, ok bool) { seen[v.Node]++ })
		}
		w.Run(time.Second)
		require.Len(t, seen, 1, "one of the two has won everywhere")
		require.Positive(t, told)
	}
}

// TestAsymmetric: each direction by way of another balancer; the entry stays as long as one of
// them forwards it, and no longer.
func TestAsymmetric(t *testing.T) {
	for _, n := range []int{2, 12} {
		for first := range 2 {
			t.Run(fmt.Sprintf("%d members, %d ends first", n, first), func(t *testing.T) {
				w := simnet.New(simnet.Config{Seed: 3}, n)
				w.Nodes[0].Layer.Announce(flow(7), value(7))
				w.Nodes[0].Touch()
				asked := false
				w.Nodes[1].Find(flow(7), func(v flowshare.Value, ok bool) {
					asked = true
					require.True(t, ok, "asked before the batch was sent")
					require.Equal(t, value(7), v)
				})
				w.Run(100 * time.Millisecond)
				if n == 2 {
					require.True(t, asked)
				}
				w.Nodes[1].Layer.Announce(flow(7), value(7))
				w.Nodes[1].Touch()
				w.Run(time.Second)
				w.Nodes[first].Layer.Withdraw(flow(7))
				w.Nodes[first].Touch()
				// The re-check of one that only forwards comes within the round of sweeps.
				w.Run(30 * time.Second)
				_, wrong := agreed1(w, 7)
				require.Zero(t, wrong, "the other one still forwards it")
				w.Nodes[1-first].Layer.Withdraw(flow(7))
				w.Nodes[1-first].Touch()
				w.Run(4 * time.Minute)
				right, _ := agreed1(w, 7)
				require.Zero(t, right)
				for _, b := range w.Nodes {
					s := b.Layer.Stats()
					require.Zero(t, s.Flows)
					require.Zero(t, s.Tombstones)
				}
			})
		}
	}
}

func agreed1(w *simnet.World, i int) (right, wrong int) {
	for _, b := range w.AliveNodes() {
		b.Find(flow(i), func(v flowshare.Value, ok bool) {
			if ok && v == value(i) {
				right++
			} else {
				wrong++
			}
		})
	}
	w.Run(time.Second)
	return right, wrong
}

// TestOrphans: entries nobody takes over end, everywhere.
func TestOrphans(t *testing.T) {
	for _, n := range []int{3, 12} {
		w := world(t, n, 500, flowshare.Config{Orphans: time.Minute})
		w.Kill(w.Nodes[0])
		w.Run(4 * time.Minute)
		for _, b := range w.AliveNodes() {
			s := b.Layer.Stats()
			require.Zero(t, s.Tombstones)
		}
		_, wrong := agreed(w, 500, func(i int) (flowshare.Value, bool) {
			if i%n == 0 {
				return flowshare.Value{}, false
			}
			return value(i), true
		})
		require.Zero(t, wrong)
	}
}

// TestAlike: what all would choose alike is not sent, until they no longer would.
func TestAlike(t *testing.T) {
	shift := 0
	alike := func(f flowshare.Flow) (flowshare.Value, bool) {
		return flowshare.Value{Node: fmt.Sprint((int(f.Hash()%7) + shift) % 7)}, true
	}
	for _, n := range []int{3, 12} {
		shift = 0
		w := simnet.New(simnet.Config{Layer: flowshare.Config{Alike: alike}}, n)
		want := map[int]flowshare.Value{}
		for i := range 1000 {
			v, _ := alike(flow(i))
			want[i] = v
			w.Nodes[i%n].Layer.Announce(flow(i), v)
			w.Nodes[i%n].Touch()
		}
		w.Run(time.Second)
		for _, b := range w.Nodes {
			require.Zero(t, b.Layer.Stats().ItemsSent)
			require.NotZero(t, b.Layer.Stats().Alike)
		}
		check := func() {
			_, wrong := agreed(w, 1000, func(i int) (flowshare.Value, bool) { return want[i], true })
			require.Zero(t, wrong)
		}
		check()
		shift = 1 // another table
		for _, b := range w.Nodes {
			b.Layer.Retable()
			b.Touch()
		}
		w.Run(time.Second)
		check()
		require.NotZero(t, w.Nodes[0].Layer.Stats().ItemsSent)
	}
}

// TestFull: a full store refuses, and says so.
func TestFull(t *testing.T) {
	w := world(t, 3, 3000, flowshare.Config{MaxFlows: 1000})
	for _, b := range w.Nodes {
		s := b.Layer.Stats()
		require.LessOrEqual(t, s.Flows+s.Tombstones, 1000)
		require.NotZero(t, s.Refused)
	}
}

// TestTroubledCluster runs random failures, restarts and partitions under announcements, and
// compares what comes out with what the balancers know of their own.
func TestTroubledCluster(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 9))
			n := []int{3, 8, 9, 12}[seed]
			w := simnet.New(simnet.Config{Seed: seed}, n)
			owner := map[int]*simnet.Node{} // who forwards a flow
			next := 0
			for range 30 {
				for range 20 {
					b := w.AliveNodes()[r.IntN(len(w.AliveNodes()))]
					b.Layer.Announce(flow(next), value(next))
					b.Touch()
					owner[next] = b
					next++
				}
				for i, b := range owner {
					if b.Alive && r.IntN(4) == 0 {
						b.Layer.Withdraw(flow(i))
						b.Touch()
						delete(owner, i)
					}
				}
				switch b := w.Nodes[r.IntN(n)]; r.IntN(8) {
				case 0:
					if b.Alive && len(w.AliveNodes()) > 2 {
						w.Kill(b)
						for i, o := range owner {
							if o == b {
								delete(owner, i) // its connections moved, and are opened anew
							}
						}
					}
				case 1:
					if !b.Alive {
						w.Restart(b)
					}
				case 2:
					w.Partition(1, b)
				case 3:
					w.Partition(0, w.Nodes...)
				}
				w.Run(time.Duration(r.IntN(3000)) * time.Millisecond)
			}
			w.Partition(0, w.Nodes...)
			for _, b := range w.Nodes {
				if !b.Alive {
					w.Restart(b)
				}
			}
			w.Run(time.Minute)
			wrong := 0
			for i := range owner {
				_, n := agreed1(w, i)
				wrong += n
			}
			require.Zero(t, wrong, "of %d flows", len(owner))
			w.Run(20 * time.Minute) // what nobody answers for is gone by now
			own := 0
			for _, b := range w.Nodes {
				s := b.Layer.Stats()
				require.Zero(t, s.Tombstones)
				require.Zero(t, s.Malformed)
				own += s.Own
				if n <= flowshare.DefaultThreshold {
					require.Equal(t, len(owner), s.Flows, "counts add up")
				}
			}
			require.Equal(t, len(owner), own)
		})
	}
}
