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
// threshold, 20. Its methods take one atomic operation each, need no lock and
// allocate nothing; they may be called by any number of goroutines. It must not
// be copied after first use.
//
// Traffic under direct server return shows no SYN-ACKs, so it must not be
// counted: leave SYN uncalled, or set DSR.
type SYNCount struct {
	n         atomic.Int32
	threshold int32
	dsr       bool
}

// NewSYNCount returns a SYNCount with another threshold, 1 to 1048576, or 0 for the
// default. With dsr it never fails.
func NewSYNCount(threshold int, dsr bool) (*SYNCount, error) {
	if threshold < 0 || threshold > MaxReassign {
		return nil, fmt.Errorf("healthcheck: reassign threshold %d, want 1 to %d, or 0 for 20", threshold, MaxReassign)
	}
	return &SYNCount{threshold: int32(threshold), dsr: dsr}, nil
}

func (c *SYNCount) limit() int32 {
	if c.threshold == 0 {
		return DefaultReassign
	}
	return c.threshold
}

// SYN counts a SYN sent to the port. It returns true once, for the SYN that
// exceeds the threshold: the port has failed.
func (c *SYNCount) SYN() bool {
	if c.dsr {
		return false
	}
	n := c.n.Add(1)
	if n > MaxReassign+1 {
		c.n.CompareAndSwap(n, MaxReassign+1) // far from overflow, however long the port stays dead
	}
	return n == c.limit()+1
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
func (c *SYNCount) Failed() bool { return !c.dsr && c.n.Load() > c.limit() }

// Unanswered returns the count.
func (c *SYNCount) Unanswered() int { return int(c.n.Load()) }

// Result is what to give to [Monitor.Report] when SYN returned true.
func (c *SYNCount) Result(target netip.AddrPort) Result {
	r := Failure("passive", target, fmt.Errorf("%w: more than %d SYNs in a row", ErrUnanswered, c.limit()))
	r.Final = true
	return r
}
