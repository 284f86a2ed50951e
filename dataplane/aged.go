package dataplane

import (
	"sync"
	"sync/atomic"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// pending holds packets that the Plane sends unasked, until a worker takes them along.
type pending struct {
	some atomic.Bool
	wake chan struct{} // tells Run that some wait
	mu   sync.Mutex
	out  []unasked
}

// unasked is a packet from its IP header on.
type unasked struct {
	ip   []byte
	tags tags
}

// maxPending bounds the packets that wait for a worker; more are not made.
const maxPending = 4096

func (q *pending) add(b []byte, t tags) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.out) == maxPending {
		return
	}
	q.out = append(q.out, unasked{b, t})
	q.some.Store(true)
	q.rouse()
}

// rouse has Run send what waits.
func (q *pending) rouse() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *pending) take() (out []unasked) {
	q.mu.Lock()
	defer q.mu.Unlock()
	out, q.out = q.out, nil
	q.some.Store(false)
	return out
}

// closeAged resets a TCP connection that was forgotten because it was idle, if its service wants that.
func (p *Plane) closeAged(r ref, rec *record) {
	svc := p.snap.Load().service(rec.service)
	if svc == nil || rec.flags&oneWay != 0 {
		return
	}
	whom := svc.timers.CloseAtAgeing()
	if whom != clienttable.CloseNone {
		p.resetEnds(r, rec, whom)
	}
}

// resetEnds resets a TCP connection towards one or both of its ends, as far as it is known what they will believe.
func (p *Plane) resetEnds(r ref, rec *record, whom clienttable.CloseTo) {
	t, ok := rec.tags()
	if !ok {
		return // who knows who else would get it
	}
	rec.lock.acquire()
	state := rec.tcp
	rec.lock.release()
	version := uint8(6)
	if addrPort(&rec.vip).Addr().Is4() {
		version = 4
	}
	// To the client it comes from the virtual address, to the node from the client, or from
	// what the node takes for it.
	peer := &rec.client
	if rec.flags&hasLocal != 0 {
		peer = &rec.local
	}
	for _, end := range []struct {
		dir      clienttable.Dir
		src, dst *wire.End
	}{{clienttable.FromClient, &rec.vip, &rec.client}, {clienttable.FromServer, peer, &rec.node}} {
		if !whom.To(end.dir) || rec.flags&oneWay != 0 && end.dir == clienttable.FromServer {
			continue
		}
		if seq, ack, ok := state.Reset(end.dir); ok {
			if rec.flags&isDelayed != 0 {
				sm := &p.slab.recs[r.record()].seam
				if sm.stage.Load() == connecting {
					continue
				}
				if end.dir == clienttable.FromServer {
					ack -= sm.tr.Seq
					if sm.stage.Load() == spliced { // else whoever follows it resets the node
						seq += rec.shift()
					}
				}
			}
			b := make([]byte, wire.MaxRST)
			p.pending.add(b[:wire.PutRST(b, version, end.src, end.dst, seq, ack, wire.RST|wire.ACK)], t)
		}
	}
}

// takePending sends what waits, ahead of the batch.
func (w *Worker) takePending() {
	if w.dry || !w.p.pending.some.Load() {
		return
	}
	for _, u := range w.p.pending.take() {
		h := Headroom
		if w.link.Ethernet {
			h += 14 + int(u.tags.n)
		}
		buf := w.arena.take(h + len(u.ip))
		clear(buf[:h])
		copy(buf[h:], u.ip)
		if w.originate(buf, h, &u.tags) {
			w.stats.resets++
		}
	}
}
