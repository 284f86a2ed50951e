//go:build linux

package netns_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

func namespace(t *testing.T) *netns.Namespace {
	t.Helper()
	n, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

func prefixes(ss ...string) (ps []netip.Prefix) {
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// TestThreeHosts sends a byte through a router between two hosts, in both families.
func TestThreeHosts(t *testing.T) {
	testenv.NeedNetns(t)
	client, router, server := namespace(t), namespace(t), namespace(t)
	require.NoError(t, netns.Join(
		netns.End{NS: client, Name: "eth0", Addrs: prefixes("10.80.0.2/24", "fd80:0::2/64")},
		netns.End{NS: router, Name: "c0", Addrs: prefixes("10.80.0.1/24", "fd80:0::1/64"), MTU: 1500}))
	require.NoError(t, netns.Join(
		netns.End{NS: server, Name: "eth0", Addrs: prefixes("10.80.1.2/24", "fd80:0:0:1::2/64"), NoOffload: true},
		netns.End{NS: router, Name: "s0", Addrs: prefixes("10.80.1.1/24", "fd80:0:0:1::1/64"), NoOffload: true}))
	require.NoError(t, client.DefaultVia(netip.MustParseAddr("10.80.0.1"), netip.MustParseAddr("fd80:0::1")))
	require.NoError(t, server.DefaultVia(netip.MustParseAddr("10.80.1.1"), netip.MustParseAddr("fd80:0:0:1::1")))
	require.NoError(t, router.Router())

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, addr := range []string{"10.80.1.2:80", "[fd80:0:0:1::2]:80"} {
		l, err := server.Listen(ctx, "tcp", addr)
		require.NoError(t, err)
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err == nil {
				io.Copy(c, c)
				c.Close()
			}
		}()
		c, err := client.DialContext(ctx, "tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(c, make([]byte, 1))
		require.NoError(t, err)
	}
	p, err := server.ListenPacket(ctx, "udp", "10.80.1.2:53")
	require.NoError(t, err)
	p.Close()
}

func TestDo(t *testing.T) {
	testenv.NeedNetns(t)
	n := namespace(t)
	require.NoError(t, n.Do(func() error {
		ifs, err := net.Interfaces()
		require.NoError(t, err)
		require.Len(t, ifs, 1, "nothing but loopback")
		require.NotZero(t, ifs[0].Flags&net.FlagUp)
		return nil
	}))
	require.ErrorIs(t, n.Do(func() error { return io.ErrUnexpectedEOF }), io.ErrUnexpectedEOF)
	require.ErrorContains(t, n.Sysctl("net.ipv4.no_such", "1"), "net.ipv4.no_such")

	// Many at once, more than threads are kept.
	errs := make(chan error)
	for range 20 {
		go func() { errs <- n.Do(func() error { time.Sleep(time.Millisecond); return nil }) }()
	}
	for range 20 {
		require.NoError(t, <-errs)
	}
	require.NoError(t, n.Close())
	require.NoError(t, n.Close())
	require.ErrorIs(t, n.Do(func() error { return nil }), os.ErrClosed)
	require.Error(t, netns.Join(netns.End{NS: namespace(t), Name: "a"}, netns.End{NS: n, Name: "b"}))
}

// TestMain lets the test binary be its own child in a user namespace.
func TestMain(m *testing.M) {
	if netns.Inside() {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

func child() int {
	n, err := netns.New()
	if err != nil {
		return 40
	}
	if err := n.Router(); err != nil {
		return 41
	}
	return 42
}

func TestRunAsRoot(t *testing.T) {
	status, err := netns.RunAsRoot()
	if err != nil || status == 40 || status == 41 {
		t.Skipf("the kernel permits no user namespaces (%v, step %d)", err, status)
	}
	require.Equal(t, 42, status)
}
