//go:build unix

package steering

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

// The network services table: 100,000 rows cost about the same as 10, bar what the cache
// no longer holds.
func TestCompareServices(t *testing.T) {
	if testing.Short() {
		t.Skip("a comparison of speed")
	}
	for _, space := range []struct {
		name string
		bits int // of the space the networks lie in
	}{{"all over IPv4, hardly nested", 0}, {"all over 10.0.0.0/8, each address in six networks and more", 8}} {
		compareServices(t, space.name, space.bits)
	}
}

func compareServices(t *testing.T, name string, space int) {
	var fs []func()
	var ops []int
	sizes := []int{10, 1000, 100_000}
	base := uint32(0)
	if space > 0 {
		base = 10 << 24
	}
	for _, n := range sizes {
		r := rand.New(rand.NewPCG(1, uint64(n)))
		net := func() netip.Prefix {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], base|r.Uint32()>>space)
			return netip.PrefixFrom(netip.AddrFrom4(b), 20+r.IntN(9)).Masked()
		}
		cfg := &intercept.Config{Nodes: []intercept.Node{{Node: steering.Node{Name: "a"}}, {Node: steering.Node{Name: "b"}}}}
		for range n {
			cfg.Services = append(cfg.Services, intercept.Row{A: intercept.Endpoint{Net: net()}, B: intercept.Endpoint{Net: net()}})
		}
		begin := cpu()
		e, err := intercept.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, %d rows: compiled in %.1f ms", name, n, (cpu()-begin)/1e6)
		packets := make([]intercept.Packet, 512)
		for i := range packets {
			row := &cfg.Services[r.IntN(n)]
			packets[i] = intercept.Packet{
				Src: netip.AddrPortFrom(row.A.Net.Addr().Next(), 40000), Dst: netip.AddrPortFrom(row.B.Net.Addr().Next(), 80), Protocol: 17,
			}
		}
		fs = append(fs, func() {
			for i := range packets {
				e.End(e.Decide(&packets[i]))
			}
		})
		ops = append(ops, len(packets))
	}
	r := measure(5, ops, fs...)
	for i, n := range sizes {
		t.Logf("%s, %d rows: %.0f ns a decision, %.2f of that with 10 rows", name, n, r[i], r[i]/r[0])
	}
}

// Picks with live counters, by number of nodes.
func TestComparePicks(t *testing.T) {
	if testing.Short() {
		t.Skip("a comparison of speed")
	}
	for m := steering.LeastConns; m <= steering.RandomTwo; m++ {
		var fs []func()
		sizes := []int{10, 100, 1000}
		for _, n := range sizes {
			var nodes []steering.Node
			for _, s := range nodeNames(n) {
				nodes = append(nodes, steering.Node{Name: s})
			}
			p, err := steering.NewPool(&steering.Config{Metric: m}, nodes...)
			if err != nil {
				t.Fatal(err)
			}
			open := make([]steering.NodeID, 4096)
			fs = append(fs, func() {
				for i := range open {
					if open[i] != 0 {
						p.Release(open[i])
					}
					open[i], _ = p.Pick(steering.Key{Hash: uint64(i)})
				}
			})
		}
		r := measure(3, []int{4096, 4096, 4096}, fs...)
		t.Logf("%s: a pick and a release take %.0f, %.0f, %.0f ns with %v nodes", m, r[0], r[1], r[2], sizes)
	}
}
