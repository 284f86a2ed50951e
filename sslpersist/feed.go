package sslpersist

import (
	"sync"
	"time"
)

// Op says what a Delta did.
type Op uint8

// The operations. The zero Op is none of them.
const (
	_         Op = iota
	OpLearn      // bound to the node, newly or from another one
	OpRefresh    // used; told at most eight times in an idle time
	OpForget     // all bindings of the node are void
)

// feed remembers the last changes of an engine in a ring.
type feed[N comparable] struct {
	mu   sync.Mutex
	ring []change[N]
	seq  uint64 // of the last change; the first is 1
}

type change[N comparable] struct {
	op   Op
	k    key
	node N
	at   time.Time
}

func newFeed[N comparable](size int) *feed[N] {
	return &feed[N]{ring: make([]change[N], size)}
}

func (f *feed[N]) add(op Op, k key, n N, at time.Time) {
	f.mu.Lock()
	f.seq++
	f.ring[f.seq%uint64(len(f.ring))] = change[N]{op, k, n, at}
	f.mu.Unlock()
}
