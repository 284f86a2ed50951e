package cluster

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/intercept"
)

const patience = 60 * time.Second

func testKey(n byte) []byte { return bytes.Repeat([]byte{n}, 32) }

// A running Cluster of a test.
type running struct {
	*Cluster
	t      testing.TB
	cancel context.CancelFunc
	ended  chan error
}

func (r *running) stop() {
	r.cancel()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.t.Error("Run did not end")
	}
}

func launch(t testing.TB, cfg Config, versions ...uint8) *running {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "test"
	}
	if !cfg.Bind.IsValid() {
		cfg.Bind = netip.MustParseAddrPort("127.0.0.1:0")
	}
	if cfg.Keys == nil && !cfg.Insecure {
		cfg.Keys = [][]byte{testKey(1)}
	}
	if versions == nil {
		versions = []uint8{oldestVersion, newestVersion}
	}
	c, err := newCluster(&cfg, versions[0], versions[1])
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{c, t, cancel, make(chan error, 1)}
	go func() { r.ended <- c.Run(ctx); close(r.ended) }()
	t.Cleanup(r.stop)
	return r
}

func names(n int) (ns []string) {
	for i := range n {
		ns = append(ns, fmt.Sprintf("lb%d", i))
	}
	return ns
}

func launchMany(t testing.TB, n int, cfg Config) (rs []*running) {
	t.Helper()
	for i, name := range names(n) {
		c := cfg
		c.Node = name
		if i > 0 {
			c.Join = []netip.AddrPort{rs[0].Addr()}
		}
		rs = append(rs, launch(t, c))
	}
	for _, r := range rs {
		r.sees(names(n)...)
	}
	return rs
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *running) sees(up ...string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%s sees %v", r.cfg.Node, up), func() bool { return slices.Equal(r.Members(), up) && len(r.flows.Members()) == len(up) })
}

func ends(i int) (netip.AddrPort, netip.AddrPort) {
	a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
	if i%2 == 1 {
		b := netip.MustParseAddr("2001:db8::").As16()
		b[14], b[15] = byte(i>>8), byte(i)
		return netip.AddrPortFrom(netip.AddrFrom16(b), 4711), netip.MustParseAddrPort("[2001:db8:1::1]:443")
	}
	return netip.AddrPortFrom(a, 4711), netip.MustParseAddrPort("192.0.2.1:443")
}

func (r *running) announce(i int) {
	a, b := ends(i)
	r.Announce(6, a, b, fmt.Sprintf("sh%d", i%3), "web")
}

func (r *running) finds(i int) bool {
	a, b := ends(i)
	v, ok := r.flows.Ask(context.Background(), flowshare.MakeFlow(6, b, a))
	return ok && v == flowshare.Value{Node: fmt.Sprintf("sh%d", i%3), Note: "web"}
}

// TestMembers has members know each other's flows, over real sockets, with keys and without, and say goodbye.
func TestMembers(t *testing.T) {
	for _, insecure := range []bool{false, true} {
		t.Run(fmt.Sprintf("insecure %v", insecure), func(t *testing.T) {
			rs := launchMany(t, 3, Config{Insecure: insecure})
			for i := range 300 {
				rs[i%3].announce(i)
			}
			for _, r := range rs {
				eventually(t, "all flows", func() bool { return r.Stats().Flows.Flows == 300 })
				require.True(t, r.finds(7))
			}
			a, b := ends(0)
			rs[0].Withdraw(6, a, b)
			eventually(t, "one less", func() bool { return rs[2].Stats().Flows.Flows == 299 })

			// A fourth gets all there is.
			late := launch(t, Config{Node: "lb9", Join: []netip.AddrPort{rs[1].Addr()}, Insecure: insecure})
			eventually(t, "full state for a joiner", func() bool { return late.Stats().Flows.Flows == 299 })

			require.NoError(t, rs[0].Leave(context.Background()))
			require.NoError(t, <-rs[0].ended)
			late.sees("lb1", "lb2", "lb9")
			require.True(t, late.finds(3), "its flows are still known")
			for _, r := range append(rs[1:], late) {
				s := r.Stats()
				require.Zero(t, s.Malformed)
				require.Zero(t, s.Refused)
			}
		})
	}
}

