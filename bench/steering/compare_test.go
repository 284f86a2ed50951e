//go:build unix

package steering

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/buraksezer/consistent"
	"github.com/dchest/siphash"
	gomaglev "github.com/dgryski/go-maglev"
	"github.com/dgryski/go-rendezvous"
	kkdai "github.com/kkdai/maglev"
	stathat "stathat.com/c/consistent"

	"github.com/lbprim/lbprim/steering"
)

const tableSize = 65537

func nodeNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("10.0.%d.%d:80", i/250, i%250+1)
	}
	return out
}

type member string

func (m member) String() string { return string(m) }

type sip struct{}

func (sip) Sum64(b []byte) uint64 { return siphash.Hash(1, 2, b) }

// A picker maps client number i to a node's name.
type picker func(i int) string

// contestants build a picker over names.
var contestants = []struct {
	name  string
	build func(names []string) picker
}{
	{"lbprim MaglevTable", func(names []string) picker {
		t := ours(names)
		return func(i int) string { return names[t.Lookup(clients[i])] }
	}},
	{"lbprim Buckets (4096)", func(names []string) picker {
		b, err := steering.NewBuckets(4096, 0, shares(names)...)
		if err != nil {
			panic(err)
		}
		return func(i int) string { return names[b.Lookup(clients[i])] }
	}},
	{"dgryski/go-maglev", func(names []string) picker {
		t := gomaglev.New(names, tableSize)
		return func(i int) string { return names[t.Lookup(clients[i])] }
	}},
	{"kkdai/maglev", func(names []string) picker {
		t, err := kkdai.NewMaglev(names, tableSize)
		if err != nil {
			panic(err)
		}
		return func(i int) string {
			s, err := t.Get(clientNames[i])
			if err != nil {
				panic(err)
			}
			return s
		}
	}},
	{"dgryski/go-rendezvous", func(names []string) picker {
		t := rendezvous.New(names, func(s string) uint64 { return siphash.Hash(1, 2, []byte(s)) })
		return func(i int) string { return t.Lookup(clientNames[i]) }
	}},
	{"buraksezer/consistent", func(names []string) picker {
		members := make([]consistent.Member, len(names))
		for i, n := range names {
			members[i] = member(n)
		}
		t := consistent.New(members, consistent.Config{Hasher: sip{}, PartitionCount: tableSize, ReplicationFactor: 20, Load: 1.25})
		return func(i int) string { return t.LocateKey([]byte(clientNames[i])).String() }
	}},
	{"stathat/consistent", func(names []string) picker {
		t := stathat.New()
		t.Set(names)
		return func(i int) string {
			s, err := t.Get(clientNames[i])
			if err != nil {
				panic(err)
			}
			return s
		}
	}},
}

func shares(names []string) []steering.Share {
	out := make([]steering.Share, len(names))
	for i, n := range names {
		out[i] = steering.Share{Name: n, Weight: 1}
	}
	return out
}

func weighted(names []string) []steering.Share {
	out := shares(names)
	for i := range out {
		out[i].Weight = 1 + i%10
	}
	return out
}

func ours(names []string) *steering.MaglevTable {
	t, err := steering.NewMaglevTable(tableSize, 0, shares(names)...)
	if err != nil {
		panic(err)
	}
	return t
}

const clientCount = 1 << 16

var clients, clientNames = func() (h []uint64, s []string) {
	for i := range clientCount {
		name := fmt.Sprintf("client-%d", i)
		s = append(s, name)
		h = append(h, siphash.Hash(3, 4, []byte(name)))
	}
	return h, s
}()

// cpu is the processor time this process has spent, which other load on the machine
// disturbs less than the clock.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec)*1e9 + float64(u.Utime.Usec+u.Stime.Usec)*1e3
}

// measure runs the functions in turn, several rounds, and returns the cost of one
// operation of each in ns: the best round, as whatever else the machine does only adds.
func measure(rounds int, ops []int, fs ...func()) []float64 {
	samples := make([][]float64, len(fs))
	for range rounds {
		for i, f := range fs {
			// The kernel accounts in steps; long enough runs make them small.
			n, begin := 0, cpu()
			for n == 0 || cpu()-begin < 30e6 {
				f()
				n++
			}
			samples[i] = append(samples[i], (cpu()-begin)/float64(n*ops[i]))
		}
	}
	out := make([]float64, len(fs))
	for i, s := range samples {
		out[i] = slices.Min(s)
	}
	return out
}

var sink int

