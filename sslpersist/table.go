package sslpersist

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// Table remembers which node N issued each session ID; N is the caller's handle of a
// node. An entry is gone once it was idle for the time of its node, and is then invisible
// at once; its place is taken back by insertions, by Sweep or by Run. A full table
// refuses new IDs and never evicts a live one, so that an attacker can keep new clients
// from being remembered, but not have old ones forgotten.
//
// Make one with [NewTable]. It is safe for concurrent use and must not be copied. Methods
// whose names end in At take the time from the caller; the others ask the clock. Callers'
// times may differ a little, and go backwards: a time before the last use changes nothing.
type Table[N comparable] struct{ e *engine[N] }

// NewTable returns an empty table, or every fault of cfg at once.
func NewTable[N comparable](cfg *Config[N]) (*Table[N], error) {
	var c Config[N]
	if cfg != nil {
		c = *cfg
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.MaxEntries == 0 {
		c.MaxEntries = DefaultMaxEntries
	}
	return &Table[N]{newEngine(c.MaxEntries, ttlFunc(c.TTL, c.TTLOf), c.Feed)}, nil
}

// Lookup returns the node id is bound to, and counts as a use of it.
func (t *Table[N]) Lookup(id SessionID) (n N, ok bool) { return t.LookupAt(time.Now(), id) }

// LookupAt is Lookup at a given time.
func (t *Table[N]) LookupAt(now time.Time, id SessionID) (n N, ok bool) {
	if id.IsZero() {
		return n, false
	}
	return t.e.lookup(&id.k, t.e.nano(now), true)
}

// PeekAt is LookupAt but does not count as a use.
func (t *Table[N]) PeekAt(now time.Time, id SessionID) (n N, ok bool) {
	if id.IsZero() {
		return n, false
	}
	return t.e.lookup(&id.k, t.e.nano(now), false)
}

// Learn binds id to n, also if it was bound to another node: the last learner wins. The
// empty ID is never stored. It returns ErrFull if there is no room, which is counted.
func (t *Table[N]) Learn(id SessionID, n N) error { return t.LearnAt(time.Now(), id, n) }

// LearnAt is Learn at a given time.
func (t *Table[N]) LearnAt(now time.Time, id SessionID, n N) error {
	if id.IsZero() {
		return nil
	}
	_, err := t.e.store(&id.k, n, t.e.nano(now), false, true)
	return err
}

// RefreshAt counts as a use of id if it is bound to n, and reports whether it is. It
// never creates an entry.
func (t *Table[N]) RefreshAt(now time.Time, id SessionID, n N) bool {
	return !id.IsZero() && t.e.refresh(&id.k, n, t.e.nano(now))
}

// Delete removes one ID.
func (t *Table[N]) Delete(id SessionID) { t.e.remove(&id.k) }

// Forget makes every ID bound to n invisible at once, whatever their number, and returns
// that number. IDs learned for n later are good.
func (t *Table[N]) Forget(n N) (sessions int) { return t.e.forget(n) }

// SetTTL changes the idle time of the IDs bound to n, those it has and those to come, and
// reports whether n is known. A node forgotten, or not known yet, takes Config.TTLOf.
func (t *Table[N]) SetTTL(n N, ttl time.Duration) (bool, error) {
	if ttl <= 0 {
		return false, fmt.Errorf("sslpersist: TTL is %v: want more than 0", ttl)
	}
	return t.e.setTTL(n, ttl), nil
}

// Len returns the number of IDs, expired ones not yet freed included.
func (t *Table[N]) Len() int { return t.e.owners.len() }

// All returns the live bindings, in no order. Each is a copy made while the iteration
// goes on; what changes meanwhile may or may not be seen.
func (t *Table[N]) All() iter.Seq2[SessionID, N] {
	return func(yield func(SessionID, N) bool) {
		for b := range t.e.all(t.e.nano(time.Now())) {
			if !yield(SessionID{b.k}, b.node) {
				return
			}
		}
	}
}

// Sweep frees up to limit dead entries and returns how many they were.
func (t *Table[N]) Sweep(now time.Time, limit int) (freed int) {
	return t.e.sweep(t.e.nano(now), limit)
}

// Run sweeps every second until ctx is done, and returns its error. It is a convenience:
// without it dead entries are freed when their place is needed.
func (t *Table[N]) Run(ctx context.Context) error {
	return runSweeps(ctx, func(now time.Time) { t.Sweep(now, sweepAtOnce) })
}

const (
	sweepEvery  = time.Second
	sweepAtOnce = 1 << 16
)

func runSweeps(ctx context.Context, sweep func(time.Time)) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			sweep(now)
		}
	}
}

// Stats returns the counters of t.
func (t *Table[N]) Stats() TableStats { return t.e.statistics() }
