package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

func TestSocketSource(t *testing.T) {
	for source, host := range map[string]string{"127.0.0.5": "127.0.0.1", "::1": "::1"} {
		from := make(chan string, 10)
		addr := listen(t, net.JoinHostPort(host, "0"), func(c net.Conn) {
			h, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			from <- h
			c.Write([]byte("220 x\r\n"))
			c.Read(make([]byte, 10))
		})
		for _, d := range []probe.Dialer{probe.Socket{Source: netip.MustParseAddr(source)}, &probe.Socket{Source: netip.MustParseAddr(source)}} {
			res := probe.FTP{Dialer: d}.Probe(within(t, patience), addr)
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
			require.Equal(t, source, <-from)
			res = probe.TCP{Dialer: d}.Probe(within(t, patience), addr)
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
		}
	}
	_, err := probe.Socket{}.DialContext(t.Context(), "unix", "127.0.0.1:1")
	require.ErrorContains(t, err, `got "unix", want tcp or udp`)
	_, err = probe.Socket{}.DialContext(t.Context(), "tcp", "localhost")
	require.ErrorContains(t, err, "Socket: address")
}

func TestSocketDSCP(t *testing.T) {
	for _, host := range loopbacks {
		t.Run(host, func(t *testing.T) {
			pc, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Skip(err)
			}
			defer pc.Close()
			c := pc.(*net.UDPConn)
			raw, err := c.SyscallConn()
			require.NoError(t, err)
			require.NoError(t, raw.Control(func(fd uintptr) {
				if host == "::1" {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
				} else {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
				}
			}))
			require.NoError(t, err)
			res := probe.UDP{Wait: time.Millisecond, Dialer: probe.Socket{DSCP: 46}}.
				Probe(within(t, patience), netip.MustParseAddrPort(c.LocalAddr().String()))
			require.Equal(t, healthcheck.AssumedAlive, res.Verdict, "%v", res.Err)
			oob := make([]byte, 100)
			_, n, _, _, err := c.ReadMsgUDP(make([]byte, 100), oob)
			require.NoError(t, err)
			msgs, err := unix.ParseSocketControlMessage(oob[:n])
			require.NoError(t, err)
			require.Len(t, msgs, 1)
			require.EqualValues(t, 46<<2, msgs[0].Data[0])
		})
	}
}

// network is a host, a router, and what they lead to: 10.7.0.0/24 joins them, and the
// router has no route to anywhere else.
type network struct{ host, router *netns.Namespace }

func newNetwork(t *testing.T) network {
	t.Helper()
	testenv.NeedNetns(t)
	n := network{space(t), space(t)}
	pre := func(s ...string) (ps []netip.Prefix) {
		for _, p := range s {
			ps = append(ps, netip.MustParsePrefix(p))
		}
		return ps
	}
	require.NoError(t, netns.Join(
		netns.End{NS: n.host, Name: "eth0", Addrs: pre("10.7.0.2/24", "fd07::2/64")},
		netns.End{NS: n.router, Name: "eth0", Addrs: pre("10.7.0.1/24", "fd07::1/64")}))
	return n
}

func space(t *testing.T) *netns.Namespace {
	n, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

// ip runs ip(8) in a namespace.
func ip(t *testing.T, n *netns.Namespace, args ...string) {
	t.Helper()
	require.NoError(t, n.Do(func() error {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
		return nil
	}))
}

// both returns p as it is called and, where that is another way, as it is started.
func both(t *testing.T, p healthcheck.Prober) []healthcheck.Prober {
	if _, ok := p.(healthcheck.Starter); ok {
		return []healthcheck.Prober{p, healthchecktest.Started(t, p)}
	}
	return []healthcheck.Prober{p}
}

// probeIn probes from within a namespace.
func probeIn(t *testing.T, n *netns.Namespace, p healthcheck.Prober, addr string, d time.Duration) (res healthcheck.Result) {
	t.Helper()
	require.NoError(t, n.Do(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		res = p.Probe(ctx, netip.MustParseAddrPort(addr))
		return nil
	}))
	return res
}

