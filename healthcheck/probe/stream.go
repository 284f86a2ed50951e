package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// farewellWait bounds how long a probe whose verdict stands waits for the answer to
// its farewell.
const farewellWait = 200 * time.Millisecond

// stream is a probe's conversation over a connection.
type stream struct {
	*attempt
	*reader
	conn  net.Conn
	limit int
}

// overTCP makes a probe that is one conversation over TCP. Without talk a connection is
// enough. limit bounds what is read.
func overTCP(ctx context.Context, proto string, d Dialer, target netip.AddrPort, limit int, talk func(*stream) error) healthcheck.Result {
	a := begin(ctx, proto, d, target)
	defer a.end()
	return a.result(a.overTCP(limit, talk))
}

// askOverTCP is overTCP for protocols in which the client speaks first.
func askOverTCP(ctx context.Context, proto string, d Dialer, target netip.AddrPort, limit int, talk func(*stream) error) healthcheck.Result {
	a := begin(ctx, proto, d, target)
	defer a.end()
	a.first = true
	return a.result(a.overTCP(limit, talk))
}

// overTCP connects, has talk decide, and closes with a reset.
func (a *attempt) overTCP(limit int, talk func(*stream) error) (err error) {
	if s, ok := own(a.dialer); ok && talk == nil {
		return s.touchTCP(a.ctx, a.target)
	}
	conn, err := dial(a.ctx, a.dialer, "tcp", a.target, a.first)
	if err != nil {
		return err
	}
	s := &stream{attempt: a, conn: conn, limit: limit}
	defer func() { s.close(err == nil) }()
	if err := conn.SetDeadline(a.deadline); err != nil {
		return err
	}
	// The deadline is the socket's, set once. Only a cancelled context changes it.
	stop := context.AfterFunc(a.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if t, ok := conn.(*tls.Conn); ok {
		a.certificate(t.ConnectionState())
	}
	if talk == nil {
		return nil
	}
	s.reader = newReader(conn, limit)
	return talk(s)
}

// close closes the connection with a reset. Inside TLS the peer is told first, but
// only if the probe passed: a peer that hangs shall not be waited for.
func (s *stream) close(passed bool) {
	c := s.conn
	for {
		t, ok := c.(*tls.Conn)
		if !ok {
			break
		}
		if passed {
			_ = t.CloseWrite()
		}
		c = t.NetConn()
	}
	reset(c)
}

// reset closes c so that TCP sends a reset instead of lingering in TIME_WAIT.
func reset(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}

// send writes b.
func (s *stream) send(b []byte) error {
	_, err := s.conn.Write(b)
	return err
}

func (s *stream) sendString(v string) error { return s.send([]byte(v)) }

// farewell says goodbye after the verdict and gives the peer a moment to answer or
// close, so that the reset does not overtake the goodbye and fill its log. Whatever
// comes of it changes nothing.
func (s *stream) farewell(v string) {
	s.decide()
	if at := time.Now().Add(farewellWait); at.Before(s.deadline) {
		_ = s.conn.SetDeadline(at) // earlier than before, never later
	}
	if s.ctx.Err() != nil || s.sendString(v) != nil {
		return
	}
	_, _ = s.readSome()
}

// errInjected is returned where clear text follows the answer after which TLS begins:
// it would be taken for part of the protected conversation (CVE-2011-0411).
var errInjected = errors.New("clear text after the answer that starts TLS")

// startTLS makes the handshake; what follows is protected.
func (s *stream) startTLS(cfg *tls.Config) error {
	if s.buffered() > 0 {
		return errInjected
	}
	conn := tls.Client(s.conn, clientConfig(cfg, s.target))
	if err := conn.HandshakeContext(s.ctx); err != nil {
		return err
	}
	s.conn = conn
	s.reader = newReader(conn, s.limit)
	s.certificate(conn.ConnectionState())
	return nil
}

// certificate notes when the first certificate of the chain to end does so.
func (a *attempt) certificate(cs tls.ConnectionState) {
	for _, c := range cs.PeerCertificates {
		if a.notAfter.IsZero() || c.NotAfter.Before(a.notAfter) {
			a.notAfter = c.NotAfter
		}
	}
}
