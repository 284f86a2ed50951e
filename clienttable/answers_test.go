package clienttable

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (b *balancer) sweep(now time.Time) {
	for range 4 {
		b.sessions.Sweep(now, 1000)
		b.assocs.Sweep(now, 1000)
	}
}

func TestRegularHitsTheAssociation(t *testing.T) {
	b := newBalancer(Regular, nil, 1, 2)
	defer b.close()
	now := time.Now()
	id := b.connect(now, client(1000))
	require.NotZero(t, id)
	require.Positive(t, b.searched)
	b.searched = 0
	for port := range uint16(10) {
		require.Equal(t, id, b.connect(now, client(2000+port)))
	}
	require.Zero(t, b.searched, "the policy is not searched")
	require.Equal(t, 1, b.assocs.Len())
	require.Zero(t, b.sessions.Len())
}

func TestEntryPerSessionSameServer(t *testing.T) {
	for _, mode := range []Mode{EntryPerSession, RemoveOnEndEntryPerSession} {
		b := newBalancer(mode, nil, 1, 2, 3)
		defer b.close()
		now := time.Now()
		id := b.connect(now, client(1000))
		for port := range uint16(10) {
			require.Equal(t, id, b.connect(now, client(2000+port)))
		}
		require.Equal(t, 11, b.sessions.LenAt(now))
	}
}

func TestServerPerSessionSelectsAgain(t *testing.T) {
	for _, mode := range []Mode{ServerPerSession, RemoveOnEndServerPerSession} {
		b := newBalancer(mode, nil, 1, 2)
		defer b.close()
		now := time.Now()
		first, second := b.connect(now, client(1000)), b.connect(now, client(1001))
		require.NotEqual(t, first, second)
		require.Equal(t, first, b.packet(now, client(1000), TCPAck, 1001, 5001, 100), "the first connection stays")
		require.Zero(t, b.assocs.Len())
	}
}

func TestGroupedClientsShareAServer(t *testing.T) {
	b := newBalancer(EntryPerSession, nil, 1, 2, 3)
	defer b.close()
	b.group = must(NewGrouping(24, 64))
	now := time.Now()
	of := func(addr string) Flow {
		a := netip.MustParseAddr(addr)
		to := vip
		if a.Is6() {
			to = ap("[2001:db8::80]:80")
		}
		return MakeFlow(6, netip.AddrPortFrom(a, 1000), to)
	}
	require.Equal(t, b.connect(now, of("192.0.2.1")), b.connect(now, of("192.0.2.200")))
	require.NotEqual(t, b.connect(now, of("192.0.2.1")), b.connect(now, of("192.0.3.1")))
	require.Equal(t, b.connect(now, of("2001:db8:1:1::1")), b.connect(now, of("2001:db8:1:1:f::2")))
	require.NotEqual(t, b.connect(now, of("2001:db8:1:1::1")), b.connect(now, of("2001:db8:1:2::1")))
}

func TestSYNTimer(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		ageing      Ageing
		alive, gone time.Duration
	}{
		{Ageing{}, 4999 * time.Millisecond, 5 * time.Second},
		{Ageing{NoSYN: true}, 59 * time.Second, time.Minute},
		{Ageing{SYN: 9 * time.Second}, 8 * time.Second, 9 * time.Second},
	} {
		b := newBalancer(EntryPerSession, &c.ageing, 1)
		defer b.close()
		b.packet(now, client(1), TCPSyn, 1000, 0, 0)
		require.Equal(t, 1, b.sessions.LenAt(now.Add(c.alive)))
		require.Equal(t, 0, b.sessions.LenAt(now.Add(c.gone)))

		b.connect(now, client(2))
		_, ok := b.sessions.PeekAt(now.Add(59*time.Second), client(2))
		require.True(t, ok, "after the handshake: the idle time")
	}
}

func TestSlidingIdleTime(t *testing.T) {
	tab := must(New(&Config[Flow, uint64]{MaxEntries: 10}))
	defer tab.Close()
	now := tab.epoch.Add(time.Hour)
	require.NoError(t, tab.StoreAt(now, client(1), 7))
	now = now.Add(59900 * time.Millisecond)
	_, ok := tab.LoadAt(now, client(1))
	require.True(t, ok)
	now = now.Add(59900 * time.Millisecond)
	_, ok = tab.PeekAt(now, client(1))
	require.True(t, ok, "touched at 59.9 s")
	_, ok = tab.PeekAt(now.Add(100*time.Millisecond), client(1))
	require.False(t, ok, "idle exactly 60 s: gone, and Peek is no touch")
	_, ok = tab.LoadAt(now.Add(100*time.Millisecond), client(1))
	require.False(t, ok)
}

