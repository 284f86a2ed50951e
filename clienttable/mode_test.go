package clienttable

import (
	"encoding"
	"fmt"
	"net/netip"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

type value interface {
	encoding.TextMarshaler
	encoding.TextAppender
	fmt.Stringer
}

func roundTrip[E value, P interface {
	*E
	encoding.TextUnmarshaler
}](t *testing.T, first, last uint8, of func(uint8) E) {
	t.Helper()
	seen := map[string]bool{}
	for i := first; i <= last; i++ {
		e := of(i)
		text, err := e.MarshalText()
		require.NoError(t, err)
		require.Equal(t, e.String(), string(text))
		require.False(t, seen[string(text)])
		seen[string(text)] = true
		var back E
		require.NoError(t, P(&back).UnmarshalText(text))
		require.Equal(t, e, back)
	}
	bad := of(last + 1)
	_, err := bad.MarshalText()
	require.Error(t, err)
	require.Contains(t, bad.String(), fmt.Sprint(last+1))
	var back E
	err = P(&back).UnmarshalText([]byte("nonsense"))
	require.ErrorContains(t, err, "nonsense")
	require.ErrorContains(t, err, of(last).String(), "says what would be valid")
	require.Error(t, P(&back).UnmarshalText(nil))
}

func TestEnums(t *testing.T) {
	roundTrip(t, 0, 4, func(i uint8) Mode { return Mode(i) })
	roundTrip(t, 0, 3, func(i uint8) Class { return Class(i) })
	roundTrip(t, 1, 5, func(i uint8) Reason { return Reason(i) })
	roundTrip(t, 0, 1, func(i uint8) FullAction { return FullAction(i) })
	roundTrip(t, 0, 2, func(i uint8) Layout { return Layout(i) })
	roundTrip(t, 0, 3, func(i uint8) CloseTo { return CloseTo(i) })
	roundTrip(t, 0, 1, func(i uint8) Dir { return Dir(i) })
	roundTrip(t, 0, 8, func(i uint8) TCPPhase { return TCPPhase(i) })
	roundTrip(t, 0, 6, func(i uint8) TCPEvent { return TCPEvent(i) })
}

func TestModes(t *testing.T) {
	require.Equal(t, EntryPerSession, Mode(0), "the default")
	for _, c := range []struct {
		m                 Mode
		full, same, atEnd bool
	}{
		{Regular, false, true, false},
		{EntryPerSession, true, true, false},
		{ServerPerSession, true, false, false},
		{RemoveOnEndEntryPerSession, true, true, true},
		{RemoveOnEndServerPerSession, true, false, true},
	} {
		require.Equal(t, c.full, c.m.FullKey(), c.m)
		require.Equal(t, c.same, c.m.SameServer(), c.m)
		require.Equal(t, c.atEnd, c.m.RemoveOnEnd(), c.m)
	}
	require.Equal(t, Regular, LegacyMode(false, false))
	require.Equal(t, EntryPerSession, LegacyMode(true, false))
	require.Equal(t, ServerPerSession, LegacyMode(false, true))
	require.Equal(t, ServerPerSession, LegacyMode(true, true))
}

func TestAssociation(t *testing.T) {
	require.EqualValues(t, 40, unsafe.Sizeof(Association{}))
	require.Empty(t, whyNotPacked[Association, uint32]())
	c4, c6 := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:1:2:3:4:5:6")
	vip := ap("198.51.100.7:80")
	var all Grouping
	reg := RegularKey(6, c4, vip, all)
	require.Equal(t, reg, RegularKeyOf(MakeFlow(6, netip.AddrPortFrom(c4, 4711), vip), all), "whatever the source port")
	require.NotEqual(t, reg, RegularKey(17, c4, vip, all), "the protocol counts")
	require.NotEqual(t, reg, RegularKey(6, c4, ap("198.51.100.7:81"), all), "the port counts")
	require.NotEqual(t, reg, RegularKey(6, c4.Next(), vip, all), "the client counts")
	require.Equal(t, "192.0.2.77 > tcp 198.51.100.7:80", reg.String())
	proto, to, ok := reg.Service()
	require.True(t, ok)
	require.Equal(t, uint8(6), proto)
	require.Equal(t, vip, to)
	_, ok = reg.Farm()
	require.False(t, ok)

	g, err := NewGrouping(24, 64)
	require.NoError(t, err)
	farm := FarmKey(3, c4, g)
	require.Equal(t, "192.0.2.0 > farm 3", farm.String())
	require.Equal(t, netip.MustParseAddr("192.0.2.0"), farm.Client())
	require.NotEqual(t, farm, FarmKey(4, c4, g))
	n, ok := farm.Farm()
	require.True(t, ok)
	require.Equal(t, uint32(3), n)
	require.Equal(t, FarmKey(3, netip.MustParseAddr("::ffff:192.0.2.1"), g), farm, "IPv4 in IPv6")
	require.Equal(t, "2001:db8:1:2:: > farm 0", FarmKey(0, c6, g).String())
	require.NotEqual(t, FarmKey(0, netip.IPv6Unspecified(), all), Association{})
	require.Equal(t, "-", Association{}.String())
	require.NotEqual(t, FarmKey(80, c4, all), RegularKey(0, c4, ap("0.0.0.0:80"), all))

	// Against netip's own masking, for every length.
	for bits := range 129 {
		g, err := NewGrouping(min(bits, 32), bits)
		require.NoError(t, err)
		b4, b6 := g.Bits()
		require.Equal(t, []int{min(bits, 32), bits}, []int{b4, b6})
		p6, _ := c6.Prefix(bits)
		require.Equal(t, p6.Addr(), g.Mask(c6))
		p4, _ := c4.Prefix(min(bits, 32))
		require.Equal(t, p4.Addr(), g.Mask(c4))
	}
	require.Equal(t, netip.Addr{}, g.Mask(netip.Addr{}))
	for _, bad := range [][2]int{{-1, 0}, {33, 0}, {0, -1}, {0, 129}} {
		_, err := NewGrouping(bad[0], bad[1])
		require.ErrorIs(t, err, ErrInvalid)
	}
}
