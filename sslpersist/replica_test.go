package sslpersist_test

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/sslpersist"
)

func feed(t testing.TB, size int) (*sslpersist.Table[int], *sslpersist.Feed[int]) {
	t.Helper()
	tab, err := sslpersist.NewTable(&sslpersist.Config[int]{Feed: size, MaxEntries: 1 << 12})
	require.NoError(t, err)
	return tab, &sslpersist.Feed[int]{Table: tab, Name: strconv.Itoa, ByName: func(s string) (int, bool) {
		n, err := strconv.Atoi(s)
		return n, err == nil && n < 100
	}}
}

func idOf(i int) sslpersist.SessionID {
	id, _ := sslpersist.SessionIDFrom(fmt.Appendf(nil, "session %d", i))
	return id
}

func TestFeed(t *testing.T) {
	a, fa := feed(t, 256)
	b, fb := feed(t, 256)
	for i := range 200 {
		require.NoError(t, a.Learn(idOf(i), i%120)) // nodes from 100 on are not known there
	}
	after := uint64(0)
	for after < fa.LastSeq() {
		msg, last, err := fa.AppendChanges(nil, after, 300)
		require.NoError(t, err)
		require.Greater(t, last, after)
		require.NoError(t, fb.Apply(msg))
		require.ErrorIs(t, fb.Apply(msg[:len(msg)-1]), sslpersist.ErrDelta)
		after = last
	}
	require.Equal(t, 180, b.Len())
	require.Zero(t, fb.LastSeq(), "what was applied is not told again")
	for i := range 100 {
		require.NoError(t, a.Learn(idOf(1000+i), 1))
	}
	_, _, err := fa.AppendChanges(nil, 1, 300)
	require.ErrorIs(t, err, sslpersist.ErrLagged)
	var snapshot bytes.Buffer
	require.NoError(t, fa.Snapshot(&snapshot))
	require.NoError(t, fb.Restore(&snapshot))
	require.Equal(t, 280, b.Len())
	require.Error(t, fb.Restore(bytes.NewReader([]byte("nonsense"))))
}

func ExampleFeed() {
	t, err := sslpersist.NewTable(&sslpersist.Config[string]{Feed: 16})
	if err != nil {
		fmt.Println(err)
		return
	}
	same := func(n string) string { return n }
	f := &sslpersist.Feed[string]{Table: t, Name: same, ByName: func(s string) (string, bool) { return s, true }}
	fmt.Println(t.Learn(idOf(1), "web1"))
	message, last, err := f.AppendChanges(nil, 0, 1<<16)
	fmt.Println(len(message) > 0, last, err)
	// Output:
	// <nil>
	// true 1 <nil>
}
