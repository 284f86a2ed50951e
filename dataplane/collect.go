package dataplane

import (
	"encoding/binary"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/sslpersist"
)

// delayed handles a TCP packet to a service with delayed binding, of no session.
func (w *Worker) delayed(pk *packet, p *policy.Packet, svc *service, bound binding) (ask bool) {
	v := &pk.v
	if w.dry {
		w.explainDelayed(pk, svc)
		return false
	}
	var seg splice.Segment
	if !w.segment(pk, &seg) {
		return false
	}
	s := w.p.holds.shard(pk.key, w.p.cfg.Seed)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.conns[pk.key]; c != nil {
		pk.verdict, c.tags = Held, w.tagsOf(pk)
		if c.has && w.inTable(c) {
			w.drop(pk, Unproven) // it has moved to another node since the packet was looked up
			return false
		}
		if c.has {
			// Its session is gone: the node was lost. Where that has the beginning of the stream, another must not get the rest.
			if c.conn != nil && c.conn.State() == splice.Connecting {
				w.leave(c)
				w.place(s, c)
				return false
			}
			if int(c.node.no) >= len(w.stats.nodes) {
				w.renew()
			}
			w.abort(s, c) // resets the node too, should it live
			return false
		}
		ev, _ := c.conn.FromClient(w.now, &seg, w.emitter(c)) // without a session there is nobody to forward to
		w.act(s, c, ev)
		return false
	}
	tuple := splice.Tuple{Client: p.Src, Service: p.Dst}
	d := svc.delay
	if v.TCPFlags&(wire.SYN|wire.ACK|wire.RST) == wire.SYN {
		if w.snap.draining {
			w.refuse(pk, svc, Draining)
			return false
		}
		w.stats.cookies++
		answer := d.cookies.Answer(w.now, tuple, &seg)
		if limit := w.p.relayMSS(v.Version == 6); limit != 0 {
			answer.Options.MSS = min(answer.Options.MSS, limit)
		}
		w.answerSegment(pk, &answer)
		return false
	}
	start, ok := d.cookies.Check(w.now, tuple, &seg)
	if !ok {
		do, lost := w.unknown(pk, svc)
		if !lost && w.p.cfg.Peers != nil && !w.asked {
			return true
		}
		if !lost && d.cookies.Recent(w.now, &seg) {
			w.drop(pk, Unproven)
			return false
		}
		if do == Reselect { // of the service that the connection was of; this one has to read its beginning
			do = Reset
		}
		w.midStream(pk, do, lost)
		return false
	}
	if w.p.cfg.Peers != nil && !w.asked {
		// Another balancer may have the connection: what the client sends again looks like the end of a handshake.
		if _, _, ok := w.p.cfg.Peers.Lookup(pk.key.Protocol(), pk.key.Src(), pk.key.Dst()); ok {
			return true
		}
	}
	if w.snap.draining {
		w.refuse(pk, svc, Draining)
		return false
	}
	c := w.newHeld()
	c.key, c.svc, c.first, c.isn, c.ourISN, c.tags = pk.key, svc, bound, seg.Seq-1, seg.Ack-1, w.tagsOf(pk)
	if c.conn == nil {
		c.conn = start.Conn(w.now, d.Limits)
	} else {
		start.Renew(c.conn, w.now, d.Limits)
	}
	if d.follows() {
		c.conn.Follow()
		c.kept = new(kept)
	} else if d.Read != ReadNothing {
		c.conn.Patient()
	}
	c.due = w.p.nanos(c.conn.Deadline())
	if !w.p.holds.add(s, c) {
		w.spend(c)
		w.refuse(pk, svc, HoldsFull)
		return false
	}
	w.stats.confirmed++
	w.p.announceOwned(svc, c.key)
	c.probe = wire.AppendProbe(c.probe, wire.ProtoTCP, endOf(p.Src), endOf(p.Dst), v.Version == 4)
	c.open(d)
	pk.verdict = Held
	ev, _ := c.conn.FromClient(w.now, &seg, w.emitter(c))
	if ev == splice.None && c.reads() == ReadNothing {
		ev = splice.MoreData
	}
	w.act(s, c, ev)
	return false
}

