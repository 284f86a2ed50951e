package policy

import "sync/atomic"

// Resolver holds the table in force. Look-ups take no lock and never wait for a Store;
// each sees one table as a whole. The zero Resolver is empty and ready. A Resolver must
// not be copied after first use.
type Resolver[V any] struct {
	table atomic.Pointer[Table[V]]
}

// Load returns the table in force, or nil, which is an empty table. A caller that looks
// up many packets loads it once for all of them.
func (r *Resolver[V]) Load() *Table[V] { return r.table.Load() }

// Store puts t in force; nil is an empty table.
func (r *Resolver[V]) Store(t *Table[V]) { r.table.Store(t) }

// CompareAndSwap puts t in force if old is still the table that is. It lets several
// writers derive tables from each other without losing a change.
func (r *Resolver[V]) CompareAndSwap(old, t *Table[V]) (swapped bool) {
	return r.table.CompareAndSwap(old, t)
}

// Lookup returns the value of the most specific rule that holds p, in the table in
// force.
func (r *Resolver[V]) Lookup(p Packet) (v V, ok bool) { return r.Load().Lookup(p) }
