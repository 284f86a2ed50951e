//go:build linux

package tun_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/rtnl"
	"github.com/lbprim/lbprim/internal/testenv"
)

const headroom = 16

func prefixes(ss ...string) (ps []netip.Prefix) {
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func namespace(t *testing.T) *netns.Namespace {
	t.Helper()
	testenv.NeedNetns(t)
	n, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

func open(t *testing.T, n *netns.Namespace, cfg *tun.Config, queues int) (devs []*tun.Device) {
	t.Helper()
	require.NoError(t, n.Do(func() (err error) {
		devs, err = tun.OpenQueues(cfg, queues)
		return err
	}))
	for _, d := range devs {
		t.Cleanup(func() { d.Close() })
	}
	return devs
}

func buffers(n, size int) ([][]byte, []int) {
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, headroom+size)
	}
	return bufs, make([]int, n)
}

// mirror sends every packet back with its addresses swapped, which changes no checksum:
// the host 10.81.0.2 then is 10.81.0.1 itself. It reports the GSO types it has seen.
func mirror(d *tun.Device, seen chan<- byte) error {
	bufs, sizes := buffers(d.BatchSize(), 65535)
	out := make([][]byte, len(bufs))
	for {
		n, err := d.Read(bufs, sizes, headroom)
		if err != nil {
			return err
		}
		for i := range n {
			out[i] = bufs[i][:headroom+sizes[i]]
			p, swap := out[i][headroom:], [16]byte{}
			switch p[0] >> 4 {
			case 4:
				copy(swap[:4], p[12:16])
				copy(p[12:16], p[16:20])
				copy(p[16:20], swap[:4])
			case 6:
				copy(swap[:], p[8:24])
				copy(p[8:24], p[24:40])
				copy(p[24:40], swap[:])
			}
			select {
			case seen <- out[i][headroom-9]:
			default:
			}
		}
		for rest := out[:n]; len(rest) > 0; {
			k, err := d.Write(rest, headroom)
			if err != nil {
				if errors.Is(err, os.ErrClosed) {
					return err
				}
				k++
			}
			rest = rest[k:]
		}
	}
}

func TestInterface(t *testing.T) {
	n := namespace(t)
	d := open(t, n, &tun.Config{Name: "vip%d", MTU: 1400, QueueLen: 77, Addrs: prefixes("10.81.0.1/24", "fd81::1/64"), Routes: prefixes("192.0.2.80/32", "2001:db8::80/128")}, 1)[0]
	require.Equal(t, "vip0", d.Name())
	require.Equal(t, 1400, d.MTU())
	require.Equal(t, 10, d.VirtioHeader())
	require.NoError(t, n.Do(func() error {
		i, err := net.InterfaceByName("vip0")
		require.NoError(t, err)
		require.Equal(t, d.Index(), i.Index)
		require.Equal(t, 1400, i.MTU)
		require.NotZero(t, i.Flags&net.FlagUp)
		addrs, err := i.Addrs()
		require.NoError(t, err)
		var got []string
		for _, a := range addrs {
			got = append(got, a.String())
		}
		require.Contains(t, got, "10.81.0.1/24")
		require.Contains(t, got, "fd81::1/64")

		// Packets to the routes come to the device.
		bufs, sizes := buffers(d.BatchSize(), 65535)
		for _, dst := range []string{"192.0.2.80:9", "[2001:db8::80]:9"} {
			c, err := net.Dial("udp", dst)
			require.NoError(t, err)
			_, err = c.Write([]byte("hello, device"))
			require.NoError(t, err)
			c.Close()
			for found := false; !found; {
				k, err := d.Read(bufs, sizes, headroom)
				require.NoError(t, err)
				for i := range k {
					found = found || bytes.HasSuffix(bufs[i][:headroom+sizes[i]], []byte("hello, device"))
				}
			}
		}
		return nil
	}))
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	require.NoError(t, n.Do(func() error {
		_, err := rtnl.Index("vip0")
		require.ErrorIs(t, err, rtnl.ErrNoLink, "the interface is gone")
		return nil
	}))
}

