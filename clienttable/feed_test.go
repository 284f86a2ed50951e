package clienttable

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func feedTable(t testing.TB) *Feed[Flow, uint64] {
	t.Helper()
	tab, err := New(&Config[Flow, uint64]{MaxEntries: 1 << 10, ChangeLog: 512})
	require.NoError(t, err)
	t.Cleanup(func() { tab.Close() })
	return &Feed[Flow, uint64]{Table: tab}
}

func feedKey(i int) Flow {
	return MakeFlow(6, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), uint16(i)), netip.MustParseAddrPort("192.0.2.1:80"))
}

// TestFeedBothWays: two tables follow each other and come to rest.
func TestFeedBothWays(t *testing.T) {
	a, b := feedTable(t), feedTable(t)
	for i := range 100 {
		require.NoError(t, a.Table.StoreLife(time.Now(), feedKey(i), uint64(i), Life{TTL: time.Hour, Class: HalfOpen}))
		require.NoError(t, b.Table.Store(feedKey(100+i), uint64(i)))
	}
	a.Table.Delete(feedKey(5))
	pass := func(from, to *Feed[Flow, uint64], after uint64) (uint64, int) {
		var total int
		for {
			msg, last, err := from.AppendChanges(nil, after, 200)
			require.NoError(t, err)
			total += len(msg)
			require.NoError(t, to.Apply(msg))
			if last == after {
				return last, total
			}
			after = last
		}
	}
	atA, n := pass(a, b, 0)
	require.Positive(t, n)
	atB, n := pass(b, a, 0)
	require.Positive(t, n)
	require.Equal(t, 199, a.Table.Len())
	require.Equal(t, 199, b.Table.Len())
	_, n = pass(a, b, atA)
	require.Zero(t, n, "what was applied is not told again")
	_, n = pass(b, a, atB)
	require.Zero(t, n)
	_, info, ok := b.Table.Info(time.Now(), feedKey(7))
	require.True(t, ok)
	require.Equal(t, Life{TTL: time.Hour, Class: HalfOpen}, info.Life)
	_, _, err := a.AppendChanges(nil, 1<<40, 100)
	require.ErrorIs(t, err, ErrChangesLost)
	require.Equal(t, a.Table.Seq(), a.LastSeq())
}

func feedMessage(t testing.TB) []byte {
	f := feedTable(t)
	require.NoError(t, f.Table.Store(feedKey(1), 7))
	require.NoError(t, f.Table.Store(feedKey(2), 8))
	f.Table.Delete(feedKey(1))
	b, _, err := f.AppendChanges(nil, 0, 1<<20)
	require.NoError(t, err)
	return b
}

func TestFeedRefuses(t *testing.T) {
	b := feedMessage(t)
	f := feedTable(t)
	for n := 1; n < len(b); n++ {
		if err := f.Apply(b[:n]); err != nil {
			require.ErrorIs(t, err, ErrFeed)
		}
	}
	other, err := New(&Config[uint32, uint32]{ChangeLog: 8, MaxEntries: 64})
	require.NoError(t, err)
	defer other.Close()
	require.ErrorIs(t, (&Feed[uint32, uint32]{Table: other}).Apply(b), ErrFeed)
}

func FuzzFeed(f *testing.F) {
	f.Add(feedMessage(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		feed := feedTable(t)
		_ = feed.Apply(b)
		require.LessOrEqual(t, feed.Table.Len(), 1<<10)
	})
}

func ExampleFeed() {
	make := func() *Feed[Flow, uint64] {
		t, err := New(&Config[Flow, uint64]{MaxEntries: 64, ChangeLog: 64})
		if err != nil {
			panic(err)
		}
		return &Feed[Flow, uint64]{Table: t}
	}
	lb1, lb2 := make(), make()
	defer lb1.Table.Close()
	defer lb2.Table.Close()
	fmt.Println(lb1.Table.Store(feedKey(1), 7))
	message, last, err := lb1.AppendChanges(nil, 0, 1<<16)
	fmt.Println(last, err, lb2.Apply(message))
	fmt.Println(lb2.Table.Peek(feedKey(1)))
	// Output:
	// <nil>
	// 1 <nil> <nil>
	// 7 true
}

