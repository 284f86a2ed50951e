package sslpersist

import (
	"bytes"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func live(e *engine[string], now time.Time) map[key]string {
	out := map[key]string{}
	for b := range e.all(e.nano(now)) {
		out[b.k] = b.node
	}
	return out
}

// A copy that follows the feed knows what the table knows, also where changes are applied
// twice, and after it lagged too far behind and took a snapshot.
func TestCopyFollows(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 3))
		a := newTestTable(t, &Config[string]{Feed: 64, TTL: time.Hour})
		b := newTestTable(t, &Config[string]{TTL: time.Hour})
		now := time.Now().Round(0) // deltas have no monotonic part either
		var at uint64
		snapshots := 0
		for range 200 {
			for range r.IntN(100) {
				now = now.Add(time.Duration(r.IntN(20)) * time.Millisecond)
				id, n := numbered(r.Uint64N(300)), string("abcd"[r.IntN(4)])
				switch r.IntN(40) {
				case 0:
					a.Forget(n)
				case 1, 2:
					a.Delete(id)
				case 3, 4, 5, 6:
					a.LookupAt(now, id)
				default:
					require.NoError(t, a.LearnAt(now, id, n))
				}
			}
			from := at - min(at, r.Uint64N(5)) // some again
			ds, err := a.Changes(nil, from)
			if err != nil {
				require.ErrorIs(t, err, ErrLagged)
				at = a.LastSeq()
				var buf bytes.Buffer
				require.NoError(t, a.WriteSnapshot(&buf, now, name))
				b = newTestTable(t, &Config[string]{TTL: time.Hour})
				st, err := b.Restore(&buf, now, byName)
				require.NoError(t, err)
				require.Equal(t, len(live(a.e, now)), st.Restored)
				snapshots++
			}
			for i, d := range ds {
				require.Equal(t, from+uint64(i)+1, d.Seq)
				wire, err := AppendDelta(nil, d, name)
				require.NoError(t, err)
				got, rest, ok, err := ParseDelta(wire, byName)
				require.NoError(t, err)
				require.True(t, ok)
				require.Empty(t, rest)
				require.NoError(t, b.Apply(now, got))
				at = d.Seq
			}
			require.Equal(t, live(a.e, now), live(b.e, now))
		}
		require.NotZero(t, snapshots)
	}
}

// The order in which changes are told is the order in which they happened, also where
// nodes are forgotten while others learn for them.
func TestFeedTellsInOrder(t *testing.T) {
	for range 3 {
		const changes = 20_000
		a := newTestTable(t, &Config[string]{Feed: 1 << 17, MaxEntries: 100_000})
		var wg sync.WaitGroup
		for g := range uint64(4) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(g, 4))
				for range changes / 4 {
					id, n := numbered(r.Uint64N(500)), string("ab"[r.IntN(2)])
					switch r.IntN(20) {
					case 0:
						a.Forget(n)
					case 1:
						a.Delete(id)
					case 2:
						a.Sweep(time.Now(), 10)
					case 3, 4:
						a.Lookup(id)
					default:
						_ = a.Learn(id, n)
					}
				}
			})
		}
		wg.Wait()
		b := newTestTable(t, nil)
		ds, err := a.Changes(nil, 0)
		require.NoError(t, err)
		now := time.Now()
		for _, d := range ds {
			require.NoError(t, b.Apply(now, d))
		}
		require.Equal(t, live(a.e, now), live(b.e, now))
		require.LessOrEqual(t, a.Len(), 500)
	}
}

// A change that comes after its idle time is over must not live again, nor take a place.
func TestLateDeltaIsPassedOver(t *testing.T) {
	now := time.Now()
	tab := newTestTable(t, nil)
	for i := range uint64(100) {
		require.NoError(t, tab.LearnAt(now, numbered(i), "a"))
	}
	require.NoError(t, tab.Apply(now, Delta[string]{Seq: 1, Op: OpLearn, ID: numbered(500), Node: "a", At: now.Add(-DefaultTTL)}))
	_, ok := tab.PeekAt(now, numbered(500))
	require.False(t, ok)
	require.Equal(t, 100, tab.Stats().Entries)
	// One from the future counts as now.
	require.NoError(t, tab.Apply(now, Delta[string]{Seq: 2, Op: OpLearn, ID: numbered(501), Node: "a", At: now.Add(24 * time.Hour)}))
	_, ok = tab.PeekAt(now.Add(DefaultTTL), numbered(501))
	require.False(t, ok)
	require.ErrorContains(t, tab.Apply(now, Delta[string]{Seq: 3, Op: 9, ID: numbered(1), Node: "a"}), "operation 9")
	require.ErrorContains(t, tab.Apply(now, Delta[string]{Seq: 3, Op: OpLearn, Node: "a"}), "key of 0 bytes")
	require.Error(t, tab.Apply(now, Delta[string]{}))
	// A deletion is for the node it names.
	require.NoError(t, tab.Apply(now, Delta[string]{Op: OpDelete, ID: numbered(1), Node: "b"}))
	require.NoError(t, tab.Apply(now, Delta[string]{Op: OpDelete, ID: numbered(2), Node: "a"}))
	_, ok = tab.PeekAt(now, numbered(1))
	require.True(t, ok)
	_, ok = tab.PeekAt(now, numbered(2))
	require.False(t, ok)
}