// TestTCPSuperPackets sends real TCP through the device, both ways and in both families: with
// offloads in pieces larger than the MTU, without in pieces that fit.
func TestTCPSuperPackets(t *testing.T) {
	for name, cfg := range map[string]*tun.Config{
		"offload":    {},
		"no offload": {NoOffload: true},
		"no spin":    {Spin: -1},
	} {
		t.Run(name, func(t *testing.T) {
			n := namespace(t)
			c := *cfg
			c.Addrs = prefixes("10.81.0.1/24", "fd81::1/64")
			d := open(t, n, &c, 1)[0]
			require.Equal(t, !cfg.NoOffload, d.Offload().TCP)
			seen, done := make(chan byte, 1<<16), make(chan error, 1)
			go func() { done <- mirror(d, seen) }()
			transfer(t, n, "10.81.0.1:80", "10.81.0.2:80")
			transfer(t, n, "[fd81::1]:80", "[fd81::2]:80")
			d.Close()
			require.ErrorIs(t, <-done, os.ErrClosed)
			s := d.Stats()
			require.Zero(t, s.Invalid+s.Oversized+s.Short+s.Other, "%+v", s)
			require.NotZero(t, s.Read)
			var super int
			for len(seen) > 0 {
				if <-seen != unix.VIRTIO_NET_HDR_GSO_NONE {
					super++
				}
			}
			require.Equal(t, !cfg.NoOffload, super > 0, "%d super-packets", super)
		})
	}
}

func transfer(t *testing.T, n *netns.Namespace, listen, dial string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l, err := n.Listen(ctx, "tcp", listen)
	require.NoError(t, err)
	defer l.Close()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	sum := make(chan [sha256.Size]byte, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		got, _ := io.ReadAll(c)
		sum <- sha256.Sum256(got)
	}()
	c, err := n.DialContext(ctx, "tcp", dial)
	require.NoError(t, err)
	c.SetDeadline(time.Now().Add(30 * time.Second))
	_, err = c.Write(data)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	select {
	case got := <-sum:
		require.Equal(t, sha256.Sum256(data), got)
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}

// TestUDPSuperPackets has the kernel hand over ten datagrams as one, where it can.
func TestUDPSuperPackets(t *testing.T) {
	n := namespace(t)
	d := open(t, n, &tun.Config{Routes: prefixes("192.0.2.80/32")}, 1)[0]
	if !d.Offload().UDP {
		t.Skip("this kernel has no UDP segmentation offload for TUN (Linux 6.2)")
	}
	require.NoError(t, n.Do(func() error {
		lo, err := rtnl.Index("lo")
		require.NoError(t, err)
		require.NoError(t, rtnl.AddAddr(lo, netip.MustParsePrefix("10.81.9.1/32")))
		c, err := net.Dial("udp", "192.0.2.80:9")
		require.NoError(t, err)
		defer c.Close()
		raw, err := c.(*net.UDPConn).SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 1000)
		}))
		require.NoError(t, err)
		_, err = c.Write(make([]byte, 10000))
		require.NoError(t, err)
		bufs, sizes := buffers(1, 65535)
		for {
			_, err := d.Read(bufs, sizes, headroom)
			require.NoError(t, err)
			if sizes[0] >= 1000 {
				break
			}
		}
		require.Equal(t, 20+8+10000, sizes[0])
		require.Equal(t, byte(unix.VIRTIO_NET_HDR_GSO_UDP_L4), bufs[0][headroom-9])
		return nil
	}))
}

