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
	conn  net.Conn // on top: TLS, if any
	raw   net.Conn // below
	limit int
}

// overTCP connects, has talk decide, and closes with a reset. limit bounds what is
// read.
func overTCP(ctx context.Context, proto string, d Dialer, target netip.AddrPort, limit int, talk func(*stream) error) healthcheck.Result {
	a := begin(ctx, proto, d, target)
	defer a.end()
	conn, err := dial(a.ctx, d, "tcp", target)
	if err != nil {
		return a.result(err)
	}
	defer reset(conn)
	if err := conn.SetDeadline(a.deadline); err != nil {
		return a.result(err)
	}
	// The deadline is the socket's, set once. Only a cancelled context changes it.
	stop := context.AfterFunc(a.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s := &stream{attempt: a, conn: conn, raw: conn, limit: limit}
	if talk == nil {
		return a.result(nil)
	}
	s.reader = newReader(conn, limit)
	return a.result(talk(s))
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
	s.pass()
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
	conn := tls.Client(s.conn, cfg)
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
