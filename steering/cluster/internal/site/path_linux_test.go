package site

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster"
	"github.com/lbprim/lbprim/steering/intercept"
)

// path is a site whose balancers stand between a client on the LAN and a server on the WAN, with a node on either side:
//
//	client ─┐                ┌─ balancer 1, 2 … ─┐                ┌─ server
//	        ├─ router of the ┤                   ├─ router of the ┤
//	node 1 ─┘      LAN       └────── cable ──────┘      WAN       └─ node 2
//
// Both routers spread flows over the balancers, each by a hash of its own direction, so that the two directions of a connection meet different
// ones. Nodes take packets out of the tunnel, and send them back in it.
type path struct {
	*site
	lan, wan *netns.Namespace
	client   *netns.Namespace
	nodes    [2]*node // by side
}

// Numbers of further cables.
const (
	lanNode   = 12
	wanNode   = 13
	wanBorder = 21 // of the balancers at the WAN's router
	direct    = 30 // between the routers
)

// The kinds of traffic, in the order of the columns of the table, and their ports: the next one is for the node on the WAN side.
var kinds = []struct {
	name string
	port uint16
}{{"optimised", 8080}, {"passed", 2200}, {"udp", 5300}, {"old", 8090}}

// node is a host that sends everything back in the tunnel by which it came, and counts the packets of flows.
type node struct {
	mu   sync.Mutex
	seen map[ends]int
}

// ends are both ends of a flow, in either order: a client uses one port towards several of the server's.
type ends [2]netip.AddrPort

func (n *node) packets(f *flow) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen[f.ends()]
}

// serve takes GRE from a socket, behind the IP header.
func (n *node) serve(p net.PacketConn) {
	b := make([]byte, 70000)
	for {
		k, from, err := p.ReadFrom(b)
		if err != nil {
			return
		}
		if k < 8+20 || binary.BigEndian.Uint16(b) != 0x2000 || binary.BigEndian.Uint32(b[4:]) != nodeKey {
			continue
		}
		n.note(b[8:k])
		_, _ = p.WriteTo(b[:k], from)
	}
}

func (n *node) note(ip []byte) {
	at, l, head := 12, 4, 20
	if ip[0]>>4 == 6 {
		at, l, head = 8, 16, 40
	}
	if len(ip) < head+4 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var e ends
	for i := range e {
		a, _ := netip.AddrFromSlice(ip[at+i*l : at+(i+1)*l])
		e[i] = netip.AddrPortFrom(a, binary.BigEndian.Uint16(ip[head+2*i:]))
	}
	n.seen[e]++
	n.seen[ends{e[1], e[0]}]++
}

