package probe_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// TestStartedEqualsCalled has servers of many kinds be probed both ways, with the same
// result to the letter.
func TestStartedEqualsCalled(t *testing.T) {
	replies := map[string]string{
		"200": "HTTP/1.1 200 OK\r\n\r\n", "404": "HTTP/1.1 404 No\r\nA: b\r\n\r\n", "401": "HTTP/1.0 401 Who\n\n",
		"103 then 200": "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"101":          "HTTP/1.1 101 Switching\r\n\r\n", "1xx for ever": strings.Repeat("HTTP/1.1 103 x\r\n\r\n", 40),
		"no HTTP": "220 mail\r\n", "cut": "HTTP/1.1 200 O", "cut in the fields": "HTTP/1.1 200 OK\r\nA: b\r\nCont", "nothing": "",
		"too long": "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 70_000), "many fields": "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 9000) + "\r\n",
	}
	for name, reply := range replies {
		for _, every := range []time.Duration{0, time.Millisecond} {
			if every > 0 && len(reply) > 500 {
				continue
			}
			t.Run(fmt.Sprint(name, " ", every), func(t *testing.T) {
				t.Parallel()
				addr := listen(t, "127.0.0.1:0", func(c net.Conn) {
					c.Read(make([]byte, 4096))
					for r := reply; r != ""; {
						n := len(r)
						if every > 0 {
							n = 1
						}
						io.WriteString(c, r[:n])
						r = r[n:]
						time.Sleep(every)
					}
					if tc, ok := c.(*net.TCPConn); ok && reply != replies["200"] {
						tc.CloseWrite() // not before the reply has been read
					}
					io.Copy(io.Discard, c)
				})
				for _, p := range []probe.HTTP{{}, {FailFast: true}, {Ranges: []probe.StatusRange{{First: 404}}, Path: "/x", Method: "GET", Header: http.Header{"A": {"b"}}},
					{Body: strings.Repeat("y", 1000), Method: "POST", Host: "example.jp"}} {
					want := p.Probe(within(t, 20*time.Second), addr)
					got := healthchecktest.Started(t, p).Probe(within(t, 20*time.Second), addr)
					same(t, want, got)
				}
			})
		}
	}
	for _, host := range loopbacks {
		closed := closedPort(t, host)
		for _, p := range []healthcheck.Prober{probe.TCP{}, probe.HTTP{}, probe.HTTP{Path: "x y"}, probe.TCPHalfOpen{Resend: -1},
			probe.TCP{Dialer: probe.Socket{DSCP: 99}}, probe.HTTP{Dialer: &probe.Socket{Source: netip.MustParseAddr("192.0.2.1")}}} {
			want := p.Probe(within(t, patience), closed)
			got := healthchecktest.Started(t, p).Probe(within(t, patience), closed)
			same(t, want, got)
		}
		for _, p := range []healthcheck.Prober{probe.TCP{}, probe.HTTP{}, probe.TCPHalfOpen{}} {
			want := p.Probe(within(t, patience), netip.AddrPort{})
			got := healthchecktest.Started(t, p).Probe(within(t, patience), netip.AddrPort{})
			same(t, want, got)
		}
	}
}

func same(t *testing.T, want, got healthcheck.Result) {
	t.Helper()
	require.Equal(t, want.Verdict, got.Verdict, "%v; %v", want.Err, got.Err)
	require.Equal(t, want.Final, got.Final)
	require.Equal(t, want.Note, got.Note)
	if want.Err != nil {
		require.EqualError(t, got.Err, want.Err.Error())
	}
}

// TestStartedAbort: the server resets, before and after it was asked.
func TestStartedAbort(t *testing.T) {
	for _, reads := range []bool{false, true} {
		addr := listen(t, "127.0.0.1:0", func(c net.Conn) {
			if reads {
				c.Read(make([]byte, 4096))
			}
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		})
		for _, p := range both(t, probe.HTTP{}) {
			res := p.Probe(within(t, patience), addr)
			require.Equal(t, healthcheck.Fail, res.Verdict)
			require.ErrorIs(t, res.Err, syscall.ECONNRESET)
		}
	}
}

// TestStartedInParts sends a request that does not fit at once.
func TestStartedInParts(t *testing.T) {
	const size = 12 << 20
	heard := make(chan int64, 2)
	addr := listen(t, "127.0.0.1:0", func(c net.Conn) {
		time.Sleep(200 * time.Millisecond)
		n, _ := io.CopyN(io.Discard, c, size)
		heard <- n
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		io.Copy(io.Discard, c)
	})
	for _, p := range both(t, probe.HTTP{Method: "PUT", Body: strings.Repeat("x", size)}) {
		res := p.Probe(within(t, 20*time.Second), addr)
		require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
		require.EqualValues(t, size, <-heard)
	}
}

