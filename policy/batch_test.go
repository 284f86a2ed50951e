package policy

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func checkBatch(t testing.TB, table *Table[int], packets []Packet) {
	t.Helper()
	vs := make([]int, len(packets)+1)
	ok := make([]bool, len(packets)+1)
	for i := range vs {
		vs[i], ok[i] = -7, true // what was there must not show through
	}
	table.LookupBatch(packets, vs, ok)
	for i, p := range packets {
		v, hit := table.Lookup(p)
		if vs[i] != v || ok[i] != hit {
			t.Fatalf("packet %d: batch %v %v, single %v %v\n%v", i, vs[i], ok[i], v, hit, table.Explain(p))
		}
	}
	require.Equal(t, -7, vs[len(packets)], "beyond the packets nothing is written")
	require.True(t, ok[len(packets)])
}

func TestLookupBatch(t *testing.T) {
	for seed := range uint64(60) {
		u := universe{rand.New(rand.NewPCG(seed, 6)), 20, 20}
		table, err := Compile(&Config{StrictTier: seed%2 == 0}, u.rules(60)...)
		require.NoError(t, err)
		for n := range 40 {
			packets := make([]Packet, n)
			for i := range packets {
				packets[i] = u.packet()
			}
			checkBatch(t, table, packets)
			if n < 3 {
				checkBatch(t, nil, packets)
				checkBatch(t, new(Table[int]), packets)
			}
		}
	}
	require.Panics(t, func() { new(Table[int]).LookupBatch(make([]Packet, 2), make([]int, 1), make([]bool, 2)) })

	table := mustCompile(t, benchRules(1000, true, true))
	packets := benchPackets(benchRules(1000, true, true), true)[:100]
	vs, ok := make([]int, 100), make([]bool, 100)
	require.Zero(t, testing.AllocsPerRun(100, func() { table.LookupBatch(packets, vs, ok) }))
}

// BenchmarkLookupBatch is per packet.
func BenchmarkLookupBatch(b *testing.B) {
	for _, n := range []int{10, 100_000, 1_000_000} {
		for _, v4 := range []bool{true, false} {
			rules := benchRules(n, v4, true)
			table := mustCompile(b, rules)
			ps := benchPackets(rules, true)
			name := fmt.Sprintf("rules=%d/%s", n, map[bool]string{true: "IPv4", false: "IPv6"}[v4])
			const size = 32
			vs, ok := make([]int, size), make([]bool, size)
			b.Run(name+"/batch", func(b *testing.B) {
				for i := 0; b.Loop(); i += size {
					at := i % len(ps)
					table.LookupBatch(ps[at:at+size], vs, ok)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/packet")
			})
			b.Run(name+"/loop", func(b *testing.B) {
				for i := 0; b.Loop(); i += size {
					at := i % len(ps)
					for j, p := range ps[at : at+size] {
						vs[j], ok[j] = table.Lookup(p)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/packet")
			})
		}
	}
}
