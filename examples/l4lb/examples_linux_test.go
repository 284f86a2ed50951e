package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// startExample runs a file of the program's own as it is, with a /run and a /var/lib of its own.
func (h *labHosts) startExample(t *testing.T, name string, env ...string) *process {
	t.Helper()
	unshare := testenv.NeedServers(t, "unshare")[0]
	bin, err := built()
	require.NoError(t, err)
	p := &process{t: t, h: h, file: filepath.Join(t.TempDir(), name+".yaml"), log: &rig.Log{}}
	text, err := exampleFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(p.file, []byte(text), 0o600))
	const script = `mount -t tmpfs none /run; mount -t tmpfs none /var/lib; exec env "$@"`
	args := append([]string{"-m", "sh", "-ec", script, "sh"}, env...)
	p.Process = rig.Start(t, h.balancer, p.log, unshare, append(args, bin, "run", p.file)...)
	p.socket = fmt.Sprintf("/proc/%d/root%s", p.Pid, defaultSocket)
	t.Cleanup(p.stop)
	return p
}

// usable waits until as many nodes of a farm can be used.
func (p *process) usable(farm string, want int) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%d usable nodes of %s", want, farm), func() bool {
		s, err := (&client{socket: p.socket}).status(p.t.Context())
		if err != nil {
			return false
		}
		for _, f := range s.Farms {
			if f.Name == farm {
				return f.Usable == want
			}
		}
		return false
	})
}

// serve has an HTTP server that says a name listen on an address of a namespace.
func serve(t *testing.T, ns *netns.Namespace, addr, says string, conf *tls.Config) {
	t.Helper()
	l, err := ns.Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	if conf != nil {
		l = tls.NewListener(l, conf)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, says) }), ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
}

// postgres runs a PostgreSQL server in a namespace, and returns how to end it.
func postgres(t *testing.T, ns *netns.Namespace, addr string) (end func()) {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	bin := "/usr/lib/postgresql/*/bin" // named in the reason for a skip
	if len(found) > 0 {
		bin = filepath.Dir(found[len(found)-1])
	}
	bins := testenv.NeedServers(t, bin+"/initdb", bin+"/postgres", "setpriv")
	dir := testenv.SocketDir(t)
	as := []string{"--reuid=postgres", "--regid=postgres", "--init-groups"}
	out, err := exec.Command("chown", "postgres:", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command(bins[2], append(as, args...)...)
		cmd.Dir = dir
		return cmd
	}
	out, err = run(bins[0], "-D", dir+"/data", "-A", "trust", "-U", "postgres", "--no-sync", "--no-locale", "-E", "UTF8").CombinedOutput()
	require.NoError(t, err, "%s", out)
	hba, err := os.OpenFile(dir+"/data/pg_hba.conf", os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = hba.WriteString("host all all 0.0.0.0/0 trust\n")
	require.NoError(t, err)
	require.NoError(t, hba.Close())
	server := rig.Start(t, ns, nil, bins[2], append(as, bins[1], "-D", dir+"/data", "-k", dir, "-c", "listen_addresses="+addr, "-c", "fsync=off")...)
	end = func() { _ = server.Stop(patience) }
	t.Cleanup(end)
	return end
}

// TestExampleOfTLS runs the second configuration as it is, at its own addresses: with web servers whose certificates are verified, and the database
// that they need.
func TestExampleOfTLS(t *testing.T) {
	testenv.NeedNetns(t)
	t.Parallel()
	h := &labHosts{}
	var servers *netns.Namespace
	rig.Hosts(t, &h.client, &h.balancer, &servers)
	rig.Cable{Hub: h.balancer, Host: h.client, Name: "eth0", V4: "198.51.%d.%d/24", Number: 100}.Plug(t)
	rig.Cable{Hub: h.balancer, Host: servers, Name: "eth1", V4: "10.0.%d.%d/24"}.Plug(t)
	require.NoError(t, h.balancer.Router())
	for _, last := range []int{11, 12, 13, 14, 20} {
		rig.Shell(t, servers, fmt.Sprintf("ip addr add 10.0.0.%d/24 dev eth0", last))
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	selfSigned(t, cert, key, "www.example.net", "api.example.net")
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	for last, name := range map[int]string{11: "web1", 12: "web2", 13: "api1", 14: "api2"} {
		serve(t, servers, fmt.Sprintf("10.0.0.%d:443", last), name, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	}
	end := postgres(t, servers, "10.0.0.20")
	p := h.startExample(t, "tls", "SSL_CERT_FILE="+cert)
	p.usable("web", 2)
	p.usable("api", 2)

	pem, err := os.ReadFile(cert)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem))
	get := func(name string) string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return h.client.DialContext(ctx, network, "192.0.2.80:443")
		}}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+name+"/", nil)
		require.NoError(t, err)
		resp, err := (&http.Client{Transport: tr}).Do(req)
		require.NoError(t, err, "%v", p.log)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return string(b)
	}
	for range 3 {
		require.Contains(t, []string{"web1", "web2"}, get("www.example.net"))
		require.Contains(t, []string{"api1", "api2"}, get("api.example.net"))
	}
	// A server without its database is of no use.
	end()
	p.usable("web", 0)
	require.Contains(t, p.status().Farms[1].Nodes[0].Reason, "db")
	require.Contains(t, []string{"api1", "api2"}, get("api.example.net"))
	p.stop()
	require.NotContains(t, p.log.String(), "level=ERROR")
}

