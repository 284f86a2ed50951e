package dataplane

import (
	"bytes"
	"math"
	"slices"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy/l7"
)

// kept is what is to be known of a connection whose every request is judged: in the modes overwrite and maintain. The shard's lock of its held guards
// it.
//
//	the next request is for    a reply is under way      else
//	the same farm              wait                      to the same node
//	another farm               wait                      once all is acknowledged: to a node of that farm
//	the balancer to answer     wait                      the same: close to the node, answer, close
//	nobody                     wait                      the same: reset
//
//	what follows               is
//	a body with a length       let pass by
//	a body in chunks, a head   judged, and sent from the balancer's copy
//	another protocol           held until the node has agreed, then spliced; if it declines, the next request
//	Connection: close          spliced
type kept struct {
	relay   *splice.Relay // while there is a node; held.conn else
	replies l7.Replies
	down    assembler // of what the node sends
	ends    bool      // there, at end
	end     uint32
	idle    bool // nothing of the client's is held, so that it takes no share of MaxHeld
	counted bool // in holds.kept

	step    l7.Step
	ready   bool // step is to be acted on
	decided bool // step.Decision is
	asking  bool // for another protocol: what follows waits for the node's reply
	opaque  bool // all that follows goes to the node
	within  bool // the request that the node has is not at its end

	// Of the request that the node has now, should that have forgotten the connection: bytes released, and passed by.
	given  int
	passed uint32

	parked []parkedEnd
}

// parkedEnd is a connection to a node that waits for another request.
type parkedEnd struct {
	splice.Parked
	node      *node
	near, far wire.End
}

// keptNumbers is what is changed in a packet of a connection that is followed.
type keptNumbers struct {
	tr     splice.Translation
	window uint16 // the largest that the client may see
}

// maxParked bounds the connections that are parked for one client's.
const maxParked = 8

// mostPass is how much of a body passes by at a time.
const mostPass = 1 << 29

func (e *parkedEnd) flow() clienttable.Flow {
	return clienttable.MakeFlow6(wire.ProtoTCP, e.far.Addr, e.near.Addr, e.far.Port, e.near.Port)
}

// tick does what is due.
func (c *held) tick(now time.Time, emit splice.Emit) splice.Event {
	if c.conn == nil {
		return c.kept.relay.Tick(now, emit)
	}
	return c.conn.Tick(now, emit)
}

// deadline is when tick is to be called.
func (c *held) deadline(p *Plane) int64 {
	if c.conn != nil {
		return p.nanos(c.conn.Deadline())
	}
	if t := c.kept.relay.Deadline(); !t.IsZero() {
		return p.nanos(t)
	}
	return math.MaxInt64
}

func (c *held) translation() splice.Translation {
	if c.conn == nil {
		return c.kept.relay.Translation()
	}
	return c.conn.Translation()
}

// unjudged returns what of the client's stream was not looked at, and whether nothing follows it.
func (c *held) unjudged() (b []byte, last bool) {
	if c.conn == nil {
		return c.kept.relay.Data(), c.kept.relay.EndOfStream()
	}
	return c.conn.Data(), c.conn.EndOfStream()
}

// closed reports whether the node has closed its direction.
func (k *kept) closed() bool { return k.ends && k.down.next == k.end }

// begun says that there is a node now.
func (w *Worker) begun(c *held) {
	k := c.kept
	if c.conn != nil {
		k.relay, c.conn = c.conn.Relay(w.now), nil
	}
	k.down, k.ends = assembler{next: c.ourISN + 1}, false
	if !k.counted {
		k.counted = true
		w.p.holds.kept.Add(1)
		w.stats.spliced++
	}
	if k.given > 0 { // again, to another connection
		k.relay.Release(w.now, k.given)
		if k.passed > 0 {
			k.relay.Pass(k.passed)
		}
	}
}

