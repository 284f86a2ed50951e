package afpacket

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/rtnl"
	"github.com/lbprim/lbprim/internal/testenv"
)

func setUp(ns *netns.Namespace, name string, up bool) error {
	return ns.Do(func() error {
		index, err := rtnl.Index(name)
		if err != nil {
			return err
		}
		return rtnl.SetUp(index, up)
	})
}

// deleteLink removes the interface of a device.
func deleteLink(d *Device) error {
	return d.ports[0].inItsNamespace(func() error { return rtnl.Delete(int(d.ports[0].index.Load())) })
}

func TestShortBuffers(t *testing.T) {
	l := newLab(t, Config{})
	n, err := l.dev.Write([][]byte{nil}, testOffset)
	require.Zero(t, n)
	require.ErrorIs(t, err, unix.EINVAL)
	good := append(make([]byte, testOffset), l.frame()...)
	binary.NativeEndian.PutUint32(good, l.dev.Interfaces()[0].Index)
	n, err = l.dev.Write([][]byte{good, good[:testOffset], good}, testOffset)
	require.Equal(t, 1, n, "the error belongs to the second")
	require.ErrorIs(t, err, unix.EINVAL)
	require.EqualValues(t, 2, l.dev.Stats().Refused)

	var d *Device
	require.NoError(t, l.balancer.Do(func() (err error) { d, err = Open(&Config{Interfaces: []string{"b0"}}); return err }))
	defer d.Close()
	_, err = d.Read([][]byte{make([]byte, testOffset)}, []int{0}, testOffset)
	require.ErrorContains(t, err, "buffer 0 has 16 bytes")
	_, err = d.Read([][]byte{good}, []int{0}, 15)
	require.ErrorContains(t, err, "offset 15")
}

// Frames that do not fit are dropped whole, and those around them keep their places.
func TestFramesThatDoNotFit(t *testing.T) {
	l := newLab(t, Config{})
	var d *Device
	require.NoError(t, l.balancer.Do(func() (err error) { d, err = Open(&Config{Interfaces: []string{"b0"}}); return err }))
	defer d.Close()
	long := append(l.frame(), make([]byte, 200)...)
	tagged := l.frame(0x81, 0, 0, 5)
	bufs, sizes := make([][]byte, 8), make([]int, 8)
	for i := range bufs {
		bufs[i] = make([]byte, testOffset+len(l.frame())) // room for an untagged one
	}
	marks := ""
	for len(marks) < 2 {
		for _, f := range [][]byte{long, l.frame(), tagged, long, l.frame()} {
			l.sendFrame(t, f)
		}
		k, err := d.Read(bufs, sizes, testOffset)
		require.NoError(t, err)
		for i := range k {
			if bytes.Equal(l.frame(), bufs[i][testOffset:testOffset+sizes[i]]) {
				marks += "x"
			}
			require.LessOrEqual(t, testOffset+sizes[i], len(bufs[i]))
		}
	}
	require.NotZero(t, d.Stats().Truncated)
}

// Close comes while others read, write, count and set VIPs, and the interface goes and returns meanwhile.
func TestCloseInTheMidstOfEverything(t *testing.T) {
	for range 3 {
		l := newLab(t, Config{})
		var wg sync.WaitGroup
		stop := make(chan struct{})
		loop := func(f func()) {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						f()
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		frame := append(make([]byte, testOffset), l.frame()...)
		loop(func() {
			binary.NativeEndian.PutUint32(frame, l.dev.Interfaces()[0].Index)
			_, _ = l.dev.Write([][]byte{frame, frame}, testOffset)
		})
		loop(func() { _ = l.dev.SetVIPs(vip4, vip6) })
		loop(func() { _ = l.dev.SetVIPs(vip4); l.dev.Stats() })
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, deleteLink(l.dev))
		time.Sleep(20 * time.Millisecond)
		l.join(t)
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, l.dev.Close())
		close(stop)
		wg.Wait()
		_, err := l.dev.Write([][]byte{frame}, testOffset)
		require.ErrorIs(t, err, os.ErrClosed)
		require.ErrorIs(t, l.dev.SetVIPs(vip4), os.ErrClosed)
		_ = l.dev.Stats()
	}
}

