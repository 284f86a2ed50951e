package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// RADIUS sends an Access-Request, or Status-Server, and wants Access-Accept or
// Access-Reject: a server that refuses the credentials is alive, and so is one that
// sends a challenge. Replies must be authenticated with the key. The zero RADIUS lacks
// the Key. It is a plain value, safe for concurrent use.
type RADIUS struct {
	Dialer   Dialer // nil: the system's choices
	Key      string // the shared secret; required
	User     string // default "healthcheck"
	Password string // default "healthcheck"; at most 128 bytes
	NAS      string // NAS-Identifier; default "lbprim"
	// StatusServer sends Status-Server (RFC 5997) instead of Access-Request.
	StatusServer bool
	// RejectFails makes Access-Reject a failure.
	RejectFails bool
	// RequireMessageAuthenticator makes a reply without one a failure. Requests
	// always carry it, first; a wrong one is always a failure.
	RequireMessageAuthenticator bool
	// Retries is how often a request is repeated that silence or an ICMP error
	// answers; default 2, negative: none.
	Retries int
}

// Validate reports all faults of p.
func (p RADIUS) Validate() error {
	var errs []error
	if p.Key == "" {
		errs = append(errs, errors.New("probe: RADIUS.Key: got none, want the secret shared with the server"))
	}
	for _, f := range []struct {
		name, v string
		most    int
	}{{"User", p.User, 253}, {"NAS", p.NAS, 253}, {"Password", p.Password, 128}} {
		if len(f.v) > f.most {
			errs = append(errs, fmt.Errorf("probe: RADIUS.%s: got %d bytes, want at most %d", f.name, len(f.v), f.most))
		}
	}
	if p.Retries > 10 {
		errs = append(errs, fmt.Errorf("probe: RADIUS.Retries: got %d, want at most 10", p.Retries))
	}
	return errors.Join(errs...)
}

// Probe implements [healthcheck.Prober].
func (p RADIUS) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("radius", target, err)
	}
	for _, f := range []struct {
		v *string
		d string
	}{{&p.User, "healthcheck"}, {&p.Password, "healthcheck"}, {&p.NAS, "lbprim"}} {
		if *f.v == "" {
			*f.v = f.d
		}
	}
	a := begin(ctx, "radius", p.Dialer, target)
	defer a.end()
	return a.result(a.overUDP(func(conn net.Conn) error { return p.talk(a, conn) }))
}

func (p RADIUS) talk(a *attempt, conn net.Conn) error {
	a.step = "Access-Request"
	code := byte(radiusAccessRequest)
	if p.StatusServer {
		a.step, code = "Status-Server", radiusStatusServer
	}
	var random [17]byte
	_, _ = rand.Read(random[:]) // never fails
	id, auth := random[16], [16]byte(random[:16])
	var reply byte
	// A repetition is the same packet (RFC 2865 section 2.5).
	err := a.exchange(conn, radiusRequest(code, id, auth, p.Key, p.User, p.Password, p.NAS), retries(p.Retries),
		func(b []byte) (err error) {
			reply, err = parseRADIUS(b, id, auth, p.Key, p.RequireMessageAuthenticator)
			return err
		})
	if err != nil {
		return err
	}
	switch {
	case reply == radiusAccessAccept:
	case reply == radiusAccessReject && !p.RejectFails && !p.StatusServer:
		a.note = "reject counts as alive"
	case reply == radiusChallenge && !p.StatusServer:
		a.note = "challenge counts as alive"
	case reply == radiusAccounting && p.StatusServer:
	default:
		return healthcheck.Mismatch(radiusName(reply), p.want())
	}
	return nil
}

func (p RADIUS) want() string {
	switch {
	case p.StatusServer:
		return "Access-Accept or Accounting-Response"
	case p.RejectFails:
		return "Access-Accept"
	}
	return "Access-Accept or Access-Reject"
}

func radiusName(code byte) string {
	switch code {
	case radiusAccessAccept:
		return "Access-Accept"
	case radiusAccessReject:
		return "Access-Reject"
	case radiusAccounting:
		return "Accounting-Response"
	case radiusChallenge:
		return "Access-Challenge"
	}
	return fmt.Sprintf("code %d", code)
}