func newPath(t *testing.T, topology cluster.Topology, members []cluster.Peer, allow bool) *path {
	testenv.NeedNetns(t)
	s := &path{site: &site{t: t, members: make([]*process, len(members)), conf: memberConfig{Topology: topology, Members: members}}}
	host := func() *netns.Namespace {
		ns, err := netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { ns.Close() })
		return ns
	}
	join := func(a *netns.Namespace, aName string, b *netns.Namespace, bName string, number int) {
		on := func(end int) []netip.Prefix {
			return []netip.Prefix{netip.PrefixFrom(addr(false, number, end), 24), netip.PrefixFrom(addr(true, number, end), 64)}
		}
		require.NoError(t, netns.Join(netns.End{NS: a, Name: aName, Addrs: on(1)}, netns.End{NS: b, Name: bName, Addrs: on(2)}))
	}
	leaf := func(router *netns.Namespace, number int) *netns.Namespace {
		ns := host()
		_ = ns.Sysctl("net.core.txrehash", "0")
		join(router, fmt.Sprintf("r%d", number), ns, "eth0", number)
		require.NoError(t, ns.DefaultVia(addr(false, number, 1), addr(true, number, 1)))
		return ns
	}
	s.lan, s.wan = host(), host()
	for _, r := range []*netns.Namespace{s.lan, s.wan} {
		require.NoError(t, r.Router())
		for _, v := range []string{"4", "6"} {
			require.NoError(t, r.Sysctl("net.ipv"+v+".fib_multipath_hash_policy", "1"))
		}
	}
	join(s.lan, "direct", s.wan, "direct", direct)
	s.client = leaf(s.lan, clientNet)
	for i := range members {
		b := leaf(s.lan, balancerNet+i)
		require.NoError(t, b.Router())
		join(s.wan, fmt.Sprintf("r%d", wanBorder+i), b, "eth1", wanBorder+i)
		for _, option := range []string{"-4", "-6"} {
			for _, dev := range []string{"eth0", "eth1"} {
				s.sh(b, fmt.Sprintf("ip %s rule add iif %s priority 30500 lookup %d", option, dev, goneTable))
			}
			s.sh(b, fmt.Sprintf("ip %s route add blackhole default table %d", option, goneTable))
		}
		for _, v6 := range []bool{false, true} {
			s.sh(b, fmt.Sprintf("ip route add %[1]v via %[3]v; ip route add %[2]v via %[3]v", network(v6, serverNet), network(v6, wanNode), addr(v6, wanBorder+i, 1)))
			s.sh(s.lan, fmt.Sprintf("ip route add %v via %v", own(v6, i), addr(v6, balancerNet+i, 2)))
			s.sh(s.wan, fmt.Sprintf("ip route add %v via %v", own(v6, i), addr(v6, wanBorder+i, 2)))
		}
		s.balancers = append(s.balancers, b)
		s.conf.Join = append(s.conf.Join, s.bind(i))
	}
	server := leaf(s.wan, serverNet)
	s.echo(server)
	s.conf.Path = &pathConfig{Allow: allow}
	for side, number := range []int{lanNode, wanNode} {
		router, v6 := []*netns.Namespace{s.lan, s.wan}[side], side == 1 // tunnels of either family
		ns := leaf(router, number)
		n := &node{seen: map[ends]int{}}
		p, err := ns.ListenPacket(context.Background(), map[bool]string{false: "ip4:47", true: "ip6:47"}[v6], addr(v6, number, 2).String())
		require.NoError(t, err)
		t.Cleanup(func() { p.Close() })
		go n.serve(p)
		s.nodes[side] = n
		name := fmt.Sprint("node", side)
		at := func(kind int) intercept.Ports { return intercept.Port(kinds[kind].port + uint16(side)) }
		x := s.conf.Path
		x.Nodes = append(x.Nodes, intercept.Node{Node: steering.Node{Name: name, Addr: netip.AddrPortFrom(addr(v6, number, 2), 0)}, Side: intercept.Side(side)})
		x.Rules = append(x.Rules, intercept.Rule{Name: name, Match: intercept.Match{DstPort: at(0)}, Targets: []string{name}})
		x.InBy = append(x.InBy, intercept.InPathRule{Name: name, Match: intercept.Match{DstPort: at(1)}, Action: intercept.PassThrough})
		for kind := 1; kind < len(kinds); kind++ {
			x.Rows = append(x.Rows, intercept.Row{Name: kinds[kind].name + name, B: intercept.Endpoint{Ports: at(kind)}, Targets: []string{name}})
		}
	}
	return s
}

func network(v6 bool, number int) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(addr(v6, number, 0), 64)
	}
	return netip.PrefixFrom(addr(v6, number, 0), 24)
}

// echo has a server send everything back.
func (s *path) echo(server *netns.Namespace) {
	for side := range uint16(2) {
		for _, kind := range kinds {
			for _, v6 := range []bool{false, true} {
				at := netip.AddrPortFrom(addr(v6, serverNet, 2), kind.port+side).String()
				if kind.name == "udp" {
					p, err := server.ListenPacket(context.Background(), "udp", at)
					require.NoError(s.t, err)
					s.t.Cleanup(func() { p.Close() })
					go func() {
						b := make([]byte, 2000)
						for {
							n, from, err := p.ReadFrom(b)
							if err != nil {
								return
							}
							_, _ = p.WriteTo(b[:n], from)
						}
					}()
					continue
				}
				l, err := server.Listen(context.Background(), "tcp", at)
				require.NoError(s.t, err)
				testenv.Accept(s.t, l, func(c net.Conn) { _, _ = io.Copy(c, c) })
			}
		}
	}
}

