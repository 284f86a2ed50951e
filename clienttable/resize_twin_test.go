package clienttable

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tourist is an iteration that is under way while everything else happens.
type tourist struct {
	next  func() (uint64, val, bool)
	stop  func()
	stay  map[uint64]bool // was there when it began, and still is
	met   map[uint64]int
	stale map[uint64]bool // has come, or come back, since
}

// TestTableOfManySizes has a table grow and shrink at random while entries come and go, iterations are under way, a follower follows, and owners are
// invalidated, and compares all with a map.
func TestTableOfManySizes(t *testing.T) {
	seeds := uint64(16)
	if raceEnabled {
		seeds = 2
	}
	for _, layout := range []Layout{Packed, Heap} {
		for seed := range seeds {
			t.Run(fmt.Sprint(layout, seed), func(t *testing.T) { playSizes(t, layout, rand.New(rand.NewPCG(seed, 9))) })
		}
	}
}

func playSizes(t *testing.T, layout Layout, r *rand.Rand) {
	world := map[uint64]val{}
	crowded := 0
	bound := 50 + r.IntN(1500)
	first := must(New(&Config[uint64, val]{
		MaxEntries: bound, Layout: layout, TTL: time.Hour, Seed: r.Uint64() | 1, ChangeLog: 1 << 16,
		Owner: func(v val) uint32 { return v.owner },
		OnRemove: func(k uint64, v val, why Reason) {
			if why == Evicted { // a storage that is nearly full, by chance
				crowded++
				require.Equal(t, world[k], v)
				delete(world, k)
			}
		},
	}))
	defer first.Close()
	now := first.epoch.Add(time.Minute)
	tables := []*Table[uint64, val]{first}
	any := func() *Table[uint64, val] { return tables[r.IntN(len(tables))] }
	var tourists []*tourist
	gone := func(k uint64) {
		for _, x := range tourists {
			delete(x.stay, k)
			x.stale[k] = true
		}
	}
	keys := uint64(2 * bound)
	for range 3000 {
		k := r.Uint64N(keys)
		old, there := world[k]
		switch tab := any(); r.UintN(20) {
		case 0, 1, 2, 3, 4, 5, 6:
			v := val{1 + r.Uint32N(6), r.Uint32()}
			before := first.Stats().Entries
			err := tab.StoreAt(now, k, v)
			st := first.Stats()
			switch {
			case there:
				require.NoError(t, err)
				world[k] = v
			case err == nil:
				require.LessOrEqual(t, st.Entries, max(before, st.Bound), "beyond the bound")
				world[k] = v
				gone(k)
			default:
				require.ErrorIs(t, err, ErrFull)
				require.GreaterOrEqual(t, before, st.Bound-st.Bound/8, "refused with room")
			}
		case 7, 8, 9:
			require.Equal(t, there, tab.DeleteAt(now, k))
			delete(world, k)
			gone(k)
		case 10:
			v, ok := tab.LoadAt(now, k)
			require.Equal(t, there, ok)
			require.Equal(t, old, v)
		case 11:
			v, loaded, err := tab.LoadOrStoreAt(now, k, val{1, 1})
			require.Equal(t, there, loaded)
			if there {
				require.Equal(t, old, v)
			} else if err == nil {
				world[k] = val{1, 1}
				gone(k)
			}
		case 12:
			require.Equal(t, there, tab.Update(now, k, func(v val, l Life) (val, Life) {
				v.data++
				return v, l
			}))
			if there {
				old.data++
				world[k] = old
			}
		case 13:
			if r.UintN(8) == 0 {
				n := 10 + r.IntN(3*bound)
				next, err := tab.Grow(now, n)
				require.NoError(t, err)
				tables = append(tables, next)
			}
		case 14:
			if r.UintN(4) == 0 {
				next, err := tab.Shrink(now, 10+r.IntN(2*bound))
				require.NoError(t, err)
				tables = append(tables, next)
			}
		case 15:
			if r.UintN(6) == 0 {
				owner := 1 + r.Uint32N(6)
				tab.Invalidate(owner)
				for k, v := range world {
					if v.owner == owner {
						delete(world, k)
						gone(k)
					}
				}
			}
		case 16, 17:
			tab.Sweep(now, 1+r.IntN(60))
		case 18:
			if len(tourists) < 4 {
				x := &tourist{stay: map[uint64]bool{}, met: map[uint64]int{}, stale: map[uint64]bool{}}
				for k := range world {
					x.stay[k] = true
				}
				x.next, x.stop = iter.Pull2(tab.AllAt(now))
				if k, _, ok := x.next(); ok { // it begins with the first step
					x.met[k]++
					tourists = append(tourists, x)
				} else {
					require.Empty(t, world)
				}
			}
		case 19:
			require.Equal(t, len(world), tab.LenAt(now))
		}
		for i := 0; i < len(tourists); i++ {
			x := tourists[i]
			for range r.IntN(20) {
				k, _, ok := x.next()
				if !ok {
					x.end(t)
					tourists = append(tourists[:i], tourists[i+1:]...)
					i--
					break
				}
				x.met[k]++
			}
		}
	}
	for _, x := range tourists {
		for k, _, ok := x.next(); ok; k, _, ok = x.next() {
			x.met[k]++
		}
		x.end(t)
	}
	require.Equal(t, world, maps.Collect(first.AllAt(now)))
	for range 10000 {
		if !first.Growing() && first.newest().gone.Load() == nil {
			break
		}
		first.Sweep(now, 100)
	}
	require.Equal(t, world, maps.Collect(first.AllAt(now)))
	st := first.Stats()
	require.Equal(t, len(world), st.Entries)
	require.Equal(t, st.Stores, uint64(st.Entries)+st.Expired+st.Deleted+st.Replaced+st.Evicted+st.NodeGone)
	require.LessOrEqual(t, crowded, 3)
	if layout == Heap {
		return
	}
	// A follower that was told everything, and a snapshot.
	follower := must(New(&Config[uint64, val]{MaxEntries: 20000, TTL: time.Hour}))
	defer follower.Close()
	changes := make([]Change[uint64, val], 1<<16)
	n, err := any().Changes(0, changes)
	require.NoError(t, err)
	require.NoError(t, follower.Apply(now, changes[:n]...))
	require.Equal(t, world, maps.Collect(follower.AllAt(now)))
	var file bytes.Buffer
	_, err = any().WriteSnapshot(now, &file)
	require.NoError(t, err)
	copied := must(New(&Config[uint64, val]{MaxEntries: 20000}))
	defer copied.Close()
	res, err := copied.ReadSnapshot(now, &file)
	require.NoError(t, err)
	require.Equal(t, len(world), res.Entries)
	require.Equal(t, world, maps.Collect(copied.AllAt(now)))
}

// end looks at what an iteration met.
func (x *tourist) end(t *testing.T) {
	x.stop()
	for k := range x.stay {
		require.Equal(t, 1, x.met[k], "%d was there all the time", k)
	}
	for k, n := range x.met {
		if !x.stale[k] {
			require.LessOrEqual(t, n, 1, k)
		}
	}
}
