package dataplane

import (
	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
)

// hit handles a packet of a known session.
func (w *Worker) hit(pk *packet, r ref) {
	rec, dir := &w.recs[r.record()], r.dir()
	if rec.entries.Load() == 0 {
		// The session ended since it was looked up: by an earlier packet of this batch, for one.
		w.fresh = true
		w.miss(pk)
		return
	}
	if !w.knows(rec) { // as service, without a call
		w.renew()
	}
	svc := w.snap.services[rec.service]
	pk.session, pk.known = r, true
	if w.tr != nil {
		w.tr.session(w, rec, dir)
	}
	if pk.v.Mark&unfit != 0 && w.untranslatable(pk, rec.flags&asIs != 0) {
		return
	}
	if len(pk.ip) > w.snap.narrow && dir == toNode && rec.flags&asIs == 0 && !w.fitsWay(pk, rec) {
		return
	}
	var tr *splice.Translation
	if rec.flags&isDelayed != 0 {
		if tr = w.seamOf(pk, r, rec); tr == nil {
			return
		}
		if dir == toClient {
			w.renumber(pk, tr, dir) // sessions are tracked by the numbers that the client knows
		}
	}
	if pk.v.TCPFlags&ending != 0 && rec.accel.Load() != 0 && !w.dry {
		w.p.fallBack(rec, pk.v.Proto)
	}
	if rec.flags&isTCP != 0 && !w.track(pk, svc, rec, dir) {
		w.miss(pk)
		return
	}
	if tr != nil && dir == toNode {
		w.renumber(pk, tr, dir)
	}
	if was := rec.alive[dir].Load(); w.tick-was > svc.touch/4 {
		w.used(pk.v.Proto, rec, svc, dir, was)
		if tr != nil && !w.dry {
			w.p.touched(w.now, r)
		}
	}
	if w.tick-rec.alive[dir^1].Load() >= svc.touch {
		w.keepAlive(pk.v.Proto, rec, dir)
	}
	var waiting [][]byte
	var c course
	if pk.v.Mark&wire.Fragment != 0 {
		var ok bool
		if c, waiting, ok = w.firstFragment(pk, course{fate: follows}, rec, dir); !ok {
			return
		}
	}
	n := len(pk.ip)
	if pk.v.TCPFlags&wire.SYN != 0 {
		w.clamp(pk, rec)
	}
	if rec.flags&asIs != 0 {
		if !w.deliver(pk, rec) {
			w.stats.drops[FragmentLost] += uint64(len(waiting))
			return
		}
	} else if !w.translate(pk, rec, dir) {
		w.stats.drops[FragmentLost] += uint64(len(waiting))
		return
	}
	if packets := w.count(r, rec, n); w.p.accel.dev != nil {
		w.wanted(pk, rec, packets)
	}
	if rec.flags&asIs == 0 {
		w.forward(pk)
		if pk.v.TCPFlags&wire.SYN != 0 && pk.verdict == Forwarded {
			w.handshake(pk, rec, dir)
		}
	}
	if len(waiting) > 0 {
		w.release(waiting, c)
	}
}

// fitsWay is fits for the way to the node, as far as its service says how wide that is.
func (w *Worker) fitsWay(pk *packet, rec *record) bool {
	mtu := w.way(rec.way).mtu
	return mtu == 0 || w.fits(pk, mtu)
}

// count counts a packet of n bytes of a session, and returns how many of its direction there were, see record.meter.
func (w *Worker) count(r ref, rec *record, n int) (packets uint64) {
	if !w.dry {
		packets = rec.meter(r.dir(), n)
	}
	if r.dir() == toNode {
		w.stats.nodes[rec.nodeNo].In.add(n)
		w.stats.services[rec.service].In.add(n)
	} else {
		w.stats.nodes[rec.nodeNo].Out.add(n)
		w.stats.services[rec.service].Out.add(n)
	}
	return packets
}

// clamp lowers the MSS of a SYN or SYN-ACK to what fits the way to the nodes.
func (w *Worker) clamp(pk *packet, rec *record) {
	y := w.way(rec.way)
	mss := y.limit(pk.v.Version == 6, &rec.node)
	if mss == 0 {
		return
	}
	if y.forward == Tunnelled {
		mss -= uint16(y.mtu - w.pathMTU(y, addrPort(&rec.node).Addr()))
	}
	switch pk.v.ClampMSS(pk.ip, mss, pk.partial) {
	case wire.MSSLowered:
		w.stats.clamped++
	case wire.MSSMalformed:
		w.stats.malformed++
	}
}

// service returns a session's service, and sees to it that the batch's configuration knows its node, too.
func (w *Worker) service(rec *record) *service {
	if !w.knows(rec) {
		w.renew()
	}
	return w.snap.services[rec.service]
}

// knows reports whether the batch's configuration knows the service and the node that a record names; otherwise it was made by another worker, under a
// newer one.
func (w *Worker) knows(rec *record) bool {
	return int(rec.service) < len(w.snap.services) && w.snap.services[rec.service] != nil && int(rec.nodeNo) < len(w.stats.nodes)
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

// unfit marks packets that untranslatable has to look at.
const unfit = wire.Routed | wire.Authentic | wire.NoSum

// untranslatable drops packets whose addresses are fixed, or are not what they seem, and those that have no checksum where
// there must be one. direct says that the packet reaches its node as it is.
func (w *Worker) untranslatable(pk *packet, direct bool) bool {
	switch m := pk.v.Mark; {
	case m&wire.Routed != 0:
		w.drop(pk, SourceRouted)
	case m&wire.Authentic != 0 && !direct:
		w.drop(pk, Authentic)
	case m&wire.NoSum != 0 && (pk.v.Version == 6 || pk.v.Proto == wire.ProtoUDPLite) && !pk.partial:
		w.drop(pk, ZeroChecksum) // RFC 8200 section 8.1, RFC 3828 section 3.1
	default:
		return false
	}
	return true
}

// translate rewrites a packet as its session wants it. It drops those that cannot be.
func (w *Worker) translate(pk *packet, rec *record, dir uint32) bool {
	v := &pk.v
	if v.Mark&unfit != 0 && w.untranslatable(pk, false) {
		return false
	}
	sport, dport := v.SrcPort, v.DstPort
	src, dst := rec.ends(dir)
	v.Rewrite(pk.ip, src, dst, pk.partial)
	if rec.flags&isSCTP != 0 && (sport != v.SrcPort || dport != v.DstPort) {
		if v.Mark&wire.Fragment != 0 {
			w.drop(pk, BadFragment) // a CRC cannot be mended without the rest
			return false
		}
		v.FixSCTP(pk.ip, castagnoli)
	}
	pk.rec, pk.dir = rec, dir
	return true
}

// untranslate gives a packet that is not going to be sent the addresses back that its sender knows, for an ICMP error
// to quote.
func (w *Worker) untranslate(pk *packet) {
	rec := pk.rec
	if rec == nil {
		return
	}
	pk.rec = nil
	unnumber(pk, pk.dir)
	src, dst := &rec.node, &rec.client
	switch {
	case pk.dir == toNode:
		src, dst = &rec.client, &rec.vip
	case rec.flags&hasLocal != 0:
		dst = &rec.local
	}
	pk.v.SetSrc(pk.ip, src, pk.partial)
	pk.v.SetDst(pk.ip, dst, pk.partial)
	if rec.flags&isSCTP != 0 {
		pk.v.FixSCTP(pk.ip, castagnoli)
	}
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
