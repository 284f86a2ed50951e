package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// TLS makes a full handshake, and then asks as [HTTP] does, inside. The result says
// when the certificate expires. The zero TLS checks no certificate. It is a plain
// value, safe for concurrent use.
//
// See [TLSHello] for a probe that needs any TLS reply only, and [TLSDialer] for other
// protocols inside TLS.
type TLS struct {
	Dialer Dialer // nil: the system's choices
	// Config is what the handshake is made with. Nil asks for life only: no check of
	// certificates, any version and cipher suite that crypto/tls knows. A Config
	// without ServerName wants a certificate for the target's address. NextProtos
	// should be empty or "http/1.1" unless HandshakeOnly is set.
	Config *tls.Config
	// HTTP is what is asked inside; its Dialer is not used.
	HTTP HTTP
	// HandshakeOnly leaves out the request.
	HandshakeOnly bool
	// MinValidity, if not zero, is how long the certificates must still be valid,
	// whether or not Config checks them.
	MinValidity time.Duration
}

// Validate reports all faults of p.
func (p TLS) Validate() error {
	errs := []error{p.HTTP.Validate()}
	if p.MinValidity < 0 {
		errs = append(errs, fmt.Errorf("probe: TLS.MinValidity: got %v, want 0 or more", p.MinValidity))
	}
	return errors.Join(errs...)
}

// Probe implements [healthcheck.Prober].
func (p TLS) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("tls", target, err)
	}
	return askOverTCP(ctx, "tls", p.Dialer, target, p.HTTP.limit(), p.talk)
}

func (p TLS) talk(s *stream) error {
	s.step = "handshake"
	if err := s.startTLS(p.config()); err != nil {
		return err
	}
	s.step = "certificate"
	s.note = expiry(s.notAfter, time.Now())
	if p.MinValidity > 0 && !s.notAfter.IsZero() && time.Until(s.notAfter) < p.MinValidity {
		return healthcheck.Mismatch("a certificate that expires at "+s.notAfter.UTC().Format(time.RFC3339),
			"one that is valid for "+p.MinValidity.String())
	}
	if p.HandshakeOnly {
		return nil
	}
	return p.HTTP.talk(s)
}

// config names the host that is asked for, where nothing else is configured, so that
// a server of many hosts shows the right certificate.
func (p TLS) config() *tls.Config {
	host, _, err := net.SplitHostPort(p.HTTP.Host)
	if err != nil {
		host = p.HTTP.Host
	}
	if p.Config != nil || host == "" {
		return p.Config
	}
	cfg := uncheckedConfig()
	cfg.ServerName = host
	return cfg
}

// expiry says when a certificate expires.
func expiry(at, now time.Time) string {
	switch left := at.Sub(now); {
	case at.IsZero():
		return "no certificate"
	case left < 0:
		return "certificate expired at " + at.UTC().Format(time.RFC3339)
	default:
		return fmt.Sprintf("certificate expires in %d days", left/(24*time.Hour))
	}
}