// by has both routers use these balancers, or the cable if there are none.
func (s *path) by(over ...int) {
	s.t.Helper()
	for _, v6 := range []bool{false, true} {
		there, back := "", ""
		for _, i := range over {
			there += fmt.Sprintf(" nexthop via %v", addr(v6, balancerNet+i, 2))
			back += fmt.Sprintf(" nexthop via %v", addr(v6, wanBorder+i, 2))
		}
		if len(over) == 0 {
			there, back = fmt.Sprintf(" via %v", addr(v6, direct, 2)), fmt.Sprintf(" via %v", addr(v6, direct, 1))
		}
		s.sh(s.lan, fmt.Sprintf("ip route replace %v%s", network(v6, serverNet), there))
		s.sh(s.wan, fmt.Sprintf("ip route replace %v%s", network(v6, clientNet), back))
	}
}

// flow is a connection of the client's, or its datagrams.
type flow struct {
	net.Conn
	kind, side int
	v6         bool
}

func (f *flow) String() string {
	return fmt.Sprintf("%s, node on side %d, IPv%d, %v", kinds[f.kind].name, f.side, 4+2*family(f.v6), f.LocalAddr())
}

func (f *flow) ends() (e ends) {
	for i, end := range []net.Addr{f.LocalAddr(), f.RemoteAddr()} {
		a := netip.MustParseAddrPort(end.String())
		e[i] = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return e
}

// open opens two flows for each kind, side and family: so many that by the routers' hashes each balancer has some.
func (s *path) open(over []int) (fs []*flow) {
	s.t.Helper()
	dial := func(kind int) {
		for i := range 8 {
			f := &flow{kind: kind, side: i % 2, v6: i/2%2 == 1}
			proto := "tcp"
			if kinds[kind].name == "udp" {
				proto = "udp"
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			c, err := s.client.DialContext(ctx, proto, netip.AddrPortFrom(addr(f.v6, serverNet, 2), kinds[kind].port+uint16(f.side)).String())
			cancel()
			require.NoError(s.t, err, "%s %d", kinds[kind].name, i)
			s.t.Cleanup(func() { c.Close() })
			f.Conn = c
			fs = append(fs, f)
		}
	}
	s.by() // old connections are those that began before there were balancers in the path
	dial(3)
	s.by(over...)
	for kind := range 3 {
		dial(kind)
	}
	s.exchange(fs)
	return fs
}

// exchange has all flows carry data to and fro: connections some full segments.
func (s *path) exchange(fs []*flow) {
	s.t.Helper()
	errs := make(chan error)
	for _, f := range fs {
		go func() { errs <- f.exchange() }()
	}
	for range fs {
		require.NoError(s.t, <-errs)
	}
}

func (f *flow) exchange() error {
	b := make([]byte, 20000)
	if kinds[f.kind].name == "udp" {
		b = b[:1000]
	}
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	got := make([]byte, len(b))
	if kinds[f.kind].name == "udp" {
		for end := time.Now().Add(patience); ; {
			_ = f.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
			_, _ = f.Write(b)
			n, err := f.Read(got)
			if err == nil && bytes.Equal(got[:n], b) {
				return nil
			}
			if time.Now().After(end) {
				return fmt.Errorf("%v: no answer: %w", f, err)
			}
		}
	}
	_ = f.SetDeadline(time.Now().Add(patience))
	if _, err := f.Write(b); err != nil {
		return fmt.Errorf("%v: %w", f, err)
	}
	if _, err := io.ReadFull(f, got); err != nil {
		return fmt.Errorf("%v: %w", f, err)
	}
	if !bytes.Equal(got, b) {
		return fmt.Errorf("%v: other bytes come back", f)
	}
	return nil
}

// wants are the columns of a line of the table of steering/cluster: what becomes of each kind.
func wants(t *testing.T, topology cluster.Topology, down string, allow bool) (columns []string) {
	t.Helper()
	b, err := os.ReadFile("../../testdata/failures.txt")
	require.NoError(t, err)
	begin := fmt.Sprintf("%-9s %-9s %-5s ", topology, down, map[bool]string{false: "no", true: "yes"}[allow])
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, begin)
		if !ok {
			continue
		}
		for at := range 5 {
			word, _, _ := strings.Cut(strings.Fields(rest[min(19*at, len(rest)):])[0], ",")
			columns = append(columns, word)
		}
		return columns
	}
	t.Fatalf("no line %q", begin)
	return nil
}

