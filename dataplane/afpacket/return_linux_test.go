package afpacket

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// An interface that comes back is noticed although another one leaves Read no time to wait.
func TestInterfaceReturnsBesideABusyOne(t *testing.T) {
	testenv.NeedNetns(t)
	a, err := netns.New()
	require.NoError(t, err)
	defer a.Close()
	b, err := netns.New()
	require.NoError(t, err)
	defer b.Close()
	for _, name := range []string{"x0", "x1"} {
		require.NoError(t, netns.Join(netns.End{NS: a, Name: name}, netns.End{NS: b, Name: name}))
	}
	var here, there *Device
	require.NoError(t, a.Do(func() (err error) {
		here, err = Open(&Config{Interfaces: []string{"x0", "x1"}, BatchSize: 8})
		return err
	}))
	defer here.Close()
	require.NoError(t, b.Do(func() (err error) { there, err = Open(&Config{Interfaces: []string{"x1"}}); return err }))
	defer there.Close()

	bufs, sizes := make([][]byte, 8), make([]int, 8)
	for i := range bufs {
		bufs[i] = make([]byte, 2048)
	}
	frame := frameTo(here, there.Interfaces()[0].Index, 1, nil)
	readUntil := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !done(); {
			require.True(t, time.Now().Before(deadline), what)
			for range 16 { // twice as many as one Read takes
				_, _ = there.Write([][]byte{frame}, testOffset)
			}
			_, err := here.Read(bufs, sizes, testOffset)
			require.NoError(t, err)
		}
	}
	gone := func() bool { return here.Interfaces()[0].Index == 0 }
	require.NoError(t, b.Do(func() error { return exec.Command("ip", "link", "del", "x0").Run() }))
	readUntil("the interface is missed", gone)
	require.NoError(t, netns.Join(netns.End{NS: a, Name: "x0"}, netns.End{NS: b, Name: "x0"}))
	sleeps := here.Stats().Sleeps
	readUntil("the interface is found", func() bool { return !gone() })
	t.Log("waits until it was found:", here.Stats().Sleeps-sleeps)
}
