package sslpersist

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lbprim/lbprim/sslpersist"
)

// value is what an LRU would have to hold beside the key: node and last use.
type value struct {
	node string
	last time.Time
}

func id(i uint64) (id sslpersist.SessionID) {
	var b [32]byte
	binary.BigEndian.PutUint64(b[8:], i)
	id, _ = sslpersist.SessionIDFrom(b[:])
	return id
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// BenchmarkTable looks up, and refreshes, random IDs of a full table. The LRU is without
// the lock it would need, and without looking at the idle time.
func BenchmarkTable(b *testing.B) {
	for _, size := range []uint64{1000, 1_000_000} {
		now := time.Now()
		b.Run(fmt.Sprintf("lbprim/%d", size), func(b *testing.B) {
			before := heap()
			t, err := sslpersist.NewTable(&sslpersist.Config[string]{MaxEntries: int(size)})
			if err != nil {
				b.Fatal(err)
			}
			for i := range size {
				_ = t.LearnAt(now, id(i), "a")
			}
			per := float64(heap()-before) / float64(size)
			r := rand.New(rand.NewPCG(1, 1))
			for b.Loop() {
				now = now.Add(10)
				if _, ok := t.LookupAt(now, id(r.Uint64N(size))); !ok {
					b.Fatal("lost")
				}
			}
			b.ReportMetric(per, "B/ID")
		})
		b.Run(fmt.Sprintf("simplelru/%d", size), func(b *testing.B) {
			before := heap()
			t, err := simplelru.NewLRU[sslpersist.SessionID, value](int(size), nil)
			if err != nil {
				b.Fatal(err)
			}
			for i := range size {
				t.Add(id(i), value{"a", now})
			}
			per := float64(heap()-before) / float64(size)
			r := rand.New(rand.NewPCG(1, 1))
			for b.Loop() {
				now = now.Add(10)
				k := id(r.Uint64N(size))
				v, ok := t.Get(k)
				if !ok {
					b.Fatal("lost")
				}
				v.last = now
				t.Add(k, v)
			}
			b.ReportMetric(per, "B/ID")
		})
	}
}
