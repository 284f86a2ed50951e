package site

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/steering/cluster"
)

// patience is for how long a condition may take. What is waited for comes in seconds, unless the machine is busy.
const patience = time.Minute

// site is a client, servers and balancers around a router, a namespace each:
//
//	client ─ router ─┬─ balancer 1, 2 …
//	                 └─ server 1, 2, 3
//
// The router spreads what clients send to the virtual addresses over the balancers, and also what servers send, by the hash of
// addresses and ports.
type site struct {
	t              *testing.T
	client, router *netns.Namespace
	balancers      []*netns.Namespace
	servers        []*netns.Namespace
	members        []*process // nil: not running
	conf           memberConfig
}

// Numbers of the cables at the router: network 10.8.N.0/24 and fd08:N::/64, the router being 1 and the other end 2.
const (
	clientNet   = 0
	balancerNet = 1
	serverNet   = 11
	ownNet      = 40  // the balancers' addresses for tunnels
	answerTable = 100 // of the router: for what servers send
	goneTable   = 101 // of a balancer: for what its program does not take
)

func addr(v6 bool, net, end int) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd08:%d::%d", net, end))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.8.%d.%d", net, end))
}

func newSite(t *testing.T, topology cluster.Topology, members []cluster.Peer, forward dataplane.Forward) *site {
	testenv.NeedNetns(t)
	s := &site{t: t, members: make([]*process, len(members)), conf: memberConfig{
		Topology: topology, Members: members, Forward: forward,
	}}
	host := func(number int) *netns.Namespace {
		ns, err := netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { ns.Close() })
		if s.router == nil {
			return ns
		}
		// The router hashes addresses and ports, as others do; what these kernels hash instead, since packets do not leave the machine, changes
		// with every retransmission. (Kernels before 5.18 cannot be told otherwise.)
		_ = ns.Sysctl("net.core.txrehash", "0")
		on := func(end int) []netip.Prefix {
			return []netip.Prefix{netip.PrefixFrom(addr(false, number, end), 24), netip.PrefixFrom(addr(true, number, end), 64)}
		}
		require.NoError(t, netns.Join(netns.End{NS: ns, Name: "eth0", Addrs: on(2)}, netns.End{NS: s.router, Name: fmt.Sprintf("r%d", number), Addrs: on(1)}))
		require.NoError(t, ns.DefaultVia(addr(false, number, 1), addr(true, number, 1)))
		return ns
	}
	s.router = host(-1)
	require.NoError(t, s.router.Router())
	for _, v := range []string{"4", "6"} {
		require.NoError(t, s.router.Sysctl("net.ipv"+v+".fib_multipath_hash_policy", "1"))
	}
	s.client = host(clientNet)
	for i := range members {
		b := host(balancerNet + i)
		require.NoError(t, b.Router())
		// A host whose balancer is gone must not forward what comes for it: a client that gets its server's answers untranslated resets the connection.
		for _, option := range []string{"-4", "-6"} {
			s.sh(b, fmt.Sprintf("ip %s route add blackhole default table %d; ip %s rule add iif eth0 priority 30500 lookup %d", option, goneTable, option, goneTable))
		}
		for _, v6 := range []bool{false, true} {
			s.sh(s.router, fmt.Sprintf("ip route add %v via %v", own(v6, i), addr(v6, balancerNet+i, 2)))
		}
		s.balancers = append(s.balancers, b)
		s.conf.Join = append(s.conf.Join, s.bind(i))
	}
	for i := range 3 {
		srv := host(serverNet + i)
		s.servers = append(s.servers, srv)
		for _, v6 := range []bool{false, true} {
			s.conf.Nodes[family(v6)] = append(s.conf.Nodes[family(v6)], addr(v6, serverNet+i, 2))
		}
		s.sh(s.router, fmt.Sprintf("ip -4 rule add iif r%[1]d lookup %[2]d; ip -6 rule add iif r%[1]d lookup %[2]d", serverNet+i, answerTable))
		s.serve(i)
	}
	return s
}

// own is the address of a balancer for tunnels.
func own(v6 bool, i int) netip.Addr { return addr(v6, ownNet, 1+i) }

