package probe

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
)

// TestIdleSocketsAreClosed: what started probes share and nobody uses any more is closed after a while, and made
// anew when it is needed.
func TestIdleSocketsAreClosed(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Skip(err)
		}
		defer l.Close()
		addr := netip.MustParseAddrPort(l.Addr().String())
		var scope healthcheck.Scope
		defer scope.Close()
		e, err := loadEngine(&scope)
		require.NoError(t, err)
		e.mu.Lock()
		e.idleTime = 300 * time.Millisecond
		e.mu.Unlock()
		held := func() (socks, pools int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, idle := range e.idle {
				socks += len(idle)
			}
			for _, p := range e.pools {
				if p != nil {
					pools++
				}
			}
			return socks, pools
		}
		probe := func(p healthcheck.Starter) (started bool) {
			results := make(chan healthcheck.Result, 1)
			if p.Start(&scope, addr, time.Now().Add(20*time.Second), func(r healthcheck.Result) { results <- r }) == nil {
				require.NotZero(t, os.Geteuid(), "it cannot be started")
				return false
			}
			r := <-results
			require.Equal(t, healthcheck.Pass, r.Verdict, "%v", r.Err)
			return true
		}
		for range 3 { // again and again
			require.True(t, probe(TCP{}))
			raw := probe(TCPHalfOpen{})
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				socks, pools := held()
				if socks == 0 && pools == 0 {
					break
				}
				require.True(t, time.Now().Before(end), "%d sockets and %d pools are still there", socks, pools)
			}
			// What is used stays, however long it takes.
			for range 10 {
				require.True(t, probe(TCP{}))
				if raw {
					require.True(t, probe(TCPHalfOpen{}))
				}
				time.Sleep(50 * time.Millisecond)
			}
			e.mu.Lock()
			places := len(e.socks)
			e.mu.Unlock()
			require.LessOrEqual(t, places, 4, "places are used again")
		}
	}
}
