package sslpersist

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func newTestTable(t testing.TB, cfg *Config[string]) *Table[string] {
	t.Helper()
	tab, err := NewTable(cfg)
	require.NoError(t, err)
	return tab
}

func numbered(i uint64) SessionID {
	var b [32]byte
	for j := range 8 {
		b[31-j] = byte(i >> (8 * j))
	}
	return sid(b[:]...)
}

func TestIDsThatDifferInOneByte(t *testing.T) {
	tab := newTestTable(t, nil)
	require.NoError(t, tab.Learn(numbered(1), "a"))
	require.NoError(t, tab.Learn(numbered(2), "b"))
	require.NoError(t, tab.Learn(sid(0), "c"))
	require.NoError(t, tab.Learn(sid(0, 0), "d"))
	for id, want := range map[SessionID]string{numbered(1): "a", numbered(2): "b", sid(0): "c", sid(0, 0): "d"} {
		n, ok := tab.Lookup(id)
		require.True(t, ok)
		require.Equal(t, want, n)
	}
	require.Equal(t, 4, tab.Len())
}

func TestEmptyIDIsNeverStored(t *testing.T) {
	tab := newTestTable(t, nil)
	require.NoError(t, tab.Learn(SessionID{}, "a"))
	require.Zero(t, tab.Len())
	_, ok := tab.Lookup(SessionID{})
	require.False(t, ok)
	require.False(t, tab.RefreshAt(time.Now(), SessionID{}, "a"))
}

func TestIdleTime(t *testing.T) {
	now := time.Now()
	tab := newTestTable(t, nil)
	require.NoError(t, tab.LearnAt(now, numbered(1), "a"))
	now = now.Add(9*time.Minute + 59*time.Second)
	_, ok := tab.LookupAt(now, numbered(1))
	require.True(t, ok)
	now = now.Add(9 * time.Minute)
	_, ok = tab.PeekAt(now, numbered(1))
	require.True(t, ok, "used nine minutes ago")
	now = now.Add(time.Minute)
	_, ok = tab.LookupAt(now, numbered(1))
	require.False(t, ok, "looking is no use")
	require.Zero(t, tab.Len())
}

func TestIdleTimeInFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTestTable(t, nil)
		require.NoError(t, tab.Learn(numbered(1), "a"))
		time.Sleep(10*time.Minute - 1)
		_, ok := tab.Lookup(numbered(1))
		require.True(t, ok)
		time.Sleep(10 * time.Minute)
		_, ok = tab.Lookup(numbered(1))
		require.False(t, ok)
	})
}

func TestIdleTimeOfEachServer(t *testing.T) {
	now := time.Now()
	tab := newTestTable(t, &Config[string]{TTLOf: func(n string) time.Duration {
		return map[string]time.Duration{"short": time.Minute, "long": time.Hour}[n]
	}})
	for i, n := range []string{"short", "long", "other"} {
		require.NoError(t, tab.LearnAt(now, numbered(uint64(i)), n))
	}
	alive := func(after time.Duration) (s string) {
		for i := range uint64(3) {
			if n, ok := tab.PeekAt(now.Add(after), numbered(i)); ok {
				s += n + " "
			}
		}
		return s
	}
	require.Equal(t, "short long other ", alive(59*time.Second))
	require.Equal(t, "long other ", alive(time.Minute))
	require.Equal(t, "long ", alive(10*time.Minute))
	require.Empty(t, alive(time.Hour))

	require.NoError(t, tab.LearnAt(now, numbered(7), "short"))
	ok, err := tab.SetTTL("short", time.Hour)
	require.NoError(t, err)
	require.True(t, ok)
	_, ok = tab.PeekAt(now.Add(59*time.Minute), numbered(7))
	require.True(t, ok, "a new idle time holds for old entries")
	_, err = tab.SetTTL("short", 0)
	require.Error(t, err)
}