// namedFeed is a feed of a table whose keys are numbers of farms, which have names: farm k is "f<k-first>", here and elsewhere.
func namedFeed(t testing.TB, first uint32) *Feed[Association, uint64] {
	t.Helper()
	tab, err := New(&Config[Association, uint64]{MaxEntries: 1 << 10, ChangeLog: 32})
	require.NoError(t, err)
	t.Cleanup(func() { tab.Close() })
	return &Feed[Association, uint64]{
		Table: tab,
		Name: func(k Association, _ uint64) string {
			farm, _ := k.Farm()
			return fmt.Sprint("f", farm-first)
		},
		Bind: func(k Association, v uint64, name string) (Association, uint64, bool) {
			var farm uint32
			_, err := fmt.Sscanf(name, "f%d", &farm)
			return FarmKey(farm+first, k.Client(), Grouping{}), v, err == nil && farm < 100
		},
	}
}

// TestFeedByName: what entries say goes by names, in keys too, in changes and in snapshots.
func TestFeedByName(t *testing.T) {
	a, b := namedFeed(t, 7), namedFeed(t, 500)
	client := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	for i := range 300 {
		require.NoError(t, a.Table.StoreLife(time.Now(), FarmKey(7+uint32(i%3), client(i), Grouping{}), uint64(i), Life{TTL: time.Hour}))
	}
	require.NoError(t, a.Table.Store(FarmKey(7+100, client(9), Grouping{}), 1)) // a farm that is not there
	_, _, err := a.AppendChanges(nil, 0, 1<<20)
	require.ErrorIs(t, err, ErrChangesLost)
	seq := a.LastSeq()
	var snap bytes.Buffer
	require.NoError(t, a.Snapshot(&snap))
	whole := snap.Bytes()
	for _, n := range []int{1, 3, 5, 100, len(whole) - 1} {
		require.Error(t, namedFeed(t, 1).Restore(bytes.NewReader(whole[:n])))
	}
	require.NoError(t, b.Restore(&snap))
	require.Equal(t, 300, b.Table.Len())
	require.NoError(t, b.Restore(bytes.NewReader(whole)))
	for i := range 300 {
		v, in, ok := b.Table.Info(time.Now(), FarmKey(500+uint32(i%3), client(i), Grouping{}))
		require.True(t, ok)
		require.Equal(t, uint64(i), v)
		require.Equal(t, time.Hour, in.Life.TTL)
	}
	a.Table.Delete(FarmKey(7, client(0), Grouping{}))
	require.NoError(t, a.Table.Store(FarmKey(8, client(0), Grouping{}), 77))
	msg, _, err := a.AppendChanges(nil, seq, 1<<20)
	require.NoError(t, err)
	require.NoError(t, b.Apply(msg))
	_, ok := b.Table.Peek(FarmKey(500, client(0), Grouping{}))
	require.False(t, ok)
	v, ok := b.Table.Peek(FarmKey(501, client(0), Grouping{}))
	require.True(t, ok)
	require.EqualValues(t, 77, v)
	back, _, err := b.AppendChanges(nil, b.LastSeq()-2, 1<<20)
	require.NoError(t, err)
	require.Empty(t, back, "what was applied is not told again")
	plain, err := New(&Config[Association, uint64]{MaxEntries: 64, ChangeLog: 8})
	require.NoError(t, err)
	defer plain.Close()
	require.ErrorIs(t, (&Feed[Association, uint64]{Table: plain}).Apply(msg), ErrFeed, "names are for those who have them")
}

func FuzzFeedByName(f *testing.F) {
	from := namedFeed(f, 7)
	require.NoError(f, from.Table.Store(FarmKey(7, netip.MustParseAddr("10.0.0.1"), Grouping{}), 1))
	from.Table.Delete(FarmKey(7, netip.MustParseAddr("10.0.0.1"), Grouping{}))
	b, _, err := from.AppendChanges(nil, 0, 1<<20)
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		feed := namedFeed(t, 1)
		_ = feed.Apply(b)
		_ = feed.Restore(bytes.NewReader(b))
		require.LessOrEqual(t, feed.Table.Len(), 1<<10)
	})
}

