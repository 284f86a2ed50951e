package clienttable

// TCPState follows one TCP session by its packets, in 24 bytes without pointers or
// padding, to be kept in the value of its entry. It judges only what decides for how
// long the entry lives; it is no firewall.
//
// The zero TCPState has seen nothing and expects to see both directions; see
// [OneWayTCP]. It may be copied and compared. It is not safe for concurrent use:
// change it within [Table.Update].
//
//	         SYN>            SYN+ACK<                ACK>
//	none ─────────▶ SynSent ─────────▶ SynReceived ─────────▶ Established
//	Established ──FIN──▶ FinClient or FinServer ──FIN of the other──▶ Closing ──both acknowledged──▶ Closed
//	any but none ──RST that fits──▶ Reset
//	Closed, Reset ──SYN>──▶ SynSent
//
// A session whose beginning was not seen is taken for established.
type TCPState struct {
	end   [2]uint32 // by direction: the sequence number after the last one sent
	ack   [2]uint32 // by direction: the last acknowledgement sent
	syn   uint32    // sequence number after a SYN that came in mid-session
	phase TCPPhase
	bits  uint8
	fins  uint8
	_     uint8
}

// Bits of TCPState.
const (
	tcpOneWay   = 1 << 0
	tcpEndKnown = 1 << 1 // << direction
	tcpAckKnown = 1 << 3 // << direction
	tcpSynKnown = 1 << 5
	tcpOldAck   = 1 << 6 // syn is an acknowledgement of an older session
)

// OneWayTCP returns the state of a session of which only packets from the client
// are seen, because the server answers directly.
func OneWayTCP() TCPState { return TCPState{bits: tcpOneWay} }

// Phase returns where the session is.
func (s TCPState) Phase() TCPPhase { return s.phase }

// OneWay reports whether only packets from the client are expected.
func (s TCPState) OneWay() bool { return s.bits&tcpOneWay != 0 }

// HalfOpen reports whether the handshake has begun and is not complete.
func (s TCPState) HalfOpen() bool { return s.phase == TCPSynSent || s.phase == TCPSynReceived }

// Ended reports whether the session has ended.
func (s TCPState) Ended() bool { return s.phase == TCPClosed || s.phase == TCPReset }

// Reset returns the sequence and acknowledgement numbers of an RST that the side
// which sends in direction d would accept from its peer. ok is false if too little
// has been seen to know, or if the session has ended.
func (s TCPState) Reset(d Dir) (seq, ack uint32, ok bool) {
	if s.phase == TCPNone || s.Ended() {
		return 0, 0, false
	}
	// An RST is accepted at exactly the next number expected, which is what the
	// receiver last acknowledged (RFC 5961, section 3.2).
	d &= 1
	switch {
	case s.ackKnown(d):
		return s.ack[d], s.end[d], s.endKnown(d)
	case s.endKnown(d ^ 1):
		return s.end[d^1], s.end[d], s.endKnown(d)
	}
	// In answer to a SYN what counts is the acknowledgement (RFC 9293, 3.5.2).
	return 0, s.end[d], s.endKnown(d)
}

func (s *TCPState) endKnown(d Dir) bool { return s.bits&(tcpEndKnown<<d) != 0 }
func (s *TCPState) ackKnown(d Dir) bool { return s.bits&(tcpAckKnown<<d) != 0 }

func (s *TCPState) setEnd(d Dir, end uint32) {
	s.end[d] = end
	s.bits |= tcpEndKnown << d
}

func (s *TCPState) setAck(d Dir, ack uint32) {
	s.ack[d] = ack
	s.bits |= tcpAckKnown << d
}

// begin starts over with a SYN from the client.
func (s *TCPState) begin(end uint32) {
	*s = TCPState{bits: s.bits & tcpOneWay, phase: TCPSynSent}
	s.setEnd(FromClient, end)
}

// Update takes a packet into account: its direction, the flags, sequence and
// acknowledgement number of its header, and the length of its payload.
func (s *TCPState) Update(d Dir, flags uint8, seq, ack uint32, payload int) TCPEvent {
	d &= 1
	end := seq + uint32(payload)
	if flags&TCPSyn != 0 {
		end++
	}
	if flags&TCPFin != 0 {
		end++
	}
	switch {
	case flags&TCPRst != 0:
		return s.reset(d, flags, seq, ack)
	case flags&TCPSyn != 0:
		// Data in a SYN (RFC 7413) may be acknowledged or not, and is sent again if not.
		return s.open(d, flags, seq+1, ack)
	}
	switch s.phase {
	case TCPNone: // its beginning was not seen
		s.phase = TCPEstablished
		if e := s.data(d, flags, end, ack); e != TCPSame {
			return e
		}
		return TCPStarted
	case TCPSynSent, TCPSynReceived:
		if !s.handshake(d, flags, end, ack) {
			return TCPSame
		}
		if e := s.data(d, flags, end, ack); e == TCPEnded {
			return e
		}
		return TCPOpened // also if it is half-closed at once: no longer does it live as a SYN does
	case TCPClosed, TCPReset:
		return TCPSame
	}
	return s.data(d, flags, end, ack)
}

// maxSYNData is how much data a SYN can carry: what fits into one packet.
const maxSYNData = 1<<16 - 1

