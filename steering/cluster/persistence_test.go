package cluster_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster"
)

// backupPlane is a balancer whose clients are remembered in both ways: by service (port 80) and by farm (port 81), and by TLS session (port 443). The two
// of a pair have made their pools in another order, so that their numbers differ.
type backupPlane struct {
	*dataplane.Plane
	c       *cluster.Cluster
	farm    *sslpersist.Farm[steering.NodeID]
	tlsPool *steering.Pool
	crash   func()
}

func newBackupPlane(t *testing.T, name string, reverse bool, bind netip.AddrPort, join ...netip.AddrPort) *backupPlane {
	t.Helper()
	b := &backupPlane{}
	ids := new(steering.IDs)
	var err error
	b.farm, err = sslpersist.NewFarm(&sslpersist.Settings[steering.NodeID]{Feed: 64, Tickets: true})
	require.NoError(t, err)
	services := []*dataplane.Service{
		{Name: "regular", Mode: clienttable.Regular}, {Name: "farm", Mode: clienttable.EntryPerSession},
		{Name: "tls", Delay: &dataplane.Delay{Read: dataplane.ReadTLS, Sessions: b.farm}},
	}
	if reverse {
		services[0], services[2] = services[2], services[0]
	}
	var rules []policy.Rule[*dataplane.Service]
	for _, svc := range services {
		var nodes []steering.Node
		for i := range 5 {
			if reverse {
				i = 4 - i
			}
			nodes = append(nodes, steering.Node{Name: fmt.Sprintf("n%d", i), Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), 8080)})
		}
		svc.Pool, err = steering.NewPool(&steering.Config{Metric: steering.RoundRobin, IDs: ids}, nodes...)
		require.NoError(t, err)
		if svc.Name == "tls" {
			b.tlsPool = svc.Pool
		}
		rules = append(rules, policy.Rule[*dataplane.Service]{Name: svc.Name, Value: svc, Match: policy.Match{
			Dst: netip.MustParsePrefix("192.0.2.80/32"), Protocol: policy.TCP, DstPort: policy.Port(map[string]uint16{"regular": 80, "farm": 81, "tls": 443}[svc.Name])}})
	}
	table, err := policy.Compile(nil, rules...)
	require.NoError(t, err)
	b.c, err = cluster.New(&cluster.Config{
		Name: "persistence", Node: name, Bind: bind, Join: join, Keys: [][]byte{[]byte("a key for tests, not for use")},
		Topology: cluster.Serial, Members: []cluster.Peer{{Name: "lb1", Pair: "p"}, {Name: "lb2", Pair: "p"}},
	})
	require.NoError(t, err)
	b.Plane, err = dataplane.New(&dataplane.Config{Policies: table, Peers: b.c, AssociationChanges: 64})
	require.NoError(t, err)
	replicas := b.Replicas()
	require.Len(t, replicas, 3)
	for name, r := range replicas {
		require.NoError(t, b.c.Follow(name, r))
		require.Error(t, b.c.Follow(name, r), "twice")
	}
	require.Error(t, b.c.Follow("", replicas["associations"]))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.c.Run(ctx) })
	b.crash = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(func() { b.crash(); b.Close() })
	return b
}

// node returns which node a new connection of a client gets.
func (b *backupPlane) node(t *testing.T, client netip.Addr, from, port uint16) netip.Addr {
	t.Helper()
	const offset = dataplane.Headroom + 16
	buf := make([]byte, offset+2048)
	p := segment(netip.AddrPortFrom(client, from), netip.AddrPortFrom(netip.MustParseAddr("192.0.2.80"), port), 0x02)
	copy(buf[offset:], p)
	out := b.Process(time.Now(), [][]byte{buf}, []int{len(p)}, offset, make([]dataplane.Verdict, 1))
	require.Len(t, out, 1)
	_, dst := ofPacket(out[0][dataplane.Headroom:])
	return dst.Addr()
}

// TestPlanesPersistence: the backup of a balancer takes over with its clients: those that were there before it, those of the time it watched, and
// those of a time it was gone; and so with TLS sessions.
func TestPlanesPersistence(t *testing.T) {
	lb1 := newBackupPlane(t, "lb1", false, netip.MustParseAddrPort("127.0.0.1:0"))
	clientOf := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}) }
	want := map[[2]int]netip.Addr{}
	n := 0
	session := func(i int) sslpersist.SessionID {
		id, ok := sslpersist.SessionIDFrom(fmt.Appendf(nil, "session %08d", i))
		require.True(t, ok)
		return id
	}
	learn := func(b *backupPlane, k int) {
		for range k {
			for p := range 2 {
				want[[2]int{n, p}] = b.node(t, clientOf(n), 1000, uint16(80+p))
			}
			id, ok := b.tlsPool.ID(fmt.Sprintf("n%d", n%5))
			require.True(t, ok)
			require.NoError(t, b.farm.IDs().Learn(session(n), id))
			n++
		}
	}
	all := func(b *backupPlane) func() bool {
		return func() bool { return b.Stats().Associations == 2*n && b.farm.IDs().Len() == n }
	}
	learn(lb1, 300)             // more than the 64 changes that are remembered
	addr := testenv.FreePort(t) // of lb2: nobody takes it while that is gone
	lb2 := newBackupPlane(t, "lb2", true, addr, lb1.c.Addr())
	require.Eventually(t, all(lb2), time.Minute, 5*time.Millisecond, "all there was")
	for range 20 {
		learn(lb1, 5)
		require.Eventually(t, all(lb2), time.Minute, time.Millisecond, "changes")
	}
	learn(lb2, 20)
	require.Eventually(t, all(lb1), time.Minute, time.Millisecond, "changes of the other one")
	require.Zero(t, lb1.c.Stats().NotApplied+lb2.c.Stats().NotApplied)

	lb2.crash()
	learn(lb1, 100)
	lb3 := newBackupPlane(t, "lb2", true, addr, lb1.c.Addr())
	require.Eventually(t, all(lb3), time.Minute, 5*time.Millisecond, "after a gap")
	// Both bind the same clients at once.
	both := func(i int, from uint16) (a, b netip.Addr) {
		client := clientOf(20_000 + i)
		return lb1.node(t, client, from, 81), lb3.node(t, client, from, 81)
	}
	for i := range 50 {
		both(i, 1000)
	}
	from := uint16(2000)
	require.Eventually(t, func() bool {
		from++
		for i := range 50 {
			if a, b := both(i, from); a != b {
				return false
			}
		}
		return true
	}, time.Minute, 100*time.Millisecond, "they come to the same")
	lb1.crash()
	for i := range n {
		for p := range 2 {
			require.Equal(t, want[[2]int{i, p}], lb3.node(t, clientOf(i), 2000, uint16(80+p)), "client %d, port %d", i, 80+p)
		}
		id, ok := lb3.farm.IDs().PeekAt(time.Now(), session(i))
		require.True(t, ok)
		at, ok := lb3.tlsPool.Addr(id)
		require.True(t, ok)
		require.Equal(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i%5)}), at.Addr())
	}
}