// relay handles a packet of a connection that is followed, and returns what it is to be translated by if it is to be forwarded.
func (w *Worker) relay(pk *packet, s *holdShard, c *held, r ref, seg *splice.Segment) *splice.Translation {
	k, relay := c.kept, c.kept.relay
	var ev splice.Event
	var forward bool
	if r.dir() == toNode {
		if k.idle && len(seg.Payload) > 0 && relay.Collects() && w.p.holds.n.Load() >= w.p.holds.most.Load() {
			w.drop(pk, HoldsFull) // the client sends it again
			return nil
		}
		ev, forward = relay.FromClient(w.now, seg, w.emitter(c))
	} else {
		shift := relay.Translation().Seq
		if !k.down.room(seg.Seq+shift, len(seg.Payload), k.replies.Skippable()) {
			w.drop(pk, HoldsFull) // nor may the client get what was not read
			return nil
		}
		if ev, forward = relay.FromServer(w.now, seg, w.emitter(c)); forward {
			k.down.add(seg.Seq+shift, seg.Payload, k.replies.Skippable(), k.replies.Feed, func(n int) { k.replies.Skip(n) })
			if end := seg.Seq + shift + uint32(len(seg.Payload)); seg.Flags&splice.FIN != 0 && end-k.down.next < farAhead {
				k.ends, k.end = true, end
			}
		}
	}
	w.kept = keptNumbers{relay.Translation(), relay.Window(seg.Ack)}
	pk.client = relay.Client()
	pk.verdict = Held
	w.act(s, c, ev)
	if !forward || r.dir() == toNode && (!c.has || r != c.session) {
		return nil // it has moved: the former node needs no more
	}
	return &w.kept.tr
}

// lost takes note that a node had forgotten its connection, or never had it.
func (k *kept) lost(w *Worker, c *held) {
	if k.relay != nil {
		c.tried = c.tried[:len(c.tried)-1] // it may be asked for another one
		c.conn, k.relay = k.relay.Leave(w.now, false, nil), nil
		c.isn, c.ourISN = c.conn.Numbers()
	}
}

// judge looks at what has come, and sends what is due.
func (w *Worker) judge(s *holdShard, c *held) {
	k := c.kept
	for s.conns[c.key] == c && w.proceed(s, c) {
	}
	if s.conns[c.key] != c {
		return
	}
	idle := false
	if k.relay != nil {
		k.relay.Wait(w.now, k.ready || k.asking)
		if k.relay.Flush(w.now, w.emitter(c)) == splice.Done {
			w.splice(s, c)
			if s.conns[c.key] != c {
				return
			}
		}
		idle = !k.relay.Holding()
	}
	if idle != k.idle {
		k.idle = idle
		if idle {
			w.p.holds.n.Add(-1)
		} else {
			w.p.holds.n.Add(1)
		}
	}
}

// proceed takes the next step of a connection, and reports whether there may be another one.
func (w *Worker) proceed(s *holdShard, c *held) bool {
	k := c.kept
	if k.opaque || k.relay == nil && c.conn.State() != splice.Collecting {
		return false
	}
	if k.asking && !w.answered(c) {
		return false
	}
	if !k.ready && !w.next(s, c) {
		return false
	}
	if k.decided {
		if !w.decide(s, c) {
			return false
		}
		k.decided = false
	}
	if k.relay == nil {
		return false // until the node has answered
	}
	if k.step.Begin {
		b, _ := c.unjudged()
		method, _, _ := bytes.Cut(bytes.TrimLeft(b, "\r\n"), []byte(" "))
		k.replies.Expect(method)
		k.given, k.passed = 0, 0
	}
	w.letGo(c, k.step.N)
	k.ready, k.within = false, !k.step.End
	switch {
	case k.step.Upgrade:
		k.asking = true
	case k.step.Opaque:
		k.open(w)
	}
	return true
}

// letGo gives the node n more bytes.
func (w *Worker) letGo(c *held, n int) {
	k := c.kept
	from := k.relay.Released()
	k.relay.Release(w.now, n)
	k.given += n
	flags := uint8(wire.ACK)
	if k.relay.Ending() {
		flags |= wire.FIN
	}
	rec := &w.p.slab.recs[c.session.record()]
	rec.lock.acquire()
	event := rec.tcp.Update(clienttable.FromClient, flags, from, k.down.next, n)
	state := rec.tcp
	rec.lock.release()
	if event == clienttable.TCPEnded || event == clienttable.TCPOpened {
		w.setLife(wire.ProtoTCP, rec, c.svc, c.svc.timers.TCP(state, rec.vip.Port, c.svc.conf.Mode))
	}
}

