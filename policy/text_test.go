package policy

import (
	"encoding"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

type textValue[T any] interface {
	*T
	encoding.TextAppender
	encoding.TextMarshaler
	encoding.TextUnmarshaler
}

func roundTrip[T comparable, P textValue[T]](t testing.TB, v T, want string) {
	t.Helper()
	text, err := P(&v).MarshalText()
	require.NoError(t, err)
	if want != "" {
		require.Equal(t, want, string(text))
		require.Equal(t, want, fmt.Sprint(v))
	}
	var back T
	require.NoError(t, P(&back).UnmarshalText(text))
	require.Equal(t, v, back, string(text))
}

func refuse[T any, P textValue[T]](t *testing.T, texts ...string) {
	t.Helper()
	for _, s := range texts {
		var v T
		err := P(&v).UnmarshalText([]byte(s))
		require.ErrorIs(t, err, ErrInvalid, "%q", s)
		require.ErrorContains(t, err, "want ", "%q", s) // what would be valid
	}
}

func refuseValue[T any, P textValue[T]](t *testing.T, v T) {
	t.Helper()
	_, err := P(&v).MarshalText()
	require.ErrorIs(t, err, ErrInvalid, "%v", v)
	require.NotEmpty(t, fmt.Sprint(v))
}

func addrs(first, last string) AddrRange {
	return AddrRange{netip.MustParseAddr(first), netip.MustParseAddr(last)}
}

func TestText(t *testing.T) {
	roundTrip(t, Any, "any")
	roundTrip(t, Other, "other")
	roundTrip(t, TCP, "tcp")
	roundTrip(t, ProtocolNumber(0), "0")
	for i := range 256 {
		roundTrip(t, ProtocolNumber(uint8(i)), "")
	}
	refuse[Protocol](t, "", "256", "-1", "tcpp", "1.0")
	refuseValue(t, Protocol(2))

	roundTrip(t, PortRange{}, "any")
	roundTrip(t, Port(80), "80")
	roundTrip(t, PortRange{0, 65535}, "0-65535")
	refuse[PortRange](t, "", "65536", "2-1", "1-", "-1", "a", "0-0", "1-2-3", "+1")
	refuseValue(t, PortRange{2, 1})
	var r PortRange
	require.NoError(t, r.UnmarshalJSON([]byte("80")))
	require.Equal(t, Port(80), r)
	require.NoError(t, r.UnmarshalJSON([]byte(`"80-90"`)))
	require.Equal(t, PortRange{80, 90}, r)
	require.NoError(t, r.UnmarshalJSON([]byte("null")))
	require.ErrorIs(t, r.UnmarshalJSON([]byte("[1]")), ErrInvalid)

	roundTrip(t, AddrRange{}, "any")
	roundTrip(t, addrs("10.0.0.0", "10.255.255.255"), "10.0.0.0/8")
	roundTrip(t, addrs("10.0.0.1", "10.0.0.1"), "10.0.0.1")
	roundTrip(t, addrs("10.0.0.1", "10.0.0.2"), "10.0.0.1-10.0.0.2")
	roundTrip(t, addrs("0.0.0.0", "255.255.255.255"), "0.0.0.0/0")
	roundTrip(t, addrs("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), "::/0")
	roundTrip(t, addrs("2001:db8::", "2001:db8:0:0:ffff:ffff:ffff:ffff"), "2001:db8::/64")
	roundTrip(t, addrs("2001:db8::", "2001:db8:0:1:ffff:ffff:ffff:fffe"), "2001:db8::-2001:db8:0:1:ffff:ffff:ffff:fffe")
	refuse[AddrRange](t, "", "10.0.0.2-10.0.0.1", "10.0.0.1-::1", "10.0.0.1-", "x", "10.0.0.0/33", "fe80::1%eth0", "1.1.1.1-1.1.1.2-1.1.1.3")
	refuseValue(t, addrs("10.0.0.2", "10.0.0.1"))
	refuseValue(t, AddrRange{First: netip.MustParseAddr("::1")})
	refuseValue(t, PrefixRange(netip.PrefixFrom(netip.MustParseAddr("::1"), 129)))
	require.Equal(t, AddrRange{}, PrefixRange(netip.Prefix{}))
	mapped, err := ParseAddrRange("::ffff:10.0.0.0/104")
	require.NoError(t, err)
	require.Equal(t, addrs("10.0.0.0", "10.255.255.255"), mapped)
	mapped, err = ParseAddrRange("::ffff:10.0.0.1-::ffff:10.0.0.2")
	require.NoError(t, err)
	require.Equal(t, addrs("10.0.0.1", "10.0.0.2"), mapped)

	host := netip.MustParsePrefix("10.0.0.1/32")
	roundTrip(t, Match{Dst: host}, "10.0.0.1")
	roundTrip(t, Match{Dst: host, DstPort: Port(53)}, "10.0.0.1 any/53")
	roundTrip(t, Match{Dst: host, Protocol: Other, Src: addrs("10.0.0.0", "10.255.255.255")}, "10.0.0.1 other from 10.0.0.0/8")
	roundTrip(t, Match{Dst: host, Src: addrs("10.0.0.0", "10.0.0.9")}, "10.0.0.1 from 10.0.0.0-10.0.0.9")
	roundTrip(t, Match{Dst: netip.MustParsePrefix("2001:db8::/64"), Protocol: UDP, DstPort: PortRange{1, 2}}, "2001:db8::/64 udp/1-2")
	refuse[Match](t, "", "x", "10.0.0.1/33", "fe80::1%eth0", "10.0.0.1 tcp/x", "10.0.0.1 foo", "10.0.0.1 from", "10.0.0.1 from x", "10.0.0.1 tcp 80", "10.0.0.1 tcp from any more")
	refuseValue(t, Match{})

	roundTrip(t, packet(t, "tcp 192.0.2.1:1 > 10.0.0.1:80"), "tcp 192.0.2.1:1 > 10.0.0.1:80")
	roundTrip(t, packet(t, "0 [2001:db8::1]:1 > [2001:db8::2]:80 from proxy"), "0 [2001:db8::1]:1 > [2001:db8::2]:80 from proxy")
	refuse[Packet](t, "", "tcp 192.0.2.1:1 10.0.0.1:80", "any 192.0.2.1:1 > 10.0.0.1:80", "foo 192.0.2.1:1 > 10.0.0.1:80",
		"tcp 192.0.2.1 > 10.0.0.1:80", "tcp 192.0.2.1:1 > 10.0.0.1", "tcp 192.0.2.1:1 > 10.0.0.1:80 from me")
	refuseValue(t, Packet{})

	for i := range uint8(5) {
		roundTrip(t, Tier(i), "")
		roundTrip(t, Relation(i), "")
	}
	for i := range uint8(4) {
		roundTrip(t, Outcome(i), "")
		roundTrip(t, Finding(i), "")
	}
	refuseValue(t, Tier(5))
	refuseValue(t, Relation(5))
	refuseValue(t, Outcome(4))
	refuseValue(t, Finding(4))
	refuse[Tier](t, "")
	refuse[Relation](t, "x")
	refuse[Outcome](t, "x")
	refuse[Finding](t, "x")
}

func FuzzMatchText(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "10.0.0.1/8 tcp/80 from 10.0.0.0/8", "::ffff:10.0.0.1 icmp", "2001:db8::/33 any/1-2 from 2001:db8::1-2001:db8::2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMatch(s)
		if err != nil || m.Validate() != nil {
			return
		}
		text, err := m.MarshalText()
		require.NoError(t, err)
		back, err := ParseMatch(string(text))
		require.NoError(t, err)
		require.Equal(t, m, back)
		require.Equal(t, Equal, m.Relate(back))
	})
}

// TestRelate compares Relate with the sets themselves, over a universe that has a packet
// on each side of every edge.
func TestRelate(t *testing.T) {
	u := universe{rand.New(rand.NewPCG(7, 7)), 4, 4}
	var packets []Packet
	for _, proto := range []uint8{0, 1, 6, 17, 47, 58, 132, 255} {
		for _, port := range []uint16{0, 1, 2, 3, 65535} {
			for c := -1; c < 6; c++ {
				for _, v4 := range []bool{true, false} {
					src := u.client(v4, max(c, 0))
					if c < 0 {
						src = netip.MustParseAddr(map[bool]string{true: "0.0.0.0", false: "::"}[v4])
					}
					if c == 5 {
						src = netip.MustParseAddr(map[bool]string{true: "255.255.255.255", false: "ffff::"}[v4])
					}
					for i := range 5 {
						dst := fmt.Sprintf("2001:db8:ff::%x", i)
						if v4 {
							dst = fmt.Sprintf("192.0.2.%d", i)
						}
						packets = append(packets, Packet{Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(netip.MustParseAddr(dst), port), Protocol: proto})
					}
				}
			}
		}
	}
	seen := make(map[Relation]int)
	for range 300 {
		a, b := u.match(), u.match()
		if u.IntN(2) == 0 { // usually change one thing only
			b = a
			switch c := u.match(); u.IntN(4) {
			case 0:
				b.Dst = c.Dst
			case 1:
				b.Protocol, b.DstPort = c.Protocol, c.DstPort
			case 2:
				b.Src = c.Src
			}
		}
		var onlyA, onlyB, common bool
		for _, p := range packets {
			x, y := a.Contains(p), b.Contains(p)
			onlyA = onlyA || x && !y
			onlyB = onlyB || y && !x
			common = common || x && y
		}
		want := map[[3]bool]Relation{
			{true, true, true}: Overlapping, {true, false, true}: Wider, {false, true, true}: Narrower, {false, false, true}: Equal,
		}[[3]bool{onlyA, onlyB, common}]
		require.Equal(t, want, a.Relate(b), "%v | %v", a, b)
		seen[want]++
		if want != Equal && a.Compare(b) == 0 {
			require.Error(t, a.Validate())
		}
		require.Equal(t, a.Compare(b), -b.Compare(a))
	}
	require.Len(t, seen, 5)
	require.Equal(t, Disjoint, Match{}.Relate(Match{}))
	require.Equal(t, TierNone, Match{}.Tier())
	require.Equal(t, 1, Match{}.Compare(u.vipMatch()))
	require.Equal(t, -1, u.vipMatch().Compare(Match{}))
	require.Equal(t, 0, Match{}.Compare(Match{Protocol: TCP}))
}

func (u universe) vipMatch() Match { return Match{Dst: netip.MustParsePrefix("10.0.0.1/32")} }

func TestLookupDoesNotAllocate(t *testing.T) {
	u := universe{rand.New(rand.NewPCG(9, 9)), 30, 30}
	table, err := Compile(nil, u.rules(100)...)
	require.NoError(t, err)
	var r Resolver[int]
	r.Store(table)
	packets := make([]Packet, 100)
	for i := range packets {
		packets[i] = u.packet()
	}
	require.Zero(t, testing.AllocsPerRun(10, func() {
		for _, p := range packets {
			r.Lookup(p)
			table.LookupRule(p)
			table.OwnsVIP(p.Dst.Addr())
		}
	}))
}
