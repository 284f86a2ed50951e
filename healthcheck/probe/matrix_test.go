//go:build linux

package probe_test

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// seen collects in which states each prober has met its real server.
var seen = struct {
	sync.Mutex
	states map[healthcheck.Method]map[string]bool
}{states: map[healthcheck.Method]map[string]bool{}}

const healthy = "healthy"

// met notes that p has judged a real server in a state rightly.
func met(p healthcheck.Prober, state string) {
	m := methodOf(p)
	if state == "" {
		return
	}
	seen.Lock()
	defer seen.Unlock()
	if seen.states[m] == nil {
		seen.states[m] = map[string]bool{}
	}
	seen.states[m][state] = true
}

func methodOf(p healthcheck.Prober) healthcheck.Method {
	switch p := p.(type) {
	case udpProber:
		return methodOf(p.Prober)
	case probe.TCP:
		return healthcheck.TCP
	}
	for m := healthcheck.ICMP; ; m++ {
		zero, ok := probe.For(m)
		if !ok {
			return healthcheck.NoMethod
		}
		if fmt.Sprintf("%T", zero) == fmt.Sprintf("%T", p) {
			return m
		}
	}
}

// TestMain runs the tests, and then wants every method to have met its real server healthy and in two broken states at least. (MMS and PNM,
// for which no server is packaged, meet ones written from the published descriptions.)
func TestMain(m *testing.M) {
	status := m.Run()
	whole := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == "" && os.Getenv("LBPRIM_SERVERS") == "require"
	if status == 0 && whole && !judgeMatrix(os.Stderr) {
		status = 1
	}
	os.Exit(status)
}

// judgeMatrix prints the table of probers and states, and reports whether nothing is missing in it.
func judgeMatrix(w io.Writer) (complete bool) {
	complete = true
	for m := healthcheck.ICMP; ; m++ {
		if _, ok := probe.For(m); !ok {
			return complete
		}
		states := slices.Sorted(maps.Keys(seen.states[m]))
		broken := len(states)
		if seen.states[m][healthy] {
			broken--
		}
		if !seen.states[m][healthy] || broken < 2 {
			complete = false
			fmt.Fprintf(w, "%v: want a healthy server and two broken states; met %s\n", m, strings.Join(states, "; "))
		} else if testing.Verbose() {
			fmt.Fprintf(w, "%-13v %s\n", m, strings.Join(states, "; "))
		}
	}
}

// TestServerLayers234 has the kernels of other hosts for servers: of echo requests, datagrams, and connections.
func TestServerLayers234(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	require.NoError(t, n.router.Sysctl("net.ipv4.icmp_ratemask", "0"))
	require.NoError(t, n.router.Sysctl("net.ipv6.icmp.ratelimit", "0"))
	for _, a := range []string{"10.7.0.1", "[fd07::1]"} {
		tcp, udp := a+":8000", a+":8001"
		l, err := n.router.Listen(t.Context(), "tcp", tcp)
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		echoUDP(t, n.router, udp)
		probers := map[string][]healthcheck.Prober{
			tcp: {probe.TCP{}, probe.TCPHalfOpen{}}, udp: {probe.UDP{Wait: 20 * time.Second, Datagrams: 1}}, a + ":0": {probe.ICMP{Attempts: 1}},
		}
		judge := func(want healthcheck.Verdict, state string, addr string, d time.Duration) {
			for _, p := range probers[addr] {
				at := addr
				if state == "refuses" {
					at = strings.Replace(addr, ":800", ":900", 1)
				}
				for _, way := range both(t, p) {
					res := probeIn(t, n.host, way, at, d)
					require.Equal(t, want, res.Verdict, "%T %s %s: %v", p, at, state, res.Err)
				}
				met(p, state)
			}
		}
		for addr := range probers {
			judge(healthcheck.Pass, healthy, addr, 20*time.Second)
		}
		judge(healthcheck.Fail, "refuses", tcp, 20*time.Second)
		judge(healthcheck.Fail, "refuses", udp, 20*time.Second)
		speak := muffle(t, n.router)
		judge(healthcheck.Fail, "silent", tcp, 300*time.Millisecond)
		judge(healthcheck.Fail, "silent", a+":0", 300*time.Millisecond)
		for _, p := range []probe.UDP{{Expect: []byte("x")}} {
			res := probeIn(t, n.host, p, udp, 300*time.Millisecond)
			require.Equal(t, healthcheck.Fail, res.Verdict)
			met(p, "silent, though an answer is expected")
		}
		speak()
		for addr := range probers {
			judge(healthcheck.Pass, healthy, addr, 20*time.Second)
		}
	}
	// A router in between says that there is no such host. (TestRouterSaysUnreachable has more of that.)
	require.NoError(t, n.host.DefaultVia(netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("fd07::1")))
	require.NoError(t, n.router.Sysctl("net.ipv4.ip_forward", "1"))
	require.NoError(t, n.router.Sysctl("net.ipv6.conf.all.forwarding", "1"))
	for _, p := range []healthcheck.Prober{probe.TCP{}, probe.TCPHalfOpen{}, probe.UDP{}, probe.ICMP{Every: 50 * time.Millisecond, Attempts: 40}} {
		for _, addr := range []string{"203.0.113.1:80", "[2001:db8::1]:80"} {
			res := probeIn(t, n.host, p, addr, 20*time.Second)
			require.Equal(t, healthcheck.Fail, res.Verdict, "%T %s: %v", p, addr, res.Err)
		}
		met(p, "unreachable")
	}
}