func TestNoRouteIsInconclusive(t *testing.T) {
	n := newNetwork(t)
	for name, p := range every() {
		for _, addr := range []string{"203.0.113.1:80", "[2001:db8::1]:80"} {
			for _, p := range both(t, p) {
				res := probeIn(t, n.host, p, addr, patience)
				require.Equal(t, healthcheck.Inconclusive, res.Verdict, "%s: %v", name, res.Err)
				require.ErrorIs(t, res.Err, healthcheck.ErrLocal, name)
				require.ErrorContains(t, res.Err, "local: ", name)
				require.ErrorIs(t, res.Err, syscall.ENETUNREACH, name)
			}
		}
	}
	fds := descriptors(t)
	for _, p := range both(t, probe.TCP{}) {
		for range 1000 {
			probeIn(t, n.host, p, "203.0.113.1:80", patience)
		}
	}
	require.LessOrEqual(t, descriptors(t), fds+4)
}

// TestRouterSaysUnreachable has the same errno come from afar: the target is down.
func TestRouterSaysUnreachable(t *testing.T) {
	for name, p := range map[string]healthcheck.Prober{
		"tcp": probe.TCP{}, "half-open": probe.TCPHalfOpen{}, "http": probe.HTTP{},
		"udp": probe.UDP{Payload: []byte("x"), Expect: []byte("y")}, "plain udp": probe.UDP{},
		"icmp": probe.ICMP{Every: 50 * time.Millisecond, Attempts: 40}, "dns": probe.DNS{}, "tftp": probe.TFTP{File: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A router of its own each: one tells a source of IPv4 five errors, then one a second (ip_error in Linux's route.c). Not icmp_ratelimit
			// 0, which empties the same bucket.
			n := newNetwork(t)
			require.NoError(t, n.host.DefaultVia(netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("fd07::1")))
			require.NoError(t, n.router.Sysctl("net.ipv4.ip_forward", "1"))
			require.NoError(t, n.router.Sysctl("net.ipv6.conf.all.forwarding", "1"))
			require.NoError(t, n.router.Sysctl("net.ipv4.icmp_ratemask", "0"))
			require.NoError(t, n.router.Sysctl("net.ipv6.icmp.ratelimit", "0"))
			ip(t, n.router, "-6", "route", "add", "prohibit", "2001:db8:1::/48")
			for _, addr := range []string{"203.0.113.1:80", "[2001:db8::1]:80", "[2001:db8:1::1]:80"} {
				for _, p := range both(t, p) {
					res := probeIn(t, n.host, p, addr, 10*time.Second)
					require.Equal(t, healthcheck.Fail, res.Verdict, "%s: %v", addr, res.Err)
					require.NotErrorIs(t, res.Err, os.ErrDeadlineExceeded, addr)
				}
			}
		})
	}
}

func TestSilentHost(t *testing.T) {
	n := newNetwork(t)
	// Neighbours that are known and do not exist.
	for _, a := range []string{"10.7.0.9", "fd07::9"} {
		ip(t, n.host, "neigh", "add", a, "lladdr", "02:00:00:00:00:09", "dev", "eth0", "nud", "permanent")
	}
	for _, addr := range []string{"10.7.0.9:80", "[fd07::9]:80"} {
		for name, p := range map[string]healthcheck.Prober{
			"tcp": probe.TCP{}, "tcp half-open": probe.TCPHalfOpen{Resend: 50 * time.Millisecond},
			"icmp": probe.ICMP{Every: 50 * time.Millisecond, Attempts: 100}, "dns": probe.DNS{}, "tftp": probe.TFTP{File: "x"},
		} {
			for _, p := range both(t, p) {
				start := time.Now()
				res := probeIn(t, n.host, p, addr, 300*time.Millisecond)
				require.Equal(t, healthcheck.Fail, res.Verdict, "%s: %v", name, res.Err)
				require.ErrorIs(t, res.Err, os.ErrDeadlineExceeded, name)
				require.ErrorContains(t, res.Err, "timed out", name)
				require.Less(t, time.Since(start), 20*time.Second)
			}
		}
		res := probeIn(t, n.host, probe.UDP{Wait: 20 * time.Millisecond}, addr, patience)
		require.Equal(t, healthcheck.AssumedAlive, res.Verdict)
		// Attempts end before the deadline.
		start := time.Now()
		res = probeIn(t, n.host, probe.ICMP{Every: 50 * time.Millisecond, Attempts: 2}, addr, 20*time.Second)
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.Less(t, time.Since(start), 15*time.Second)
	}
}

