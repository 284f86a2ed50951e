package clienttable

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// drain carries all over that is behind.
func drain[K comparable, V any](t testing.TB, tab *Table[K, V], now time.Time) {
	t.Helper()
	for range 10000 {
		if tab.Stats().Behind == 0 && tab.newest().kin.Load() == nil {
			return
		}
		tab.Sweep(now, 100)
	}
	t.Fatal("it never comes to an end")
}

func TestGrow(t *testing.T) {
	for _, layout := range []Layout{Packed, Heap} {
		t.Run(layout.String(), func(t *testing.T) {
			var out []Reason
			small := must(New(&Config[Flow, uint64]{MaxEntries: 100, Layout: layout, OnRemove: func(_ Flow, _ uint64, why Reason) { out = append(out, why) }}))
			defer small.Close()
			now := small.epoch.Add(time.Hour)
			var want [100]Info
			for i := range uint32(100) {
				l := Life{TTL: time.Duration(1+i) * time.Second, Fixed: i%3 == 0, Class: Class(i % 4)}
				require.NoError(t, small.StoreLife(now, flowOf(i), uint64(i), l))
			}
			now = now.Add(500 * time.Millisecond)
			for i := range uint32(100) {
				var ok bool
				_, want[i], ok = small.Info(now, flowOf(i))
				require.True(t, ok)
			}
			require.ErrorIs(t, small.StoreLife(now, flowOf(200), 0, Life{Class: Established}), nil, "a half-open one makes room")
			require.Equal(t, []Reason{Evicted}, out)
			out = nil

			large, err := small.Grow(now, 1000)
			require.NoError(t, err)
			require.NotSame(t, small, large)
			require.Equal(t, 1000, small.MaxEntries())
			require.Equal(t, 1000, large.MaxEntries())
			again, err := small.Grow(now, 1000)
			require.NoError(t, err)
			require.Same(t, large, again)
			require.Equal(t, 100, large.Stats().Behind)
			st := small.Stats()
			require.Equal(t, st, large.Stats())
			require.Equal(t, 100, st.Entries)

			missing := 0
			for i := range uint32(100) {
				tab := []*Table[Flow, uint64]{small, large}[i%2]
				v, ok := tab.PeekAt(now, flowOf(i))
				if !ok {
					missing++
					continue
				}
				require.EqualValues(t, i, v)
				_, in, ok := tab.Info(now, flowOf(i)) // carries it over
				require.True(t, ok)
				require.Equal(t, want[i], in, i)
				_, ok = small.load(small.hashOf(new(flowOf(i))), new(flowOf(i)), small.tick(now), touchNot|alone)
				require.False(t, ok)
			}
			require.Equal(t, 1, missing)
			require.Equal(t, 1, small.Stats().Behind, "the last one stored")
			require.NoError(t, small.StoreAt(now, flowOf(300), 300))
			for i := range uint32(800) {
				require.NoError(t, large.StoreAt(now, flowOf(1000+i), 1))
			}
			drain(t, small, now)
			require.Empty(t, out, "nothing has left")
			require.Equal(t, 901, small.LenAt(now))
			require.EqualValues(t, 902, large.Stats().Stores)
			ks, vs, ok := []Flow{flowOf(300), flowOf(999999), flowOf(200)}, make([]uint64, 3), make([]bool, 3)
			require.Equal(t, 2, small.LoadBatch(now, ks, vs, ok))
			require.Equal(t, []bool{true, false, true}, ok)
			require.NoError(t, small.Close())
			require.ErrorIs(t, large.StoreAt(now, flowOf(1), 1), ErrClosed)
			_, err = large.Grow(now, 5000)
			require.ErrorIs(t, err, ErrClosed)
		})
	}
}

func TestGrowFaults(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 100}))
	defer tab.Close()
	now := time.Now()
	for _, n := range []int{0, -1, 1<<30 + 1} {
		_, err := tab.Grow(now, n)
		require.ErrorIs(t, err, ErrInvalid)
	}
	for _, n := range []int{1, 100} {
		same, err := tab.Grow(now, n)
		require.NoError(t, err)
		require.Same(t, tab, same)
	}
}

