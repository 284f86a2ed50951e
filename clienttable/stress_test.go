package clienttable

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// against runs f, over and over, until work is done, in n goroutines.
func against(n int, f func(r *rand.Rand), work func()) {
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for !stop.Load() {
				f(r)
			}
		})
	}
	work()
	stop.Store(true)
	wg.Wait()
}

// until repeats f for a while: short, but long enough to be interrupted many times.
func until(d time.Duration, f func(i int)) {
	for i, end := 0, time.Now().Add(d); time.Now().Before(end); i++ {
		f(i)
	}
}

// A look-up that meets an entry as it leaves finds it whole or not at all.
func TestReadWhileDeleting(t *testing.T) {
	for _, layout := range []Layout{Packed, Heap} {
		t.Run(layout.String(), func(t *testing.T) {
			tab := must(New(&Config[Flow, session]{MaxEntries: 8, Layout: layout}))
			defer tab.Close()
			now := time.Now()
			against(2, func(r *rand.Rand) {
				k := r.Uint32N(2)
				if v, ok := tab.PeekAt(now, flowOf(k)); ok && (!v.fits(k) || v.owner == 0) {
					t.Errorf("torn: %v", v)
				}
			}, func() {
				until(300*time.Millisecond, func(i int) {
					k := uint32(i % 2)
					_ = tab.StoreAt(now, flowOf(k), makeSession(k, uint64(i)))
					tab.DeleteAt(now, flowOf(k))
				})
			})
		})
	}
}

// Config.Owner never sees a value that nobody stored.
func TestOwnerSeesWholeValues(t *testing.T) {
	for _, layout := range []Layout{Packed, Heap} {
		t.Run(layout.String(), func(t *testing.T) {
			var torn atomic.Int64
			tab := must(New(&Config[Flow, session]{MaxEntries: 8, Layout: layout, Owner: func(s session) uint32 {
				if !s.fits(s.key) || s.owner == 0 {
					torn.Add(1)
				}
				return s.owner
			}}))
			defer tab.Close()
			tab.Invalidate(99) // so that owners are asked
			now := time.Now()
			against(2, func(*rand.Rand) { tab.PeekAt(now, flowOf(1)) }, func() {
				until(300*time.Millisecond, func(i int) {
					_ = tab.StoreAt(now, flowOf(1), makeSession(1, uint64(i)))
					if i%8 == 0 {
						tab.DeleteAt(now, flowOf(1))
					}
				})
			})
			require.Zero(t, torn.Load())
		})
	}
}

// Entries that stay are found by every look-up, however much others come and go and
// push them from one group to the other.
func TestNothingIsLostOnTheMove(t *testing.T) {
	const size = 600
	tab := must(New(&Config[uint64, uint64]{MaxEntries: size, TTL: time.Hour}))
	defer tab.Close()
	now := time.Now()
	const stay = size / 2
	for i := range uint64(stay) {
		require.NoError(t, tab.StoreAt(now, i, i+1))
	}
	// A table that is made for its load hardly moves anything: fill it further.
	tab.cfg.MaxEntries = int(tab.groups) * groupSlots * 97 / 100
	against(2, func(r *rand.Rand) {
		var ks, vs [8]uint64
		var ok [8]bool
		for i := range ks {
			ks[i] = r.Uint64N(stay)
		}
		tab.LoadBatch(now.Add(time.Duration(r.IntN(1000))*time.Millisecond), ks[:], vs[:], ok[:])
		for i, k := range ks {
			if v, found := tab.PeekAt(now, k); !found || v != k+1 {
				t.Errorf("lost: %d: %d %v", k, v, found)
			}
			if !ok[i] || vs[i] != k+1 {
				t.Errorf("lost in a batch: %d: %d %v", k, vs[i], ok[i])
			}
		}
	}, func() {
		r := rand.New(rand.NewPCG(5, 5))
		until(500*time.Millisecond, func(int) {
			if err := tab.StoreAt(now, stay+r.Uint64N(4*size), 0); err != nil {
				for range 20 {
					tab.DeleteAt(now, stay+r.Uint64N(4*size))
				}
			}
		})
	})
	require.Positive(t, tab.Stats().Moves)
}

