package probe

import (
	"context"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// FTP waits for a greeting with code 220, which may have several lines, and says QUIT
// (RFC 959). The zero FTP works. It is a plain value, safe for concurrent use.
type FTP struct {
	Dialer Dialer // nil: the system's choices
}

// Probe implements [healthcheck.Prober].
func (p FTP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return overTCP(ctx, "ftp", p.Dialer, target, maxReply, func(s *stream) error {
		s.step = "greeting"
		if _, err := readReply(s.reader, false, "220"); err != nil {
			return err
		}
		s.farewell("QUIT\r\n")
		return nil
	})
}
