package policy

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/lbprim/lbprim/policy"
)

// thorough measures more sizes and for longer. Without it the tests take some seconds, enough to
// see that all candidates agree and about what they cost.
var thorough = flag.Bool("thorough", false, "measure a million rules too, and all for longer")

// sizes leaves out the large ones unless all are asked for.
func sizes(all ...int) []int {
	if *thorough {
		return all
	}
	return slices.DeleteFunc(all, func(n int) bool { return n > 100_000 })
}

// cpu is the time this process has spent, which other load on the machine disturbs less than the
// clock. The kernel estimates how it is divided into user and system time, but not the sum.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec)*1e9 + float64(u.Utime.Usec+u.Stime.Usec)*1e3
}

// measure runs the functions in turn, several rounds, and returns the median cost of
// one operation of each in ns.
func measure(ops int, fs ...func()) []float64 {
	rounds, slice := 3, 8e6
	if *thorough {
		rounds, slice = 9, 30e6
	}
	samples := make([][]float64, len(fs))
	for range rounds {
		for i, f := range fs {
			n, begin := 0, cpu()
			for n == 0 || cpu()-begin < slice {
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

// run looks up the packets of all flows. It is generic so that every candidate is called directly.
func run[L lookuper](l L, fs []flow) func() {
	return func() {
		for i := range fs {
			v, _ := l.Lookup(fs[i].packet())
			sink += v
		}
	}
}

// nobody looks nothing up: what it costs is what making the packets costs.
type nobody struct{}

func (nobody) Lookup(p policy.Packet) (int, bool) { return int(p.Protocol), p.Src.Port() == 0 }

func compile(t testing.TB, rules []policy.Rule[int]) *policy.Table[int] {
	t.Helper()
	table, err := policy.Compile(nil, rules...)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// agree checks that a peer does the same work.
func agree(t testing.TB, ours, peer lookuper, fs []flow) {
	t.Helper()
	for _, f := range fs[:min(len(fs), 4096)] {
		p := f.packet()
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
					fs := flowsOf(rules, hit)
					agree(t, ours, maps, fs)
					agree(t, ours, nest, fs)
					m := measure(len(fs), run(ours, fs), run(maps, fs), run(nest, fs), run(nobody{}, fs))
					line := fmt.Sprintf("%7d rules %s clients=%-5v hit=%-5v: %5.1f ns, of which %.1f for the packet; %.2f x three maps (%.0f ns); %.2f x nested maps + bart (%.0f ns)",
						n, family(v4), withClients, hit, m[0], m[3], m[0]/m[1], m[1], m[0]/m[2], m[2])
					if n == 1000 && withClients && hit {
						scan := newLinear(rules)
						few := fs[:512]
						agree(t, ours, scan, few)
						s := measure(len(few), run(ours, few), run(scan, few))
						line += fmt.Sprintf("; %.3f x linear scan (%.0f ns)", s[0]/s[1], s[1])
					}
					t.Log(line)
				}
			}
		}
	}
}

// batched looks up the packets of all flows in batches of 32.
func batched(t *policy.Table[int], fs []flow) func() {
	const size = 32
	var ps [size]policy.Packet
	var vs [size]int
	var ok [size]bool
	return func() {
		for rest := fs; len(rest) > 0; {
			n := min(size, len(rest))
			for i := range n {
				ps[i] = rest[i].packet()
			}
			t.LookupBatch(ps[:n], vs[:], ok[:])
			for _, v := range vs[:n] {
				sink += v
			}
			rest = rest[n:]
		}
	}
}

func TestCompareGrowth(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		var first, firstMiss float64
		for _, n := range sizes(10, 1000, 100_000, 1_000_000) {
			rules := rulesOf(n, v4, true)
			ours := compile(t, rules)
			hit, miss := flowsOf(rules, true), flowsOf(rules, false)
			runtime.GC()
			m := measure(flowCount, run(ours, hit), run(ours, miss), batched(ours, hit))
			if first == 0 {
				first, firstMiss = m[0], m[1]
			}
			t.Logf("%8d rules %s: hit %5.1f ns (%.1f x 10 rules), miss %5.1f ns (%.1f x), in batches %5.1f ns (%.2f x one by one)",
				n, family(v4), m[0], m[0]/first, m[1], m[1]/firstMiss, m[2], m[2]/m[0])
		}
	}
}

func TestCompareOneVIP(t *testing.T) {
	four, small := rulesOf(100_000, true, true), rulesOf(4, true, true)
	fourTable, smallTable := compile(t, four), compile(t, small)
	fourFlows, smallFlows := flowsOf(four, true), flowsOf(small, true)[:64]
	for _, n := range [][2]int{{1, 100_000}, {10, 10_000}, {100, 1000}, {1000, 100}, {50_000, 2}} {
		rules := oneVIP(n[0], n[1])
		ours := compile(t, rules)
		fs := flowsOf(rules, true)
		few := fs[:64] // again and again: in the cache, but for branches and work
		m := measure(flowCount, run(ours, fs), run(fourTable, fourFlows))
		c := measure(64, run(ours, few), run(smallTable, smallFlows))
		t.Logf("one VIP, %6d ports x %6d clients: %5.1f ns, %.2f x 100,000 rules at 4 a VIP (%.1f ns); in cache %5.1f ns, %.2f x 4 rules (%.1f ns)",
			n[0], n[1], m[0], m[0]/m[1], m[1], c[0], c[0]/c[1], c[1])
	}
}

func TestCompareBuild(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		rules := rulesOf(100_000, v4, true)
		m := measure(1,
			func() { compile(t, rules) },
			func() { newThreeMaps(rules) },
			func() { newNested(rules) })
		t.Logf("build of 100,000 rules %s: %.0f ms; three maps %.0f ms; nested maps + bart %.0f ms", family(v4), m[0]/1e6, m[1]/1e6, m[2]/1e6)
	}
	if *thorough {
		for _, n := range [][2]int{{1, 100_000}, {1000, 100}} {
			rules := oneVIP(n[0], n[1])
			m := measure(1, func() { compile(t, rules) })
			t.Logf("build of one VIP, %d ports x %d clients: %.0f ms", n[0], n[1], m[0]/1e6)
		}
	}
	table := compile(t, rulesOf(100_000, true, true))
	added := policy.Rule[int]{Name: "new", Match: policy.Match{Dst: vip(77, true), Protocol: policy.UDP}}
	m := measure(1,
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
	fs := flowsOf(rules, true)
	loop := func(name string, f func(policy.Packet) (int, bool)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				f(fs[i%flowCount].packet())
				i++
			}
		})
	}
	loop("policy", compile(b, rules).Lookup)
	loop("three maps", newThreeMaps(rules).Lookup)
	loop("nested maps and bart", newNested(rules).Lookup)
}
