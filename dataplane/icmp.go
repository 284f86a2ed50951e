package dataplane

import (
	"net/netip"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// icmpError handles an ICMP or ICMPv6 error. Who sent the quoted packet gets it, as far as that
// packet belongs to a session: the quotation, seen backwards, is a packet of the session's other
// direction, and is translated as such (RFC 5508 section 4.2).
//
//	router, or the far end          the error         quotes
//	near the client, about an answer    router > VIP      VIP > client    becomes  router > node, node > client
//	near the node, about a request      router > client   client > node   becomes  router > client, client > VIP
func (w *Worker) icmpError(pk *packet) {
	v := &pk.v
	if v.Mark&(wire.Routed|wire.Authentic|wire.Fragment) != 0 {
		w.icmpForeign(pk, NoQuote)
		return
	}
	var q wire.View
	quote := v.Quote(pk.ip)
	if s := wire.ParseQuoted(quote, &q); s != wire.OK || q.Version != v.Version {
		w.icmpForeign(pk, NoQuote)
		return
	}
	if q.Mark&(wire.LaterFrag|wire.ICMPError) != 0 {
		w.icmpForeign(pk, NoQuote)
		return
	}
	if w.snap.checkQuotes && !q.HeaderSumOK(quote) {
		w.icmpForeign(pk, BadQuote)
		return
	}
	if w.tooBigForTunnel(pk, quote, &q) {
		return
	}
	key := flowOf(quote, &q).Reverse()
	r, ok := w.p.sessions().PeekAt(w.now, key) // an error keeps no session alive
	var rec *record
	dir := r.dir()
	if ok {
		rec = &w.p.slab.recs[r.record()]
		if w.tr != nil {
			w.tr.session(w, rec, dir)
		}
	} else if svc := w.serviceOf(key, q.IsPing()); svc != nil && svc.conf.Forward == Route {
		w.routed(pk, svc) // like all other packets between these two
		return
	} else if rec = w.derive(key, q.IsPing(), svc); rec == nil {
		if w.balanced(key) && w.ask(pk, key) {
			return
		}
		w.icmpForeign(pk, NoSession)
		return
	}
	if ok {
		pk.session, pk.known = r, true
	}
	w.stats.errors++
	w.service(rec)
	if rec.flags&asIs != 0 {
		w.deliver(pk, rec)
		return
	}
	if rec.flags&isDelayed != 0 && !w.quoteSeq(pk, &q, r) {
		w.icmpForeign(pk, NoSession)
		return
	}
	outer := addrOf(v.Src(pk.ip))
	far := key.Src().Addr()
	// Backwards, source and destination change places. Who sent the quoted packet is the
	// key's destination.
	dst, src := rec.ends(dir)
	sender := endOf(key.Dst())
	if src != nil {
		sender = *src
	}
	v.SetQuoted(pk.ip, &q, src, dst, pk.partial)
	v.SetDst(pk.ip, &sender, pk.partial)
	if outer == far && dst != nil {
		// The far end itself reports, not a router on the way.
		v.SetSrc(pk.ip, dst, pk.partial)
	}
	w.forward(pk)
}

// balanced reports whether a flow is one that a balancer may know: to a virtual address, or from where a node answers.
func (w *Worker) balanced(key clienttable.Flow) bool {
	return w.snap.table.OwnsVIP(key.Dst().Addr()) || w.snap.answers(key.Src().Addr(), key.Src().Port(), key.Protocol())
}

// serviceOf returns the service that packets of key are for, or nil.
func (w *Worker) serviceOf(key clienttable.Flow, ping bool) *service {
	p := policy.Packet{Src: key.Src(), Dst: key.Dst(), Protocol: key.Protocol(), FromProxy: w.snap.proxies[key.Src().Addr()]}
	if ping {
		p.Src, p.Dst = netip.AddrPortFrom(p.Src.Addr(), 0), netip.AddrPortFrom(p.Dst.Addr(), 0)
	}
	if s, ok := w.snap.table.Lookup(p); ok {
		return w.snap.byConf[s]
	}
	return nil
}

// derive says which session the packets of key would begin, where the metric depends on nothing but the
// packet: so every balancer of a cluster sends an error to the node that knows the connection, whichever of them
// it reaches. The record is not in the table.
func (w *Worker) derive(key clienttable.Flow, ping bool, svc *service) *record {
	if svc == nil || svc.conf.Forward == FullNAT || svc.delay != nil && key.Protocol() == wire.ProtoTCP {
		return nil
	}
	s := &svc.conf
	switch svc.pool.Metric() {
	case steering.Hash, steering.MinMisses, steering.PHash, steering.Maglev, steering.Capacity:
	default:
		return nil
	}
	id, err := svc.pick(steering.Key{Client: key.Src().Addr(), Hash: key.Hash(w.p.cfg.Seed)})
	if err != nil {
		return nil
	}
	svc.pool.Release(id)
	n := w.node(id)
	if n == nil || n.addr.Addr().Is4() != key.Dst().Addr().Is4() && s.Forward != Tunnelled {
		return nil
	}
	if w.tr != nil {
		w.tr.begin(svc, n)
	}
	w.scratch = record{vip: endOf(key.Dst()), client: endOf(key.Src()), node: endOf(n.addr), nodeNo: n.no, service: svc.no, way: svc.way}
	if n.addr.Port() == 0 || ping {
		w.scratch.node.Port = key.Dst().Port()
	}
	if s.Forward.direct() {
		w.scratch.flags = oneWay
	}
	return &w.scratch
}

// icmpForeign handles an ICMP error about no known session.
func (w *Worker) icmpForeign(pk *packet, r Reason) {
	if !w.snap.table.OwnsVIP(addrOf(pk.v.Dst(pk.ip))) {
		if w.snap.foreign == Drop {
			r = ForeignPacket
		} else {
			w.pass(pk)
			return
		}
	}
	w.drop(pk, r)
}
