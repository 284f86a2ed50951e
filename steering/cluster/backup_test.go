package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering/cluster"
)

var (
	_ dataplane.Peers = (*cluster.Cluster)(nil)
	_ cluster.Replica = (*clienttable.Feed[clienttable.Association, uint64])(nil)
	_ cluster.Replica = (*sslpersist.Feed[uint32])(nil)
)

// balancer is a member with a client table and an SSL table.
type balancer struct {
	*cluster.Cluster
	clients *clienttable.Table[clienttable.Association, uint64]
	ids     *sslpersist.Table[uint32]
	crash   context.CancelFunc
	ended   chan error
}

// Nodes have other numbers at each balancer, and the same names.
func startBalancer(t *testing.T, name string, first uint32, join ...netip.AddrPort) *balancer {
	t.Helper()
	nodeName := func(n uint32) string { return fmt.Sprintf("sh%d", n-first) }
	byName := func(s string) (n uint32, ok bool) {
		_, err := fmt.Sscanf(s, "sh%d", &n)
		return n + first, err == nil && n < 10
	}
	clients, err := clienttable.New(&clienttable.Config[clienttable.Association, uint64]{
		MaxEntries: 1 << 15, ChangeLog: 1024,
		Owner: func(v uint64) uint32 { return uint32(v) }, OwnerName: nodeName,
		Rebind: func(_ uint64, name string) (uint64, bool) { n, ok := byName(name); return uint64(n), ok },
	})
	require.NoError(t, err)
	ids, err := sslpersist.NewTable(&sslpersist.Config[uint32]{Feed: 1024})
	require.NoError(t, err)
	c, err := cluster.New(&cluster.Config{
		Name: "backup", Node: name, Bind: netip.MustParseAddrPort("127.0.0.1:0"), Join: join, Keys: [][]byte{[]byte("a key for tests, not for use")},
		Topology: cluster.Serial, Members: []cluster.Peer{{Name: "lb1", Pair: "p"}, {Name: "lb2", Pair: "p"}},
		Replicas: map[string]cluster.Replica{
			"clients": &clienttable.Feed[clienttable.Association, uint64]{Table: clients},
			"ssl":     &sslpersist.Feed[uint32]{Table: ids, Name: nodeName, ByName: byName},
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	b := &balancer{c, clients, ids, cancel, make(chan error, 1)}
	go func() { b.ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-b.ended
		clients.Close()
	})
	return b
}

func (b *balancer) waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 10*time.Millisecond, what)
}

func client(i int) clienttable.Association {
	a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
	if i%2 == 1 {
		a = netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i))
	}
	return clienttable.FarmKey(1, a, clienttable.Grouping{})
}

func sessionID(t *testing.T, i int) sslpersist.SessionID {
	id, ok := sslpersist.SessionIDFrom(fmt.Appendf(nil, "session %08d", i))
	require.True(t, ok)
	return id
}

// rest waits until nothing was sent for a while.
func rest(t *testing.T, bs ...*balancer) {
	t.Helper()
	last, since := uint64(0), time.Now()
	bs[0].waitFor(t, "rest", func() bool {
		sum := uint64(1)
		for _, b := range bs {
			s := b.Stats()
			sum += s.Changes + s.Snapshots + s.Restored
		}
		if sum != last {
			last, since = sum, time.Now()
		}
		return time.Since(since) > 3*time.Second
	})
}

// TestBackup: a backup that was there, and one that comes later, know every client and every SSL session, and
// what was learned while both served.
func TestBackup(t *testing.T) {
	const n = 5000
	lb1 := startBalancer(t, "lb1", 100)
	learn := func(b *balancer, first uint32, from, to int) {
		for i := from; i < to; i++ {
			require.NoError(t, b.clients.Store(client(i), uint64(first)+uint64(i%10)))
			require.NoError(t, b.ids.Learn(sessionID(t, i), first+uint32(i%10)))
		}
	}
	learn(lb1, 100, 0, n)
	lb2 := startBalancer(t, "lb2", 500, lb1.Addr())
	lb2.waitFor(t, "snapshots", func() bool { return lb2.clients.Len() == n && lb2.ids.Len() == n })
	learn(lb1, 100, n, n+3000) // more than is remembered, perhaps faster than it is told
	learn(lb2, 500, n+3000, n+4000)
	lens := func(b *balancer, n int) bool { return b.clients.Len() == n && b.ids.Len() == n }
	lb2.waitFor(t, "changes", func() bool { return lens(lb1, n+4000) && lens(lb2, n+4000) })
	rest(t, lb1, lb2) // a snapshot under way would bring back what is deleted
	for i := range 100 {
		lb1.clients.Delete(client(i))
		lb2.ids.Delete(sessionID(t, i))
	}
	lb2.waitFor(t, "deletions", func() bool { return lens(lb1, n+3900) && lens(lb2, n+3900) })
	check := func(b *balancer, first uint32) {
		for i := 100; i < n+4000; i++ {
			v, ok := b.clients.Peek(client(i))
			require.True(t, ok, "client %d", i)
			require.Equal(t, uint64(first)+uint64(i%10), v)
			o, ok := b.ids.PeekAt(time.Now(), sessionID(t, i))
			require.True(t, ok, "session %d", i)
			require.Equal(t, first+uint32(i%10), o)
		}
	}
	check(lb1, 100)
	check(lb2, 500)
	rest(t, lb1, lb2) // nothing goes to and fro
	lb1.crash()
	require.True(t, errors.Is(<-lb1.ended, context.Canceled))
	lb1.ended <- nil
	check(lb2, 500)
	require.Zero(t, lb2.Stats().NotApplied)
}