// check opens new flows, which shall fare as the table says, and has those that are known go on by their nodes. It returns all of them.
func (s *path) check(down string, over []int, known []*flow) []*flow {
	s.t.Helper()
	want := wants(s.t, s.conf.Topology, down, s.conf.Path.Allow)
	require.Equal(s.t, "continue", want[4])
	fresh := s.open(over)
	for _, f := range fresh {
		got := "bypass"
		if s.nodes[f.side].packets(f) > 0 {
			got = "redirect"
		}
		require.Equal(s.t, want[f.kind], got, "down: %s; %v", down, f)
		require.Zero(s.t, s.nodes[1-f.side].packets(f), "%v: the other node", f)
	}
	before := make([]int, len(known))
	for i, f := range known {
		before[i] = s.nodes[f.side].packets(f)
	}
	s.exchange(known)
	for i, f := range known {
		if before[i] > 0 {
			require.Greater(s.t, s.nodes[f.side].packets(f), before[i], "down: %s; %v goes on by its node", down, f)
		}
	}
	s.t.Logf("%-8v down: %-8s allow: %-5v %s; %d flows go on", s.conf.Topology, down, s.conf.Path.Allow, strings.Join(want[:4], " "), len(known))
	return append(known, fresh...)
}

// TestTopologies: balancers in the path in the four topologies, with nodes on both sides, as the table of steering/cluster has it: by topology, failure and kind of traffic,
// what is redirected, what bypasses and what goes on.
func TestTopologies(t *testing.T) {
	east := []cluster.Peer{{Name: "e1", Pair: "east"}, {Name: "e2", Pair: "east"}}
	quad := slices.Concat(east, []cluster.Peer{{Name: "w1", Pair: "west"}, {Name: "w2", Pair: "west"}})
	for _, c := range []struct {
		topology cluster.Topology
		members  []cluster.Peer
		allow    bool
		steps    string // who fails, how, and the line of the table
	}{
		{cluster.Single, []cluster.Peer{{Name: "e1"}}, false, ""},
		{cluster.Serial, east, false, "1 frozen e2"},
		{cluster.Parallel, []cluster.Peer{{Name: "e1"}, {Name: "w1"}}, false, "1 cut w1"},
		{cluster.Parallel, []cluster.Peer{{Name: "e1"}, {Name: "w1"}}, true, "1 killed w1"},
		{cluster.Quad, quad, false, "2 killed w1 3 frozen w1+w2"},
		{cluster.Quad, quad, true, "1 killed e2 2 frozen e2+w1 3 killed e2+w1+w2"},
	} {
		t.Run(fmt.Sprintf("%v, %v", c.topology, c.allow), func(t *testing.T) {
			t.Parallel()
			s := newPath(t, c.topology, c.members, c.allow)
			for i := range c.members {
				s.start(i)
			}
			up := s.running()
			s.see(up)
			s.state(up, intercept.Steady.String())
			known := s.check("-", up, nil)
			gone := []int{}
			for steps := strings.Fields(c.steps); len(steps) > 0; steps = steps[3:] {
				who := int(steps[0][0] - '0')
				switch steps[1] {
				case "killed":
					s.members[who].kill()
					s.members[who] = nil
				case "frozen":
					s.freeze(who)
				case "cut":
					s.cut(who)
				}
				gone = append(gone, who)
				up = s.running(gone...)
				s.by(up...) // as the links do
				s.see(up)
				state := map[string]string{"e2": "serial-partner-down", "w1": "serial-partner-down", "e2+w1": "serial-partner-down"}[steps[2]]
				if c.topology == cluster.Parallel {
					state = "parallel-peer-down"
				} else if state == "" {
					state = "pair-down"
				}
				s.state(up, state)
				known = s.check(steps[2], up, known)
			}
			for _, i := range up {
				a := s.members[i].look(t)
				require.Zero(t, a.Plane.Resets)
				require.Zero(t, a.Cluster.Malformed+a.Cluster.Refused+a.Cluster.Flows.Conflicts, "%+v", a.Cluster)
				if len(c.members) > 1 {
					require.NotZero(t, a.Plane.Adopted, "flows that came by another one first")
				}
			}
		})
	}
}
