package probe

import (
	"context"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// TCP connects, and is satisfied. It completes the handshake and then resets the
// connection; see [TCPHalfOpen] for a probe that never completes it. The zero TCP
// works. It is a plain value, safe for concurrent use.
type TCP struct {
	Dialer Dialer // nil: the system's choices
}

// Probe implements [healthcheck.Prober].
func (p TCP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return overTCP(ctx, "tcp", p.Dialer, target, 0, nil)
}
