package healthchecktest

import (
	"context"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// NoLeaks makes n probes of each target, some of them at a time, each with the
// given timeout, and checks that afterwards no descriptor is open and no goroutine
// runs that was not before. Since it counts those of the whole process, it must
// not run in parallel with other tests. Where the system has no /proc, only
// goroutines are counted.
func NoLeaks(t *testing.T, p healthcheck.Prober, n int, timeout time.Duration, targets ...netip.AddrPort) {
	t.Helper()
	all := func(n int) {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range n {
					for _, a := range targets {
						ctx, cancel := context.WithTimeout(t.Context(), timeout)
						p.Probe(ctx, a)
						cancel()
					}
				}
			})
		}
		wg.Wait()
	}
	all(1) // whatever is made once: the poller, caches
	fds, goroutines := settle(0, 0, 2*time.Second)
	all((n + 9) / 10)
	fds2, goroutines2 := settle(fds, goroutines, 30*time.Second)
	if fds2 > fds {
		t.Errorf("%d descriptors open after %d probes, %d before", fds2, n*len(targets), fds)
	}
	if goroutines2 > goroutines {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines after %d probes, %d before:\n%s", goroutines2, n*len(targets), goroutines, buf[:runtime.Stack(buf, true)])
	}
}

// settle waits until there are no more descriptors and goroutines than wanted, or
// as long as is given, and returns how many there are. Servers in this process take
// a while to see that a client has gone, on a busy machine even seconds.
func settle(fds, goroutines int, most time.Duration) (int, int) {
	f, g := descriptors(), runtime.NumGoroutine()
	for end := time.Now().Add(most); time.Now().Before(end); {
		if f <= fds && g <= goroutines {
			break
		}
		time.Sleep(20 * time.Millisecond)
		f, g = descriptors(), runtime.NumGoroutine()
	}
	return f, g
}

func descriptors() int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(d)
}
