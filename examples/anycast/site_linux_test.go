package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// site is a client, a router that runs BIRD, two balancers that announce to it, and three servers that have the virtual addresses and a
// VXLAN tunnel's end, each a namespace of its own:
//
//	client ─ router ─┬─ balancer 0, 1
//	                 └─ server 0, 1, 2
type site struct {
	client, router *netns.Namespace
	balancers      [2]*netns.Namespace
	servers        [3]*netns.Namespace
	stops          [3]func() // of the health checks' servers
	bin, dir       string
}

// Numbers of the cables at the router: network 10.7.N.0/24 and fd07:N::/64, the router being 1 and the other end 2.
const (
	clientNet   = 0
	balancerNet = 1  // and 2
	serverNet   = 11 // to 13
)

// The virtual addresses: the first pair is served by all servers, the second one by the last server only.
var siteVIPs = [...]string{"10.7.100.1", "fd07:100::1", "10.7.100.2", "fd07:100::2"}

func newSite(t *testing.T) *site {
	testenv.NeedNetns(t)
	testenv.NeedServers(t, "bird", "birdc")
	t.Parallel() // nobody else is in these namespaces, and most of the time is spent waiting
	s := &site{dir: testenv.SocketDir(t)}
	rig.Hosts(t, &s.client, &s.router, &s.balancers[0], &s.balancers[1], &s.servers[0], &s.servers[1], &s.servers[2])
	require.NoError(t, s.router.Router())
	for _, v := range []string{"4", "6"} { // connections keep their way, by addresses and ports
		require.NoError(t, s.router.Sysctl("net.ipv"+v+".fib_multipath_hash_policy", "1"))
	}
	join := func(ns *netns.Namespace, net int) {
		rig.Cable{Hub: s.router, Host: ns, Name: fmt.Sprintf("r%d", net), V4: "10.7.%d.%d/24", V6: "fd07:%d::%d/64", Number: net}.Plug(t)
	}
	join(s.client, clientNet)
	for i, b := range s.balancers {
		require.NoError(t, b.Router())
		join(b, balancerNet+i)
	}
	for i, srv := range s.servers {
		join(srv, serverNet+i)
		s.server(t, i)
	}
	var err error
	s.bin, err = built()
	require.NoError(t, err)
	return s
}

// built builds the program once for all tests.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "anycast")
	if err != nil {
		return "", err
	}
	return rig.Build(dir, "anycast")
})

func TestMain(m *testing.M) {
	status := m.Run()
	if bin, err := built(); err == nil {
		_ = os.RemoveAll(filepath.Dir(bin))
	}
	os.Exit(status)
}

// server gives a server its addresses, tunnel ends and services: on port 7 it says its name and echoes lines, on port 80 it answers health checks.
func (s *site) server(t *testing.T, i int) {
	srv := s.servers[i]
	require.NoError(t, srv.Router()) // for the reverse path filter
	rig.Shell(t, srv, fmt.Sprintf("ip link add vx4 address 02:00:00:00:00:0a type vxlan id 4 dstport 4789 local 10.7.%d.2", serverNet+i))
	rig.Shell(t, srv, fmt.Sprintf("ip link add vx6 address 02:00:00:00:00:0a type vxlan id 6 dstport 4789 local fd07:%d::2 udp6zerocsumrx", serverNet+i))
	rig.Shell(t, srv, "ip link set vx4 up")
	rig.Shell(t, srv, "ip link set vx6 up")
	for _, v := range siteVIPs {
		a := netip.MustParseAddr(v)
		rig.Shell(t, srv, fmt.Sprintf("ip addr add %v dev lo", netip.PrefixFrom(a, a.BitLen())))
	}
	l, err := srv.Listen(t.Context(), "tcp", ":7")
	require.NoError(t, err)
	testenv.Accept(t, l, func(c net.Conn) {
		fmt.Fprintf(c, "server %d\n", i)
		_, _ = io.Copy(c, c)
	})
	s.health(t, i)
}

