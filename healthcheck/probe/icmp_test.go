package probe_test

import (
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// mayPing skips where neither kind of socket is allowed.
func mayPing(t testing.TB) {
	t.Helper()
	res := probe.ICMP{Attempts: 1}.Probe(within(t, patience), netip.MustParseAddrPort("127.0.0.1:0"))
	if res.Verdict == healthcheck.Inconclusive {
		if os.Getenv("LBPRIM_NETNS") == "require" {
			t.Fatalf("no ICMP socket: %v", res.Err)
		}
		t.Skipf("no ICMP socket: %v", res.Err)
	}
}

func TestICMP(t *testing.T) {
	mayPing(t)
	for _, host := range loopbacks {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			addr := netip.AddrPortFrom(netip.MustParseAddr(host), 0)
			res := probe.ICMP{}.Probe(within(t, patience), addr)
			if host == "::1" && res.Verdict == healthcheck.Inconclusive {
				t.Skip(res.Err)
			}
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
			require.True(t, strings.HasSuffix(res.Note, "socket"), res.Note)
			res = probe.ICMP{Size: 1400, Socket: probe.Socket{Source: addr.Addr(), DSCP: 46}}.Probe(within(t, patience), addr)
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
		})
	}
	t.Run("many at once", func(t *testing.T) {
		t.Parallel()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				res := probe.ICMP{}.Probe(within(t, patience), netip.MustParseAddrPort("127.0.0.1:0"))
				if res.Verdict != healthcheck.Pass {
					t.Error(res.Err)
				}
			})
		}
		wg.Wait()
	})
}