// segment parses the packet for somebody who will act on what it says.
func (w *Worker) segment(pk *packet, seg *splice.Segment) bool {
	v := &pk.v
	switch {
	case v.Mark&wire.Fragment != 0:
		w.drop(pk, BadFragment) // no TCP makes them, and the whole is not here
	case !splice.Parse(pk.ip[v.L4:v.End], seg):
		w.drop(pk, BadTransport)
	case !pk.partial && !v.SumOK(pk.ip):
		w.drop(pk, BadChecksum)
	default:
		return true
	}
	return false
}

// answerSegment answers pk, and keeps nothing.
func (w *Worker) answerSegment(pk *packet, s *splice.Segment) {
	n := wire.IPv4Len
	if pk.v.Version == 6 {
		n = wire.IPv6Len
	}
	b := w.reply(pk, n+splice.MaxHeader)
	m := len(s.Append(b[n:n], pk.v.DstPort, pk.v.SrcPort))
	b = b[:n+m]
	wire.PutHeader(b, pk.v.Dst(pk.ip), pk.v.Src(pk.ip), wire.ProtoTCP, 64, 0, n+m)
	sum := wire.PseudoSum(pk.v.Dst(pk.ip), pk.v.Src(pk.ip), wire.ProtoTCP, m).AddBytes(b[n:]).Checksum()
	binary.BigEndian.PutUint16(b[n+16:], sum)
	w.answer(pk, n+m)
}

// reads says what of the connection is read.
func (c *held) reads() Read {
	d := c.svc.delay
	if d.Read == ReadTLS && d.Rules == nil && (d.Sessions == nil || !d.Sessions.Watches(c.key.Dst().Port())) {
		return ReadNothing
	}
	return d.Read
}

// open prepares what reads the stream.
func (c *held) open(d *delay) {
	switch c.reads() {
	case ReadTLS:
		if d.Sessions != nil && d.Sessions.Watches(c.key.Dst().Port()) {
			c.tls = d.Sessions.Open(c.key.Src().Addr())
		} else {
			c.hello = new(sslpersist.Parser)
		}
	case ReadHTTP:
		c.openHTTP()
	}
}

// unspliced handles a packet of a connection whose node was chosen and that is not spliced yet. It returns what the packet is to be
// translated by, if it is to be forwarded.
func (w *Worker) unspliced(pk *packet, r ref, rec *record, sm *seam) *splice.Translation {
	if w.tr != nil {
		w.tr.step("delay", "the balancer has a hand in the connection still")
	}
	if w.dry {
		pk.verdict = Held
		return nil
	}
	var seg splice.Segment
	if !w.segment(pk, &seg) {
		return nil
	}
	key := pk.key
	if r.dir() == toClient {
		key = rec.other(wire.ProtoTCP, toClient)
	}
	s := w.p.holds.shard(key, w.p.cfg.Seed)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[key]
	if c == nil || !c.has || c.session.record() != r.record() {
		if sm.stage.Load() > replaying {
			pk.client = rec.shift() // a moment ago
			return &sm.tr
		}
		w.drop(pk, NoSession)
		return nil
	}
	if r.dir() == toNode {
		c.tags = w.tagsOf(pk)
	}
	if c.kept != nil && c.kept.relay != nil {
		return w.relay(pk, s, c, r, &seg)
	}
	var ev splice.Event
	var forward bool
	if r.dir() == toNode {
		ev, forward = c.conn.FromClient(w.now, &seg, w.emitter(c))
	} else {
		if seg.Flags&(splice.SYN|splice.ACK|splice.RST) == splice.SYN|splice.ACK && c.node != nil {
			w.synAnswered(c.node)
		}
		w.limitMSS(rec, &seg, pk.v.Version == 6)
		ev, forward = c.conn.FromServer(w.now, &seg, w.emitter(c))
	}
	pk.verdict = Held
	w.act(s, c, ev)
	if !forward {
		return nil
	}
	w.p.read(r, func(f *reader) { f.take(w.now, r.dir(), &seg, sm.tr.Seq) })
	return &sm.tr
}

// limitMSS lowers the largest segment that a node says it takes to what the way to it takes.
func (w *Worker) limitMSS(rec *record, seg *splice.Segment, v6 bool) {
	if seg.Flags&splice.SYN == 0 {
		return
	}
	if limit := w.way(rec.way).limit(v6, &rec.node); limit != 0 {
		seg.Options.MSS = min(seg.Options.MSS, limit)
	}
	if !w.link.Ethernet {
		return
	}
	headers := 40
	if v6 {
		headers = 60
	}
	if hop, ok := w.p.cfg.NextHop(addrPort(&rec.node).Addr()); ok && hop.MTU > headers {
		seg.Options.MSS = uint16(min(int(seg.Options.MSS), hop.MTU-headers))
	}
}

