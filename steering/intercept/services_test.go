package intercept

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func slowLookup(rows []Row, proto uint8, src, dst netip.AddrPort) int {
	for i := range rows {
		if rows[i].matches(proto, src, dst) {
			return i
		}
	}
	return -1
}

// A small world, so that networks nest and ports collide.
func randomRow(r *rand.Rand) Row {
	endpoint := func(v6 bool) (e Endpoint) {
		if r.IntN(4) > 0 {
			e.Net = randomNet(r, v6)
		}
		switch r.IntN(4) {
		case 0:
			e.Ports = Port(uint16(1 + r.IntN(10)))
		case 1:
			p := uint16(1 + r.IntN(10))
			e.Ports = Ports{p, p + uint16(r.IntN(5))}
		case 2:
			if r.IntN(10) == 0 {
				e.Ports = Ports{uint16(1 + r.IntN(10)), 65535}
			}
		}
		return e
	}
	v6 := r.IntN(3) == 0
	return Row{
		A: endpoint(v6), B: endpoint(v6), Protocol: []uint8{0, tcp, udp}[r.IntN(3)], Disabled: r.IntN(10) == 0,
	}
}

func randomNet(r *rand.Rand, v6 bool) netip.Prefix {
	a := randomAddr(r, v6)
	n := r.IntN(a.BitLen() + 1)
	if v6 && r.IntN(2) == 0 {
		n = 64 + r.IntN(65)
	}
	return netip.PrefixFrom(a, n).Masked()
}

func randomAddr(r *rand.Rand, v6 bool) netip.Addr {
	var b [16]byte
	x := uint32(10<<24 | r.IntN(4)<<16 | r.IntN(3)<<8 | r.IntN(6))
	if !v6 {
		binary.BigEndian.PutUint32(b[:4], x)
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	copy(b[:], []byte{0x20, 1, 0xd, 0xb8, byte(r.IntN(2))})
	binary.BigEndian.PutUint32(b[12:], x)
	return netip.AddrFrom16(b)
}

func TestServicesAgainstTheSlowTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for round := range 120 {
		// Now and then so many that networks are in too many pairs to list them.
		rows := make([]Row, r.IntN(60)+round/100*600)
		for i := range rows {
			rows[i] = randomRow(r)
			require.NoError(t, (&Config{Services: rows[i : i+1]}).validate())
		}
		s := newServices(rows)
		for range 150 {
			v6 := r.IntN(3) == 0
			port := func() uint16 {
				if r.IntN(20) == 0 {
					return []uint16{0, 65535}[r.IntN(2)]
				}
				return uint16(1 + r.IntN(16))
			}
			src := netip.AddrPortFrom(randomAddr(r, v6), port())
			dst := netip.AddrPortFrom(randomAddr(r, v6), port())
			proto := []uint8{tcp, udp, tcp, udp, 1}[r.IntN(5)]
			want := slowLookup(rows, proto, src, dst)
			require.Equal(t, want, s.lookup(proto, src, dst), "%d %s %s", proto, src, dst)
			require.Equal(t, want, s.lookup(proto, dst, src), "direction does not matter")
			if !v6 {
				src = netip.AddrPortFrom(netip.AddrFrom16(src.Addr().As16()), src.Port())
				require.Equal(t, want, s.lookup(proto, src, dst), "IPv4-mapped")
			}
		}
	}
	require.Equal(t, -1, newServices([]Row{{}}).lookup(tcp, netip.AddrPort{}, netip.AddrPort{}))
	require.Equal(t, -1, newServices([]Row{{}}).lookup(tcp, netip.MustParseAddrPort("1.1.1.1:1"), netip.MustParseAddrPort("[::1]:1")))
}