func TestFullTableRefusesAndNeverEvictsALiveEntry(t *testing.T) {
	for _, size := range []int{1, 10, 100_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			now := time.Now()
			tab := newTestTable(t, &Config[string]{MaxEntries: size, TTLOf: func(n string) time.Duration {
				if n == "short" {
					return time.Minute
				}
				return time.Hour
			}})
			for i := range size {
				n := "long"
				if i == size/2 {
					n = "short"
				}
				require.NoError(t, tab.LearnAt(now, numbered(uint64(i)), n))
			}
			for i := range 100 {
				require.ErrorIs(t, tab.LearnAt(now, numbered(uint64(size+i)), "long"), ErrFull)
			}
			require.Equal(t, uint64(100), tab.Stats().Refused)
			require.Equal(t, size, tab.Len())
			for i := range size {
				_, ok := tab.PeekAt(now, numbered(uint64(i)))
				require.True(t, ok)
			}
			// Known IDs are learned anew at any time.
			require.NoError(t, tab.LearnAt(now, numbered(0), "long"))
			if size > 1 {
				// The one that expires makes room for exactly one, wherever it lies.
				now = now.Add(time.Minute)
				require.NoError(t, tab.LearnAt(now, numbered(uint64(size)), "long"))
				require.ErrorIs(t, tab.LearnAt(now, numbered(uint64(size+1)), "long"), ErrFull)
			}
		})
	}
}

func TestLastLearnerWins(t *testing.T) {
	tab := newTestTable(t, nil)
	require.NoError(t, tab.Learn(numbered(1), "a"))
	require.NoError(t, tab.Learn(numbered(1), "b"))
	n, _ := tab.Lookup(numbered(1))
	require.Equal(t, "b", n)
	require.Equal(t, uint64(1), tab.Stats().Moved)
	require.Equal(t, 1, tab.Len())
	require.False(t, tab.RefreshAt(time.Now(), numbered(1), "a"))
	require.True(t, tab.RefreshAt(time.Now(), numbered(1), "b"))
	require.False(t, tab.RefreshAt(time.Now(), numbered(2), "b"))
	require.Equal(t, 1, tab.Len())
}

func TestForgetIsImmediateAndDoesNotTouchWhatComesLater(t *testing.T) {
	now := time.Now()
	tab := newTestTable(t, &Config[string]{MaxEntries: 100_000})
	for i := range uint64(50_000) {
		require.NoError(t, tab.LearnAt(now, numbered(i), []string{"a", "b"}[i&1]))
	}
	require.Equal(t, 25_000, tab.Forget("a"))
	require.Zero(t, tab.Forget("a"))
	require.Equal(t, 25_000, tab.Len())
	_, ok := tab.LookupAt(now, numbered(0))
	require.False(t, ok)
	_, ok = tab.LookupAt(now, numbered(1))
	require.True(t, ok)
	require.NoError(t, tab.LearnAt(now, numbered(2), "a"))
	n, ok := tab.LookupAt(now, numbered(2))
	require.True(t, ok)
	require.Equal(t, "a", n)
	_, ok = tab.LookupAt(now, numbered(4))
	require.False(t, ok)
	freed := 0
	for n := tab.Sweep(now, 1000); n > 0; n = tab.Sweep(now, 1000) {
		require.LessOrEqual(t, n, 1000)
		freed += n
	}
	require.Equal(t, 25_000-3, freed) // three were met before
	require.Equal(t, 25_001, tab.Stats().Entries)
}

