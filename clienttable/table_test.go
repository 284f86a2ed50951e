package clienttable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfigFaults(t *testing.T) {
	_, err := New(&Config[Flow, *int]{MaxEntries: -1, TTL: -time.Second, Full: 7, Layout: Packed, FillWarn: 101, ChangeLog: -1, OwnerName: func(uint32) string { return "" }})
	require.ErrorIs(t, err, ErrInvalid)
	for _, want := range []string{"MaxEntries -1", "TTL -1s", "Full FullAction(7)", "Layout packed: must be heap or auto, because value (*int) holds pointers", "FillWarn 101", "ChangeLog -1", "OwnerName"} {
		require.ErrorContains(t, err, want)
	}
	_, err = New(&Config[Flow, int]{Layout: 9, TTL: MaxTTL + 1})
	require.ErrorContains(t, err, "Layout(9)")
	require.ErrorContains(t, err, "TTL")
	tab, err := New[string, int](nil)
	require.NoError(t, err)
	defer tab.Close()
	require.Equal(t, DefaultMaxEntries, tab.MaxEntries())
	require.Equal(t, Heap, tab.Layout())
	_, err = New(&Config[Flow, int]{MaxEntries: maxMaxEntries + 1})
	require.ErrorIs(t, err, ErrInvalid)
}

func TestPackedTypes(t *testing.T) {
	require.Empty(t, whyNotPacked[[16]byte, struct{}]())
	require.Empty(t, whyNotPacked[[3]byte, [5]bool]())
	require.Empty(t, whyNotPacked[uint32, float64]())
	require.Empty(t, whyNotPacked[struct{ a, b uint16 }, TCPState]())
	for want, got := range map[string]string{
		"key (string) holds pointers": whyNotPacked[string, int](),
		"key (float64) is a float":    whyNotPacked[float64, int](),
		"has padding before field b": whyNotPacked[struct{ a, b uint8 }, struct {
			a uint8
			b uint64
		}](),
		"has padding at its end": whyNotPacked[uint8, struct {
			a uint64
			b uint8
		}](),
		"key element (complex64) is a float":                  whyNotPacked[[2]complex64, int](),
		"key (struct { _ uint8; a uint8 }) has a blank field": whyNotPacked[struct{ _, a uint8 }, int](),
	} {
		require.Contains(t, got, want)
	}
}

// Keys and values of odd sizes.
func TestOddSizes(t *testing.T) {
	odd[[3]byte, [5]byte](t, func(i int) ([3]byte, [5]byte) { return [3]byte{byte(i), byte(i >> 8), 1}, [5]byte{4: byte(i)} })
	odd[uint8, struct{}](t, func(i int) (uint8, struct{}) { return uint8(i), struct{}{} })
	odd[[16]byte, uint16](t, func(i int) ([16]byte, uint16) { return [16]byte{15: byte(i), 14: byte(i >> 8)}, uint16(i) })
	odd[[41]byte, [17]byte](t, func(i int) ([41]byte, [17]byte) {
		return [41]byte{40: byte(i), 3: byte(i >> 8)}, [17]byte{16: byte(i)}
	})
	odd[string, []int](t, func(i int) (string, []int) { return fmt.Sprint(i), []int{i} })
}

func odd[K comparable, V any](t *testing.T, of func(i int) (K, V)) {
	t.Run(fmt.Sprintf("%T %T", *new(K), *new(V)), func(t *testing.T) {
		tab := must(New(&Config[K, V]{MaxEntries: 300}))
		defer tab.Close()
		for i := range 200 {
			k, v := of(i)
			require.NoError(t, tab.Store(k, v))
		}
		for i := range 200 {
			k, v := of(i)
			got, ok := tab.Load(k)
			require.True(t, ok)
			require.Equal(t, v, got)
		}
		require.Equal(t, 200, tab.Len())
	})
}

// Every table takes exactly as many entries as it was made for, and loses none.
func TestBoundIsExact(t *testing.T) {
	sizes := []int{1, 2, 3, 7, 8, 9, 16, 31, 64, 100, 255, 1000, 4095, 4096, 10000, 70000}
	if !testing.Short() {
		sizes = append(sizes, 1<<18)
	}
	for _, n := range sizes {
		for seed := range uint64(4) {
			tab := must(New(&Config[uint64, uint64]{MaxEntries: n, Seed: seed + 1, TTL: time.Hour}))
			now := time.Now()
			for i := range uint64(n) {
				if err := tab.StoreAt(now, i, ^i); err != nil {
					t.Fatalf("%d of %d: %v", i, n, err)
				}
			}
			require.ErrorIs(t, tab.StoreAt(now, uint64(n), 0), ErrFull)
			for i := range uint64(n) {
				if v, ok := tab.LoadAt(now, i); !ok || v != ^i {
					t.Fatalf("%d of %d: %d, %v", i, n, v, ok)
				}
			}
			require.Equal(t, n, tab.LenAt(now))
			tab.Close()
			if n > 10000 {
				break
			}
		}
	}
}

