package healthchecktest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// Started returns a prober that begins probes as a running [healthcheck.Monitor] does,
// with [healthcheck.Starter.Start] where p has it, and waits for their results. What
// they share is closed when t ends.
func Started(t *testing.T, p healthcheck.Prober) healthcheck.Prober {
	s, ok := p.(healthcheck.Starter)
	if !ok {
		return p
	}
	st := &started{t: t, p: s}
	t.Cleanup(func() {
		if err := st.scope.Close(); err != nil {
			t.Errorf("closing what probes shared: %v", err)
		}
	})
	return st
}

type started struct {
	t     *testing.T
	p     healthcheck.Starter
	scope healthcheck.Scope
}

func (s *started) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(5 * time.Second)
	}
	results := make(chan healthcheck.Result, 2)
	stop := s.p.Start(&s.scope, target, deadline, func(r healthcheck.Result) {
		select {
		case results <- r:
		default:
		}
	})
	if stop == nil {
		if len(results) > 0 {
			s.t.Errorf("%v: a result of a probe that could not be started", target)
		}
		return s.p.Probe(ctx, target)
	}
	defer func() {
		stop() // changes nothing any more
		if len(results) > 0 {
			s.t.Errorf("%v: more than one result of one probe", target)
		}
	}()
	cancelled := ctx.Done()
	for {
		select {
		case r := <-results:
			return r
		case <-cancelled:
			if cancelled = nil; ctx.Err() == context.Canceled {
				stop()
			}
		}
	}
}