// The table against an obviously right twin, under random operations.
func TestTableAgainstMap(t *testing.T) {
	type slow struct {
		n    string
		last time.Time
	}
	ttl := map[string]time.Duration{"a": 10 * time.Second, "b": 30 * time.Second, "c": time.Minute}
	seeds := uint64(20)
	if underRace {
		seeds = 3
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := 50 + r.IntN(100)
		tab := newTestTable(t, &Config[string]{MaxEntries: limit, TTLOf: func(n string) time.Duration { return ttl[n] }})
		twin := map[SessionID]slow{}
		now := time.Now()
		expire := func() {
			for id, s := range twin {
				if now.Sub(s.last) >= ttl[s.n] {
					delete(twin, id)
				}
			}
		}
		for range 5000 {
			now = now.Add(time.Duration(r.IntN(400)) * time.Millisecond)
			expire()
			id, n := numbered(r.Uint64N(200)), string("abc"[r.IntN(3)])
			s, known := twin[id]
			switch r.IntN(12) {
			case 0, 1, 2, 3:
				got, ok := tab.LookupAt(now, id)
				require.Equal(t, known, ok)
				require.Equal(t, s.n, got)
				if known {
					twin[id] = slow{s.n, now}
				}
			case 4:
				_, ok := tab.PeekAt(now, id)
				require.Equal(t, known, ok)
			case 5:
				require.Equal(t, known && s.n == n, tab.RefreshAt(now, id, n))
				if known && s.n == n {
					twin[id] = slow{n, now}
				}
			case 6:
				tab.Delete(id)
				delete(twin, id)
			case 7:
				if r.IntN(20) == 0 {
					tab.Forget(n)
					for id, s := range twin {
						if s.n == n {
							delete(twin, id)
						}
					}
				} else {
					tab.Sweep(now, r.IntN(10))
				}
			default:
				err := tab.LearnAt(now, id, n)
				if !known && len(twin) >= limit {
					require.ErrorIs(t, err, ErrFull)
					continue
				}
				require.NoError(t, err, "%d of %d", len(twin), limit)
				twin[id] = slow{n, now}
			}
			require.LessOrEqual(t, tab.Stats().Entries, limit)
		}
		expire()
		live := 0
		for b := range tab.e.all(tab.e.nano(now)) {
			require.Equal(t, twin[SessionID{b.k}].n, b.node)
			live++
		}
		require.Equal(t, len(twin), live)
	}
}

func TestTableConcurrently(t *testing.T) {
	tab := newTestTable(t, &Config[string]{MaxEntries: 40_000})
	done := make(chan struct{})
	for g := range uint64(4) {
		go func() {
			defer func() { done <- struct{}{} }()
			r := rand.New(rand.NewPCG(g, 2))
			for i := range 20_000 {
				id, n := numbered(r.Uint64N(60_000)), string("abcd"[r.IntN(4)])
				switch {
				case i%4000 == 3999:
					tab.Forget(n)
				case i%2 == 0:
					_ = tab.Learn(id, n)
				case i%1001 == 0:
					for range tab.All() {
					}
				default:
					tab.Lookup(id)
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
	require.LessOrEqual(t, tab.Stats().Entries, 40_000)
	n := 0
	for range tab.All() {
		n++
	}
	require.Equal(t, tab.Len(), n)
}

func TestTableLookupsDoNotAllocate(t *testing.T) {
	tab := newTestTable(t, nil)
	now := time.Now()
	require.NoError(t, tab.LearnAt(now, numbered(1), "a"))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		tab.LookupAt(now, numbered(1))
		tab.LookupAt(now, numbered(2))
		tab.RefreshAt(now, numbered(1), "a")
		_ = tab.LearnAt(now, numbered(1), "a")
	}))
}

func TestConfigFaultsAllAtOnce(t *testing.T) {
	_, err := NewTable(&Config[int]{MaxEntries: -1, TTL: -2, Feed: -3})
	require.ErrorContains(t, err, "MaxEntries is -1")
	require.ErrorContains(t, err, "TTL is -2ns")
	require.ErrorContains(t, err, "Feed is -3")
}

func BenchmarkTableLookup(b *testing.B) {
	for _, size := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			tab := newTestTable(b, &Config[string]{MaxEntries: size})
			now := time.Now()
			for i := range size {
				_ = tab.LearnAt(now, numbered(uint64(i)), "a")
			}
			r := rand.New(rand.NewPCG(1, 1))
			b.ReportAllocs()
			for b.Loop() {
				tab.LookupAt(now, numbered(r.Uint64N(uint64(size))))
			}
		})
	}
}