func manyRows(r *rand.Rand, n int) []Row {
	rows := make([]Row, n)
	for i := range rows {
		net := func() netip.Prefix {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], 10<<24|r.Uint32()>>8)
			return netip.PrefixFrom(netip.AddrFrom4(b), 20+r.IntN(9)).Masked()
		}
		rows[i] = Row{A: Endpoint{Net: net()}, B: Endpoint{Net: net()}}
		if r.IntN(2) == 0 {
			rows[i].B.Ports = Port(uint16(1 + r.IntN(1000)))
		}
	}
	return rows
}

// 100,000 rows cost about the same as 10: the number of rows does not decide, only what
// the cache holds.
func BenchmarkServices(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			rows := manyRows(r, n)
			s := newServices(rows)
			var pairs [1024][2]netip.AddrPort
			for i := range pairs {
				row := rows[r.IntN(n)]
				pairs[i] = [2]netip.AddrPort{
					netip.AddrPortFrom(row.A.Net.Addr().Next(), 40000), netip.AddrPortFrom(row.B.Net.Addr().Next(), row.B.Ports.First),
				}
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				p := &pairs[i%1024]
				if s.lookup(tcp, p[0], p[1]) < 0 {
					b.Fatal("no row")
				}
			}
		})
	}
	b.Run("compile=100000", func(b *testing.B) {
		rows := manyRows(rand.New(rand.NewPCG(1, 1)), 100_000)
		for b.Loop() {
			newServices(rows)
		}
	})
}

func TestServicesLookupDoesNotAllocate(t *testing.T) {
	rows := manyRows(rand.New(rand.NewPCG(1, 1)), 1000)
	s := newServices(rows)
	src, dst := netip.MustParseAddrPort("10.1.2.3:1"), netip.MustParseAddrPort("10.3.2.1:2")
	require.Zero(t, testing.AllocsPerRun(100, func() { s.lookup(tcp, src, dst) }))
	e := newEngine(t, &Config{Nodes: sh("a", "b"), Services: []Row{{}}})
	p := pre("10.0.0.1:1", "10.0.0.2:80")
	require.Zero(t, testing.AllocsPerRun(100, func() { e.End(e.Decide(p)) }))
}

func FuzzServices(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Add(uint64(99), uint64(7))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		r := rand.New(rand.NewPCG(a, b))
		rows := make([]Row, r.IntN(30))
		for i := range rows {
			rows[i] = randomRow(r)
		}
		if r.IntN(2) == 0 {
			rows = append(rows, nestedRows(r, r.IntN(200), r.IntN(2) == 0)...)
		}
		s := newServices(rows)
		for range 50 {
			v6 := r.IntN(2) == 0
			src := netip.AddrPortFrom(randomAddr(r, v6), uint16(r.IntN(16)))
			dst := netip.AddrPortFrom(randomAddr(r, v6), uint16(r.IntN(16)))
			if got, want := s.lookup(udp, src, dst), slowLookup(rows, udp, src, dst); got != want {
				t.Fatalf("%s %s: row %d, want %d of %+v", src, dst, got, want, rows)
			}
		}
	})
}

// What the networks cut the addresses into, found through the slots, against asking every
// network: few and many, crowded and scattered, of one length of prefix and of all.
func TestPrefixes(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for _, n := range []int{0, 1, 5, 100, 3000} {
		for _, v6 := range []bool{false, true} {
			for _, crowd := range []int{0, 1, 2} {
				testPrefixes(t, r, n, v6, crowd)
			}
		}
	}
}