// A Forget is told even by a table that has nothing of the node: the copy may have.
func TestForgetIsToldInAnyCase(t *testing.T) {
	a := newTestTable(t, &Config[string]{Feed: 4})
	require.Zero(t, a.Forget("a"))
	ds, err := a.Changes(nil, 0)
	require.NoError(t, err)
	require.Equal(t, []Delta[string]{{Seq: 1, Op: OpForget, Node: "a"}}, ds)
}

func TestKeyNamesOfAnotherLengthAreNotTaken(t *testing.T) {
	now := time.Now()
	four, err := NewKeyTable(&KeyConfig[string]{Prefix: 4, Feed: 8})
	require.NoError(t, err)
	sixteen, err := NewKeyTable[string](nil)
	require.NoError(t, err)
	for i := range byte(2) {
		require.NoError(t, four.LearnAt(now, MarkTicket(ticketOf(1, int(i))), "a", false))
	}
	require.Equal(t, 1, four.Len())
	ds, err := four.Changes(nil, 0)
	require.NoError(t, err)
	require.ErrorContains(t, sixteen.Apply(now, ds[0]), "key of 4 bytes: want 16")
	var buf bytes.Buffer
	require.NoError(t, four.WriteSnapshot(&buf, now, name))
	st, err := sixteen.Restore(&buf, now, byName)
	require.NoError(t, err)
	require.Equal(t, RestoreStats{Unknown: 1}, st)
	// A forgotten node's single tickets are forgotten by the copy too.
	require.NoError(t, sixteen.LearnAt(now, MarkTicket(ticketOf(1, 1)), "a", false))
	require.NoError(t, sixteen.Apply(now, Delta[string]{Op: OpForget, Node: "a"}))
	require.Zero(t, sixteen.Waiting())
}

// Client addresses are replicated as the rest is.
func TestAddressesFollow(t *testing.T) {
	set := &Settings[string]{ClientAddr: true, Feed: 16}
	a, b := newWorld(t, set), newWorld(t, set)
	b.now = a.now
	a.connect(clientA, helloSpec{}.client(), "a")
	a.connect(clientB, helloSpec{}.client(), "b")
	ds, err := a.f.Addrs().Changes(nil, 0)
	require.NoError(t, err)
	require.Len(t, ds, 2)
	require.Equal(t, uint64(2), a.f.Addrs().LastSeq())
	for _, d := range ds {
		require.NoError(t, b.f.Addrs().Apply(b.now, d))
	}
	b.want(clientA, helloSpec{}.client(), "a", ByAddr)
	b.want(clientB, helloSpec{}.client(), "b", ByAddr)
	b.want(clientB.WithZone("eth0"), helloSpec{}.client(), "b", ByAddr)
	_, ok := b.f.Addrs().PeekAt(b.now, netip.Addr{})
	require.False(t, ok)
	require.Equal(t, 2, b.f.Addrs().Len())
	for addr, n := range b.f.Addrs().All() {
		require.Equal(t, map[bool]string{true: "a", false: "b"}[addr == clientA], n)
	}
	require.ErrorContains(t, b.f.Addrs().Apply(b.now, Delta[string]{Op: OpLearn, ID: numbered(1), Node: "a", At: b.now}), "want 16")
	a.f.Addrs().Delete(clientA)
	ds, err = a.f.Addrs().Changes(nil, 2)
	require.NoError(t, err)
	require.NoError(t, b.f.Addrs().Apply(b.now, ds[0]))
	_, ok = b.f.Addrs().PeekAt(b.now, clientA)
	require.False(t, ok)
}

// Clocks that go backwards, or are no clocks at all, lose no live entry.
func TestStrangeClocks(t *testing.T) {
	now := time.Now()
	tab := newTestTable(t, nil)
	require.NoError(t, tab.LearnAt(now, numbered(1), "a"))
	for _, strange := range []time.Time{{}, time.Unix(0, 0), now.Add(-time.Hour), time.Unix(math.MinInt32, 0), now.Add(math.MinInt64)} {
		n, ok := tab.LookupAt(strange, numbered(1))
		require.True(t, ok, strange)
		require.Equal(t, "a", n)
		require.True(t, tab.RefreshAt(strange, numbered(1), "a"))
		require.Zero(t, tab.Sweep(strange, 10))
		require.NoError(t, tab.LearnAt(strange, numbered(1), "a"))
	}
	_, ok := tab.PeekAt(now.Add(DefaultTTL-1), numbered(1))
	require.True(t, ok)
	_, ok = tab.PeekAt(now.Add(math.MaxInt64), numbered(1))
	require.False(t, ok)
	// No idle time at all, as near as can be.
	tab = newTestTable(t, &Config[string]{TTL: math.MaxInt64})
	require.NoError(t, tab.LearnAt(time.Time{}, numbered(1), "a"))
	_, ok = tab.PeekAt(now.Add(math.MaxInt64), numbered(1))
	require.True(t, ok)
}

