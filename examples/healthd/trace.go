package main

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/lbprim/lbprim/healthcheck/probe"
)

// tracer writes what probers send and receive, for people to read. A nil *tracer sees nothing.
type tracer struct {
	mu     sync.Mutex
	w      io.Writer
	start  time.Time
	decode func(b []byte) (line string, ok bool) // or nil
}

func newTracer(w io.Writer) *tracer { return &tracer{w: w, start: time.Now()} }

func (t *tracer) say(format string, args ...any) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.w, "%8.1f ms  %s\n", float64(time.Since(t.start).Microseconds())/1000, fmt.Sprintf(format, args...))
}

// dialer returns a Dialer whose connections are traced; d itself if nobody looks.
func (t *tracer) dialer(d probe.Dialer) probe.Dialer {
	if t == nil {
		return d
	}
	return tracedDialer{d, t, false}
}

// inside is dialer for what is said inside TLS.
func (t *tracer) inside(d probe.Dialer) probe.Dialer {
	if t == nil {
		return d
	}
	return tracedDialer{d, t, true}
}

// handshake shows what a TLS handshake agreed on; it is a [tls.Config.VerifyConnection].
func (t *tracer) handshake(s tls.ConnectionState) error {
	text := tls.VersionName(s.Version) + ", " + tls.CipherSuiteName(s.CipherSuite)
	if s.NegotiatedProtocol != "" {
		text += ", " + s.NegotiatedProtocol
	}
	t.say("= TLS handshake: %s", text)
	for i, c := range s.PeerCertificates {
		t.say("= certificate %d: %s, of %s, until %s", i, c.Subject, c.Issuer, c.NotAfter.UTC().Format(time.DateOnly))
	}
	return nil
}

type tracedDialer struct {
	probe.Dialer
	t      *tracer
	inside bool
}

func (d tracedDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if !d.inside {
		d.t.say("connect to %s over %s", address, network)
	}
	c, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		if !d.inside {
			d.t.say("! %v", err)
		}
		return nil, err
	}
	if !d.inside {
		d.t.say("from %v", c.LocalAddr())
	}
	return &tracedConn{Conn: c, t: d.t, inside: d.inside}, nil
}

// tracedConn shows what passes through a connection. Inside TLS the records below are shown by the connection there.
type tracedConn struct {
	net.Conn
	t        *tracer
	inside   bool
	out, in  records
	reported bool
	closed   sync.Once
}

func (c *tracedConn) Write(b []byte) (int, error) {
	c.show(">", &c.out, b)
	n, err := c.Conn.Write(b)
	if err != nil {
		c.t.say("! write: %v", err)
	}
	return n, err
}

func (c *tracedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.show("<", &c.in, b[:n])
	}
	if err != nil && !c.reported {
		c.reported = true
		what := err.Error()
		if err == io.EOF { //nolint:errorlint // as net.Conn returns it
			what = "the other side closed"
		}
		c.t.say("! %s", what)
	}
	return n, err
}

func (c *tracedConn) Close() error {
	if !c.inside {
		c.closed.Do(func() { c.t.say("close") })
	}
	return c.Conn.Close()
}

// SetLinger lets probers close with a reset, as they do without a trace.
func (c *tracedConn) SetLinger(sec int) error {
	conn := c.Conn
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if l, ok := conn.(interface{ SetLinger(int) error }); ok {
		return l.SetLinger(sec)
	}
	return nil
}

func (c *tracedConn) show(arrow string, r *records, b []byte) {
	if !c.inside && r.claim(b) {
		for _, line := range r.feed(b) {
			c.t.say("%s %s", arrow, line)
		}
		return
	}
	if c.inside {
		arrow += arrow
	}
	if c.t.decode != nil {
		if line, ok := c.t.decode(b); ok {
			c.t.say("%s %s", arrow, line)
			return
		}
	}
	for _, line := range readable(b) {
		c.t.say("%s %s", arrow, line)
	}
}

// readable shows bytes as lines of text if they are text, else in hexadecimal.
func readable(b []byte) (lines []string) {
	const most = 2048
	cut := ""
	if len(b) > most {
		cut, b = fmt.Sprintf("… %d bytes more", len(b)-most), b[:most]
	}
	if isText(b) {
		for line := range strings.Lines(string(b)) {
			lines = append(lines, strings.TrimRight(line, "\r\n"))
		}
	} else {
		lines = strings.Split(strings.TrimRight(hex.Dump(b), "\n"), "\n")
	}
	if cut != "" {
		lines = append(lines, cut)
	}
	return lines
}

func isText(b []byte) bool {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 && len(b) >= utf8.UTFMax || r < ' ' && !strings.ContainsRune("\r\n\t", r) || r == 0x7f {
			return false
		}
		b = b[n:]
	}
	return true
}

// records follows the TLS records of one direction (RFC 8446 section 5.1), however they are cut.
type records struct {
	tls    bool
	header []byte
	rest   int // of the record
}

// claim reports whether b belongs to TLS: from the first record on, everything does.
func (r *records) claim(b []byte) bool {
	r.tls = r.tls || len(b) >= 3 && b[0] >= 20 && b[0] <= 23 && b[1] == 3 && b[2] <= 4
	return r.tls
}

func (r *records) feed(b []byte) (lines []string) {
	for len(b) > 0 {
		if r.rest > 0 {
			n := min(r.rest, len(b))
			r.rest, b = r.rest-n, b[n:]
			continue
		}
		// One byte more than the header says which handshake message it is.
		n := min(6-len(r.header), len(b))
		r.header, b = append(r.header, b[:n]...), b[n:]
		if len(r.header) < 6 {
			break
		}
		length := int(r.header[3])<<8 | int(r.header[4])
		lines = append(lines, fmt.Sprintf("[TLS %s, %d bytes]", recordName(r.header), length))
		r.rest, r.header = max(0, length-1), r.header[:0]
	}
	return lines
}

func recordName(h []byte) string {
	switch h[0] {
	case 20:
		return "change cipher spec"
	case 21:
		return "alert"
	case 23:
		return "application data"
	}
	switch h[5] {
	case 1:
		return "client hello"
	case 2:
		return "server hello"
	case 4:
		return "new session ticket"
	case 11:
		return "certificate"
	case 12:
		return "server key exchange"
	case 14:
		return "server hello done"
	case 16:
		return "client key exchange"
	}
	return "handshake"
}