func testPrefixes(t *testing.T, r *rand.Rand, n int, v6 bool, crowd int) {
	width := 32
	if v6 {
		width = 128
	}
	wide := func() netip.Addr {
		a := randomAddr(r, v6)
		b := a.AsSlice()
		switch crowd {
		case 0: // scattered
			b[r.IntN(len(b))] = byte(r.IntN(256))
			b[0] = byte(r.IntN(256))
		case 1: // in one corner
			b[len(b)-1], b[len(b)-2] = byte(r.IntN(256)), byte(r.IntN(256))
		}
		a, _ = netip.AddrFromSlice(b)
		return a
	}
	seen := map[netip.Prefix]bool{}
	var nets []netip.Prefix
	for range n {
		bits := r.IntN(width + 1)
		if crowd == 1 {
			bits = width - r.IntN(8)
		}
		p := netip.PrefixFrom(wide(), bits).Masked()
		if !seen[p] {
			seen[p] = true
			nets = append(nets, p)
		}
	}
	slices.SortFunc(nets, comparePrefix)
	p, covers, in := newPrefixes(nets)
	require.Len(t, in, len(p.hi))
	for range 200 {
		a := wide()
		longest := func(below int) int32 {
			best := int32(-1)
			for i, n := range nets {
				if n.Contains(a) && n.Bits() < below && (best < 0 || n.Bits() > nets[best].Bits()) {
					best = int32(i)
				}
			}
			return best
		}
		at := p.lookup(wordOf(a))
		want := longest(129)
		require.Equal(t, want, in[at], a)
		if want >= 0 {
			require.Equal(t, longest(nets[want].Bits()), covers[want].parent)
		}
		for i, c := range covers {
			if nets[i].Contains(a) != (at >= c.from && at < c.to) {
				t.Fatalf("%s, %s covers %v, interval %d", a, nets[i], c.span, at)
			}
		}
	}
	for _, edge := range []string{"0.0.0.0", "255.255.255.255", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"} {
		if a := netip.MustParseAddr(edge); a.Is4() != v6 {
			at := p.lookup(wordOf(a))
			for i, c := range covers {
				require.Equal(t, nets[i].Contains(a), at >= c.from && at < c.to)
			}
		}
	}
}

// portRows are rows of one pair of networks, with ranges of ports at both ends.
func portRows(r *rand.Rand, n, ports int) []Row {
	rows := make([]Row, n)
	for i := range rows {
		ranges := func() Ports {
			p := 1 + r.IntN(ports)
			return Ports{uint16(p), uint16(min(p+r.IntN(1+ports/10), 65535))}
		}
		rows[i] = Row{
			A: Endpoint{Net: netip.MustParsePrefix("10.0.0.0/8"), Ports: ranges()},
			B: Endpoint{Net: netip.MustParsePrefix("192.0.2.0/24"), Ports: ranges()},
		}
		if r.IntN(50) == 0 {
			rows[i].A.Ports.Last = 65535
		}
		if r.IntN(50) == 0 {
			rows[i].B.Ports.First = 0
		}
	}
	return rows
}

func TestRangesOfPortsAtBothEnds(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	a, b := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("192.0.2.9")
	for range 60 {
		rows := portRows(r, 1+r.IntN(200), []int{20, 300, 65000}[r.IntN(3)])
		s := newServices(rows)
		port := func() uint16 { // also at the edges
			p := rows[r.IntN(len(rows))]
			edge := []uint16{p.A.Ports.First, p.A.Ports.Last, p.B.Ports.First, p.B.Ports.Last}[r.IntN(4)]
			return edge + uint16(r.IntN(3)) - 1
		}
		for range 200 {
			x, y := netip.AddrPortFrom(a, port()), netip.AddrPortFrom(b, port())
			require.Equal(t, slowLookup(rows, tcp, x, y), s.lookup(tcp, x, y), "%s %s", x, y)
			require.Equal(t, slowLookup(rows, tcp, y, x), s.lookup(tcp, y, x), "%s %s", y, x)
		}
	}
}

func BenchmarkServicesPortRanges(b *testing.B) {
	for _, n := range []int{5, 1000, 100_000} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			s := newServices(portRows(r, n, 65000))
			b.ReportAllocs()
			x, y := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("192.0.2.9")
			for b.Loop() {
				s.lookup(tcp, netip.AddrPortFrom(x, uint16(r.Uint32())), netip.AddrPortFrom(y, uint16(r.Uint32())))
			}
		})
	}
}