// versioned is a feed of values of a time and a node, of which the later one is preferred.
func versioned(t testing.TB, log int) *Feed[Association, uint64] {
	t.Helper()
	tab, err := New(&Config[Association, uint64]{MaxEntries: 1 << 10, ChangeLog: log})
	require.NoError(t, err)
	t.Cleanup(func() { tab.Close() })
	return &Feed[Association, uint64]{
		Table: tab, Prefer: func(_ Association, here, there uint64) bool { return there > here },
		Name: func(Association, uint64) string { return "f" },
		Bind: func(k Association, v uint64, name string) (Association, uint64, bool) { return k, v, name == "f" },
	}
}

func feedClient(i int) Association {
	return FarmKey(1, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Grouping{})
}

// TestFeedPrefers: two tables that are told other values of one key at once come to the same, in whatever order they hear of each other, by
// changes and by snapshots.
func TestFeedPrefers(t *testing.T) {
	for _, way := range []string{"changes", "snapshots", "a first", "b first"} {
		t.Run(way, func(t *testing.T) {
			a, b := versioned(t, 1024), versioned(t, 1024)
			const n = 200
			for i := range n {
				require.NoError(t, a.Table.Store(feedClient(i), uint64(100+i%3)))
				require.NoError(t, b.Table.Store(feedClient(i), uint64(100+i%7)))
			}
			pass := func(from, to *Feed[Association, uint64], after uint64) uint64 {
				msg, last, err := from.AppendChanges(nil, after, 1<<20)
				require.NoError(t, err)
				require.NoError(t, to.Apply(msg))
				return last
			}
			snap := func(from, to *Feed[Association, uint64]) {
				var buf bytes.Buffer
				require.NoError(t, from.Snapshot(&buf))
				require.NoError(t, to.Restore(&buf))
			}
			switch way {
			case "changes": // both under way at once
				ab, _, err := a.AppendChanges(nil, 0, 1<<20)
				require.NoError(t, err)
				ba, _, err := b.AppendChanges(nil, 0, 1<<20)
				require.NoError(t, err)
				require.NoError(t, b.Apply(ab))
				require.NoError(t, a.Apply(ba))
			case "snapshots":
				snap(a, b)
				snap(b, a)
			case "a first":
				pass(a, b, 0)
				pass(b, a, 0)
			case "b first":
				pass(b, a, 0)
				pass(a, b, 0)
			}
			for i := range n {
				want := uint64(100 + max(i%3, i%7))
				for _, f := range []*Feed[Association, uint64]{a, b} {
					v, ok := f.Table.Peek(feedClient(i))
					require.True(t, ok)
					require.Equal(t, want, v)
				}
			}
			msg, _, err := a.AppendChanges(nil, n, 1<<20)
			require.NoError(t, err)
			require.Empty(t, msg, "what was applied is not told again")
			msg, _, err = b.AppendChanges(nil, n, 1<<20)
			require.NoError(t, err)
			require.Empty(t, msg)
		})
	}
}

// TestFeedSmallLog: what comes in one message may be more than the follower remembers of changes; it tells nobody of it all the same.
func TestFeedSmallLog(t *testing.T) {
	a, b := versioned(t, 1024), versioned(t, 4)
	for i := range 300 {
		require.NoError(t, a.Table.Store(feedClient(i), 1))
	}
	msg, _, err := a.AppendChanges(nil, 0, 1<<20)
	require.NoError(t, err)
	require.NoError(t, b.Apply(msg))
	require.Equal(t, 300, b.Table.Len())
	back, last, err := b.AppendChanges(nil, b.LastSeq()-4, 1<<20)
	require.NoError(t, err)
	require.Empty(t, back)
	require.Equal(t, b.LastSeq(), last)
	require.LessOrEqual(t, len(b.echo), 16, "what is remembered is bounded")
	require.NoError(t, b.Table.Store(feedClient(7), 2))
	back, _, err = b.AppendChanges(nil, last, 1<<20)
	require.NoError(t, err)
	require.NotEmpty(t, back)
}
