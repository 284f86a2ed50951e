package splice

import "time"

// replyFlight is how many segments of a reply are on their way at a time (RFC 6928).
const replyFlight = 10

// Reply answers the client with data of the balancer's own, such as a redirect, and closes the connection
// after it. data must stay unchanged until the Conn is Closed.
func (c *Conn) Reply(now time.Time, data []byte, emit Emit) {
	if c.state != Collecting {
		return
	}
	c.state = Replying
	c.reply, c.replyBase, c.replySent = data, c.ours, 0
	c.ours += uint32(len(data)) + 1 // and a FIN
	c.deadline = now.Add(c.limits.ReplayTime)
	c.startTimer(now, firstRTO)
	c.sendReply(now, emit, false)
}

// sendReply sends what has not been sent, as far as the client's window and the flight let. A timer's call sends one segment again that is not
// acknowledged, at least a byte of it, and counts what was sent behind it as lost.
func (c *Conn) sendReply(now time.Time, emit Emit, timer bool) {
	acked := int(c.acked - c.replyBase)
	mss := c.start.segmentSize(c.start.clientMSS)
	window := int(c.clientWin)
	if c.start.scaled {
		window <<= c.start.clientScale
	}
	window = min(window, replyFlight*mss)
	if timer {
		c.replySent = acked
		window = max(1, min(mss, window))
	}
	from := max(acked, c.replySent)
	for limit := min(len(c.reply), acked+window); from < limit; {
		to := min(from+mss, limit)
		flags := uint8(0)
		if to == len(c.reply) {
			flags = PSH | FIN
		}
		c.toClient(now, emit, flags, c.replyBase+uint32(from), c.reply[from:to])
		from = to
		if from == len(c.reply) {
			from++ // the FIN
		}
	}
	if from == len(c.reply) {
		c.toClient(now, emit, FIN, c.replyBase+uint32(from), nil)
		from++
	}
	c.replySent = from
}

// ackReply follows the client's acknowledgements of the reply and its own FIN.
func (c *Conn) ackReply(now time.Time, s *Segment, emit Emit) Event {
	// What the client still sends is acknowledged as far as it is in order, and not kept.
	expected := c.expected()
	if skip := expected - s.Seq; !c.fin && skip <= uint32(len(s.Payload)) {
		c.next += uint32(len(s.Payload)) - skip
		c.fin = s.Flags&FIN != 0
	}
	answer := s.end() != s.Seq || s.Seq != expected
	if before(c.acked, s.Ack) {
		c.acked = s.Ack
		c.progress(now)
	}
	if c.acked == c.ours {
		c.retransmit = time.Time{}
	}
	sent := c.replySent
	if c.acked != c.ours {
		c.sendReply(now, emit, false)
	}
	if answer && c.replySent == sent {
		c.toClient(now, emit, 0, c.replyBase+uint32(max(sent, int(c.acked-c.replyBase))), nil)
	}
	if c.acked == c.ours && c.fin {
		c.state = Closed
		return Gone
	}
	return None
}
