package dataplane_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
)

// TestNetnsCapacity: a Plane between kernels has room for some of the clients, and refuses the others. Then it is given more, and they get in; then
// its capacity goes up and down under all of them. No connection ends, and no byte is lost, doubled or anybody else's.
func TestNetnsCapacity(t *testing.T) {
	w := newWorld(t, how{queues: 2})
	const few, n = 10, 30 // clients of each family
	require.NoError(t, w.plane.SetMaxSessions(2*few))
	var crowds []*crowd
	come := func(n int) {
		for _, v6 := range []bool{false, true} {
			crowds = append(crowds, w.crowd(t, netip.AddrPortFrom(wvip(v6), 5050), n, 30*time.Millisecond))
		}
	}
	for _, v6 := range []bool{false, true} {
		for i := range w.servers {
			w.serve(t, i, v6, 5050)
		}
	}
	connected := func() (sum int) {
		for _, c := range crowds {
			got := c.connected()
			sum += got[0] + got[1]
		}
		return sum
	}
	full := func() (refused uint64) {
		for reason, n := range w.plane.Drops() {
			if reason == dataplane.TableFull {
				refused = n
			}
		}
		return refused
	}
	come(few)
	goOn(t, crowds, "at first", 1)
	come(n - few)
	require.Eventually(t, func() bool { return full() > 0 }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, 2*few, connected())
	require.Equal(t, 2*few, w.plane.Stats().MaxSessions)
	// The others try again by themselves.
	require.NoError(t, w.plane.SetMaxSessions(1000))
	goOn(t, crowds, "with more room", 1)
	require.Equal(t, 2*n, connected())
	refused := full()
	for _, size := range []int{100_000, 200, 50_000, 3000, 110_000, 150} {
		require.NoError(t, w.plane.SetMaxSessions(size))
		require.NoError(t, w.plane.SetMaxAssociations(size))
		goOn(t, crowds, "in between", 1)
	}
	require.Equal(t, refused, full(), "nobody was refused any more")
	for _, c := range crowds {
		require.Zero(t, c.ended.Load())
	}
	require.Equal(t, 2*n, connected())
}
