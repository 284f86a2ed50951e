package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLanes compares what this machine uses with the plain form, at the ends of ranges and in
// between.
func TestLanes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 8))
	pick16 := func() uint16 { return []uint16{0, 1, 0x7fff, 0x8000, 0xfffe, 0xffff, uint16(r.Uint32())}[r.IntN(7)] }
	pick32 := func() uint32 {
		return []uint32{0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff, r.Uint32()}[r.IntN(7)]
	}
	for range 20_000 {
		var w slotHead
		var want uint64
		port, src := pick16(), pick32()
		for i := range slotRules {
			first, last, from, to := pick16(), pick16(), pick32(), pick32()
			w.putHalf(2+i, first^sign16)
			w.putHalf(7+i, last^sign16)
			w[6+i], w[11+i] = from^sign32, to^sign32
			if port < first || last < port || src < from || to < src {
				want |= 1 << (8 * i)
			}
		}
		for i := range w {
			if i == 0 || i > 15 {
				w[i] = r.Uint32() // does not matter
			}
		}
		x, y := uint32(port)^sign16, src^sign32
		require.Equal(t, want, outside4(&w, x, y)&lanes)
		require.Equal(t, want, outside4Go(&w, x, y))
	}
}

// TestClassify: a packet is in just one class, and its port counts only if it has one.
func TestClassify(t *testing.T) {
	for proto := range 256 {
		class, x := classify(uint8(proto), 4711)
		require.Less(t, class, uint32(8))
		if packetHasPorts(uint8(proto)) {
			require.EqualValues(t, 4711, x)
		} else {
			require.EqualValues(t, proto, x)
		}
		for _, n := range []uint8{1, 6, 17, 33, 58, 132, 136} {
			if other, _ := classify(n, 0); uint8(proto) != n {
				require.NotEqual(t, other, class)
			}
		}
	}
}

// TestSlotHolds says which VIPs a slot is for; the others are compiled to a program. Both are
// compared with the oracle all over; here is that the twins do not all go one way.
func TestSlotHolds(t *testing.T) {
	for _, tt := range []struct {
		large bool
		rules []string
	}{
		{false, []string{"A 10.0.0.1"}},
		{false, []string{"A 10.0.0.1 tcp/80 from 10.0.0.1-10.0.0.7", "B 10.0.0.1 any/53", "C 10.0.0.1 other", "D 10.0.0.1 gre", "E 10.0.0.1"}},
		{true, []string{"A 10.0.0.1 tcp/1", "B 10.0.0.1 tcp/2", "C 10.0.0.1 tcp/3", "D 10.0.0.1 tcp/4", "E 10.0.0.1 tcp/5", "F 10.0.0.1"}},
		{false, []string{"A ::1 tcp/80 from 2001:db8::/64", "B ::1 tcp/80 from ::/0", "C ::1 other from 2001:db8::/32", "D ::1 icmp", "E ::1"}},
		{true, []string{"A ::1 tcp/80 from 2001:db8::1"}},
		{true, []string{"A ::1 tcp/80 from 2001:db8::-2001:db8:2:ffff:ffff:ffff:ffff:ffff"}},
	} {
		table, err := Compile(nil, set(t, tt.rules...)...)
		require.NoError(t, err)
		require.Equal(t, tt.large, table.groups(false)[0].prog != nil, "%v", tt.rules)
	}
}

// TestShardsThatFail: VIPs for which there is no place under one hash get another hash, and VIPs for
// which there is none in so many slots get more.
func TestShardsThatFail(t *testing.T) {
	members := func(n int) (ms []member[int], order []placing) {
		for i := range n {
			ms = append(ms, member[int]{svc: &service[int]{vip: u128{0, uint64(i)}, bits: 32, fam: v4}})
			order = append(order, placing{uint64(i) << 20, int32(i)}) // one bucket, and places that follow each other
		}
		return ms, order
	}
	var d shard[int]
	ms, order := members(40)
	require.True(t, d.fill(ms, order, 63))
	require.Len(t, d.appendMembers(nil), 40)

	for i := range order {
		order[i].hash = 1 << 40
	}
	d = shard[int]{}
	require.False(t, d.fill(ms, order, 63), "two with one hash have one place")
}

// TestVIPsWithOneHash: addresses that fold to one number under the first seed of the hash are
// told apart by another, in a table compiled at once and in one that grows.
func TestVIPsWithOneHash(t *testing.T) {
	var rules []Rule[int]
	for i := range 20 {
		vip := v6.addr(u128{0x2001_0db8_0000_0000 | uint64(i), 0xd6e8feb86659fd93}) // the second factor is zero
		if i%2 == 1 {
			vip = v6.addr(u128{0x9e3779b97f4a7c15 ^ 128, uint64(i)}) // the first one
		}
		x, f := split(vip)
		require.Zero(t, hash6(x, 128, 0))
		rules = append(rules, Rule[int]{Name: fmt.Sprint(i), Match: Match{Dst: netip.PrefixFrom(vip, f.bits())}, Value: i})
	}
	whole := mustCompile(t, rules)
	grown, err := (*Table[int])(nil).With(rules[0])
	require.NoError(t, err)
	old := grown
	grown, err = grown.With(rules[1:10]...)
	require.NoError(t, err)
	for _, r := range rules[10:] {
		grown, err = grown.With(r)
		require.NoError(t, err)
	}
	for _, table := range []*Table[int]{whole, grown} {
		for i, r := range rules {
			v, ok := table.Lookup(Packet{Src: netip.MustParseAddrPort("[::1]:1"), Dst: netip.AddrPortFrom(r.Match.Dst.Addr(), 80), Protocol: 6})
			require.True(t, ok)
			require.Equal(t, i, v)
		}
	}
	require.Equal(t, dump(whole), dump(grown))
	require.Equal(t, 1, old.Len())
	require.True(t, old.OwnsVIP(rules[0].Match.Dst.Addr()))
	require.False(t, old.OwnsVIP(rules[1].Match.Dst.Addr()))
}
