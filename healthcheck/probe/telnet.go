package probe

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// Telnet waits for the first byte, which must be IAC: servers begin by negotiating
// options (RFC 854). The zero Telnet works. It is a plain value, safe for concurrent
// use.
type Telnet struct {
	Dialer Dialer // nil: the system's choices
}

// Probe implements [healthcheck.Prober].
func (p Telnet) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return overTCP(ctx, "telnet", p.Dialer, target, 1, func(s *stream) error {
		s.step = "negotiation"
		return readTelnet(s.reader)
	})
}

func readTelnet(r *reader) error {
	const iac = 0xff
	b, err := r.readByte()
	if err == nil && b != iac {
		err = healthcheck.Mismatch([]byte{b}, fmt.Sprintf("IAC (%#x) first", iac))
	}
	return err
}