// bind is where a balancer's cluster port is.
func (s *site) bind(i int) netip.AddrPort {
	return netip.AddrPortFrom(addr(false, balancerNet+i, 2), 7946)
}

// sh runs a script in a namespace.
func (s *site) sh(ns *netns.Namespace, script string) {
	s.t.Helper()
	require.NoError(s.t, ns.Do(func() error {
		if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return nil
	}))
}

// serve has a server say its number, and answer each message of a client's with that and the message.
func (s *site) serve(i int) {
	for _, v6 := range []bool{false, true} {
		l, err := s.servers[i].Listen(context.Background(), "tcp", netip.AddrPortFrom(addr(v6, serverNet+i, 2), port).String())
		require.NoError(s.t, err)
		testenv.Accept(s.t, l, func(c net.Conn) { reply(c, byte(i)) })
	}
}

// start starts a balancer and waits until it is ready.
func (s *site) start(i int) {
	s.t.Helper()
	conf := s.conf
	conf.Node, conf.Bind = s.name(i), s.bind(i)
	conf.Own = []netip.Addr{own(false, i), own(true, i)}
	text, err := json.Marshal(conf)
	require.NoError(s.t, err)
	exe, err := os.Executable()
	require.NoError(s.t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), child+"="+string(text), "GOMAXPROCS=2", "GOGC=200")
	p := &process{name: conf.Node, answers: make(chan answer, 1), ready: make(chan struct{})}
	p.stdin, err = cmd.StdinPipe()
	require.NoError(s.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(s.t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(s.t, s.balancers[i].Do(cmd.Start))
	p.signal = func(sig os.Signal) error { return cmd.Process.Signal(sig) }
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.read(out)
		_ = cmd.Wait()
	}()
	p.kill = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	s.members[i] = p
	s.t.Cleanup(func() {
		p.kill()
		if p.mu.Lock(); s.t.Failed() && p.log.Len() > 0 {
			s.t.Logf("%s:\n%s", p.name, p.log.String())
		}
		p.mu.Unlock()
	})
	select {
	case <-p.ready:
	case <-ended:
		s.t.Fatalf("%s has ended: %s", p.name, p.log.String())
	case <-time.After(patience):
		s.t.Fatalf("%s does not become ready", p.name)
	}
}

func (s *site) name(i int) string { return s.conf.Members[i].Name }

// running are the numbers of the members that run, without some.
func (s *site) running(without ...int) (is []int) {
	for i, m := range s.members {
		if m != nil && !slices.Contains(without, i) {
			is = append(is, i)
		}
	}
	return is
}

// spread has the router use these balancers alone.
func (s *site) spread(over []int) {
	s.t.Helper()
	var script strings.Builder
	for _, v6 := range []bool{false, true} {
		hops := ""
		for _, i := range over {
			hops += fmt.Sprintf(" nexthop via %v", addr(v6, balancerNet+i, 2))
		}
		option := []string{"-4", "-6"}[family(v6)]
		fmt.Fprintf(&script, "ip %s route replace %v%s\nip %s route replace default table %d%s\n", option, vip(v6), hops, option, answerTable, hops)
	}
	s.sh(s.router, script.String())
}

