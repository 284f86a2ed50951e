package dataplane

import (
	"slices"
	"time"

	"github.com/lbprim/lbprim/clienttable"
)

// watchers are the captures and traces under way. It is immutable; there is none on the fast path.
type watchers struct {
	captures []*Capture
	traces   []*Trace
}

// watch changes the watchers.
func (p *Plane) watch(change func(*watchers)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next watchers
	if old := p.watchers.Load(); old != nil {
		next.captures, next.traces = slices.Clone(old.captures), slices.Clone(old.traces)
	}
	change(&next)
	if len(next.captures)+len(next.traces) == 0 {
		p.watchers.Store(nil)
		return
	}
	p.watchers.Store(&next)
}

// sight is what a worker notes of a packet that is watched, until it is known what became of it.
type sight struct {
	on      *watchers // nil: the packet is not watched
	raw     []byte    // as it came, from the Ethernet header on if there is one
	buf     []byte
	size    int // of the whole packet
	flow    clienttable.Flow
	session clienttable.Flow // from the client to the virtual address, if that is known
	traced  bool
}

// see begins to watch a packet whose headers have been read, or could not be. r is its session's entry, if it has one.
func (w *Worker) see(pk *packet, r ref, known bool) {
	s := &w.sight
	s.on, s.flow, s.session = nil, clienttable.Flow{}, clienttable.Flow{}
	on := w.p.watchers.Load()
	if on == nil || w.dry {
		return
	}
	if pk.ip != nil {
		s.flow = pk.key
		if known {
			s.session = w.recs[r.record()].other(pk.key.Protocol(), toClient)
		}
	}
	keep := -1
	for _, c := range on.captures {
		if c.cfg.flow(s.flow) || known && c.cfg.flow(s.session) {
			keep = max(keep, c.cfg.SnapLen)
		}
	}
	s.traced = slices.ContainsFunc(on.traces, func(t *Trace) bool {
		return (t.cfg.flow(s.flow) || known && t.cfg.flow(s.session)) && t.rate.allow(w.now)
	})
	if keep < 0 && !s.traced {
		return
	}
	s.on, s.size = on, len(pk.buf)-Headroom
	s.buf = append(s.buf[:0], pk.buf[Headroom:Headroom+min(s.size, max(keep, 0))]...)
	s.raw = s.buf
	if s.traced {
		w.tr = new(tracer)
	}
}

// unread drops a packet whose headers cannot be read.
func (w *Worker) unread(pk *packet, r Reason) {
	if w.p.watchers.Load() == nil {
		w.drop(pk, r)
		return
	}
	w.see(pk, ref{}, false)
	w.drop(pk, r)
	w.seen(pk)
}

// seen tells who watches what became of the packet.
func (w *Worker) seen(pk *packet) {
	s := &w.sight
	if s.on == nil {
		return
	}
	e := Explanation{}
	if s.traced {
		e, w.tr = w.tr.e, nil
	}
	e.Flow, e.Verdict = s.flow, pk.verdict
	if e.Verdict == Dropped {
		e.Reason = pk.reason
	}
	if pk.service != 0 {
		e.Service = w.snap.serviceName(pk.service - 1)
	}
	if pk.known {
		rec := &w.recs[pk.session.record()]
		w.service(rec)
		e.Known, e.Backwards = true, pk.session.dir() == toClient
		e.Service, e.Node = w.snap.serviceName(rec.service), w.snap.nodes[rec.nodeNo].name
	}
	if pk.verdict == Forwarded && pk.ip != nil {
		e.Out = flowOf(pk.ip, &pk.v)
	}
	for _, c := range s.on.captures {
		if (c.cfg.flow(s.flow) || s.session != (clienttable.Flow{}) && c.cfg.flow(s.session)) && c.cfg.fate(&e) {
			c.add(w, s, &e)
		}
	}
	if !s.traced {
		return
	}
	for _, t := range s.on.traces {
		if (t.cfg.flow(s.flow) || s.session != (clienttable.Flow{}) && t.cfg.flow(s.session)) && t.cfg.fate(&e) {
			t.add(w.now, &e)
		}
	}
}

// rate allows so many events a second, in bursts of as many.
type rate struct {
	lock  spinLock
	limit float64
	left  float64
	last  time.Time
}

func (r *rate) allow(now time.Time) bool {
	r.lock.acquire()
	defer r.lock.release()
	if d := now.Sub(r.last); d > 0 {
		r.left = min(r.limit, r.left+d.Seconds()*r.limit)
		r.last = now
	}
	if r.left < 1 {
		return false
	}
	r.left--
	return true
}