func (k *kept) open(w *Worker) {
	k.opaque = true
	k.relay.Open(w.now)
}

// answered reports whether the node has answered the question for another protocol.
func (w *Worker) answered(c *held) bool {
	k := c.kept
	switch {
	case k.replies.Switched():
		k.asking = false
		k.open(w)
		return false
	case k.replies.Complete():
		k.asking = false
		c.stream.Declined()
		return true
	}
	return false
}

// next looks for the next step, and reports whether there is one.
func (w *Worker) next(s *holdShard, c *held) bool {
	k := c.kept
	b, last := c.unjudged()
	if len(b) == 0 && k.relay != nil {
		if last {
			w.letGo(c, 0) // the end of the stream
			return false
		}
		if k.relay.CanPass() {
			if n, end := c.stream.Skip(mostPass); n > 0 {
				k.relay.Pass(uint32(n))
				k.passed += uint32(n)
				k.step, k.ready = end, end.End
				return end.End
			}
		}
	}
	st := c.stream.Next(b)
	if st.N == 0 && st.Decision.Verdict == l7.NeedMore {
		if last {
			w.abort(s, c) // half a request, and no more to come
		}
		return false
	}
	k.step, k.ready = st, true
	k.decided = st.Decision.Verdict != l7.NeedMore
	return true
}

// decide does what is to be done with a request, and reports whether it may go to the node now.
func (w *Worker) decide(s *holdShard, c *held) bool {
	k := c.kept
	if k.relay != nil {
		switch {
		case k.closed() && k.relay.Acked(), k.replies.Err() != nil:
			w.abort(s, c) // nobody will answer it
			return false
		case k.closed() || !k.replies.Complete():
			return false
		}
	}
	a := &k.step.Decision.Action
	if k.step.Decision.Verdict == l7.Refused {
		a = &l7.Action{}
	}
	q := c.svc.pool
	if f := c.svc.delay.farms[a.Farm]; f != nil {
		q = f
	}
	if k.relay != nil {
		if a.Do == l7.Farm && c.node.pool == q && c.node.keep {
			return true
		}
		if !k.relay.Quiet() {
			return false
		}
		if a.Do == l7.Farm || a.Do == l7.Redirect || a.Do == l7.Reply {
			w.part(c, a.Do == l7.Farm)
		}
	}
	switch a.Do {
	case l7.Farm:
		c.pool, c.tried = q, c.tried[:0]
		if k.counted {
			w.stats.moved++
			c.first = binding{}
		}
		w.place(s, c)
		return s.conns[c.key] == c && (k.relay != nil || c.has) // decided, if not begun
	case l7.Redirect, l7.Reply:
		w.respond(c, a)
	default:
		w.stats.services[c.svc.no].Refused++
		w.stats.drops[Refused]++
		w.abort(s, c)
	}
	return false
}

// part ends the connection to the node, or parks it.
func (w *Worker) part(c *held, more bool) {
	k := c.kept
	park := more && c.svc.delay.Rules.Config().Mode == l7.Maintain
	if park {
		if len(k.parked) == maxParked {
			w.unpark(c, maxParked-1)
		}
		e := parkedEnd{k.relay.Park(w.emitter(c)), c.node, c.near, c.far}
		k.parked = append(k.parked, e)
		w.p.holds.park(e.flow(), c.key)
	}
	c.conn, k.relay = k.relay.Leave(w.now, !park, w.emitter(c)), nil
	c.isn, c.ourISN = c.conn.Numbers()
	k.given, k.passed = 0, 0
	w.leave(c)
	w.p.announceOwned(c.svc, c.key)
	if park {
		w.p.announceOwned(c.svc, k.parked[len(k.parked)-1].flow())
	}
}

