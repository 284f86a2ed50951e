package dataplane

import (
	"sync"
	"time"

	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// reader reads a connection with TLS persistence on its way, until all that is in the clear has passed: what the node's hello says is to be
// learned. Segments are forwarded as they come; the reader puts copies of them in order. Afterwards it stays, to note that the session is in use.
type reader struct {
	mu      sync.Mutex
	tls     *sslpersist.Conn[steering.NodeID]
	sides   [2]assembler // by direction
	settled bool
}

// readOn begins to read a connection of whose stream the first n bytes are read.
func (w *Worker) readOn(c *held, n uint32) {
	_, _ = c.feedTLS(c.conn.Data()) // an error has been dealt with
	f := &reader{tls: c.tls}
	f.sides[toNode].next = c.isn + 1 + n
	f.sides[toClient].next = c.ourISN + 1
	h := w.p.holds
	h.mu.Lock()
	h.readers[c.session.record()] = f
	h.mu.Unlock()
}

// read calls f with a session's reader, if it has one.
func (p *Plane) read(r ref, f func(*reader)) {
	p.holds.mu.Lock()
	x := p.holds.readers[r.record()]
	p.holds.mu.Unlock()
	if x != nil {
		f(x)
	}
}

// unread forgets a session's reader.
func (p *Plane) unread(record uint32) {
	p.holds.mu.Lock()
	delete(p.holds.readers, record)
	p.holds.mu.Unlock()
}

// take reads a segment of a direction, before it is sent on. shift is what the node's sequence numbers lack to those the client knows.
func (f *reader) take(now time.Time, dir uint32, s *splice.Segment, shift uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tls.Touch(now)
	if f.settled {
		return
	}
	if dir == toNode {
		f.sides[dir].add(s.Seq, s.Payload, 0, func(b []byte) { _, _ = f.tls.Client(b) }, nil)
	} else {
		f.sides[dir].add(s.Seq+shift, s.Payload, 0, func(b []byte) { _, _ = f.tls.Server(now, b) }, nil)
	}
	if f.tls.Done() {
		f.settled = true
		f.sides = [2]assembler{}
	}
}

func (f *reader) done() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.settled
}

// readPacket reads a packet of a spliced connection.
func (w *Worker) readPacket(pk *packet, r ref, sm *seam) {
	if w.dry {
		return
	}
	var seg splice.Segment
	if !splice.Parse(pk.ip[pk.v.L4:pk.v.End], &seg) || !pk.partial && !pk.v.SumOK(pk.ip) {
		return // the other end will not read it either
	}
	w.p.read(r, func(f *reader) {
		f.take(w.now, r.dir(), &seg, sm.tr.Seq)
		if f.done() {
			sm.stage.CompareAndSwap(following, spliced)
		}
	})
}

// touched notes that a session is in use.
func (p *Plane) touched(now time.Time, r ref) {
	p.read(r, func(f *reader) { f.tls.Touch(now) })
}