// Every way to damage a snapshot is noticed, and nothing of it used.
func TestDamagedSnapshots(t *testing.T) {
	now := time.Now()
	w := newWorld(t, &Settings[string]{Tickets: true, ClientAddr: true})
	w.connect(clientA, helloSpec{}.client(), "a", issues(1))
	w.connect(clientB, helloSpec{}.client(), "b", issues(2))
	var buf bytes.Buffer
	require.NoError(t, w.f.WriteSnapshot(&buf, now, name))
	good := buf.Bytes()
	tryBad := func(b []byte) {
		t.Helper()
		f := newWorld(t, &Settings[string]{Tickets: true, ClientAddr: true}).f
		_, err := f.Restore(bytes.NewReader(b), now, byName)
		require.ErrorIs(t, err, ErrSnapshot)
		require.Zero(t, f.IDs().Len()+f.Addrs().Len())
	}
	for cut := range good {
		tryBad(good[:cut])
	}
	for i := range good {
		for bit := range 8 {
			b := slices.Clone(good)
			b[i] ^= 1 << bit
			tryBad(b)
		}
	}
	tryBad(append(slices.Clone(good), 0))
	tryBad(append(slices.Clone(good), good...))
}

// SetTTL while others learn and sweep: no entry outlives the idle time set last.
func TestSetTTLWhileLearning(t *testing.T) {
	now := time.Now()
	tab := newTestTable(t, &Config[string]{MaxEntries: 50_000})
	require.NoError(t, tab.LearnAt(now, numbered(0), "a"))
	var wg sync.WaitGroup
	for g := range uint64(3) {
		wg.Go(func() {
			for i := range uint64(3000) {
				_ = tab.LearnAt(now, numbered(g*3000+i), "a")
				if i%100 == 0 {
					tab.Sweep(now, 10)
				}
			}
		})
	}
	wg.Go(func() {
		for _, d := range []time.Duration{time.Hour, time.Second, time.Minute, time.Second} {
			_, err := tab.SetTTL("a", d)
			require.NoError(t, err)
		}
	})
	wg.Wait()
	_, err := tab.SetTTL("a", time.Second)
	require.NoError(t, err)
	require.Equal(t, 9000, tab.Sweep(now.Add(time.Second), math.MaxInt))
	require.Zero(t, tab.Stats().Entries)
}

// Nodes that come and go in great numbers leave nothing behind.
func TestForgottenNodesAreGone(t *testing.T) {
	now := time.Now()
	tab := newTestTable(t, &Config[string]{MaxEntries: 100})
	for i := range uint64(500) {
		n := string(rune('a' + i%26))
		require.NoError(t, tab.LearnAt(now, numbered(i), n), "%d", i)
		require.Equal(t, 1, tab.Forget(n))
	}
	tab.Sweep(now, math.MaxInt)
	require.Zero(t, tab.Stats().Entries)
	require.Zero(t, tab.Len())
	require.LessOrEqual(t, len(*tab.e.owners.list.Load()), 101)
}

// A snapshot taken into a table in use makes nothing older or younger than it is.
func TestRestoreIntoALiveTable(t *testing.T) {
	now := time.Now()
	old := newTestTable(t, nil)
	for i := range uint64(20) {
		require.NoError(t, old.LearnAt(now.Add(time.Duration(i)*time.Second), numbered(i), "a"))
	}
	var buf bytes.Buffer
	now = now.Add(5 * time.Minute)
	require.NoError(t, old.WriteSnapshot(&buf, now, name))
	tab := newTestTable(t, &Config[string]{MaxEntries: 30})
	for i := range uint64(20) {
		require.NoError(t, tab.LearnAt(now, numbered(100+i), "a"))
	}
	st, err := tab.Restore(&buf, now, byName)
	require.NoError(t, err)
	require.Equal(t, RestoreStats{Restored: 10, Refused: 10}, st)
	for i := range uint64(20) {
		ends := now.Add(5*time.Minute + time.Duration(i)*time.Second)
		_, ok := tab.PeekAt(ends.Add(-time.Millisecond), numbered(i))
		require.Equal(t, i >= 10, ok, "the newest are kept")
		_, ok = tab.PeekAt(ends.Add(time.Millisecond), numbered(i))
		require.False(t, ok, i)
	}
	require.Equal(t, 20, tab.Len())
}