// A full table whose entries come and go for long keeps taking new ones.
func TestFullTableChurn(t *testing.T) {
	const n = 5000
	tab := must(New(&Config[uint64, uint64]{MaxEntries: n, TTL: time.Hour}))
	defer tab.Close()
	now := time.Now()
	for i := range uint64(n * 40) {
		if i >= n && !tab.DeleteAt(now, i-n) {
			t.Fatalf("%d was not there", i-n)
		}
		if err := tab.StoreAt(now, i, i); err != nil {
			t.Fatal(err)
		}
	}
	require.Equal(t, n, tab.LenAt(now))
	t.Logf("moves per store %.2f", float64(tab.Stats().Moves)/(n*40))
}

func TestClose(t *testing.T) {
	for _, l := range []Layout{Packed, Heap} {
		called := 0
		tab := must(New(&Config[uint64, uint64]{MaxEntries: 100000, Layout: l, OnRemove: func(uint64, uint64, Reason) { called++ }}))
		for i := range uint64(1000) {
			require.NoError(t, tab.Store(i, i))
		}
		require.NoError(t, tab.Close())
		require.NoError(t, tab.Close())
		require.Zero(t, called)
		_, ok := tab.Load(1)
		require.False(t, ok)
		require.ErrorIs(t, tab.Store(1, 1), ErrClosed)
		_, _, err := tab.LoadOrStore(1, 1)
		require.ErrorIs(t, err, ErrClosed)
		require.Zero(t, tab.Len())
		require.False(t, tab.Delete(1))
		require.Zero(t, tab.Sweep(time.Now().Add(time.Hour), 100))
		for range tab.All() {
			t.Fatal("an entry")
		}
		tab.Clear()
		tab.Invalidate(1)
		tab.Stats()
		_, err = tab.WriteTo(io.Discard)
		require.True(t, err == nil || errors.Is(err, errors.ErrUnsupported))
		require.Zero(t, called)
	}
}

// Look-ups while the table is closed find nothing and do no harm.
func TestCloseWhileLooking(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 1 << 18}))
	for i := range uint64(1 << 16) {
		require.NoError(t, tab.Store(i, ^i))
	}
	stop, done := make(chan bool), make(chan bool)
	for range 2 {
		go func() {
			r := rng(5)
			for {
				select {
				case <-stop:
					done <- true
					return
				default:
				}
				k := uint64(r.next(1 << 16))
				if v, ok := tab.Load(k); ok && v != ^k {
					t.Errorf("%d: %d", k, v)
				}
			}
		}()
	}
	time.Sleep(2 * time.Millisecond)
	tab.Close()
	time.Sleep(2 * time.Millisecond)
	close(stop)
	<-done
	<-done
}

