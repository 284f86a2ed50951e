package probe

import (
	"context"
	"crypto/tls"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// POP3 waits for a greeting +OK and says QUIT (RFC 1939). The zero POP3 works. It is a
// plain value, safe for concurrent use.
type POP3 struct {
	Dialer Dialer // nil: the system's choices
	// StartTLS has STLS (RFC 2595) succeed, too.
	StartTLS bool
	TLS      *tls.Config // see [TLS.Config]
}

// Probe implements [healthcheck.Prober].
func (p POP3) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return overTCP(ctx, "pop3", p.Dialer, target, maxReply, p.talk)
}

func (p POP3) talk(s *stream) error {
	s.step = "greeting"
	if err := wantOK(s.reader); err != nil {
		return err
	}
	if p.StartTLS {
		s.step = "STLS"
		if err := s.sendString("STLS\r\n"); err != nil {
			return err
		}
		if err := wantOK(s.reader); err != nil {
			return err
		}
		if err := s.startTLS(p.TLS); err != nil {
			return err
		}
	}
	s.farewell("QUIT\r\n")
	return nil
}

func wantOK(r *reader) error {
	line, err := r.readLine()
	if err == nil && !hasWord(line, "+OK") {
		err = healthcheck.Mismatch(line, "+OK")
	}
	return err
}
