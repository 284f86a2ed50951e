package flowshare_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// TestItself: what only its balancer can deal with is forgotten with that, in small clusters and in large ones, and known again when it comes
// back after a partition.
func TestItself(t *testing.T) {
	for _, n := range []int{3, 12} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const flows = 120
			own := flowshare.Value{Node: flowshare.Itself, Note: "here"}
			w := world(t, n, flows, flowshare.Config{Tombstones: 2 * time.Second, RepairEvery: time.Second})
			for i := flows; i < 2*flows; i++ {
				w.Nodes[0].Layer.Announce(flow(i), own)
			}
			w.Nodes[0].Touch()
			w.Run(time.Second)
			known := func(there bool) func(i int) (flowshare.Value, bool) {
				return func(i int) (flowshare.Value, bool) {
					if i < flows {
						return value(i), true
					}
					if !there {
						return flowshare.Value{}, false
					}
					return own, true
				}
			}
			_, wrong := agreed(w, 2*flows, known(true))
			require.Zero(t, wrong)

			w.Partition(1, w.Nodes[0])
			w.Run(5 * time.Second)
			others := w.Nodes[1]
			for i := flows; i < 2*flows; i++ {
				others.Find(flow(i), func(_ flowshare.Value, ok bool) { require.False(t, ok, "it cannot be reached") })
			}
			w.Run(time.Second)
			w.Partition(0, w.Nodes[0])
			took, ok := w.Until(time.Second, 3*time.Minute, func() bool {
				_, wrong := agreed(w, 2*flows, known(true))
				return wrong == 0
			})
			require.True(t, ok, "it is there again")
			t.Logf("known again after %v", took)

			w.Kill(w.Nodes[0])
			w.Run(5 * time.Second)
			_, wrong = agreed(w, 2*flows, known(false))
			require.Zero(t, wrong, "nobody else can deal with them")
		})
	}
}
