package sslpersist

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// fillTable learns n IDs for 100 nodes and returns the table and the bytes it takes.
func fillTable(t testing.TB, n int) (tab *Table[int], bytes uint64) {
	t.Helper()
	before := heap()
	tab, err := NewTable(&Config[int]{MaxEntries: n})
	require.NoError(t, err)
	now := time.Now()
	for i := range n {
		if err := tab.LearnAt(now, numbered(uint64(i)), i%100); err != nil {
			t.Fatal(err)
		}
	}
	return tab, heap() - before
}

func TestMemoryPerEntry(t *testing.T) {
	require.Equal(t, uintptr(56), unsafe.Sizeof(entry{}))
	if underRace {
		t.Skip("the race detector takes memory of its own")
	}
	const n = 1_000_000
	tab, bytes := fillTable(t, n)
	t.Logf("%.1f bytes an ID", float64(bytes)/n)
	require.Less(t, bytes, uint64(72*n))
	runtime.KeepAlive(tab)
}

// BenchmarkTenMillionIDs states the memory of ten million IDs, what the collector takes
// with them, and the longest insertion.
func BenchmarkTenMillionIDs(b *testing.B) {
	for b.Loop() {
		const n = 10_000_000
		tab, bytes := fillTable(b, n)
		b.ReportMetric(float64(bytes)/n, "B/ID")
		start := time.Now()
		runtime.GC()
		b.ReportMetric(float64(time.Since(start).Microseconds()), "µs/GC")
		now := time.Now()
		start = now
		tab.Forget(5)
		b.ReportMetric(float64(time.Since(start).Microseconds()), "µs/Forget")
		later := now.Add(DefaultTTL)
		freed := 0
		start = time.Now()
		for {
			k := tab.Sweep(later, 1<<12)
			if k == 0 {
				break
			}
			freed += k
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(freed), "ns/expired")
	}
}

// BenchmarkLearnFull is the cost of an ID refused by a table full of live ones, which is
// what an attacker makes it do, with many nodes.
func BenchmarkLearnFull(b *testing.B) {
	const n = 100_000
	tab, err := NewTable(&Config[int]{MaxEntries: n})
	require.NoError(b, err)
	now := time.Now()
	for i := range n {
		require.NoError(b, tab.LearnAt(now, numbered(uint64(i)), i%1000))
	}
	i := uint64(n)
	for b.Loop() {
		i++
		if err := tab.LearnAt(now, numbered(i), 1); err == nil {
			b.Fatal("not full")
		}
	}
}

func BenchmarkLearn(b *testing.B) {
	for _, nodes := range []int{1, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			tab, err := NewTable(&Config[int]{MaxEntries: 1 << 22, TTL: time.Millisecond})
			require.NoError(b, err)
			now := time.Now()
			i := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				i++
				if tab.LearnAt(now, numbered(i), int(i)%nodes) != nil {
					now = now.Add(time.Second)
				}
			}
		})
	}
}
