package dataplane

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering/path"
)

// Bounds of the fragment table.
const (
	fragmentLife = 30 * time.Second
	maxDatagrams = 1 << 14
	maxSpans     = 64 // pieces of one datagram that are not next to each other
	maxHeld      = 64 // fragments of one datagram that wait for the first
	maxHeldBytes = 4 << 20
)

// fragments remembers the datagrams that arrive in fragments: later fragments carry no
// ports, and follow the first one, which may come after them. All workers share it.
type fragments struct {
	some  atomic.Bool // m may have some
	mu    sync.Mutex
	m     map[clienttable.Flow]*datagram
	order []*datagram // by age, some of them gone
	held  int         // bytes
	lost  int         // fragments that waited in vain, until step tells
	sent  identifications
	over  []clienttable.Flow // announced to peers, and forgotten
	told  int                // packets announced since the last Step
}

// datagram is what is known of a fragmented packet.
type datagram struct {
	key     clienttable.Flow
	gone    bool // from the table
	born    time.Time
	known   bool   // the first fragment was seen
	bad     bool   // fragments overlap: nothing more of it is forwarded
	told    bool   // to the peers
	asked   bool   // they were
	course  course // if known
	spans   []span // sorted, disjoint, not adjacent
	end     uint32 // of the last fragment; 0 while that was not seen
	waiting [][]byte
}

type span struct{ from, to uint32 }

// course is what became of a packet's first fragment, and becomes of the others.
type course struct {
	fate    fate
	session clienttable.Flow // that it follows
	id      uint32           // the identification that it leaves with
	dscp    path.DSCP        // of what passes or is routed
	service uint32           // that routes it
}

type fate uint8

const (
	follows fate = iota // its session
	passes              // on as it came, since it belongs to none
	routes              // on by a service that has no nodes
	echoes              // back to who sent it
)

func newFragments() *fragments { return &fragments{m: make(map[clienttable.Flow]*datagram)} }

// fragmentKey is what fragments of one packet have in common (RFC 791, RFC 8200).
func fragmentKey(b []byte, v *wire.View) clienttable.Flow {
	if v.Version == 4 {
		return clienttable.MakeFlow4(v.Proto, [4]byte(b[12:16]), [4]byte(b[16:20]), 0, uint16(v.FragID))
	}
	return clienttable.MakeFlow6(wire.ProtoFragment, [16]byte(b[8:24]), [16]byte(b[24:40]), uint16(v.FragID>>16), uint16(v.FragID))
}

// datagram returns what is known, or begins to know it. Where there is no room, a first fragment makes it, and nil is returned
// for another one: it would drive out those that it might follow. f.mu is held.
func (f *fragments) datagram(now time.Time, k clienttable.Flow, first bool) *datagram {
	d := f.m[k]
	if d != nil && now.Sub(d.born) < fragmentLife {
		return d
	}
	if d != nil {
		f.forget(d)
	}
	if len(f.m) >= maxDatagrams {
		f.age(now)
	}
	if len(f.m) >= maxDatagrams {
		if !first {
			return nil
		}
		f.forget(f.oldest())
	}
	if len(f.order) >= 2*maxDatagrams {
		f.order = slices.DeleteFunc(f.order, func(d *datagram) bool { return d.gone })
	}
	d = &datagram{key: k, born: now}
	f.m[k] = d
	f.order = append(f.order, d)
	f.some.Store(true)
	return d
}

// oldest returns the oldest datagram, or nil.
func (f *fragments) oldest() *datagram {
	for len(f.order) > 0 {
		if d := f.order[0]; !d.gone {
			return d
		}
		f.order[0] = nil
		f.order = f.order[1:]
	}
	return nil
}

// age forgets what is too old.
func (f *fragments) age(now time.Time) {
	for d := f.oldest(); d != nil && now.Sub(d.born) >= fragmentLife; d = f.oldest() {
		f.forget(d)
	}
}

func (f *fragments) forget(d *datagram) {
	delete(f.m, d.key)
	d.gone = true
	if d.told {
		f.over = append(f.over, d.key)
	}
	for _, b := range d.waiting {
		f.held -= len(b)
	}
	f.lost += len(d.waiting)
	d.waiting, d.spans = nil, nil
}

