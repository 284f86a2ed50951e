package splice

import (
	"errors"
	"fmt"
	"time"
)

// Side is an end of a connection.
type Side uint8

const (
	Client Side = iota // who began the connection
	Server             // who was chosen
)

func (s Side) String() string {
	switch s {
	case Client:
		return "client"
	case Server:
		return "server"
	}
	return fmt.Sprintf("Side(%d)", uint8(s))
}

// State of a Conn.
type State uint8

const (
	Collecting State = iota // reads the client's stream; no server is chosen
	Connecting              // waits for a server's SYN-ACK
	Replaying               // sends the server what was read and waits until it is acknowledged
	Spliced                 // translates
	Replying                // sends the client an answer of the balancer's own, then closes
	Closed                  // nothing more is sent or expected
)

var states = [...]string{"collecting", "connecting", "replaying", "spliced", "replying", "closed"}

func (s State) String() string {
	if int(s) < len(states) {
		return states[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Event is what a call brought about that its caller must act on.
type Event uint8

const (
	None        Event = iota // nothing to act on
	MoreData                 // the client's stream has grown: look at Data
	Full                     // the budget is used up: no more will be read
	TimeUp                   // the time limit has passed while collecting; the Conn has reset the client
	ServerLost               // the server refused, is silent, or lacks a promised option: Connect to another, or Abort
	Established              // the server answered; the client's segments reach it from now on
	Done                     // the splice is complete: keep the Translation and forget the Conn
	Gone                     // the connection has ended: forget the Conn
)

var events = [...]string{"none", "more data", "full", "time up", "server lost", "established", "done", "gone"}

func (e Event) String() string {
	if int(e) < len(events) {
		return events[e]
	}
	return fmt.Sprintf("Event(%d)", uint8(e))
}

// Limits bound what a connection may take before it is spliced. The zero Limits take the defaults.
type Limits struct {
	// Budget is how many bytes of the client's stream are read. Default 3584; 1 to 65535. A client that scales its window can be told of no less than
	// a unit of Offer.Scale, and what it was told of is taken: up to a unit more may come.
	Budget int
	// Time is how long the client may take until a server is chosen. Default 5 s.
	Time time.Duration
	// ServerTime is how long one server may take to answer. Default 3 s.
	ServerTime time.Duration
	// ReplayTime is how long a server may take to acknowledge what is replayed, and a client to acknowledge a reply. Default 15 s.
	ReplayTime time.Duration
}

const defaultBudget = 3584

// WithDefaults returns the limits with every zero field set, or all faults at once.
func (l Limits) WithDefaults() (Limits, error) {
	var faults []error
	if l.Budget == 0 {
		l.Budget = defaultBudget
	}
	if l.Budget < 0 || l.Budget > 65535 {
		faults = append(faults, fmt.Errorf("splice: limits: Budget: %d: want 1 to 65535 bytes, or 0 for 3584", l.Budget))
	}
	or := func(name string, value, def time.Duration) time.Duration {
		if value < 0 {
			faults = append(faults, fmt.Errorf("splice: limits: %s: %v: want a positive duration, or 0 for %v", name, value, def))
		}
		if value == 0 {
			return def
		}
		return value
	}
	l.Time = or("Time", l.Time, 5*time.Second)
	l.ServerTime = or("ServerTime", l.ServerTime, 3*time.Second)
	l.ReplayTime = or("ReplayTime", l.ReplayTime, 15*time.Second)
	return l, errors.Join(faults...)
}

// Emit sends a segment to a side. The segment and its payload are valid during the call only.
type Emit func(to Side, s *Segment)

// Conn is a connection between its client's handshake and the splice. Use [Start.Conn]. It is not safe for concurrent use.
type Conn struct {
	start  Start
	limits Limits
	state  State

	// The client's side. Its sequence numbers are used towards the server as well.
	next       uint32 // the client's next byte in order
	inbox             // from clientISN+1 on
	owed       owed
	clientWin  uint16 // as on the wire
	clientNew  newest
	clientVal  uint32 // the client's latest timestamp
	ours       uint32 // our next sequence number towards the client
	acked      uint32 // how much of ours the client has acknowledged
	lastVal    uint32 // our latest timestamp to the client
	promised   uint32 // up to where the client was let send, while it is collected
	starved    bool   // the client wants to send more than it was let: it must learn that it may
	reminders  int    // that it was sent since
	full       bool
	followed   bool // a Relay takes over
	deadline   time.Time
	retransmit time.Time
	rto        time.Duration
	firstRTO   time.Duration // that rto returns to when there is progress (RFC 6298, 5.7)
	began      time.Time     // of the current exchange with the server
	synSent    time.Time     // the last one to it

	// The server's side.
	serverISN uint32
	serverVal uint32
	serverWin uint16
	serverNew newest
	scale     uint8  // of the server, as far as one was agreed on
	sent      uint32 // acknowledged by the server
	high      uint32 // behind all that was sent to it, by us or the client
	outbox           // how much of data has been sent to it
	tr        Translation

	reply     []byte // Replying: what is sent to the client
	replyBase uint32
	replySent int // how much of reply, and the FIN behind it, has been sent

	out Segment // under way: emit would have one made each time
}

// leastMSS is the smallest segment size that is taken seriously, whatever a peer asks for, as a header's options must not use it up.
const leastMSS = 48

const firstRTO = time.Second

// Conn makes the connection's state from its first segment, which [Cookies.Check] accepted. A buffer comes with the first byte, and grows
// up to the budget. The segment itself is to be handed to FromClient next. Limits of zero take the defaults; others must be ones that
// [Limits.WithDefaults] accepts.
func (s Start) Conn(now time.Time, limits Limits) *Conn {
	c := new(Conn)
	s.Renew(c, now, limits)
	return c
}

// Renew makes a Conn that nobody needs any more what Conn returns, in the same memory. Its Data are void.
func (s Start) Renew(c *Conn, now time.Time, limits Limits) {
	limits, err := limits.WithDefaults()
	if err != nil {
		panic(err)
	}
	data := c.data
	if len(data) > leastInbox {
		data = nil
	}
	*c = Conn{
		inbox: inbox{data: data}, start: s, limits: limits, lastVal: s.val, next: s.clientISN + 1, promised: s.clientISN + 1, ours: s.ourISN + 1, acked: s.ourISN + 1,
		deadline: now.Add(limits.Time),
	}
}

// State returns the connection's state.
func (c *Conn) State() State { return c.state }

// Data returns the client's stream as far as it is read in order. It stays valid until the Conn is forgotten, and must not be changed.
func (c *Conn) Data() []byte { return c.data[:c.got:c.got] }

// Numbers returns what comes before the first byte of Data, and before what the client gets next.
func (c *Conn) Numbers() (client, ours uint32) { return c.start.clientISN, c.ours - 1 }

// EndOfStream reports whether the client has closed its direction behind Data.
func (c *Conn) EndOfStream() bool { return c.fin }

// Deadline returns when Tick must be called at the latest.
func (c *Conn) Deadline() time.Time {
	d := c.deadline
	if !c.retransmit.IsZero() && c.retransmit.Before(d) {
		d = c.retransmit
	}
	if (c.owed.waits || c.owed.kept) && c.owed.due.Before(d) {
		d = c.owed.due
	}
	return d
}

// Translation returns what the connection is translated by, once it is Established.
func (c *Conn) Translation() Translation { return c.tr }

// expected is the next sequence number of the client's: behind its FIN, if that is in order.
func (c *Conn) expected() uint32 {
	if c.fin {
		return c.next + 1
	}
	return c.next
}

// toClient sends a segment of our own to the client.
func (c *Conn) toClient(now time.Time, emit Emit, flags uint8, seq uint32, payload []byte) {
	s := &c.out
	*s = Segment{Seq: seq, Ack: c.expected(), Flags: flags | ACK, Payload: payload}
	room := uint32(0)
	switch c.state {
	case Collecting, Connecting:
		room = uint32(max(0, c.limits.Budget-c.got))
	case Replying:
		room = uint32(c.limits.Budget) // nothing is kept, and a client that cannot send its rest cannot close either
	case Replaying:
		s.Ack = later(s.Ack, c.sent)
		room = uint32(max(0, int(c.serverWin)-int(s.Ack-c.sent)))
	}
	s.Window = c.start.window(room)
	if c.state <= Connecting {
		c.promised = later(c.promised, s.Ack+c.start.shown(s.Window))
	}
	if c.start.timestamps {
		if c.state == Replaying {
			c.lastVal = later(c.lastVal, c.serverVal+c.tr.TS) // not ahead of the server's
		} else {
			c.lastVal = later(c.lastVal, c.start.clock(now))
		}
		s.Options.Timestamps, s.Options.TSVal, s.Options.TSEcr = true, c.lastVal, c.clientVal
	}
	c.owed.ack, c.owed.waits = false, false
	emit(Client, s)
}

// FromClient takes a segment of the client's. forward says that it is to be translated and sent to the server.
func (c *Conn) FromClient(now time.Time, s *Segment, emit Emit) (ev Event, forward bool) {
	if s.Flags&RST != 0 {
		return c.clientReset(now, s, emit)
	}
	if c.state == Closed {
		return None, false
	}
	if s.Flags&SYN != 0 {
		// One that was on its way twice, or of a client that has forgotten the connection: say where we are, so that the latter
		// resets it (RFC 5961, 4). A server must not get one: in a handshake of its own it would agree on other options.
		if c.state != Spliced {
			c.toClient(now, emit, 0, c.edge(), nil)
		}
		return None, false
	}
	if s.Flags&ACK == 0 {
		return None, false
	}
	valid := before(c.start.ourISN, s.Ack) && !before(c.ours, s.Ack)
	switch {
	case valid:
		if c.state == Replying && c.clientWin == 0 && s.Window != 0 && !before(s.Ack, c.acked) {
			c.replySent = 0 // what a closed window was probed with may have been dropped
		}
		if c.clientNew.window(s, int(c.clientWin), int(s.Window)) {
			c.clientWin = s.Window
		}
	case c.state != Spliced:
		return None, false // acknowledges what was never sent
	}
	if s.Options.Timestamps && c.start.timestamps && valid {
		val := s.Options.TSVal
		if c.clientVal != 0 && before(val, c.clientVal) && c.state <= Connecting {
			c.toClient(now, emit, 0, c.ours, nil) // an old duplicate (PAWS, RFC 7323, 5.3)
			return None, false
		}
		if c.expected()-s.Seq <= 0xffff && (c.clientVal == 0 || before(c.clientVal, val)) {
			c.clientVal = val // of a segment in order, or sent again, only (RFC 7323, 4.3)
		}
	}
	switch c.state {
	case Replaying:
		return c.besideReplay(now, s, emit)
	case Spliced:
		return None, true
	case Replying:
		return c.ackReply(now, s, emit), false
	}
	return c.collect(now, s, emit), false
}

// besideReplay takes what the client sends while the server is getting what was collected.
func (c *Conn) besideReplay(now time.Time, s *Segment, emit Emit) (ev Event, forward bool) {
	if before(c.acked, s.Ack) {
		c.acked, c.starved = s.Ack, false // it has what told it of the server's window
	}
	replayed := !before(c.sent, c.expected())
	// Bytes that were judged reach the server from here only: the client could send others in their place. It is told that they are here.
	if len(s.Payload) > 0 && before(s.Seq, c.next) && !replayed {
		c.toClient(now, emit, 0, c.ours, nil)
		return None, false
	}
	c.high = later(c.high, s.end())
	if s.Flags&FIN != 0 || before(c.next+1, s.end()) { // more than what probes a window
		c.starved = false
	}
	if replayed && !c.starved && c.reminders > 0 {
		c.state = Spliced
		return Done, true
	}
	return None, true
}

// edge is the sequence number of ours that the client expects next, as far as is known.
func (c *Conn) edge() uint32 {
	if c.state == Replying {
		return c.acked
	}
	return c.ours
}

func (c *Conn) clientReset(now time.Time, s *Segment, emit Emit) (Event, bool) {
	switch c.state {
	case Collecting, Replying, Connecting:
		// Only the exact number ends the connection. Any other in the window is asked about: a client that means it answers with the exact
		// one (RFC 5961, 3.2).
		if d := s.Seq - c.expected(); d != 0 {
			if d < uint32(c.limits.Budget) {
				c.toClient(now, emit, 0, c.edge(), nil)
			}
			return None, false
		}
		c.resetServer(emit)
		c.state = Closed
		return Gone, false
	case Replaying, Spliced:
		return None, true
	}
	return None, false
}

// collect puts the payload where it belongs and acknowledges.
func (c *Conn) collect(now time.Time, s *Segment, emit Emit) Event {
	had, hadFIN := c.got, c.fin
	base := c.start.clientISN + 1
	c.add(base, s, c.start.limit(c.limits.Budget, c.promised-base))
	c.next = base + uint32(c.got)
	if c.got >= c.limits.Budget && !c.fin && (s.Seq == c.next-1 || before(c.next, s.end())) {
		c.starved = true // it probes the window
	}
	if (s.end() != s.Seq || s.Seq != c.expected()) && !c.owe(s, c.got-had) {
		c.toClient(now, emit, 0, c.ours, nil)
	}
	if c.state != Collecting {
		return None
	}
	if c.got >= c.limits.Budget && !c.full {
		c.full = true
		return Full
	}
	if c.got > had || c.fin && !hadFIN {
		return MoreData
	}
	return None
}

// Abort resets the client, and the server where there is one.
func (c *Conn) Abort(now time.Time, emit Emit) {
	if c.state == Closed || c.state == Spliced {
		return
	}
	c.toClient(now, emit, RST, c.edge(), nil)
	c.resetServer(emit)
	c.state = Closed
}

// resetServer resets a server with the number it expects, as it ignores others (RFC 5961, 3.2).
func (c *Conn) resetServer(emit Emit) {
	switch c.state {
	case Connecting:
		emit(Server, &Segment{Seq: c.start.clientISN + 1, Flags: RST})
	case Replaying:
		c.toServer(emit, RST|ACK, c.sent, nil)
	}
}

// Tick does what is due at now: it sends again what was not acknowledged and ends what takes too long.
func (c *Conn) Tick(now time.Time, emit Emit) Event {
	if c.overdue(now, emit) {
		c.state = Spliced
		return Done
	}
	switch c.state {
	case Collecting:
		if !now.Before(c.deadline) {
			c.Abort(now, emit)
			return TimeUp
		}
	case Connecting:
		if !now.Before(c.deadline) {
			c.resetServer(emit)
			return c.serverLost()
		}
		if !c.retransmit.IsZero() && !now.Before(c.retransmit) {
			c.backOff(now)
			c.sendSYN(now, emit)
		}
	case Replaying:
		replayed := !before(c.sent, c.expected())
		if !now.Before(c.deadline) && !replayed {
			c.Abort(now, emit)
			return Gone
		}
		if !now.Before(c.deadline) || !c.retransmit.IsZero() && !now.Before(c.retransmit) {
			if replayed && (!c.starved || c.reminders > mostReminders) {
				// There was nothing to replay, and the server need not say anything. Had it missed our ACK, its next SYN-ACK would make
				// the client repeat it (RFC 9293, 3.10.7.4).
				if c.owed.ack {
					c.toClient(now, emit, 0, c.ours, nil)
				}
				c.state = Spliced
				return Done
			}
			c.backOff(now)
			if replayed {
				c.remind(now, emit)
			} else {
				c.replay(emit, true)
			}
		}
	case Replying:
		if !now.Before(c.deadline) {
			c.Abort(now, emit)
			return Gone
		}
		if !c.retransmit.IsZero() && !now.Before(c.retransmit) {
			c.backOff(now)
			c.sendReply(now, emit, true)
		}
	}
	return None
}

// mostReminders bounds how often a client is told again that it may send more.
const mostReminders = 4

// remind tells a client that waits in vain to send that it may. The translated acknowledgements say so, too; were they lost, nothing else would until
// the client's own timer, which may have been doubled for as long as servers were silent (RFC 9293, 3.8.6.1).
func (c *Conn) remind(now time.Time, emit Emit) {
	c.reminders++
	c.toClient(now, emit, 0, c.ours, nil)
}

// startTimer begins the timer of retransmissions.
func (c *Conn) startTimer(now time.Time, rto time.Duration) {
	c.firstRTO, c.rto = rto, rto
	c.retransmit = now.Add(rto)
}

// progress is that the peer has acknowledged something.
func (c *Conn) progress(now time.Time) { c.startTimer(now, c.firstRTO) }

func (c *Conn) backOff(now time.Time) {
	c.rto = min(2*c.rto, 8*time.Second)
	c.retransmit = now.Add(c.rto)
}