// TestGrowAgainAndAgain: every earlier name goes on working, and a growth that is not complete is completed by the next.
func TestGrowAgainAndAgain(t *testing.T) {
	first := must(New(&Config[uint64, uint64]{MaxEntries: 10, TTL: time.Hour}))
	defer first.Close()
	names := []*Table[uint64, uint64]{first}
	now := time.Now()
	n := uint64(0)
	for size := 10; size <= 20000; size += size/2 + 1 {
		last, err := names[len(names)/2].Grow(now, size)
		require.NoError(t, err)
		if last != names[len(names)-1] {
			names = append(names, last)
		}
		for ; n < uint64(size); n++ {
			require.NoError(t, names[n%uint64(len(names))].StoreAt(now, n, n+1))
		}
		require.ErrorIs(t, names[0].StoreAt(now, n, 0), ErrFull)
		require.Equal(t, size, last.Stats().Entries)
		for k := uint64(0); k < n; k += 1 + n/50 {
			for _, tab := range names {
				v, ok := tab.LoadAt(now, k)
				require.True(t, ok)
				require.Equal(t, k+1, v)
			}
		}
	}
	require.Greater(t, len(names), 10)
	drain(t, first, now)
	st := first.Stats()
	require.Equal(t, st.Stores, uint64(st.Entries))
	require.Equal(t, n, uint64(first.LenAt(now)))
	require.Equal(t, int(n), func() (met int) {
		for k, v := range first.AllAt(now) {
			require.Equal(t, k+1, v)
			met++
		}
		return
	}())
	require.Nil(t, first.pairs)
}

// TestGrowTimes: idle times and owners that are gone are those of before.
func TestGrowTimes(t *testing.T) {
	type val struct{ owner, data uint32 }
	gone := map[Reason]int{}
	small := must(New(&Config[uint64, val]{MaxEntries: 100, Owner: func(v val) uint32 { return v.owner }, OnRemove: func(_ uint64, _ val, why Reason) { gone[why]++ }}))
	defer small.Close()
	now := small.epoch.Add(3 * time.Second)
	for i := range uint64(60) {
		require.NoError(t, small.StoreAt(now.Add(time.Duration(i%2)*time.Second), i, val{uint32(i%3) + 1, 0}))
	}
	small.Invalidate(1)
	large, err := small.Grow(now, 200)
	require.NoError(t, err)
	large.Invalidate(2)
	for _, tab := range []*Table[uint64, val]{small, large} {
		v, ok := tab.Invalidated(now, 1)
		require.True(t, ok)
		require.Equal(t, val{2, 0}, v)
		_, ok = tab.Invalidated(now, 2)
		require.False(t, ok)
	}
	require.NoError(t, large.StoreAt(now, 1000, val{2, 0}), "it is back")
	require.NoError(t, small.StoreAt(now, 1001, val{1, 0}))
	require.Equal(t, 22, small.LenAt(now))
	require.Equal(t, 22, large.LenAt(now))
	drain(t, small, now)
	require.Equal(t, map[Reason]int{NodeGone: 40}, gone)
	small.Invalidate(1)
	require.Equal(t, 21, large.LenAt(now))
	for range 4 {
		small.Sweep(now, 100)
	}
	at := now.Add(time.Minute)
	require.Equal(t, 10, large.LenAt(at), "half of them was stored a second later")
	require.Equal(t, 0, large.LenAt(at.Add(time.Second)))
	for range 4 {
		large.Sweep(at.Add(time.Second), 100)
	}
	require.Equal(t, map[Reason]int{NodeGone: 41, Expired: 21}, gone)
	require.Zero(t, large.Stats().Entries)
}

