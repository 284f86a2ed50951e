package probe_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/internal/testenv"
)

var target = netip.MustParseAddrPort("192.0.2.1:80")

// peer is the server's end of a conversation in memory.
type peer struct {
	net.Conn
	br *bufio.Reader
}

func newPeer(c net.Conn) *peer { return &peer{c, bufio.NewReader(c)} }

// say sends v.
func (p *peer) say(v string) { _, _ = io.WriteString(p, v) }

// hear waits for a line and returns it without its end.
func (p *peer) hear() string {
	l, _ := p.br.ReadString('\n')
	return strings.TrimRight(l, "\r\n")
}

// take waits for n bytes.
func (p *peer) take(n int) []byte {
	b := make([]byte, n)
	got, _ := io.ReadFull(p.br, b)
	return b[:got]
}

// drain reads until the prober closes.
func (p *peer) drain() { _, _ = io.Copy(io.Discard, p.br) }

// memory is a Dialer whose connections lead to serve. It must be used inside a
// synctest bubble, so that its time is not real.
type memory struct {
	serve  func(*peer)
	pieces int           // bytes that arrive at once; 0: all
	every  time.Duration // between pieces
}

func (m memory) DialContext(_ context.Context, network, _ string) (net.Conn, error) {
	if network != "tcp" {
		return nil, errors.New("memory: only tcp")
	}
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		m.serve(newPeer(&drip{server, m.pieces, m.every}))
	}()
	return patient{client}, nil
}

// patient has a pipe whose other end is closed behave as a socket does: only reading
// tells.
type patient struct{ net.Conn }

func (c patient) SetDeadline(t time.Time) error {
	if err := c.Conn.SetDeadline(t); !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

// drip sends a few bytes at a time.
type drip struct {
	net.Conn
	pieces int
	every  time.Duration
}

func (c *drip) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		m := len(b)
		if c.pieces > 0 {
			m = min(m, c.pieces)
		}
		m, err = c.Conn.Write(b[:m])
		n += m
		b = b[m:]
		time.Sleep(c.every)
	}
	return n, err
}

const (
	timeout = 5 * time.Second
	// patience is for what comes at once, unless the machine is busy.
	patience = 20 * time.Second
)

func run(p healthcheck.Prober) healthcheck.Result {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return p.Probe(ctx, target)
}

// conversation is one row of a table: what a server does, and what is right.
type conversation struct {
	name   string
	prober func(d memory) healthcheck.Prober
	serve  func(*peer)
	want   healthcheck.Verdict
	err    string // contained in the error
	note   string // contained in the note
	final  bool
}

// testConversations runs each row whole, one byte at a time, and dripped past the
// deadline.
func testConversations(t *testing.T, rows []conversation) {
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, pieces := range []int{0, 1, 3} {
				synctest.Test(t, func(t *testing.T) {
					res := run(row.prober(memory{serve: row.serve, pieces: pieces}))
					row.check(t, res, pieces)
				})
			}
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(time.Minute) // for the server to notice the end
				start := time.Now()
				res := run(row.prober(memory{serve: row.serve, pieces: 1, every: 3 * time.Second}))
				took := time.Since(start)
				require.LessOrEqual(t, took, timeout)
				if took == timeout {
					require.Equal(t, healthcheck.Fail, res.Verdict, "dripped past the deadline")
					require.ErrorIs(t, res.Err, os.ErrDeadlineExceeded)
				}
			})
		})
	}
}

func (row conversation) check(t *testing.T, res healthcheck.Result, pieces int) {
	t.Helper()
	require.Equal(t, row.want, res.Verdict, "pieces %d: %v", pieces, res.Err)
	if row.want == healthcheck.Pass {
		require.NoError(t, res.Err)
	} else {
		require.ErrorContains(t, res.Err, row.err, "pieces %d", pieces)
	}
	require.Contains(t, res.Note, row.note)
	require.Equal(t, row.final, res.Final)
}

// listen serves real connections on a loopback address until the test ends.
func listen(t testing.TB, addr string, serve func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("cannot listen on %s: %v", addr, err)
	}
	testenv.Accept(t, l, serve)
	return netip.MustParseAddrPort(l.Addr().String())
}

// closedPort returns a loopback address on which nothing listens.
func closedPort(t testing.TB, host string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skipf("cannot listen on %s: %v", host, err)
	}
	defer l.Close()
	// A connection of before keeps the port from others.
	here, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	there, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { here.Close(); there.Close() })
	return netip.MustParseAddrPort(l.Addr().String())
}

var loopbacks = []string{"127.0.0.1", "::1"}

func mustAddr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
