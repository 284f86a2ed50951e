package clienttable

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShrink: the bound counts at once, what is there stays, and the memory goes once it can.
func TestShrink(t *testing.T) {
	gone := 0
	tab := must(New(&Config[uint64, uint64]{Seed: 1, MaxEntries: 4000, TTL: time.Hour, OnRemove: func(uint64, uint64, Reason) { gone++ }}))
	defer tab.Close()
	now := time.Now()
	for i := range uint64(2000) {
		require.NoError(t, tab.StoreAt(now, i, i+1))
	}
	require.NoError(t, tab.StoreLife(now, 5000, 1, Life{Class: HalfOpen}))
	before := tab.Stats().Bytes

	same, err := tab.Shrink(now, 1000)
	require.NoError(t, err)
	require.Same(t, tab, same, "they do not fit")
	require.Equal(t, 1000, tab.MaxEntries())
	st := tab.Stats()
	require.Equal(t, []int{2001, 1000}, []int{st.Entries, st.Bound})
	require.Equal(t, 2001, tab.LenAt(now))
	require.NoError(t, tab.StoreAt(now, 6000, 1), "in the place of the half-open one")
	require.ErrorIs(t, tab.StoreAt(now, 6001, 1), ErrFull)
	require.NoError(t, tab.StoreAt(now, 1, 2), "it is there already")
	require.Equal(t, 1+1, gone, "evicted, and replaced")
	for i := uint64(2); i < 2000; i += 2 {
		tab.DeleteAt(now, i)
	}
	require.ErrorIs(t, tab.StoreAt(now, 6001, 1), ErrFull, "1,002 are left")
	tab.DeleteAt(now, 6000)
	tab.DeleteAt(now, 0)
	tab.DeleteAt(now, 1)
	require.NoError(t, tab.StoreAt(now, 6001, 1))
	require.ErrorIs(t, tab.StoreAt(now, 6002, 1), ErrFull)
	same, err = tab.Shrink(now, 1000)
	require.NoError(t, err)
	require.Same(t, tab, same, "they fit, with nothing to spare")
	for i := uint64(3); i < 1000; i += 2 {
		tab.DeleteAt(now, i)
	}
	small, err := tab.Shrink(now, 5000)
	require.NoError(t, err)
	require.NotSame(t, tab, small)
	require.Equal(t, 1000, small.MaxEntries(), "it never raises the bound")
	require.Equal(t, 501, small.Stats().Behind)
	require.True(t, tab.Growing())
	again, err := tab.Shrink(now, 900)
	require.NoError(t, err)
	require.Same(t, small, again)
	gone = 0
	drain(t, tab, now)
	require.False(t, tab.Growing())
	require.Zero(t, gone)
	require.Equal(t, 501, small.LenAt(now))
	require.Less(t, small.Stats().Bytes, before/2)
	for i := uint64(1001); i < 2000; i += 2 {
		v, ok := tab.PeekAt(now, i)
		require.True(t, ok)
		require.Equal(t, i+1, v)
	}

	// And back: to what the storage has room for, and beyond.
	same, err = tab.Grow(now, 1000)
	require.NoError(t, err)
	require.Same(t, small, same)
	require.Equal(t, 1000, tab.MaxEntries())
	same, err = tab.Grow(now, 950)
	require.NoError(t, err)
	require.Same(t, small, same)
	require.Equal(t, 1000, tab.MaxEntries(), "it never lowers the bound")
	for i := range uint64(499) {
		require.NoError(t, tab.StoreAt(now, 10000+i, i))
	}
	require.ErrorIs(t, tab.StoreAt(now, 20000, 1), ErrFull)
	large, err := tab.Grow(now, 1001)
	require.NoError(t, err)
	require.NotSame(t, small, large)
	require.NoError(t, tab.StoreAt(now, 20000, 1))
	require.ErrorIs(t, tab.StoreAt(now, 20001, 1), ErrFull)
}

func TestShrinkFaults(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 100}))
	now := time.Now()
	for _, n := range []int{0, -1, 1<<30 + 1} {
		_, err := tab.Shrink(now, n)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, fmt.Sprintf("MaxEntries %d: must be 1 to 1073741824", n))
	}
	require.NoError(t, tab.Close())
	_, err := tab.Shrink(now, 10)
	require.ErrorIs(t, err, ErrClosed)
}

// TestShrinkOldest: where the oldest entry makes room, new ones bring the table down to its bound.
func TestShrinkOldest(t *testing.T) {
	evicted := map[uint64]bool{}
	tab := must(New(&Config[uint64, uint64]{Seed: 1, MaxEntries: 400, Full: EvictOldest, OnRemove: func(k, _ uint64, _ Reason) { evicted[k] = true }}))
	defer tab.Close()
	now := time.Now()
	for i := range uint64(400) {
		require.NoError(t, tab.StoreAt(now.Add(time.Duration(i)*time.Millisecond), i, i))
	}
	now = now.Add(time.Second)
	_, err := tab.Shrink(now, 300)
	require.NoError(t, err)
	require.Equal(t, 400, tab.LenAt(now))
	for i := range uint64(100) {
		require.NoError(t, tab.StoreAt(now, 1000+i, i))
	}
	require.Equal(t, 300, tab.LenAt(now))
	require.Len(t, evicted, 200)
	for k := range evicted {
		require.Less(t, k, uint64(200), "the oldest ones")
	}
	require.NoError(t, tab.StoreAt(now, 2000, 1))
	require.Equal(t, 300, tab.LenAt(now))
}

// TestEarlierNamesAreShort: a table that has grown and shrunk often keeps none of the tables in between.
func TestEarlierNamesAreShort(t *testing.T) {
	first := must(New(&Config[uint64, uint64]{MaxEntries: 10}))
	defer first.Close()
	now := time.Now()
	var last *Table[uint64, uint64]
	for i := range 20 {
		var err error
		_, err = first.Grow(now, 100)
		require.NoError(t, err)
		require.NoError(t, first.StoreAt(now, uint64(i%5), uint64(i)))
		drain(t, first, now)
		last, err = first.Shrink(now, 10)
		require.NoError(t, err)
		drain(t, first, now)
	}
	require.Equal(t, 5, first.LenAt(now))
	require.Same(t, last, first.newest())
	require.Same(t, last, first.kin.Load().newer)
}

// A table that has become too large for its purpose takes less, without losing what it has.
func ExampleTable_Shrink() {
	sessions, err := New(&Config[uint64, uint32]{MaxEntries: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sessions.Close()
	for i := range uint64(4) {
		_ = sessions.Store(i, 11)
	}
	if sessions, err = sessions.Shrink(time.Now(), 3); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sessions.Store(5, 55), sessions.Len())
	sessions.Delete(0)
	sessions.Delete(1)
	fmt.Println(sessions.Store(5, 55), sessions.Len(), sessions.MaxEntries())
	// Output:
	// clienttable: full 4
	// <nil> 3 3
}
