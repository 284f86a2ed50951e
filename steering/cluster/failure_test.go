//go:build unix

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering/cluster"
	"github.com/lbprim/lbprim/steering/intercept"
)

// child says that this process is a member of its own, and how it is configured.
const child = "LBPRIM_CLUSTER_CHILD"

// TestMain lets the test binary be a member that can be killed and frozen.
func TestMain(m *testing.M) {
	if text := os.Getenv(child); text != "" {
		os.Exit(beMember(text))
	}
	os.Exit(m.Run())
}

type childConfig struct {
	Node     string
	Join     []netip.AddrPort
	Topology cluster.Topology
	Members  []cluster.Peer
	Flows    int
}

func (c *childConfig) config() *cluster.Config {
	return &cluster.Config{
		Name: "failures", Node: c.Node, Join: c.Join, Bind: netip.MustParseAddrPort("127.0.0.1:0"), Keys: [][]byte{[]byte("a key for tests, not for use")},
		Topology: c.Topology, Members: c.Members,
	}
}

func testFlow(node string, i int) (a, b netip.AddrPort) {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, node[len(node)-1], byte(i >> 8), byte(i)}), 4711), netip.MustParseAddrPort("192.0.2.1:443")
}

// beMember announces flows, says where it is, and lives until its parent is gone.
func beMember(text string) int {
	var conf childConfig
	if err := json.Unmarshal([]byte(text), &conf); err != nil {
		return 3
	}
	c, err := cluster.New(conf.config())
	if err != nil {
		return 4
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(ctx) })
	for i := range conf.Flows {
		a, b := testFlow(conf.Node, i)
		c.Announce(6, a, b, "sh1", "")
	}
	fmt.Println(c.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	wg.Wait()
	return 0
}

// startChild starts a member in a process of its own.
func startChild(t *testing.T, conf childConfig) (cmd *exec.Cmd, addr netip.AddrPort) {
	t.Helper()
	text, err := json.Marshal(conf)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), child+"="+string(text))
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		stdin.Close()
		_ = cmd.Wait()
	})
	var line string
	_, err = fmt.Fscanln(out, &line)
	require.NoError(t, err)
	return cmd, netip.MustParseAddrPort(line)
}

// watch tells when the number of members changes.
type watch struct {
	mu     sync.Mutex
	up     []string
	at     time.Time
	states []intercept.ClusterState
}

func (w *watch) members(up []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up, w.at = up, time.Now()
}

func (w *watch) state(s intercept.ClusterState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states = append(w.states, s)
}

func (w *watch) sees(t *testing.T, up ...string) time.Time {
	t.Helper()
	var at time.Time
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		at = w.at
		return slices.Equal(up, w.up)
	}, time.Minute, 5*time.Millisecond, "members %v", up)
	return at
}

// TestFailures kills a member (SIGKILL), freezes one (SIGSTOP) and thaws it, in clusters of two and four: within 4 s of
// undisturbed running the others know; their state is what the topology makes of it; the flows are still known; and
// who thaws agrees again.
func TestFailures(t *testing.T) {
	serial := []cluster.Peer{{Name: "lb1", Pair: "p"}, {Name: "lb2", Pair: "p"}}
	quad := append(slices.Clone(serial), cluster.Peer{Name: "lb3", Pair: "q"}, cluster.Peer{Name: "lb4", Pair: "q"})
	for _, c := range []struct {
		topology cluster.Topology
		members  []cluster.Peer
		want     intercept.ClusterState
	}{
		{cluster.Serial, serial, intercept.SerialPartnerDown},
		{cluster.Parallel, []cluster.Peer{{Name: "lb1"}, {Name: "lb2"}}, intercept.ParallelPeerDown},
		{cluster.Quad, quad, intercept.SerialPartnerDown},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			t.Run(fmt.Sprintf("%s, %v", c.topology, sig), func(t *testing.T) {
				w := &watch{}
				conf := (&childConfig{Node: "lb1", Topology: c.topology, Members: c.members}).config()
				conf.OnMembers, conf.OnState = w.members, w.state
				me, err := cluster.New(conf)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(context.Background())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer cancel()
				wg.Go(func() { _ = me.Run(ctx) })
				const flows = 200
				names := []string{"lb1"}
				var last *exec.Cmd
				for _, m := range c.members[1:] {
					last, _ = startChild(t, childConfig{m.Name, []netip.AddrPort{me.Addr()}, c.topology, c.members, flows})
					names = append(names, m.Name)
				}
				w.sees(t, names...)
				total := flows * (len(names) - 1)
				require.Eventually(t, func() bool { return me.Stats().Flows.Flows == total }, time.Minute, 5*time.Millisecond)
				require.Equal(t, intercept.Steady, me.State())

				start := time.Now()
				require.NoError(t, last.Process.Signal(sig))
				at := w.sees(t, names[:len(names)-1]...)
				t.Logf("noticed after %v", at.Sub(start).Round(10*time.Millisecond))
				// On an idle machine that is less than 4 s; CI's may be anything but idle.
				require.Less(t, at.Sub(start), 20*time.Second)
				require.Equal(t, c.want, me.State())
				require.Equal(t, total, me.Stats().Flows.Flows, "its flows are still known")
				if sig == syscall.SIGKILL {
					return
				}
				require.NoError(t, last.Process.Signal(syscall.SIGCONT))
				w.sees(t, names...)
				require.Equal(t, intercept.Steady, me.State())
				require.Eventually(t, func() bool {
					s := me.Stats().Flows
					return s.Flows == total && s.Own == 0
				}, time.Minute, 5*time.Millisecond)
			})
		}
	}
}
