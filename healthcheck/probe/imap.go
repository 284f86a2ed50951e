package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// IMAP waits for a greeting "* OK" or "* PREAUTH" and says LOGOUT; "* BYE" is a
// failure (RFC 3501 section 7.1). The zero IMAP works. It is a plain value, safe for
// concurrent use.
type IMAP struct {
	Dialer Dialer // nil: the system's choices
	// StartTLS has STARTTLS succeed, too.
	StartTLS bool
	TLS      *tls.Config // see [TLS.Config]
}

// Probe implements [healthcheck.Prober].
func (p IMAP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return overTCP(ctx, "imap", p.Dialer, target, maxReply, p.talk)
}

func (p IMAP) talk(s *stream) error {
	s.step = "greeting"
	if err := readIMAPGreeting(s.reader); err != nil {
		return err
	}
	if p.StartTLS {
		s.step = "STARTTLS"
		if err := s.sendString("a STARTTLS\r\n"); err != nil {
			return err
		}
		if err := readIMAPTagged(s.reader, "A OK"); err != nil {
			return err
		}
		if err := s.startTLS(p.TLS); err != nil {
			return err
		}
	}
	s.farewell("b LOGOUT\r\n")
	return nil
}

func readIMAPGreeting(r *reader) error {
	line, err := r.readLine()
	if err != nil {
		return err
	}
	if up := bytes.ToUpper(line); !hasWord(up, "* OK") && !hasWord(up, "* PREAUTH") {
		return healthcheck.Mismatch(line, "* OK or * PREAUTH")
	}
	return nil
}

// readIMAPTagged reads the answer to the command tagged "a". Untagged lines may
// come before it.
func readIMAPTagged(r *reader, want string) error {
	for {
		line, err := r.readLine()
		if err != nil {
			return err
		}
		switch up := bytes.ToUpper(line); {
		case hasWord(up, want):
			return nil
		case hasWord(up, "*") && !hasWord(up, "* BYE"):
		default:
			return healthcheck.Mismatch(line, want)
		}
	}
}