// TestGrowFull: entries that are behind count, and may be evicted.
func TestGrowFull(t *testing.T) {
	small := must(New(&Config[uint64, uint64]{MaxEntries: 100}))
	defer small.Close()
	now := time.Now()
	for i := range uint64(100) {
		require.NoError(t, small.StoreLife(now, i, i, Life{Class: Class(i % 2)}))
	}
	large, err := small.Grow(now, 120)
	require.NoError(t, err)
	for i := range uint64(70) { // 20 find room, 50 evict a half-open one that is behind
		require.NoError(t, large.StoreAt(now, 1000+i, i))
		require.LessOrEqual(t, large.Stats().Entries, 120)
	}
	require.ErrorIs(t, large.StoreAt(now, 5000, 0), ErrFull)
	require.EqualValues(t, 50, large.Stats().Evicted)
	drain(t, large, now)
	require.Equal(t, 120, large.LenAt(now))
	for i := uint64(0); i < 100; i += 2 {
		_, ok := large.PeekAt(now, i)
		require.True(t, ok, "the established ones are all there")
	}
}

// TestGrowUnderLoad: entries that stay are found by every look-up, by every name of the table, and by every
// iteration once, while others come and go and all move to larger tables, and to smaller ones.
func TestGrowUnderLoad(t *testing.T) {
	for _, layout := range []Layout{Packed, Heap} {
		t.Run(layout.String(), func(t *testing.T) {
			const stay = 1000
			first := must(New(&Config[uint64, uint64]{MaxEntries: 2 * stay, Layout: layout, TTL: time.Hour, ChangeLog: 16}))
			defer first.Close()
			now := time.Now()
			for i := range uint64(stay) {
				require.NoError(t, first.StoreAt(now, i, i+1))
			}
			var last atomic.Pointer[Table[uint64, uint64]]
			last.Store(first)
			var stop atomic.Bool
			var wg sync.WaitGroup
			run := func(f func(r *rand.Rand, tab *Table[uint64, uint64])) {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(1, 2))
					for !stop.Load() {
						f(r, first)
						f(r, last.Load())
					}
				})
			}
			run(func(r *rand.Rand, tab *Table[uint64, uint64]) {
				var ks, vs [8]uint64
				var ok [8]bool
				for i := range ks {
					ks[i] = r.Uint64N(stay)
				}
				tab.LoadBatch(now.Add(time.Duration(r.IntN(1000))*time.Millisecond), ks[:], vs[:], ok[:])
				for i, k := range ks {
					if v, found := tab.LoadAt(now, k); !found || v != k+1 {
						t.Errorf("lost: %d: %d %v", k, v, found)
					}
					if !ok[i] || vs[i] != k+1 {
						t.Errorf("lost in a batch: %d: %d %v", k, vs[i], ok[i])
					}
				}
			})
			run(func(r *rand.Rand, tab *Table[uint64, uint64]) {
				k := stay + r.Uint64N(stay)
				switch r.UintN(6) {
				case 0, 1:
					tab.DeleteAt(now, k)
				case 2:
					if _, loaded, err := tab.LoadOrStoreAt(now, r.Uint64N(stay), 0); err != nil || !loaded {
						t.Errorf("not there: %v", err)
					}
				case 3:
					k := r.Uint64N(stay)
					if !tab.Update(now, k, func(v uint64, l Life) (uint64, Life) { return k + 1, l }) {
						t.Errorf("not there to be changed: %d", k)
					}
				default:
					if err := tab.StoreAt(now, k, 0); err != nil {
						t.Error(err)
					}
				}
			})
			run(func(_ *rand.Rand, tab *Table[uint64, uint64]) {
				var met [stay]int
				for k := range tab.AllAt(now) {
					if k < stay {
						met[k]++
					}
				}
				for k, n := range met {
					if n != 1 {
						t.Errorf("%d was met %d times", k, n)
						break
					}
				}
			})
			r := rand.New(rand.NewPCG(3, 4))
			for i := range 32 {
				resize, n := first.Grow, 2*stay+(i+1)*50
				switch i % 4 {
				case 2:
					n = 5*stay + i
				case 3: // what is there fits, once the growth is complete
					for first.Growing() {
						first.Sweep(now, 1000)
					}
					resize, n = first.Shrink, 5*stay/2+i
				}
				next, err := resize(now, n)
				if err != nil {
					t.Error(err)
					break
				}
				last.Store(next)
				for range r.IntN(200) { // sometimes to the end, sometimes not
					first.Sweep(now, 1+r.IntN(30))
				}
			}
			stop.Store(true)
			wg.Wait()
			drain(t, first, now)
			for i := range uint64(stay) {
				v, ok := first.PeekAt(now, i)
				require.True(t, ok)
				require.Equal(t, i+1, v)
			}
		})
	}
}

