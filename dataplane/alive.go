package dataplane

import (
	"slices"
	"time"

	"github.com/lbprim/lbprim/clienttable"
)

// others are entries to be kept alive. A worker gathers them, since a look-up costs a fifth where many are made at once: one
// packet in some dozens is due for it, and each one where sessions are met every few seconds.
type others struct {
	n    int
	keys [2 * chunk]clienttable.Flow // a chunk's worth that waits, and what comes from another one
	last time.Time                   // of the packets that keep them alive
	tick uint32                      // of the first

	clients  int
	assocs   [chunk]clienttable.Association
	services [chunk]*service // of assocs
	bindings [chunk]binding
	found    [chunk]bool
}

// some reports whether there is something to be looked up.
func (o *others) some() bool { return o.n+o.clients > 0 }

// note that there is something to be kept alive as of now.
func (o *others) note(w *Worker) {
	if !o.some() {
		o.tick = w.tick
	}
	o.last = w.now
}

// used notes that a direction has had a packet, and now and then keeps the client's association alive for
// as long as the session is.
func (w *Worker) used(proto uint8, rec *record, svc *service, dir, was uint32) {
	if w.dry {
		return
	}
	rec.alive[dir].Store(w.tick)
	if w.tick/svc.touch == was/svc.touch {
		return
	}
	a, ok := svc.association(rec.other(proto, toClient))
	if !ok {
		return
	}
	o := &w.others
	if o.clients == len(o.assocs) {
		w.keepClients()
	}
	o.note(w)
	o.assocs[o.clients], o.services[o.clients] = a, svc
	o.clients++
}

// keepAlive sees to it that the entry of the other direction, which has had no packet for a while, does not age: a session
// with traffic in one direction only is alive all the same.
func (w *Worker) keepAlive(proto uint8, rec *record, dir uint32) {
	o := &w.others
	if w.dry || rec.flags&oneWay != 0 || o.n == len(o.keys) {
		return
	}
	rec.alive[dir^1].Store(w.tick)
	o.note(w)
	o.keys[o.n] = rec.other(proto, dir)
	o.n++
}

// keepClients looks up what used has gathered, at the time of the last packet.
func (w *Worker) keepClients() {
	o := &w.others
	n := o.clients
	o.clients = 0
	w.p.assocs().LoadBatch(o.last, o.assocs[:n], o.bindings[:n], o.found[:n])
	for i := range n {
		if o.found[i] {
			w.retell(o.services[i], o.assocs[i], o.bindings[i])
		}
		o.services[i] = nil
	}
}

// keepOthers looks up what has been gathered, at the time of the last packet.
func (w *Worker) keepOthers() {
	w.keepClients()
	o := &w.others
	for keys := range slices.Chunk(o.keys[:o.n], chunk) {
		w.p.sessions().LoadBatch(o.last, keys, w.refs[:], w.found[:])
	}
	o.n = 0
}

// keepOthers has workers that get no packets look up what they have gathered.
func (p *Plane) keepOthers() {
	p.wmu.Lock()
	ws := slices.Clone(p.workers)
	p.wmu.Unlock()
	for _, w := range ws {
		w.mu.Lock()
		w.keepOthers()
		w.mu.Unlock()
	}
}