// health begins to answer a server's health checks; the returned function ends that.
func (s *site) health(t *testing.T, i int) (stop func()) {
	l, err := s.servers[i].Listen(t.Context(), "tcp", ":80")
	require.NoError(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "well") })}
	go func() { _ = srv.Serve(l) }()
	stop = func() { srv.Close() }
	t.Cleanup(stop)
	s.stops[i] = stop
	return stop
}

// patience is how long tests wait for what must happen, looking every retry.
const (
	patience = 40 * time.Second
	retry    = 30 * time.Millisecond
)

// siteLinger is how long a balancer goes on once it has withdrawn everything.
const siteLinger = 2 * time.Second

const sitePassword = "known-to-both-ends"

// siteFile is a balancer's file.
func siteFile(balancer int, extra string) string {
	var b strings.Builder
	n := balancerNet + balancer
	fmt.Fprintf(&b, `version: 1
seed: 4711
source: [10.7.%[1]d.2, "fd07:%[1]d::2"]
status: "[::]:9180"
linger: %[3]v
device: {networks: [10.7.100.0/24, "fd07:100::/64"]}
damping: {announce-after: 300ms, suppress: 100000, longest: 24h}
bgp:
  as: 64512
  router-id: 10.7.%[1]d.2
  hold-time: 6s
  peers:
    - {address: 10.7.%[1]d.1, as: 64500, local: 10.7.%[1]d.2}
    - {address: "fd07:%[1]d::1", as: 64500, local: "fd07:%[1]d::2"}
%[2]sfarms:
`, n, extra, siteLinger)
	for _, f := range []struct {
		name, addr string
		key, first int
	}{{"all4", "10.7.%d.2", 4, 0}, {"all6", `"fd07:%d::2"`, 6, 0}, {"last4", "10.7.%d.2", 4, 2}, {"last6", `"fd07:%d::2"`, 6, 2}} {
		fmt.Fprintf(&b, "  %s:\n    tunnel: {kind: vxlan, key: %d, mac: '02:00:00:00:00:0a'}\n    check: {method: http, port: 80, interval: 200ms, timeout: 5s, fall: 2}\n    nodes:\n", f.name, f.key)
		for i := f.first; i < 3; i++ {
			fmt.Fprintf(&b, "      - {name: server%d, address: "+f.addr+"}\n", i, serverNet+i)
		}
	}
	b.WriteString("vips:\n")
	for i, v := range siteVIPs {
		fmt.Fprintf(&b, "  - {address: '%s', communities: ['64512:80'], services: [{name: echo%d, protocol: tcp, port: 7, farm: %s}]}\n", v, i, []string{"all4", "all6", "last4", "last6"}[i])
	}
	return b.String()
}

func (s *site) start(t *testing.T, ns *netns.Namespace, name string, args ...string) *rig.Process {
	t.Helper()
	p := rig.Start(t, ns, nil, name, args...)
	t.Cleanup(func() {
		p.End()
		p.Races(t)
		if t.Failed() {
			t.Logf("%s:\n%v", filepath.Base(name), p.Log)
		}
	})
	return p
}

func (s *site) file(i int) string { return filepath.Join(s.dir, fmt.Sprintf("balancer%d.yaml", i)) }

// configure writes a balancer's file, all at once.
func (s *site) configure(t *testing.T, i int, extra string) {
	t.Helper()
	require.NoError(t, os.WriteFile(s.file(i)+".new", []byte(siteFile(i, extra)), 0o600))
	require.NoError(t, os.Rename(s.file(i)+".new", s.file(i)))
}

func (s *site) balance(t *testing.T, i int) *rig.Process {
	t.Helper()
	return s.start(t, s.balancers[i], s.bin, "run", s.file(i))
}

// bird starts the router's BIRD with what the balancers' program prints for it.
func (s *site) bird(t *testing.T) {
	t.Helper()
	conf := `router id 10.7.0.1;
protocol device { }
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { export where source != RTS_DEVICE; }; merge paths on; }
protocol kernel { ipv6 { export where source != RTS_DEVICE; }; merge paths on; }
`
	for i := range s.balancers {
		if _, err := os.Stat(s.file(i)); err != nil {
			continue
		}
		out, err := exec.Command(s.bin, "bird", s.file(i)).CombinedOutput()
		require.NoErrorf(t, err, "%s", out)
		conf += strings.ReplaceAll(string(out), "…", sitePassword)
	}
	name := filepath.Join(s.dir, "bird.conf")
	require.NoError(t, os.WriteFile(name, []byte(conf), 0o600))
	bird := testenv.NeedServers(t, "bird")[0]
	s.start(t, s.router, bird, "-f", "-c", name, "-s", filepath.Join(s.dir, "ctl"), "-P", filepath.Join(s.dir, "pid"))
}

