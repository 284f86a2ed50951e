package healthcheck

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
)

// The reassign threshold: its default and the most it can be. (The ADX allows 6
// to 4000.)
const (
	DefaultReassign = 20
	MaxReassign     = 1 << 20
)

// ErrUnanswered is wrapped by the error of [SYNCount.Result].
var ErrUnanswered = errors.New("connections unanswered")

// SYNCount is the passive check of a port: more SYNs in a row than the reassign
// threshold, with no SYN-ACK between, fail it. The zero SYNCount has the default
// threshold, 20. Its methods take one atomic operation or two, need no lock and
// allocate nothing; they may be called by any number of goroutines. It must not
// be copied after first use.
//
// Traffic under direct server return shows no SYN-ACKs, so it must not be
// counted: leave SYN uncalled, or set DSR.
type SYNCount struct {
	n         atomic.Int32
	threshold atomic.Int32 // 0: the default, negative: it never fails
}

// NewSYNCount returns a SYNCount with another threshold, 1 to 1048576, 0 for the
// default, or negative for none. Without a threshold, and with dsr, it never fails.
func NewSYNCount(threshold int, dsr bool) (*SYNCount, error) {
	if threshold > MaxReassign {
		return nil, fmt.Errorf("healthcheck: reassign threshold %d, want 1 to %d, 0 for 20, or negative for none", threshold, MaxReassign)
	}
	c := new(SYNCount)
	c.set(threshold, dsr)
	return c, nil
}

func (c *SYNCount) set(threshold int, dsr bool) {
	if dsr || threshold < 0 {
		threshold = -1
	}
	if c.threshold.Swap(int32(threshold)) != int32(threshold) {
		c.n.Store(0) // or it could be past the new threshold unnoticed
	}
}

// limit returns the threshold, or a negative number.
func (c *SYNCount) limit() int32 {
	if n := c.threshold.Load(); n != 0 {
		return n
	}
	return DefaultReassign
}

// SYN counts a SYN sent to the port. It returns true once, for the SYN that
// exceeds the threshold: the port has failed, or cannot have answered yet. Where
// connections come in bursts, look whether it has [SYNCount.Failed] a moment later.
func (c *SYNCount) SYN() bool {
	limit := c.limit()
	if limit < 0 {
		return false
	}
	n := c.n.Add(1)
	if n > MaxReassign+1 {
		c.n.CompareAndSwap(n, MaxReassign+1) // far from overflow, however long the port stays dead
	}
	return n == limit+1
}

// SYNACK clears the count: the port answered. Call it also when the port is up
// again after it failed, so that the count can exceed the threshold anew.
func (c *SYNCount) SYNACK() {
	// Mostly there is nothing to clear, and a plain load keeps the cache line
	// shared between cores.
	if c.n.Load() != 0 {
		c.n.Store(0)
	}
}

// Failed reports whether the threshold is exceeded.
func (c *SYNCount) Failed() bool {
	limit := c.limit()
	return limit >= 0 && c.n.Load() > limit
}

// Unanswered returns the count.
func (c *SYNCount) Unanswered() int { return int(c.n.Load()) }

// Result is what to give to [Monitor.Report] when SYN returned true.
func (c *SYNCount) Result(target netip.AddrPort) Result {
	err := ErrUnanswered
	if limit := c.limit(); limit >= 0 {
		err = fmt.Errorf("%w: more than %d SYNs in a row", ErrUnanswered, limit)
	}
	r := Failure("passive", target, err)
	r.Final = true
	return r
}