// TestExampleOfDSR runs the third configuration as it is, at its own addresses, on a network of one switch.
func TestExampleOfDSR(t *testing.T) {
	testenv.NeedNetns(t)
	t.Parallel()
	h := &labHosts{}
	var wire, web1, web2, rest *netns.Namespace
	rig.Hosts(t, &wire, &h.client, &h.balancer, &web1, &web2, &rest)
	rig.Shell(t, wire, "ip link add br0 type bridge; ip link set br0 up")
	for i, x := range []struct {
		ns    *netns.Namespace
		addrs []string
	}{{h.client, []string{"192.0.2.1"}}, {h.balancer, []string{"192.0.2.2"}}, {web1, []string{"192.0.2.11"}}, {web2, []string{"192.0.2.12"}}, {rest, []string{"192.0.2.13", "192.0.2.21", "192.0.2.22"}}} {
		var addrs []netip.Prefix
		for _, a := range x.addrs {
			addrs = append(addrs, netip.MustParsePrefix(a+"/24"))
		}
		port := fmt.Sprintf("p%d", i)
		require.NoError(t, netns.Join(netns.End{NS: x.ns, Name: "eth0", Addrs: addrs}, netns.End{NS: wire, Name: port}))
		rig.Shell(t, wire, "ip link set "+port+" master br0; ip link set "+port+" up")
		if i > 1 { // as the file's comment says
			rig.Shell(t, x.ns, "ip addr add 192.0.2.80/32 dev lo; ip addr add 192.0.2.53/32 dev lo; sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
		}
	}
	require.NoError(t, h.balancer.Sysctl("net.ipv4.ip_forward", "0"))
	require.NoError(t, h.balancer.Sysctl("net.ipv6.conf.all.forwarding", "0"))
	serve(t, web1, ":80", "web1", nil)
	serve(t, web2, ":80", "web2", nil)
	serve(t, rest, ":80", "spare", nil)
	for _, addr := range []string{"192.0.2.21:53", "192.0.2.22:53", "192.0.2.53:53"} {
		c, err := rest.ListenPacket(t.Context(), "udp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		go answerDNS(c)
	}
	p := h.startExample(t, "dsr")
	p.usable("dns", 2)
	p.eventually("the web servers are up", func() bool {
		up := 0
		for _, n := range p.status().Farms[1].Nodes {
			if n.Up {
				up++
			}
		}
		return up == 3
	})
	for range 3 {
		body, err := h.get("192.0.2.80")
		require.NoError(t, err, "%v", p.log)
		require.Contains(t, []string{"web1", "web2"}, body)
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return h.client.DialContext(ctx, "udp", "192.0.2.53:53")
	}}
	addrs, err := resolver.LookupNetIP(t.Context(), "ip4", "www.example.net")
	require.NoError(t, err, "%v", p.log)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.80")}, addrs)
	p.must("disable", "web1")
	p.must("disable", "web2")
	body, err := h.get("192.0.2.80")
	require.NoError(t, err)
	require.Equal(t, "spare", body)
	for _, s := range p.status().Services {
		require.Zero(t, s.Traffic.Out.Packets, "%s: answers go directly", s.Name)
	}
	p.stop()
	require.NotContains(t, p.log.String(), "level=ERROR")
}

// answerDNS answers every question for addresses with that of the web servers.
func answerDNS(c net.PacketConn) {
	b := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(b[:n]) != nil || len(m.Questions) == 0 {
			continue
		}
		m.Response, m.Additionals = true, nil
		if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60}, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 80}}}}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = c.WriteTo(out, from)
		}
	}
}

// TestBooleanPolicies: nodes are up when an expression over their own check, elements and policies is true; and the reason says which part is not.
func TestBooleanPolicies(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	open := func(server, port int) (end func()) {
		l, err := h.servers[server].Listen(t.Context(), "tcp", fmt.Sprintf(":%d", port))
		require.NoError(t, err)
		testenv.Accept(t, l, func(net.Conn) {})
		return func() { l.Close() }
	}
	const elements = `elements:
  db1: {target: "10.9.1.2:5001", method: tcp, interval: 200ms, timeout: 10s, fall: 1}
  db2: {target: "10.9.2.2:5002", method: tcp, interval: 200ms, timeout: 10s, fall: 1}
  maint: {target: "10.9.2.2:5003", method: tcp, interval: 200ms, timeout: 10s, fall: 1}
policies:
  spare: db2 AND NOT maint
  dbs: db1 OR spare
farms:`
	p := h.start(t, strings.NewReplacer("{socket: none}", "{socket: SOCKET}", "farms:", elements, "    check:", "    policy: self AND dbs\n    check:").Replace(fmt.Sprintf(labFile, "tun", "e1, e2")))
	p.usable("v4", 0)
	end1 := open(0, 5001)
	p.usable("v4", 2)
	end2 := open(1, 5002)
	_, err := h.get("10.9.100.1")
	require.NoError(t, err)
	element := func(name, state string) {
		t.Helper()
		p.eventually(name+" is "+state, func() bool {
			for _, e := range p.status().Elements {
				if e.Name == name {
					return e.Health.State.String() == state
				}
			}
			return false
		})
	}
	element("db2", "active")
	end1() // the other one is left
	element("db1", "failed")
	p.usable("v4", 2)
	_, err = h.get("10.9.100.1")
	require.NoError(t, err)
	end3 := open(1, 5003) // but not under maintenance
	p.usable("v4", 0)
	require.Contains(t, p.status().Farms[0].Nodes[0].Reason, "maint")
	require.Contains(t, p.must("status", "-json"), "service web4 has no usable node")
	end3()
	p.usable("v4", 2)
	end2()
	p.usable("v4", 0)
	defer open(0, 5001)()
	p.usable("v4", 2)
	body, err := h.get("10.9.100.1")
	require.NoError(t, err)
	require.Contains(t, body, "server")
}
