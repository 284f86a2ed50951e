package splice

import "time"

// Relay is a connection whose requests are followed beyond the first one. What the client sends is judged before the server gets it, by whoever
// calls [Relay.Release], or passes by where only its length matters; what the server sends is translated. Between two requests the connection may move to
// another server. [Conn.Relay] makes one. It is not safe for concurrent use.
//
//	           ┌── Release, Pass ◄─┐
//	Conn ──► Relay ── Quiet ──► Leave ──► Conn (Connect, Reply)      to another server, or none
//	           │        └─────► Resume ─► the Relay itself           to one that was parked
//	           └── Open ──► Done: keep the Translation
//
//	the client's bytes           who acknowledges them    who sends them again
//	not released                 the Relay                nobody: the server has none of them
//	released                     the server; the Relay,   the Relay, from its own copy
//	                             where some are not
//	passing by                   the server               the client
//
// Bytes that were judged reach the server from the Relay's copy only, so that a client cannot send others in their place.
type Relay struct {
	start  Start
	limits Limits
	tr     Translation
	client uint32 // what the client's numbers lack to those the server knows

	// The client's direction, as the client numbers it. The server may have the first released bytes of the inbox.
	inbox
	outbox           // of what is released
	base      uint32 // of the inbox
	released  int
	finOpen   bool   // the FIN may be sent
	passing   bool   // bytes from on, up to to, pass by
	from, to  uint32 // once the inbox is empty, it begins at to
	open      bool   // all that follows passes by
	clientWin uint16
	clientNew newest
	clientVal uint32
	acked     uint32 // of ours
	told      uint32 // what the server was told of that
	toldWin   uint16
	tell      bool   // the server is to be told in any case
	owned     uint32 // what was acknowledged by the Relay itself last
	shown     int    // the window with that
	promised  uint32 // up to where the client was let send, while that is kept
	again     bool   // the client sends what is here: it missed an acknowledgement, or something before it
	took      bool

	// The server's direction, as the client numbers it, but for timestamps.
	isn       uint32 // of the server, as itself numbers it
	first     uint32 // that is its
	ours      uint32 // behind all that it has sent
	lastVal   uint32
	serverVal uint32
	serverWin int
	serverNew newest
	scale     uint8
	sent      uint32 // of the client's bytes, acknowledged
	high      uint32 // behind all that was sent
	proven    bool   // it has answered since the connection was resumed
	ended     bool

	retransmit, deadline time.Time
	rto, firstRTO        time.Duration
	since                time.Time // that bytes wait to be judged
	waiting              bool
}

// relayRoom is what a Relay keeps of the client's stream, at most: more than the longest head that is judged.
const relayRoom = 1 << 16

// relayRTO is after how long a server is sent something again, at first.
const relayRTO = 300 * time.Millisecond

// Follow says that the connection will be a [Relay]'s, so that the server gets nothing when it is Established. The budget becomes that of a Relay.
func (c *Conn) Follow() {
	c.followed = true
	c.limits.Budget = relayRoom
}

// Relay takes over a connection that was to be followed and is Established now.
func (c *Conn) Relay(now time.Time) *Relay {
	r := c.relay(c.roundTrips(now, relayRTO))
	r.tr, r.mss, r.proven = c.tr, c.mss, true
	r.acked, r.told = c.acked, c.acked-1
	r.isn, r.serverVal, r.serverWin, r.scale = c.serverISN, c.serverVal, int(c.serverWin), c.scale
	r.collecting(now)
	return r
}

// relay returns a Relay that has what c knows of the client, and nothing of the server.
func (c *Conn) relay(rto time.Duration) *Relay {
	base := c.start.clientISN + 1
	return &Relay{
		start: c.start, limits: c.limits, inbox: c.inbox, base: base, clientWin: c.clientWin, clientNew: c.clientNew, clientVal: c.clientVal, owned: c.next, promised: c.promised,
		first: c.ours, ours: c.ours, lastVal: c.lastVal, sent: base, high: base, firstRTO: rto, rto: rto, took: true,
	}
}

