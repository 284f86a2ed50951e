package flowshare_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// direct hands frames to the other layer, from a goroutine of its own.
type direct struct {
	from   flowshare.Member
	frames chan []byte
	to     *flowshare.Layer
}

func (d *direct) Send(_ flowshare.Member, frame []byte, _ bool) bool {
	select {
	case d.frames <- frame:
		return true
	default:
		return false
	}
}

func (d *direct) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-d.frames:
			_ = d.to.Receive(time.Now(), d.from, b)
		}
	}
}

func couple(t testing.TB) (a, b *flowshare.Layer, stop func()) {
	t.Helper()
	ma, mb := flowshare.Member{Name: "a", Epoch: 1}, flowshare.Member{Name: "b", Epoch: 1}
	da, db := &direct{from: ma, frames: make(chan []byte, 64)}, &direct{from: mb, frames: make(chan []byte, 64)}
	a, err := flowshare.New(&flowshare.Config{Self: ma, Transport: da, AskTimeout: 10 * time.Second})
	require.NoError(t, err)
	b, err = flowshare.New(&flowshare.Config{Self: mb, Transport: db, AskTimeout: 10 * time.Second})
	require.NoError(t, err)
	da.to, db.to = b, a
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.Run(ctx) })
	wg.Go(func() { _ = b.Run(ctx) })
	wg.Go(func() { da.run(ctx) })
	wg.Go(func() { db.run(ctx) })
	a.SetMembers(time.Now(), []flowshare.Member{mb})
	b.SetMembers(time.Now(), []flowshare.Member{ma})
	return a, b, func() {
		cancel()
		wg.Wait()
	}
}

// TestRun has two layers run by themselves, with many goroutines on each.
func TestRun(t *testing.T) {
	a, b, stop := couple(t)
	const each, workers = 100, 4
	var wg sync.WaitGroup
	for k := range workers {
		wg.Go(func() {
			for i := k * each; i < (k+1)*each; i++ {
				a.Announce(flow(i), value(i))
				v, ok := b.Ask(context.Background(), flow(i))
				if !ok || v != value(i) {
					t.Errorf("flow %d: %v, %v", i, v, ok)
				}
				if i%2 == 0 {
					a.Withdraw(flow(i))
				}
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return b.Stats().Flows == each*workers/2 && a.Stats().Flows == each*workers/2 }, 30*time.Second, 5*time.Millisecond)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, ok := b.Ask(cancelled, flow(0))
	require.False(t, ok)
	require.Len(t, a.Members(), 2)
	stop()
}

func TestConfigFaults(t *testing.T) {
	_, err := flowshare.New(nil)
	require.ErrorContains(t, err, "Self.Name")
	require.ErrorContains(t, err, "Transport")
	_, err = flowshare.New(&flowshare.Config{Threshold: 1, Holders: 9, MaxFlows: -1, MaxPending: 1, MaxFrame: 10, MaxRate: 1, Batch: -1,
		AskTimeout: time.Hour, MaxAsks: -1, Orphans: 1, Tombstones: 1, RepairEvery: 1})
	for _, field := range []string{"Threshold", "Holders", "MaxFlows", "MaxPending", "MaxFrame", "MaxRate", "Batch", "AskTimeout", "MaxAsks", "Orphans", "Tombstones", "RepairEvery"} {
		require.ErrorContains(t, err, "Config."+field)
	}
}

// TestMemory measures what an entry takes.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills a store")
	}
	l, err := flowshare.New(&flowshare.Config{Self: flowshare.Member{Name: "a"}, Transport: &direct{}})
	require.NoError(t, err)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const n = 100_000
	before := heap()
	server := netip.MustParseAddrPort("192.0.2.1:443")
	for i := range n {
		client := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		l.Announce(flowshare.MakeFlow(6, netip.AddrPortFrom(client, 1), server), flowshare.Value{Node: "sh1"})
	}
	require.Equal(t, n, l.Stats().Flows)
	per := (float64(heap()) - float64(before)) / n
	runtime.KeepAlive(l)
	t.Logf("%.0f bytes an entry", per)
	require.LessOrEqual(t, per, 170.0)
}

func BenchmarkAnnounceWithdraw(b *testing.B) {
	a, _, stop := couple(b)
	defer stop()
	flows := make([]flowshare.Flow, 1<<14)
	for i := range flows {
		flows[i] = flow(i)
	}
	v := flowshare.Value{Node: "sh1"}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		f := flows[i%len(flows)]
		a.Announce(f, v)
		a.Withdraw(f)
		i++
	}
}

func Example() {
	self, other := flowshare.Member{Name: "lb1", Epoch: 1}, flowshare.Member{Name: "lb2", Epoch: 1}
	wire := &direct{from: self, frames: make(chan []byte, 16)}
	lb1, err := flowshare.New(&flowshare.Config{Self: self, Transport: wire})
	if err != nil {
		fmt.Println(err)
		return
	}
	lb2, err := flowshare.New(&flowshare.Config{Self: other, Transport: wire})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	lb1.SetMembers(now, []flowshare.Member{other})
	lb2.SetMembers(now, []flowshare.Member{self})

	f := flowshare.MakeFlow(6, netip.MustParseAddrPort("10.0.0.1:4711"), netip.MustParseAddrPort("192.0.2.1:443"))
	lb1.Announce(f, flowshare.Value{Node: "sh1"})
	lb1.Step(now)
	err = lb2.Receive(now, self, <-wire.frames)
	v, ok := lb2.Lookup(f)
	fmt.Println(v.Node, ok, err)
	fmt.Println(errors.Is(lb2.Receive(now, self, []byte("nonsense")), flowshare.ErrFrame))
	// Output:
	// sh1 true <nil>
	// true
}