func TestNoAllocations(t *testing.T) {
	tab := must(New(&Config[Flow, session]{
		MaxEntries: 1000, Owner: func(s session) uint32 { return s.owner }, OnRemove: func(Flow, session, Reason) {},
		Full: EvictOldest, CountLookups: true, ChangeLog: 100,
	}))
	defer tab.Close()
	now, i := time.Now(), uint32(0)
	for ; i < 900; i++ {
		require.NoError(t, tab.StoreAt(now, flowOf(i), makeSession(i, 1)))
	}
	var ks [40]Flow
	var vs [40]session
	var ok [40]bool
	for j := range ks {
		ks[j] = flowOf(uint32(j))
	}
	timers := must(NewTimers(nil))
	sink := uint64(0)
	for name, f := range map[string]func(){
		"hit":         func() { tab.Load(flowOf(5)) },
		"miss":        func() { tab.Load(flowOf(5000)) },
		"peek":        func() { tab.Peek(flowOf(5)) },
		"batch":       func() { tab.LoadBatch(now, ks[:], vs[:], ok[:]) },
		"replace":     func() { _ = tab.Store(flowOf(5), makeSession(5, 2)) },
		"LoadOrStore": func() { _, _, _ = tab.LoadOrStore(flowOf(5), session{}) },
		"churn": func() {
			i++
			now = now.Add(time.Millisecond)
			_ = tab.StoreAt(now, flowOf(i), makeSession(i, 1))
			tab.DeleteAt(now, flowOf(i-900))
		},
		"SetTTL": func() { tab.SetTTLAt(now, flowOf(5), time.Hour) },
		"update": func() {
			tab.Update(now, flowOf(5), func(s session, l Life) (session, Life) { s.check[0]++; return s, l })
		},
		"evict": func() {
			i++
			now = now.Add(time.Millisecond)
			_ = tab.StoreLife(now, flowOf(i), makeSession(i, 1), Life{Class: Class(i % 3)})
		},
		"sweep":     func() { now = now.Add(time.Second); tab.Sweep(now, 100) },
		"flow":      func() { sink += MakeFlow(6, vip, vip).Reverse().Hash(1) },
		"key":       func() { sink += RegularKeyOf(flowOf(1), Grouping{}).rest + FarmKey(1, vip.Addr(), Grouping{}).rest },
		"TCP state": func() { var s TCPState; s.Update(FromClient, TCPSyn, 1, 0, 0); timers.TCP(s, 80, Regular) },
		"changes":   func() { tab.Seq() },
		"stats":     func() { tab.Stats() },
	} {
		require.Zero(t, testing.AllocsPerRun(200, f), name)
	}
}

func TestFillWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []int
		tab := must(New(&Config[uint64, uint64]{MaxEntries: 100, TTL: time.Hour, OnFill: func(n, most int) {
			require.Equal(t, 100, most)
			calls = append(calls, n)
		}}))
		defer tab.Close()
		for i := range uint64(84) {
			require.NoError(t, tab.Store(i, i))
		}
		require.Empty(t, calls)
		require.NoError(t, tab.Store(84, 0))
		require.Equal(t, []int{85}, calls)
		for i := range uint64(10) {
			require.NoError(t, tab.Store(85+i, 0))
		}
		require.Len(t, calls, 1, "at most one per minute")
		time.Sleep(59 * time.Second)
		require.NoError(t, tab.Store(95, 0))
		require.Len(t, calls, 1)
		time.Sleep(time.Second)
		require.NoError(t, tab.Store(96, 0))
		require.Equal(t, []int{85, 97}, calls)
	})
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var expired, nodeGone, others atomic.Int64
		tab := must(New(&Config[uint64, val]{
			MaxEntries: 10000, Owner: func(v val) uint32 { return v.owner },
			OnRemove: func(_ uint64, _ val, why Reason) {
				switch why {
				case Expired:
					expired.Add(1)
				case NodeGone:
					nodeGone.Add(1)
				default:
					others.Add(1)
				}
			},
		}))
		defer tab.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- tab.Run(ctx) }()
		for i := range uint64(5000) {
			require.NoError(t, tab.Store(i, val{1, 0}))
			require.NoError(t, tab.StoreLife(time.Now(), 5000+i, val{2, 0}, Life{TTL: time.Hour}))
		}
		time.Sleep(59500 * time.Millisecond)
		synctest.Wait()
		require.Zero(t, expired.Load())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 5000, expired.Load())
		tab.Invalidate(2)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 5000, nodeGone.Load())
		require.Zero(t, others.Load())
		require.Zero(t, tab.Stats().Entries)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

// The methods without a time take it from the clock.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := must(New(&Config[uint64, uint64]{MaxEntries: 10, TTL: 10 * time.Second}))
		defer tab.Close()
		require.NoError(t, tab.Store(1, 1))
		_, loaded, err := tab.LoadOrStore(2, 2)
		require.NoError(t, err)
		require.False(t, loaded)
		time.Sleep(9 * time.Second)
		_, ok := tab.Load(1)
		require.True(t, ok)
		_, ok = tab.Peek(2)
		require.True(t, ok)
		time.Sleep(time.Second)
		_, ok = tab.Peek(2)
		require.False(t, ok)
		require.Equal(t, 1, tab.Len())
		require.True(t, tab.SetTTL(1, time.Minute))
		time.Sleep(59 * time.Second)
		v, ok := tab.LoadAndDelete(1)
		require.True(t, ok)
		require.EqualValues(t, 1, v)
		require.False(t, tab.SetTTL(1, time.Minute))
	})
}

