package healthchecktest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// Env tells [TestProber] how to make targets. Each function starts something on
// the loopback that lives until t ends, and returns its address. What is nil is
// not tested.
type Env struct {
	// Good answers as it should.
	Good func(t *testing.T) netip.AddrPort
	// Bad answers, but wrongly.
	Bad func(t *testing.T) netip.AddrPort
	// Hang takes the request and never answers. Default for probers over TCP, if
	// TCP is set: a listener that accepts and says nothing.
	Hang func(t *testing.T) netip.AddrPort
	// Dead has nobody listening. Default if TCP is set: a closed TCP port.
	Dead func(t *testing.T) netip.AddrPort
	// TCP: the prober speaks TCP, so that a relay in front of Good can cut its
	// replies into single bytes, and cut them off.
	TCP bool
	// SilenceIsLife: the prober takes silence for life, so that Hang, and a reply
	// cut off at once, need not fail.
	SilenceIsLife bool
	// Timeout of probes that should succeed; default 10 s.
	Timeout time.Duration
}

// TestProber checks, each in a subtest, that p keeps the contract of
// [healthcheck.Prober] with the targets that env makes, and, if it is one, that of
// [healthcheck.Starter]. Tests of several probers may run in parallel.
func TestProber(t *testing.T, p healthcheck.Prober, env Env) {
	if _, ok := p.(healthcheck.Starter); ok {
		t.Run("started", func(t *testing.T) { testProber(t, Started(t, p), env) })
	}
	testProber(t, p, env)
}

func testProber(t *testing.T, p healthcheck.Prober, env Env) {
	if env.Timeout == 0 {
		env.Timeout = 10 * time.Second
	}
	if env.TCP && env.Hang == nil {
		env.Hang = Silent
	}
	if env.TCP && env.Dead == nil {
		env.Dead = Closed
	}
	probe := func(t *testing.T, a netip.AddrPort, d time.Duration) healthcheck.Result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return checked(t, p.Probe(ctx, a))
	}
	if env.Good != nil {
		t.Run("good passes", func(t *testing.T) {
			if r := probe(t, env.Good(t), env.Timeout); !r.Verdict.OK() {
				t.Fatalf("got %v (%v), want a pass", r.Verdict, r.Err)
			}
		})
		t.Run("concurrent", func(t *testing.T) { testConcurrent(t, p, env) })
		t.Run("leaks nothing", func(t *testing.T) { testLeaks(t, p, env) })
	}
	if env.Bad != nil {
		t.Run("bad fails", func(t *testing.T) {
			if r := probe(t, env.Bad(t), env.Timeout); r.Verdict != healthcheck.Fail {
				t.Fatalf("got %v (%v), want fail", r.Verdict, r.Err)
			}
		})
	}
	if env.Dead != nil {
		t.Run("dead fails", func(t *testing.T) {
			if r := probe(t, env.Dead(t), env.Timeout); r.Verdict != healthcheck.Fail {
				t.Fatalf("got %v (%v), want fail", r.Verdict, r.Err)
			}
		})
	}
	if env.Hang != nil {
		t.Run("obeys its deadline", func(t *testing.T) { testDeadline(t, p, env) })
		t.Run("obeys cancellation", func(t *testing.T) { testCancel(t, p, env) })
	}
	if env.TCP && env.Good != nil {
		t.Run("one byte at a time", func(t *testing.T) {
			a := Relay(t, env.Good(t), func(dst io.Writer, src io.Reader) { oneByOne(dst, src, 0) })
			if r := probe(t, a, env.Timeout); !r.Verdict.OK() {
				t.Fatalf("got %v (%v), want a pass", r.Verdict, r.Err)
			}
		})
		if !env.SilenceIsLife {
			t.Run("dripped past the deadline fails at the deadline", func(t *testing.T) { testDrip(t, p, env) })
		}
	}
	if env.TCP && env.Bad != nil {
		t.Run("wrong answer one byte at a time", func(t *testing.T) {
			a := Relay(t, env.Bad(t), func(dst io.Writer, src io.Reader) { oneByOne(dst, src, 0) })
			if r := probe(t, a, env.Timeout); r.Verdict != healthcheck.Fail {
				t.Fatalf("got %v (%v), want fail", r.Verdict, r.Err)
			}
		})
	}
}

// checked reports what every result must fulfil.
func checked(t *testing.T, r healthcheck.Result) healthcheck.Result {
	t.Helper()
	switch {
	case r.Verdict > healthcheck.Fail:
		t.Errorf("invalid verdict %v", r.Verdict)
	case r.Verdict.OK() && r.Err != nil:
		t.Errorf("%v with an error: %v", r.Verdict, r.Err)
	case !r.Verdict.OK() && r.Err == nil:
		t.Errorf("%v without an error", r.Verdict)
	case r.Latency < 0:
		t.Errorf("negative latency %v", r.Latency)
	}
	if r.Verdict == healthcheck.Fail {
		var pe *healthcheck.ProbeError
		if !errors.As(r.Err, &pe) || pe.Op == "" {
			t.Errorf("error %q does not say at which step: want a *healthcheck.ProbeError with Op", r.Err)
		}
	}
	return r
}

// slack is how much later than its deadline a probe may return. It is generous
// to a machine busy with other tests.
const slack = 10 * time.Second