// complete reports whether every fragment was seen. Then the sender may use the identification for another packet,
// and the datagram is to be forgotten.
func (d *datagram) complete() bool {
	return d.known && d.end != 0 && len(d.spans) == 1 && d.spans[0] == span{0, d.end}
}

// add notes a fragment's bytes, and reports whether they are new.
func (d *datagram) add(s span, last bool) Reason {
	if !d.bad && (d.end != 0 && (s.to > d.end || last && s.to != d.end) || last && len(d.spans) > 0 && d.spans[len(d.spans)-1].to > s.to) {
		d.bad = true // two ends, or something behind the end
	}
	if d.bad {
		return FragmentOverlap
	}
	if last {
		d.end = s.to
	}
	i, _ := slices.BinarySearchFunc(d.spans, s, func(a, b span) int { return int(int64(a.from) - int64(b.from)) })
	if i > 0 && d.spans[i-1].to > s.from || i < len(d.spans) && d.spans[i].from < s.to {
		if !slices.ContainsFunc(d.spans, func(o span) bool { return o.from <= s.from && s.to <= o.to }) {
			d.bad = true // RFC 5722: the datagram is given up; a mere repetition is dropped alone
		}
		return FragmentOverlap
	}
	left, right := i > 0 && d.spans[i-1].to == s.from, i < len(d.spans) && d.spans[i].from == s.to
	switch {
	case left && right:
		d.spans[i-1].to = d.spans[i].to
		d.spans = slices.Delete(d.spans, i, i+1)
	case left:
		d.spans[i-1].to = s.to
	case right:
		d.spans[i].from = s.from
	case len(d.spans) == maxSpans:
		return FragmentsFull
	default:
		d.spans = slices.Insert(d.spans, i, s)
	}
	return NotDropped
}

// spanOf returns the part of its packet that a fragment carries: with IPv6, extension headers behind the fragment
// header included.
func spanOf(v *wire.View) span {
	from := v.L4
	if v.FragAt != 0 {
		from = v.FragAt + 8
	}
	return span{v.FragOff, v.FragOff + v.End - from}
}

// first notes the first fragment of a packet and returns those that waited for it. Where the packet is to be
// translated, out is what its fragments will have in common then; c.id becomes their identification.
func (f *fragments) first(now time.Time, k clienttable.Flow, v *wire.View, c *course, out *clienttable.Flow) (waiting [][]byte, r Reason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.datagram(now, k, true)
	if r := d.add(spanOf(v), v.Mark&wire.MoreFrags == 0); r != NotDropped {
		return nil, r
	}
	if c.id = v.FragID; out != nil {
		c.id = f.sent.choose(now, k, *out, v.Version == 6)
	}
	d.known, d.course = true, *c
	waiting, d.waiting = d.waiting, nil
	for _, b := range waiting {
		f.held -= len(b)
	}
	if d.complete() {
		f.forget(d)
	}
	return waiting, NotDropped
}

// later notes a later fragment. Where the first one is known it returns its course; else it
// keeps a copy of buf, and held is true.
func (f *fragments) later(now time.Time, k clienttable.Flow, v *wire.View, buf []byte) (c course, held bool, r Reason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.datagram(now, k, false)
	if d == nil {
		return c, false, FragmentsFull
	}
	if r := d.add(spanOf(v), v.Mark&wire.MoreFrags == 0); r != NotDropped {
		return c, false, r
	}
	if d.known {
		if d.complete() {
			f.forget(d)
		}
		return d.course, false, NotDropped
	}
	if len(d.waiting) == maxHeld || f.held+len(buf) > maxHeldBytes {
		return c, false, FragmentsFull
	}
	d.waiting = append(d.waiting, slices.Clone(buf))
	f.held += len(buf)
	return c, true, NotDropped
}

// step forgets what is too old and returns how many fragments waited in vain.
func (f *fragments) step(now time.Time) (lost int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.age(now)
	f.some.Store(len(f.m) > 0)
	lost, f.lost = f.lost, 0
	return lost
}

// each calls f with what becomes of the fragments of every packet that a service routes.
func (f *fragments) each(g func(c *course)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.m {
		if d.known && d.course.fate == routes {
			g(&d.course)
		}
	}
}