func TestOddWritesAreCounted(t *testing.T) {
	n := namespace(t)
	d := open(t, n, nil, 1)[0]
	packet := append(make([]byte, headroom), 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
	ok := bytes.Clone(packet)
	k, err := d.Write([][]byte{ok, ok}, headroom)
	require.NoError(t, err)
	require.Equal(t, 2, k)

	odd := bytes.Clone(packet)
	odd[headroom-9] = 0x7f // no such GSO type
	k, err = d.Write([][]byte{ok, odd, ok}, headroom)
	require.Equal(t, 1, k, "the first was taken, the error belongs to the second")
	require.ErrorIs(t, err, unix.EINVAL)
	_, err = d.Write([][]byte{ok[:headroom]}, headroom)
	require.ErrorIs(t, err, unix.EINVAL)
	require.EqualValues(t, 2, d.Stats().Invalid)

	// A device that goes down and returns.
	up := func(up bool) {
		require.NoError(t, n.Do(func() error { return rtnl.SetUp(d.Index(), up) }))
	}
	up(false)
	_, err = d.Write([][]byte{ok}, headroom)
	require.ErrorIs(t, err, unix.EIO)
	require.EqualValues(t, 1, d.Stats().Down)
	up(true)
	_, err = d.Write([][]byte{ok}, headroom)
	require.NoError(t, err)

	_, err = d.Write([][]byte{ok}, 9)
	require.ErrorContains(t, err, "offset 9")
	_, err = d.Read([][]byte{ok}, []int{0}, 9)
	require.ErrorContains(t, err, "offset 9")
}

// TestRefusedSuperPacketsAreSplit: no kernel takes a super-packet of more than 128 datagrams, and some refuse other
// segment sizes; it then goes as single packets.
func TestRefusedSuperPacketsAreSplit(t *testing.T) {
	n := namespace(t)
	d := open(t, n, &tun.Config{Addrs: prefixes("10.81.0.1/24", "fd81::1/64")}, 1)[0]
	const size, count = 20, 200
	for i, local := range []string{"10.81.0.1:9", "[fd81::1]:9"} {
		c, err := n.ListenPacket(t.Context(), "udp", local)
		require.NoError(t, err)
		defer c.Close()
		var p []byte
		if i == 0 {
			p = []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 10, 81, 0, 2, 10, 81, 0, 1}
			binary.BigEndian.PutUint16(p[2:], 28+size*count-1)
		} else {
			p = []byte{0x60, 0, 0, 0, 0, 0, 17, 64, 0xfd, 0x81, 15: 0, 23: 2, 24: 0xfd, 25: 0x81, 39: 1}
			binary.BigEndian.PutUint16(p[4:], 8+size*count-1)
		}
		l4 := len(p)
		p = append(p, 0, 7, 0, 9, 0, 0, 0, 0)
		binary.BigEndian.PutUint16(p[l4+4:], 8+size*count-1)
		for i := range size*count - 1 { // the tail is shorter than the others
			p = append(p, byte(i))
		}
		b := append(make([]byte, headroom), p...)
		h := b[headroom-10:]
		h[0], h[1] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_UDP_L4
		binary.NativeEndian.PutUint16(h[2:], uint16(l4+8))
		binary.NativeEndian.PutUint16(h[4:], size)
		binary.NativeEndian.PutUint16(h[6:], uint16(l4))
		binary.NativeEndian.PutUint16(h[8:], 6)
		got := make([]byte, 2000)
		// The kernel takes packets to an IPv6 address only a moment after a link has come up.
		if one := append([]byte(nil), b[:headroom+l4+9]...); i == 1 {
			copy(one[headroom-10:], []byte{unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, 0, 0, 0, 0, 0, byte(l4), 0, 6, 0})
			one[headroom+4], one[headroom+5], one[headroom+l4+4], one[headroom+l4+5], one[headroom+l4+6] = 0, 9, 0, 9, 1 // a checksum of 0 is none, which IPv6 wants
			arrived := func() bool {
				require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
				_, _, err := c.ReadFrom(got)
				return err == nil
			}
			require.Eventually(t, func() bool {
				_, err := d.Write([][]byte{one}, headroom)
				return err == nil && arrived()
			}, 30*time.Second, time.Millisecond)
			for arrived() { // those that are late
			}
		}
		k, err := d.Write([][]byte{b}, headroom)
		require.NoError(t, err)
		require.Equal(t, 1, k)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
		for i := range count {
			k, _, err := c.ReadFrom(got)
			require.NoError(t, err, "datagram %d", i)
			require.Equal(t, p[l4+8+i*size:][:k], got[:k])
			require.Equal(t, min(size, size*count-1-i*size), k)
		}
	}
	s := d.Stats()
	require.EqualValues(t, 2, s.Split)
	require.Zero(t, s.Invalid)
}

