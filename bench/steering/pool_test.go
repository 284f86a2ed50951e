package steering

import (
	"fmt"
	"testing"

	"github.com/lbprim/lbprim/steering"
)

// Picks with live counters: the cost must hardly depend on the number of nodes.
func BenchmarkPickRelease(b *testing.B) {
	metrics := []steering.Metric{
		steering.LeastConns, steering.RoundRobin, steering.WeightedCyclic, steering.Hash, steering.MinMisses, steering.PHash,
		steering.Maglev, steering.Capacity, steering.RandomTwo,
	}
	for _, m := range metrics {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/N=%d", m, n), func(b *testing.B) {
				var nodes []steering.Node
				for i := range n {
					nodes = append(nodes, steering.Node{Name: fmt.Sprintf("n%d", i), Weight: 1 + i%5})
				}
				p, err := steering.NewPool(&steering.Config{Metric: m}, nodes...)
				if err != nil {
					b.Fatal(err)
				}
				var open [1024]steering.NodeID
				i := uint64(0)
				b.ReportAllocs()
				for b.Loop() {
					i++
					slot := &open[i*0x9E3779B97F4A7C15>>54]
					if *slot != 0 {
						p.Release(*slot)
					}
					id, err := p.Pick(steering.Key{Hash: i})
					if err != nil {
						b.Fatal(err)
					}
					*slot = id
				}
			})
		}
	}
}

func BenchmarkPickParallel(b *testing.B) {
	for _, m := range []steering.Metric{steering.LeastConns, steering.RoundRobin, steering.Maglev} {
		b.Run(m.String(), func(b *testing.B) {
			var nodes []steering.Node
			for i := range 100 {
				nodes = append(nodes, steering.Node{Name: fmt.Sprintf("n%d", i)})
			}
			p, err := steering.NewPool(&steering.Config{Metric: m}, nodes...)
			if err != nil {
				b.Fatal(err)
			}
			b.RunParallel(func(pb *testing.PB) {
				for i := uint64(0); pb.Next(); i++ {
					id, err := p.Pick(steering.Key{Hash: i})
					if err != nil {
						b.Error(err)
						return
					}
					p.Release(id)
				}
			})
		})
	}
}
