package probe_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// every is one prober of each kind.
func every() map[string]healthcheck.Prober {
	return map[string]healthcheck.Prober{
		"icmp": probe.ICMP{Attempts: 1, Every: time.Millisecond}, "tcp": probe.TCP{}, "half-open": probe.TCPHalfOpen{},
		"udp": probe.UDP{Wait: time.Millisecond}, "ftp": probe.FTP{}, "smtp": probe.SMTP{}, "nntp": probe.NNTP{},
		"pop3": probe.POP3{}, "imap": probe.IMAP{}, "telnet": probe.Telnet{}, "http": probe.HTTP{}, "tls": probe.TLS{},
		"tls hello": probe.TLSHello{}, "ldap": probe.LDAP{}, "rtsp": probe.RTSP{}, "mms": probe.MMS{}, "pnm": probe.PNM{},
		"dns": probe.DNS{Retries: -1}, "radius": probe.RADIUS{Key: "x", Retries: -1}, "tftp": probe.TFTP{File: "x", Retries: -1},
		"grpc": probe.GRPC{}, "redis": probe.Redis{}, "mysql": probe.MySQL{}, "postgres": probe.Postgres{},
		"script": probe.Script{Steps: []probe.Step{{Expect: []byte("x")}}}, "agent": probe.Agent{},
		"tls dialer": probe.FTP{Dialer: probe.TLSDialer{Config: &tls.Config{}}},
	}
}

func descriptors(t *testing.T) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc/self/fd")
	}
	return len(d)
}

// TestNoLeak makes more than 1,000 failing probes, each in one of several ways.
func TestNoLeak(t *testing.T) {
	garbage := listen(t, "127.0.0.1:0", func(c net.Conn) { io.WriteString(c, "garbage\r\n") })
	silent := listen(t, "127.0.0.1:0", func(c net.Conn) { c.Read(make([]byte, 1<<16)); c.Read(make([]byte, 1)) })
	closed := closedPort(t, "127.0.0.1")
	noRoute := netip.MustParseAddrPort("[fe80::1]:80") // a link-local address without a zone
	settle := func() (goroutines, fds int) {
		// What serves the test notices the resets a little later.
		for range 100 {
			goroutines, fds = runtime.NumGoroutine(), descriptors(t)
			time.Sleep(20 * time.Millisecond)
			if runtime.NumGoroutine() == goroutines && descriptors(t) == fds {
				break
			}
		}
		return goroutines, fds
	}
	probes := 0
	round := func() {
		for name, p := range every() {
			for _, addr := range []netip.AddrPort{garbage, silent, closed, noRoute} {
				d := 2 * time.Millisecond
				if addr == closed || addr == noRoute {
					d = 20 * time.Millisecond
				}
				res := p.Probe(within(t, d), addr)
				probes++
				if res.Verdict == healthcheck.Pass && name != "icmp" && !strings.HasPrefix(name, "tcp") && name != "half-open" {
					t.Errorf("%s at %v passed", name, addr)
				}
			}
		}
	}
	round() // the runtime's poller and the like
	goroutines, fds := settle()
	for probes < 1100 {
		round()
	}
	// A leak of one kind of probe would be ten times as much.
	const slack = 4
	ok := false
	for range 1500 { // what serves the test notices the resets a little later
		if ok = runtime.NumGoroutine() <= goroutines+slack && descriptors(t) <= fds+slack; ok {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if !ok {
		stacks := make([]byte, 1<<16)
		t.Fatalf("from %d goroutines and %d descriptors to %d and %d\n%s", goroutines, fds,
			runtime.NumGoroutine(), descriptors(t), stacks[:runtime.Stack(stacks, true)])
	}
}
