package splice

// newest is the segment of a peer that its window was taken from last. The zero newest is of none.
type newest struct {
	end, ack uint32
	any      bool
}

// window reports whether the window of a segment is to be taken for the peer's, and takes note of it: not that of one which was overtaken
// (RFC 9293, 3.10.7.4). Of segments that nothing tells apart the largest window counts, as none should be taken back (3.8.6). had and
// win are in one unit.
func (n *newest) window(s *Segment, had, win int) bool {
	if n.any && (before(s.Ack, n.ack) || s.Ack == n.ack && (before(s.end(), n.end) || s.end() == n.end && win <= had)) {
		return false
	}
	*n = newest{s.end(), s.Ack, true}
	return true
}
