//go:build linux

// Command clienttable compares lbprim's client table with other Go caches and maps,
// side by side in one run.
//
//	go run ./clienttable -n 1000000 -rounds 3
//
// Keys are 40-byte flows, values 16 bytes. A hit is a look-up that restarts the idle
// time, where the peer can. Figures are CPU time of the whole process per operation,
// background goroutines included, as the machine may be shared; they are medians of
// interleaved rounds.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/lbprim/lbprim/clienttable"
)

type key = clienttable.Flow

type value [2]uint64

// subject is a table under test.
type subject interface {
	load(now time.Time, k key) bool
	store(now time.Time, k key, v value)
	del(now time.Time, k key)
	len() int
	close()
}

// batcher is a subject with look-ups in batches.
type batcher interface {
	loadBatch(now time.Time, ks []key) int
}

func flowOf(i uint32) key {
	return clienttable.MakeFlow4(6, [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}, [4]byte{192, 0, 2, 1}, uint16(i), 80+uint16(i>>24))
}

type rng uint64

func (r *rng) next(n uint32) uint32 {
	*r ^= *r << 13
	*r ^= *r >> 7
	*r ^= *r << 17
	return uint32(uint64(uint32(*r>>32)) * uint64(n) >> 32)
}

var (
	size   = flag.Int("n", 1_000_000, "entries")
	ops    = flag.Int("ops", 1_000_000, "operations per measurement")
	repeat = new(int)
	rounds = flag.Int("rounds", 3, "interleaved rounds")
	only   = flag.String("only", "", "comma-separated names of subjects, of "+strings.Join(subjectNames, ",")+"; default all")
	works  = flag.String("works", "hit,batch,miss,churn,mixed,two,memory,gc", "comma-separated works; expire is another, alone also of those that know only the clock of the machine")
)

