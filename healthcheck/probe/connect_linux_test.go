package probe_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// TestConnectWaits has targets that do not answer before connect returns: the queue of
// the listener is full, so that only a later SYN is answered.
func TestConnectWaits(t *testing.T) {
	t.Parallel()
	mayRaw(t)
	for _, p := range []healthcheck.Prober{probe.TCP{}, probe.FTP{}, probe.TCPHalfOpen{Resend: 300 * time.Millisecond},
		healthchecktest.Started(t, probe.TCP{}), healthchecktest.Started(t, probe.TCPHalfOpen{Resend: 300 * time.Millisecond})} {
		addr, fd := fullListener(t)
		res := p.Probe(within(t, 100*time.Millisecond), addr)
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.ErrorIs(t, res.Err, os.ErrDeadlineExceeded)
		require.ErrorContains(t, res.Err, ": timed out without an answer")
		time.AfterFunc(600*time.Millisecond, func() { // long after the first SYN
			for {
				c, _, err := unix.Accept(fd)
				if err != nil {
					return
				}
				go func() {
					unix.Write(c, []byte("220 at last\r\n"))
					time.Sleep(10 * time.Second)
					unix.Close(c)
				}()
			}
		})
		res = p.Probe(within(t, 20*time.Second), addr)
		require.Equal(t, healthcheck.Pass, res.Verdict, "%T: %v", p, res.Err)
		require.Greater(t, res.Latency, 100*time.Millisecond)
		require.NoError(t, unix.Shutdown(fd, unix.SHUT_RD))

		again, queue := fullListener(t)
		time.AfterFunc(100*time.Millisecond, func() { unix.Shutdown(queue, unix.SHUT_RD) })
		res = p.Probe(within(t, 20*time.Second), again)
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
		require.ErrorContains(t, res.Err, ": connection refused")
	}
}

// TestConnectCancelled ends a probe that waits for a connection.
func TestConnectCancelled(t *testing.T) {
	addr, _ := fullListener(t)
	for _, p := range []healthcheck.Prober{probe.TCP{}, probe.HTTP{}, probe.TCPHalfOpen{},
		healthchecktest.Started(t, probe.TCP{}), healthchecktest.Started(t, probe.HTTP{}), healthchecktest.Started(t, probe.TCPHalfOpen{})} {
		ctx, cancel := context.WithCancel(within(t, patience))
		time.AfterFunc(50*time.Millisecond, cancel)
		res := p.Probe(ctx, addr)
		require.Equal(t, healthcheck.Inconclusive, res.Verdict)
		require.ErrorIs(t, res.Err, context.Canceled)
		res = p.Probe(ctx, addr) // cancelled from the start
		require.Equal(t, healthcheck.Inconclusive, res.Verdict)
		require.ErrorIs(t, res.Err, context.Canceled)
	}
}

// TestReset has the server see how the probe ends.
func TestReset(t *testing.T) {
	for _, host := range loopbacks {
		ends := make(chan error, 1)
		addr := listen(t, net.JoinHostPort(host, "0"), func(c net.Conn) {
			c.Read(make([]byte, 512))
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			_, err := c.Read(make([]byte, 1))
			ends <- err
		})
		for _, p := range both(t, probe.HTTP{}) {
			for range 3 {
				res := p.Probe(within(t, patience), addr)
				require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
				require.ErrorIs(t, <-ends, syscall.ECONNRESET)
			}
		}
	}
}

// TestSocketIsNetDialer: what callers outside get is a connection of package net.
func TestSocketIsNetDialer(t *testing.T) {
	addr := listen(t, "127.0.0.1:0", func(net.Conn) {})
	c, err := probe.Socket{}.DialContext(t.Context(), "tcp", addr.String())
	require.NoError(t, err)
	defer c.Close()
	_, ok := c.(*net.TCPConn)
	require.True(t, ok)
	// A wrapper of the caller's own goes its own way, and works too.
	res := probe.HTTP{Dialer: wrapper{}}.Probe(within(t, patience), closedPort(t, "127.0.0.1"))
	require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
}

type wrapper struct{ probe.Socket }

func (w wrapper) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, errors.New("no address")
	}
	return w.Socket.DialContext(ctx, network, address)
}