// TestStrangers: with another key or another name of the cluster nobody gets in.
func TestStrangers(t *testing.T) {
	r := launch(t, Config{Node: "lb0", Keys: [][]byte{testKey(1), testKey(2)}})
	join := []netip.AddrPort{r.Addr()}
	old := launch(t, Config{Node: "old-key", Keys: [][]byte{testKey(3)}, Join: join})
	eventually(t, "the other key is refused", func() bool { return r.Stats().GossipRefused > 0 })
	before := r.Stats().GossipRefused
	other := launch(t, Config{Node: "other-cluster", Name: "other", Join: join})
	eventually(t, "the other name is refused", func() bool { return r.Stats().GossipRefused > before })
	before = r.Stats().GossipRefused
	plain := launch(t, Config{Node: "plain", Insecure: true, Join: join})
	eventually(t, "no key is refused", func() bool { return r.Stats().GossipRefused > before })
	// The key is being changed: this one has the next one.
	next := launch(t, Config{Node: "next-key", Keys: [][]byte{testKey(2), testKey(1)}, Join: join})
	next.sees("lb0", "next-key")
	next.announce(1)
	eventually(t, "a flow", func() bool { return r.finds(1) })
	for _, s := range []*running{old, other, plain} {
		require.Len(t, s.Members(), 1, "%s", s.cfg.Node)
	}
	require.Equal(t, []string{"lb0", "next-key"}, r.Members())
}

// TestStreamsRefuse talks to a member's port as one who has no key, the wrong key, or is somebody else.
func TestStreamsRefuse(t *testing.T) {
	r := launch(t, Config{Node: "lb0"})
	liar := launch(t, Config{Node: "lb1", Keys: [][]byte{testKey(9)}})
	to := liar.newLink(liar.running, r.self, r.Addr().String(), classFlows)
	to.send([]byte("hello"), false)
	eventually(t, "another key", func() bool { return r.Stats().Refused > 0 && liar.Stats().Broken > 0 })
	n := r.Stats().Refused
	to.cancel()

	for _, h := range []func() (cluster string, to flowshare.Member){
		func() (string, flowshare.Member) { return "test", flowshare.Member{Name: "lb0", Epoch: 1} },
		func() (string, flowshare.Member) { return "another", r.self },
	} {
		friend, err := newCluster(&Config{Name: "test", Node: "lb2", Keys: [][]byte{testKey(1)}, Bind: netip.MustParseAddrPort("127.0.0.1:0")}, 1, 1)
		require.NoError(t, err)
		defer friend.Close()
		name, member := h()
		l := &link{c: friend, to: member, addr: r.Addr().String()}
		friend.cfg.Name = name
		if name == "test" {
			_, err = l.open(context.Background())
			require.ErrorContains(t, err, "another member")
		} else {
			_, err = l.open(context.Background()) // the key of the name "test": it gets to the hello
			require.ErrorContains(t, err, "another cluster")
		}
		eventually(t, "refused", func() bool { return r.Stats().Refused > n })
		n = r.Stats().Refused
	}
}

// TestReplay: without TLS a frame that comes twice, or out of order, ends the stream.
func TestReplay(t *testing.T) {
	r := launch(t, Config{Node: "lb0", Insecure: true})
	l := &link{c: r.Cluster, to: r.self, addr: r.Addr().String()}
	r2, err := newCluster(&Config{Name: "test", Node: "lb1", Insecure: true, Bind: netip.MustParseAddrPort("127.0.0.1:0")}, 1, 1)
	require.NoError(t, err)
	defer r2.Close()
	l.c = r2
	r.mu.Lock()
	r.members["lb1"] = &member{meta: meta{epoch: r2.self.Epoch}, name: "lb1"}
	r.mu.Unlock()
	for _, frames := range [][]byte{
		{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1},             // the second without a first
		{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},                // empty
		{255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},              // oversized
		{0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 'b', 'a', 'd'}, // malformed
	} {
		before := r.Stats().Malformed
		conn, err := l.open(context.Background())
		require.NoError(t, err)
		_, err = conn.Write(frames)
		require.NoError(t, err)
		eventually(t, "counted", func() bool { return r.Stats().Malformed == before+1 })
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err, "the stream is closed")
		conn.Close()
	}
}

