package healthchecktest_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
)

// hello is a prober as a user might write it: it wants a line "hello".
type hello struct{}

func (hello) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", target.String())
	if err != nil {
		return healthcheck.Failure("hello: connect", target, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	line, err := bufio.NewReaderSize(c, 64).ReadSlice('\n')
	if err != nil {
		return healthcheck.Failure("hello: greeting", target, err)
	}
	if string(line) != "hello\n" {
		return healthcheck.Failure("hello: greeting", target, healthcheck.Mismatch(line, "hello"))
	}
	return healthcheck.Passed("")
}

func says(s string) func(t *testing.T) netip.AddrPort {
	return func(t *testing.T) netip.AddrPort {
		return healthchecktest.Serve(t, func(c net.Conn) { fmt.Fprint(c, s) })
	}
}

func TestHello(t *testing.T) {
	t.Parallel()
	healthchecktest.TestProber(t, hello{}, healthchecktest.Env{Good: says("hello\n"), Bad: says("no\n"), TCP: true})
}

func TestScript(t *testing.T) {
	t.Parallel()
	p := healthchecktest.Script(healthcheck.Passed("one"), healthcheck.Passed("two"))
	for _, want := range []string{"one", "two", "two"} {
		require.Equal(t, want, p.Probe(t.Context(), netip.AddrPort{}).Note)
	}
	require.Equal(t, healthcheck.Inconclusive, healthchecktest.Script().Probe(t.Context(), netip.AddrPort{}).Verdict)
}

func ExampleScript() {
	p := healthchecktest.Script(healthcheck.Passed("all well"), healthcheck.Result{Verdict: healthcheck.Fail})
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	target := netip.MustParseAddrPort("192.0.2.1:80")
	fmt.Println(p.Probe(ctx, target).Verdict, p.Probe(ctx, target).Verdict)
	// Output: pass fail
}

func TestHelloLeaksNothing(t *testing.T) {
	healthchecktest.NoLeaks(t, hello{}, 1000, 5*time.Second, healthchecktest.Closed(t))
	healthchecktest.NoLeaks(t, hello{}, 100, 5*time.Second, says("no\n")(t), says("hello\n")(t))
}

// A test of a prober of one's own, as it stands in a file of tests.
func ExampleTestProber() {
	_ = func(t *testing.T) { // func TestHello(t *testing.T)
		healthchecktest.TestProber(t, hello{}, healthchecktest.Env{
			Good: func(t *testing.T) netip.AddrPort {
				return healthchecktest.Serve(t, func(c net.Conn) { fmt.Fprintln(c, "hello") })
			},
			Bad: func(t *testing.T) netip.AddrPort {
				return healthchecktest.Serve(t, func(c net.Conn) { fmt.Fprintln(c, "go away") })
			},
			TCP: true,
		})
		healthchecktest.NoLeaks(t, hello{}, 1000, 5*time.Second, healthchecktest.Closed(t))
	}
}