// Solicitations come by a multicast address that interfaces filter, as a macvlan does; a VIP is no address of the host, so the
// socket itself must ask for them.
func TestSolicitationsPassTheMulticastFilter(t *testing.T) {
	l := newLab(t, Config{})
	require.NoError(t, l.balancer.Do(func() error {
		return exec.Command("ip", "link", "add", "m0", "link", "b0", "up", "type", "macvlan", "mode", "bridge").Run()
	}))
	var d *Device
	require.NoError(t, l.balancer.Do(func() (err error) { d, err = Open(&Config{Interfaces: []string{"m0"}}); return err }))
	defer d.Close()
	require.NoError(t, d.SetVIPs(vip6))
	go func() {
		bufs, sizes := [][]byte{make([]byte, 70000)}, make([]int, 1)
		for {
			if _, err := d.Read(bufs, sizes, testOffset); err != nil {
				return
			}
		}
	}()
	conn, err := l.client.DialContext(t.Context(), "udp", netip.AddrPortFrom(vip6, 53).String())
	require.NoError(t, err)
	defer conn.Close()
	require.Eventually(t, func() bool {
		_, _ = conn.Write([]byte("question"))
		return d.Stats().Answered > 0
	}, patience, 50*time.Millisecond)
	require.NoError(t, d.SetVIPs())
	require.Empty(t, d.ports[0].heard)
}

// The interface's MAC changes while the device is open; answers give the new one.
func TestAnswersGiveTheMACOfNow(t *testing.T) {
	l := newLab(t, Config{})
	require.NoError(t, l.dev.SetVIPs(vip4))
	require.NoError(t, l.balancer.Do(func() error {
		return exec.Command("ip", "link", "set", "b0", "address", "02:00:00:00:00:77").Run()
	}))
	conn, err := l.client.DialContext(t.Context(), "udp", "192.0.2.80:53")
	require.NoError(t, err)
	defer conn.Close()
	require.Eventually(t, func() bool {
		_, _ = conn.Write([]byte("question"))
		select {
		case f := <-l.frames:
			return udpTo(vip4)(f[testOffset:]) && f[testOffset+5] == 0x77
		case <-time.After(50 * time.Millisecond):
			return false
		}
	}, patience, time.Millisecond)
}

// No interface starves beside a busy one.
func TestInterfacesTakeTurns(t *testing.T) {
	testenv.NeedNetns(t)
	a, err := netns.New()
	require.NoError(t, err)
	defer a.Close()
	b, err := netns.New()
	require.NoError(t, err)
	defer b.Close()
	var here, there *Device
	names := []string{"x0", "x1", "x2"}
	for _, name := range names {
		require.NoError(t, netns.Join(netns.End{NS: a, Name: name}, netns.End{NS: b, Name: name}))
	}
	require.NoError(t, a.Do(func() (err error) { here, err = Open(&Config{Interfaces: names, BatchSize: 8}); return err }))
	defer here.Close()
	require.NoError(t, b.Do(func() (err error) { there, err = Open(&Config{Interfaces: names}); return err }))
	defer there.Close()
	require.Eventually(t, func() bool { // all cables carry something
		for i, ifi := range there.Interfaces() {
			_, _ = there.Write([][]byte{frameTo(here, ifi.Index, i, nil)}, testOffset)
		}
		bufs, sizes := make([][]byte, 64), make([]int, 64)
		for i := range bufs {
			bufs[i] = make([]byte, 2048)
		}
		seen := map[uint32]bool{}
		for deadline := time.Now().Add(50 * time.Millisecond); time.Now().Before(deadline) && len(seen) < len(names); {
			k := here.collect(bufs, sizes, testOffset)
			for i := range k {
				if bytes.HasPrefix(bufs[i][testOffset+12:], []byte{0x88, 0xb5}) {
					seen[binary.NativeEndian.Uint32(bufs[i])] = true
				}
			}
		}
		return len(seen) == len(names)
	}, patience, time.Millisecond)

	// The first has 5 frames at every read, the others many: with a batch of 8, all get on.
	fill := func(i, n int) {
		for range n {
			_, err := there.Write([][]byte{frameTo(here, there.Interfaces()[i].Index, i, nil)}, testOffset)
			require.NoError(t, err)
		}
	}
	fill(1, 60)
	fill(2, 60)
	got := map[uint32]int{}
	bufs, sizes := make([][]byte, 8), make([]int, 8)
	for i := range bufs {
		bufs[i] = make([]byte, 2048)
	}
	for range 12 {
		fill(0, 5)
		k, err := here.Read(bufs, sizes, testOffset)
		require.NoError(t, err)
		for i := range k {
			got[binary.NativeEndian.Uint32(bufs[i])]++
		}
	}
	for _, ifi := range here.Interfaces() {
		require.GreaterOrEqual(t, got[ifi.Index], 16, "%v", got)
	}
}