// act does what an event of a connection calls for.
func (w *Worker) act(s *holdShard, c *held, ev splice.Event) {
	if int(c.svc.no) >= len(w.stats.services) || c.node != nil && int(c.node.no) >= len(w.stats.nodes) {
		w.renew()
	}
	switch ev {
	case splice.MoreData, splice.Full:
		if c.pool == nil && c.kept == nil {
			w.read(s, c, ev == splice.Full)
		}
	case splice.ServerLost:
		w.stats.nodes[c.node.no].Refused++
		if c.kept != nil {
			c.kept.lost(w, c)
		}
		w.leave(c)
		w.place(s, c)
	case splice.Established:
		w.established(c)
	case splice.TimeUp:
		w.stats.services[c.svc.no].Refused++
		w.stats.drops[TooSlow]++
		w.forget(s, c)
	case splice.Gone:
		w.forget(s, c)
	case splice.Done:
		if !c.has || !w.inTable(c) {
			w.forget(s, c)
			break
		}
		w.splice(s, c)
	}
	if c.kept != nil {
		w.judge(s, c)
	} else {
		c.conn.Settle(w.now, c.asks, w.emitter(c))
	}
	s.reschedule(c, c.deadline(w.p))
}

// forget ends the balancer's part in a connection that comes to nothing.
func (w *Worker) forget(s *holdShard, c *held) {
	w.leave(c)
	w.p.disown(c.key)
	w.remove(s, c)
}

// remove forgets a connection, and ends what it has parked.
func (w *Worker) remove(s *holdShard, c *held) {
	if w.p.holds.remove(s, c) {
		w.spend(c)
	}
	if c.kept != nil {
		w.unpark(c, 0)
	}
}

// leave takes the session with a node back.
func (w *Worker) leave(c *held) {
	if c.has && w.inTable(c) {
		w.p.sessions().DeleteAt(w.now, c.key)
	}
	c.has, c.node = false, nil
}

// established says that the node answered: from now on segments reach it, translated.
func (w *Worker) established(c *held) {
	p := w.p
	rec, sm := &p.slab.recs[c.session.record()], &p.slab.recs[c.session.record()].seam
	sm.tr = c.translation()
	n := uint32(0)
	if c.kept == nil {
		n = uint32(len(c.conn.Data()))
	}
	flags := uint8(wire.ACK)
	if c.kept == nil && c.conn.EndOfStream() {
		flags |= wire.FIN
	}
	rec.lock.acquire()
	rec.tcp.Update(clienttable.FromClient, wire.SYN, c.isn, 0, 0)
	rec.tcp.Update(clienttable.FromServer, wire.SYN|wire.ACK, c.ourISN, c.isn+1, 0)
	rec.tcp.Update(clienttable.FromClient, flags, c.isn+1, c.ourISN+1, int(n))
	state := rec.tcp
	rec.lock.release()
	w.setLife(wire.ProtoTCP, rec, c.svc, c.svc.timers.TCP(state, rec.vip.Port, c.svc.conf.Mode))
	if c.tls != nil {
		c.tls.Bind(w.now, c.node.id)
		w.readOn(c, n)
	}
	sm.stage.Store(replaying)
	if c.kept != nil {
		w.begun(c)
	}
}

// splice ends the balancer's part in a connection: what follows is translated.
func (w *Worker) splice(s *holdShard, c *held) {
	if c.kept != nil {
		w.stats.spliced--
		if c.kept.relay != nil {
			w.recs[c.session.record()].setShift(c.kept.relay.Client())
		}
	}
	stage := uint32(spliced)
	w.p.read(c.session, func(f *reader) {
		if !f.done() {
			stage = following
		}
	})
	w.p.slab.recs[c.session.record()].seam.stage.Store(stage)
	w.stats.spliced++
	w.p.announce(c.key, &w.p.slab.recs[c.session.record()], c.svc, c.node)
	w.remove(s, c)
}

// inTable reports whether a connection's session is still there.
func (w *Worker) inTable(c *held) bool {
	r, ok := w.p.sessions().PeekAt(w.now, c.key)
	return ok && r == c.session
}