// TestGrowIterations: an iteration that was under way goes on in the larger table.
func TestGrowIterations(t *testing.T) {
	for _, at := range []int{0, 1, 100, 255, 256, 257, 700, 999} {
		tab := must(New(&Config[uint64, uint64]{MaxEntries: 1000}))
		now := time.Now()
		for i := range uint64(1000) {
			require.NoError(t, tab.StoreAt(now, i, i))
		}
		met := map[uint64]int{}
		n := 0
		for k := range tab.AllAt(now) {
			met[k]++
			if n == at {
				_, err := tab.Grow(now, 3000)
				require.NoError(t, err)
				for range 500 / (1 + at%3) {
					tab.Sweep(now, 1)
				}
				for i := range uint64(200) {
					tab.Info(now, i*5)
				}
			}
			if n > at && n%50 == 0 {
				tab.Sweep(now, 20)
			}
			n++
		}
		require.Len(t, met, 1000)
		require.Equal(t, 1000, n)
		require.Empty(t, tab.grow.tours)
		require.Empty(t, tab.newest().grow.tours)
		tab.Close()
	}
}

// TestGrowFollowed: snapshots and changes know nothing of it.
func TestGrowFollowed(t *testing.T) {
	small := must(New(&Config[uint64, uint64]{MaxEntries: 300, ChangeLog: 1000}))
	defer small.Close()
	now := time.Now()
	for i := range uint64(300) {
		require.NoError(t, small.StoreLife(now, i, i, Life{TTL: time.Duration(100+i%7) * time.Second}))
	}
	seq := small.Seq()
	large, err := small.Grow(now, 600)
	require.NoError(t, err)
	for i := range uint64(100) {
		require.NoError(t, large.StoreAt(now, 1000+i, i))
		small.DeleteAt(now, i)
	}
	large.Sweep(now, 50)
	require.Equal(t, seq+200, large.Seq())
	require.Equal(t, seq+200, small.Seq())
	changes := make([]Change[uint64, uint64], 1000)
	n, err := small.Changes(seq, changes)
	require.NoError(t, err)
	require.Equal(t, 200, n, "what is carried over is no change")

	var file bytes.Buffer
	_, err = small.WriteSnapshot(now, &file)
	require.NoError(t, err)
	other := must(New(&Config[uint64, uint64]{MaxEntries: 1000}))
	defer other.Close()
	res, err := other.ReadSnapshot(now, &file)
	require.NoError(t, err)
	require.Equal(t, 300, res.Entries)
	_, in, ok := other.Info(now, 299)
	require.True(t, ok)
	require.Equal(t, 105*time.Second, in.Life.TTL)
	require.Equal(t, 105*time.Second, in.Left)
}

func TestGrowThenClear(t *testing.T) {
	n := 0
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 100, OnRemove: func(uint64, uint64, Reason) { n++ }}))
	defer tab.Close()
	now := time.Now()
	for i := range uint64(100) {
		require.NoError(t, tab.StoreAt(now.Add(-time.Duration(i%2)*time.Hour), i, i))
	}
	_, err := tab.Grow(now, 200)
	require.NoError(t, err)
	tab.Clear()
	require.Equal(t, 100, n)
	require.Zero(t, tab.Stats().Entries)
}

// A table that has become too small grows while it is in use.
func ExampleTable_Grow() {
	sessions, err := New(&Config[uint64, uint32]{MaxEntries: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sessions.Close()
	_ = sessions.Store(1, 11)
	_ = sessions.Store(2, 22)
	fmt.Println(sessions.Store(3, 33))
	larger, err := sessions.Grow(time.Now(), 1000)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(larger.Store(3, 33))
	fmt.Println(larger.Load(1))
	fmt.Println(sessions.Load(3)) // the old name goes on working
	for larger.Stats().Behind > 0 {
		larger.Sweep(time.Now(), 512) // or Run does
	}
	fmt.Println(larger.Len(), larger.MaxEntries())
	// Output:
	// clienttable: full
	// <nil>
	// 11 true
	// 33 true
	// 3 1000
}