func frameTo(d *Device, out uint32, port int, payload []byte) []byte {
	f := make([]byte, testOffset, 128)
	binary.NativeEndian.PutUint32(f, out)
	f = append(f, d.Interfaces()[port].MAC...)
	f = append(f, 2, 0, 0, 0, 0, 9, 0x88, 0xb5)
	return append(append(f, payload...), make([]byte, 60)...)
}

// A super-packet of more than 128 datagrams is one no kernel takes; it goes as single packets. One with a tag that the kernel does take
// arrives with its tag and its header in order.
func TestSuperPacketsOfTheDevice(t *testing.T) {
	const size, count = 20, 200
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, tags := range [][]uint16{nil, {10}} {
			l := newLab(t, Config{})
			other := netip.MustParseAddr("192.0.2.9")
			if vip.Is6() {
				other = netip.MustParseAddr("2001:db8::9")
			}
			var sender *Device
			require.NoError(t, l.client.Do(func() (err error) { sender, err = Open(&Config{Interfaces: []string{"c0"}}); return err }))
			super := func(count int) []byte {
				f := marked(t, layers.IPProtocolUDP, netip.AddrPortFrom(other, 9), netip.AddrPortFrom(vip, 9), tags...)
				copy(f, l.dev.Interfaces()[0].MAC)
				l3 := 14 + 4*len(tags)
				l4 := l3 + 20
				if vip.Is6() {
					l4 = l3 + 40
				}
				f = append(f[:l4+8], bytes.Repeat([]byte("x"), size*count)...)
				binary.BigEndian.PutUint16(f[l4+4:], uint16(8+size*count))
				if vip.Is4() {
					binary.BigEndian.PutUint16(f[l3+2:], uint16(28+size*count))
					f[l3+10], f[l3+11] = 0, 0
					binary.BigEndian.PutUint16(f[l3+10:], onesSum(f[l3:l4]))
				} else {
					binary.BigEndian.PutUint16(f[l3+4:], uint16(8+size*count))
				}
				b := append(make([]byte, testOffset), f...)
				binary.NativeEndian.PutUint32(b, sender.Interfaces()[0].Index)
				h := b[testOffset-virtioLen:]
				h[0], h[1] = 1, unix.VIRTIO_NET_HDR_GSO_UDP_L4
				binary.NativeEndian.PutUint16(h[2:], uint16(l4+8))
				binary.NativeEndian.PutUint16(h[4:], size)
				binary.NativeEndian.PutUint16(h[6:], uint16(l4))
				binary.NativeEndian.PutUint16(h[8:], 6)
				return b
			}
			warm := l.frame()
			require.Eventually(t, func() bool {
				l.sendFrame(t, warm)
				select {
				case f := <-l.frames:
					return bytes.Equal(warm, f[testOffset:])
				case <-time.After(50 * time.Millisecond):
					return false
				}
			}, patience, time.Millisecond)
			payload := func(n, each int, whole bool) {
				for range n {
					f := l.next(t, "datagram", udpTo(vip))
					_, head, ip := etherHeader(f[testOffset:])
					require.Len(t, head, 14+4*len(tags))
					l4 := len(head) + 20
					if vip.Is6() {
						l4 = len(head) + 40
					}
					require.Equal(t, l4+8+each-len(head), len(ip))
					if h := f[testOffset-virtioLen:]; h[0]&1 != 0 {
						require.Equal(t, uint16(l4), binary.NativeEndian.Uint16(h[6:]), "csum_start")
					}
					require.Equal(t, whole, f[testOffset-virtioLen+1] != 0)
				}
			}
			_, err := sender.Write([][]byte{super(count)}, testOffset)
			require.NoError(t, err)
			payload(count, size, false)
			require.EqualValues(t, 1, sender.Stats().Split)
			before := sender.Stats().Split
			_, err = sender.Write([][]byte{super(10)}, testOffset)
			require.NoError(t, err)
			if sender.Stats().Split == before {
				payload(1, size*10, true)
			} else {
				payload(10, size, false)
			}
			sender.Close()
		}
	}
}

