package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func hugeClient(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// TestProgramIsLinearInTheRules: a row of many clients comes before each of many ports of
// any protocol, and must not be copied for each of them.
func TestProgramIsLinearInTheRules(t *testing.T) {
	vip := netip.MustParsePrefix("192.0.2.1/32")
	var rules []Rule[int]
	const clients, ports = 4000, 1000
	for i := range clients {
		a := hugeClient(2 * i)
		rules = append(rules, Rule[int]{Name: fmt.Sprint("c", i), Match: Match{vip, TCP, PortRange{}, AddrRange{a, a}}, Value: -1})
	}
	for i := range ports {
		rules = append(rules, Rule[int]{Name: fmt.Sprint("p", i), Match: Match{vip, Any, Port(uint16(i + 1)), AddrRange{}}, Value: i + 1})
	}
	for _, strict := range []bool{false, true} {
		table, err := Compile(&Config{StrictTier: strict}, rules...)
		require.NoError(t, err)
		require.Less(t, len(table.groups(false)[0].prog), 40*len(rules))
		for i := range 2000 {
			port := uint16(i % (ports + 5))
			src := hugeClient(i * 7)
			v, ok := table.Lookup(Packet{Src: netip.AddrPortFrom(src, 1), Dst: netip.AddrPortFrom(vip.Addr(), port), Protocol: 6})
			switch {
			case i*7 < 2*clients && i*7%2 == 0:
				require.True(t, ok)
				require.Equal(t, -1, v)
			case strict || port == 0 || port > ports:
				require.False(t, ok)
			default:
				require.True(t, ok)
				require.Equal(t, int(port), v)
			}
		}
	}
}

// TestShadowedOfAHugeVIP: each of many rules is covered by two halves.
func TestShadowedOfAHugeVIP(t *testing.T) {
	vip := netip.MustParsePrefix("192.0.2.1/32")
	for name, match := range map[string]func(i, part int) Match{
		"clients": func(i, part int) Match {
			a := AddrRange{hugeClient(4 * i), hugeClient(4*i + 3)}
			switch part {
			case 1:
				a.Last = hugeClient(4*i + 1)
			case 2:
				a.First = hugeClient(4*i + 2)
			}
			return Match{vip, TCP, Port(80), a}
		},
		"ports": func(i, part int) Match {
			src := PrefixRange(netip.MustParsePrefix([]string{"10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9"}[part]))
			return Match{vip, UDP, Port(uint16(i + 1)), src}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var rules []Rule[int]
			const n = 20_000
			for i := range n {
				for part := range 3 {
					rules = append(rules, Rule[int]{Name: fmt.Sprint(i, "-", part), Match: match(i, part)})
				}
			}
			table, err := Compile(nil, rules...)
			require.NoError(t, err)
			count := 0
			for r, cover := range table.Shadowed() {
				var i, part int
				_, err := fmt.Sscanf(r.Name, "%d-%d", &i, &part)
				require.NoError(t, err)
				require.Zero(t, part)
				require.Len(t, cover, 2)
				require.Equal(t, []string{fmt.Sprint(i, "-1"), fmt.Sprint(i, "-2")}, []string{cover[0].Name, cover[1].Name})
				count++
			}
			require.Equal(t, n, count)
		})
	}
}

func TestManyNamesTwice(t *testing.T) {
	const n = 50_000
	var rules []Rule[int]
	for i := range 2 * n {
		rules = append(rules, Rule[int]{Name: fmt.Sprint(i % n), Match: Match{Dst: netip.PrefixFrom(hugeClient(i), 32)}})
	}
	_, err := Compile(nil, rules...)
	require.ErrorIs(t, err, ErrName)
	require.ErrorIs(t, err, ErrTooMany)
	var re *RuleError
	require.ErrorAs(t, err, &re)
	require.Equal(t, []int{n, 0}, []int{re.Index, re.OtherIndex})
}

// TestChangeOfAHugeVIP compares changes of one VIP with much of everything with a table
// compiled from nothing.
func TestChangeOfAHugeVIP(t *testing.T) {
	rules := benchOneVIP(40, 100)
	table := mustCompile(t, rules)
	vip := rules[0].Match.Dst
	for i, m := range []Match{
		{vip, UDP, PortRange{}, AddrRange{}},
		{vip, TCP, Port(1), AddrRange{hugeClient(5), hugeClient(5)}},
		{vip, TCP, PortRange{1, 65535}, AddrRange{}},
		{vip, Any, Port(7), PrefixRange(netip.MustParsePrefix("10.0.0.0/8"))},
	} {
		r := Rule[int]{Name: fmt.Sprint("new", i), Match: m, Value: -i}
		next, err := table.With(r)
		require.NoError(t, err)
		rules = append(rules, r)
		gone := rules[i*31].Name
		next, err = next.Without(gone)
		require.NoError(t, err)
		rules = slices.DeleteFunc(rules, func(r Rule[int]) bool { return r.Name == gone })
		whole := mustCompile(t, rules)
		require.Equal(t, dump(whole), dump(next))
		a, b := whole.groups(false)[0], next.groups(false)[0]
		require.Equal(t, a.prog, b.prog)
		require.Equal(t, a.values, b.values)
		require.Equal(t, a.members, b.members)
		table = next
	}
}