func main() {
	flag.Parse()
	names := subjectNames
	if *only != "" {
		names = strings.Split(*only, ",")
	}
	results := map[string]map[string][]float64{} // work, subject
	add := func(work, name string, ns float64) {
		if results[work] == nil {
			results[work] = map[string][]float64{}
		}
		results[work][name] = append(results[work][name], ns)
	}
	want := strings.Split(*works, ",")
	if *works == "expire" {
		ttl = 15 * time.Second
	}
	for round := range *rounds {
		chase := chaser()
		add("hit", "chase", chase(*ops))
		for _, name := range names {
			fmt.Fprintf(os.Stderr, "round %d: %s\n", round+1, name)
			runSubject(name, want, add)
		}
	}
	order := append([]string{"chase"}, names...)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "n=%d\t%s\n", *size, strings.Join(order, "\t"))
	for _, work := range []string{"hit", "hit-clock", "batch", "miss", "churn", "mixed", "two", "speedup", "memory", "gc", "expire", "step"} {
		if results[work] == nil {
			continue
		}
		ours := median(results[work]["ours"])
		fmt.Fprintf(w, "%s", work)
		for _, name := range order {
			if m := results[work][name]; m != nil {
				fmt.Fprintf(w, "\t%.1f (%.2f)", median(m), ours/median(m))
			} else {
				fmt.Fprint(w, "\t-")
			}
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	fmt.Println("ns of CPU per operation (ours as a ratio of it); memory: bytes of RSS per entry; gc: ms of runtime.GC; step: µs that 99 of 100 steps of 512 stay below")
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

func runSubject(name string, works []string, add func(work, name string, ns float64)) {
	runtime.GC()
	debug.FreeOSMemory()
	before := rss()
	s := newSubject(name, *size)
	defer func() {
		s.close()
		s = nil
		runtime.GC()
		debug.FreeOSMemory()
	}()
	now := time.Now()
	for i := range uint32(*size) {
		s.store(now, flowOf(i), value{uint64(i)})
	}
	n := uint32(*size)
	has := func(w string) bool { return slices.Contains(works, w) }
	if has("memory") {
		runtime.GC()
		debug.FreeOSMemory()
		add("memory", name, float64(rss()-before)/float64(n))
	}
	if has("gc") {
		runtime.GC()
		at := time.Now()
		runtime.GC()
		add("gc", name, float64(time.Since(at).Microseconds())/1000)
	}
	r := rng(0x9e3779b97f4a7c15)
	*repeat = 1
	// Keys are prepared, in an order that no cache can guess, and read in sequence.
	ks := make([]key, *ops)
	for i := range ks {
		ks[i] = flowOf(r.next(n))
	}
	if n <= 1<<14 {
		// Small enough for the cache: so must the keys be. They are gone through
		// again and again.
		ks = ks[:min(len(ks), 1<<12)]
		*repeat = max(1, *ops/len(ks))
	}
	hits := 0
	one := func(ks []key) {
		now := time.Now()
		for range *repeat {
			for i := range ks {
				if i&31 == 0 {
					now = time.Now()
				}
				if s.load(now, ks[i]) {
					hits++
				}
			}
		}
	}
	if has("hit") {
		one(ks[:min(len(ks), 1000)])
		hits = 0
		add("hit", name, cpu(len(ks)**repeat, func() { one(ks) }))
		if hits < len(ks)**repeat*9/10 {
			fmt.Fprintf(os.Stderr, "%s: only %d of %d hits\n", name, hits, len(ks))
		}
	}
	if o, ok := s.(*ours); ok && has("hit") {
		add("hit-clock", name, cpu(len(ks)**repeat, func() {
			for range *repeat {
				for i := range ks {
					o.t.Load(ks[i])
				}
			}
		}))
	}
	if b, ok := s.(batcher); ok && has("batch") {
		add("batch", name, cpu(len(ks)**repeat, func() {
			for range *repeat {
				for i := 0; i+32 <= len(ks); i += 32 {
					b.loadBatch(time.Now(), ks[i:i+32])
				}
			}
		}))
	} else if has("batch") {
		add("batch", name, cpu(len(ks)**repeat, func() { one(ks) }))
	}
	if has("two") {
		at := time.Now()
		one(ks)
		single := time.Since(at)
		at = time.Now()
		var wg sync.WaitGroup
		for half := range 2 {
			wg.Go(func() {
				now, n := time.Now(), 0
				for range *repeat {
					for i := half; i < len(ks); i += 2 {
						if i&31 == half {
							now = time.Now()
						}
						if s.load(now, ks[i]) {
							n++
						}
					}
				}
			})
		}
		wg.Wait()
		add("speedup", name, float64(single)/float64(time.Since(at)))
	}
	if has("miss") {
		miss := make([]key, len(ks))
		for i := range miss {
			miss[i] = flowOf(1<<30 + r.next(1<<28))
		}
		add("miss", name, cpu(len(miss)**repeat, func() { one(miss) }))
	}
	if has("mixed") { // 90 % hits, 9 % stores over, 1 % new and delete
		add("mixed", name, cpu(len(ks), func() {
			now := time.Now()
			for i := range ks {
				switch c := i % 100; {
				case c < 90:
					s.load(now, ks[i])
				case c < 99:
					s.store(now, ks[i], value{1})
				default:
					s.store(now, flowOf(1<<30+uint32(i)), value{1})
					s.del(now, flowOf(1<<30+uint32(i)))
					now = time.Now()
				}
			}
		}))
	}
	if has("churn") {
		m := min(*ops, int(n))
		// Old entries leave in an order unlike that in which they came. A small table
		// is renewed again and again: once would measure cold code.
		again := max(1, *ops/m)
		from := func(turn int) uint32 {
			if turn < 0 {
				return 0
			}
			return 1<<31 + uint32(turn)<<21
		}
		add("churn", name, cpu(m*again, func() {
			now := time.Now()
			for turn := range again {
				for i := range m {
					if i&31 == 0 {
						now = time.Now()
					}
					s.del(now, flowOf(from(turn-1)+uint32(uint64(i)*2654435761%uint64(n))))
					s.store(now, flowOf(from(turn)+uint32(i)), value{1})
				}
			}
		}))
	}
	if o, ok := s.(*ours); ok && has("expire") {
		later := time.Now().Add(3 * time.Hour)
		var steps []float64
		total := o.t.Stats().Entries
		add("expire", name, cpu(total, func() {
			for {
				at := time.Now()
				k := o.t.Sweep(later, 512)
				steps = append(steps, float64(time.Since(at).Nanoseconds())/1000)
				if k == 0 {
					return
				}
			}
		}))
		slices.Sort(steps)
		add("step", name, steps[len(steps)*99/100])
	} else if e, ok := s.(interface{ expire() }); ok && has("expire") {
		total := s.len()
		wait := time.Duration(0)
		if d, ok := s.(interface{ due() time.Time }); ok {
			if len(works) > 1 {
				return // nobody waits for two hours
			}
			e.expire() // whatever it has put off
			wait = time.Until(d.due())
		}
		add("expire", name, cpu(total, func() {
			time.Sleep(wait) // it may expire in the background meanwhile
			e.expire()
		}))
		if left := s.len(); left > total/100 {
			fmt.Fprintf(os.Stderr, "%s: %d of %d have not expired\n", name, left, total)
		}
	}
}
