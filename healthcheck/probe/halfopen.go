package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// TCPHalfOpen sends a SYN, wants a SYN with ACK, and answers it with RST: the handshake
// is never completed, so that the server's application sees nothing of it. A RST is a
// failure.
//
// It needs a raw socket (Linux, CAP_NET_RAW). Where it may not have one, the probe
// falls back to connect() and a close with RST, and says so in the note of its result.
// The zero TCPHalfOpen works. It is a plain value, safe for concurrent use.
type TCPHalfOpen struct {
	Socket Socket // options of the socket
	// Resend is how long an answer is waited for before the SYN is sent again, and
	// then doubled each time; default 1 s.
	Resend time.Duration
}

// Validate reports all faults of p.
func (p TCPHalfOpen) Validate() error {
	var errs []error
	if p.Resend < 0 {
		errs = append(errs, fmt.Errorf("probe: TCPHalfOpen.Resend: got %v, want 0 or more", p.Resend))
	}
	return errors.Join(append(errs, p.Socket.Validate())...)
}

// errNoRaw is returned where this process may not open a raw socket.
var errNoRaw = errors.New("no raw socket")

const halfOpenFallback = "no raw socket, so connected and reset"

// Probe implements [healthcheck.Prober].
func (p TCPHalfOpen) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("tcp half-open", target, err)
	}
	if p.Resend == 0 {
		p.Resend = time.Second
	}
	a := begin(ctx, "tcp half-open", p.Socket, target)
	defer a.end()
	err := p.Socket.check(target.Addr())
	if err == nil {
		err = p.talk(a)
	}
	if errors.Is(err, errNoRaw) {
		a.step, a.note = "connect", halfOpenFallback
		err = a.overTCP(0, nil)
	}
	return a.result(err)
}
