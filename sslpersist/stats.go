package sslpersist

// TableStats counts what happened to a table since it was made. The zero value is that of
// a new one.
type TableStats struct {
	Entries   int    // now, dead ones not yet freed included
	Hits      uint64 // lookups that found a live entry
	Misses    uint64 // lookups that did not
	Learned   uint64 // entries made
	Refreshed uint64 // uses of an entry by a server's reply or a packet
	Moved     uint64 // entries that another node claimed
	Shared    uint64 // claims of another node that were not followed (ticket key names)
	Refused   uint64 // entries not made: full of live ones
	Expired   uint64 // entries freed since they were idle too long
	Forgotten uint64 // entries freed since their node was forgotten
}

func (e *engine[N]) statistics() TableStats {
	return TableStats{
		Entries:   int(e.slots.Load()),
		Hits:      e.stats.hits.Load(),
		Misses:    e.stats.misses.Load(),
		Learned:   e.stats.learned.Load(),
		Refreshed: e.stats.refreshed.Load(),
		Moved:     e.stats.moved.Load(),
		Shared:    e.stats.shared.Load(),
		Refused:   e.stats.refused.Load(),
		Expired:   e.stats.expired.Load(),
		Forgotten: e.stats.forgotten.Load(),
	}
}
