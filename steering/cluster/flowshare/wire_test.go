package flowshare

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// kept is a Transport that keeps what it is given.
type kept struct{ frames [][]byte }

func (k *kept) Send(_ Member, frame []byte, _ bool) bool {
	k.frames = append(k.frames, frame)
	return true
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func pair(t testing.TB, cfg Config) (*Layer, *kept, Member) {
	t.Helper()
	k := &kept{}
	other := Member{"b", 7}
	cfg.Self, cfg.Transport = Member{"a", 3}, k
	l, err := New(&cfg)
	require.NoError(t, err)
	l.SetMembers(time.Unix(1000, 0), []Member{other})
	return l, k, other
}

// frames returns one of each kind.
func frames(t testing.TB) [][]byte {
	l, k, _ := pair(t, Config{})
	l.Announce(MakeFlow(6, ap("10.0.0.1:1234"), ap("192.0.2.1:80")), Value{"sh1", "web"})
	l.Announce(MakeFlow(17, ap("[2001:db8::1]:53"), ap("[2001:db8::2]:5353")), Value{"sh2", ""})
	gone := MakeFlow(1, ap("10.0.0.1:0"), ap("10.0.0.2:9"))
	l.Announce(gone, Value{"sh2", ""})
	l.Withdraw(gone)
	l.Find(time.Unix(1000, 1), MakeFlow(6, ap("10.0.0.3:1"), ap("10.0.0.4:2")), func(Value, bool) {})
	l.Step(time.Unix(1001, 0))
	return append(k.frames, digestFrame(5, 77, 3, []uint64{1, 2, 3, 4}), diffFrame(5, 77, 3, 16, []byte{1, 128}),
		answerFrame(9, 1, Value{"sh1", "x"}, true), answerFrame(9, 2, Value{}, false))
}

func TestFramePrefixes(t *testing.T) {
	for _, b := range frames(t) {
		m, err := parseFrame(b)
		require.NoError(t, err)
		require.NotZero(t, m.kind)
		for n := range b {
			_, err := parseFrame(b[:n])
			require.ErrorIs(t, err, ErrFrame, "%d of %d bytes", n, len(b))
		}
		_, err = parseFrame(append(append([]byte(nil), b...), 0))
		require.ErrorIs(t, err, ErrFrame)
	}
	_, err := parseFrame(make([]byte, MaxFrame+1))
	require.ErrorContains(t, err, "1048577 bytes")
	_, err = parseFrame([]byte{99, 0})
	require.ErrorContains(t, err, "unknown kind 99")
}

func TestFlowBothWays(t *testing.T) {
	for _, c := range [][2]string{
		{"10.0.0.1:80", "10.0.0.2:81"}, {"[2001:db8::1]:1", "[2001:db8::2]:2"}, {"10.0.0.1:1", "[2001:db8::2]:2"}, {"10.0.0.1:5", "10.0.0.1:4"},
		{"[::ffff:10.0.0.1]:80", "10.0.0.2:80"},
	} {
		f, g := MakeFlow(6, ap(c[0]), ap(c[1])), MakeFlow(6, ap(c[1]), ap(c[0]))
		require.Equal(t, f, g)
		require.Equal(t, f.Hash(), g.Hash())
		require.NotEqual(t, f, MakeFlow(17, ap(c[0]), ap(c[1])))
		back, rest, ok := parseFlow(append(appendFlow(nil, &f), 1))
		require.True(t, ok)
		require.Len(t, rest, 1)
		require.Equal(t, f, back)
		x, y := f.Ends()
		require.Equal(t, f, MakeFlow(f.Protocol(), x, y))
	}
	require.Equal(t, "6 10.0.0.1:80-10.0.0.2:81", MakeFlow(6, ap("10.0.0.2:81"), ap("10.0.0.1:80")).String())
	require.True(t, Flow{}.IsZero())
}

// TestRefusedFrames: damaged and foreign frames are counted and change nothing.
func TestRefusedFrames(t *testing.T) {
	l, _, other := pair(t, Config{})
	now := time.Unix(1002, 0)
	for _, b := range frames(t) {
		require.NoError(t, l.Receive(now, Member{"stranger", 1}, b))
		require.NoError(t, l.Receive(now, Member{"b", 6}, b), "a former life")
		require.ErrorIs(t, l.Receive(now, other, b[:len(b)-1]), ErrFrame)
	}
	s := l.Stats()
	require.EqualValues(t, len(frames(t)), s.Malformed)
	require.EqualValues(t, 2*len(frames(t)), s.Strangers)
	require.Zero(t, s.Flows)
	// An answer nobody asked for; a diff of no comparison.
	require.NoError(t, l.Receive(now, other, answerFrame(1, 5, Value{"x", ""}, true)))
	require.NoError(t, l.Receive(now, other, diffFrame(1, l.view.digest, 99, 8, []byte{255})))
	require.EqualValues(t, 2, l.Stats().Unasked)
}

// TestReplayedFrames: what comes twice, or late, changes nothing.
func TestReplayedFrames(t *testing.T) {
	a, k, b := pair(t, Config{})
	c, err := New(&Config{Self: b, Transport: &kept{}})
	require.NoError(t, err)
	now := time.Unix(1000, 0)
	c.SetMembers(now, []Member{{"a", 3}})
	f := MakeFlow(6, ap("10.0.0.1:1234"), ap("192.0.2.1:80"))
	a.Announce(f, Value{"sh1", ""})
	a.Step(now)
	a.Withdraw(f)
	a.Step(now.Add(time.Second))
	for range 2 {
		for _, frame := range k.frames {
			require.NoError(t, c.Receive(now, Member{"a", 3}, frame))
		}
	}
	_, ok := c.Lookup(f)
	require.False(t, ok, "the announcement came again after the withdrawal")
	require.Equal(t, 1, c.Stats().Tombstones)
}

func FuzzReceive(f *testing.F) {
	for _, b := range frames(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, k, other := pair(t, Config{MaxFlows: 64, MaxPending: 32})
		now := time.Unix(1003, 0)
		mine := MakeFlow(6, ap("10.0.0.1:1234"), ap("192.0.2.1:80"))
		l.Announce(mine, Value{"sh9", ""})
		_ = l.Receive(now, other, b)
		_ = l.Receive(now, other, b)
		for i := range 20 {
			l.Step(now.Add(time.Duration(i) * time.Second))
		}
		require.LessOrEqual(t, l.store.Len(), 64)
		for _, frame := range k.frames {
			_, err := parseFrame(frame)
			require.NoError(t, err, "what it sends is well-formed")
		}
		live := 0
		for part := range Parts {
			l.store.Range(part, func(f Flow, it Item) bool {
				require.Positive(t, l.origins.refs[it.Origin])
				if it.Flags&Tombstone == 0 {
					live++
					require.Positive(t, l.values.refs[it.Value])
				}
				return true
			})
		}
		refs := int32(0)
		for _, n := range l.values.refs {
			refs += n
		}
		require.EqualValues(t, live, refs, "values are counted")
	})
}