// birdSays is what the router knows of its sessions and routes.
func (s *site) birdSays(t *testing.T) (text string) {
	for _, what := range []string{"show protocols", "show route all", "show route export kernel1"} {
		out, err := exec.Command(testenv.NeedServers(t, "birdc")[0], "-s", filepath.Join(s.dir, "ctl"), what).CombinedOutput()
		text += fmt.Sprintf("%s: %v\n%s", what, err, out)
	}
	require.NoError(t, s.router.Do(func() error {
		out, err := exec.Command("ip", "route").CombinedOutput()
		text += string(out)
		return err
	}))
	return text
}

// ways counts the next hops of the router's route to a virtual address.
func (s *site) ways(t *testing.T, vip string) (n int) {
	t.Helper()
	family := "-4"
	if strings.Contains(vip, ":") {
		family = "-6"
	}
	var out []byte
	require.NoError(t, s.router.Do(func() (err error) {
		out, err = exec.Command("ip", family, "route", "show", vip).Output()
		return err
	}))
	return strings.Count(string(out), " via ")
}

// await waits until the router has n ways to each of the addresses.
func (s *site) await(t *testing.T, n int, vips ...string) (took time.Duration) {
	t.Helper()
	begun := time.Now()
	for _, v := range vips {
		for s.ways(t, v) != n {
			if time.Since(begun) > time.Minute {
				t.Fatalf("the router has %d ways to %s instead of %d\n%s", s.ways(t, v), v, n, s.birdSays(t))
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return time.Since(begun)
}

// get asks a balancer's status page, from that balancer.
func (s *site) get(t *testing.T, i int, path string, to any) error {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: s.balancers[i].DialContext}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9180"+path, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(to)
}

// counts waits until a balancer counts n usable nodes of three for both families' first address.
func (s *site) counts(t *testing.T, balancer, n int) {
	t.Helper()
	want := fmt.Sprintf("has %d of 3 nodes", n)
	var st status
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		st = status{}
		require.NoError(t, s.get(t, balancer, "/", &st))
		if strings.Contains(st.VIPs[0].Why, want) && strings.Contains(st.VIPs[1].Why, want) {
			return
		}
		require.Lessf(t, time.Since(begun), time.Minute, "balancer %d: %+v instead of %q", balancer, st.VIPs, want)
	}
}

// clients are the client's ends of the connections of which a balancer has a session.
func (s *site) clients(t *testing.T, i int) map[string]string {
	t.Helper()
	var all []sessionStatus
	require.NoError(t, s.get(t, i, "/sessions", &all))
	nodes := map[string]string{}
	for _, x := range all {
		nodes[x.Client] = x.Node
	}
	return nodes
}

// dial connects to a virtual address and reads the name of the server that has accepted.
func (s *site) dial(t *testing.T, vip string, patience time.Duration) (c net.Conn, server string, err error) {
	return s.dialPort(t, vip, "7", patience)
}

func (s *site) dialPort(t *testing.T, vip, port string, patience time.Duration) (c net.Conn, server string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err = s.client.DialContext(ctx, "tcp", net.JoinHostPort(vip, port))
	if err != nil {
		return nil, "", err
	}
	if err = c.SetDeadline(time.Now().Add(patience)); err == nil {
		server, err = line(c)
	}
	if err != nil {
		c.Close()
		return nil, "", err
	}
	return c, server, nil
}

func line(c net.Conn) (string, error) {
	var b []byte
	one := make([]byte, 1)
	for {
		if _, err := io.ReadFull(c, one); err != nil {
			return "", err
		}
		if one[0] == '\n' {
			return string(b), nil
		}
		b = append(b, one[0])
	}
}