// TestVersions: members that have a version in common talk, others do not get in.
func TestVersions(t *testing.T) {
	a := launch(t, Config{Node: "lb0"}, 1, 2)
	b := launch(t, Config{Node: "lb1", Join: []netip.AddrPort{a.Addr()}}, 2, 3)
	a.sees("lb0", "lb1")
	b.announce(1)
	eventually(t, "they talk", func() bool { return a.finds(1) })
	c := launch(t, Config{Node: "lb2", Join: []netip.AddrPort{a.Addr()}}, 3, 3)
	eventually(t, "refused", func() bool { return a.Stats().Refused+a.Stats().GossipRefused > 0 })
	require.Equal(t, []string{"lb0", "lb1"}, a.Members())
	require.NotContains(t, c.Members(), "lb0")
}

// TestMismatch: both sides hear what differs, with both values, until it no longer does.
func TestMismatch(t *testing.T) {
	var mu sync.Mutex
	told := map[string][]Mismatch{}
	tell := func(node string) func(Mismatch) {
		return func(m Mismatch) {
			mu.Lock()
			defer mu.Unlock()
			told[node] = append(told[node], m)
		}
	}
	var logged bytes.Buffer
	var logMu sync.Mutex
	logger := slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		logMu.Lock()
		defer logMu.Unlock()
		return logged.Write(b)
	}), nil))
	base := map[string]string{"rule 1": "redirect", "rule 2": "pass"}
	a := launch(t, Config{Node: "lb0", Settings: base, Advisory: map[string]string{"row": "10.0.0.0/8"}, OnMismatch: tell("lb0"), Logger: logger})
	b := launch(t, Config{Node: "lb1", Settings: map[string]string{"rule 1": "deny", "rule 3": "x"}, Advisory: map[string]string{"row": "10.0.0.0/9"},
		OnMismatch: tell("lb1"), Join: []netip.AddrPort{a.Addr()}, AllowFailure: true})
	want := []Mismatch{
		{"lb1", "cluster.allow-failure", "false", "true", false}, {"lb1", "row", "10.0.0.0/8", "10.0.0.0/9", true},
		{"lb1", "rule 1", "redirect", "deny", false}, {"lb1", "rule 2", "pass", "", false}, {"lb1", "rule 3", "", "x", false},
	}
	eventually(t, "lb0 is told", func() bool { return slices.Equal(want, a.Mismatches()) })
	eventually(t, "lb1 is told", func() bool { return len(b.Mismatches()) == len(want) })
	require.Contains(t, b.Mismatches(), Mismatch{"lb0", "rule 1", "deny", "redirect", false})
	require.Equal(t, `warning: row is "10.0.0.0/8" here and "10.0.0.0/9" at lb1`, want[1].String())
	b.cfg.AllowFailure = false
	require.NoError(t, b.SetSettings(base, map[string]string{"row": "10.0.0.0/8"}))
	eventually(t, "they agree", func() bool { return len(a.Mismatches()) == 0 && len(b.Mismatches()) == 0 })
	eventually(t, "each difference is told once", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told["lb0"]) == len(want) && len(told["lb1"]) == len(want)
	})
	logMu.Lock()
	require.Equal(t, len(want), strings.Count(logged.String(), "configuration differs"))
	logMu.Unlock()
	require.Error(t, a.SetSettings(map[string]string{"x": strings.Repeat("x", maxSettings)}, nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestNodes: pressure and health reach everybody, also who comes later.
func TestNodes(t *testing.T) {
	var mu sync.Mutex
	var heard []NodeReport
	rs := launchMany(t, 3, Config{OnNode: func(member string, r NodeReport) {
		mu.Lock()
		defer mu.Unlock()
		if member == "lb0" {
			heard = append(heard, r)
		}
	}})
	report := NodeReport{Node: "sh1", Up: true, Pressure: steering.High}
	require.NoError(t, rs[0].SetNode(report))
	require.NoError(t, rs[1].SetNode(NodeReport{Node: "sh1"}))
	want := []MemberReport{{"lb0", report}, {"lb1", NodeReport{Node: "sh1"}}}
	for _, r := range rs {
		eventually(t, "both reports", func() bool { return slices.Equal(want, r.Nodes()) })
	}
	report.Pressure = steering.Severe
	require.NoError(t, rs[0].SetNode(report))
	want[0].NodeReport = report
	late := launch(t, Config{Node: "lb9", Join: []netip.AddrPort{rs[1].Addr()}})
	for _, r := range append(rs, late) {
		eventually(t, "the newer report", func() bool { return slices.Equal(want, r.Nodes()) })
	}
	eventually(t, "told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(heard) >= 4
	})
	rs[0].stop()
	eventually(t, "reports of those who are gone count no more", func() bool { return slices.Equal(want[1:], late.Nodes()) })
	require.Error(t, rs[1].SetNode(NodeReport{}))
	require.Error(t, rs[1].SetNode(NodeReport{Node: "x", Pressure: 7}))
}

// TestStates: the table of who is missing and what that means.
func TestStates(t *testing.T) {
	quad := []Peer{{"a1", "a"}, {"a2", "a"}, {"b1", "b"}, {"b2", "b"}}
	serial := quad[:2]
	parallel := []Peer{{"a1", ""}, {"b1", ""}, {"c1", ""}}
	for _, c := range []struct {
		members []Peer
		down    string
		want    intercept.ClusterState
	}{
		{nil, "", intercept.Steady},
		{serial, "", intercept.Steady}, {serial, "a2", intercept.SerialPartnerDown},
		{parallel, "", intercept.Steady}, {parallel, "b1", intercept.ParallelPeerDown}, {parallel, "b1 c1", intercept.ParallelPeerDown},
		{quad, "", intercept.Steady}, {quad, "a2", intercept.SerialPartnerDown}, {quad, "b1", intercept.SerialPartnerDown},
		{quad, "a2 b1", intercept.SerialPartnerDown}, {quad, "b1 b2", intercept.PairDown}, {quad, "a2 b1 b2", intercept.PairDown},
	} {
		got := stateOf(c.members, func(name string) bool { return !slices.Contains(strings.Fields(c.down), name) })
		require.Equal(t, c.want, got, "%v without %s", c.members, c.down)
	}
}

func TestConfigFaults(t *testing.T) {
	_, err := New(nil)
	for _, want := range []string{"Name", "Node", "Bind", "Keys"} {
		require.ErrorContains(t, err, "Config."+want)
	}
	_, err = New(&Config{Name: strings.Repeat("x", 65), Node: "a", Bind: netip.MustParseAddrPort("0.0.0.0:1"), Join: []netip.AddrPort{{}}, Keys: [][]byte{{1}},
		Insecure: true, Topology: Serial, Members: []Peer{{"b", "p"}, {"b", ""}}, FollowEvery: -1, FollowRate: 1, Replicas: map[string]Replica{"": nil},
		Flows: flowshare.Config{Self: flowshare.Member{Name: "x"}}})
	for _, want := range []string{"Name", "Bind", "Join[0]", "Keys[0]", "Insecure", "Members", "Members[1].Name", "FollowEvery", "FollowRate", "Replicas", "Flows"} {
		require.ErrorContains(t, err, "Config."+want)
	}
	for _, c := range []struct {
		t  Topology
		ms []Peer
		ok bool
	}{
		{Single, nil, true}, {Single, []Peer{{"a", ""}}, true}, {Single, []Peer{{"a", ""}, {"b", ""}}, false},
		{Serial, []Peer{{"a", "p"}, {"b", "p"}}, true}, {Serial, []Peer{{"a", ""}, {"b", ""}}, false},
		{Parallel, []Peer{{"a", ""}, {"b", ""}}, true}, {Parallel, []Peer{{"a", ""}}, false},
		{Quad, []Peer{{"a", "p"}, {"b", "p"}, {"c", "q"}, {"d", "q"}}, true}, {Quad, []Peer{{"a", "p"}, {"b", "p"}}, false},
		{Parallel, []Peer{{"x", ""}, {"b", ""}}, false}, {Topology(9), nil, false},
	} {
		require.Equal(t, c.ok, validTopology(c.t, "a", c.ms) == nil, "%v %v", c.t, c.ms)
	}
	for _, top := range []Topology{Single, Serial, Parallel, Quad} {
		text, err := top.MarshalText()
		require.NoError(t, err)
		var back Topology
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, top, back)
	}
	require.Equal(t, "Topology(7)", Topology(7).String())
}

func testLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }
