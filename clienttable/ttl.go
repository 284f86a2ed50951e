package clienttable

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// An entry has room for one byte to name its TTL, so a table numbers the TTLs it
// meets. The first ttlExact different ones are kept exactly. After these, a TTL
// is rounded up to the next one known, at worst to the next power of two
// milliseconds, which always are, and counted in Stats.
const (
	ttlExact = 216
	ttlRungs = 39 // 2^0 … 2^38 ms
	ttlSlots = 512
)

// ttlTable numbers TTLs. ms may be read without a lock by whoever has met a
// number in an entry: it was written before the entry was.
type ttlTable struct {
	ms    [256]int64
	index [ttlSlots]atomic.Uint64 // open addressing: ms<<8 | number; never shrinks
	mu    sync.Mutex
	n     int
	// rounded counts the TTLs that were not kept exactly.
	rounded atomic.Uint64
}

func (t *ttlTable) init() {
	for i := range ttlRungs {
		t.ms[ttlExact+i] = 1 << i
	}
}

// milliseconds rounds a TTL up.
func milliseconds(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return min(ms, int64(MaxTTL/time.Millisecond))
}

// number returns the number of a TTL of ms milliseconds, which must be positive.
func (t *ttlTable) number(ms int64) uint8 {
	i := int(uint64(ms) * mix0 >> 55)
	for range ttlSlots {
		w := t.index[i].Load()
		if w == 0 {
			break
		}
		if int64(w>>8) == ms {
			return uint8(w)
		}
		i = (i + 1) % ttlSlots
	}
	return t.add(ms)
}

func (t *ttlTable) add(ms int64) uint8 {
	if ms&(ms-1) == 0 {
		return uint8(ttlExact + bits.Len64(uint64(ms)) - 1)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.n {
		if t.ms[i] == ms {
			return uint8(i)
		}
	}
	if t.n == ttlExact {
		t.rounded.Add(1)
		best := ttlExact + bits.Len64(uint64(ms))
		for i := range t.n {
			if t.ms[i] >= ms && t.ms[i] < t.ms[best] {
				best = i
			}
		}
		return uint8(best)
	}
	no := t.n
	t.ms[no] = ms
	t.n++
	i := int(uint64(ms) * mix0 >> 55)
	for t.index[i].Load() != 0 {
		i = (i + 1) % ttlSlots
	}
	t.index[i].Store(uint64(ms)<<8 | uint64(no))
	return uint8(no)
}
