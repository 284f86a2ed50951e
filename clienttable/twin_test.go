package clienttable

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// twin is an obviously right table, for comparison: a map, and no attempt at
// speed. It leaves the choice of a victim to the table under test.
type twin struct {
	max   int
	ttl   time.Duration
	full  FullAction
	m     map[uint64]*twinEntry
	epoch time.Time
	out   []twinGone
}

type twinEntry struct {
	v    val
	life Life
	exp  time.Time // whole milliseconds after epoch
	gone bool      // owner invalidated
}

type val struct {
	owner uint32
	data  uint32
}

type twinGone struct {
	k   uint64
	v   val
	why Reason
}

func (w *twin) ms(t time.Time) time.Time {
	return w.epoch.Add(t.Sub(w.epoch).Truncate(time.Millisecond))
}

func (w *twin) deadline(now time.Time, l Life) time.Time {
	if l.Class == Static {
		return w.epoch.Add(1 << 62)
	}
	return w.ms(now).Add(l.TTL)
}

func (w *twin) state(now time.Time, e *twinEntry) Reason {
	switch {
	case !w.ms(now).Before(e.exp):
		return Expired
	case e.gone:
		return NodeGone
	}
	return 0
}

func (w *twin) remove(k uint64, why Reason) {
	w.out = append(w.out, twinGone{k, w.m[k].v, why})
	delete(w.m, k)
}

func (w *twin) load(now time.Time, k uint64, touch bool) (val, bool) {
	e := w.m[k]
	if e == nil || w.state(now, e) != 0 {
		return val{}, false
	}
	if touch && !e.life.Fixed {
		if exp := w.deadline(now, e.life); exp.After(e.exp) {
			e.exp = exp
		}
	}
	return e.v, true
}

// put stores if there is room, and says whether there was.
func (w *twin) put(now time.Time, k uint64, v val, l Life) bool {
	if l.TTL == 0 {
		l.TTL = w.ttl
	}
	if e := w.m[k]; e != nil {
		why := w.state(now, e)
		if why == 0 {
			why = Replaced
		}
		w.remove(k, why)
	} else if len(w.m) >= w.max {
		return false
	}
	w.m[k] = &twinEntry{v: v, life: l, exp: w.deadline(now, l)}
	return true
}

func (w *twin) take(now time.Time, k uint64) (v val, ok bool) {
	e := w.m[k]
	if e == nil {
		return v, false
	}
	if why := w.state(now, e); why != 0 {
		w.remove(k, why)
		return v, false
	}
	v = e.v
	w.remove(k, Deleted)
	return v, true
}

func (w *twin) live(now time.Time) (n int) {
	for _, e := range w.m {
		if w.state(now, e) == 0 {
			n++
		}
	}
	return
}

// rank is the order of eviction: the classes that may be evicted, best first.
func (w *twin) rank(now time.Time, e *twinEntry) int {
	switch {
	case w.state(now, e) != 0:
		return 0
	case e.life.Class == HalfOpen:
		return 1
	case e.life.Class == Lingering:
		return 2
	case e.life.Class == Established:
		return 3
	}
	return 4
}

var lives = []Life{
	{}, {}, {TTL: 5 * time.Second, Class: HalfOpen}, {TTL: 2 * time.Second, Class: Lingering},
	{TTL: 30 * time.Second, Fixed: true}, {TTL: 600 * time.Second}, {Class: Static}, {TTL: 64 * time.Millisecond},
	{TTL: 9 * time.Second, Class: HalfOpen, Fixed: true},
}

