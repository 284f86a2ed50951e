package dataplane

import (
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// connectingMore is how much longer than its node may take a session lives that waits for it.
const connectingMore = 2 * time.Second

// portTries bounds the search for a source port that tells two sessions apart.
const portTries = 64

// store puts a new session into the table: first the entry of the answers, which fails if
// another session's answers would look the same, then the one of the packets to the node. If
// another worker has begun the same session meanwhile, that one is returned.
func (w *Worker) store(pk *packet, svc *service, n *node, to *wire.End) (ref, Reason) {
	p := w.p
	at, ok := p.slab.alloc(svc.inline || !svc.conf.Forward.direct())
	if !ok {
		return ref{}, TableFull
	}
	rec := &p.slab.recs[at]
	rec.vip, rec.client, rec.node, rec.local = endOf(pk.key.Dst()), endOf(pk.key.Src()), *to, wire.End{}
	rec.flags, rec.nodeNo, rec.service, rec.way = 0, n.no, svc.no, svc.way
	rec.tcp = clienttable.TCPState{}
	switch {
	case svc.inline:
		rec.flags = isInline
		if pk.export {
			rec.flags |= isExported
		}
	case svc.conf.Forward.direct():
		rec.flags = oneWay
		rec.tcp = clienttable.OneWayTCP()
	}
	rec.alive[toNode].Store(w.tick)
	rec.alive[toClient].Store(w.tick)
	rec.entries.Store(2) // both, from the beginning: the first one stored may be removed before the second one is
	rec.aged.Store(0)
	if w.link.Ethernet {
		rec.setTags(w.tagsOf(pk))
	}
	rec.accel.Store(0)
	rec.setCounts(w.tick, [2]Count{})

	life := svc.timers.Life(pk.v.Proto, rec.vip.Port)
	switch pk.v.Proto {
	case wire.ProtoTCP:
		rec.flags |= isTCP
		if svc.delay != nil {
			rec.flags |= isDelayed
			p.slab.recs[at].seam.stage.Store(connecting)
			rec.setShift(0)
		}
		seq, ack := pk.v.Seq(pk.ip)
		st := rec.tcp
		st.Update(clienttable.FromClient, pk.v.TCPFlags, seq, ack, pk.v.PayloadLen())
		life = svc.timers.TCP(st, rec.vip.Port, svc.conf.Mode)
		if svc.delay != nil { // whose node may take so long to answer
			life.TTL = max(life.TTL, min(svc.delay.Limits.ServerTime+connectingMore, clienttable.MaxTTL))
		}
	case wire.ProtoSCTP:
		rec.flags |= isSCTP
	}
	if rec.flags&oneWay != 0 {
		rec.entries.Store(1)
		return w.storeForward(pk, svc, n, at, clienttable.Flow{}, life)
	}
	if len(svc.locals) > 0 {
		w.takeLocal(pk, svc, rec, 0)
	}
	value := ref{at<<1 | toClient, uint32(n.id)}
	for try := uint32(0); ; try++ {
		key := rec.other(pk.v.Proto, toNode)
		_, taken, err := p.sessions().LoadOrStoreLife(w.now, key, value, back(life))
		if err != nil {
			p.slab.giveBack(at)
			return ref{}, TableFull
		}
		if !taken {
			return w.storeForward(pk, svc, n, at, key, life)
		}
		// Another session of this client with this node has the same ports, by way of another
		// virtual address or port: this one gets another source port, if it has ports.
		if try == portTries || svc.inline || pk.v.Mark&wire.Ports == 0 && !pk.v.IsPing() {
			break
		}
		if try == 0 && len(svc.locals) == 0 {
			w.stats.translated++
		}
		w.takeLocal(pk, svc, rec, try+1)
	}
	p.slab.giveBack(at)
	// The session may be another worker's, begun a moment ago.
	if r, ok := p.sessions().LoadAt(w.now, pk.key); ok {
		w.unchoose(n)
		return r, NotDropped
	}
	return ref{}, NoPort
}

// takeLocal chooses, of what the source can become, the try-th of a sequence that is another one for each flow: with FullNAT one
// of the balancer's addresses and a port of it, else another port (or identifier) of the client's address.
func (w *Worker) takeLocal(pk *packet, svc *service, rec *record, try uint32) {
	h := uint32(pk.key.Hash(w.p.cfg.Seed)>>32) + try*0x9e3779b1
	rec.flags |= hasLocal
	rec.local = rec.client
	if n := len(svc.locals); n > 0 {
		rec.local.Addr = svc.locals[uint64(h>>16)*uint64(n)>>16]
	}
	if pk.v.Mark&wire.Ports != 0 || pk.v.IsPing() {
		rec.local.Port = uint16(firstLocal + h%(1<<16-firstLocal))
		w.p.sameWorker(rec, pk.v.Version)
	}
}

// sameWorker moves the local port of a session on until answers to it meet the worker that the client's packets meet.
func (p *Plane) sameWorker(rec *record, version uint8) {
	n := p.spreadOver.Load()
	if n < 2 {
		return
	}
	want := spreadEnd(&rec.client, version) % n
	for range 16 * n { // where there is none near, it is only slower
		if spreadEnd(&rec.local, version)%n == want {
			return
		}
		rec.local.Port = max(rec.local.Port+1, firstLocal)
	}
}

// firstLocal is the first of the balancer's own ports.
const firstLocal = 1024

func (w *Worker) storeForward(pk *packet, svc *service, n *node, at uint32, back clienttable.Flow, life clienttable.Life) (ref, Reason) {
	p := w.p
	r := ref{at<<1 | toNode, uint32(n.id)}
	got, loaded, err := p.sessions().LoadOrStoreLife(w.now, pk.key, r, life)
	if err == nil && !loaded && back != (clienttable.Flow{}) && p.slab.recs[at].entries.Load() < 2 && !w.storeBackAgain(pk, n, at, back, life) {
		return ref{}, TableFull
	}
	if err == nil && !loaded {
		w.p.lost.begun(w.now, pk.key)
		w.stats.nodes[n.no].Sessions++
		w.stats.services[svc.no].Sessions++
		w.associate(pk, svc, n)
		p.announce(pk.key, &p.slab.recs[at], svc, n)
		return r, NotDropped
	}
	if back != (clienttable.Flow{}) {
		p.sessions().DeleteAt(w.now, back)
	}
	if p.slab.recs[at].entries.Add(-1) == 0 {
		p.slab.giveBack(at)
	}
	if err != nil {
		return ref{}, TableFull
	}
	w.unchoose(n)
	return got, NotDropped
}

// storeBackAgain stores the entry of the answers once more: it made room for the one of the packets to the node, which can be where there are more sessions than
// there may be from now on, and half-open ones make room. That one is kept from doing the same.
func (w *Worker) storeBackAgain(pk *packet, n *node, at uint32, key clienttable.Flow, life clienttable.Life) bool {
	p, rec := w.p, &w.p.slab.recs[at]
	if !rec.entries.CompareAndSwap(1, 2) {
		return true // another worker has ended the session since, and given its record back
	}
	firm := life
	firm.Class = clienttable.Established
	p.sessions().SetLife(w.now, pk.key, firm)
	_, taken, err := p.sessions().LoadOrStoreLife(w.now, key, ref{at<<1 | toClient, uint32(n.id)}, back(life))
	p.sessions().SetLife(w.now, pk.key, life)
	if err == nil && !taken {
		return true
	}
	if rec.entries.Add(-1) == 0 {
		p.slab.giveBack(at)
	} else {
		p.sessions().DeleteAt(w.now, pk.key)
	}
	if n.pool.Pool != nil { // the session has given its node's count back, and so will the caller
		n.pool.adopt(n.id)
	}
	return false
}

// associate remembers the client's node, if the service's mode says so.
func (w *Worker) associate(pk *packet, svc *service, n *node) {
	k, ok := svc.association(pk.key)
	if d := svc.delay; d != nil && pk.v.Proto == wire.ProtoTCP {
		if d.Sessions != nil {
			return // which remembers clients in its own way
		}
		if d.Rules != nil {
			k, ok = svc.farmKey(n.pool, pk.key)
		}
	}
	if !ok {
		return
	}
	was, ok := w.p.assocs().LoadAt(w.now, k)
	if ok && was.node == uint32(n.id) && was.service == svc.no {
		w.retell(svc, k, was)
		return
	}
	w.bind(svc, k, binding{uint32(n.id), svc.no, was.at})
}

// bind remembers an association from now on. What the balancers of a cluster knew before is older.
func (w *Worker) bind(svc *service, k clienttable.Association, b binding) {
	b.at = max(w.now.UnixNano(), b.at+1)
	// A table full of clients forgets the one unused longest; there is no error to handle.
	_ = w.p.assocs().StoreLife(w.now, k, b, svc.timers.Life(0, 0))
}

// retell has balancers that follow know that an association is still in use, before it ages there.
func (w *Worker) retell(svc *service, k clienttable.Association, b binding) {
	if w.p.cfg.AssociationChanges > 0 && w.now.UnixNano()-b.at >= int64(svc.timers.Life(0, 0).TTL/2) {
		w.bind(svc, k, b)
	}
}
