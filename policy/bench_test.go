package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// perVIP is the rules of the i-th VIP: four tiers deep, half of them with clients.
func perVIP(i int, v4, clients bool) []Rule[int] {
	vip := netip.PrefixFrom(benchVIP(i, v4), map[bool]int{true: 32, false: 128}[v4])
	a, b := "10.0.0.0/8", "10.1.0.0/16"
	if !v4 {
		a, b = "2001:db8::/32", "2001:db8:1::/48"
	}
	rules := []Rule[int]{
		{Match: Match{Dst: vip, Protocol: TCP, DstPort: Port(80)}},
		{Match: Match{Dst: vip, Protocol: TCP, DstPort: Port(443)}},
		{Match: Match{Dst: vip, Protocol: TCP}},
		{Match: Match{Dst: vip, Protocol: UDP, DstPort: Port(53)}},
	}
	if clients {
		rules[0].Match.Src = PrefixRange(netip.MustParsePrefix(a))
		rules[1].Match.Src = PrefixRange(netip.MustParsePrefix(b))
	}
	for j := range rules {
		rules[j].Name, rules[j].Value = fmt.Sprint(4*i+j), 4*i+j
	}
	return rules
}

func benchVIP(i int, v4 bool) netip.Addr {
	if v4 {
		return netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	return netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
}

func benchRules(n int, v4, clients bool) (rules []Rule[int]) {
	for i := 0; len(rules) < n; i++ {
		rules = append(rules, perVIP(i, v4, clients)...)
	}
	return rules[:n]
}

// benchPackets are random over the rules, half of them from clients in the ranges.
func benchPackets(rules []Rule[int], hit bool) []Packet {
	r := rand.New(rand.NewPCG(1, 1))
	ps := make([]Packet, 1<<16)
	for i := range ps {
		m := rules[r.IntN(len(rules))].Match
		v4 := m.Dst.Addr().Is4()
		src := netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), byte(r.Uint32()), byte(r.Uint32())})
		if !v4 {
			src = netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 5: byte(r.IntN(4)), 15: byte(r.Uint32())})
		}
		ps[i] = Packet{Src: netip.AddrPortFrom(src, 1), Dst: netip.AddrPortFrom(m.Dst.Addr(), m.DstPort.First), Protocol: uint8(m.Protocol)}
		if m.DstPort.IsAny() {
			ps[i].Dst = netip.AddrPortFrom(m.Dst.Addr(), uint16(1000+r.IntN(1000)))
		}
		if !hit {
			ps[i].Protocol = 17
			ps[i].Dst = netip.AddrPortFrom(m.Dst.Addr(), 1)
		}
	}
	return ps
}

func mustCompile(b testing.TB, rules []Rule[int]) *Table[int] {
	t, err := Compile(nil, rules...)
	if err != nil {
		b.Fatal(err)
	}
	return t
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000, 1_000_000} {
		for _, v4 := range []bool{true, false} {
			for _, clients := range []bool{false, true} {
				rules := benchRules(n, v4, clients)
				var table *Table[int]
				for _, hit := range []bool{true, false} {
					name := fmt.Sprintf("rules=%d/%s/clients=%v/hit=%v", n, map[bool]string{true: "IPv4", false: "IPv6"}[v4], clients, hit)
					b.Run(name, func(b *testing.B) {
						if table == nil {
							table = mustCompile(b, rules)
						}
						ps := benchPackets(rules, hit)
						i := 0
						for b.Loop() {
							table.Lookup(ps[i&(1<<16-1)])
							i++
						}
					})
				}
			}
		}
	}
}

// benchOneVIP has all rules on one VIP: ports times clients.
func benchOneVIP(ports, clients int) (rules []Rule[int]) {
	vip := netip.MustParsePrefix("192.0.2.1/32")
	r := rand.New(rand.NewPCG(2, 2))
	for p := range ports {
		used := make(map[uint32]bool)
		for len(used) < clients-1 {
			c := r.Uint32() &^ 0xff
			if used[c] {
				continue
			}
			used[c] = true
			src := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(c >> 24), byte(c >> 16), byte(c >> 8), 0}), 24)
			rules = append(rules, Rule[int]{Match: Match{vip, TCP, Port(uint16(p + 1)), PrefixRange(src)}})
		}
		rules = append(rules, Rule[int]{Match: Match{vip, TCP, Port(uint16(p + 1)), AddrRange{}}})
	}
	for i := range rules {
		rules[i].Name, rules[i].Value = fmt.Sprint(i), i
	}
	return rules
}

func BenchmarkLookupOneVIP(b *testing.B) {
	for _, n := range [][2]int{{2, 2}, {10, 10}, {1, 100_000}, {100, 1000}, {1000, 100}, {50_000, 2}} {
		b.Run(fmt.Sprintf("ports=%d/clients=%d", n[0], n[1]), func(b *testing.B) {
			rules := benchOneVIP(n[0], n[1])
			table := mustCompile(b, rules)
			r := rand.New(rand.NewPCG(3, 3))
			ps := make([]Packet, 1<<16)
			for i := range ps {
				m := rules[r.IntN(len(rules))].Match
				src := m.Src.First
				if m.Src.IsAny() {
					src = netip.AddrFrom4([4]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), 1})
				}
				ps[i] = Packet{Src: netip.AddrPortFrom(src, 1), Dst: netip.AddrPortFrom(m.Dst.Addr(), m.DstPort.First), Protocol: 6}
			}
			i := 0
			for b.Loop() {
				table.Lookup(ps[i&(1<<16-1)])
				i++
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, tt := range []struct {
		name  string
		rules []Rule[int]
	}{
		{"rules=100000", benchRules(100_000, true, true)},
		{"rules=100000/IPv6", benchRules(100_000, false, true)},
		{"one VIP/ports=1000/clients=100", benchOneVIP(1000, 100)},
		{"one VIP/ports=1/clients=100000", benchOneVIP(1, 100_000)},
	} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustCompile(b, tt.rules)
			}
		})
	}
}

func BenchmarkWith(b *testing.B) {
	for _, tt := range []struct {
		name  string
		rules []Rule[int]
		add   Match
	}{
		{"rules=100000", benchRules(100_000, true, true), Match{Dst: netip.PrefixFrom(benchVIP(77, true), 32), Protocol: UDP}},
		{"rules=100000/new VIP", benchRules(100_000, true, true), Match{Dst: netip.MustParsePrefix("192.0.2.1/32")}},
		{"one VIP/ports=1000/clients=100", benchOneVIP(1000, 100), Match{Dst: netip.MustParsePrefix("192.0.2.1/32"), Protocol: UDP}},
	} {
		table := mustCompile(b, tt.rules)
		b.Run("add/"+tt.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := table.With(Rule[int]{Name: "new", Match: tt.add}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("remove/"+tt.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := table.Without("309"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkExplain(b *testing.B) {
	rules := benchRules(1000, true, true)
	table := mustCompile(b, rules)
	ps := benchPackets(rules, true)
	i := 0
	for b.Loop() {
		table.Explain(ps[i&(1<<16-1)])
		i++
	}
}