func TestCompareMaglev(t *testing.T) {
	if testing.Short() {
		t.Skip("a comparison of speed")
	}
	const rounds = 5
	for _, n := range []int{10, 100, 1000} {
		names := nodeNames(n)
		table, peer := ours(names), gomaglev.New(names, tableSize)
		parts := slices.Repeat([]uint8{steering.FullPart}, n)
		parts[n/2] = 0
		r := measure(rounds, []int{1, 1, 1, 1},
			func() { ours(names) },
			func() {
				if _, err := steering.NewMaglevTable(tableSize, 0, weighted(names)...); err != nil {
					t.Fatal(err)
				}
			},
			func() { gomaglev.New(names, tableSize) },
			func() { table.With(parts...) })
		t.Logf("N=%d build: equal %.0f µs, weighted 1..10 %.0f µs, go-maglev %.0f µs; ratios %.2f, %.2f; one node down %.0f µs = 1/%.0f of our build",
			n, r[0]/1e3, r[1]/1e3, r[2]/1e3, r[0]/r[2], r[1]/r[2], r[3]/1e3, r[0]/r[3])

		l := measure(rounds, []int{clientCount, clientCount, len(flows)},
			func() {
				x := 0
				for _, h := range clients {
					x += table.Lookup(h)
				}
				sink += x
			},
			func() {
				x := 0
				for _, h := range clients {
					x += peer.Lookup(h)
				}
				sink += x
			},
			func() {
				x := 0
				for i := range flows {
					x += table.Lookup(steering.HashEndpoints(6, flows[i][0], flows[i][1]))
				}
				sink += x
			})
		t.Logf("N=%d lookup: %.2f ns, go-maglev %.2f ns, ratio %.2f; with the hash of the 5-tuple %.2f ns", n, l[0], l[1], l[0]/l[1], l[2])
	}
	names := nodeNames(100)
	r := measure(3, []int{1, 1},
		func() { ours(names) },
		func() {
			if _, err := kkdai.NewMaglev(names, tableSize); err != nil {
				t.Fatal(err)
			}
		})
	t.Logf("N=100 build: kkdai/maglev %.0f ms, ratio %.4f", r[1]/1e6, r[0]/r[1])
}

var flows = func() [][2]steering.Endpoint {
	out := make([][2]steering.Endpoint, 256) // in the first cache, as the packet at hand is
	vip := netip.MustParseAddrPort("192.0.2.1:80")
	for i := range out {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		out[i] = [2]steering.Endpoint{steering.EndpointOf(netip.AddrPortFrom(a, uint16(1024+i%60000))), steering.EndpointOf(vip)}
	}
	return out
}()

// All contestants: build, lookup, imbalance over the clients, and the clients moved
// beyond those of a node that goes away.
func TestCompareAll(t *testing.T) {
	if testing.Short() {
		t.Skip("a comparison of speed")
	}
	var b strings.Builder
	b.WriteString("\n| N | | build µs | lookup ns | imbalance (max/mean of 65,536 clients) | clients moved beyond those of the lost node |\n|---|---|---|---|---|---|\n")
	for _, n := range []int{10, 100} {
		names := nodeNames(n)
		gone := names[n/3]
		fewer := slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == gone })
		for _, c := range contestants {
			pick := c.build(names)
			cost := measure(1, []int{1, clientCount / 16},
				func() { c.build(names) },
				func() {
					for i := range clientCount / 16 {
						sink += len(pick(i))
					}
				})
			without := c.build(fewer)
			load := map[string]int{}
			moved := 0
			for i := range clientCount {
				was := pick(i)
				load[was]++
				if was != gone && without(i) != was {
					moved++
				}
			}
			most := 0
			for _, x := range load {
				most = max(most, x)
			}
			fmt.Fprintf(&b, "| %d | %s | %.0f | %.1f | %.3f | %.2f %% |\n", n, c.name, cost[0]/1e3, cost[1],
				float64(most)*float64(n)/clientCount, 100*float64(moved)/clientCount)
		}
	}
	t.Log(b.String())
}

// Imbalance of the ready tables: slots of the busiest node against the mean.
func TestCompareImbalance(t *testing.T) {
	for _, tt := range []struct {
		n    int
		most float64
	}{{10, 1.0002}, {100, 1.001}, {1000, 1.008}} {
		count := make([]int, tt.n)
		for _, i := range ours(nodeNames(tt.n)).Slots() {
			count[i]++
		}
		got := float64(slices.Max(count)) * float64(tt.n) / tableSize
		t.Logf("N=%d: %.4f", tt.n, got)
		if got > tt.most {
			t.Errorf("N=%d: imbalance %.4f, want at most %.4f", tt.n, got, tt.most)
		}
	}
}

// With one node down and up again: what moves, and what the busiest node gets.
func TestCompareDisruption(t *testing.T) {
	for _, n := range []int{10, 100} {
		names := nodeNames(n)
		full := ours(names)
		before := full.Slots()
		peer := gomaglev.New(names, tableSize)
		was := make([]int, tableSize)
		for s := range was {
			was[s] = peer.Lookup(uint64(s))
		}
		down := n / 2
		parts := slices.Repeat([]uint8{steering.FullPart}, n)
		parts[down] = 0
		extra, count := 0, make([]int, n)
		for s, i := range full.With(parts...).Slots() {
			count[i]++
			if int(before[s]) != down && before[s] != i {
				extra++
			}
		}
		peer.Rebuild([]int{down})
		peerExtra := 0
		for s := range was {
			if was[s] != down && was[s] != peer.Lookup(uint64(s)) {
				peerExtra++
			}
		}
		t.Logf("N=%d, one down: %d extra slots moved, busiest %.3f of its share; go-maglev: %d extra slots",
			n, extra, float64(slices.Max(count))*float64(n-1)/tableSize, peerExtra)
		if extra != 0 {
			t.Errorf("N=%d: %d extra slots moved", n, extra)
		}
		if !slices.Equal(before, full.With().Slots()) {
			t.Errorf("N=%d: the table is not restored", n)
		}
	}
}
