package dataplane

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lbprim/lbprim/dataplane/splice"
)

// BenchmarkSpliced compares packets of spliced connections with those of plain NAT, of as many flows at random, both ways.
func BenchmarkSpliced(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		for _, v6 := range []bool{false, true} {
			f := newFlows(b, n, "tcp", v6)
			for _, kind := range []string{"NAT", "spliced"} {
				b.Run(fmt.Sprintf("%s/%s/%d", kind, map[bool]string{false: "IPv4", true: "IPv6"}[v6], n), func(b *testing.B) {
					snap := *f.p.snap.Load()
					snap.delays = kind == "spliced"
					f.p.snap.Store(&snap)
					for i := range f.p.slab.recs[:n] {
						if kind == "spliced" {
							f.p.slab.recs[i].flags |= isDelayed
							f.p.slab.recs[i].seam.tr = splice.Translation{Seq: 12345 + uint32(i)}
							f.p.slab.recs[i].seam.stage.Store(spliced)
						} else {
							f.p.slab.recs[i].flags &^= isDelayed
						}
					}
					r := rand.New(rand.NewPCG(1, 2))
					b.ReportAllocs()
					for b.Loop() {
						for j := range chunk {
							dir := uint32(r.Uint64() & 1)
							f.put(j, f.templates[dir], dir, r.Uint32N(uint32(n)))
						}
						if len(f.process(chunk)) != chunk {
							b.Fatal("dropped")
						}
					}
					b.ReportMetric(float64(b.Elapsed())/float64(b.N)/chunk, "ns/packet")
				})
			}
		}
	}
}
