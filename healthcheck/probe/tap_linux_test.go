package probe_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// tap sees the IP packets that reach a host, whether it wants them or not, and may answer them in anybody's name.
type tap struct {
	fd    int
	reply func(p tapped) [][]byte // IP packets; nil: no answers
	stop  func()

	mu   sync.Mutex
	seen []tapped
}

// tapped is a packet that came.
type tapped struct {
	ifindex  int
	b        []byte
	src, dst netip.AddrPort // port 0 without ports
	proto    byte
	dscp     byte
	payload  []byte // behind the IP header
}

func (p *tapped) tcpFlags() byte { return p.payload[13] & 0x17 }

func newTap(t *testing.T, n *netns.Namespace, reply func(tapped) [][]byte) *tap {
	t.Helper()
	p := &tap{reply: reply}
	require.NoError(t, n.Do(func() (err error) {
		all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL})
		p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
		return err
	}))
	require.NoError(t, unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	_ = unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	stop, stopped := make(chan struct{}), make(chan struct{})
	p.stop = sync.OnceFunc(func() {
		close(stop)
		<-stopped
		unix.Close(p.fd)
	})
	t.Cleanup(p.stop)
	go func() {
		defer close(stopped)
		b := make([]byte, 65536)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if n, from, err := unix.Recvfrom(p.fd, b, 0); err == nil {
				p.take(b[:n], from)
			}
		}
	}()
	return p
}

func (p *tap) take(b []byte, from unix.Sockaddr) {
	ll, ok := from.(*unix.SockaddrLinklayer)
	if !ok || ll.Pkttype == unix.PACKET_OUTGOING || len(b) < 20 || b[0]>>4 == 6 && len(b) < 40 {
		return
	}
	x := tapped{ifindex: ll.Ifindex, b: append([]byte(nil), b...)}
	b = x.b
	var src, dst netip.Addr
	switch b[0] >> 4 {
	case 4:
		src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		x.proto, x.dscp, x.payload = b[9], b[1]>>2, b[int(b[0]&15)*4:binary.BigEndian.Uint16(b[2:])]
	case 6:
		src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		x.proto, x.dscp, x.payload = b[6], b[0]<<4>>2|b[1]>>6, b[40:]
	default:
		return
	}
	var sport, dport uint16
	if (x.proto == unix.IPPROTO_TCP || x.proto == unix.IPPROTO_UDP) && len(x.payload) >= 8 {
		sport, dport = binary.BigEndian.Uint16(x.payload), binary.BigEndian.Uint16(x.payload[2:])
	}
	x.src, x.dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	p.mu.Lock()
	p.seen = append(p.seen, x)
	p.mu.Unlock()
	if p.reply == nil {
		return
	}
	back := &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0x08, 0}), Ifindex: ll.Ifindex, Halen: ll.Halen, Addr: ll.Addr}
	if dst.Is6() {
		back.Protocol = binary.NativeEndian.Uint16([]byte{0x86, 0xdd})
	}
	for _, r := range p.reply(x) {
		_ = unix.Sendto(p.fd, r, 0, back)
	}
}

// to returns what has come to an address and port of a protocol. Of ICMP these are echo requests.
func (p *tap) to(proto byte, dst netip.AddrPort) (all []tapped) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.seen {
		echo := x.proto != unix.IPPROTO_ICMP && x.proto != unix.IPPROTO_ICMPV6 || len(x.payload) > 0 && (x.payload[0] == 8 || x.payload[0] == 128)
		if x.proto == proto && x.dst == dst && echo {
			all = append(all, x)
		}
	}
	return all
}

func (p *tap) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = nil
}

// ifindex returns the number of an interface.
func ifindex(t *testing.T, n *netns.Namespace, name string) (index int) {
	t.Helper()
	require.NoError(t, n.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			index = i.Index
		}
		return err
	}))
	return index
}

