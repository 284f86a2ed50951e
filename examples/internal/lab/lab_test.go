package lab_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/lbprim/lbprim/examples/internal/lab"
	"github.com/lbprim/lbprim/internal/testenv"
)

var config = lab.Config{Clients: 2, Servers: 3, VIPs: []netip.Addr{netip.MustParseAddr("192.0.2.80"), netip.MustParseAddr("2001:db8::80")}, Seed: 1}

func memory(t *testing.T) *lab.Lab {
	t.Helper()
	l, err := lab.Memory(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func both(t *testing.T, f func(t *testing.T, l *lab.Lab)) {
	t.Run("memory", func(t *testing.T) { f(t, memory(t)) })
	t.Run("kernel", func(t *testing.T) {
		testenv.NeedNetns(t)
		l, err := lab.Kernel(config)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		f(t, l)
	})
}

// TestHosts has the balancer talk HTTP and UDP to a server, past the device.
func TestHosts(t *testing.T) {
	both(t, func(t *testing.T, l *lab.Lab) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		body := strings.Repeat("a page ", 50000)
		for _, v6 := range []bool{false, true} {
			at := netip.AddrPortFrom(lab.ServerAddr(v6, 2), 80)
			ln, err := l.Servers[2].Listen(ctx, at)
			require.NoError(t, err)
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })}
			go srv.Serve(ln)
			client := &http.Client{Transport: &http.Transport{DialContext: lab.Dialer{Host: l.Balancer}.DialContext}, Timeout: 20 * time.Second}
			for range 3 {
				resp, err := client.Get("http://" + at.String() + "/")
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Equal(t, body, string(got))
				resp.Body.Close()
			}
			client.CloseIdleConnections()
			require.NoError(t, srv.Close())
			_, err = l.Balancer.Dial(ctx, "tcp", netip.Addr{}, at)
			require.ErrorIs(t, err, syscall.ECONNREFUSED)

			udp := netip.AddrPortFrom(lab.ServerAddr(v6, 1), 7)
			p, err := l.Servers[1].ListenPacket(ctx, udp)
			require.NoError(t, err)
			defer p.Close()
			go func() {
				b := make([]byte, 2000)
				for {
					n, from, err := p.ReadFrom(b)
					if err != nil {
						return
					}
					p.WriteTo(b[:n], from)
				}
			}()
			c, err := l.Balancer.Dial(ctx, "udp", netip.Addr{}, udp)
			require.NoError(t, err)
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			_, err = c.Write([]byte("echo"))
			require.NoError(t, err)
			b := make([]byte, 100)
			n, err := c.Read(b)
			require.NoError(t, err)
			require.Equal(t, "echo", string(b[:n]))
		}
		require.Zero(t, l.Corrupt())
	})
}

// TestVIPsComeToTheDevice: and what servers send to clients too, but not what they send to
// the balancer.
func TestVIPsComeToTheDevice(t *testing.T) {
	both(t, func(t *testing.T, l *lab.Lab) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for i, host := range []lab.Host{l.Client, l.Servers[0]} {
			for _, to := range []string{"192.0.2.80:80", "[2001:db8::80]:80"} {
				dst := netip.MustParseAddrPort(to)
				if i == 1 {
					dst = netip.AddrPortFrom(lab.ClientAddr(dst.Addr().Is6(), 1), 5000)
				}
				c, err := host.Dial(ctx, "udp", netip.Addr{}, dst)
				require.NoError(t, err)
				defer c.Close()
				_, err = c.Write([]byte("to the device"))
				require.NoError(t, err)
				bufs, sizes := [][]byte{make([]byte, 70000)}, []int{0}
				for {
					_, err := l.Device.Read(bufs, sizes, 16)
					require.NoError(t, err)
					if strings.HasSuffix(string(bufs[0][:16+sizes[0]]), "to the device") {
						break
					}
				}
			}
		}
	})
}

// TestMemoryTCP holds the small TCP to what net.Conn promises.
func TestMemoryTCP(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		l, err := lab.Memory(config)
		if err != nil {
			return nil, nil, nil, err
		}
		at := netip.AddrPortFrom(lab.ServerAddr(true, 0), 80)
		ln, err := l.Servers[0].Listen(context.Background(), at)
		if err != nil {
			return nil, nil, nil, err
		}
		if c1, err = l.Balancer.Dial(context.Background(), "tcp", netip.Addr{}, at); err != nil {
			return nil, nil, nil, err
		}
		if c2, err = ln.Accept(); err != nil {
			return nil, nil, nil, err
		}
		return c1, c2, func() { c1.Close(); c2.Close(); l.Close() }, nil
	})
}

func TestMemoryResets(t *testing.T) {
	l := memory(t)
	ctx := context.Background()
	at := netip.AddrPortFrom(lab.ServerAddr(false, 0), 80)
	ln, err := l.Servers[0].Listen(ctx, at)
	require.NoError(t, err)
	_, err = l.Servers[0].Listen(ctx, at)
	require.ErrorIs(t, err, syscall.EADDRINUSE)

	c, err := l.Balancer.Dial(ctx, "tcp", netip.Addr{}, at)
	require.NoError(t, err)
	s, err := ln.Accept()
	require.NoError(t, err)
	_, err = s.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, s.(interface{ Abort() error }).Abort())
	b, err := io.ReadAll(c)
	require.Equal(t, "x", string(b))
	require.ErrorIs(t, err, syscall.ECONNRESET)

	// Not accepted yet when the listener goes.
	c, err = l.Balancer.Dial(ctx, "tcp", netip.Addr{}, at)
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = ln.Accept()
	require.ErrorIs(t, err, net.ErrClosed)

	// Nobody at home: the device takes the packet and nothing answers.
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = l.Client.Dial(ctx, "tcp", lab.ClientAddr(false, 1), netip.MustParseAddrPort("192.0.2.80:80"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = l.Client.Dial(ctx, "tcp", lab.ClientAddr(true, 1), netip.MustParseAddrPort("192.0.2.80:80"))
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	_, err = l.Client.Dial(ctx, "sctp", netip.Addr{}, at)
	require.Error(t, err)
}

func TestConfigFaultsAllAtOnce(t *testing.T) {
	_, err := lab.Memory(lab.Config{Clients: 201, Servers: 0, VIPs: []netip.Addr{{}}})
	for _, want := range []string{"Clients 201: must be 1 to 200", "Servers 0: must be 1 to 90", "VIPs[0]"} {
		require.ErrorContains(t, err, want)
	}
	_, err = lab.Kernel(lab.Config{})
	require.Error(t, err)
}

func TestDeviceErrorNamesTheFile(t *testing.T) {
	if err := lab.DeviceError(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		var p *os.PathError
		require.ErrorAs(t, err, &p)
	}
}
