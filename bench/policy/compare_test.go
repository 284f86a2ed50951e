package policy

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/lbprim/lbprim/policy"
)

// cpu is the time this process has spent in user mode, which other load on the machine
// disturbs less than the clock.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec)*1e9 + float64(u.Utime.Usec+u.Stime.Usec)*1e3
}

// measure runs the functions in turn, several rounds, and returns the median cost of
// one operation of each in ns.
func measure(rounds, ops int, fs ...func()) []float64 {
	samples := make([][]float64, len(fs))
	for range rounds {
		for i, f := range fs {
			n, begin := 0, cpu()
			for n == 0 || cpu()-begin < 30e6 {
				f()
				n++
			}
			samples[i] = append(samples[i], (cpu()-begin)/float64(n*ops))
		}
	}
	out := make([]float64, len(fs))
	for i, s := range samples {
		slices.Sort(s)
		out[i] = s[len(s)/2]
	}
	return out
}

var sink int

// run looks up all packets. It is generic so that every candidate is called directly.
func run[L lookuper](l L, ps []policy.Packet) func() {
	return func() {
		for i := range ps {
			v, _ := l.Lookup(ps[i])
			sink += v
		}
	}
}

func compile(t testing.TB, rules []policy.Rule[int]) *policy.Table[int] {
	t.Helper()
	table, err := policy.Compile(nil, rules...)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// agree checks that a peer does the same work.
func agree(t testing.TB, ours, peer lookuper, ps []policy.Packet) {
	t.Helper()
	for _, p := range ps[:min(len(ps), 4096)] {
		a, ok1 := ours.Lookup(p)
		b, ok2 := peer.Lookup(p)
		if a != b || ok1 != ok2 {
			t.Fatalf("%v: %v %v, the peer says %v %v", p, a, ok1, b, ok2)
		}
	}
}

func family(v4 bool) string {
	if v4 {
		return "IPv4"
	}
	return "IPv6"
}

func TestComparePeers(t *testing.T) {
	for _, n := range []int{1000, 100_000} {
		for _, v4 := range []bool{true, false} {
			for _, withClients := range []bool{true, false} {
				rules := rulesOf(n, v4, withClients)
				ours, maps, nest := compile(t, rules), newThreeMaps(rules), newNested(rules)
				for _, hit := range []bool{true, false} {
					ps := packetsOf(rules, hit)
					agree(t, ours, maps, ps)
					agree(t, ours, nest, ps)
					fs := []func(){run(ours, ps), run(maps, ps), run(nest, ps)}
					m := measure(5, len(ps), fs...)
					line := fmt.Sprintf("%7d rules %s clients=%-5v hit=%-5v: %5.1f ns; %.2f x three maps (%.0f ns); %.2f x nested maps + bart (%.0f ns)",
						n, family(v4), withClients, hit, m[0], m[0]/m[1], m[1], m[0]/m[2], m[2])
					if n == 1000 && withClients && hit {
						scan := newLinear(rules)
						few := ps[:512]
						agree(t, ours, scan, few)
						s := measure(3, len(few), run(ours, few), run(scan, few))
						line += fmt.Sprintf("; %.3f x linear scan (%.0f ns)", s[0]/s[1], s[1])
					}
					t.Log(line)
				}
			}
		}
	}
}

func TestCompareGrowth(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		var first float64
		for _, n := range []int{10, 1000, 100_000, 1_000_000} {
			rules := rulesOf(n, v4, true)
			ours := compile(t, rules)
			hit, miss := packetsOf(rules, true), packetsOf(rules, false)
			runtime.GC()
			m := measure(5, packetCount, run(ours, hit), run(ours, miss))
			if first == 0 {
				first = m[0]
			}
			t.Logf("%8d rules %s: hit %5.1f ns (%.1f x 10 rules), miss %5.1f ns", n, family(v4), m[0], m[0]/first, m[1])
		}
	}
}

