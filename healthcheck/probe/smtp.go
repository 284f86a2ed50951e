package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// SMTP waits for a greeting with code 220, which may have several lines, and says QUIT
// (RFC 5321). The zero SMTP works. It is a plain value, safe for concurrent use.
type SMTP struct {
	Dialer Dialer // nil: the system's choices
	// Hello, if not empty, is the name sent with EHLO, which must be answered by
	// 250.
	Hello string
	// StartTLS has STARTTLS (RFC 3207) succeed, too. It needs an EHLO first, with
	// the name "localhost" unless Hello is set.
	StartTLS bool
	TLS      *tls.Config // see [TLS.Config]
}

// Validate reports the faults of p.
func (p SMTP) Validate() error {
	if !isVisible(p.Hello) {
		return fmt.Errorf("probe: SMTP.Hello: got %q, want a name without blanks or control characters", p.Hello)
	}
	return nil
}

// Probe implements [healthcheck.Prober].
func (p SMTP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("smtp", target, err)
	}
	return overTCP(ctx, "smtp", p.Dialer, target, maxReply, p.talk)
}

func (p SMTP) talk(s *stream) error {
	s.step = "greeting"
	if _, err := readReply(s.reader, true, "220"); err != nil {
		return err
	}
	hello := p.Hello
	if p.StartTLS && hello == "" {
		hello = "localhost"
	}
	if hello != "" {
		if err := s.command("EHLO", "EHLO "+hello, "250"); err != nil {
			return err
		}
	}
	if p.StartTLS {
		if err := s.command("STARTTLS", "STARTTLS", "220"); err != nil {
			return err
		}
		if err := s.startTLS(p.TLS); err != nil {
			return err
		}
		if err := s.command("EHLO after STARTTLS", "EHLO "+hello, "250"); err != nil {
			return err
		}
	}
	s.farewell("QUIT\r\n")
	return nil
}

// command sends a line and wants a reply with code want.
func (s *stream) command(step, line, want string) error {
	s.step = step
	if err := s.sendString(line + "\r\n"); err != nil {
		return err
	}
	_, err := readReply(s.reader, true, want)
	return err
}
