package afpacket

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

const testOffset = 16

// patience is for how long a condition may take, on a machine that is busy with others.
const patience = 30 * time.Second

// lab is a client and a balancer host, joined by a cable with a Device on the balancer's end.
type lab struct {
	client, balancer *netns.Namespace
	dev              *Device
	frames           chan []byte // with the header room in front
}

func newLab(t *testing.T, cfg Config) *lab {
	testenv.NeedNetns(t)
	l := &lab{frames: make(chan []byte, 1024)}
	var err error
	for _, ns := range []**netns.Namespace{&l.client, &l.balancer} {
		*ns, err = netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { (*ns).Close() })
	}
	l.join(t)
	cfg.Interfaces = []string{"b0"}
	require.NoError(t, l.balancer.Do(func() (err error) { l.dev, err = Open(&cfg); return err }))
	done := make(chan struct{})
	go func() {
		defer close(done)
		bufs, sizes := make([][]byte, l.dev.BatchSize()), make([]int, l.dev.BatchSize())
		for i := range bufs {
			bufs[i] = make([]byte, testOffset+70000)
		}
		for {
			n, err := l.dev.Read(bufs, sizes, testOffset)
			if err != nil {
				if !errors.Is(err, os.ErrClosed) {
					t.Errorf("read: %v", err)
				}
				return
			}
			for i := range n {
				select {
				case l.frames <- append([]byte(nil), bufs[i][:testOffset+sizes[i]]...):
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		l.dev.Close()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("Close did not wake Read")
		}
	})
	return l
}

func (l *lab) join(t *testing.T) {
	require.NoError(t, netns.Join(
		netns.End{NS: l.client, Name: "c0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24"), netip.MustParsePrefix("2001:db8::9/64")}},
		netns.End{NS: l.balancer, Name: "b0"}))
}

// next returns the first frame that ok accepts.
func (l *lab) next(t *testing.T, what string, ok func(frame []byte) bool) []byte {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case f := <-l.frames:
			if ok(f[testOffset:]) {
				return f
			}
		case <-deadline:
			t.Fatalf("no %s came; %+v", what, l.dev.Stats())
		}
	}
}

func udpTo(vip netip.Addr) func([]byte) bool {
	return func(f []byte) bool {
		proto, _, ip := etherHeader(f)
		return proto == etherIPv4 && len(ip) > 28 && ip[9] == 17 && netip.AddrFrom4([4]byte(ip[16:20])) == vip ||
			proto == etherIPv6 && len(ip) > 48 && ip[6] == 17 && netip.AddrFrom16([16]byte(ip[24:40])) == vip
	}
}

// A client's kernel finds a VIP by ARP or ND, its datagram arrives, and one sent back reaches the client's socket.
func TestVIPIsFoundAndReached(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		t.Run(vip.String(), func(t *testing.T) {
			l := newLab(t, Config{})
			require.NoError(t, l.dev.SetVIPs(vip4, vip6))
			conn, err := l.client.DialContext(t.Context(), "udp", netip.AddrPortFrom(vip, 53).String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write([]byte("question"))
			require.NoError(t, err)
			f := l.next(t, "datagram", udpTo(vip))
			require.NotZero(t, l.dev.Stats().Answered)
			require.Equal(t, l.dev.Interfaces()[0].Index, binary.NativeEndian.Uint32(f))

			// Turn it round: swap MACs, addresses and ports. The Internet checksum does not mind.
			frame := f[testOffset:]
			swap := func(b []byte, n int) {
				for i := range n {
					b[i], b[n+i] = b[n+i], b[i]
				}
			}
			swap(frame, 6)
			ports := 14 + 20
			if vip.Is4() {
				swap(frame[14+12:], 4)
			} else {
				swap(frame[14+8:], 16)
				ports = 14 + 40
			}
			swap(frame[ports:], 2)
			n, err := l.dev.Write([][]byte{f}, testOffset)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
			answer := make([]byte, 64)
			n, err = conn.Read(answer)
			require.NoError(t, err)
			require.Equal(t, "question", string(answer[:n]))
		})
	}
}

