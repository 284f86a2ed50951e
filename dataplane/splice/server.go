package splice

import "time"

// Connect opens the connection to a server, or to the next one after ServerLost. The SYN carries the client's own sequence number and options.
func (c *Conn) Connect(now time.Time, emit Emit) {
	if c.state != Collecting && c.state != Connecting {
		return
	}
	c.state = Connecting
	c.began = now
	c.deadline = now.Add(c.limits.ServerTime)
	c.startTimer(now, firstRTO)
	c.sendSYN(now, emit)
}

func (c *Conn) sendSYN(now time.Time, emit Emit) {
	c.synSent = now
	s := &c.out
	*s = Segment{Seq: c.start.clientISN, Flags: SYN, Window: 0xffff, Options: Options{MSS: c.start.clientMSS}}
	s.Options.HasScale, s.Options.Scale = c.start.scaled, c.start.clientScale
	s.Options.SACKPermitted = c.start.sack
	if c.start.timestamps {
		s.Options.Timestamps, s.Options.TSVal = true, c.clientVal
	}
	if c.clientWin != 0 {
		s.Window = c.clientWin
		if c.start.scaled {
			s.Window = uint16(min(uint32(c.clientWin)<<c.start.clientScale, 0xffff))
		}
	}
	emit(Server, s)
}

func (c *Conn) serverLost() Event {
	c.state = Collecting // of a kind: the decision is the caller's again
	c.retransmit = time.Time{}
	c.deadline = c.began.Add(2 * c.limits.ServerTime)
	return ServerLost
}

// FromServer takes a segment of the server's. forward says that it is to be translated and sent to the client.
func (c *Conn) FromServer(now time.Time, s *Segment, emit Emit) (ev Event, forward bool) {
	switch c.state {
	case Connecting:
		return c.synAnswered(now, s, emit), false
	case Replaying:
		return c.replayAnswered(now, s, emit)
	case Spliced:
		return None, true
	}
	return None, false
}

func (c *Conn) synAnswered(now time.Time, s *Segment, emit Emit) Event {
	isn := c.start.clientISN
	switch {
	case s.Flags&ACK == 0 || s.Ack != isn+1:
		if s.Flags&(ACK|RST) == ACK {
			emit(Server, &Segment{Seq: s.Ack, Flags: RST}) // an old connection of the same ports (RFC 9293, 3.10.7.3)
		}
		return None
	case s.Flags&RST != 0:
		return c.serverLost()
	case s.Flags&SYN == 0:
		return None
	}
	o := &s.Options
	if c.start.timestamps && !o.Timestamps || c.start.sack && !o.SACKPermitted || c.start.scaled && !o.HasScale {
		emit(Server, &Segment{Seq: isn + 1, Ack: s.Seq + 1, Flags: RST | ACK})
		return c.serverLost()
	}
	c.serverISN, c.serverVal, c.scale = s.Seq, o.TSVal, 0
	if c.start.scaled {
		c.scale = o.Scale // one that was not offered is none (RFC 7323, 1.3)
	}
	c.serverWin = s.Window // that of a SYN is not scaled (RFC 7323, 2.2)
	c.serverNew = newest{}
	mss := o.MSS
	if mss == 0 {
		mss = 536
	}
	c.mss = c.start.segmentSize(mss)
	c.tr = c.translation(now, s.Seq+1, o.TSVal, c.scale)
	c.state = Replaying
	if c.followed {
		return Established
	}
	c.deadline = now.Add(c.limits.ReplayTime)
	c.startTimer(now, c.roundTrips(now, leastRTO))
	c.sent, c.high, c.flight, c.flightFIN = isn+1, isn+1, 0, false
	c.gaps = nil // what is out of order comes again, straight to the server
	if !c.replay(emit, false) {
		c.toServer(emit, ACK, isn+1, nil)
	}
	if c.starved {
		c.remind(now, emit)
	}
	return Established
}

// leastRTO is after how long a server is sent the replay again, at least.
const leastRTO = 200 * time.Millisecond

