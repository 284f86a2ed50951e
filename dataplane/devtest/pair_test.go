package devtest_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/devtest"
)

var (
	_ dataplane.Device    = (*devtest.Device)(nil)
	_ dataplane.Offloader = (*devtest.Device)(nil)
	_ dataplane.Framer    = (*devtest.Device)(nil)
	_ dataplane.Ported    = (*devtest.Device)(nil)
)

func Example() {
	a, b, err := devtest.Pair(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer a.Close()
	if _, err := a.Write([][]byte{[]byte("a packet")}, 0); err != nil {
		fmt.Println(err)
		return
	}
	bufs, sizes := [][]byte{make([]byte, 1500)}, make([]int, 1)
	n, err := b.Read(bufs, sizes, 0)
	fmt.Println(n, err, string(bufs[0][:sizes[0]]))
	// Output: 1 <nil> a packet
}

func pair(t *testing.T, cfg *devtest.Config) (a, b *devtest.Device) {
	t.Helper()
	a, b, err := devtest.Pair(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return a, b
}

// numbers sends 0…n-1 through a cable made from cfg and returns what arrives, in order.
func numbers(t *testing.T, cfg devtest.Config, n int) (got []int, stats devtest.Stats) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, &cfg)
		go func() {
			bufs, sizes := [][]byte{make([]byte, 64), make([]byte, 64), make([]byte, 64)}, make([]int, 3)
			for {
				k, err := b.Read(bufs, sizes, 16)
				if err != nil {
					return
				}
				for i := range k {
					got = append(got, int(binary.BigEndian.Uint32(bufs[i][16:])))
				}
			}
		}()
		for i := range n {
			p := binary.BigEndian.AppendUint32(make([]byte, 16), uint32(i))
			_, err := a.Write([][]byte{p}, 16)
			require.NoError(t, err)
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		stats = a.Stats()
		a.Close()
	})
	return got, stats
}

func TestGoodCableKeepsOrder(t *testing.T) {
	got, stats := numbers(t, devtest.Config{}, 500)
	require.Len(t, got, 500)
	for i, v := range got {
		require.Equal(t, i, v)
	}
	require.Equal(t, devtest.Stats{Written: 500}, stats)
}

func TestFaults(t *testing.T) {
	const n = 2000
	cfg := devtest.Config{Seed: 7, Loss: 0.1, Duplicate: 0.05, Reorder: 0.2, Delay: 3 * time.Millisecond, Virtio: true, Ports: true}
	got, stats := numbers(t, cfg, n)
	require.EqualValues(t, n, stats.Written)
	require.Len(t, got, n-int(stats.Lost)+int(stats.Duplicated))
	require.InDelta(t, 0.1*n, float64(stats.Lost), 60)
	require.InDelta(t, 0.05*n, float64(stats.Duplicated), 60)
	require.Positive(t, stats.Reordered)
	seen, overtaken := map[int]int{}, 0
	for i, v := range got {
		seen[v]++
		if i > 0 && got[i-1] > v {
			overtaken++
		}
	}
	require.Len(t, seen, n-int(stats.Lost))
	require.Greater(t, overtaken, 100)

	again, _ := numbers(t, cfg, n)
	require.Equal(t, got, again, "the same seed does the same")
	cfg.Seed++
	other, _ := numbers(t, cfg, n)
	require.NotEqual(t, got, other)
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, &devtest.Config{Delay: time.Second})
		start := time.Now()
		_, err := a.Write([][]byte{{1}}, 0)
		require.NoError(t, err)
		n, err := b.Read([][]byte{make([]byte, 8)}, make([]int, 1), 0)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestWhatTravelsBeforeAPacket(t *testing.T) {
	for _, c := range []struct {
		cfg  devtest.Config
		want string
	}{
		{devtest.Config{}, "................P"},
		{devtest.Config{Virtio: true}, "......6789abcdefP"},
		{devtest.Config{Ports: true, Virtio: true}, "0123456789abcdefP"},
	} {
		a, b := pair(t, &c.cfg)
		require.Equal(t, c.cfg.Virtio, a.VirtioHeader() == 10)
		_, err := a.Write([][]byte{[]byte("0123456789abcdefP")}, 16)
		require.NoError(t, err)
		buf, sizes := []byte("................."), []int{0}
		_, err = b.Read([][]byte{buf}, sizes, 16)
		require.NoError(t, err)
		require.Equal(t, c.want, string(buf))
		require.Equal(t, 1, sizes[0])
	}
}

func TestPacketThatDoesNotFit(t *testing.T) {
	a, b := pair(t, nil)
	_, err := a.Write([][]byte{make([]byte, 100), {42}}, 0)
	require.NoError(t, err)
	bufs, sizes := [][]byte{make([]byte, 50)}, make([]int, 1)
	n, err := b.Read(bufs, sizes, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, byte(42), bufs[0][0])
	require.EqualValues(t, 1, a.Stats().Oversized)
}

func TestCloseWakes(t *testing.T) {
	for _, end := range []string{"reader's", "writer's"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := pair(t, &devtest.Config{Queue: 1})
				errs := make(chan error, 2)
				go func() {
					_, err := a.Read([][]byte{make([]byte, 8)}, make([]int, 1), 0)
					errs <- err
				}()
				go func() {
					_, err := a.Write([][]byte{{1}, {2}}, 0)
					errs <- err
				}()
				synctest.Wait()
				if end == "reader's" {
					a.Close()
				} else {
					b.Close()
				}
				for range 2 {
					require.ErrorIs(t, <-errs, os.ErrClosed)
				}
				_, err := b.Write([][]byte{{1}}, 0)
				require.ErrorIs(t, err, os.ErrClosed)
			})
		})
	}
}

func TestConfigFaultsAllAtOnce(t *testing.T) {
	_, _, err := devtest.Pair(&devtest.Config{Queue: -1, Batch: -2, Loss: 1.5, Duplicate: -1, Reorder: 2, Delay: -1, Hold: -1})
	for _, field := range []string{"Queue -1", "Batch -2", "Loss 1.5", "Duplicate -1", "Reorder 2", "Delay -1ns", "Hold -1ns"} {
		require.ErrorContains(t, err, field)
	}
	a, _ := pair(t, &devtest.Config{Virtio: true})
	_, err = a.Read([][]byte{{0}}, []int{0}, 9)
	require.ErrorContains(t, err, "offset 9")
	_, err = a.Write([][]byte{{0}}, 0)
	require.ErrorContains(t, err, "offset 0")
	_, err = a.Write([][]byte{make([]byte, 10)}, 10)
	require.True(t, errors.Is(err, os.ErrInvalid))
}

// A queue full of packets that do not fit the reader's buffers makes room all the same.
func TestOversizedPacketsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, err := devtest.Pair(&devtest.Config{Queue: 2})
		require.NoError(t, err)
		defer a.Close()
		go func() {
			for range 5 {
				_, _ = a.Write([][]byte{make([]byte, 100)}, 0)
			}
			_, _ = a.Write([][]byte{{7}}, 0)
		}()
		buf, sizes := [][]byte{make([]byte, 10)}, make([]int, 1)
		n, err := b.Read(buf, sizes, 0)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, byte(7), buf[0][0])
		require.EqualValues(t, 5, a.Stats().Oversized)
	})
}
