package healthcheck

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"
)

// bringUp is the plain check of a port: Layer 4 and Layer 7 to come up, then the
// higher of the two.
type bringUp struct {
	l4, l7 Prober
	fast   bool
	state  *bringUpState
}

// bringUpState outlives a change of the configuration.
type bringUpState struct {
	up atomic.Bool // the check is up
	l7 atomic.Bool // it was Layer 7 that failed last
}

func (b *bringUp) Probe(ctx context.Context, target netip.AddrPort) Result {
	up := b.state.up.Load()
	if b.l4 != nil && (!up || b.l7 == nil) {
		r := b.l4.Probe(ctx, target)
		if b.l7 == nil || !r.Verdict.OK() {
			return r
		}
		if b.fast && !b.state.l7.Load() {
			r.Note = "Layer 4 only, for a fast bring-up"
			return r
		}
	}
	r := b.l7.Probe(ctx, target)
	b.state.judge(r)
	return r
}

// Start implements [Starter] where one probe alone is to be made.
func (b *bringUp) Start(s *Scope, target netip.AddrPort, deadline time.Time, done func(Result)) (stop func()) {
	switch {
	case b.l7 == nil:
		if p, ok := b.l4.(Starter); ok {
			return p.Start(s, target, deadline, done)
		}
	case b.l4 == nil || b.state.up.Load():
		if p, ok := b.l7.(Starter); ok {
			return p.Start(s, target, deadline, func(r Result) {
				b.state.judge(r)
				done(r)
			})
		}
	}
	return nil
}

// judge notes what Layer 7 said.
func (s *bringUpState) judge(r Result) {
	switch {
	case r.Verdict == Fail:
		s.l7.Store(true)
	case r.Verdict.OK():
		s.l7.Store(false)
	}
}