func TestSessionEnd(t *testing.T) {
	for _, mode := range []Mode{EntryPerSession, ServerPerSession, RemoveOnEndEntryPerSession, RemoveOnEndServerPerSession} {
		t.Run(mode.String(), func(t *testing.T) {
			b := newBalancer(mode, nil, 1)
			defer b.close()
			now, f := time.Now(), client(1)
			b.connect(now, f)
			b.packet(now, f, TCPFin|TCPAck, 1001, 5001, 0)
			now = now.Add(59 * time.Second)
			require.True(t, b.answer(now, f, TCPAck, 5001, 1002, 1000), "half-closed: the answer is delivered")
			now = now.Add(59 * time.Second)
			require.True(t, b.answer(now, f, TCPFin|TCPAck, 6001, 1002, 0))
			b.packet(now, f, TCPAck, 1002, 6002, 0)
			require.Equal(t, 1, b.sessions.LenAt(now.Add(4999*time.Millisecond)), "late segments find their server")
			if mode.RemoveOnEnd() {
				b.packet(now.Add(3*time.Second), f, TCPAck, 1002, 6002, 0) // a late one prolongs nothing
				require.Equal(t, 0, b.sessions.LenAt(now.Add(5*time.Second)))
				require.Equal(t, 0, b.released[1])
				b.sweep(now.Add(5 * time.Second))
				require.Equal(t, 1, b.released[1])
				return
			}
			require.Equal(t, 1, b.sessions.LenAt(now.Add(59*time.Second)), "ages out")
			require.Equal(t, 0, b.sessions.LenAt(now.Add(60*time.Second)))
		})
	}
}

func TestRSTMustFit(t *testing.T) { // L20
	b := newBalancer(RemoveOnEndEntryPerSession, nil, 1)
	defer b.close()
	now, f := time.Now(), client(1)
	b.connect(now, f)
	b.packet(now, f, TCPAck, 1001, 5001, 2000)
	b.answer(now, f, TCPAck, 5001, 3001, 0)
	for _, seq := range []uint32{0, 1000000, 42, 3000} {
		b.packet(now, f, TCPRst, seq, 0, 0)
		_, in, ok := b.sessions.Info(now, f)
		require.True(t, ok)
		require.Equal(t, Established, in.Life.Class, "RST %d", seq)
	}
	b.packet(now, f, TCPRst, 3001, 0, 0)
	_, in, _ := b.sessions.Info(now, f)
	require.Equal(t, Lingering, in.Life.Class)
	require.Equal(t, 0, b.sessions.LenAt(now.Add(5*time.Second)))
}

func TestServerChanges(t *testing.T) {
	for _, c := range []struct {
		state         nodeState
		session, more bool // the old session stays; the client may open more
	}{
		{up, true, true},
		{sessionsShutdown, true, true},
		{connectionsShutdown, true, false}, // L13
		{down, false, false},
	} {
		for _, mode := range []Mode{EntryPerSession, Regular} {
			b := newBalancer(mode, nil, 1, 2)
			defer b.close()
			now := time.Now()
			id := b.connect(now, client(1))
			other := 3 - id
			b.set(id, c.state)
			if mode == EntryPerSession {
				_, ok := b.sessions.PeekAt(now, client(1))
				require.Equal(t, c.session, ok)
			}
			want := other
			if c.more {
				want = id
			}
			require.Equal(t, want, b.connect(now, client(2)), "%v %v", mode, c.state)
			b.set(id, up)
			require.Equal(t, want, b.connect(now, client(3)), "the association was rewritten, and stays")
			if mode == EntryPerSession && c.session {
				require.Equal(t, id, b.packet(now, client(1), TCPAck, 1001, 5001, 0), "the old session stays")
			}
			require.Equal(t, 1, b.assocs.LenAt(now))
		}
	}
}

