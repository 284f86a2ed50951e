package flowshare_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/cluster/internal/simnet"
)

func flow(i int) flowshare.Flow {
	client := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	server := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if i%3 == 1 {
		client, server = netip.MustParseAddr("2001:db8::").Next(), netip.MustParseAddr("2001:db8:1::1")
		b := client.As16()
		b[8], b[9], b[10] = byte(i>>16), byte(i>>8), byte(i)
		client = netip.AddrFrom16(b)
	}
	return flowshare.MakeFlow(6, netip.AddrPortFrom(client, uint16(1024+i%60000)), netip.AddrPortFrom(server, 443))
}

func value(i int) flowshare.Value {
	return flowshare.Value{Node: fmt.Sprintf("sh%d", i%5), Note: "web"}
}

// agreed returns how many of the flows 0 to n−1 a look-up at each balancer finds as announced.
func agreed(w *simnet.World, n int, want func(i int) (flowshare.Value, bool)) (right, wrong int) {
	for _, b := range w.AliveNodes() {
		for i := range n {
			b.Find(flow(i), func(v flowshare.Value, ok bool) {
				wv, wok := want(i)
				if ok == wok && v == wv {
					right++
				} else {
					wrong++
				}
			})
			if i%500 == 0 {
				w.Run(60 * time.Millisecond)
			}
		}
	}
	w.Run(time.Second)
	return right, wrong
}

func all(i int) (flowshare.Value, bool) { return value(i), true }

func TestEveryoneKnows(t *testing.T) {
	for _, n := range []int{2, 4, 9, 16} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := simnet.New(simnet.Config{Seed: uint64(n)}, n)
			const flows = 360
			for i := range flows {
				b := w.Nodes[i%n]
				b.Layer.Announce(flow(i), value(i))
				b.Touch()
			}
			w.Run(200 * time.Millisecond)
			right, wrong := agreed(w, flows, all)
			require.Zero(t, wrong)
			require.Equal(t, n*flows, right)

			// Half of them end.
			for i := 0; i < flows; i += 2 {
				b := w.Nodes[i%n]
				b.Layer.Withdraw(flow(i))
				b.Touch()
			}
			w.Run(200 * time.Millisecond)
			_, wrong = agreed(w, flows, func(i int) (flowshare.Value, bool) {
				if i%2 == 0 {
					return flowshare.Value{}, false
				}
				return value(i), true
			})
			require.Zero(t, wrong)
			w.Run(3 * time.Minute)
			total, own := 0, 0
			for _, b := range w.Nodes {
				s := b.Layer.Stats()
				require.Zero(t, s.Tombstones)
				require.Zero(t, s.Malformed+s.Refused+s.Conflicts)
				own += s.Own
				total += s.Flows
			}
			require.Equal(t, flows/2, own)
			if n <= flowshare.DefaultThreshold {
				require.Equal(t, n*flows/2, total)
			} else {
				require.LessOrEqual(t, total, 3*flows/2)
			}
		})
	}
}