func onesSum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// An XDP program of two instructions, XDP_PASS, is found, and named with what takes it off.
func TestPreflightFindsXDP(t *testing.T) {
	testenv.NeedNetns(t)
	ns, err := netns.New()
	require.NoError(t, err)
	defer ns.Close()
	require.NoError(t, netns.Join(netns.End{NS: ns, Name: "b0"}, netns.End{NS: ns, Name: "b1"}))
	program := []uint64{ // struct bpf_insn: code(8) dst(4) src(4) off(16) imm(32)
		0xb7 | 2<<32, // r0 = XDP_PASS
		0x95,         // exit
	}
	license := []byte("Apache-2.0\x00")
	// The head of union bpf_attr for BPF_PROG_LOAD, and for BPF_LINK_CREATE (bpf(2), linux/bpf.h).
	load := struct {
		typ, count        uint32
		program, license  uint64
		logLevel, logSize uint32
		log               uint64
		version, flags    uint32
	}{typ: unix.BPF_PROG_TYPE_XDP, count: 2, program: uint64(uintptr(unsafe.Pointer(&program[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0])))}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&load)), unsafe.Sizeof(load))
	runtime.KeepAlive(program)
	runtime.KeepAlive(license)
	if errno != 0 {
		t.Skipf("this kernel loads no XDP program: bpf(BPF_PROG_LOAD): %v", errno)
	}
	defer unix.Close(int(fd))
	require.NoError(t, ns.Do(func() error {
		require.NoError(t, Preflight([]string{"b0", "b1"}, nil))
		index, err := rtnl.Index("b0")
		require.NoError(t, err)
		link := struct{ program, index, attach, flags uint32 }{uint32(fd), uint32(index), unix.BPF_XDP, 1 << 1 /* XDP_FLAGS_SKB_MODE */}
		at, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_CREATE, uintptr(unsafe.Pointer(&link)), unsafe.Sizeof(link))
		if errno != 0 {
			t.Skipf("this kernel attaches no XDP program: bpf(BPF_LINK_CREATE): %v", errno)
		}
		err = Preflight([]string{"b0", "b1"}, nil)
		require.ErrorContains(t, err, "XDP")
		require.ErrorContains(t, err, "ip link set dev b0 xdp off")
		require.NotContains(t, err.Error(), "b1")
		unix.Close(int(at))
		require.NoError(t, Preflight([]string{"b0"}, nil))
		return nil
	}))
}