// TestModesByChanges: every mode, with and without groups of clients, with every change of a server.
func TestModesByChanges(t *testing.T) {
	for mode := EntryPerSession; mode <= RemoveOnEndServerPerSession; mode++ {
		for _, bits := range []int{32, 24} {
			for state := up; state <= down; state++ {
				t.Run(fmt.Sprint(mode, " ", bits, " ", state), func(t *testing.T) {
					b := newBalancer(mode, nil, 1, 2, 3)
					defer b.close()
					b.group = must(NewGrouping(bits, 64))
					now := time.Now()
					id := b.connect(now, client(1000))
					second := b.connect(now, client(1001))
					neighbour := b.connect(now, MakeFlow(6, ap("192.0.2.200:1000"), vip))
					if mode.SameServer() {
						require.Equal(t, id, second)
						require.Equal(t, bits == 24, neighbour == id, "a group is one client")
					} else {
						require.Len(t, map[uint32]bool{id: true, second: true, neighbour: true}, 3, "selected anew each time")
					}
					clients := 0
					if mode.SameServer() {
						clients = map[int]int{32: 2, 24: 1}[bits]
					}
					require.Equal(t, clients, b.assocs.LenAt(now))
					if mode.FullKey() {
						require.Equal(t, 3, b.sessions.LenAt(now))
					}

					b.set(id, state)
					if mode.FullKey() {
						_, ok := b.sessions.PeekAt(now, client(1000))
						require.Equal(t, state != down, ok, "the session of before")
						if ok {
							require.Equal(t, id, b.packet(now, client(1000), TCPAck, 1001, 5001, 10))
						}
					}
					for port := range uint16(6) {
						next := b.connect(now, client(2000+port))
						require.NotZero(t, next)
						switch {
						case mode.SameServer():
							require.Equal(t, state <= sessionsShutdown, next == id)
						case state != up:
							require.NotEqual(t, id, next, "no selection of it")
						}
					}
				})
			}
		}
	}
}

// A server that is removed and added again under another number: nothing old
// revives. Every session that was counted is released, once.
func TestServerRemovedAndAddedAgain(t *testing.T) {
	b := newBalancer(EntryPerSession, nil, 1)
	defer b.close()
	now := time.Now()
	for port := range uint16(100) {
		require.EqualValues(t, 1, b.connect(now, client(port)))
	}
	b.set(1, down)
	require.Zero(t, b.sessions.LenAt(now))
	require.Zero(t, b.released[1], "no scan")
	b.nodes = []node{{9, up}}
	for port := range uint16(50) {
		require.EqualValues(t, 9, b.connect(now, client(port)))
	}
	require.Equal(t, 50, b.released[1], "those in whose place another came")
	b.sweep(now)
	require.Equal(t, b.taken[1], b.released[1])
	require.Zero(t, b.released[9])
	require.Equal(t, 50, b.sessions.Stats().Entries)
	require.Nil(t, b.sessions.gone.Load(), "nothing is kept about owners that are gone")

	// The same number again: entries stored after the invalidation are valid.
	b.set(9, down)
	b.set(9, up)
	require.EqualValues(t, 9, b.connect(now, client(1)))
	require.Equal(t, 1, b.sessions.LenAt(now))
	b.sweep(now)
	require.Equal(t, 1, b.sessions.LenAt(now))
	require.Equal(t, b.taken[9]-1, b.released[9])
}

// L09: a UDP flow whose packets never stop does not keep a dead server.
func TestUDPLeavesADeadServer(t *testing.T) {
	b := newBalancer(EntryPerSession, &Ageing{Idle: 30 * time.Second}, 1, 2)
	defer b.close()
	now := time.Now()
	f := MakeFlow(17, ap("192.0.2.9:5000"), ap("198.51.100.7:8125"))
	id := b.packet(now, f, 0, 0, 0, 0)
	require.Equal(t, id, b.packet(now.Add(10*time.Second), f, 0, 0, 0, 0))
	b.set(id, down)
	for s := 20; s < 100; s += 10 {
		require.Equal(t, 3-id, b.packet(now.Add(time.Duration(s)*time.Second), f, 0, 0, 0, 0))
	}
}

func TestUDPTracking(t *testing.T) {
	b := newBalancer(EntryPerSession, &Ageing{NoUDP: true}, 1, 2)
	defer b.close()
	now := time.Now()
	f := MakeFlow(17, ap("192.0.2.9:5000"), vip)
	require.NotEqual(t, b.packet(now, f, 0, 0, 0, 0), b.packet(now, f, 0, 0, 0, 0))
	require.Zero(t, b.sessions.Len()+b.assocs.Len())
}

