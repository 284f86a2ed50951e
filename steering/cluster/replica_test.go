package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// bare is a Cluster without sockets.
func bare(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{
		cfg: Config{Node: "lb0", Replicas: map[string]Replica{"t": &numbers{keep: 8}}}, self: flowshare.Member{Name: "lb0", Epoch: 1},
		members: map[string]*member{}, differ: map[string]map[Mismatch]bool{}, leads: map[feedKey]*leading{}, follows: map[feedKey]*following{},
		links: map[linkKey]*link{}, calls: make(chan func(), 10),
	}
	c.log = testLogger()
	c.running, c.stop = context.WithCancel(context.Background())
	return c
}

// numbers is a Replica of a set of numbers, which remembers few changes.
type numbers struct {
	mu   sync.Mutex
	set  map[uint64]bool
	log  []uint64 // the last changes
	seq  uint64
	keep int
}

func (n *numbers) add(v uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.put(v)
	n.seq++
	n.log = append(n.log, v)
	if len(n.log) > n.keep {
		n.log = n.log[1:]
	}
}

func (n *numbers) put(v uint64) {
	if n.set == nil {
		n.set = map[uint64]bool{}
	}
	n.set[v] = true
}

func (n *numbers) size() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.set)
}

func (n *numbers) LastSeq() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seq
}

func (n *numbers) AppendChanges(b []byte, after uint64, limit int) ([]byte, uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	first := n.seq - uint64(len(n.log))
	if after < first || after > n.seq {
		return b, 0, errors.New("forgotten")
	}
	start := len(b)
	for after < n.seq && len(b)-start < limit {
		b = binary.BigEndian.AppendUint64(b, n.log[after-first])
		after++
	}
	return b, after, nil
}

func (n *numbers) Apply(b []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ; len(b) >= 8; b = b[8:] {
		n.put(binary.BigEndian.Uint64(b))
	}
	if len(b) > 0 {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (n *numbers) Snapshot(w io.Writer) error {
	n.mu.Lock()
	b := []byte{}
	for v := range n.set {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	n.mu.Unlock()
	_, err := w.Write(b)
	return err
}

func (n *numbers) Restore(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return n.Apply(b)
}

// TestReplicas has three members follow each other's tables, from snapshots and from changes, over
// streams that break.
func TestReplicas(t *testing.T) {
	var tables []*numbers
	var rs []*running
	for i, name := range names(3) {
		n := &numbers{keep: 500}
		for k := range 20_000 {
			n.add(uint64(i)<<32 | uint64(k)) // more than it remembers, and than a message holds
		}
		tables = append(tables, n)
		cfg := Config{Node: name, Replicas: map[string]Replica{"numbers": n}}
		if i > 0 {
			cfg.Join = []netip.AddrPort{rs[0].Addr()}
		}
		rs = append(rs, launch(t, cfg))
	}
	total := 60_000
	all := func() bool {
		for _, n := range tables {
			if n.size() != total {
				return false
			}
		}
		return true
	}
	eventually(t, "snapshots", all)
	for round := range 5 {
		for i, n := range tables {
			for k := range 100 {
				n.add(1<<60 | uint64(round)<<50 | uint64(i)<<32 | uint64(k))
			}
		}
		total += 300
		// All streams of the middle one break.
		c := rs[1].Cluster
		c.mu.Lock()
		for k, l := range c.links {
			l.cancel()
			c.links[k] = c.newLink(c.running, k.m, l.addr, k.class)
		}
		c.mu.Unlock()
		eventually(t, fmt.Sprintf("changes of round %d", round), all)
	}
	require.Positive(t, rs[0].Stats().Changes)
	for _, r := range rs {
		require.Zero(t, r.Stats().NotApplied)
	}
}

// TestFollowRate: what is sent of replicas is bounded, snapshots and changes, and counted.
func TestFollowRate(t *testing.T) {
	full := &numbers{keep: 100}
	for k := range uint64(40_000) {
		full.add(k) // 320 kB
	}
	const most = 400_000
	a := launch(t, Config{Node: "lb0", Replicas: map[string]Replica{"numbers": full}, FollowRate: most})
	begun := time.Now()
	empty := &numbers{keep: 100}
	launch(t, Config{Node: "lb1", Replicas: map[string]Replica{"numbers": empty}, Join: []netip.AddrPort{a.Addr()}})
	eventually(t, "the snapshot", func() bool { return empty.size() == 40_000 })
	took := time.Since(begun)
	sent := float64(a.Stats().StreamsSent)
	require.Greater(t, sent, 320_000.0)
	// A tenth of a second's worth at once, and a message more than there is room for.
	require.Less(t, sent, took.Seconds()*most+most/10+2*partSize, "after %v", took)
	t.Logf("%.0f bytes in %v", sent, took)
	var r rate
	require.Zero(t, r.wait(time.Now()), "no bound")
}

// Two followers get their snapshots at a rate at which one large message would take longer than either waits.
func TestFollowRateIsShared(t *testing.T) {
	full := &numbers{keep: 100}
	for k := range uint64(16_000) {
		full.add(k) // 128 kB, which two times take 13 s
	}
	a := launch(t, Config{Node: "lb0", Replicas: map[string]Replica{"numbers": full}, FollowRate: 20_000})
	var followers []*numbers
	for _, name := range []string{"lb1", "lb2"} {
		n := &numbers{keep: 100}
		followers = append(followers, n)
		launch(t, Config{Node: name, Replicas: map[string]Replica{"numbers": n}, Join: []netip.AddrPort{a.Addr()}})
	}
	eventually(t, "both snapshots", func() bool { return followers[0].size() == 16_000 && followers[1].size() == 16_000 })
	require.Less(t, a.Stats().StreamsSent, uint64(2*128_000+60_000), "each is sent once")
	full.add(16_000)
	eventually(t, "a change", func() bool { return followers[0].size() == 16_001 && followers[1].size() == 16_001 })
}