// knows reports whether the first fragment of a packet was seen.
func (f *fragments) knows(now time.Time, k clienttable.Flow) bool {
	if !f.some.Load() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.m[k]
	return d != nil && d.known && now.Sub(d.born) < fragmentLife
}

// firstFragment opens the way for the later fragments of pk, which is about to be forwarded, passed on or echoed. rec is the
// session that will translate it in a direction, if one does. c says what becomes of it, and is returned in full.
func (w *Worker) firstFragment(pk *packet, c course, rec *record, dir uint32) (_ course, waiting [][]byte, ok bool) {
	c.session, c.id = pk.key, pk.v.FragID
	if w.dry {
		return c, nil, true
	}
	if c.fate == passes || c.fate == routes {
		c.dscp = w.markOf(pk, false).DSCP
	}
	var out *clienttable.Flow
	switch {
	case rec != nil && rec.flags&asIs == 0:
		src, dst := rec.ends(dir)
		k := sentAs(pk.ip, &pk.v, src, dst)
		out = &k
	case c.fate == echoes:
		src, dst := endOf(pk.key.Dst()), endOf(pk.key.Src())
		k := sentAs(pk.ip, &pk.v, &src, &dst)
		out = &k
	}
	k := fragmentKey(pk.ip, &pk.v)
	waiting, r := w.p.fragments.first(w.now, k, &pk.v, &c, out)
	if r != NotDropped {
		w.drop(pk, r)
		return c, nil, false
	}
	if w.p.cfg.Peers != nil {
		w.announceFragments(k, &c, rec)
	}
	pk.v.SetFragID(pk.ip, c.id)
	return c, waiting, true
}

// release deals with fragments that had to wait for the first one.
func (w *Worker) release(waiting [][]byte, c course) {
	for _, b := range waiting {
		var pk packet
		pk.buf = w.arena.take(len(b))
		copy(pk.buf, b)
		in := w.stats.in
		r := w.parse(&pk)
		w.stats.in = in // it was counted when it came
		if r == NotDropped && pk.ip != nil {
			w.follow(&pk, c)
		}
	}
}

// laterFragment handles a fragment without ports.
func (w *Worker) laterFragment(pk *packet) {
	src, dst := addrOf(pk.v.Src(pk.ip)), addrOf(pk.v.Dst(pk.ip))
	k := fragmentKey(pk.ip, &pk.v)
	// A session outlives its service, and what the configuration knows of the addresses.
	if !w.snap.table.OwnsVIP(dst) && len(w.snap.ends[src]) == 0 && w.snap.inline == nil && !w.p.fragments.knows(w.now, k) {
		if w.snap.foreign == Drop {
			w.drop(pk, ForeignPacket)
			return
		}
		w.pass(pk)
		return
	}
	if w.tr != nil {
		w.tr.step("fragment", "follows the first fragment of its packet")
	}
	if w.dry {
		w.drop(pk, FragmentLost)
		return
	}
	c, held, r := w.p.fragments.later(w.now, k, &pk.v, pk.buf)
	switch {
	case r != NotDropped:
		w.drop(pk, r)
	case held:
		pk.verdict = Held
		w.askFragments(k)
	default:
		w.follow(pk, c)
	}
}

// follow sends a later fragment after its first one.
func (w *Worker) follow(pk *packet, c course) {
	pk.v.SetFragID(pk.ip, c.id)
	switch c.fate {
	case passes:
		w.setDSCP(pk, c.dscp)
		w.passOn(pk)
		return
	case routes:
		if int(c.service) >= len(w.stats.services) {
			w.renew() // the first one has met another worker, and a newer configuration
		}
		w.routeOn(pk, c.service, c.dscp)
		return
	case echoes:
		w.echoFragment(pk)
		return
	}
	r, ok := w.p.sessions().LoadAt(w.now, c.session)
	if !ok {
		w.drop(pk, FragmentLost)
		return
	}
	rec := &w.p.slab.recs[r.record()]
	w.service(rec)
	pk.session, pk.known = r, true
	w.count(r, rec, len(pk.ip))
	switch {
	case rec.flags&asIs != 0:
		w.deliver(pk, rec)
	case len(pk.ip) > w.snap.narrow && r.dir() == toNode && !w.fitsWay(pk, rec):
	case w.translate(pk, rec, r.dir()):
		w.forward(pk)
	}
}