// TestOnTheWire has the peer look at every packet of probes: where it comes from, by which interface it left, and its code point. Started probes
// are made several times, so that their sockets are used again.
func TestOnTheWire(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	pre := func(s ...string) (ps []netip.Prefix) {
		for _, p := range s {
			ps = append(ps, netip.MustParsePrefix(p))
		}
		return ps
	}
	require.NoError(t, netns.Join(
		netns.End{NS: n.host, Name: "eth1", Addrs: pre("10.8.0.2/24", "fd08::2/64")},
		netns.End{NS: n.router, Name: "eth1", Addrs: pre("10.8.0.1/24", "fd08::1/64")}))
	for _, ns := range []*netns.Namespace{n.host, n.router} {
		for _, name := range []string{"all", "eth0", "eth1"} {
			require.NoError(t, ns.Sysctl("net.ipv4.conf."+name+".rp_filter", "0"))
		}
	}
	ip(t, n.host, "addr", "add", "10.7.0.3/24", "dev", "eth0")
	ip(t, n.host, "addr", "add", "fd07::3/64", "dev", "eth0", "nodad")
	ip(t, n.host, "addr", "add", "10.8.0.3/24", "dev", "eth1")
	ip(t, n.host, "addr", "add", "fd08::3/64", "dev", "eth1", "nodad")
	// The target is behind both cables: by the first, by the second for what is marked, and by the second for what is bound to it.
	ip(t, n.router, "addr", "add", "10.9.0.1/32", "dev", "lo")
	ip(t, n.router, "addr", "add", "fd09::1/128", "dev", "lo", "nodad")
	for f, via := range map[string][2]string{"-4": {"10.7.0.1", "10.8.0.1"}, "-6": {"fd07::1", "fd08::1"}} {
		ip(t, n.host, f, "route", "add", "default", "via", via[0], "dev", "eth0", "metric", "100")
		ip(t, n.host, f, "route", "add", "default", "via", via[1], "dev", "eth1", "metric", "200")
		ip(t, n.host, f, "route", "add", "default", "via", via[1], "dev", "eth1", "table", "100")
		ip(t, n.host, f, "rule", "add", "fwmark", "7", "table", "100")
	}
	// Every datagram to a port that nobody has is answered at once.
	require.NoError(t, n.router.Sysctl("net.ipv4.icmp_ratemask", "0"))
	require.NoError(t, n.router.Sysctl("net.ipv6.icmp.ratelimit", "0"))
	seen := newTap(t, n.router, nil)
	first, second := ifindex(t, n.router, "eth0"), ifindex(t, n.router, "eth1")
	for _, a := range []string{"10.9.0.1", "fd09::1"} {
		target := netip.MustParseAddr(a)
		l, err := n.router.Listen(t.Context(), "tcp", netip.AddrPortFrom(target, 80).String())
		require.NoError(t, err)
		acceptHTTP(t, l)
		s := func(v4, v6 string) netip.Addr {
			if target.Is6() {
				v4 = v6
			}
			if v4 == "" {
				return netip.Addr{}
			}
			return netip.MustParseAddr(v4)
		}
		for name, want := range map[string]struct {
			socket probe.Socket
			from   netip.Addr
			by     int
		}{
			"nothing":        {probe.Socket{}, s("10.7.0.2", "fd07::2"), first},
			"source":         {probe.Socket{Source: s("10.7.0.3", "fd07::3")}, s("10.7.0.3", "fd07::3"), first},
			"DSCP":           {probe.Socket{DSCP: 46}, s("10.7.0.2", "fd07::2"), first},
			"mark":           {probe.Socket{Mark: 7}, s("10.8.0.2", "fd08::2"), second},
			"interface":      {probe.Socket{Interface: "eth1"}, s("10.8.0.2", "fd08::2"), second},
			"all by mark":    {probe.Socket{Source: s("10.8.0.3", "fd08::3"), Mark: 7, DSCP: 10}, s("10.8.0.3", "fd08::3"), second},
			"all, interface": {probe.Socket{Source: s("10.8.0.3", "fd08::3"), Interface: "eth1", DSCP: 63}, s("10.8.0.3", "fd08::3"), second},
		} {
			if name == "nothing" || name == "DSCP" || name == "mark" || name == "interface" { // of several addresses the system chooses one
				want.from = netip.Addr{}
			}
			right := func(x tapped) bool {
				return x.ifindex == want.by && x.dscp == want.socket.DSCP && (!want.from.IsValid() || x.src.Addr() == want.from)
			}
			for kind, p := range map[string]healthcheck.Prober{
				"tcp": probe.TCP{Dialer: want.socket}, "http": probe.HTTP{Dialer: want.socket}, "half-open": probe.TCPHalfOpen{Socket: want.socket},
				"ftp": probe.Script{Dialer: want.socket, Steps: []probe.Step{{Send: []byte("HEAD / HTTP/1.0\r\n\r\n"), Expect: []byte("200")}}},
			} {
				for i, p := range both(t, p) {
					seen.forget()
					const times = 3
					for range times {
						res := probeIn(t, n.host, p, netip.AddrPortFrom(target, 80).String(), 20*time.Second)
						require.Equal(t, healthcheck.Pass, res.Verdict, "%s %s: %v", a, name, res.Err)
						require.Empty(t, res.Note)
					}
					// Each has a SYN and, at its end, a reset.
					var all []tapped
					count := func(flag byte) (n int) {
						for _, x := range all {
							if x.tcpFlags()&flag != 0 && right(x) {
								n++
							}
						}
						return n
					}
					for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
						if all = seen.to(unix.IPPROTO_TCP, netip.AddrPortFrom(target, 80)); count(2) >= times && count(4) >= times || time.Now().After(end) {
							break
						}
					}
					where := strings.Join([]string{a, name, kind}, " ")
					require.GreaterOrEqual(t, count(2), times, "%s, way %d", where, i)
					require.GreaterOrEqual(t, count(4), times, "%s, way %d", where, i)
					for _, x := range all {
						if kind == "half-open" && x.tcpFlags() == 4 {
							continue // the kernel, which knows of no connection, resets by itself, too
						}
						require.True(t, right(x), "%s, way %d: from %v by %d, DSCP %d, flags %#x; want %+v", where, i, x.src, x.ifindex, x.dscp, x.tcpFlags(), want)
					}
				}
			}
			for kind, x := range map[string]struct {
				p     healthcheck.Prober
				proto byte
				port  uint16
			}{
				"udp":    {probe.UDP{Dialer: want.socket, Wait: 10 * time.Millisecond}, unix.IPPROTO_UDP, 9},
				"dns":    {probe.DNS{Dialer: want.socket, Retries: -1}, unix.IPPROTO_UDP, 53},
				"radius": {probe.RADIUS{Dialer: want.socket, Key: "x", Retries: -1}, unix.IPPROTO_UDP, 1812},
				"tftp":   {probe.TFTP{Socket: want.socket, File: "x", Retries: -1}, unix.IPPROTO_UDP, 69},
				"icmp":   {probe.ICMP{Socket: want.socket}, map[bool]byte{false: unix.IPPROTO_ICMP, true: unix.IPPROTO_ICMPV6}[target.Is6()], 0},
			} {
				seen.forget()
				res := probeIn(t, n.host, x.p, netip.AddrPortFrom(target, x.port).String(), patience)
				require.NotEqual(t, healthcheck.Inconclusive, res.Verdict, "%s %s: %v", name, kind, res.Err)
				var all []tapped
				for end := time.Now().Add(20 * time.Second); len(all) == 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					all = seen.to(x.proto, netip.AddrPortFrom(target, x.port))
				}
				require.NotEmpty(t, all, "%s %s %s", a, name, kind)
				for _, y := range all {
					require.True(t, right(y), "%s %s %s: from %v by %d, DSCP %d; want %+v", a, name, kind, y.src, y.ifindex, y.dscp, want)
				}
			}
		}
	}
}

// acceptHTTP answers requests until the test ends.
func acceptHTTP(t *testing.T, l net.Listener) {
	testenv.Accept(t, l, func(c net.Conn) {
		c.SetDeadline(time.Now().Add(time.Minute))
		b := make([]byte, 4096)
		if n, _ := c.Read(b); n > 0 {
			c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
			c.Read(b)
		}
	})
}
