package sslpersist

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func name(n string) string { return n }

func byName(s string) (string, bool) { return s, s != "unknown" }

func TestSnapshotAndRestore(t *testing.T) {
	set := &Settings[string]{Tickets: true, ClientAddr: true, TTLOf: func(n string) time.Duration {
		if n == "short" {
			return time.Minute
		}
		return 0
	}}
	w := newWorld(t, set)
	for i := range byte(20) {
		n := []string{"a", "b", "short", "unknown"}[i%4]
		w.connect(netip.AddrFrom4([4]byte{10, 0, 0, i}), helloSpec{ticket: []byte{}}.client(), n, issues(i+1), hs(newTicketMessage(ticketOf(i%4, int(i)))))
		w.now = w.now.Add(time.Second)
	}
	var buf bytes.Buffer
	require.NoError(t, w.f.WriteSnapshot(&buf, w.now, name))
	snapshot := slices.Clone(buf.Bytes())

	again := newWorld(t, set)
	again.now = w.now.Add(9 * time.Minute)
	st, err := again.f.Restore(bytes.NewReader(snapshot), again.now, byName)
	require.NoError(t, err)
	require.Equal(t, RestoreStats{Restored: 22, Expired: 11, Unknown: 11}, st)
	for i := range byte(20) {
		n := []string{"a", "b", "", ""}[i%4]
		by := BySession
		if n == "" {
			by = ByMetric
		}
		c := again.f.Open(clientB)
		_, err := c.Client(withID(i + 1))
		require.NoError(t, err)
		require.Equal(t, Choice[string]{n, by}, c.Choose(again.now, again.available))
	}
	c := again.f.Open(clientB)
	_, err = c.Client(takesTickets(ticketOf(1, 77)))
	require.NoError(t, err)
	require.Equal(t, Choice[string]{"b", ByTicket}, c.Choose(again.now, again.available))
	// Ages are kept: the first went into the snapshot 20 seconds old.
	_, ok := again.f.IDs().PeekAt(again.now.Add(40*time.Second-1), sid(fill(32, 1)...))
	require.True(t, ok)
	_, ok = again.f.IDs().PeekAt(again.now.Add(40*time.Second), sid(fill(32, 1)...))
	require.False(t, ok)
	_, ok = again.f.IDs().PeekAt(again.now.Add(43*time.Second), sid(fill(32, 5)...))
	require.True(t, ok)

	// A snapshot of one table, and one into a farm without the others.
	buf.Reset()
	require.NoError(t, w.f.IDs().WriteSnapshot(&buf, w.now, name))
	small := newWorld(t, nil)
	st, err = small.f.Restore(&buf, w.now, byName)
	require.NoError(t, err)
	require.Equal(t, RestoreStats{Restored: 15, Unknown: 5}, st)
	tiny := newWorld(t, &Settings[string]{MaxEntries: 3})
	st, err = tiny.f.Restore(bytes.NewReader(snapshot), w.now, byName)
	require.NoError(t, err)
	require.Equal(t, 3, st.Restored)
	require.Equal(t, 12, st.Refused)

	// Damaged anywhere, it is refused whole.
	for i := range snapshot {
		bad := slices.Clone(snapshot)
		bad[i] ^= 1 << (i % 8)
		fresh := newWorld(t, nil)
		_, err := fresh.f.Restore(bytes.NewReader(bad), w.now, byName)
		require.ErrorIs(t, err, ErrSnapshot)
		require.Zero(t, fresh.f.IDs().Len())
	}
	for n := range snapshot {
		_, err := small.f.Restore(bytes.NewReader(snapshot[:n]), w.now, byName)
		require.ErrorIs(t, err, ErrSnapshot)
	}
	_, err = small.f.Restore(bytes.NewReader(append(snapshot, 0)), w.now, byName)
	require.ErrorIs(t, err, ErrSnapshot)
}

