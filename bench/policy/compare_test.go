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

// timed measures a whole function.
func timed(f func()) func() float64 {
	return func() float64 {
		begin := cpu()
		f()
		return cpu() - begin
	}
}

// measure runs the functions, which say what they took, in turn, several rounds, and returns the
// median cost of one operation of each in ns.
func measure(ops int, fs ...func() float64) []float64 {
	rounds, slice := 3, 8e6
	if *thorough {
		rounds, slice = 9, 30e6
	}
	samples := make([][]float64, len(fs))
	for range rounds {
		for i, f := range fs {
			n, spent := 0, 0.0
			for n == 0 || spent < slice {
				spent += f()
				n++
			}
			samples[i] = append(samples[i], spent/float64(n*ops))
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

// block is how many packets are made at once, outside of what is measured: few enough that they are
// in the cache when they are looked up, as a packet that has just come is.
const block = 4096

// run looks up the packets of all flows. It is generic so that every candidate is called directly.
func run[L lookuper](l L, fs []flow) func() float64 {
	return blocks(fs, func(ps []policy.Packet) {
		for i := range ps {
			v, _ := l.Lookup(ps[i])
			sink += v
		}
	})
}

func blocks(fs []flow, do func(ps []policy.Packet)) func() float64 {
	made := make([]policy.Packet, block)
	return func() (spent float64) {
		for rest := fs; len(rest) > 0; {
			ps := made[:min(block, len(rest))]
			for i := range ps {
				ps[i] = rest[i].packet()
			}
			begin := cpu()
			do(ps)
			spent += cpu() - begin
			rest = rest[len(ps):]
		}
		return spent
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
	for _, n := range sizes(10, 1000, 100_000, 1_000_000) {
		for _, v4 := range []bool{true, false} {
			for _, withClients := range []bool{true, false} {
				rules := rulesOf(n, v4, withClients)
				ours, maps, nest := compile(t, rules), newThreeMaps(rules), newNested(rules)
				for _, hit := range []bool{true, false} {
					fs := flowsOf(rules, hit)
					agree(t, ours, maps, fs)
					agree(t, ours, nest, fs)
					m := measure(len(fs), run(ours, fs), run(maps, fs), run(nest, fs), batched(ours, fs))
					line := fmt.Sprintf("%7d rules %s clients=%-5v hit=%-5v: %5.1f ns; %.2f x three maps (%.0f ns); %.2f x nested maps + bart (%.0f ns)",
						n, family(v4), withClients, hit, m[0], m[0]/m[1], m[1], m[0]/m[2], m[2])
					line += fmt.Sprintf("; in batches %.1f ns, %.2f and %.2f x", m[3], m[3]/m[1], m[3]/m[2])
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
func batched(t *policy.Table[int], fs []flow) func() float64 {
	const size = 32
	var vs [size]int
	var ok [size]bool
	return blocks(fs, func(ps []policy.Packet) {
		for len(ps) > 0 {
			n := min(size, len(ps))
			t.LookupBatch(ps[:n], vs[:], ok[:])
			for _, v := range vs[:n] {
				sink += v
			}
			ps = ps[n:]
		}
	})
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
	fourFlows, smallFlows := flowsOf(four, true), slices.Repeat(flowsOf(small, true)[:64], 64)
	for _, n := range [][2]int{{1, 100_000}, {10, 10_000}, {100, 1000}, {1000, 100}, {50_000, 2}} {
		rules := oneVIP(n[0], n[1])
		ours := compile(t, rules)
		fs := flowsOf(rules, true)
		few := slices.Repeat(fs[:64], 64) // in the cache, but for branches and work
		m := measure(flowCount, run(ours, fs), run(fourTable, fourFlows))
		c := measure(len(few), run(ours, few), run(smallTable, smallFlows))
		t.Logf("one VIP, %6d ports x %6d clients: %5.1f ns, %.2f x 100,000 rules at 4 a VIP (%.1f ns); in cache %5.1f ns, %.2f x 4 rules (%.1f ns)",
			n[0], n[1], m[0], m[0]/m[1], m[1], c[0], c[0]/c[1], c[1])
	}
}

func TestCompareBuild(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		rules := rulesOf(100_000, v4, true)
		m := measure(1,
			timed(func() { compile(t, rules) }),
			timed(func() { newThreeMaps(rules) }),
			timed(func() { newNested(rules) }))
		t.Logf("build of 100,000 rules %s: %.0f ms; three maps %.0f ms; nested maps + bart %.0f ms", family(v4), m[0]/1e6, m[1]/1e6, m[2]/1e6)
	}
	if *thorough {
		for _, n := range [][2]int{{1, 100_000}, {1000, 100}} {
			rules := oneVIP(n[0], n[1])
			m := measure(1, timed(func() { compile(t, rules) }))
			t.Logf("build of one VIP, %d ports x %d clients: %.0f ms", n[0], n[1], m[0]/1e6)
		}
	}
	table := compile(t, rulesOf(100_000, true, true))
	added := policy.Rule[int]{Name: "new", Match: policy.Match{Dst: vip(77, true), Protocol: policy.UDP}}
	m := measure(1,
		timed(func() {
			if _, err := table.With(added); err != nil {
				t.Fatal(err)
			}
		}),
		timed(func() {
			if _, err := table.Without("777"); err != nil {
				t.Fatal(err)
			}
		}))
	t.Logf("one rule in 100,000: add %.3f ms, remove %.3f ms", m[0]/1e6, m[1]/1e6)
}

func BenchmarkLookup(b *testing.B) {
	rules := rulesOf(100_000, true, true)
	fs := flowsOf(rules, true)
	ps := make([]policy.Packet, len(fs))
	for i := range fs {
		ps[i] = fs[i].packet()
	}
	loop := func(name string, f func(policy.Packet) (int, bool)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				f(ps[i%flowCount])
				i++
			}
		})
	}
	loop("policy", compile(b, rules).Lookup)
	loop("three maps", newThreeMaps(rules).Lookup)
	loop("nested maps and bart", newNested(rules).Lookup)
}