// batched looks up all packets in batches of 32.
func batched(t *policy.Table[int], ps []policy.Packet) func() {
	const size = 32
	vs, ok := make([]int, size), make([]bool, size)
	return func() {
		for rest := ps; len(rest) > 0; {
			n := min(size, len(rest))
			t.LookupBatch(rest[:n], vs, ok)
			for _, v := range vs[:n] {
				sink += v
			}
			rest = rest[n:]
		}
	}
}

func TestCompareBatch(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		for _, n := range []int{10, 1000, 100_000, 1_000_000} {
			rules := rulesOf(n, v4, true)
			ours := compile(t, rules)
			hit := packetsOf(rules, true)
			runtime.GC()
			m := measure(7, packetCount, run(ours, hit), batched(ours, hit))
			t.Logf("%8d rules %s: one by one %5.1f ns, in batches %5.1f ns, %.2f x", n, family(v4), m[0], m[1], m[1]/m[0])
		}
	}
}

func TestCompareOneVIP(t *testing.T) {
	four := compile(t, rulesOf(100_000, true, true))
	fourPackets := packetsOf(rulesOf(100_000, true, true), true)
	small := compile(t, rulesOf(4, true, true))
	smallPackets := packetsOf(rulesOf(4, true, true), true)
	for _, n := range [][2]int{{1, 100_000}, {10, 10_000}, {100, 1000}, {1000, 100}, {50_000, 2}} {
		rules := oneVIP(n[0], n[1])
		ours := compile(t, rules)
		ps := packetsOf(rules, true)
		few := slices.Clone(ps[:64]) // again and again: in the cache, but for branches and work
		m := measure(5, packetCount, run(ours, ps), run(four, fourPackets), run(small, smallPackets))
		c := measure(5, 64, run(ours, few), run(small, smallPackets[:64]))
		t.Logf("one VIP, %6d ports x %6d clients: %5.1f ns, %.2f x 100,000 rules at 4 a VIP (%.1f ns); in cache %5.1f ns, %.2f x 4 rules (%.1f ns)",
			n[0], n[1], m[0], m[0]/m[1], m[1], c[0], c[0]/c[1], c[1])
	}
}

func TestCompareBuild(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		rules := rulesOf(100_000, v4, true)
		m := measure(3, 1,
			func() { compile(t, rules) },
			func() { newThreeMaps(rules) },
			func() { newNested(rules) })
		t.Logf("build of 100,000 rules %s: %.0f ms; three maps %.0f ms; nested maps + bart %.0f ms", family(v4), m[0]/1e6, m[1]/1e6, m[2]/1e6)
	}
	for _, n := range [][2]int{{1, 100_000}, {1000, 100}} {
		rules := oneVIP(n[0], n[1])
		m := measure(3, 1, func() { compile(t, rules) })
		t.Logf("build of one VIP, %d ports x %d clients: %.0f ms", n[0], n[1], m[0]/1e6)
	}
	table := compile(t, rulesOf(100_000, true, true))
	added := policy.Rule[int]{Name: "new", Match: policy.Match{Dst: vip(77, true), Protocol: policy.UDP}}
	m := measure(5, 1,
		func() {
			if _, err := table.With(added); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			if _, err := table.Without("777"); err != nil {
				t.Fatal(err)
			}
		})
	t.Logf("one rule in 100,000: add %.3f ms, remove %.3f ms", m[0]/1e6, m[1]/1e6)
}

func BenchmarkLookup(b *testing.B) {
	rules := rulesOf(100_000, true, true)
	ps := packetsOf(rules, true)
	loop := func(name string, f func(policy.Packet) (int, bool)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				f(ps[i&(packetCount-1)])
				i++
			}
		})
	}
	loop("policy", compile(b, rules).Lookup)
	loop("three maps", newThreeMaps(rules).Lookup)
	loop("nested maps and bart", newNested(rules).Lookup)
}