// L11: that there was no server is not remembered.
func TestNoServerIsNotRemembered(t *testing.T) {
	for _, mode := range []Mode{Regular, EntryPerSession, ServerPerSession} {
		b := newBalancer(mode, nil, 1)
		defer b.close()
		b.set(1, down)
		now := time.Now()
		require.Zero(t, b.packet(now, client(1), TCPSyn, 1, 0, 0))
		require.Zero(t, b.sessions.Stats().Stores+b.assocs.Stats().Stores)
		b.set(1, up)
		require.EqualValues(t, 1, b.packet(now, client(1), TCPSyn, 1, 0, 0))
	}
}

// L15: only packets of the client are seen; a port is used again after its server
// has left.
func TestOneWayPortReuse(t *testing.T) {
	b := newBalancer(EntryPerSession, &Ageing{Idle: 6 * time.Hour}, 1, 2)
	defer b.close()
	b.oneWay = true
	now, f := time.Now(), client(1)
	id := b.packet(now, f, TCPSyn, 1000, 0, 0)
	require.Equal(t, id, b.packet(now, f, TCPAck, 1001, 5001, 0))
	require.Equal(t, id, b.packet(now, f, TCPFin|TCPAck, 1001, 5001, 0))
	require.Equal(t, 1, b.sessions.LenAt(now.Add(59*time.Second)), "lingers")
	b.set(id, connectionsShutdown)
	require.Equal(t, 3-id, b.packet(now.Add(60*time.Second), f, TCPSyn, 9000, 0, 0), "after the linger")

	// And within the linger.
	g := client(2)
	other := b.packet(now, g, TCPSyn, 1000, 0, 0)
	b.packet(now, g, TCPAck, 1001, 5001, 0)
	b.packet(now, g, TCPFin|TCPAck, 1001, 5001, 0)
	b.set(other, connectionsShutdown)
	b.set(id, up)
	require.Equal(t, id, b.packet(now.Add(30*time.Second), g, TCPSyn, 9000, 0, 0))
}

// L16: a SYN with the ports of a session in TIME_WAIT goes on at once.
func TestTimeWaitReuse(t *testing.T) {
	for _, gone := range []bool{false, true} {
		b := newBalancer(ServerPerSession, nil, 1, 2)
		defer b.close()
		now, f := time.Now(), client(1)
		id := b.connect(now, f)
		b.packet(now, f, TCPFin|TCPAck, 1001, 5001, 0)
		b.answer(now, f, TCPFin|TCPAck, 5001, 1002, 0)
		b.packet(now, f, TCPAck, 1002, 5002, 0)
		want := id
		if gone {
			b.set(id, down)
			want = 3 - id
		}
		now = now.Add(10 * time.Second)
		require.Equal(t, want, b.packet(now, f, TCPSyn, 90000, 0, 0))
		_, in, _ := b.sessions.Info(now, f)
		require.Equal(t, HalfOpen, in.Life.Class)
		b.answer(now, f, TCPSyn|TCPAck, 70000, 90001, 0)
		require.Equal(t, want, b.packet(now, f, TCPAck, 90001, 70001, 0))
		_, in, _ = b.sessions.Info(now, f)
		require.Equal(t, Established, in.Life.Class)
	}
}

// L12: the same configuration again moves nothing: the table is not touched by it.
// What a restart needs is a snapshot; see TestSnapshot.
func TestSameConfigurationMovesNothing(t *testing.T) {
	b := newBalancer(ServerPerSession, nil, 1, 2, 3)
	defer b.close()
	now := time.Now()
	var had [100]uint32
	for p := range had {
		had[p] = b.connect(now, client(uint16(p)))
	}
	b.nodes = append([]node(nil), b.nodes...)
	b.timers = must(NewTimers(nil))
	for p := range had {
		require.Equal(t, had[p], b.packet(now, client(uint16(p)), TCPAck, 1001, 5001, 0))
	}
}

// L26: expiry of an entry whose server is gone neither blocks nor miscounts.
func TestExpiryAfterServerIsGone(t *testing.T) {
	b := newBalancer(EntryPerSession, nil, 1)
	defer b.close()
	now := time.Now()
	b.connect(now, client(1))
	b.set(1, down)
	b.sweep(now.Add(time.Hour))
	require.Equal(t, 1, b.released[1])
	st := b.sessions.Stats()
	require.Equal(t, uint64(1), st.Expired+st.NodeGone)
	require.Zero(t, st.Entries)
}