// Client returns what the client's numbers lack to those the server knows, for [ShiftClient].
func (r *Relay) Client() uint32 { return r.client }

// Translation returns what else segments are translated by.
func (r *Relay) Translation() Translation { return r.tr }

// Data returns the bytes that were not released yet, in order. They stay valid until the next call of another method.
func (r *Relay) Data() []byte { return r.data[r.released:r.got:r.got] }

// EndOfStream reports whether the client has closed its direction behind Data.
func (r *Relay) EndOfStream() bool { return r.fin }

// Acked reports whether the client has acknowledged all that the server has sent.
func (r *Relay) Acked() bool { return r.acked == r.ours }

// Released returns the number of the client's next byte that was not released.
func (r *Relay) Released() uint32 { return r.base + uint32(r.released) }

// Ending reports whether the server may have the end of the client's stream.
func (r *Relay) Ending() bool { return r.finOpen }

// Holding reports whether bytes are kept: they wait to be judged, or the server has not acknowledged them.
func (r *Relay) Holding() bool { return r.placed() > 0 }

// Collects reports whether what the client sends is kept, and does not pass by.
func (r *Relay) Collects() bool { return !r.passing && !r.open && !r.ended }

// CanPass reports whether Pass would let bytes pass by.
func (r *Relay) CanPass() bool { return r.released == r.got && !r.passing && !r.open && !r.fin }

// Quiet reports whether nothing is under way: the client has all that the server has sent, and the server all that was released.
func (r *Relay) Quiet() bool { return r.Acked() && !r.outstanding() && !r.passing && !r.ended }

// Wait says whether bytes that wait to be judged do so for another reason than that the client is slow.
func (r *Relay) Wait(now time.Time, on bool) {
	if r.waiting != on {
		r.waiting, r.since = on, time.Time{}
		r.collecting(now)
	}
}

// collecting notes since when bytes wait to be judged.
func (r *Relay) collecting(now time.Time) {
	switch {
	case r.placed() == r.released:
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = now
	}
}

// Release lets the server have n more bytes, with the end of the stream, if that is behind them. [Relay.Flush] sends them.
func (r *Relay) Release(now time.Time, n int) {
	r.released = min(r.released+n, r.got)
	r.finOpen = r.fin && r.released == r.got
	r.since = time.Time{}
	r.collecting(now)
}

// Pass lets the next n bytes of the client pass by, n < 1<<30. All that came before must be released.
func (r *Relay) Pass(n uint32) bool {
	if !r.CanPass() {
		return false
	}
	r.passing, r.from = true, r.base+uint32(r.got)
	r.to = r.from + n
	r.gaps, r.finKnown = nil, false // the client sends them again
	r.again = true                  // it hears of the server's window now
	r.slide()
	return true
}

// Open lets all that follows pass by. Once the server has acknowledged what came before, an event says that it is Done.
func (r *Relay) Open(now time.Time) {
	r.Release(now, r.got-r.released)
	r.open, r.again = true, true
	r.gaps = nil
}

// expected is the next sequence number of the client's that is to be acknowledged.
func (r *Relay) expected() uint32 {
	if r.passing && r.base == r.to && before(r.sent, r.to) {
		return later(r.from, r.sent)
	}
	n := r.base + uint32(r.got)
	if r.fin {
		n++
	}
	return n
}

// at is the number of what the server would be sent next.
func (r *Relay) at() uint32 {
	if r.passing || r.open {
		return r.high
	}
	n := r.base + uint32(r.flight)
	if r.flightFIN {
		n++
	}
	return later(n, r.sent)
}

// outstanding reports whether the server lacks something that it may have.
func (r *Relay) outstanding() bool {
	n := r.base + uint32(r.released)
	if r.finOpen {
		n++
	}
	return before(r.sent, n) && (r.released > 0 || r.finOpen)
}