// TestStartedUsesSocketsAgain counts descriptors while thousands of probes go by, and
// sees that each has a connection of its own.
func TestStartedUsesSocketsAgain(t *testing.T) {
	for _, host := range loopbacks {
		var asked sync.Map
		n := atomic.Int32{}
		addr := listen(t, net.JoinHostPort(host, "0"), func(c net.Conn) {
			b := make([]byte, 4096)
			if k, _ := c.Read(b); k > 0 {
				n.Add(1)
				asked.Store(c.RemoteAddr().String(), true)
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			io.Copy(io.Discard, c)
		})
		p := healthchecktest.Started(t, probe.HTTP{})
		require.Equal(t, healthcheck.Pass, p.Probe(within(t, patience), addr).Verdict)
		before := descriptors(t)
		most := 0
		for range 300 {
			res := p.Probe(within(t, patience), addr)
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
			most = max(most, descriptors(t))
		}
		ports := 0
		asked.Range(func(any, any) bool { ports++; return true })
		require.EqualValues(t, 301, n.Load())
		require.Greater(t, ports, 200) // few came twice
		// Those of the server may close late.
		require.Less(t, most, before+150)
	}
}

// TestStartedLeakNothing makes 1,000 probes that fail, many at a time.
func TestStartedLeakNothing(t *testing.T) {
	silent := listen(t, "127.0.0.1:0", func(c net.Conn) { io.Copy(io.Discard, c) })
	garbage := listen(t, "127.0.0.1:0", func(c net.Conn) { io.WriteString(c, "garbage\r\n") })
	fail := []netip.AddrPort{closedPort(t, "127.0.0.1"), netip.MustParseAddrPort("[fe80::1]:80")}
	for _, p := range []healthcheck.Prober{probe.HTTP{}, probe.TCPHalfOpen{}} {
		healthchecktest.NoLeaks(t, healthchecktest.Started(t, p), 300, 20*time.Millisecond, append(fail, silent, garbage)...)
	}
	// Where a connection is enough, the socket is kept.
	healthchecktest.NoLeaks(t, healthchecktest.Started(t, probe.TCP{}), 300, 20*time.Millisecond, fail...)
}

// TestScopeClosed ends probes that wait; later ones say why they cannot be.
func TestScopeClosed(t *testing.T) {
	heard := make(chan struct{}, 2)
	silent := listen(t, "127.0.0.1:0", func(c net.Conn) {
		c.Read(make([]byte, 4096))
		heard <- struct{}{}
		io.Copy(io.Discard, c)
	})
	full, _ := fullListener(t)
	before := descriptors(t)
	var scope healthcheck.Scope
	results := make(chan healthcheck.Result, 10)
	done := func(r healthcheck.Result) { results <- r }
	at := time.Now().Add(time.Hour)
	var stops []func()
	for range 2 {
		stops = append(stops, probe.HTTP{}.Start(&scope, silent, at, done), probe.TCP{}.Start(&scope, full, at, done))
		if stop := (probe.TCPHalfOpen{}).Start(&scope, full, at, done); stop != nil {
			stops = append(stops, stop)
		}
	}
	<-heard
	<-heard
	require.Empty(t, results)
	stops[0]()
	r := <-results
	require.ErrorIs(t, r.Err, context.Canceled)
	require.ErrorContains(t, r.Err, "http: reply: local: ")
	require.NoError(t, scope.Close())
	for range len(stops) - 1 {
		r := <-results
		require.Equal(t, healthcheck.Inconclusive, r.Verdict)
		require.ErrorIs(t, r.Err, context.Canceled)
	}
	for _, stop := range stops {
		stop()
	}
	probe.TCP{}.Start(&scope, silent, at, done)
	r = <-results
	require.ErrorIs(t, r.Err, healthcheck.ErrScopeClosed)
	require.ErrorIs(t, r.Err, healthcheck.ErrLocal)
	require.Empty(t, results)
	require.LessOrEqual(t, descriptors(t), before+4)
}

// TestHalfOpenStartedWhileClosing: a probe passes, or says that there is nothing left
// to make it with.
func TestHalfOpenStartedWhileClosing(t *testing.T) {
	mayRaw(t)
	addr := listen(t, "127.0.0.1:0", func(c net.Conn) { io.Copy(io.Discard, c) })
	for range 50 {
		var scope healthcheck.Scope
		var probers sync.WaitGroup
		var begun, ended atomic.Int32
		var closed atomic.Bool
		passed := make(chan struct{}, 1)
		for range 4 {
			probers.Go(func() {
				for !closed.Load() {
					begun.Add(1)
					stop := probe.TCPHalfOpen{}.Start(&scope, addr, time.Now().Add(time.Hour), func(r healthcheck.Result) {
						ended.Add(1)
						if r.Verdict != healthcheck.Pass {
							closed.Store(true)
							if r.Verdict != healthcheck.Inconclusive || !errors.Is(r.Err, healthcheck.ErrScopeClosed) && !errors.Is(r.Err, context.Canceled) {
								t.Errorf("%v: %v", r.Verdict, r.Err)
							}
							return
						}
						select {
						case passed <- struct{}{}:
						default:
						}
					})
					if stop == nil { // all ports are taken
						begun.Add(-1)
					}
				}
			})
		}
		<-passed
		require.NoError(t, scope.Close())
		probers.Wait()
		require.Equal(t, begun.Load(), ended.Load())
	}
}

// TestStartedExpireInOrder: each at its own deadline.
func TestStartedExpireInOrder(t *testing.T) {
	silent := listen(t, "127.0.0.1:0", func(c net.Conn) { io.Copy(io.Discard, c) })
	var scope healthcheck.Scope
	defer scope.Close()
	type end struct {
		after time.Duration
		r     healthcheck.Result
		at    time.Time
	}
	ends := make(chan end, 10)
	begin := time.Now()
	const first = 1000 // all are under way by then
	for _, after := range []time.Duration{first + 300, first + 100, first + 200, first + 50} {
		after *= time.Millisecond
		probe.HTTP{}.Start(&scope, silent, begin.Add(after), func(r healthcheck.Result) { ends <- end{after, r, time.Now()} })
	}
	for _, want := range []time.Duration{first + 50, first + 100, first + 200, first + 300} {
		e := <-ends
		require.Equal(t, want*time.Millisecond, e.after)
		require.GreaterOrEqual(t, e.at.Sub(begin), e.after)
		require.Less(t, e.at.Sub(begin), e.after+10*time.Second) // however busy the machine is
		require.EqualError(t, e.r.Err, "http: reply: timed out without an answer")
		require.ErrorIs(t, e.r.Err, os.ErrDeadlineExceeded)
	}
}

// TestStartedByMonitor: a Monitor with a thousand targets of all three kinds, of which
// some fail.
func TestStartedByMonitor(t *testing.T) {
	mayRaw(t)
	addr := listen(t, "0.0.0.0:0", func(c net.Conn) {
		c.Read(make([]byte, 4096))
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		io.Copy(io.Discard, c)
	})
	closed := closedPort(t, "127.0.0.1")
	goroutines, fds := 0, descriptors(t)
	m, err := healthcheck.NewMonitor(nil)
	require.NoError(t, err)
	var checks []healthcheck.Check
	for i := range 600 {
		port := addr.Port()
		if i%7 == 0 {
			port = closed.Port()
		}
		p := []healthcheck.Prober{probe.TCP{}, probe.HTTP{}, probe.TCPHalfOpen{}}[i%3]
		checks = append(checks, healthcheck.Check{ID: fmt.Sprint(i), Target: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 8, byte(i / 200), byte(i%200 + 1)}), port),
			Prober: p, Interval: 500 * time.Millisecond, Timeout: 20 * time.Second, Fall: 1})
	}
	require.NoError(t, m.Set(checks...))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	for end := time.Now().Add(2 * time.Minute); m.Stats().Probes < 3000 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		goroutines = max(goroutines, m.Stats().Workers)
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.GreaterOrEqual(t, m.Stats().Probes, uint64(3000))
	require.Zero(t, goroutines)
	require.Zero(t, m.Stats().InFlight)
	for id, st := range m.All() {
		want := healthcheck.Active
		if c, _ := m.Check(id); c.Target.Port() == closed.Port() {
			want = healthcheck.Failed
		}
		require.Equal(t, want, st.State, "%s: %v", id, st.Err)
	}
	for end := time.Now().Add(20 * time.Second); descriptors(t) > fds+4 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
	}
	require.LessOrEqual(t, descriptors(t), fds+4)
}
