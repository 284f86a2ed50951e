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

// window is what a header says of a room in bytes: more than there is, rather than a window that looks closed.
func (s *Start) window(room uint32) uint16 {
	if s.scaled && room > 0 {
		room = max(room>>s.offer.Scale, 1)
	}
	return uint16(min(room, 0xffff))
}

// shown is what a client takes the window of a header for.
func (s *Start) shown(window uint16) uint32 { return uint32(window) << s.unit() }

func (s *Start) unit() uint8 {
	if s.scaled {
		return s.offer.Scale
	}
	return 0
}

// limit is how many bytes are taken where room was for most: all that the client was let send. It would have to send again what is dropped, and later
// each time, as if it were lost.
func (s *Start) limit(most int, promised uint32) int {
	if promised > uint32(most) && promised-uint32(most) < 1<<s.unit() {
		return int(promised)
	}
	return most
}