func (r *Relay) toServer(emit Emit, flags uint8, seq uint32, payload []byte) {
	s := Segment{Seq: seq, Ack: r.acked - r.tr.Seq, Flags: flags, Window: r.clientWin, Payload: payload}
	r.told, r.toldWin = r.acked, r.clientWin
	if flags&RST == 0 {
		r.high = later(r.high, s.end())
	}
	s.Seq += r.client
	if r.start.timestamps {
		s.Options.Timestamps, s.Options.TSVal, s.Options.TSEcr = true, r.clientVal, r.serverVal
	}
	emit(Server, &s)
}

// room is what the client may send, beyond what is expected of it.
func (r *Relay) room() int {
	if r.passing || r.open {
		return max(0, r.serverWin-int(r.expected()-r.sent))
	}
	return max(0, relayRoom-r.got)
}

func (r *Relay) toClient(emit Emit, flags uint8) {
	s := Segment{Seq: r.ours, Ack: r.expected(), Flags: flags | ACK}
	room := r.room()
	r.owned, r.shown = s.Ack, room
	s.Window = r.start.window(uint32(room))
	if r.Collects() {
		r.promised = later(r.promised, s.Ack+r.start.shown(s.Window))
	}
	if r.start.timestamps {
		r.lastVal = later(r.lastVal, r.serverVal+r.tr.TS)
		s.Options.Timestamps, s.Options.TSVal, s.Options.TSEcr = true, r.lastVal, r.clientVal
	}
	emit(Client, &s)
}

// FromClient takes a segment of the client's. forward says that it is to be translated and sent to the server. What else is to be sent
// is up to Flush.
func (r *Relay) FromClient(now time.Time, s *Segment, emit Emit) (ev Event, forward bool) {
	if r.ended {
		return None, true
	}
	switch {
	case s.Flags&RST != 0:
		return r.clientReset(s, emit)
	case s.Flags&SYN != 0:
		r.toClient(emit, 0) // see Conn.FromClient
		return None, false
	case s.Flags&ACK == 0 || before(r.ours, s.Ack):
		return None, false
	}
	r.acked = later(r.acked, s.Ack)
	if r.clientNew.window(s, int(r.clientWin), int(s.Window)) {
		r.clientWin = s.Window
	}
	if s.Options.Timestamps && r.start.timestamps {
		if val := s.Options.TSVal; r.expected()-s.Seq <= 0xffff && (r.clientVal == 0 || before(r.clientVal, val)) {
			r.clientVal = val
		}
	}
	if len(s.Payload) == 0 && s.Flags&FIN == 0 {
		switch {
		case before(s.Ack, r.first):
			return None, false // about what another server has sent
		case r.passing || r.open:
		case s.Seq == r.expected()-1:
			r.again = true // a probe
			return None, false
		case before(r.at(), s.Seq):
			r.tell = true // the server does not know of what is before it
			return None, false
		}
		r.told, r.toldWin = r.acked, r.clientWin
		return None, true
	}
	switch {
	case r.open:
		if before(s.Seq, r.base+uint32(r.got)) {
			r.again = true
			return None, false
		}
		r.high = later(r.high, s.end())
		return None, true
	case r.passing:
		return None, r.pass(now, s, emit)
	}
	r.collect(now, s)
	return None, false
}

// collect takes what is to be judged.
func (r *Relay) collect(now time.Time, s *Segment) {
	had, hadFIN := r.got, r.fin
	r.add(r.base, s, r.start.limit(relayRoom, r.promised-r.base))
	if r.got > had || r.fin && !hadFIN {
		r.took = true
	}
	if s.Seq != r.base+uint32(had) || r.got == had && r.fin == hadFIN {
		r.again = true
	}
	r.collecting(now)
}

// pass deals with a segment of which some may pass by. It returns true if it does as a whole.
func (r *Relay) pass(now time.Time, s *Segment, emit Emit) (whole bool) {
	end := s.Seq + uint32(len(s.Payload))
	if s.Flags&FIN != 0 && before(end, r.to) && !before(end, r.from) {
		// The client ends in the middle: nothing can follow.
		r.open, r.passing = true, false
	}
	if !before(s.Seq, r.from) && (r.open || !before(r.to, end) && s.Flags&FIN == 0) {
		r.high = later(r.high, s.end())
		return true
	}
	if r.open || !before(r.from, end) && s.Flags&FIN == 0 {
		r.again = true
		return false
	}
	for a, b := later(s.Seq, r.from), sooner(end, r.to); before(a, b); {
		n := min(b-a, uint32(r.mss))
		r.toServer(emit, ACK, a, s.Payload[a-s.Seq:a-s.Seq+n])
		a += n
	}
	if r.base == r.to {
		r.collect(now, s)
	}
	return false
}

