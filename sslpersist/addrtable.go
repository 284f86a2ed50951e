package sslpersist

import (
	"iter"
	"net/netip"
	"time"
)

// AddrTable is what a [Farm] knows of client addresses: the node that each was sent to,
// which is asked when a connection shows neither a session nor a ticket whose server is
// known. IPv4 addresses and their IPv4-mapped forms are one, zones do not count, and the zero Addr is never stored. Idle
// times, limits and forgetting are those of [Table].
//
// A Farm makes it, by [Settings.ClientAddr]. It is safe for concurrent use and must not be
// copied.
type AddrTable[N comparable] struct{ e *engine[N] }

const addrLen = 16

// newAddrTable wants a configuration that is good and complete.
func newAddrTable[N comparable](c *Config[N]) *AddrTable[N] {
	e := newEngine(c.MaxEntries, ttlFunc(c.TTL, c.TTLOf), c.Feed)
	e.want = addrLen
	return &AddrTable[N]{e}
}

// addrKey is the key of a client's address: both families in one space, as elsewhere.
func addrKey(a netip.Addr) key {
	b := a.As16()
	return makeKey(b[:])
}

// PeekAt returns the node a client was sent to, and does not count as a use.
func (t *AddrTable[N]) PeekAt(now time.Time, client netip.Addr) (n N, ok bool) {
	if !client.IsValid() {
		return n, false
	}
	k := addrKey(client)
	return t.e.lookup(&k, t.e.nano(now), false)
}

// Delete removes one address.
func (t *AddrTable[N]) Delete(client netip.Addr) {
	if client.IsValid() {
		k := addrKey(client)
		t.e.remove(&k)
	}
}

// Len returns the number of addresses, expired ones not yet freed included.
func (t *AddrTable[N]) Len() int { return t.e.owners.len() }

// All returns the live bindings, in no order, as [Table.All] does.
func (t *AddrTable[N]) All() iter.Seq2[netip.Addr, N] {
	return func(yield func(netip.Addr, N) bool) {
		for b := range t.e.all(t.e.nano(time.Now())) {
			if !yield(netip.AddrFrom16([addrLen]byte(b.k.b[:])).Unmap(), b.node) {
				return
			}
		}
	}
}

// Sweep frees up to limit dead entries and returns how many they were.
func (t *AddrTable[N]) Sweep(now time.Time, limit int) (freed int) {
	return t.e.sweep(t.e.nano(now), limit)
}

// Changes is [Table.Changes] for client addresses.
func (t *AddrTable[N]) Changes(dst []Delta[N], after uint64) ([]Delta[N], error) {
	return t.e.changes(dst, after)
}

// LastSeq is [Table.LastSeq] for client addresses.
func (t *AddrTable[N]) LastSeq() uint64 { return t.e.lastSeq() }

// Apply is [Table.Apply] for client addresses.
func (t *AddrTable[N]) Apply(now time.Time, d Delta[N]) error { return t.e.apply(now, d) }

// Stats returns the counters of t.
func (t *AddrTable[N]) Stats() TableStats { return t.e.statistics() }