// play runs the operations that the bytes of script stand for on a table and on
// its twin.
func play(t testing.TB, script []byte, keys uint64, cfg Config[uint64, val], jump time.Duration) {
	var out []twinGone
	cfg.OnRemove = func(k uint64, v val, why Reason) { out = append(out, twinGone{k, v, why}) }
	cfg.Owner = func(v val) uint32 { return v.owner }
	tab, err := New(&cfg)
	require.NoError(t, err)
	defer tab.Close()
	first, grown, grows := tab, tab, 0
	w := &twin{max: cfg.MaxEntries, ttl: DefaultTTL, full: cfg.Full, m: map[uint64]*twinEntry{}, epoch: tab.epoch}
	now := tab.epoch.Add(jump)
	var serial uint32

	// early takes over which dead entries the table removed on the way.
	early := func() {
		for _, o := range out {
			if e := w.m[o.k]; e != nil && e.v == o.v && w.state(now, e) == o.why {
				w.remove(o.k, o.why)
			}
		}
	}
	settle := func(at int) {
		t.Helper()
		if grows > 0 {
			early() // any change of a key carries it over, or finds it dead
		}
		order := func(a, b twinGone) int {
			if a.k != b.k {
				return int(int64(a.k) - int64(b.k))
			}
			return int(int64(a.v.data) - int64(b.v.data))
		}
		slices.SortFunc(out, order)
		slices.SortFunc(w.out, order)
		if !slices.Equal(out, w.out) {
			require.Equal(t, w.out, out, "removals, operation %d", at)
		}
		out, w.out = out[:0], w.out[:0]
	}
	// victims takes over which entries the table evicted for a new one, if these
	// were the right ones to evict.
	victims := func(at int, ok bool) {
		t.Helper()
		if grown.Stats().Behind > 0 { // the order is that of each table
			for _, o := range out {
				require.NotNil(t, w.m[o.k])
				require.NotEqual(t, Static, w.m[o.k].life.Class)
				require.Contains(t, []Reason{Expired, NodeGone, Evicted}, o.why)
				w.remove(o.k, o.why)
			}
			return
		}
		if !ok { // refused: there must have been nobody to evict
			for _, e := range w.m {
				most := 2
				if cfg.Full == EvictOldest {
					most = 3
				}
				require.Greater(t, w.rank(now, e), most, "refused, operation %d", at)
			}
			return
		}
		for _, o := range out {
			e := w.m[o.k]
			require.NotNil(t, e)
			r := w.rank(now, e)
			for _, f := range w.m {
				require.GreaterOrEqual(t, w.rank(now, f), r, "evicted the wrong one, operation %d", at)
				if r == 3 {
					used := func(e *twinEntry) time.Time { return e.exp.Add(-e.life.TTL) }
					require.False(t, used(f).Before(used(e)), "not the oldest, operation %d", at)
				}
			}
			why := w.state(now, e)
			if why == 0 {
				why = Evicted
			}
			require.Equal(t, why, o.why)
			w.remove(o.k, o.why)
		}
	}
	for at := 0; at+3 < len(script); at += 4 {
		op, k, a, b := script[at], uint64(script[at+1])%keys, script[at+2], script[at+3]
		k *= 0x10001
		now = now.Add(time.Duration(b) * 7 * time.Millisecond)
		serial++
		v := val{uint32(a % 4), serial}
		l := lives[int(a/4)%len(lives)]
		tab := []*Table[uint64, val]{first, tab, grown}[at/4%3]
		switch op % 16 {
		case 0, 1, 2:
			got, ok := tab.LoadAt(now, k)
			want, wok := w.load(now, k, true)
			require.Equal(t, wok, ok, "Load, operation %d", at)
			require.Equal(t, want, got)
		case 3:
			got, ok := tab.PeekAt(now, k)
			want, wok := w.load(now, k, false)
			require.Equal(t, wok, ok, "Peek, operation %d", at)
			require.Equal(t, want, got)
		case 4, 5, 6, 7:
			err := tab.StoreLife(now, k, v, l)
			if w.m[k] == nil && len(w.m) >= w.max {
				victims(at, err == nil)
			}
			require.Equal(t, w.put(now, k, v, l), err == nil, "Store, operation %d", at)
			early()
			if err != nil {
				require.ErrorIs(t, err, ErrFull)
			}
		case 8, 9:
			got, loaded, err := tab.LoadOrStoreLife(now, k, v, l)
			want, wloaded := w.load(now, k, true)
			require.Equal(t, wloaded, loaded, "LoadOrStore, operation %d", at)
			if wloaded {
				require.Equal(t, want, got)
				break
			}
			if w.m[k] == nil && len(w.m) >= w.max {
				victims(at, err == nil)
			}
			require.Equal(t, w.put(now, k, v, l), err == nil)
			early()
			require.Equal(t, v, got)
		case 10:
			got, ok := tab.LoadAndDeleteAt(now, k)
			want, wok := w.take(now, k)
			require.Equal(t, wok, ok, "Delete, operation %d", at)
			require.Equal(t, want, got)
		case 11:
			ok := tab.SetLife(now, k, l)
			e := w.m[k]
			wok := e != nil && w.state(now, e) == 0
			require.Equal(t, wok, ok, "SetLife, operation %d", at)
			if wok {
				if l.TTL == 0 {
					l.TTL = w.ttl
				}
				e.life, e.exp = l, w.deadline(now, l)
			}
		case 12:
			ok := tab.Update(now, k, func(old val, was Life) (val, Life) {
				require.Equal(t, w.m[k].v, old)
				require.Equal(t, w.m[k].life, was)
				return v, was
			})
			e := w.m[k]
			wok := e != nil && w.state(now, e) == 0
			require.Equal(t, wok, ok, "Update, operation %d", at)
			if wok {
				e.v = v
				if !e.life.Fixed {
					e.exp = w.deadline(now, e.life)
				}
			}
		case 13:
			if a%64 == 63 && grows < 8 {
				w.max += int(b % 64)
				grown, err = tab.Grow(now, w.max)
				require.NoError(t, err)
				grows++
				if b%2 == 0 {
					first = grown
				}
				for _, o := range out { // one that was under way was completed
					require.Equal(t, w.state(now, w.m[o.k]), o.why)
					w.remove(o.k, o.why)
				}
			} else if a%8 == 0 {
				owner := uint32(b % 4)
				tab.Invalidate(owner)
				for _, e := range w.m {
					e.gone = e.gone || owner != 0 && e.v.owner == owner
				}
			} else {
				tab.Sweep(now, int(b))
				for _, o := range out {
					e := w.m[o.k]
					require.NotNil(t, e)
					require.Equal(t, w.state(now, e), o.why)
					w.remove(o.k, o.why)
				}
			}
		case 14:
			require.Equal(t, w.live(now), tab.LenAt(now), "Len, operation %d", at)
			if a%16 == 0 {
				got := maps.Collect(tab.AllAt(now))
				want := map[uint64]val{}
				for k, e := range w.m {
					if w.state(now, e) == 0 {
						want[k] = e.v
					}
				}
				require.Equal(t, want, got, "All, operation %d", at)
			}
		case 15:
			now = now.Add(time.Duration(a) * time.Duration(b) * 4 * time.Millisecond)
		}
		settle(at)
	}
	// A thorough sweep removes all that is not alive, and only that.
	for range 64 {
		tab.Sweep(now, 1<<16)
	}
	for k, e := range maps.Clone(w.m) {
		if why := w.state(now, e); why != 0 {
			w.remove(k, why)
		}
	}
	settle(len(script))
	require.Equal(t, len(w.m), tab.Stats().Entries)
	st := tab.Stats()
	require.Equal(t, st.Stores, uint64(st.Entries)+st.Expired+st.Deleted+st.Replaced+st.Evicted+st.NodeGone)
}