func TestShortBuffers(t *testing.T) {
	d := open(t, namespace(t), nil, 1)[0]
	_, err := d.Read([][]byte{make([]byte, headroom)}, []int{0}, headroom)
	require.ErrorContains(t, err, "buffer 0 has 16 bytes")
	_, err = d.Write([][]byte{nil}, headroom)
	require.ErrorIs(t, err, unix.EINVAL)
}

func TestPacketThatDoesNotFit(t *testing.T) {
	n := namespace(t)
	d := open(t, n, &tun.Config{Routes: prefixes("192.0.2.80/32")}, 1)[0]
	require.NoError(t, n.Do(func() error {
		c, err := net.Dial("udp", "192.0.2.80:9")
		require.NoError(t, err)
		defer c.Close()
		for _, size := range []int{1001, 1000} {
			_, err = c.Write(make([]byte, size))
			require.NoError(t, err)
		}
		bufs, sizes := buffers(1, 20+8+1000)
		for {
			_, err := d.Read(bufs, sizes, headroom)
			require.NoError(t, err)
			if bufs[0][headroom]>>4 == 4 {
				break
			}
		}
		require.Equal(t, 20+8+1000, sizes[0], "whole packets fill the buffer to the last byte")
		require.EqualValues(t, 1, d.Stats().Oversized)
		return nil
	}))
}

func TestCloseWakesReaders(t *testing.T) {
	n := namespace(t)
	devs := open(t, n, &tun.Config{Name: "many"}, 3)
	done := make(chan error)
	for _, d := range devs {
		go func() {
			bufs, sizes := buffers(1, 65535)
			for {
				if _, err := d.Read(bufs, sizes, headroom); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for _, d := range devs {
		require.Equal(t, "many", d.Name())
		require.NoError(t, d.Close())
		require.ErrorIs(t, <-done, os.ErrClosed)
		_, err := d.Write([][]byte{make([]byte, 40)}, headroom)
		require.ErrorIs(t, err, os.ErrClosed)
	}
	_, err := new(tun.Device).Read([][]byte{make([]byte, 40)}, []int{0}, headroom)
	require.ErrorIs(t, err, os.ErrClosed, "the zero Device is closed")
	require.NoError(t, new(tun.Device).Close())
}

func TestInterfaceDeletedByOthers(t *testing.T) {
	n := namespace(t)
	d := open(t, n, nil, 1)[0]
	require.NoError(t, n.Do(func() error { return rtnl.Delete(d.Index()) }))
	bufs, sizes := buffers(1, 65535)
	for {
		if _, err := d.Read(bufs, sizes, headroom); err != nil {
			require.ErrorIs(t, err, syscall.EBADFD)
			break
		}
	}
}

func TestDivert(t *testing.T) {
	n, server := namespace(t), namespace(t)
	require.NoError(t, netns.Join(
		netns.End{NS: n, Name: "e1", Addrs: prefixes("10.81.1.1/24", "fd81:0:0:1::1/64")},
		netns.End{NS: server, Name: "eth0", Addrs: prefixes("10.81.1.2/24", "fd81:0:0:1::2/64")}))
	require.NoError(t, n.Router())
	require.NoError(t, server.DefaultVia(netip.MustParseAddr("10.81.1.1"), netip.MustParseAddr("fd81:0:0:1::1")))

	err := n.Do(func() error {
		_, err := tun.Open(&tun.Config{Divert: []string{"e1", "e7"}})
		return err
	})
	require.ErrorIs(t, err, rtnl.ErrNoLink)
	require.ErrorContains(t, err, `"e7"`)

	d := open(t, n, &tun.Config{Name: "lb0", Divert: []string{"e1"}}, 1)[0]
	for _, dst := range []string{"203.0.113.9:9", "[2001:db8::9]:9"} {
		c, err := server.DialContext(context.Background(), "udp", dst)
		require.NoError(t, err)
		_, err = c.Write([]byte("an answer to somewhere"))
		require.NoError(t, err)
		c.Close()
		bufs, sizes := buffers(8, 65535)
		for found := false; !found; {
			k, err := d.Read(bufs, sizes, headroom)
			require.NoError(t, err)
			for i := range k {
				found = found || bytes.HasSuffix(bufs[i][:headroom+sizes[i]], []byte("an answer to somewhere"))
			}
		}
	}
	require.NoError(t, d.Close())
	// The rule has gone with the device: to delete it again fails.
	require.NoError(t, n.Do(func() error {
		err := rtnl.DeleteRule(rtnl.Rule{In: "e1", Table: uint32(0x6c620000 + d.Index()), Priority: 30000})
		require.ErrorIs(t, err, unix.ENOENT)
		return nil
	}))
}

func TestNoAllocation(t *testing.T) {
	n := namespace(t)
	d := open(t, n, &tun.Config{Addrs: prefixes("10.81.0.1/24")}, 1)[0]
	c, err := n.DialContext(context.Background(), "udp", "10.81.0.2:9")
	require.NoError(t, err)
	defer c.Close()
	bufs, sizes := buffers(d.BatchSize(), 65535)
	odd := [][]byte{append(make([]byte, headroom), 0x45)}
	odd[0][headroom-9] = 0x7f // no such GSO type: the error must not allocate either
	payload := []byte("x")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := c.Write(payload); err != nil {
			t.Error(err)
		}
		if _, err := d.Read(bufs, sizes, headroom); err != nil {
			t.Error(err)
		}
		if _, err := d.Write(odd, headroom); err == nil {
			t.Error("an odd packet was taken")
		}
	}))
}

