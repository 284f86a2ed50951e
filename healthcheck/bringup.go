package healthcheck

import (
	"context"
	"net/netip"
	"sync/atomic"
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
	switch {
	case r.Verdict == Fail:
		b.state.l7.Store(true)
	case r.Verdict.OK():
		b.state.l7.Store(false)
	}
	return r
}