// The established flow survives a thousand half-open ones in a table of 100.
func TestFloodOfSYNs(t *testing.T) {
	for _, full := range []FullAction{RejectNew, EvictOldest} {
		tab := must(New(&Config[Flow, uint64]{MaxEntries: 100, Full: full}))
		defer tab.Close()
		now := time.Now()
		require.NoError(t, tab.StoreAt(now, client(1), 1))
		for i := range uint32(1000) {
			now = now.Add(time.Millisecond)
			require.NoError(t, tab.StoreLife(now, flowOf(i), 2, Life{TTL: 5 * time.Second, Class: HalfOpen}))
		}
		_, ok := tab.LoadAt(now, client(1))
		require.True(t, ok)
		st := tab.Stats()
		require.Equal(t, 100, st.Entries)
		require.EqualValues(t, 901, st.Evicted)
		require.Equal(t, 99, st.HalfOpen)
		// As established sessions come, they take the places of the half-open.
		for i := range uint32(99) {
			require.NoError(t, tab.StoreAt(now, flowOf(10000+i), 3), "%d %+v", i, tab.Stats())
		}
		require.Zero(t, tab.Stats().HalfOpen)
		err := tab.StoreLife(now, flowOf(20000), 2, Life{Class: HalfOpen})
		if full == RejectNew {
			require.ErrorIs(t, err, ErrFull)
			require.EqualValues(t, 1, tab.Stats().Refused)
			_, ok = tab.PeekAt(now, flowOf(20000))
			require.False(t, ok)
			_, ok = tab.PeekAt(now, client(1))
			require.True(t, ok)
		} else {
			require.NoError(t, err)
		}
	}
}

func TestStaticEntries(t *testing.T) {
	tab := must(New(&Config[Flow, uint64]{MaxEntries: 10, Full: EvictOldest}))
	defer tab.Close()
	now := time.Now()
	for i := range uint32(9) {
		require.NoError(t, tab.StoreLife(now, flowOf(i), 1, Life{Class: Static}))
	}
	later := now.Add(10 * 365 * 24 * time.Hour)
	for i := range uint32(100) {
		require.NoError(t, tab.StoreAt(later, flowOf(100+i), 2))
	}
	for i := range uint32(9) {
		require.True(t, tab.Update(later, flowOf(i), func(v uint64, l Life) (uint64, Life) { return v + 1, l }), "its server can be changed")
		v, in, ok := tab.Info(later, flowOf(i))
		require.True(t, ok)
		require.EqualValues(t, 2, v)
		require.Equal(t, Static, in.Life.Class)
	}
	require.True(t, tab.DeleteAt(later, flowOf(199)))
	require.NoError(t, tab.StoreLife(later, flowOf(999), 1, Life{Class: Static}))
	require.ErrorIs(t, tab.StoreAt(later, flowOf(1000), 1), ErrFull)
	tab.Sweep(later, 100)
	require.Equal(t, 10, tab.LenAt(later))
}

// What an invalidation made invisible is known until it is removed, and never revived.
func TestInvalidatedIsKnownUntilItIsRemoved(t *testing.T) {
	for name, layout := range map[string]Layout{"packed": Packed, "heap": Heap} {
		t.Run(name, func(t *testing.T) {
			tab, err := New(&Config[uint64, uint32]{MaxEntries: 100, Layout: layout, Owner: func(v uint32) uint32 { return v }})
			require.NoError(t, err)
			defer tab.Close()
			now := time.Now()
			require.NoError(t, tab.StoreLife(now, 1, 7, Life{TTL: time.Minute}))
			require.NoError(t, tab.StoreLife(now, 2, 8, Life{TTL: time.Minute}))
			_, ok := tab.Invalidated(now, 1)
			require.False(t, ok, "it is valid")
			tab.Invalidate(7)
			for range 3 {
				v, ok := tab.Invalidated(now, 1)
				require.True(t, ok)
				require.Equal(t, uint32(7), v)
				_, ok = tab.LoadAt(now, 1)
				require.False(t, ok, "it is not revived")
			}
			_, ok = tab.Invalidated(now, 2)
			require.False(t, ok, "another owner's")
			_, ok = tab.Invalidated(now, 3)
			require.False(t, ok, "none")
			_, ok = tab.Invalidated(now.Add(time.Minute), 1)
			require.False(t, ok, "it has expired, by asking it lives no longer")
			require.NoError(t, tab.StoreAt(now, 1, 7))
			_, ok = tab.Invalidated(now, 1)
			require.False(t, ok, "stored again")
			tab.Invalidate(7)
			for tab.Sweep(now, 100) > 0 {
			}
			_, ok = tab.Invalidated(now, 1)
			require.False(t, ok, "removed")
		})
	}
}
