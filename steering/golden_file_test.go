package steering

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fedPool is a pool whose nodes have reported: the response time of the second is twice that of
// the first, and so on, and so are their octets.
func fedPool(t *testing.T, cfg *Config, ns ...Node) *Pool {
	t.Helper()
	p := newPool(t, cfg, ns...)
	for i, n := range ns {
		p.Observe(id(t, p, n.Name), time.Duration(i+1)*10*time.Millisecond)
		p.AddOctets(id(t, p, n.Name), uint64(i+1)<<20)
	}
	p.Tick()
	return p
}

// The choices of every metric in every situation of a farm, 40 in a row, are kept in a file.
// Two balancers with one configuration answer alike, of different releases too: what this file
// says must not change.
func TestGoldenFile(t *testing.T) {
	with := func(ns []Node, change func(i int, n *Node)) []Node {
		for i := range ns {
			change(i, &ns[i])
		}
		return ns
	}
	five := func() []Node { return nodes(1, 1, 1, 1, 1) }
	situations := []struct {
		name    string
		seed    uint64
		ns      []Node
		hold    bool // sessions stay open
		prepare func(p *Pool)
		key     func(i int) Key
	}{
		{name: "even", ns: five()},
		{name: "seed 2", seed: 2, ns: five()},
		{name: "sessions stay", ns: five(), hold: true},
		{name: "weights 1 to 5", ns: with(nodes(1, 2, 3, 4, 5), func(i int, n *Node) { n.Capacity = 100 * (i + 1) })},
		{name: "weight zero", ns: nodes(1, ZeroWeight, 1)},
		{name: "one node", ns: nodes(3)},
		{name: "one down", ns: five(), prepare: func(p *Pool) { p.SetUp(2, false) }},
		{name: "all down", ns: five(), prepare: func(p *Pool) {
			for i := range NodeID(5) {
				p.SetUp(i+1, false)
			}
		}},
		{name: "one under high pressure", ns: five(), prepare: func(p *Pool) { p.SetPressure(2, High) }},
		{name: "one under severe pressure", ns: five(), prepare: func(p *Pool) { p.SetPressure(2, Severe) }},
		{name: "limits of 6, and a backup", ns: with(five(), func(i int, n *Node) { n.MaxSessions, n.Backup = 6, i == 4 }), hold: true},
		{name: "IPv6", ns: with(five(), func(i int, n *Node) {
			n.Addr = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", i+1)), 80)
		}), key: func(i int) Key {
			a := netip.MustParseAddr(fmt.Sprintf("2001:db8:2:%x::1", i))
			return Key{Client: a, Hash: HashFlow(17, netip.AddrPortFrom(a, 53), netip.MustParseAddrPort("[2001:db8::1]:53"))}
		}},
	}
	var b strings.Builder
	for _, m := range allMetrics() {
		for _, s := range situations {
			p := fedPool(t, &Config{Metric: m, Seed: s.seed}, s.ns...)
			if s.prepare != nil {
				s.prepare(p)
			}
			key := s.key
			if key == nil {
				key = func(i int) Key { // each from a network of its own
					a := netip.AddrFrom4([4]byte{198, 18, byte(i), 1})
					return Key{Client: a, Hash: HashFlow(6, netip.AddrPortFrom(a, uint16(1024+i)), netip.MustParseAddrPort("192.0.2.1:80"))}
				}
			}
			fmt.Fprintf(&b, "%-15s %-26s ", m, s.name)
			for i := range 40 {
				id, err := p.Pick(key(i))
				if err != nil {
					require.Zero(t, id)
					b.WriteString("-")
					continue
				}
				b.WriteString(name(t, p, id))
				if !s.hold {
					p.Release(id)
				}
			}
			b.WriteString("\n")
		}
	}
	keep(t, filepath.Join("testdata", "golden.txt"), b.String())
}
