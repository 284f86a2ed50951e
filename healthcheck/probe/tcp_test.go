package probe_test

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

func TestTCP(t *testing.T) {
	for _, host := range loopbacks {
		t.Run(host, func(t *testing.T) {
			addr := listen(t, net.JoinHostPort(host, "0"), func(net.Conn) {})
			res := probe.TCP{}.Probe(t.Context(), addr)
			require.NoError(t, res.Err)
			require.Equal(t, healthcheck.Pass, res.Verdict)
			require.Positive(t, res.Latency)

			res = probe.TCP{}.Probe(t.Context(), closedPort(t, host))
			require.Equal(t, healthcheck.Fail, res.Verdict)
			require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
			require.EqualError(t, res.Err, "tcp: connect: connection refused")
		})
	}
}

func TestTCPClosesWithReset(t *testing.T) {
	got := make(chan error, 1)
	addr := listen(t, "127.0.0.1:0", func(c net.Conn) {
		_, err := c.Read(make([]byte, 1))
		got <- err
	})
	// The Dialer of the caller's completes the handshake, so that the server sees the end.
	require.Equal(t, healthcheck.Pass, probe.TCP{Dialer: &net.Dialer{}}.Probe(t.Context(), addr).Verdict)
	require.ErrorIs(t, <-got, syscall.ECONNRESET)
}

func TestCancelledProbeIsInconclusive(t *testing.T) {
	addr := listen(t, "127.0.0.1:0", func(c net.Conn) { c.Read(make([]byte, 1000)); c.Read(make([]byte, 1)) })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	res := probe.HTTP{}.Probe(ctx, addr)
	require.Equal(t, healthcheck.Inconclusive, res.Verdict)
	require.ErrorIs(t, res.Err, context.Canceled)
	require.ErrorIs(t, res.Err, healthcheck.ErrLocal)

	res = probe.TCP{}.Probe(ctx, addr)
	require.Equal(t, healthcheck.Inconclusive, res.Verdict)
	require.ErrorIs(t, res.Err, context.Canceled)
}

func TestLocalFailureIsInconclusive(t *testing.T) {
	addr := listen(t, "127.0.0.1:0", func(net.Conn) {})
	for name, p := range map[string]healthcheck.Prober{
		"foreign source":   probe.TCP{Dialer: probe.Socket{Source: netip.MustParseAddr("192.0.2.77")}},
		"other family":     probe.TCP{Dialer: probe.Socket{Source: netip.MustParseAddr("::1")}},
		"no interface":     probe.TCP{Dialer: probe.Socket{Interface: "nosuch0"}},
		"impossible DSCP":  probe.TCP{Dialer: &probe.Socket{DSCP: 64}},
		"method of a HTTP": probe.HTTP{Method: "GE T"},
	} {
		t.Run(name, func(t *testing.T) {
			res := p.Probe(t.Context(), addr)
			require.Equal(t, healthcheck.Inconclusive, res.Verdict, "%v", res.Err)
			require.ErrorIs(t, res.Err, healthcheck.ErrLocal)
		})
	}
	t.Run("no address", func(t *testing.T) {
		res := probe.TCP{}.Probe(t.Context(), netip.AddrPort{})
		require.Equal(t, healthcheck.Inconclusive, res.Verdict)
		require.ErrorContains(t, res.Err, "the target has no address")
	})
}