// open handles a SYN; end is the number after it, and before any data with it.
func (s *TCPState) open(d Dir, flags uint8, end, ack uint32) TCPEvent {
	if flags&TCPAck == 0 && d == FromClient {
		switch s.phase {
		case TCPNone:
			s.begin(end)
			return TCPStarted
		case TCPSynSent:
			if s.end[d] == end {
				return TCPSame // sent again
			}
			s.begin(end)
			return TCPRestarted
		case TCPClosed, TCPReset:
			s.begin(end)
			return TCPRestarted
		case TCPSynReceived:
			if s.end[d] == end {
				return TCPSame
			}
		}
		// A SYN within a session: the client may have forgotten it and use the port
		// again. The server will object (RFC 5961, section 4), or answer.
		if s.OneWay() && s.phase != TCPSynReceived && end != s.end[d] && int32(end-s.end[d]) > 0 {
			s.begin(end)
			return TCPRestarted
		}
		s.syn = end
		s.bits |= tcpSynKnown
		s.bits &^= tcpOldAck
		return TCPSame
	}
	if d == FromServer {
		switch {
		case s.phase == TCPNone: // the client's SYN was not seen
			s.setEnd(FromServer, end)
			if flags&TCPAck != 0 {
				s.setAck(FromServer, ack)
				s.setEnd(FromClient, ack)
			}
			s.phase = TCPSynReceived
			return TCPStarted
		case s.phase == TCPSynSent && flags&TCPAck == 0:
			s.setEnd(FromServer, end)
			s.phase = TCPSynReceived
		case s.HalfOpen() && flags&TCPAck != 0 && ack-s.end[FromClient] <= maxSYNData:
			// A server that had given up, and is asked again, begins at another
			// number: the last one counts.
			s.setEnd(FromServer, end)
			s.setAck(FromServer, s.end[FromClient])
			s.phase = TCPSynReceived
		case s.bits&tcpSynKnown != 0 && flags&TCPAck != 0 && ack-s.syn <= maxSYNData:
			s.begin(s.syn)
			s.setEnd(FromServer, end)
			s.setAck(FromServer, s.end[FromClient])
			s.phase = TCPSynReceived
			return TCPRestarted
		}
	}
	// Anything else with a SYN is old, sent again, or part of a simultaneous open,
	// which the acknowledgements complete.
	return TCPSame
}

// handshake reports whether a packet without SYN completes the handshake.
func (s *TCPState) handshake(d Dir, flags uint8, end, ack uint32) bool {
	if flags&TCPAck == 0 {
		return false
	}
	if d == FromServer {
		if ack-s.end[FromClient] > maxSYNData {
			// The server still has an older session with these ports and objects
			// to the SYN; the client will reset that one, by these numbers.
			s.syn = ack
			s.bits |= tcpOldAck
			s.bits &^= tcpSynKnown
			return false
		}
		return false // early data, or a keep-alive: the client has yet to confirm
	}
	// The client proves that it has seen the server's answer. A SYN and a blind ACK
	// do not make an established session, which no flood may evict.
	if s.OneWay() || s.endKnown(FromServer) && ack-s.end[FromServer] < 1<<16 && end-s.end[FromClient] < window {
		s.phase = TCPEstablished
		return true
	}
	return false
}

// window bounds how far beyond what its peer has acknowledged a side can send: the
// largest window there is (RFC 7323, section 2.3).
const window = 1 << 30

// data handles a packet with neither SYN nor RST in a session that is open.
func (s *TCPState) data(d Dir, flags uint8, end, ack uint32) TCPEvent {
	o := d ^ 1
	fits := !s.ackKnown(o) || int32(end-s.ack[o]) <= window && int32(end-s.ack[o]) >= -window
	if fits && s.fins&(1<<d) == 0 && (!s.endKnown(d) || int32(end-s.end[d]) > 0) {
		s.setEnd(d, end)
	}
	if flags&TCPAck != 0 && (!s.endKnown(o) || int32(ack-s.end[o]) <= 0) {
		if !s.ackKnown(d) || int32(ack-s.ack[d]) > 0 {
			s.setAck(d, ack)
		}
	}
	half := false
	if flags&TCPFin != 0 && fits && end == s.end[d] && s.fins&(1<<d) == 0 {
		half = s.fins&3 == 0
		s.fins |= 1 << d
	}
	for side := FromClient; side <= FromServer; side++ {
		if s.fins&(1<<side) != 0 && s.ackKnown(side^1) && s.ack[side^1] == s.end[side] {
			s.fins |= 4 << side
		}
	}
	switch {
	case s.fins == 15, s.fins&1 != 0 && s.OneWay():
		s.phase = TCPClosed
		return TCPEnded
	case s.fins&3 == 3:
		s.phase = TCPClosing
	case s.fins&1 != 0:
		s.phase = TCPFinClient
	case s.fins&2 != 0:
		s.phase = TCPFinServer
	}
	if half {
		return TCPHalfClosed
	}
	return TCPSame
}

// reset handles an RST. It fits if its sequence number lies between what the peer
// has acknowledged and what has been sent; before the server has answered, if it
// acknowledges the SYN.
func (s *TCPState) reset(d Dir, flags uint8, seq, ack uint32) TCPEvent {
	o := d ^ 1
	fits := false
	switch {
	case s.phase == TCPNone:
		return TCPIgnored
	case s.Ended():
		return TCPSame
	case d == FromClient && s.bits&tcpOldAck != 0 && seq == s.syn:
		return TCPSame // the answer to the server's objection, see handshake
	case s.phase == TCPSynSent && d == FromServer:
		fits = flags&TCPAck != 0 && ack-s.end[FromClient] <= maxSYNData
	case s.endKnown(d) && s.ackKnown(o):
		fits = int32(seq-s.ack[o]) >= 0 && int32(seq-s.end[d]) <= 0
	case s.endKnown(d):
		fits = seq == s.end[d]
	case s.ackKnown(o):
		fits = seq == s.ack[o]
	}
	if !fits {
		return TCPIgnored
	}
	s.phase = TCPReset
	return TCPEnded
}