// until waits for a condition.
func (s *site) until(what string, ok func() bool) (took time.Duration) {
	s.t.Helper()
	begun := time.Now()
	for !ok() {
		if time.Since(begun) > patience {
			for _, i := range s.running() {
				m, state, _ := s.members[i].says()
				s.t.Logf("%s sees %s, %s", s.name(i), m, state)
			}
			s.t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(begun)
}

// see waits until those of who agree that they, and nobody else, are the members, and returns when the last one said so.
func (s *site) see(who []int) (last time.Time) {
	s.t.Helper()
	var names []string
	for _, i := range who {
		names = append(names, s.name(i))
	}
	want := strings.Join(names, " ")
	s.until("everybody sees "+want, func() bool {
		last = time.Time{}
		for _, i := range who {
			members, _, since := s.members[i].says()
			if members != want {
				return false
			}
			if since.After(last) {
				last = since
			}
		}
		return true
	})
	return last
}

// state waits until members say what that means.
func (s *site) state(who []int, want string) {
	s.t.Helper()
	for _, i := range who {
		s.until(s.name(i)+" is "+want, func() bool {
			_, state, _ := s.members[i].says()
			return state == want
		})
	}
}

// agree waits until members know as many flows: two of each connection, as its client and as its server know it.
func (s *site) agree(who []int, conns int) {
	s.t.Helper()
	s.until(fmt.Sprintf("all know %d flows", 2*conns), func() bool {
		for _, i := range who {
			if s.members[i].look(s.t).Cluster.Flows.Flows != 2*conns {
				return false
			}
		}
		return true
	})
}

// nodes wants every member to have given each connection to the server that has it.
func (s *site) nodes(who []int, talkers []*talker) {
	s.t.Helper()
	want := map[string]string{}
	for _, k := range talkers {
		want[k.client] = fmt.Sprintf("server%d", k.server)
	}
	seen := map[string]bool{}
	for _, i := range who {
		a := s.members[i].look(s.t)
		for client, node := range a.Sessions {
			require.Equal(s.t, want[client], node, "%s has %s at another node", s.name(i), client)
			seen[client] = true
		}
		require.Zero(s.t, a.Duplicate)
		require.Zero(s.t, a.Plane.Resets, "%s", s.name(i))
		require.Zero(s.t, a.Cluster.Malformed+a.Cluster.Refused+a.Cluster.Flows.Conflicts, "%s: %+v", s.name(i), a.Cluster)
	}
	require.Len(s.t, seen, len(want), "some member has each")
}

// freeze and thaw stop a member as debuggers do, with everything it has.
func (s *site) freeze(i int) { require.NoError(s.t, s.members[i].signal(syscall.SIGSTOP)) }
func (s *site) thaw(i int)   { require.NoError(s.t, s.members[i].signal(syscall.SIGCONT)) }

// cut has a member and the others lose what they send each other; mend ends that.
func (s *site) cut(i int)  { s.between(i, "add") }
func (s *site) mend(i int) { s.between(i, "del") }

func (s *site) between(i int, what string) {
	for j := range s.balancers {
		if j != i {
			s.sh(s.balancers[i], fmt.Sprintf("ip route %s blackhole %v/32", what, addr(false, balancerNet+j, 2)))
			s.sh(s.balancers[j], fmt.Sprintf("ip route %s blackhole %v/32", what, addr(false, balancerNet+i, 2)))
		}
	}
}

// open opens n connections, of both families in turn.
func (s *site) open(n int) (talkers []*talker) {
	s.t.Helper()
	type result struct {
		k   *talker
		err error
	}
	results, room := make(chan result), make(chan struct{}, 16)
	for i := range n {
		go func() {
			room <- struct{}{}
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			c, err := s.client.DialContext(ctx, "tcp", netip.AddrPortFrom(vip(i%2 == 1), port).String())
			if err != nil {
				results <- result{nil, err}
				return
			}
			k, err := newTalker(c)
			results <- result{k, err}
		}()
	}
	for range n {
		r := <-results
		require.NoError(s.t, r.err)
		talkers = append(talkers, r.k)
		s.t.Cleanup(func() { r.k.stop() })
	}
	return talkers
}

// all waits until every connection has carried some more messages since now, and none has broken.
func (s *site) all(talkers []*talker, more int) {
	s.t.Helper()
	marks := make([]int, len(talkers))
	for i, k := range talkers {
		marks[i], _ = k.progress()
	}
	s.until("every connection goes on", func() bool {
		for i, k := range talkers {
			n, err := k.progress()
			if err != nil {
				s.explain(k)
			}
			require.NoErrorf(s.t, err, "%s at server %d, after %d messages", k.client, k.server, n)
			if n < marks[i]+more {
				return false
			}
		}
		return true
	})
}

// explain logs what members know of a connection.
func (s *site) explain(k *talker) {
	for _, i := range s.running() {
		a := s.members[i].look(s.t)
		node := a.Sessions[k.client]
		a.Sessions = nil
		s.t.Logf("%s has %s at %q: %+v", s.name(i), k.client, node, a)
	}
}
