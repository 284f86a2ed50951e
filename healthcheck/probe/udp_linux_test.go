package probe_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// TestUDPWithSomeICMP probes a closed port ten times; ICMP errors come back for the first
// and the fourth probe only. A plain probe honestly says what it saw; one that expects an
// answer fails every time.
func TestUDPWithSomeICMP(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	for k, v := range map[string]string{
		"net.ipv4.icmp_ratemask": "0", "net.ipv6.icmp.ratelimit": "0",
		"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.eth0.rp_filter": "0",
	} {
		require.NoError(t, n.router.Sysctl(k, v))
	}
	for addr, back := range map[string]string{"10.7.0.1:53": "10.7.0.2/32", "[fd07::1]:53": "fd07::2/128"} {
		family := "-4"
		if netip.MustParseAddrPort(addr).Addr().Is6() {
			family = "-6"
		}
		var plain, answered []healthcheck.Verdict
		for i := 1; i <= 10; i++ {
			lost := i != 1 && i != 4 // the way back of the errors
			if lost {
				ip(t, n.router, family, "route", "add", "blackhole", back)
			}
			wait := 20 * time.Second // for what will come
			if lost {
				wait = 50 * time.Millisecond
			}
			res := probeIn(t, n.host, probe.UDP{Wait: wait, Datagrams: 1}, addr, 30*time.Second)
			plain = append(plain, res.Verdict)
			if !lost {
				require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
			}
			res = probeIn(t, n.host, probe.UDP{Expect: []byte("x")}, addr, 100*time.Millisecond)
			answered = append(answered, res.Verdict)
			if lost {
				ip(t, n.router, family, "route", "del", "blackhole", back)
			}
		}
		const down, silent = healthcheck.Fail, healthcheck.AssumedAlive
		require.Equal(t, []healthcheck.Verdict{down, silent, silent, down, silent, silent, silent, silent, silent, silent}, plain, addr)
		require.Equal(t, slices.Repeat([]healthcheck.Verdict{down}, 10), answered, addr)
	}
}

// refusedOnce is a Dialer whose first read is answered by an ICMP error, and whose
// later ones with what then says, or never.
type refusedOnce struct {
	reads *int
	then  string
}

func (d refusedOnce) DialContext(context.Context, string, string) (net.Conn, error) {
	c, _ := net.Pipe()
	return refusedConn{c, d}, nil
}

type refusedConn struct {
	net.Conn
	refusedOnce
}

func (c refusedConn) Write(b []byte) (int, error) { return len(b), nil }

func (c refusedConn) Read(b []byte) (int, error) {
	if *c.reads++; *c.reads == 1 {
		return 0, &net.OpError{Op: "read", Err: syscall.ECONNREFUSED}
	}
	if c.then == "" {
		return c.Conn.Read(b)
	}
	return copy(b, c.then), nil
}

// TestUDPRefusedOnce: any ICMP error is down, even if the next datagram would be answered.
func TestUDPRefusedOnce(t *testing.T) {
	for _, p := range []probe.UDP{{Expect: []byte("pong")}, {}} {
		p.Dialer = refusedOnce{new(int), "pong"}
		res := p.Probe(within(t, patience), target)
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
		require.EqualError(t, res.Err, "udp: answer: connection refused")
	}
}

// TestRefusedThenSilent: what a router says of the first datagram and not of the later ones is not forgotten.
func TestRefusedThenSilent(t *testing.T) {
	for name, p := range map[string]healthcheck.Prober{
		"dns":    probe.DNS{Dialer: refusedOnce{new(int), ""}},
		"radius": probe.RADIUS{Dialer: refusedOnce{new(int), ""}, Key: "k"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				res := p.Probe(within(t, patience), target)
				require.Equal(t, healthcheck.Fail, res.Verdict)
				require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
			})
		})
	}
}