// TestIdleSleeps shows that a reader without traffic is asleep in the kernel.
func TestIdleSleeps(t *testing.T) {
	n := namespace(t)
	d := open(t, n, &tun.Config{Addrs: prefixes("10.81.0.1/24")}, 1)[0]
	go mirror(d, make(chan byte))
	c, err := n.DialContext(context.Background(), "udp", "10.81.0.2:9")
	require.NoError(t, err)
	defer c.Close()
	for range 50 {
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
	}
	// The kernel sends router solicitations of its own, so a few wake-ups are expected; and on a busy machine the reader is through with the
	// datagrams only a while later.
	require.Eventually(t, func() bool {
		before, used := d.Stats(), cpu(t)
		time.Sleep(300 * time.Millisecond)
		return cpu(t)-used < 100*time.Millisecond && d.Stats().Sleeps-before.Sleeps <= 5
	}, 10*time.Second, time.Millisecond, "it is awake a third of the time, or more often than packets come")
}

func cpu(t *testing.T) time.Duration {
	var ru unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &ru))
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func TestPreflight(t *testing.T) {
	n := namespace(t)
	check := func(routes ...string) (err error) {
		require.NoError(t, n.Do(func() error { err = tun.Preflight(&tun.Config{Routes: prefixes(routes...)}); return nil }))
		return err
	}
	for _, key := range []string{"all", "default"} {
		require.NoError(t, n.Sysctl("net.ipv4.conf."+key+".rp_filter", "1"))
	}
	require.NoError(t, n.Sysctl("net.ipv4.ip_forward", "0"))
	require.NoError(t, n.Sysctl("net.ipv6.conf.all.forwarding", "0"))
	err := check("192.0.2.80/32", "2001:db8::80/128")
	for _, fix := range []string{"net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0", "net.ipv6.conf.all.forwarding=1"} {
		require.ErrorContains(t, err, "sysctl -w "+fix)
	}
	require.NotContains(t, check("192.0.2.80/32").Error(), "ipv6")
	require.NotContains(t, check("2001:db8::80/128").Error(), "ipv4")
	require.NoError(t, check(), "nothing is routed here")
	require.NoError(t, n.Router())
	require.NoError(t, check("192.0.2.80/32", "2001:db8::80/128"))
	require.NoError(t, n.Sysctl("net.ipv4.conf.default.rp_filter", "2"))
	require.NoError(t, check("192.0.2.80/32"), "loose filtering lets through what has a way back")
	require.ErrorContains(t, tun.Preflight(&tun.Config{MTU: 1}), "MTU 1")
}
