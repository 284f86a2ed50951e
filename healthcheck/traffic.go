package healthcheck

import (
	"sync/atomic"
	"time"
)

// Traffic is how the data plane tells a [Roster] that it sends packets to a server
// and hears from it. Its methods take no lock and allocate nothing, and mostly
// write nothing: a time that is at most 100 ms newer than the one known is not
// stored, so that cores do not contend. A nil *Traffic may be used; it does
// nothing. Get one from [Roster.Traffic].
type Traffic struct {
	// Unix nanoseconds of the last packet sent, and of the first one sent since
	// something was heard; 0 if none was.
	sent, first atomic.Int64
}

const trafficGrain = int64(100 * time.Millisecond)

// Sent tells that a packet was sent to the server at time now.
func (t *Traffic) Sent(now time.Time) {
	if t == nil {
		return
	}
	ns := now.UnixNano()
	// A clock that was set back makes both times anew. Set forward, it can make a
	// server suspect once.
	if f := t.first.Load(); f == 0 || f-ns > trafficGrain {
		t.first.CompareAndSwap(f, ns)
	}
	if d := ns - t.sent.Load(); d > trafficGrain || d < -trafficGrain {
		t.sent.Store(ns)
	}
}

// Heard tells that a packet came from the server.
func (t *Traffic) Heard() {
	if t != nil && t.first.Load() != 0 {
		t.first.Store(0)
	}
}

// silent returns for how long packets have been sent and none has been heard.
// A single packet without answer is none of it: the server may owe none.
func (t *Traffic) silent() time.Duration {
	first := t.first.Load()
	if first == 0 {
		return 0
	}
	return max(0, time.Duration(t.sent.Load()-first))
}