func testDeadline(t *testing.T, p healthcheck.Prober, env Env) {
	a := env.Hang(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	r := checked(t, p.Probe(ctx, a))
	if d := time.Since(begin); d > 300*time.Millisecond+slack {
		t.Errorf("returned after %v, deadline was 300ms", d)
	}
	if r.Verdict != healthcheck.Fail && !env.SilenceIsLife {
		t.Errorf("got %v (%v), want fail", r.Verdict, r.Err)
	}
}

func testCancel(t *testing.T, p healthcheck.Prober, env Env) {
	a := env.Hang(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	time.AfterFunc(100*time.Millisecond, cancel)
	begin := time.Now()
	p.Probe(ctx, a)
	if d := time.Since(begin); d > 100*time.Millisecond+slack {
		t.Errorf("returned after %v, cancelled after 100ms", d)
	}
}

func testDrip(t *testing.T, p healthcheck.Prober, env Env) {
	a := Relay(t, env.Good(t), func(dst io.Writer, src io.Reader) { oneByOne(dst, src, time.Second) })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	r := checked(t, p.Probe(ctx, a))
	d := time.Since(begin)
	if d > 300*time.Millisecond+slack {
		t.Errorf("returned after %v, deadline was 300ms", d)
	}
	// A probe satisfied with the first byte or with the handshake may pass. A busy
	// machine may look at the clock late.
	if r.Verdict.OK() && d > 300*time.Millisecond+slack/2 {
		t.Errorf("passed %v after its deadline", d-300*time.Millisecond)
	}
}

func testConcurrent(t *testing.T, p healthcheck.Prober, env Env) {
	good := env.Good(t)
	var bad netip.AddrPort
	if env.Bad != nil {
		bad = env.Bad(t)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), env.Timeout)
			defer cancel()
			if r := p.Probe(ctx, good); !r.Verdict.OK() {
				t.Errorf("good: got %v (%v)", r.Verdict, r.Err)
			}
			if bad.IsValid() {
				if r := p.Probe(ctx, bad); r.Verdict != healthcheck.Fail {
					t.Errorf("bad: got %v (%v)", r.Verdict, r.Err)
				}
			}
		})
	}
	wg.Wait()
}

func testLeaks(t *testing.T, p healthcheck.Prober, env Env) {
	targets := []netip.AddrPort{env.Good(t)}
	for _, f := range []func(*testing.T) netip.AddrPort{env.Bad, env.Dead} {
		if f != nil {
			targets = append(targets, f(t))
		}
	}
	all := func() {
		for _, a := range targets {
			ctx, cancel := context.WithTimeout(t.Context(), env.Timeout)
			p.Probe(ctx, a)
			cancel()
		}
	}
	all() // whatever is made once
	// Goroutines inherit the labels of those that start them, so that those of this
	// prober can be told from those of tests and servers that run at the same time.
	id := strconv.FormatUint(rand.Uint64(), 36)
	pprof.Do(context.Background(), pprof.Labels(leakLabel, id), func(context.Context) {
		for range 20 {
			all()
		}
	})
	left := ""
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if left = labelled(id); left == "" {
			return
		}
	}
	t.Errorf("goroutines left behind by %d probes:\n%s", 20*len(targets), left)
}

const leakLabel = "healthchecktest"

// labelled returns the stacks of the goroutines with a label, or "".
func labelled(id string) string {
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
	var out []string
	for g := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(g, strconv.Quote(leakLabel)+":"+strconv.Quote(id)) {
			out = append(out, g)
		}
	}
	return strings.Join(out, "\n\n")
}

// Closed returns an address nobody listens on until t ends.
func Closed(t *testing.T) netip.AddrPort {
	ln := listen(t)
	defer ln.Close()
	// A connection of before keeps the port from others.
	here, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.Close() })
	there, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = there.Close() })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// Silent returns the address of a listener that accepts and says nothing.
func Silent(t *testing.T) netip.AddrPort {
	return Serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
}

// Serve accepts TCP connections on the loopback until t ends, hands each to f in
// a goroutine of its own, and closes it afterwards.
func Serve(t *testing.T, f func(net.Conn)) netip.AddrPort {
	ln := listen(t)
	var (
		mu     sync.Mutex
		conns  []net.Conn
		closed bool
	)
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		closed = true
		for _, c := range conns {
			_ = c.Close()
		}
	})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			if closed {
				_ = c.Close()
			}
			mu.Unlock()
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// Relay listens in front of target. What the client sends is passed on as it is;
// what target answers is passed on by reply.
func Relay(t *testing.T, target netip.AddrPort, reply func(dst io.Writer, src io.Reader)) netip.AddrPort {
	return Serve(t, func(c net.Conn) {
		s, err := net.Dial("tcp", target.String())
		if err != nil {
			return
		}
		defer s.Close()
		go func() {
			_, _ = io.Copy(s, c)
			if tc, ok := s.(*net.TCPConn); ok {
				_ = tc.CloseWrite()
			}
		}()
		reply(c, s)
	})
}

// oneByOne copies byte by byte, with a pause before each.
func oneByOne(dst io.Writer, src io.Reader, pause time.Duration) {
	var b [1]byte
	for {
		if _, err := io.ReadFull(src, b[:]); err != nil {
			return
		}
		time.Sleep(pause)
		if _, err := dst.Write(b[:]); err != nil {
			return
		}
	}
}

func listen(t *testing.T) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		// A machine with IPv6 alone.
		ln, err = net.Listen("tcp", "[::1]:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}