func TestDeltaFeed(t *testing.T) {
	now := time.Now()
	cfg := &Config[string]{Feed: 1000}
	a, b := newTestTable(t, cfg), newTestTable(t, cfg)
	var seen uint64
	follow := func() (n int) {
		t.Helper()
		deltas, err := a.Changes(nil, seen)
		require.NoError(t, err)
		for _, d := range deltas {
			require.Equal(t, seen+1, d.Seq)
			seen = d.Seq
			wire, err := AppendDelta(nil, d, name)
			require.NoError(t, err)
			for cut := range wire {
				_, _, _, err := ParseDelta(wire[:cut], byName)
				require.ErrorIs(t, err, ErrDelta)
			}
			got, rest, ok, err := ParseDelta(append(wire, 7), byName)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, []byte{7}, rest)
			require.Equal(t, d.ID, got.ID)
			require.True(t, d.At.Equal(got.At) || d.Op == OpForget)
			require.NoError(t, b.Apply(now, got))
		}
		return len(deltas)
	}
	require.NoError(t, a.LearnAt(now, numbered(1), "x"))
	require.NoError(t, a.LearnAt(now, numbered(2), "y"))
	require.Equal(t, 2, follow())
	n, ok := b.PeekAt(now, numbered(1))
	require.True(t, ok)
	require.Equal(t, "x", n)
	// Uses are told, but not each.
	for range 100 {
		now = now.Add(6 * time.Second)
		a.LookupAt(now, numbered(1))
	}
	require.InDelta(t, 8, follow(), 1)
	_, ok = b.PeekAt(now.Add(8*time.Minute), numbered(1))
	require.True(t, ok)
	_, ok = b.PeekAt(now, numbered(2))
	require.False(t, ok)
	require.NoError(t, a.LearnAt(now, numbered(1), "y"))
	require.NoError(t, a.LearnAt(now, numbered(3), "y"))
	a.Forget("y")
	require.NoError(t, a.LearnAt(now, numbered(4), "y"))
	require.Equal(t, 4, follow())
	require.Equal(t, 1, b.Len())
	require.Zero(t, b.LastSeq(), "what was applied is not told again")
	require.Equal(t, seen, a.LastSeq())
	// Older news lose.
	require.NoError(t, b.LearnAt(now, numbered(4), "z"))
	require.NoError(t, b.Apply(now, Delta[string]{Op: OpLearn, ID: numbered(4), Node: "y", At: now.Add(-time.Second)}))
	n, _ = b.PeekAt(now, numbered(4))
	require.Equal(t, "z", n)
	require.Error(t, b.Apply(now, Delta[string]{}))
	require.Error(t, b.Apply(now, Delta[string]{Op: OpLearn}))
	// A copy that lags needs a snapshot.
	for i := range uint64(2000) {
		require.NoError(t, a.LearnAt(now, numbered(100+i), "x"))
	}
	_, err := a.Changes(nil, seen)
	require.ErrorIs(t, err, ErrLagged)
	_, err = a.Changes(nil, a.LastSeq()+1)
	require.ErrorIs(t, err, ErrLagged)
	d, err := a.Changes(nil, a.LastSeq()-1000)
	require.NoError(t, err)
	require.Len(t, d, 1000)
	_, err = newTestTable(t, nil).Changes(nil, 0)
	require.ErrorIs(t, err, ErrLagged)
}

func TestTextRoundTrips(t *testing.T) {
	for _, v := range []Version{0, SSL20, SSL30, TLS10, TLS11, TLS12, TLS13, 0x7f17, 0x7fff, 0x1234} {
		b, err := v.MarshalText()
		require.NoError(t, err)
		var got Version
		require.NoError(t, got.UnmarshalText(b), "%s", b)
		require.Equal(t, v, got)
	}
	require.Equal(t, "TLS 1.3 draft 23", Version(0x7f17).String())
	require.Error(t, new(Version).UnmarshalText([]byte("TLS 9")))
	for i := range uint8(3) {
		var a Availability
		b, err := Availability(i).MarshalText()
		require.NoError(t, err)
		require.NoError(t, a.UnmarshalText(b))
		require.Equal(t, Availability(i), a)
		var o Op
		b, err = Op(i + 1).MarshalText()
		require.NoError(t, err)
		require.NoError(t, o.UnmarshalText(b))
		require.Equal(t, Op(i+1), o)
		var k LessonKind
		b, err = LessonKind(i).MarshalText()
		require.NoError(t, err)
		require.NoError(t, k.UnmarshalText(b))
		require.Equal(t, LessonKind(i), k)
		var y Basis
		b, err = Basis(i).MarshalText()
		require.NoError(t, err)
		require.NoError(t, y.UnmarshalText(b))
		require.Equal(t, Basis(i), y)
	}
	_, err := Availability(9).MarshalText()
	require.Error(t, err)
	require.Equal(t, "Availability(9)", Availability(9).String())
	require.ErrorContains(t, new(Basis).UnmarshalText([]byte("x")), "session ID")
	id := sid(1, 2, 0xff)
	require.Equal(t, "0102ff", id.String())
	b, _ := id.MarshalText()
	var got SessionID
	require.NoError(t, got.UnmarshalText(b))
	require.Equal(t, id, got)
	require.Error(t, got.UnmarshalText([]byte("0")))
	require.Error(t, got.UnmarshalText(bytes.Repeat([]byte("00"), 33)))
	var kn KeyName
	require.NoError(t, kn.UnmarshalText([]byte("0a")))
	require.Equal(t, "0a", fmt.Sprint(kn))
	require.Equal(t, []byte{9, 10}, kn.AppendTo([]byte{9}))
	require.Equal(t, []byte{9, 1, 2, 0xff}, id.AppendTo([]byte{9}))
	_, ok := SessionIDFrom(make([]byte, 33))
	require.False(t, ok)
}