// echoUDP sends datagrams back until the test ends.
func echoUDP(t *testing.T, n *netns.Namespace, addr string) {
	t.Helper()
	c, err := n.ListenPacket(t.Context(), "udp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 2048)
		for {
			k, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			c.WriteTo(b[:k], from)
		}
	}()
}

// muffle has a host drop all that comes, until it is called.
func muffle(t *testing.T, n *netns.Namespace) (undo func()) {
	t.Helper()
	nft := testenv.NeedServers(t, "nft")[0]
	run := func(script string) {
		require.NoError(t, n.Do(func() error {
			if out, err := exec.Command(nft, script).CombinedOutput(); err != nil {
				return fmt.Errorf("nft %v: %w: %s", script, err, out)
			}
			return nil
		}))
	}
	// Neighbours are still to be found.
	run("add table inet silent ; add chain inet silent in { type filter hook input priority 0 ; } ; add rule inet silent in icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept ; add rule inet silent in drop")
	return sync.OnceFunc(func() { run("delete table inet silent") })
}

// TestServerAgent has a program answer as HAProxy's agents do.
func TestServerAgent(t *testing.T) {
	t.Parallel()
	bins := testenv.NeedServers(t, "printf", "sleep")
	say := func(text string) func() *exec.Cmd {
		return func() *exec.Cmd { return exec.Command(bins[0], text) }
	}
	inetdLifecycle(t, probe.Agent{}, say("up 75%%\\n"))
	for text, why := range map[string]string{"down # disk full\\n": "agent says down: disk full", "fine\\n": `got "fine"`, "": "connection closed"} {
		addr, _ := inetd(t, say(text))
		fails(t, probe.Agent{}, addr, why)
	}
}

// TestServerCommand has real programs tell.
func TestServerCommand(t *testing.T) {
	t.Parallel()
	bins := testenv.NeedServers(t, "true", "false", "sleep")
	run := func(d time.Duration, bin string, args ...string) healthcheck.Result {
		return probeAt(probe.Command{Path: bin, Args: args}, target, d)
	}
	require.Equal(t, healthcheck.Pass, run(20*time.Second, bins[0]).Verdict)
	met(probe.Command{}, healthy)
	require.Equal(t, healthcheck.Fail, run(20*time.Second, bins[1]).Verdict)
	met(probe.Command{}, "exit status 1")
	require.Equal(t, healthcheck.Fail, run(short, bins[2], "60").Verdict)
	met(probe.Command{}, "hangs")
	require.Equal(t, healthcheck.Inconclusive, run(20*time.Second, "/nonexistent").Verdict)
	met(probe.Command{}, "is not there")
}
