package probe

import (
	"context"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// TCP connects, and is satisfied. On Linux, with the system's choices or a [Socket], the
// ACK that would complete the handshake is held back, so that the server usually sees a
// reset in its place and accepts nothing; elsewhere the handshake is completed, and the
// connection then reset. See [TCPHalfOpen] for a probe that never completes it. The zero
// TCP works. It is a plain value, safe for concurrent use.
type TCP struct {
	Dialer Dialer // nil: the system's choices
}

// Probe implements [healthcheck.Prober].
func (p TCP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return overTCP(ctx, "tcp", p.Dialer, target, 0, nil)
}