func sooner(a, b uint32) uint32 {
	if before(a, b) {
		return a
	}
	return b
}

func (r *Relay) clientReset(s *Segment, emit Emit) (Event, bool) {
	if r.passing || r.open {
		return None, true // the server judges it
	}
	if d := s.Seq - r.expected(); d != 0 {
		if d < relayRoom {
			r.toClient(emit, 0) // see Conn.clientReset
		}
		return None, false
	}
	r.resetServer(emit)
	r.ended = true
	return Gone, false
}

// resetServer resets the server by the number that it expects, as far as that is known.
func (r *Relay) resetServer(emit Emit) {
	r.toServer(emit, RST|ACK, r.sent, nil)
	if r.high != r.sent {
		r.toServer(emit, RST|ACK, r.high, nil)
	}
}

// End resets the server, as the connection is forgotten.
func (r *Relay) End(emit Emit) {
	if !r.ended {
		r.resetServer(emit)
		r.ended = true
	}
}

// Abort resets both sides.
func (r *Relay) Abort(emit Emit) {
	if r.ended {
		return
	}
	r.toClient(emit, RST)
	r.resetServer(emit)
	r.ended = true
}

// Window returns the largest window that the client may see in a segment of the server's that is translated and acknowledges ack, or the largest there
// is: what it sends beyond what the Relay takes, it would have to send again after a timeout.
func (r *Relay) Window(ack uint32) uint16 {
	if r.passing || r.open || r.ended {
		return 0xffff
	}
	n := max(0, int(int32(r.expected()-(ack-r.client)))+r.room())
	if r.start.scaled {
		n >>= r.start.offer.Scale
	}
	return uint16(min(n, 0xffff))
}

// FromServer takes a segment of the server's. forward says that it is to be translated and sent to the client.
func (r *Relay) FromServer(now time.Time, s *Segment, emit Emit) (ev Event, forward bool) {
	seq, ack := s.Seq+r.tr.Seq, s.Ack-r.client
	switch {
	case r.ended:
		return None, true
	case s.Flags&RST != 0:
		return r.serverReset(seq)
	case s.Flags&SYN != 0:
		if s.Seq == r.isn {
			r.toServer(emit, ACK, r.at(), nil) // it missed our ACK
		}
		return None, false
	case s.Flags&ACK == 0 || before(r.high, ack):
		return None, false
	case !r.proven && s.Flags&FIN != 0 && len(s.Payload) == 0 && seq == r.first && !before(r.sent, ack):
		r.resetServer(emit) // it closed while it was parked, and has seen nothing of what it was sent since
		return ServerLost, false
	}
	if s.Options.Timestamps && !before(s.Options.TSVal, r.serverVal) {
		r.serverVal = s.Options.TSVal
	}
	if end := s.end() + r.tr.Seq; end-r.acked <= r.clientRoom() {
		r.ours = later(r.ours, end)
	}
	if !before(ack, r.sent) {
		if window := int(s.Window) << r.scale; r.serverNew.window(s, r.serverWin, window) {
			if r.serverWin == 0 && window != 0 {
				r.flight, r.flightFIN = 0, false // what a closed window was probed with may have been dropped
			}
			r.serverWin = window
		}
		r.deadline = now.Add(r.limits.ReplayTime) // it lives
	}
	if before(r.sent, ack) {
		r.sent, r.proven = ack, true
		r.rto, r.retransmit = r.firstRTO, time.Time{}
		r.slide()
	}
	if len(s.Payload) > 0 {
		r.proven = true
	}
	return r.done(), true
}

