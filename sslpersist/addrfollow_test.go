package sslpersist

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// addrFeed is a farm that remembers client addresses, and the feed of these.
func addrFeed(t *testing.T) (*AddrTable[string], *Feed[string]) {
	t.Helper()
	f, err := NewFarm(&Settings[string]{ClientAddr: true, Feed: 64, Name: "shop"})
	require.NoError(t, err)
	require.Equal(t, "shop", f.Name())
	same := func(n string) string { return n }
	return f.Addrs(), &Feed[string]{Table: f.Addrs(), Name: same, ByName: func(s string) (string, bool) { return s, s != "gone" }}
}

// exchange has two feeds follow each other until nothing is left to tell.
func exchange(t *testing.T, a, b *Feed[string]) {
	t.Helper()
	var atA, atB uint64
	for range 10 {
		ab, lastA, err := a.AppendChanges(nil, atA, 1<<20)
		require.NoError(t, err)
		ba, lastB, err := b.AppendChanges(nil, atB, 1<<20)
		require.NoError(t, err)
		if lastA == atA && lastB == atB {
			return
		}
		atA, atB = lastA, lastB
		require.NoError(t, b.Apply(ab))
		require.NoError(t, a.Apply(ba))
	}
	t.Fatal("they do not come to rest")
}

func TestClientAddressesAreFollowed(t *testing.T) {
	for _, client := range []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")} {
		k := addrKey(client)
		now := time.Now()
		bind := func(a *AddrTable[string], node string, at time.Time) {
			_, err := a.e.store(&k, node, a.e.nano(at), false, true)
			require.NoError(t, err)
		}
		both := func(a, b *AddrTable[string], want string) {
			t.Helper()
			for _, x := range []*AddrTable[string]{a, b} {
				n, ok := x.PeekAt(now, client)
				require.True(t, ok)
				require.Equal(t, want, n)
			}
		}
		// At both at once: the later one wins.
		a, fa := addrFeed(t)
		b, fb := addrFeed(t)
		bind(a, "x", now.Add(-5*time.Second))
		bind(b, "y", now.Add(-4*time.Second))
		exchange(t, fa, fb)
		both(a, b, "y")

		// The earlier one is used again, which is not told at once.
		a, fa = addrFeed(t)
		b, fb = addrFeed(t)
		bind(a, "x", now.Add(-5*time.Second))
		bind(b, "y", now.Add(-4*time.Second))
		a.e.lookup(&k, a.e.nano(now.Add(-3*time.Second)), true)
		exchange(t, fa, fb)
		both(a, b, "x")

		// By a snapshot, likewise: what is older there changes nothing here.
		for _, c := range []struct {
			there time.Duration
			want  string
		}{{-3 * time.Second, "x"}, {-9 * time.Second, "y"}} {
			a, fa = addrFeed(t)
			b, fb = addrFeed(t)
			bind(a, "x", now.Add(c.there))
			bind(b, "y", now.Add(-4*time.Second))
			var snapshot bytes.Buffer
			require.NoError(t, fa.Snapshot(&snapshot))
			require.NoError(t, fb.Restore(&snapshot))
			n, ok := b.PeekAt(now, client)
			require.True(t, ok)
			require.Equal(t, c.want, n)
			exchange(t, fa, fb)
			both(a, b, c.want)
		}
	}
}