// Clocks differ by a little. Still: a look-up that hits has restarted the idle time,
// so that no sweep with a clock that is ahead takes the entry away at that moment.
func TestHitOrExpired(t *testing.T) {
	for _, layout := range []Layout{Packed, Heap} {
		for _, how := range []string{"sweep", "store", "delete", "evict"} {
			t.Run(layout.String()+" "+how, func(t *testing.T) {
				var expired atomic.Int64
				tab := must(New(&Config[uint64, uint64]{MaxEntries: 1, TTL: time.Second, Layout: layout,
					OnRemove: func(k, _ uint64, why Reason) {
						if k == 1 && why == Expired {
							expired.Add(1)
						}
					}}))
				defer tab.Close()
				start := time.Now()
				until(200*time.Millisecond, func(int) {
					start = start.Add(time.Hour)
					tab.Clear()
					require.NoError(t, tab.StoreAt(start, 1, 1))
					expired.Store(0)
					hit := make(chan bool, 2)
					go func() {
						_, ok := tab.LoadAt(start.Add(999*time.Millisecond), 1)
						hit <- ok
					}()
					go func() { // it may find the idle time restarted already
						var v [1]uint64
						var ok [1]bool
						tab.LoadBatch(start.Add(999*time.Millisecond), []uint64{1}, v[:], ok[:])
						hit <- ok[0]
					}()
					late := start.Add(time.Second)
					switch how {
					case "sweep":
						for range 3 {
							tab.Sweep(late, 10)
						}
					case "store":
						_, _, _ = tab.LoadOrStoreAt(late, 1, 2)
					case "delete":
						tab.DeleteAt(late, 1)
					case "evict":
						_ = tab.StoreAt(late, 2, 2)
					}
					a, b := <-hit, <-hit
					if (a || b) && expired.Load() != 0 {
						// With LoadOrStore the hit may be of the new entry.
						if how != "store" {
							t.Error("hit, and expired all the same")
						}
					}
				})
			})
		}
	}
}

// Entries that a walk has missed because they moved, and that move on, or leave and
// come back, before it looks for them.
func TestWalkerFollowsMoves(t *testing.T) {
	w := &walker[int]{at: 5}
	w.moved(1, 7, 2)
	require.Equal(t, []int{1}, w.missed)
	w.moved(1, 7, 3) // it left and came back, and moved again
	require.Equal(t, []int{1}, w.missed)
	w.moved(1, 3, 8)
	require.Empty(t, w.missed)
	require.Empty(t, w.skip, "it has yet to be met")
	w.moved(2, 1, 6)
	require.Contains(t, w.skip, 2)
	w.moved(2, 6, 1)
	require.Empty(t, w.skip)
	require.Empty(t, w.missed)
}

// An entry that the walk missed, that is deleted and stored again ahead of the walk,
// is met once.
func TestWalkMeetsOnce(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 3000}))
	defer tab.Close()
	now := time.Now()
	for i := range uint64(2000) {
		require.NoError(t, tab.StoreAt(now, i, i))
	}
	seen := map[uint64]int{}
	for k := range tab.AllAt(now) {
		seen[k]++
		if len(seen) == 1 {
			s := &tab.shards[0]
			for i := range uint64(2000) { // as if all had moved to the first segment, and back by chance
				s.walkers[0].missed = append(s.walkers[0].missed, i)
			}
			s.walkers[0].at = 1
		}
	}
	for i := range uint64(2000) {
		slot, ok := func() (uint32, bool) {
			_, home, tag := tab.home(tab.hashOf(&i))
			return tab.find(&tab.shards[0], home, tag, &i)
		}()
		require.True(t, ok)
		if slot/segSlots >= 1 {
			require.Equal(t, 1, seen[i], "of segment %d", slot/segSlots)
		}
	}
}

func TestCountLookups(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 1 << 17, CountLookups: true}))
	defer tab.Close()
	require.NoError(t, tab.Store(1, 1))
	ks := make([]uint64, 100)
	ks[7], ks[50] = 1, 1
	require.Equal(t, 2, tab.LoadBatch(time.Now(), ks, make([]uint64, 100), make([]bool, 100)))
	tab.Load(1)
	tab.Load(2)
	st := tab.Stats()
	require.EqualValues(t, 3, st.Hits)
	require.EqualValues(t, 99, st.Misses)
}

