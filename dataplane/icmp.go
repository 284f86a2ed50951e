package dataplane

import (
	"github.com/lbprim/lbprim/internal/wire"
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
	if w.p.cfg.CheckQuotes && !q.HeaderSumOK(quote) {
		w.icmpForeign(pk, BadQuote)
		return
	}
	key := flowOf(quote, &q).Reverse()
	r, ok := w.p.sessions.PeekAt(w.now, key) // an error keeps no session alive
	if !ok {
		w.icmpForeign(pk, NoSession)
		return
	}
	rec, dir := &w.p.slab.recs[r.record()], r.dir()
	if w.tr != nil {
		w.tr.session(w, rec, dir)
	}
	w.stats.errors++
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

// icmpForeign handles an ICMP error about no known session.
func (w *Worker) icmpForeign(pk *packet, r Reason) {
	if !w.snap.table.OwnsVIP(addrOf(pk.v.Dst(pk.ip))) {
		if w.p.cfg.Foreign == Drop {
			r = ForeignPacket
		} else {
			w.pass(pk)
			return
		}
	}
	w.drop(pk, r)
}
