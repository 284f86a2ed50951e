package clienttable

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// A xorshift generator: cheap enough not to matter.
type rng uint64

func (r *rng) next(n uint32) uint32 {
	*r ^= *r << 13
	*r ^= *r >> 7
	*r ^= *r << 17
	return uint32(uint64(uint32(*r>>32)) * uint64(n) >> 32)
}

func benchTable(b *testing.B, n int) *Table[Flow, [2]uint64] {
	b.Helper()
	t, err := New(&Config[Flow, [2]uint64]{MaxEntries: n, TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { t.Close() })
	now := time.Now()
	for i := range n {
		if err := t.StoreAt(now, flowOf(uint32(i)), [2]uint64{uint64(i)}); err != nil {
			b.Fatal(err)
		}
	}
	return t
}

var benchSizes = []int{1000, 1 << 20, 10 << 20}

func BenchmarkHit(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			t := benchTable(b, n)
			keys := benchKeys(n)
			r, now, i := rng(rand.Uint64()|1), time.Now(), 0
			for b.Loop() {
				if i++; i&1023 == 0 {
					now = time.Now()
				}
				if _, ok := t.LoadAt(now, keys[r.next(uint32(len(keys)))]); !ok {
					b.Fatal("miss")
				}
			}
		})
	}
}

// benchKeys are up to 64 k of the keys 0…n-1, so that the keys themselves stay in
// cache.
func benchKeys(n int) []Flow {
	keys := make([]Flow, min(n, 1<<16))
	r := rng(12345)
	for i := range keys {
		keys[i] = flowOf(r.next(uint32(n)))
	}
	return keys
}

func BenchmarkHitBatch(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			t := benchTable(b, n)
			r := rng(rand.Uint64() | 1)
			var ks [32]Flow
			var vs [32][2]uint64
			var ok [32]bool
			for b.Loop() {
				for i := range ks {
					ks[i] = flowOf(r.next(uint32(n)))
				}
				if t.LoadBatch(time.Now(), ks[:], vs[:], ok[:]) != len(ks) {
					b.Fatal("miss")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ks)), "ns/key")
		})
	}
}

func BenchmarkMiss(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			t := benchTable(b, n)
			r, now := rng(rand.Uint64()|1), time.Now()
			for b.Loop() {
				if _, ok := t.LoadAt(now, flowOf(uint32(n)+r.next(1<<22))); ok {
					b.Fatal("hit")
				}
			}
		})
	}
}

func BenchmarkChurn(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			t := benchTable(b, n)
			now, i := time.Now(), uint32(0)
			for b.Loop() {
				if i&1023 == 0 {
					now = time.Now()
				}
				t.DeleteAt(now, flowOf(i))
				if err := t.StoreAt(now, flowOf(i+uint32(n)), [2]uint64{1}); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

func BenchmarkExpire(b *testing.B) {
	const n = 1 << 20
	t := benchTable(b, n)
	now := time.Now()
	for b.Loop() {
		b.StopTimer()
		now = now.Add(2 * time.Hour)
		for i := range n {
			t.StoreAt(now, flowOf(uint32(i)), [2]uint64{})
		}
		now = now.Add(time.Hour)
		b.StartTimer()
		freed, worst := 0, time.Duration(0)
		for {
			at := time.Now()
			k := t.Sweep(now, 512)
			worst = max(worst, time.Since(at))
			if k == 0 {
				break
			}
			freed += k
		}
		if freed != n {
			b.Fatal(freed)
		}
		b.ReportMetric(float64(worst.Microseconds()), "worst-step-us")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/entry")
}