// A clock that was ahead for a while does not silence the fill warning.
func TestFillWarningAfterClockAhead(t *testing.T) {
	warnings := 0
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 10, FillWarn: 10, OnFill: func(int, int) { warnings++ }}))
	defer tab.Close()
	now := time.Now()
	require.NoError(t, tab.StoreAt(now.Add(1000*time.Hour), 1, 1))
	require.Equal(t, 1, warnings)
	require.NoError(t, tab.StoreAt(now, 2, 1))
	require.Equal(t, 2, warnings)
	require.NoError(t, tab.StoreAt(now.Add(-time.Second), 3, 1))
	require.Equal(t, 2, warnings)
}

func TestStoreOfNothingAfterClose(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 10}))
	require.NoError(t, tab.Close())
	require.ErrorIs(t, tab.StoreLife(time.Now(), 1, 1, Life{TTL: -1}), ErrClosed)
}

// What is stored after Invalidate returned stays, what was stored before is gone for
// good, however sweeps, moves and other owners' invalidations fall in between.
func TestInvalidateAgainstSweep(t *testing.T) {
	var reported atomic.Int64
	tab := must(New(&Config[uint64, val]{MaxEntries: 500, TTL: time.Hour,
		Owner: func(v val) uint32 { return v.owner },
		OnRemove: func(_ uint64, _ val, why Reason) {
			if why == NodeGone {
				reported.Add(1)
			}
		}}))
	defer tab.Close()
	tab.cfg.MaxEntries = int(tab.groups) * groupSlots * 97 / 100
	now := time.Now()
	for i := range uint64(300) { // of nobody, to crowd the table
		require.NoError(t, tab.StoreAt(now, 1000+i, val{}))
	}
	stored, turns := int64(0), 0
	against(2, func(r *rand.Rand) {
		tab.Sweep(now, 1+r.IntN(20))
		if r.UintN(50) == 0 {
			tab.Invalidate(2 + r.Uint32N(100))
		}
	}, func() {
		until(400*time.Millisecond, func(i int) {
			turns++
			n := uint64(i%40 + 1)
			for k := range n {
				if err := tab.StoreAt(now, k, val{1, uint32(i)}); err != nil {
					t.Error(err)
				}
			}
			for k := range n {
				if v, ok := tab.PeekAt(now, k); !ok || v.data != uint32(i) {
					t.Errorf("turn %d: %d was stored after the owner came back: %v %v", i, k, v, ok)
				}
			}
			stored += int64(n)
			tab.Invalidate(1)
			for k := range n {
				if v, ok := tab.PeekAt(now, k); ok {
					t.Errorf("turn %d: %d is of an owner that is gone: %v", i, k, v)
				}
			}
		})
	})
	for tab.gone.Load() != nil {
		tab.Sweep(now, 100)
	}
	require.Equal(t, stored, reported.Load(), "in %d turns", turns)
	require.Equal(t, 300, tab.Stats().Entries)
}

// Everybody is at work when the table is closed.
func TestCloseDuringUse(t *testing.T) {
	for _, layout := range []Layout{Packed, Heap} {
		for range 8 {
			tab := must(New(&Config[uint64, val]{MaxEntries: 1 << 12, Layout: layout, ChangeLog: 10, Full: EvictOldest,
				Owner: func(v val) uint32 { return v.owner }, OnRemove: func(uint64, val, Reason) {}}))
			now := time.Now()
			against(3, func(r *rand.Rand) {
				k := r.Uint64N(1000)
				switch r.UintN(8) {
				case 0:
					tab.DeleteAt(now, k)
				case 1:
					tab.Sweep(now.Add(time.Duration(r.IntN(100))*time.Second), 10)
				case 2:
					tab.Invalidate(r.Uint32N(5))
				case 3:
					for range tab.AllAt(now) {
						break
					}
					tab.LenAt(now)
				case 4:
					tab.SetTTLAt(now, k, time.Minute)
				case 5:
					if v, ok := tab.LoadAt(now, k); ok && uint64(v.data) != k {
						t.Errorf("torn: %d %v", k, v)
					}
				default:
					_ = tab.StoreAt(now, k, val{uint32(k % 5), uint32(k)})
				}
			}, func() {
				time.Sleep(2 * time.Millisecond)
				require.NoError(t, tab.Close())
				time.Sleep(time.Millisecond)
			})
			require.ErrorIs(t, tab.Store(1, val{}), ErrClosed)
			require.Zero(t, tab.Stats().Entries)
			require.Zero(t, tab.Len())
		}
	}
}
