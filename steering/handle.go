package steering

import (
	"sync/atomic"
	"time"
)

// A handle is the lasting part of a node: what must survive any number of views.
type handle struct {
	// Sessions are counted as those ever started and those ended, so that a pick is
	// one atomic operation and the total needs no counter of its own.
	started atomic.Uint64
	ended   atomic.Uint64
	vt      atomic.Uint64 // LeastConns: virtual time of the node's next turn
	rvt     atomic.Uint64 // LeastConns: the same, of its turns while warming up
	octets  atomic.Uint64 // in this interval
	id      NodeID
	_       [64 - 5*8 - 4]byte

	name string // the same in every configuration this handle is part of

	// The rest is guarded by Pool.mu.
	node      Node
	advice    Advice
	up        bool
	wasUp     bool // has been up before
	added     bool // came to a running pool
	off       bool // has been disabled since it was enabled last
	level     Level
	gauger    Gauger
	recovered time.Time // end of the recovery time, zero if none
	warm      time.Time // begin of the slow start, zero if none
	average   time.Duration
	applied   time.Duration // average the view was built with
	last      uint64        // octets of the last complete interval
}

// sessions returns how many are open. Reading the ended ones first can only show too
// many, never too few.
func (h *handle) sessions() int64 {
	ended := h.ended.Load()
	return int64(h.started.Load() - ended)
}

// start counts a session unless limit, if there is one, is reached.
func (h *handle) start(limit int64) bool {
	if limit == 0 {
		h.started.Add(1)
		return true
	}
	for {
		ended := h.ended.Load()
		started := h.started.Load()
		if int64(started-ended) >= limit {
			if h.ended.Load() == ended {
				return false
			}
			continue
		}
		if h.started.CompareAndSwap(started, started+1) {
			return true
		}
	}
}

// end gives a session back. One too many is not counted.
func (h *handle) end() {
	for {
		ended := h.ended.Load()
		if ended >= h.started.Load() {
			return
		}
		if h.ended.CompareAndSwap(ended, ended+1) {
			return
		}
	}
}

func (h *handle) full(limit int64) bool { return limit != 0 && h.sessions() >= limit }

const warmSteps = 32

// warmth returns how far the slow start is at now, in steps of 1 to warmSteps.
func (h *handle) warmth(now time.Time, window time.Duration) int {
	if h.warm.IsZero() || window <= 0 {
		return warmSteps
	}
	passed := now.Sub(h.warm)
	if passed >= window {
		return warmSteps
	}
	return 1 + int(max(passed, 0)*(warmSteps-1)/window)
}