// clientRoom is how far behind what the client has acknowledged the server can be, and some more: its window may have been larger.
func (r *Relay) clientRoom() uint32 {
	n := uint32(r.clientWin)
	if r.start.scaled {
		n <<= r.start.clientScale
	}
	return n + 1<<20
}

func (r *Relay) serverReset(seq uint32) (Event, bool) {
	switch {
	case seq == r.acked || seq == r.ours:
		if !r.proven {
			return ServerLost, false
		}
		r.ended = true
		return Done, true
	case before(seq, r.acked) || seq-r.acked > 1<<30:
		return None, false
	}
	return None, true
}

// done reports whether nothing is left to be done.
func (r *Relay) done() Event {
	if !r.ended && (r.open && r.got == 0 || r.finOpen && r.sent == r.expected()) {
		r.ended = true
		return Done
	}
	return None
}

// slide forgets what the server has acknowledged.
func (r *Relay) slide() {
	if n := min(int(int32(r.sent-r.base)), r.released); n > 0 && (n == r.released || n >= relayRoom/4) {
		r.drop(n)
		r.base += uint32(n)
		r.released -= n
		r.flight = max(0, r.flight-n)
	}
	if r.passing && r.got == 0 && r.base == r.from {
		r.base, r.promised, r.flight = r.to, r.to, 0
		r.high = later(r.high, r.from)
	}
	if r.passing && !before(r.sent, r.to) {
		r.passing = false
	}
}

// Flush sends what is due after a segment was taken and its bytes released: to the server what it may have, and acknowledgements.
func (r *Relay) Flush(now time.Time, emit Emit) Event {
	if r.ended {
		return None
	}
	any := r.replay(emit, false)
	if any || r.outstanding() {
		r.startTimer(now)
	}
	if !any && (r.tell || r.told != r.acked || r.toldWin != r.clientWin) {
		r.toServer(emit, ACK, r.at(), nil)
	}
	if r.again || r.took && (r.placed() > r.released || r.flight < r.released) {
		r.toClient(emit, 0)
	}
	// The server's acknowledgements tell the client nothing of its window while they are behind ours.
	if before(r.sent, r.owned) && before(r.owned+uint32(r.shown)+relayRoom/4, r.expected()+uint32(r.room())) {
		r.toClient(emit, 0)
	}
	r.tell, r.again, r.took = false, false, false
	return r.done()
}

// replay sends what is released, see outbox.replay.
func (r *Relay) replay(emit Emit, timer bool) (any bool) {
	return r.outbox.replay(r.base, r.data[:r.released], r.finOpen, r.sent, r.serverWin, timer, func(flags uint8, seq uint32, payload []byte) {
		r.toServer(emit, flags, seq, payload)
	})
}

func (r *Relay) startTimer(now time.Time) {
	if r.retransmit.IsZero() {
		r.retransmit = now.Add(r.rto)
		r.deadline = now.Add(r.limits.ReplayTime)
	}
}

// Deadline returns when Tick must be called at the latest; the zero time is never.
func (r *Relay) Deadline() (t time.Time) {
	if r.ended {
		return t
	}
	if r.outstanding() {
		t = r.retransmit
		if r.deadline.Before(t) {
			t = r.deadline
		}
	}
	if !r.since.IsZero() && !r.waiting {
		if end := r.since.Add(r.limits.Time); t.IsZero() || end.Before(t) {
			t = end
		}
	}
	return t
}

// Tick does what is due at now, as Conn.Tick does.
func (r *Relay) Tick(now time.Time, emit Emit) Event {
	switch {
	case r.ended:
	case !r.since.IsZero() && !r.waiting && !now.Before(r.since.Add(r.limits.Time)):
		r.Abort(emit)
		return TimeUp
	case !r.outstanding():
	case !now.Before(r.deadline):
		r.Abort(emit)
		return Gone
	case !now.Before(r.retransmit):
		r.rto = min(2*r.rto, 8*time.Second)
		r.retransmit = now.Add(r.rto)
		r.replay(emit, true)
	}
	return None
}