// L21: the wrap of a 32-bit clock of milliseconds, at 49.7 days.
func TestClockWrap(t *testing.T) {
	for _, wrap := range []int64{1 << 31, 1 << 32, 1 << 39, 1 << 40} {
		tab := must(New(&Config[uint64, uint64]{MaxEntries: 2000, TTL: 30 * time.Second}))
		defer tab.Close()
		start := tab.epoch.Add(time.Duration(wrap)*time.Millisecond - 10*time.Second)
		for i := range uint64(1000) {
			require.NoError(t, tab.StoreAt(start, i, i))
		}
		touched := start.Add(12 * time.Second)
		for s := range 61 {
			now := start.Add(time.Duration(s) * time.Second)
			if now.Equal(touched) {
				for i := range uint64(500) {
					_, ok := tab.LoadAt(now, i)
					require.True(t, ok)
				}
			}
			tab.Sweep(now, 10000)
			want := 1000
			if s >= 30 {
				want = 500
			}
			if s >= 42 {
				want = 0
			}
			require.Equal(t, want, tab.Stats().Entries, "second %d", s)
		}
	}
}

// A clock far ahead, without a sweep: nothing is kept for ever, nothing revives.
func TestClockFarAhead(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 10}))
	defer tab.Close()
	require.NoError(t, tab.StoreAt(tab.epoch, 1, 1))
	for _, ahead := range []time.Duration{time.Minute, 1<<31*time.Millisecond + time.Second, 1<<32*time.Millisecond + time.Second, 1<<33*time.Millisecond - time.Second, 10 * 365 * 24 * time.Hour} {
		_, ok := tab.PeekAt(tab.epoch.Add(ahead), 1)
		require.False(t, ok, ahead)
	}
	far := tab.epoch.Add(1<<32*time.Millisecond + time.Hour)
	require.NoError(t, tab.StoreAt(far, 2, 2))
	_, ok := tab.LoadAt(far.Add(59*time.Second), 2)
	require.True(t, ok)
	require.Equal(t, 1, tab.LenAt(far))
	require.Equal(t, 1, tab.Sweep(far, 10))
}

func TestLongTTLs(t *testing.T) { // L23
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 1000}))
	defer tab.Close()
	now := time.Now()
	for i, ttl := range []time.Duration{600 * time.Second, time.Hour, 24 * time.Hour, MaxTTL, time.Millisecond, 1} {
		require.NoError(t, tab.StoreLife(now, uint64(i), 1, Life{TTL: ttl}))
		_, ok := tab.PeekAt(now.Add(max(ttl-time.Second, 0)), uint64(i))
		require.True(t, ok, ttl)
		_, ok = tab.PeekAt(now.Add(ttl+time.Second), uint64(i))
		require.False(t, ok, ttl)
	}
	require.NoError(t, tab.StoreLife(now, 0, 1, Life{TTL: -1}))
	_, ok := tab.PeekAt(now, 0)
	require.False(t, ok, "gone at once")
}

// More different TTLs than can be told apart: each is at least what was asked for,
// and counted if it is not exactly that.
func TestManyTTLs(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 3000}))
	defer tab.Close()
	now := time.Now()
	exact := 0
	for i := range 2000 {
		ttl := time.Duration(1000+i*7) * time.Millisecond
		require.NoError(t, tab.StoreLife(now, uint64(i), 1, Life{TTL: ttl}))
		_, in, ok := tab.Info(now, uint64(i))
		require.True(t, ok)
		require.GreaterOrEqual(t, in.Life.TTL, ttl)
		require.LessOrEqual(t, in.Life.TTL, 2*ttl)
		if in.Life.TTL == ttl {
			exact++
		}
	}
	require.GreaterOrEqual(t, exact, 200)
	require.EqualValues(t, 2000-exact, tab.Stats().RoundedTTLs)
}

// L24a and L24b.
func TestReplaceAndExpire(t *testing.T) {
	var out []removed[uint64, uint64]
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 10, TTL: 8 * time.Second, OnRemove: func(k, v uint64, why Reason) {
		out = append(out, removed[uint64, uint64]{k, v, why})
	}}))
	defer tab.Close()
	now := time.Now()
	require.NoError(t, tab.StoreAt(now, 1, 1))
	require.NoError(t, tab.StoreAt(now.Add(7*time.Second), 1, 2))
	require.Equal(t, []removed[uint64, uint64]{{1, 1, Replaced}}, out)
	_, ok := tab.PeekAt(now.Add(14*time.Second), 1)
	require.True(t, ok, "a new value has a new expiry")
	now = now.Add(14 * time.Second)
	for range 50 {
		_, ok = tab.LoadAt(now, 1)
		require.True(t, ok, "in use")
		now = now.Add(2 * time.Second)
	}
	now = now.Add(8 * time.Second)
	_, ok = tab.PeekAt(now, 1)
	require.False(t, ok)
	require.Zero(t, tab.LenAt(now), "before any sweep")
	for range tab.AllAt(now) {
		t.Fatal("an entry")
	}
	require.Len(t, out, 1)
	tab.Sweep(now, 10)
	tab.Sweep(now, 10)
	require.Equal(t, []removed[uint64, uint64]{{1, 1, Replaced}, {1, 2, Expired}}, out)
}