func FuzzFlow(f *testing.F) {
	g := MakeFlow(6, ap("10.0.0.1:1234"), ap("[2001:db8::1]:80"))
	f.Add(appendFlow(nil, &g))
	f.Fuzz(func(t *testing.T, b []byte) {
		if g, rest, ok := parseFlow(b); ok {
			require.Equal(t, b[:len(b)-len(rest)], appendFlow(nil, &g), "a flow has one form")
		}
	})
}

// TestMaxFrame: frames stay below the bound whatever the names are.
func TestMaxFrame(t *testing.T) {
	l, k, _ := pair(t, Config{MaxFrame: 1500})
	long := make([]byte, MaxNode)
	for i := range 500 {
		copy(long, binary.BigEndian.AppendUint32(nil, uint32(i)))
		l.Announce(MakeFlow(6, netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1}), uint16(i)), ap("[::1]:1")), Value{string(long), string(long)})
	}
	l.Announce(MakeFlow(6, ap("1.1.1.1:1"), ap("1.1.1.2:2")), Value{string(append(long, 1)), ""})
	l.Step(time.Unix(1001, 0))
	items := 0
	for _, b := range k.frames {
		require.LessOrEqual(t, len(b), 1500)
		m, err := parseFrame(b)
		require.NoError(t, err)
		items += len(m.items)
	}
	require.Equal(t, 500, items)
	require.EqualValues(t, 1, l.Stats().Refused, "a name that is too long")
}
