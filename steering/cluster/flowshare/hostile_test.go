package flowshare

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// foreign returns a frame of items with one origin and version.
func foreign(clock, version uint64, origin Member, flows ...Flow) []byte {
	b := binary.AppendUvarint([]byte{kindItems}, clock)
	b = append(b, 1, byte(len(origin.Name)))
	b = binary.BigEndian.AppendUint64(append(b, origin.Name...), origin.Epoch)
	b = append(b, 1, 3, 's', 'h', '1', 0)
	b = binary.AppendUvarint(b, uint64(len(flows)))
	for i := range flows {
		b = appendFlow(append(b, 0), &flows[i])
		b = binary.AppendUvarint(b, version)
		b = append(b, 0, 0)
	}
	return b
}

// TestForeignClaims: what others say this balancer has announced, after a long partition for instance, takes no more room than
// there is.
func TestForeignClaims(t *testing.T) {
	l, k, other := pair(t, Config{MaxFlows: 64})
	now := time.Unix(1000, 0)
	var flows []Flow
	for i := range 500 {
		flows = append(flows, MakeFlow(6, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i+1)), ap("192.0.2.1:80")))
	}
	require.NoError(t, l.Receive(now, other, foreign(7, 7, l.cfg.Self, flows...)))
	s := l.Stats()
	require.LessOrEqual(t, s.Flows+s.Tombstones, 64)
	require.EqualValues(t, 64, s.Refuted)
	require.EqualValues(t, 500-64, s.Refused)
	// When there is room again, the rest is refuted too.
	for range 140 { // all parts are swept
		now = now.Add(time.Second)
		l.Step(now)
	}
	k.frames = nil
	require.NoError(t, l.Receive(now, other, foreign(7, 7, l.cfg.Self, flows[100:]...)))
	require.EqualValues(t, 128, l.Stats().Refuted)
}

// TestClockAtItsEnd: a member whose clock is where it ends, by a fault, does not silence the others.
func TestClockAtItsEnd(t *testing.T) {
	a, k, b := pair(t, Config{})
	c, err := New(&Config{Self: b, Transport: &kept{}})
	require.NoError(t, err)
	now := time.Unix(1000, 0)
	c.SetMembers(now, []Member{a.cfg.Self})
	f, g := MakeFlow(6, ap("10.0.0.1:1"), ap("192.0.2.1:80")), MakeFlow(6, ap("10.0.0.2:1"), ap("192.0.2.1:80"))
	require.NoError(t, a.Receive(now, b, foreign(maxClock, maxClock, b, f)))
	send := func() {
		now = now.Add(time.Second)
		a.Step(now)
		require.NotEmpty(t, k.frames)
		for _, frame := range k.frames {
			require.NoError(t, c.Receive(now, a.cfg.Self, frame))
		}
		k.frames = nil
	}
	a.Announce(g, Value{"sh2", ""})
	send()
	v, ok := c.Lookup(g)
	require.True(t, ok)
	require.Equal(t, "sh2", v.Node)
	a.Withdraw(g)
	send()
	_, ok = c.Lookup(g)
	require.False(t, ok)
}

// TestDigestsOfWhoDoesNotRead: who asks and asks and takes no answer has none kept for him but the last.
func TestDigestsOfWhoDoesNotRead(t *testing.T) {
	l, k, other := pair(t, Config{})
	now := time.Unix(1000, 0)
	for i := range 200 {
		l.Announce(MakeFlow(6, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i+1)), ap("192.0.2.1:80")), Value{"sh1", ""})
	}
	l.Step(now)
	l.cfg.Transport = deaf{}
	for i := range 500 {
		now = now.Add(30 * time.Millisecond)
		require.NoError(t, l.Receive(now, other, digestFrame(5, l.view.digest, uint64(i), make([]uint64, 8))))
		l.Step(now.Add(25 * time.Millisecond))
	}
	require.LessOrEqual(t, len(l.peers["b"].frames), 4)
	// When he reads, he has his answer.
	k.frames, l.cfg.Transport = nil, k
	for range 20 {
		now = now.Add(30 * time.Millisecond)
		l.Step(now)
	}
	found := false
	for _, b := range k.frames {
		m, err := parseFrame(b)
		require.NoError(t, err)
		found = found || m.kind == kindDiff && m.round == 499
	}
	require.True(t, found)
}

// deaf is a Transport that has no room.
type deaf struct{}

func (deaf) Send(Member, []byte, bool) bool { return false }

// TestDigestsInARow: who asks all the time does not put off the answer for ever, his or that of others.
func TestDigestsInARow(t *testing.T) {
	l, k, other := pair(t, Config{})
	now := time.Unix(1000, 0)
	answered := func() (n int) {
		for _, b := range k.frames {
			m, err := parseFrame(b)
			require.NoError(t, err)
			if m.kind == kindDiff {
				n++
			}
		}
		return n
	}
	for i := range 250 {
		now = now.Add(4 * time.Millisecond)
		require.NoError(t, l.Receive(now, other, digestFrame(5, l.view.digest, uint64(i), make([]uint64, 8))))
		l.Step(now)
	}
	require.Greater(t, answered(), 20, "in a second")
	require.Less(t, answered(), 60, "many are answered at once")
}