// OnRemove may use the table, whatever led to it.
func TestOnRemoveMayUseTheTable(t *testing.T) {
	var tab *Table[uint64, uint64]
	calls := 0
	tab = must(New(&Config[uint64, uint64]{MaxEntries: 64, Full: EvictOldest, OnRemove: func(k, v uint64, why Reason) {
		if calls++; calls > 3000 {
			return
		}
		now := time.Now()
		tab.Peek(k)
		tab.Sweep(now, 10)
		tab.Len()
		_ = tab.Store(k+1000, v)
		tab.Delete(k + 2000)
		tab.Invalidate(uint32(v))
	}, Owner: func(v uint64) uint32 { return uint32(v) }}))
	defer tab.Close()
	for i := range uint64(500) {
		require.NoError(t, tab.StoreLife(time.Now(), i, i%5, Life{Class: Class(i % 3), TTL: time.Duration(1+i%2) * time.Millisecond}))
		tab.Sweep(time.Now().Add(time.Minute), 3)
	}
	tab.Clear()
	require.Positive(t, calls)
}

// Memory stays where New put it, with ten million entries.
func TestMemoryOfTenMillion(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("needs 800 MB and some seconds; not with -short or the race detector")
	}
	if runtime.GOOS != "linux" || os.Getenv("GOMEMLIMIT") != "" || memAvailable() < 2<<30 {
		t.Skip("needs Linux and 2 GiB of free memory")
	}
	const n = 10_000_000
	before := rss(t)
	tab := must(New(&Config[Flow, [2]uint64]{MaxEntries: n, TTL: time.Hour}))
	defer tab.Close()
	now := time.Now()
	for i := range uint32(n) {
		if err := tab.StoreAt(now, flowOf(i), [2]uint64{uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	require.ErrorIs(t, tab.StoreAt(now, flowOf(n), [2]uint64{}), ErrFull)
	per := float64(rss(t)-before) / n
	t.Logf("%.1f bytes per entry", per)
	require.Less(t, per, 74.0)
	r := rng(1)
	for range 100000 {
		i := r.next(n)
		v, ok := tab.LoadAt(now, flowOf(i))
		require.True(t, ok && v[0] == uint64(i))
	}
	tab.Close()
	require.Less(t, float64(rss(t)-before)/n, 10.0, "Close gives the memory back")
}

func rss(t *testing.T) int64 { return procKB(t, "/proc/self/status", "VmRSS:") }

func memAvailable() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return field(string(b), "MemAvailable:")
}

func procKB(t *testing.T, file, name string) int64 {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return field(string(b), name)
}

func field(text, name string) (n int64) {
	_, rest, _ := strings.Cut(text, name)
	_, _ = fmt.Sscan(rest, &n)
	return n << 10
}

// While the table changes, an iteration meets what stays exactly once.
func TestAllWhileChanging(t *testing.T) {
	const n = 4000
	tab := must(New(&Config[uint64, uint64]{MaxEntries: n, TTL: time.Hour}))
	defer tab.Close()
	now := time.Now()
	for i := range uint64(n / 2) {
		require.NoError(t, tab.StoreAt(now, i, 1)) // these stay
	}
	r := rand.New(rand.NewPCG(1, 1))
	for round := range uint64(20) {
		seen := map[uint64]int{}
		for k := range tab.AllAt(now) {
			seen[k]++
			// Crowd the table, so that entries move.
			for range 3 {
				_ = tab.StoreAt(now, n+r.Uint64N(n*2), round)
				tab.DeleteAt(now, n+r.Uint64N(n*2))
			}
		}
		for i := range uint64(n / 2) {
			require.Equal(t, 1, seen[i])
		}
	}
	require.Positive(t, tab.Stats().Moves)
	for range tab.All() {
		break
	}
	require.Empty(t, tab.shards[0].walkers)
}
