package splice

import "time"

// Reply answers the client with data of the balancer's own, such as a redirect, and closes the connection
// after it. data must stay unchanged until the Conn is Closed.
func (c *Conn) Reply(now time.Time, data []byte, emit Emit) {
	if c.state != Collecting {
		return
	}
	c.state = Replying
	c.reply, c.replyBase = data, c.ours
	c.ours += uint32(len(data)) + 1 // and a FIN
	c.deadline = now.Add(c.limits.ReplayTime)
	c.rto = firstRTO
	c.retransmit = now.Add(c.rto)
	c.sendReply(now, emit, false)
}

// sendReply sends what the client has not acknowledged, as far as its window lets; a timer's call sends one segment.
func (c *Conn) sendReply(now time.Time, emit Emit, timer bool) {
	from := int(c.acked - c.replyBase)
	mss := int(c.start.clientMSS)
	if c.start.timestamps {
		mss -= 12
	}
	window := int(c.clientWin)
	if c.start.scaled {
		window <<= c.start.clientScale
	}
	limit := min(len(c.reply), from+window)
	if timer {
		limit = min(len(c.reply), from+max(1, min(mss, window)))
	}
	if from >= len(c.reply) {
		c.toClient(now, emit, FIN, c.replyBase+uint32(len(c.reply)), nil)
		return
	}
	for from < limit {
		to := min(from+mss, limit)
		flags := uint8(0)
		if to == len(c.reply) {
			flags = PSH | FIN
		}
		c.toClient(now, emit, flags, c.replyBase+uint32(from), c.reply[from:to])
		from = to
	}
}

// ackReply follows the client's acknowledgements of the reply and its own FIN.
func (c *Conn) ackReply(now time.Time, s *Segment, emit Emit) Event {
	// What the client still sends is acknowledged as far as it is in order, and not kept.
	if s.Seq == c.next && (len(s.Payload) > 0 || s.Flags&FIN != 0) && !c.fin {
		c.next += uint32(len(s.Payload))
		c.fin = s.Flags&FIN != 0
		c.toClient(now, emit, 0, c.ours, nil)
	} else if s.end() != s.Seq {
		c.toClient(now, emit, 0, c.ours, nil)
	}
	if before(c.acked, s.Ack) && !before(c.ours, s.Ack) {
		c.acked = s.Ack
		c.retransmit = now.Add(c.rto)
		if c.acked != c.ours {
			c.sendReply(now, emit, false)
		}
	}
	if c.acked == c.ours && c.fin {
		c.state = Closed
		return Gone
	}
	if c.acked == c.ours {
		c.retransmit = time.Time{}
	}
	return None
}
