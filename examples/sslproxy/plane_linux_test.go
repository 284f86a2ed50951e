package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// The whole way: a client's connection to VIP:443 goes to the proxy on the balancer, the proxy's to VIP:80 comes back, meets the internal policy
// and is balanced over two servers, which learn who the client is.
func TestProxyBehindAPolicy(t *testing.T) {
	testenv.NeedNetns(t)
	for _, f := range []struct{ name, vip, own, proxy, net string }{
		{"IPv4", "192.0.2.80", "192.0.2.81", "10.92.255.1", "10.92.%d.%d"},
		{"IPv6", "2001:db8::80", "2001:db8::81", "fd92:ff::1", "fd92:%d::%d"},
	} {
		for name, header := range map[string]bool{"X-Forwarded-For": false, "PROXY protocol": true} {
			t.Run(f.name+", "+name, func(t *testing.T) {
				redirected(t, netip.MustParseAddr(f.vip), netip.MustParseAddr(f.own), netip.MustParseAddr(f.proxy), f.net, header)
			})
		}
	}
}

func redirected(t *testing.T, vip, own, proxyAddr netip.Addr, network string, sendPROXY bool) {
	at := func(cable, host int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(network, cable, host)) }
	space := func() *netns.Namespace {
		n, err := netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { n.Close() })
		return n
	}
	bits := 24
	if vip.Is6() {
		bits = 64
	}
	client, balancer, servers := space(), space(), []*netns.Namespace{space(), space()}
	for i, host := range []*netns.Namespace{client, servers[0], servers[1]} {
		require.NoError(t, netns.Join(
			netns.End{NS: balancer, Name: fmt.Sprintf("e%d", i), Addrs: []netip.Prefix{netip.PrefixFrom(at(i, 1), bits)}},
			netns.End{NS: host, Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(at(i, 2), bits)}}))
		require.NoError(t, host.DefaultVia(at(i, 1)))
	}
	require.NoError(t, balancer.Router())
	var device *tun.Device
	require.NoError(t, balancer.Do(func() (err error) {
		device, err = tun.Open(&tun.Config{
			Addrs: []netip.Prefix{netip.PrefixFrom(proxyAddr, proxyAddr.BitLen())}, Proxies: []netip.Addr{proxyAddr},
			Routes: []netip.Prefix{netip.PrefixFrom(vip, vip.BitLen()), netip.PrefixFrom(own, own.BitLen())}, Divert: []string{"e1", "e2"},
		})
		return err
	}))

	ids := new(steering.IDs)
	pool := func(nodes ...steering.Node) *steering.Pool {
		p, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin, IDs: ids}, nodes...)
		require.NoError(t, err)
		return p
	}
	match := func(port uint16) policy.Match {
		return policy.Match{Dst: netip.PrefixFrom(vip, vip.BitLen()), Protocol: policy.ProtocolNumber(6), DstPort: policy.Port(port)}
	}
	front := &dataplane.Service{Name: "tls", Pool: pool(steering.Node{Name: "proxy", Addr: netip.AddrPortFrom(proxyAddr, 8443)})}
	// The proxy is on this host: answers to its own address would reach it untranslated. Those to own pass the device.
	behind := &dataplane.Service{Name: "web", Mode: clienttable.ServerPerSession, Forward: dataplane.FullNAT, Locals: []netip.Addr{own}, Pool: pool(
		steering.Node{Name: "s1", Addr: netip.AddrPortFrom(at(1, 2), 8080)}, steering.Node{Name: "s2", Addr: netip.AddrPortFrom(at(2, 2), 8080)})}
	table, err := policy.Compile(nil,
		policy.Rule[*dataplane.Service]{Name: "tls", Match: match(443), Value: front},
		policy.Rule[*dataplane.Service]{Name: "web", Match: match(80), Value: behind, Internal: true})
	require.NoError(t, err)
	plane, err := dataplane.New(&dataplane.Config{Policies: table, Devices: []dataplane.Device{device}, MaxSessions: 1 << 12, Proxies: []netip.Addr{proxyAddr}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	running := make(chan error, 1)
	go func() { running <- plane.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-running)
		if t.Failed() {
			for r, n := range plane.Drops() {
				t.Logf("dropped: %v %d", r, n)
			}
		}
		require.NoError(t, plane.Close())
	})

	for i, ns := range servers {
		ln, err := ns.Listen(t.Context(), "tcp", netip.AddrPortFrom(at(1+i, 2), 8080).String())
		require.NoError(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			if who := netip.MustParseAddrPort(r.RemoteAddr).Addr(); sendPROXY && who.String() != r.Header.Get("X-Forwarded-For") {
				http.Error(w, "the connection is "+who.String()+"'s", http.StatusBadRequest)
				return
			}
			fmt.Fprintf(w, "%d %s %s %s", i, r.Header.Get("X-Forwarded-For"), r.Header.Get(headerSubject), strings.Repeat("x", 200000))
		})}
		if sendPROXY { // version 2, or the connection is refused
			ln = &proxyproto.Listener{Listener: ln, ReadHeaderTimeout: 10 * time.Second, ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
				return proxyproto.REQUIRE, nil
			}}
		}
		go func() { _ = srv.Serve(ln) }()
		t.Cleanup(func() { srv.Close() })
	}

	ca, dir := newAuthority(t), t.TempDir()
	ca.issue(t, dir, "a.example", 1)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(caFile, ca.pem, 0o600))
	local := net.TCPAddrFromAddrPort(netip.AddrPortFrom(proxyAddr, 0))
	cfg := config{certs: dir, clientCA: caFile, compress: true, sendPROXY: sendPROXY, upstream: netip.AddrPortFrom(vip, 80), log: slog.New(slog.DiscardHandler),
		dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return balancer.DialWith(ctx, &net.Dialer{LocalAddr: local}, network, address)
		}}
	p, err := newProxy(cfg)
	require.NoError(t, err)
	ln, err := balancer.Listen(ctx, "tcp", netip.AddrPortFrom(proxyAddr, 8443).String())
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = p.serve(ctx, ln)
	}()
	t.Cleanup(func() {
		cancel()
		<-served
	})

	r := &rig{ca: ca}
	c := r.client(t, ca.issue(t, t.TempDir(), "alice", 5))
	tr := c.Transport.(*http.Transport)
	tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return client.DialContext(ctx, network, netip.AddrPortFrom(vip, 443).String())
	}
	seen := map[byte]int{}
	for deadline := time.Now().Add(30 * time.Second); len(seen) < 2 && time.Now().Before(deadline); {
		_, body := get(t, c, "https://a.example/")
		require.Equal(t, fmt.Sprintf("%v CN=alice %s", at(0, 2), strings.Repeat("x", 200000)), body[2:], "the server knows address and certificate of the client")
		seen[body[0]]++
		tr.CloseIdleConnections()
		p.transport.CloseIdleConnections() // so that the next one is balanced anew
	}
	require.Len(t, seen, 2)

	// The internal policy is for the proxy alone.
	short, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	_, err = client.DialContext(short, "tcp", netip.AddrPortFrom(vip, 80).String())
	require.Error(t, err)
}
