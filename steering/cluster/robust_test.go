package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

// A report must be found by its name among thousands that wait.
var _ memberlist.NamedBroadcast = (*broadcast)(nil)

// idle is a Cluster that Run was not called for: the test does what memberlist and Run do.
func idle(t *testing.T, cfg Config) (*Cluster, *delegate) {
	t.Helper()
	cfg.Name, cfg.Node, cfg.Bind, cfg.Insecure = "test", "a", netip.MustParseAddrPort("127.0.0.1:0"), true
	c, err := New(&cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		c.stop()
		c.wg.Wait()
		require.NoError(t, c.Close())
	})
	return c, &delegate{c}
}

func nodeOf(name string, epoch uint64) *memberlist.Node {
	m := meta{oldest: oldestVersion, newest: newestVersion, epoch: epoch}
	return &memberlist.Node{Name: name, Addr: net.IPv4(127, 0, 0, 1), Port: 1, Meta: m.append(nil)}
}

// TestStateIsNotLeftOut: who is slow to take reports of nodes hears all the same how the cluster is.
func TestStateIsNotLeftOut(t *testing.T) {
	block := make(chan struct{})
	var state atomic.Int64
	var up atomic.Pointer[[]string]
	state.Store(-1)
	c, d := idle(t, Config{
		Topology: Parallel, Members: []Peer{{Name: "a"}, {Name: "b"}},
		OnNode:    func(string, NodeReport) { <-block },
		OnState:   func(s intercept.ClusterState) { state.Store(int64(s)) },
		OnMembers: func(names []string) { up.Store(&names) },
	})
	c.wg.Go(c.callOut)
	c.refresh()
	eventually(t, "the first state", func() bool { return state.Load() == int64(intercept.ParallelPeerDown) })
	for i := range 2 * cap(c.calls) {
		r := told{by: "b", epoch: 5, number: uint64(i + 1), r: NodeReport{Node: fmt.Sprint(i)}}
		d.NotifyMsg(r.append(nil))
	}
	require.NotZero(t, c.Stats().CallsLeftOut)
	d.NotifyJoin(nodeOf("b", 5))
	c.refresh()
	require.Equal(t, intercept.Steady, c.State())
	close(block)
	eventually(t, "the state", func() bool {
		names := up.Load()
		return state.Load() == int64(intercept.Steady) && names != nil && len(*names) == 2
	})
	require.Len(t, c.Nodes(), 2*cap(c.calls))
	require.Equal(t, 2*cap(c.calls), c.gossip.NumQueued())
	r := told{by: "b", epoch: 5, number: 1 << 20, r: NodeReport{Node: "7", Up: true}}
	d.NotifyMsg(r.append(nil))
	require.Equal(t, 2*cap(c.calls), c.gossip.NumQueued(), "a newer report takes the place of the older one")
}

// TestClockSetBack: a member that starts again with an earlier clock is believed, and its former life is not.
func TestClockSetBack(t *testing.T) {
	c, d := idle(t, Config{})
	say := func(epoch, number uint64, l steering.Level) {
		r := told{by: "b", epoch: epoch, number: number, r: NodeReport{Node: "sh1", Pressure: l}}
		d.NotifyMsg(r.append(nil))
	}
	forget := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.forgetReports()
	}
	want := func(l steering.Level) {
		t.Helper()
		require.Equal(t, []MemberReport{{"b", NodeReport{Node: "sh1", Pressure: l}}}, c.Nodes())
	}
	d.NotifyJoin(nodeOf("b", 1000))
	say(1000, 9, steering.Severe)
	want(steering.Severe)
	for _, gone := range []bool{false, true} { // noticed or too quick
		if gone {
			d.NotifyLeave(nodeOf("b", 1000))
			forget()
			say(1000, 9, steering.Severe) // of another member, who has not noticed yet
		}
		d.NotifyUpdate(nodeOf("b", 900))
		forget()
		require.Empty(t, c.Nodes())
		say(900, 1, steering.High)
		want(steering.High)
		say(1000, 9, steering.Severe)
		want(steering.High)
		say(900, 2, steering.Normal)
		want(steering.Normal)
		// And on again, as it should be; the report may come before the member.
		say(1000, 1, steering.High)
		d.NotifyUpdate(nodeOf("b", 1000))
		forget()
		say(1000, 2, steering.Severe)
		want(steering.Severe)
		say(900, 3, steering.Normal)
		want(steering.Severe)
	}
}

// TestAddressesWithoutZone: members tell each other addresses without a zone, so none that needs one can be configured.
func TestAddressesWithoutZone(t *testing.T) {
	base := Config{Name: "x", Node: "a", Bind: netip.MustParseAddrPort("127.0.0.1:0"), Insecure: true}
	for _, a := range []string{"[fe80::1%lo]:7946", "[fe80::1]:7946", "[2001:db8::1%lo]:7946"} {
		cfg := base
		cfg.Bind = netip.MustParseAddrPort(a)
		cfg.Join = []netip.AddrPort{cfg.Bind}
		_, err := New(&cfg)
		require.ErrorContains(t, err, "Config.Bind")
		require.ErrorContains(t, err, "Config.Join[0]")
	}
	// The mapped form of an address is the address, or a member would be looked for for ever.
	cfg := base
	cfg.Join = []netip.AddrPort{netip.MustParseAddrPort("[::ffff:127.0.0.1]:7946"), netip.MustParseAddrPort("169.254.0.1:1")}
	got, err := cfg.withDefaults()
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:7946", got.Join[0].String())
	cfg.Join[1] = netip.AddrPort{}
	require.True(t, got.Join[1].IsValid(), "New keeps a copy")
}

// TestSettingsFit: what is accepted can be told, with what the Cluster adds.
func TestSettingsFit(t *testing.T) {
	cfg := Config{Topology: Parallel, Settings: map[string]string{"s": strings.Repeat("x", 999_000)}}
	cfg.Members = []Peer{{Name: "a"}}
	for i := range 500 {
		cfg.Members = append(cfg.Members, Peer{Name: fmt.Sprintf("%0120d", i)})
	}
	cfg.Name, cfg.Node, cfg.Bind, cfg.Insecure = "test", "a", netip.MustParseAddrPort("127.0.0.1:0"), true
	_, err := New(&cfg)
	require.ErrorContains(t, err, "Config.Settings")
	cfg.Settings = map[string]string{"s": strings.Repeat("x", 970_000)}
	c, d := idle(t, cfg)
	require.Error(t, c.SetSettings(map[string]string{"s": strings.Repeat("x", 999_000)}, nil))
	d.NotifyJoin(nodeOf(cfg.Members[1].Name, 5))
	c.refresh()
	c.mu.Lock()
	b := appendSettings(appendSettings([]byte{bulkSettings}, c.settings[0]), c.settings[1])
	c.mu.Unlock()
	require.LessOrEqual(t, len(b), 1<<20)
	require.NoError(t, c.bulk(c.self, b))
}