// sendFrame puts a frame on the cable from the client's end.
func (l *lab) sendFrame(t *testing.T, frame []byte) {
	t.Helper()
	require.NoError(t, l.client.Do(func() error {
		d, err := Open(&Config{Interfaces: []string{"c0"}})
		if err != nil {
			return err
		}
		defer d.Close()
		f := make([]byte, testOffset, 128)
		binary.NativeEndian.PutUint32(f, d.Interfaces()[0].Index)
		_, err = d.Write([][]byte{append(f, frame...)}, testOffset)
		return err
	}))
}

func (l *lab) frame(tags ...byte) []byte {
	f := append([]byte(nil), l.dev.Interfaces()[0].MAC...)
	f = append(f, 2, 0, 0, 0, 0, 9)
	f = append(f, tags...)
	f = append(f, 0x88, 0xb5)
	f = append(f, "payload"...)
	return append(f, make([]byte, 60)...)
}

// The kernel takes the outer tag off a frame; it arrives where it was, alone or before another (QinQ).
func TestVLANTagIsPutBack(t *testing.T) {
	l := newLab(t, Config{})
	for _, tags := range [][]byte{
		{0x81, 0, 0x20, 10},
		{0x88, 0xa8, 0, 20, 0x81, 0, 0, 10},
	} {
		want := l.frame(tags...)
		// What is sent before the kernel has noticed the cable is lost, so send again until it comes.
		require.Eventually(t, func() bool {
			l.sendFrame(t, want)
			select {
			case f := <-l.frames:
				return bytes.Equal(want, f[testOffset:])
			case <-time.After(100 * time.Millisecond):
				return false
			}
		}, patience, time.Millisecond)
	}
}

func TestOtherHostsFramesAreIgnored(t *testing.T) {
	l := newLab(t, Config{Promiscuous: true})
	send := func(dst byte) {
		f := l.frame()
		f[5] ^= dst
		f[14] = dst
		l.sendFrame(t, f)
	}
	before := l.dev.Stats().OtherHost
	require.Eventually(t, func() bool { send(1); return l.dev.Stats().OtherHost > before }, patience, 10*time.Millisecond)
	send(0)
	f := l.next(t, "own frame", func(f []byte) bool { p, _, _ := etherHeader(f); return p == 0x88b5 })
	require.Zero(t, f[testOffset+14], "the frame for another MAC came through")
}

// What the device sends does not come back to it.
func TestOwnFramesAreNotRead(t *testing.T) {
	for name, cfg := range map[string]Config{"ring": {}, "no ring": {NoRing: true}, "promiscuous": {Promiscuous: true}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, cfg)
			mine, theirs := l.frame(), l.frame()
			mine[5] ^= 1 // for somebody on the cable
			mine[14], theirs[14] = 1, 2
			for range 20 {
				f := make([]byte, testOffset, 128)
				binary.NativeEndian.PutUint32(f, l.dev.Interfaces()[0].Index)
				_, err := l.dev.Write([][]byte{append(f, mine...)}, testOffset)
				require.NoError(t, err)
			}
			var f []byte
			require.Eventually(t, func() bool {
				l.sendFrame(t, theirs)
				for {
					select {
					case f = <-l.frames:
						if p, _, _ := etherHeader(f[testOffset:]); p == 0x88b5 {
							return true
						}
					case <-time.After(100 * time.Millisecond):
						return false
					}
				}
			}, 20*time.Second, time.Millisecond)
			require.EqualValues(t, 2, f[testOffset+14], "one of its own comes first")
		})
	}
}

// An interface that is removed and comes back does not end the device.
func TestInterfaceReturns(t *testing.T) {
	l := newLab(t, Config{})
	require.NoError(t, l.dev.SetVIPs(vip4))
	ip := func(ns *netns.Namespace, args ...string) {
		t.Helper()
		require.NoError(t, ns.Do(func() error {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				return errors.New(string(out))
			}
			return nil
		}))
	}
	reach := func() {
		t.Helper()
		conn, err := l.client.DialContext(context.Background(), "udp", "192.0.2.80:53")
		require.NoError(t, err)
		defer conn.Close()
		require.Eventually(t, func() bool {
			_, _ = conn.Write([]byte("hello"))
			select {
			case f := <-l.frames:
				return udpTo(vip4)(f[testOffset:])
			case <-time.After(50 * time.Millisecond):
				return false
			}
		}, patience, time.Millisecond)
	}
	reach()
	ip(l.balancer, "link", "set", "b0", "down")
	ip(l.balancer, "link", "set", "b0", "up")
	reach()
	ip(l.balancer, "link", "del", "b0")
	require.Eventually(t, func() bool { return l.dev.Interfaces()[0].Index == 0 }, patience, 10*time.Millisecond)
	f := make([]byte, testOffset+60)
	n, err := l.dev.Write([][]byte{f}, testOffset)
	require.Zero(t, n)
	var se *SendError
	require.ErrorAs(t, err, &se)
	l.join(t)
	reach()
}

func TestPreflightNamesWhatIsWrong(t *testing.T) {
	testenv.NeedNetns(t)
	ns, err := netns.New()
	require.NoError(t, err)
	defer ns.Close()
	other, err := netns.New()
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, netns.Join(netns.End{NS: ns, Name: "b0"}, netns.End{NS: other, Name: "c0"}))
	check := func(vips ...netip.Addr) (err error) {
		require.NoError(t, ns.Do(func() error { err = Preflight([]string{"b0"}, vips); return nil }))
		return err
	}
	require.NoError(t, ns.Sysctl("net.ipv4.conf.b0.forwarding", "0"))
	require.NoError(t, check(vip4))
	require.NoError(t, ns.Sysctl("net.ipv4.conf.b0.forwarding", "1"))
	require.ErrorContains(t, check(vip4), "sysctl -w net/ipv4/conf/b0/forwarding=0")
	require.NoError(t, ns.Sysctl("net.ipv4.conf.b0.forwarding", "0"))
	// For IPv6 only the host's own setting counts, whatever the interface's is.
	require.NoError(t, ns.Sysctl("net.ipv6.conf.all.forwarding", "1"))
	require.NoError(t, ns.Sysctl("net.ipv6.conf.b0.forwarding", "0"))
	require.ErrorContains(t, check(vip4), "sysctl -w net/ipv6/conf/all/forwarding=0")
	require.NoError(t, ns.Sysctl("net.ipv6.conf.all.forwarding", "0"))
	require.NoError(t, ns.Sysctl("net.ipv6.conf.b0.forwarding", "1"))
	require.NoError(t, check(vip4), "a router's advertisements alone forward nothing")
	require.NoError(t, ns.Do(func() error {
		return exec.Command("ip", "addr", "add", "192.0.2.80/32", "dev", "b0").Run()
	}))
	err = check(vip4)
	require.ErrorContains(t, err, "ip addr del 192.0.2.80 dev b0")
	var c *Conflict
	require.ErrorAs(t, err, &c)
	require.Equal(t, "b0", c.Interface)
	require.ErrorContains(t, func() error { return Preflight([]string{"no-such-if"}, nil) }(), "no-such-if")
	// Without a route to a VIP the kernel answers its packets with an error, but only of IPv6.
	err = check(vip6)
	require.ErrorContains(t, err, "ip -6 route add blackhole "+vip6.String())
	require.ErrorAs(t, err, &c)
	require.NoError(t, ns.Do(func() error { return exec.Command("ip", "-6", "route", "add", "blackhole", vip6.String()).Run() }))
	require.NoError(t, check(vip6))
}

func TestOpenSaysWhy(t *testing.T) {
	testenv.NeedNetns(t)
	_, err := Open(&Config{Interfaces: []string{"no-such-if"}})
	require.ErrorContains(t, err, `interface "no-such-if"`)
	var opErr *net.OpError
	require.False(t, errors.As(err, &opErr))
}