// roundTrips is two of them, as the handshake shows, within bounds. Counted is from the last SYN, which the answer need not be to (RFC 6298, 3): what is sent too early
// costs a segment, but a timer that began with a lost SYN would be too long for all that follows.
func (c *Conn) roundTrips(now time.Time, least time.Duration) time.Duration {
	return min(max(2*now.Sub(c.synSent), least), 3*time.Second)
}

// translation is that of a server whose next byte, clock and window scale are these.
func (c *Conn) translation(now time.Time, next, val uint32, scale uint8) Translation {
	tr := Translation{Seq: c.ours - next}
	if c.start.timestamps {
		// The server's clock goes on where ours stopped.
		tr.Timestamps, tr.First = true, val
		tr.TS = later(c.lastVal, c.start.clock(now)) - val
	}
	if c.start.scaled {
		tr.Shift = int8(scale) - int8(c.start.offer.Scale)
	}
	return tr
}

// replay sends the server the data collected, see outbox.replay.
func (c *Conn) replay(emit Emit, timer bool) (any bool) {
	return c.outbox.replay(c.start.clientISN+1, c.data[:c.got], c.fin, c.sent, int(c.serverWin), timer, func(flags uint8, seq uint32, payload []byte) {
		c.toServer(emit, flags, seq, payload)
	})
}

func (c *Conn) toServer(emit Emit, flags uint8, seq uint32, payload []byte) {
	s := &c.out
	*s = Segment{Seq: seq, Ack: c.acked - c.tr.Seq, Flags: flags, Window: c.clientWin, Payload: payload}
	c.high = later(c.high, s.end())
	if c.start.timestamps {
		s.Options.Timestamps, s.Options.TSVal, s.Options.TSEcr = true, c.clientVal, c.serverVal
	}
	emit(Server, s)
}

// replayAnswered follows the server's acknowledgements until it has all that was acknowledged to the client.
func (c *Conn) replayAnswered(now time.Time, s *Segment, emit Emit) (Event, bool) {
	seq := s.Seq + c.tr.Seq // as the client knows it
	if s.Flags&RST != 0 {
		// The client gets the reset, translated, and judges it. Only one that it cannot doubt ends the replay: a forged one must not.
		switch {
		case seq == c.acked || seq == c.ours:
			c.state = Spliced
			return Done, true
		case before(seq, c.acked) || seq-c.acked > 1<<30:
			return None, false
		}
		return None, true
	}
	if s.Flags&SYN != 0 {
		// Our ACK was lost: the SYN-ACK comes again.
		if s.Seq == c.serverISN {
			c.toServer(emit, ACK, c.sent, nil)
		}
		return None, false
	}
	if s.Flags&ACK == 0 || before(s.Ack, c.start.clientISN+1) || before(c.high, s.Ack) {
		return None, false // acknowledges what was never sent
	}
	if s.Options.Timestamps && !before(s.Options.TSVal, c.serverVal) {
		c.serverVal = s.Options.TSVal
	}
	if end := s.end() + c.tr.Seq; end-c.acked < 1<<30 {
		c.ours = later(c.ours, end)
	}
	if window := uint16(min(int(s.Window)<<c.scale, 0xffff)); c.serverNew.window(s, int(c.serverWin), int(window)) {
		if c.serverWin == 0 && window != 0 {
			c.flight, c.flightFIN = 0, false // what a closed window was probed with may have been dropped
		}
		c.serverWin = window
	}
	replayed := !before(c.sent, c.expected())
	if before(c.sent, s.Ack) {
		c.sent = s.Ack
		c.progress(now)
	}
	if before(c.sent, c.expected()) {
		c.replay(emit, false)
		return None, true
	}
	if c.starved {
		if !replayed {
			c.startTimer(now, leastRTO)
		}
		return None, true // until the client says that it knows what this segment tells it
	}
	if c.keepBack(s) {
		return None, false
	}
	c.state = Spliced
	return Done, true
}
