package splice

import "time"

// Leave ends the connection to the server, or leaves that to the caller, who has it parked. The Relay must be Quiet, or its server be lost. What
// was not released is in the Conn, which is Collecting.
func (r *Relay) Leave(now time.Time, end bool, emit Emit) *Conn {
	if end {
		r.resetServer(emit)
	}
	r.ended = true
	start := r.start
	start.clientISN, start.ourISN = r.base-1, r.ours-1
	c := &Conn{
		start: start, limits: r.limits, state: Collecting, next: r.base + uint32(r.got), inbox: r.inbox, clientWin: r.clientWin, clientNew: r.clientNew, clientVal: r.clientVal,
		promised: r.promised, ours: r.ours, acked: r.ours, deadline: now.Add(r.limits.Time), followed: true,
	}
	c.lastVal = later(r.lastVal, r.serverVal+r.tr.TS)
	return c
}

// Parked is the connection to a server that waits for another request. It is a plain value, without padding, that may outlive the process.
type Parked struct {
	seq, ack   uint32 // that the server expects, and sends next, as itself numbers them
	val, echo  uint32 // the latest timestamps, of the server and of the client
	win        uint32
	mss        uint16
	scale      uint8
	timestamps bool
}

// Park returns what is to be known of the server's connection to resume it. The Relay must be Quiet.
func (r *Relay) Park(emit Emit) Parked {
	r.toServer(emit, ACK, r.sent, nil) // whatever made the Relay Quiet need not reach it
	return Parked{
		seq: r.sent + r.client, ack: r.ours - r.tr.Seq, val: r.serverVal, echo: r.clientVal, win: uint32(r.serverWin), mss: uint16(r.mss),
		scale: r.scale, timestamps: r.start.timestamps,
	}
}

// Resume goes on with the connection to a server that was parked, in the place of one to another server. c is what Leave returned.
func (c *Conn) Resume(now time.Time, p Parked) *Relay {
	p.scale, p.win = min(p.scale, 14), min(p.win, 0xffff<<14) // a saved one may be anything
	r := c.relay(relayRTO)
	r.tr, r.client, r.mss = c.translation(now, p.ack, p.val, p.scale), p.seq-r.base, max(int(p.mss), leastMSS-12)
	r.acked, r.told, r.toldWin = c.ours, c.ours, c.clientWin
	r.isn, r.serverVal, r.serverWin, r.scale = p.ack-1, p.val, int(p.win), p.scale
	r.collecting(now)
	return r
}

// FromServer takes a segment of a parked connection. send says that it is to be answered: a keep-alive probe is acknowledged, and what
// ends the connection reset. live says that it may still be resumed.
func (p *Parked) FromServer(s *Segment) (answer Segment, send, live bool) {
	switch {
	case s.Flags&RST != 0:
		return Segment{}, false, s.Seq != p.ack
	case s.Flags&(FIN|SYN) != 0 || len(s.Payload) > 0 && before(p.ack, s.end()):
		return p.Segment(RST | ACK), true, false
	}
	if s.Options.Timestamps && !before(s.Options.TSVal, p.val) {
		p.val = s.Options.TSVal
	}
	if s.Seq == p.ack && s.Ack != p.seq {
		return Segment{}, false, true // overtaken
	}
	if s.Seq == p.ack {
		p.win = uint32(s.Window) << p.scale
		return Segment{}, false, true
	}
	return p.Segment(ACK), true, true
}

// Segment returns a segment to the server of a parked connection; one with RST ends that.
func (p *Parked) Segment(flags uint8) Segment {
	s := Segment{Seq: p.seq, Ack: p.ack, Flags: flags, Window: 0xffff}
	if p.timestamps {
		s.Options.Timestamps, s.Options.TSVal, s.Options.TSEcr = true, p.echo, p.val
	}
	return s
}
