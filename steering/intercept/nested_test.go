package intercept

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

// nestedRows are rows between networks that lie in one another: chains from the whole family
// down to single hosts, some of them in so many pairs that they are looked up by pairs.
func nestedRows(r *rand.Rand, n int, v6 bool) []Row {
	hosts := make([]netip.Addr, 12)
	for i := range hosts {
		hosts[i] = randomAddr(r, v6)
	}
	width := hosts[0].BitLen()
	net := func() netip.Prefix {
		bits := width - r.IntN(r.IntN(width)+1)
		if r.IntN(4) == 0 {
			bits = r.IntN(4) * 8 // hubs
		}
		return netip.PrefixFrom(hosts[r.IntN(len(hosts))], bits).Masked()
	}
	rows := make([]Row, n)
	for i := range rows {
		rows[i] = Row{A: Endpoint{Net: net()}, B: Endpoint{Net: net()}, Protocol: []uint8{0, tcp, udp}[r.IntN(3)]}
		if r.IntN(3) == 0 {
			rows[i].A.Ports = Port(uint16(1 + r.IntN(9)))
		}
		if r.IntN(3) == 0 {
			rows[i].B.Ports = Ports{uint16(1 + r.IntN(9)), 10}
		}
		// The wide networks late, or they would decide about everything.
		if rows[i].A.Net.Bits()+rows[i].B.Net.Bits() < width && i < n/2 {
			rows[i].Disabled = true
		}
	}
	return rows
}

func TestNestedNetworksAgainstTheSlowTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for round := range 24 {
		v6 := round%2 == 1
		rows := nestedRows(r, []int{20, 200, 3000}[round%3], v6)
		s := newServices(rows)
		seen := map[int]bool{}
		for range 300 {
			end := func() netip.AddrPort {
				row := &rows[r.IntN(len(rows))]
				a := row.A.Net.Addr()
				if r.IntN(2) == 0 {
					a = row.B.Net.Addr()
				}
				for range r.IntN(3) {
					a = a.Next()
				}
				return netip.AddrPortFrom(a, uint16(r.IntN(12)))
			}
			x, y, proto := end(), end(), []uint8{tcp, udp}[r.IntN(2)]
			want := slowLookup(rows, proto, x, y)
			require.Equal(t, want, s.lookup(proto, x, y), "%d %s %s", proto, x, y)
			require.Equal(t, want, s.lookup(proto, y, x), "direction does not matter")
			seen[want] = true
		}
		require.Greater(t, len(seen), 5)
	}
}

// Many hosts of few IPv6 networks differ in the lower half of their addresses only.
func TestHostsOfFewNetworks(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	host := func() netip.Addr {
		a := netip.MustParseAddr([]string{"2001:db8:0:7::", "2001:db8:3c11:2239::", "2001:db8:7899:155::"}[r.IntN(3)]).As16()
		for i := range 3 {
			a[13+i] = byte(r.IntN(256))
		}
		return netip.AddrFrom16(a)
	}
	rows := make([]Row, 2000)
	for i := range rows {
		rows[i].A.Net = netip.PrefixFrom(host(), 128)
	}
	s := newServices(rows)
	other := netip.MustParseAddrPort("[2001:db8::1]:1")
	for i := range 500 {
		a := host()
		switch {
		case i%5 > 0:
			a = rows[r.IntN(len(rows))].A.Net.Addr()
		case i%10 == 0:
			b := a.As16()
			b[7] += byte(r.IntN(5)) - 2
			a = netip.AddrFrom16(b)
		}
		src := netip.AddrPortFrom(a, 5)
		require.Equal(t, slowLookup(rows, tcp, src, other), s.lookup(tcp, src, other), a)
	}
}

// A change of a node's state does not compile 100,000 rows again.
func BenchmarkPressureManyRows(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			e := newEngine(b, &Config{Nodes: sh("a", "b", "c"), Services: manyRows(rand.New(rand.NewPCG(1, 1)), n)})
			node, level := id(b, e, "b"), steering.Normal
			for b.Loop() {
				level = steering.High - level
				e.SetPressure(node, level)
			}
		})
	}
}