// resume goes on with the connection that is parked at the node just chosen, if there is one of the same ends: that the node takes for the same
// connection, whichever farm it was chosen from.
func (w *Worker) resume(c *held) bool {
	k := c.kept
	i := slices.IndexFunc(k.parked, func(e parkedEnd) bool { return e.near == c.near && e.far == c.far })
	if i < 0 {
		i = slices.IndexFunc(k.parked, func(e parkedEnd) bool { return e.node == c.node })
	}
	if i < 0 {
		return false
	}
	e := k.parked[i]
	k.parked = slices.Delete(k.parked, i, i+1)
	w.p.holds.unpark(e.flow())
	if e.near != c.near || e.far != c.far {
		w.endParked(c, &e)
		return false
	}
	k.relay, c.conn = c.conn.Resume(w.now, e.Parked), nil
	w.stats.resumed++
	w.established(c)
	return true
}

// unpark ends the connections that are parked, the oldest first, until n are left.
func (w *Worker) unpark(c *held, n int) {
	k := c.kept
	for len(k.parked) > n {
		e := k.parked[0]
		k.parked = slices.Delete(k.parked, 0, 1)
		w.p.holds.unpark(e.flow())
		w.endParked(c, &e)
	}
	if n == 0 && k.counted {
		k.counted = false
		w.p.holds.kept.Add(-1)
	}
}

func (w *Worker) endParked(c *held, e *parkedEnd) {
	w.p.disown(e.flow())
	seg := e.Segment(splice.RST | splice.ACK)
	w.sendSegment(c, e.node, splice.Server, e.near, e.far, &seg)
}

// toParked handles a packet of a node's connection that is parked, and reports whether it is one.
func (w *Worker) toParked(pk *packet) bool {
	h := w.p.holds
	if w.dry || h.nParked.Load() == 0 {
		return false
	}
	h.mu.Lock()
	key, ok := h.parked[pk.key]
	h.mu.Unlock()
	if !ok {
		return false
	}
	var seg splice.Segment
	if !w.segment(pk, &seg) {
		return true
	}
	s := h.shard(key, w.p.cfg.Seed)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[key]
	if c == nil || c.kept == nil {
		return false
	}
	k := c.kept
	i := slices.IndexFunc(k.parked, func(e parkedEnd) bool { return e.flow() == pk.key })
	if i < 0 {
		return false
	}
	pk.verdict = Held
	e := &k.parked[i]
	answer, send, live := e.FromServer(&seg)
	if send {
		w.sendSegment(c, e.node, splice.Server, e.near, e.far, &answer)
	}
	if !live {
		h.unpark(pk.key)
		w.p.disown(pk.key)
		k.parked = slices.Delete(k.parked, i, i+1)
	}
	return true
}

func (h *holds) park(from, client clienttable.Flow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parked[from] = client
	h.nParked.Store(int64(len(h.parked)))
}

func (h *holds) unpark(from clienttable.Flow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.parked, from)
	h.nParked.Store(int64(len(h.parked)))
}

// end takes note that the session of a connection that may be followed has left the table. Whoever removed it may hold locks.
func (h *holds) end(k clienttable.Flow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = append(h.ended, k)
	h.nEnded.Store(int64(len(h.ended)))
}

// endKept forgets connections whose sessions have left the table.
func (w *Worker) endKept() {
	h := w.p.holds
	if h.nEnded.Load() == 0 {
		return
	}
	h.mu.Lock()
	keys := h.ended
	h.ended = nil
	h.nEnded.Store(0)
	h.mu.Unlock()
	for _, key := range keys {
		s := h.shard(key, w.p.cfg.Seed)
		s.mu.Lock()
		if c := s.conns[key]; c != nil && c.kept != nil && c.has && !w.inTable(c) {
			if relay := c.kept.relay; relay != nil && int(c.node.no) < len(w.stats.nodes) {
				relay.End(w.emitter(c)) // it knows the numbers that the node believes
			}
			c.has, c.node = false, nil
			w.remove(s, c)
		}
		s.mu.Unlock()
	}
}
