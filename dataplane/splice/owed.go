package splice

import "time"

// ackDelay is how long an acknowledgement may wait for a segment to ride on: Linux's least, far below the 500 ms that RFC 9293, 3.8.6.3 allows, and below the
// least time after which clients send again.
const ackDelay = 40 * time.Millisecond

// owed is an acknowledgement that the client has not got yet. The zero owed is none.
type owed struct {
	patient bool // the caller settles
	ack     bool // there is one
	waits   bool // it may ride on the server's answer
	kept    bool // the server's own was kept back, too
	due     time.Time
}

// Patient has acknowledgements of the client's data wait until the caller has looked at these: it must call Settle after it has acted on what FromClient
// returned.
func (c *Conn) Patient() { c.owed.patient = true }

// Settle sends the acknowledgement that the client is owed. With question set the client is known to wait for an answer before it says more. Then
// the acknowledgement rides on the server's first segment with data, if that comes soon: the client neither needs the balancer's own nor the server's bare one.
func (c *Conn) Settle(now time.Time, question bool, emit Emit) {
	switch {
	case !c.owed.ack || c.owed.waits || c.state > Replaying:
	case question && c.state == Connecting:
		c.owed.waits, c.owed.due = true, now.Add(ackDelay)
	default:
		c.toClient(now, emit, 0, c.ours, nil)
	}
}

// owe reports whether the acknowledgement of a segment, of which the client's stream has n bytes more, can be left to Settle: of a single one in order.
func (c *Conn) owe(s *Segment, n int) bool {
	if !c.owed.patient || c.owed.ack || c.state != Collecting || n == 0 || n != len(s.Payload) || len(c.gaps) > 0 || s.Flags&FIN != 0 {
		return false
	}
	c.owed.ack = true
	return true
}

// keepBack reports whether a server's segment that acknowledges all of the question, and says no more than that, need not reach the client: it waits
// for the answer. Its window must be as large as what the client was promised, as the client does not get to see it.
func (c *Conn) keepBack(s *Segment) bool {
	if !c.owed.ack || !c.owed.waits || c.owed.kept || len(s.Payload) > 0 || s.Flags&FIN != 0 || s.Ack != c.expected() || c.high != s.Ack || int(c.serverWin) < c.limits.Budget {
		return false
	}
	c.owed.kept = true
	c.retransmit = time.Time{} // it has all
	return true
}

// overdue sends an acknowledgement that nothing has come along for. It reports whether that ends the balancer's part: the server had all before.
func (c *Conn) overdue(now time.Time, emit Emit) bool {
	if !c.owed.waits && !c.owed.kept || now.Before(c.owed.due) || c.state > Replaying {
		return false
	}
	if c.owed.ack {
		c.toClient(now, emit, 0, c.ours, nil)
	}
	return c.owed.kept
}