func TestMarkAndInterface(t *testing.T) {
	n := newNetwork(t)
	for _, f := range []string{"-4", "-6"} {
		ip(t, n.host, f, "rule", "add", "fwmark", "7", "table", "100")
		ip(t, n.host, f, "route", "add", "unreachable", "default", "table", "100")
	}
	for _, addr := range []string{"10.7.0.1:80", "[fd07::1]:80"} {
		l, err := n.router.Listen(t.Context(), "tcp", addr)
		require.NoError(t, err)
		defer l.Close()
		for _, socket := range []probe.Socket{{}, {Mark: 8}, {Interface: "eth0"}} {
			for _, p := range []healthcheck.Prober{probe.TCP{Dialer: socket}, probe.TCPHalfOpen{Socket: socket}, probe.ICMP{Socket: socket}} {
				for _, p := range both(t, p) {
					res := probeIn(t, n.host, p, addr, patience)
					require.Equal(t, healthcheck.Pass, res.Verdict, "%+v: %v", socket, res.Err)
				}
			}
		}
		for _, socket := range []probe.Socket{{Mark: 7}, {Mark: 7, DSCP: 8}} {
			for _, p := range []healthcheck.Prober{probe.TCP{Dialer: socket}, probe.TCPHalfOpen{Socket: socket}, probe.ICMP{Socket: socket}, probe.UDP{Dialer: socket}} {
				for _, p := range both(t, p) {
					res := probeIn(t, n.host, p, addr, patience)
					require.Equal(t, healthcheck.Inconclusive, res.Verdict, "%T %+v: %v", p, socket, res.Err)
					require.ErrorIs(t, res.Err, healthcheck.ErrLocal)
				}
			}
		}
	}
}

func TestICMPDatagramSocket(t *testing.T) {
	n := newNetwork(t)
	require.NoError(t, n.host.Sysctl("net.ipv4.ping_group_range", "0 2147483647"))
	for _, addr := range []string{"10.7.0.1:0", "[fd07::1]:0"} {
		res := probeIn(t, n.host, probe.ICMP{}, addr, patience)
		require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
		require.Equal(t, "datagram socket", res.Note)
	}
	require.NoError(t, n.host.Sysctl("net.ipv4.ping_group_range", "1 0"))
	for _, addr := range []string{"10.7.0.1:0", "[fd07::1]:0"} {
		res := probeIn(t, n.host, probe.ICMP{}, addr, patience)
		require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
		require.Equal(t, "raw socket", res.Note)
	}
}

// TestNoDescriptors is the other local failure: it must not count against the target.
func TestNoDescriptors(t *testing.T) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	addr := listen(t, "127.0.0.1:0", func(net.Conn) {})
	less := old
	less.Cur = 3
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &less))
	var results []healthcheck.Result
	for _, p := range []healthcheck.Prober{probe.TCP{}, probe.HTTP{}, probe.UDP{}, probe.TFTP{File: "x"}, probe.ICMP{}, probe.TCPHalfOpen{}} {
		for _, p := range both(t, p) {
			results = append(results, p.Probe(within(t, patience), addr))
		}
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	for _, res := range results {
		require.Equal(t, healthcheck.Inconclusive, res.Verdict, "%v", res.Err)
		require.True(t, errors.Is(res.Err, syscall.EMFILE) || errors.Is(res.Err, os.ErrPermission), "%v", res.Err)
	}
}

// TestNoSelfTalk has the only port that the system gives out be the target's own.
func TestNoSelfTalk(t *testing.T) {
	n := newNetwork(t)
	require.NoError(t, n.host.Sysctl("net.ipv4.ip_local_port_range", "40000 40001"))
	for _, addr := range []string{"127.0.0.1:40000", "[::1]:40001", "10.7.0.2:40001"} {
		for name, p := range map[string]healthcheck.Prober{"udp": probe.UDP{Wait: patience, Datagrams: 1}, "tcp": probe.TCP{}, "tftp": probe.TFTP{File: "x", Retries: -1},
			"started tcp": healthchecktest.Started(t, probe.TCP{}), "started http": healthchecktest.Started(t, probe.HTTP{})} {
			for range 8 {
				res := probeIn(t, n.host, p, addr, 20*time.Second)
				if res.Verdict == healthcheck.Inconclusive { // both ports are taken for a moment
					require.ErrorIs(t, res.Err, healthcheck.ErrLocal)
					continue
				}
				require.Equal(t, healthcheck.Fail, res.Verdict, "%s at %s", name, addr)
				require.ErrorIs(t, res.Err, syscall.ECONNREFUSED, "%s at %s", name, addr)
			}
		}
	}
}
