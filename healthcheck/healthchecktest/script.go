// Package healthchecktest helps to test users and implementations of
// [healthcheck.Prober].
//
// [Script] is a prober that plays back results, for tests of what acts on them.
// [TestProber] checks that a prober keeps the contract every prober has to keep:
// it passes, fails, gives the same verdict however the reply is cut, obeys its
// deadline, may be called concurrently and leaves nothing behind.
package healthchecktest

import (
	"context"
	"net/netip"
	"sync"

	"github.com/lbprim/lbprim/healthcheck"
)

// Script returns a prober that plays back results, one for each probe, and then
// repeats the last for ever. Without results it is inconclusive. It is safe for
// concurrent use.
func Script(results ...healthcheck.Result) healthcheck.Prober {
	return &script{results: append([]healthcheck.Result(nil), results...)}
}

type script struct {
	mu      sync.Mutex
	results []healthcheck.Result
}

// Probe returns the next result.
func (s *script) Probe(context.Context, netip.AddrPort) healthcheck.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.results) == 0 {
		return healthcheck.Result{}
	}
	r := s.results[0]
	if len(s.results) > 1 {
		s.results = s.results[1:]
	}
	return r
}
