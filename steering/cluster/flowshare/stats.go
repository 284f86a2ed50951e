package flowshare

// Stats are the counters of a [Layer]. It is plain data.
type Stats struct {
	// Flows are the entries here, Tombstones those that were taken back a while ago.
	Flows, Tombstones int
	// Own are those this balancer answers for, tombstones included.
	Own int
	// Pending are changes not yet sent.
	Pending int

	// Announced and Withdrawn count the calls that had something to do. Alike needed no
	// message, Adopted had an origin that is gone.
	Announced, Withdrawn, Alike, Adopted uint64
	// Refused flows found no room, or said too much.
	Refused uint64
	// Conflicts are flows that two balancers gave to different nodes.
	Conflicts uint64
	// Refuted are entries others had of this balancer that it does not know of.
	Refuted uint64
	// Orphaned entries ended because their origin did not come back in time.
	Orphaned uint64
	// Moved are entries that were told to another holder because of a change of members.
	Moved uint64

	// Local lookups by Find needed no ask, Asks are frames that ask, Answered those answered
	// here. Found and NotFound are the ends of asks, TimedOut among the latter; AsksRefused
	// were too many.
	Local, Asks, Answered, Found, NotFound, TimedOut, AsksRefused uint64

	FramesSent, BytesSent, ItemsSent             uint64 // to all members
	FramesReceived, BytesReceived, ItemsReceived uint64 // from all members

	// Busy: the transport had no room. Throttled: the rate did not allow it. Both are tried again.
	Busy, Throttled uint64
	// Overflowed are changes that found no room in a queue and were left to a comparison.
	Overflowed uint64
	// Lost are the losses the transport told of.
	Lost uint64
	// Comparisons begun here; those asked of this member by one that sees other members; groups
	// that differed; and items sent because of that.
	Comparisons, ViewsDiffer, GroupsDiffer, Repaired uint64

	// Malformed frames were refused; Strangers are no members; Astray items should be
	// elsewhere; Unasked answers fit no ask, as those that come too late.
	Malformed, Strangers, Astray, Unasked uint64
}

// Stats returns the counters.
func (l *Layer) Stats() Stats {
	l.lock()
	defer l.unlock()
	l.drain()
	s := l.stats
	s.Flows = l.store.Len() - s.Tombstones
	s.Own = int(l.origins.refs[l.self]) - 1
	for _, p := range l.peers {
		s.Pending += len(p.pending)
	}
	return s
}
