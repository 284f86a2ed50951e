package afpacket

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/rtnl"
	"github.com/lbprim/lbprim/internal/testenv"
)

// cable is two devices joined by a cable for frames of 9,000 bytes, nothing but the tests' frames on it.
func cable(t *testing.T, cfg Config) (here, there *Device) {
	testenv.NeedNetns(t)
	var ends [2]*netns.Namespace
	for i := range ends {
		var err error
		ends[i], err = netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { ends[i].Close() })
		require.NoError(t, ends[i].Sysctl("net.ipv6.conf.default.disable_ipv6", "1"))
	}
	require.NoError(t, netns.Join(netns.End{NS: ends[0], Name: "x0"}, netns.End{NS: ends[1], Name: "x0"}))
	for i, d := range []**Device{&here, &there} {
		require.NoError(t, ends[i].Do(func() (err error) {
			index, err := rtnl.Index("x0")
			if err == nil {
				err = rtnl.SetMTU(index, 9000)
			}
			if err == nil {
				c := cfg
				c.Interfaces = []string{"x0"}
				*d, err = Open(&c)
			}
			return err
		}))
		t.Cleanup(func() { (*d).Close() })
	}
	return here, there
}

// numbered is a frame that says its number throughout.
func numbered(to, from *Device, number uint32, length int) []byte {
	f := frameTo(to, from.Interfaces()[0].Index, 0, nil)[:testOffset+14]
	for len(f) < testOffset+length {
		f = binary.BigEndian.AppendUint32(f, number)
	}
	return f[:testOffset+length]
}

// numbers reads what is there, and checks that each frame is whole.
func numbers(t *testing.T, d *Device, bufs [][]byte, sizes []int) (got []uint32) {
	for n := d.collect(bufs, sizes, testOffset); n > 0; n = d.collect(bufs, sizes, testOffset) {
		for i := range n {
			f := bufs[i][testOffset : testOffset+sizes[i]]
			number := binary.BigEndian.Uint32(f[14:])
			require.Equal(t, d.Interfaces()[0].Index, binary.NativeEndian.Uint32(bufs[i]))
			for at := 14; at+4 <= len(f); at += 4 {
				require.Equal(t, number, binary.BigEndian.Uint32(f[at:]), "frame of %d bytes, at %d", len(f), at)
			}
			got = append(got, number)
		}
	}
	return got
}

// Frames that fit into their places and such that do not come in order and whole, however often the ring goes round.
func TestRingKeepsOrder(t *testing.T) {
	for _, noRing := range []bool{false, true} {
		t.Run(fmt.Sprintf("NoRing=%v", noRing), func(t *testing.T) {
			here, there := cable(t, Config{NoRing: noRing, ReceiveBuffer: 1 << 18, BatchSize: 7})
			require.Equal(t, noRing, here.ports[0].ring.frames == nil)
			bufs, sizes := make([][]byte, 7), make([]int, 7)
			for i := range bufs {
				bufs[i] = make([]byte, testOffset+10000)
			}
			rnd := rand.New(rand.NewPCG(1, 2))
			var sent, next uint32
			for range 100 {
				var batch [][]byte
				for range rnd.IntN(15) {
					length := 60 + rnd.IntN(1455)
					if rnd.IntN(3) == 0 {
						length = 1900 + rnd.IntN(7000) // about what a place holds, and more
					}
					batch = append(batch, numbered(here, there, sent, length))
					sent++
				}
				_, err := there.Write(batch, testOffset)
				require.NoError(t, err)
				require.Eventually(t, func() bool {
					for _, n := range numbers(t, here, bufs, sizes) {
						require.Equal(t, next, n)
						next++
					}
					return next == sent
				}, 20*time.Second, time.Millisecond)
			}
			require.Zero(t, here.Stats().KernelDrop)
		})
	}
}

// What finds no room is counted, what comes is in order, and then all goes on, for short frames as for long ones.
func TestRingOverflows(t *testing.T) {
	for _, length := range []int{100, 5000} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			here, there := cable(t, Config{ReceiveBuffer: ringBlock})
			bufs, sizes := make([][]byte, 64), make([]int, 64)
			for i := range bufs {
				bufs[i] = make([]byte, testOffset+10000)
			}
			const many = 200
			var last int64 = -1
			received := 0
			take := func() {
				for _, n := range numbers(t, here, bufs, sizes) {
					require.Greater(t, int64(n), last)
					last = int64(n)
					received++
				}
			}
			for i := range many {
				_, err := there.Write([][]byte{numbered(here, there, uint32(i), length)}, testOffset)
				require.NoError(t, err)
			}
			require.Eventually(t, func() bool {
				take()
				return received+int(here.Stats().KernelDrop) == many
			}, 20*time.Second, time.Millisecond, "%d received", received)
			require.Positive(t, received)
			require.Positive(t, here.Stats().KernelDrop)
			for i := range 50 {
				_, err := there.Write([][]byte{numbered(here, there, uint32(many+i), length)}, testOffset)
				require.NoError(t, err)
				require.Eventually(t, func() bool { take(); return last == int64(many+i) }, 20*time.Second, time.Millisecond)
			}
		})
	}
}

// Long frames find room while the reader is busy: of a hundred streams at a time, each with some super-packets.
func TestBurst(t *testing.T) {
	for _, noRing := range []bool{false, true} {
		t.Run(fmt.Sprintf("NoRing=%v", noRing), func(t *testing.T) {
			here, there := cable(t, Config{NoRing: noRing})
			const many = 3000 // of 9,000 bytes
			for i := range many {
				_, err := there.Write([][]byte{numbered(here, there, uint32(i), 8900)}, testOffset)
				require.NoError(t, err)
			}
			bufs, sizes := make([][]byte, 64), make([]int, 64)
			for i := range bufs {
				bufs[i] = make([]byte, testOffset+10000)
			}
			got := 0
			require.Eventually(t, func() bool {
				n := here.collect(bufs, sizes, testOffset)
				for _, b := range bufs[:n] {
					require.EqualValues(t, got, binary.BigEndian.Uint32(b[testOffset+14:]))
					got++
				}
				return got == many || here.Stats().KernelDrop > 0
			}, 20*time.Second, time.Microsecond)
			require.Zero(t, here.Stats().KernelDrop)
		})
	}
}

// A ring in which nothing arrives any more, while the kernel drops frames, is given up; frames then come by system calls.
func TestStuckRingIsGivenUp(t *testing.T) {
	here, there := cable(t, Config{})
	bufs, sizes := make([][]byte, 64), make([]int, 64)
	for i := range bufs {
		bufs[i] = make([]byte, testOffset+10000)
	}
	var next uint32
	pass := func(length int) {
		_, err := there.Write([][]byte{numbered(here, there, next, length)}, testOffset)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			got := numbers(t, here, bufs, sizes)
			return len(got) == 1 && got[0] == next
		}, 20*time.Second, time.Millisecond)
		next++
	}
	p := here.ports[0]
	lose := func() { // as if the kernel had counted a drop
		p.drops.Lock()
		p.count++
		p.drops.Unlock()
	}
	pass(100)
	lose()
	p.unstick(&here.stats)
	require.NotNil(t, p.ring.frames, "frames have come meanwhile")
	p.unstick(&here.stats)
	require.NotNil(t, p.ring.frames, "nothing was lost meanwhile")
	lose()
	p.unstick(&here.stats)
	require.Nil(t, p.ring.frames)
	for _, length := range []int{100, 1500, 5000} {
		pass(length)
	}
}
