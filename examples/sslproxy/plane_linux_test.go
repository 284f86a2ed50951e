package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/tun"
	lab "github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// The whole way: a client's connection to VIP:443 goes to the proxy on the balancer, the proxy's to VIP:80 comes back, meets the internal policy
// and is balanced over two servers, which learn who the client is.
func TestProxyBehindAPolicy(t *testing.T) {
	testenv.NeedNetns(t)
	program, err := lab.Build(t.TempDir(), "sslproxy")
	require.NoError(t, err)
	for _, f := range []struct{ name, vip, own, proxy, net string }{
		{"IPv4", "192.0.2.80", "192.0.2.81", "10.92.255.1", "10.92.%d.%d"},
		{"IPv6", "2001:db8::80", "2001:db8::81", "fd92:ff::1", "fd92:%d::%d"},
	} {
		for name, header := range map[string]bool{"X-Forwarded-For": false, "PROXY protocol": true} {
			t.Run(f.name+", "+name, func(t *testing.T) {
				redirected(t, program, netip.MustParseAddr(f.vip), netip.MustParseAddr(f.own), netip.MustParseAddr(f.proxy), f.net, header)
			})
		}
	}
}

func redirected(t *testing.T, program string, vip, own, proxyAddr netip.Addr, network string, sendPROXY bool) {
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

	asked, release := make(chan struct{}), make(chan struct{})
	for i, ns := range servers {
		ln, err := ns.Listen(t.Context(), "tcp", netip.AddrPortFrom(at(1+i, 2), 8080).String())
		require.NoError(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			if who := netip.MustParseAddrPort(r.RemoteAddr).Addr(); sendPROXY && who.String() != r.Header.Get("X-Forwarded-For") {
				http.Error(w, "the connection is "+who.String()+"'s", http.StatusBadRequest)
				return
			}
			if r.URL.Path == "/slow" {
				close(asked)
				<-release
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
	args := []string{"-listen", netip.AddrPortFrom(proxyAddr, 8443).String(), "-to", netip.AddrPortFrom(vip, 80).String(), "-certs", dir, "-client-ca", caFile, "-cache", "0"}
	if sendPROXY {
		args = append(args, "-proxy-protocol")
	}
	p := lab.Start(t, balancer, nil, program, args...)
	t.Cleanup(func() {
		p.End()
		if t.Failed() {
			t.Log(p.Log)
		}
	})
	says := func(text string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(p.Log.String(), text) }, 30*time.Second, 20*time.Millisecond, "want %q: %v", text, p.Log)
	}
	says("listening")

	r := &rig{ca: ca}
	c := r.client(t, ca.issue(t, t.TempDir(), "alice", 5))
	tr := c.Transport.(*http.Transport)
	tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return client.DialContext(ctx, network, netip.AddrPortFrom(vip, 443).String())
	}
	// Several requests at a time: each takes a connection of its own to the balancer, which balances them.
	want := fmt.Sprintf("%v CN=alice %s", at(0, 2), strings.Repeat("x", 200000))
	seen := map[byte]int{}
	for deadline := time.Now().Add(30 * time.Second); len(seen) < 2 && time.Now().Before(deadline); {
		bodies := make(chan string, 4)
		for range cap(bodies) {
			go func() {
				res, err := c.Get("https://a.example/") //nolint:noctx // the client has a time limit
				if err != nil {
					bodies <- err.Error()
					return
				}
				defer res.Body.Close()
				b, err := io.ReadAll(res.Body)
				if err != nil {
					b = []byte(err.Error())
				}
				bodies <- string(b)
			}()
		}
		for range cap(bodies) {
			body := <-bodies
			require.Equal(t, want, body[min(2, len(body)):], "the server knows address and certificate of the client")
			seen[body[0]]++
		}
	}
	require.Len(t, seen, 2)

	// The internal policy is for the proxy alone.
	short, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	_, err = client.DialContext(short, "tcp", netip.AddrPortFrom(vip, 80).String())
	require.Error(t, err)

	// Certificates are read anew by SIGHUP; what is wrong changes nothing.
	serial := func() int64 {
		tr.CloseIdleConnections()
		res, _ := get(t, c, "https://a.example/")
		return res.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	require.EqualValues(t, 1, serial())
	ca.issue(t, dir, "a.example", 2)
	require.NoError(t, p.Signal(syscall.SIGHUP))
	says("certificates read")
	require.EqualValues(t, 2, serial())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.example.key"), []byte("no key"), 0o600))
	require.NoError(t, p.Signal(syscall.SIGHUP))
	says("certificates stay as they were")
	require.EqualValues(t, 2, serial())

	// SIGTERM: what was asked for is answered.
	slow := make(chan string, 1)
	go func() {
		_, body := get(t, c, "https://a.example/slow")
		slow <- body
	}()
	<-asked
	require.NoError(t, p.Signal(syscall.SIGTERM))
	says("ending")
	close(release)
	require.Equal(t, want, (<-slow)[2:])
	<-p.Done
	require.NoError(t, p.Err)
	says("ended")
}