func TestTwin(t *testing.T) {
	for _, c := range []struct {
		name string
		keys uint64
		cfg  Config[uint64, val]
		jump time.Duration
	}{
		{"roomy", 200, Config[uint64, val]{MaxEntries: 256}, 0},
		{"full", 250, Config[uint64, val]{MaxEntries: 100}, 0},
		{"evicting", 250, Config[uint64, val]{MaxEntries: 100, Full: EvictOldest}, 0},
		{"tiny", 20, Config[uint64, val]{MaxEntries: 3}, 0},
		{"tiny evicting", 20, Config[uint64, val]{MaxEntries: 1, Full: EvictOldest}, 0},
		{"heap", 250, Config[uint64, val]{MaxEntries: 100, Layout: Heap}, 0},
		{"around 2^32 ms", 250, Config[uint64, val]{MaxEntries: 100}, 1<<32*time.Millisecond - 10*time.Second},
		{"around 2^40 ms", 250, Config[uint64, val]{MaxEntries: 100}, 1<<40*time.Millisecond - 10*time.Second},
		{"before the epoch", 250, Config[uint64, val]{MaxEntries: 100}, -30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(12) {
				r := rand.New(rand.NewPCG(seed, 7))
				script := make([]byte, 4*3000)
				for i := range script {
					script[i] = byte(r.Uint32())
				}
				c.cfg.Seed = seed + 1
				play(t, script, c.keys, c.cfg, c.jump)
			}
		})
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte("\x04\x01\x00\x00\x00\x01\x00\x00\x0a\x01\x00\x00"), uint8(4))
	r := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		b := make([]byte, 800)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b, uint8(r.Uint32()))
	}
	f.Fuzz(func(t *testing.T, script []byte, setting uint8) {
		cfg := Config[uint64, val]{MaxEntries: 1 + int(setting%32), Seed: 1}
		if setting&32 != 0 {
			cfg.Full = EvictOldest
		}
		if setting&64 != 0 {
			cfg.Layout = Heap
		}
		play(t, script, 48, cfg, 0)
	})
}
