package dataplane

import (
	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// hit handles a packet of a known session.
func (w *Worker) hit(pk *packet, r ref) {
	rec, dir := &w.p.slab.recs[r.record()], r.dir()
	if rec.entries.Load() == 0 {
		// The session ended since it was looked up: by an earlier packet of this batch, for one.
		w.fresh = true
		w.miss(pk)
		return
	}
	svc := w.service(rec)
	if w.tr != nil {
		w.tr.session(w, rec, dir)
	}
	if rec.flags&isTCP != 0 && !w.track(pk, svc, rec, dir) {
		w.miss(pk)
		return
	}
	if was := rec.alive[dir].Load(); w.tick-was > svc.touch/4 {
		w.used(pk.v.Proto, rec, svc, dir, was)
	}
	if w.tick-rec.alive[dir^1].Load() >= svc.touch {
		w.keepAlive(pk.v.Proto, rec, dir)
	}
	var waiting [][]byte
	if pk.v.Mark&wire.Fragment != 0 {
		var ok bool
		if waiting, ok = w.firstFragment(pk, false); !ok {
			return
		}
	}
	n := len(pk.ip)
	if pk.v.TCPFlags&wire.SYN != 0 {
		w.clamp(pk, rec)
	}
	if rec.flags&oneWay != 0 {
		if !w.deliver(pk, rec) {
			return
		}
	} else if !w.translate(pk, rec, dir) {
		return
	}
	if dir == toNode {
		w.stats.nodes[rec.nodeNo].In.add(n)
		w.stats.services[rec.service].In.add(n)
	} else {
		w.stats.nodes[rec.nodeNo].Out.add(n)
		w.stats.services[rec.service].Out.add(n)
	}
	if rec.flags&oneWay == 0 {
		w.forward(pk)
	}
	if len(waiting) > 0 {
		w.release(waiting, pk.key, false)
	}
}

// clamp lowers the MSS of a SYN or SYN-ACK to what fits the way to the nodes.
func (w *Worker) clamp(pk *packet, rec *record) {
	mss := w.snap.ways[rec.way].limit(pk.v.Version == 6, &rec.node)
	if mss == 0 {
		return
	}
	switch pk.v.ClampMSS(pk.ip, mss, pk.partial) {
	case wire.MSSLowered:
		w.stats.clamped++
	case wire.MSSMalformed:
		w.stats.malformed++
	}
}

// service returns a session's service, and sees to it that the batch's configuration knows everything else
// that its record names.
func (w *Worker) service(rec *record) *service {
	svc := w.snap.service(rec.service)
	if svc == nil || int(rec.nodeNo) >= len(w.stats.nodes) || int(rec.way) >= len(w.snap.ways) {
		// Made by another worker, under a configuration newer than this batch's.
		w.renew()
		svc = w.snap.service(rec.service)
	}
	return svc
}

// renew takes up the newest configuration within a batch.
func (w *Worker) renew() {
	w.snap = w.p.snap.Load()
	w.stats.fit(w.snap)
}

func (s *snapshot) service(no uint32) *service {
	if int(no) < len(s.services) {
		return s.services[no]
	}
	return nil
}

// untranslatable drops packets whose addresses are fixed, or are not what they seem.
func (w *Worker) untranslatable(pk *packet) bool {
	switch m := pk.v.Mark; {
	case m&wire.Routed != 0:
		w.drop(pk, SourceRouted)
	case m&wire.Authentic != 0:
		w.drop(pk, Authentic)
	default:
		return false
	}
	return true
}

// translate rewrites a packet as its session wants it. It drops those that cannot be.
func (w *Worker) translate(pk *packet, rec *record, dir uint32) bool {
	v := &pk.v
	if v.Mark&(wire.Routed|wire.Authentic) != 0 {
		return !w.untranslatable(pk)
	}
	sport, dport := v.SrcPort, v.DstPort
	src, dst := rec.ends(dir)
	if dst != nil {
		v.SetDst(pk.ip, dst, pk.partial)
	}
	if src != nil {
		v.SetSrc(pk.ip, src, pk.partial)
	}
	if rec.flags&isSCTP != 0 && (sport != v.SrcPort || dport != v.DstPort) {
		if v.Mark&wire.Fragment != 0 {
			w.drop(pk, BadFragment) // a CRC cannot be mended without the rest
			return false
		}
		v.FixSCTP(pk.ip, castagnoli)
	}
	return true
}

// used notes that a direction has had a packet, and now and then keeps the client's association alive for
// as long as the session is.
func (w *Worker) used(proto uint8, rec *record, svc *service, dir, was uint32) {
	if w.tr != nil {
		return
	}
	rec.alive[dir].Store(w.tick)
	if w.tick/svc.touch == was/svc.touch {
		return
	}
	if a, ok := svc.association(rec.other(proto, toClient)); ok {
		w.p.assocs.LoadAt(w.now, a)
	}
}

// keepAlive touches the entry of the other direction, which has had no packet for a while: a session with traffic in
// one direction only is alive all the same. The entries are touched together at the end of the chunk.
func (w *Worker) keepAlive(proto uint8, rec *record, dir uint32) {
	if w.tr != nil || rec.flags&oneWay != 0 || w.stale == len(w.others) {
		return
	}
	rec.alive[dir^1].Store(w.tick)
	w.others[w.stale] = rec.other(proto, dir)
	w.stale++
}

// association returns the key under which the client of a flow to a VIP is remembered, if it is.
func (s *service) association(k clienttable.Flow) (a clienttable.Association, ok bool) {
	switch mode := s.conf.Mode; {
	case !mode.FullKey():
		if isPing(k.Protocol()) {
			return a, false
		}
		return clienttable.RegularKeyOf(k, s.clients), true
	case mode.SameServer():
		return clienttable.FarmKey(s.pool.no, k.Src().Addr(), s.clients), true
	}
	return a, false
}

func isPing(proto uint8) bool { return proto == wire.ProtoICMP || proto == wire.ProtoICMPv6 }
