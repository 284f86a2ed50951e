package clienttable

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// session is a value whose parts must fit together: a torn read shows.
type session struct {
	owner uint32
	key   uint32
	check [3]uint64
}

func makeSession(key uint32, serial uint64) session {
	return session{key%8 + 1, key, [3]uint64{serial, serial * mix0, serial*mix1 ^ uint64(key)}}
}

func (s session) fits(key uint32) bool {
	return s.key == key && s.check[1] == s.check[0]*mix0 && s.check[2] == s.check[0]*mix1^uint64(key)
}

func flowOf(i uint32) Flow {
	return MakeFlow4(6, [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}, [4]byte{192, 0, 2, 1}, uint16(i), 80)
}

// Everything at once. In the end every entry that was stored is either there or
// was reported exactly once.
func TestConcurrent(t *testing.T) {
	for _, layout := range []Layout{Packed, Heap} {
		t.Run(layout.String(), func(t *testing.T) {
			const keys, size = 3000, 2000
			var gone [keys]atomic.Int64
			var stored [keys]atomic.Int64
			tab, err := New(&Config[Flow, session]{
				MaxEntries: size, Layout: layout, Full: EvictOldest, TTL: time.Second, ChangeLog: 64,
				Owner: func(s session) uint32 { return s.owner },
				OnRemove: func(k Flow, s session, why Reason) {
					if !s.fits(s.key) || k != flowOf(s.key) {
						t.Errorf("torn on removal: %v %v", k, s)
					}
					gone[s.key].Add(1)
				},
			})
			require.NoError(t, err)
			first := tab // and what it has grown to
			var other atomic.Pointer[Table[Flow, session]]
			other.Store(tab)
			var clock, serial atomic.Int64
			now := func() time.Time { return tab.epoch.Add(time.Duration(clock.Load())) }
			var wg sync.WaitGroup
			work := func(n int, f func(r *rand.Rand, tab *Table[Flow, session])) {
				for i := range n {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(uint64(i), 9))
						for n := range 4000 {
							f(r, []*Table[Flow, session]{first, other.Load()}[n%2])
						}
					})
				}
			}
			work(2, func(r *rand.Rand, tab *Table[Flow, session]) { // readers
				k := r.Uint32N(keys)
				if s, ok := tab.LoadAt(now(), flowOf(k)); ok && !s.fits(k) {
					t.Errorf("torn: %v %v", k, s)
				}
			})
			work(1, func(r *rand.Rand, tab *Table[Flow, session]) { // a reader of batches
				var ks [8]Flow
				var is [8]uint32
				var vs [8]session
				var ok [8]bool
				for i := range ks {
					is[i] = r.Uint32N(keys)
					ks[i] = flowOf(is[i])
				}
				tab.LoadBatch(now(), ks[:], vs[:], ok[:])
				for i := range ok {
					if ok[i] && !vs[i].fits(is[i]) {
						t.Errorf("torn: %v %v", is[i], vs[i])
					}
				}
			})
			work(2, func(r *rand.Rand, tab *Table[Flow, session]) { // writers
				k := r.Uint32N(keys)
				l := Life{Class: Class(r.UintN(3)), TTL: time.Duration(1+r.IntN(3000)) * time.Millisecond}
				v := makeSession(k, uint64(serial.Add(1)))
				switch r.UintN(6) {
				case 0:
					tab.DeleteAt(now(), flowOf(k))
				case 1:
					tab.SetLife(now(), flowOf(k), l)
				case 2:
					tab.Update(now(), flowOf(k), func(s session, was Life) (session, Life) {
						if !s.fits(k) {
							t.Errorf("torn in update: %v %v", k, s)
						}
						return v, l
					})
				case 3:
					if _, loaded, err := tab.LoadOrStoreLife(now(), flowOf(k), v, l); err == nil && !loaded {
						stored[k].Add(1)
					}
				default:
					if tab.StoreLife(now(), flowOf(k), v, l) == nil {
						stored[k].Add(1)
					}
				}
			})
			work(1, func(r *rand.Rand, tab *Table[Flow, session]) { // time passes
				clock.Add(int64(r.IntN(4)) * int64(time.Millisecond))
				if r.UintN(20) == 0 {
					tab.Sweep(now(), r.IntN(100))
				}
				if r.UintN(100) == 0 {
					tab.Invalidate(r.Uint32N(9))
				}
				if r.UintN(300) == 0 {
					next, err := tab.Grow(now(), tab.MaxEntries()+r.IntN(200))
					if err != nil {
						t.Error(err)
					}
					if r.UintN(2) == 0 {
						other.Store(next)
					}
				}
				if r.UintN(400) == 0 {
					seen := map[Flow]session{} // a key that was stored again meanwhile is another entry
					for k, s := range tab.AllAt(now()) {
						if had, ok := seen[k]; ok && had == s || !s.fits(s.key) {
							t.Errorf("twice or torn: %v %v", k, s)
						}
						seen[k] = s
					}
					tab.LenAt(now())
					if layout == Packed {
						var buf bytes.Buffer
						if _, err := tab.WriteSnapshot(now(), &buf); err != nil {
							t.Error(err)
						}
						other := must(New(&Config[Flow, session]{MaxEntries: 8 * size}))
						if _, err := other.ReadSnapshot(now(), &buf); err != nil {
							t.Error(err)
						}
						other.Close()
					}
					tab.Stats()
				}
			})
			wg.Wait()
			tab.Clear()
			require.Zero(t, tab.Stats().Entries)
			for k := range keys {
				require.Equal(t, stored[k].Load(), gone[k].Load(), "key %d", k)
			}
		})
	}
}
