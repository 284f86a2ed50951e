package dataplane

import (
	"errors"
	"hash/crc32"
	"net/netip"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/path"
)

// castagnoli is the table of SCTP's checksum. It is never changed.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// miss handles a packet whose key is not in the session table, or that has none.
func (w *Worker) miss(pk *packet) {
	v := &pk.v
	if w.p.relay != nil && w.fromBalancer(pk) {
		return
	}
	if v.Mark&wire.Fragment != 0 && w.snap.inline != nil && w.fragmentOfTunnel(pk) {
		return
	}
	if v.Mark&wire.LaterFrag != 0 {
		w.laterFragment(pk)
		return
	}
	if v.Mark&wire.ICMPError != 0 {
		w.icmpError(pk)
		return
	}
	if w.fresh {
		// An earlier packet of this batch may have begun the session.
		if r, ok := w.p.sessions().LoadAt(w.now, pk.key); ok {
			w.hit(pk, r)
			return
		}
	}
	p := policy.Packet{
		Src: netip.AddrPortFrom(addrOf(v.Src(pk.ip)), v.SrcPort), Dst: netip.AddrPortFrom(addrOf(v.Dst(pk.ip)), v.DstPort), Protocol: v.Proto,
	}
	if v.IsPing() {
		p.Src, p.Dst = netip.AddrPortFrom(p.Src.Addr(), 0), netip.AddrPortFrom(p.Dst.Addr(), 0)
	}
	if w.snap.proxies[p.Src.Addr()] && w.snap.table.OwnsVIP(p.Dst.Addr()) {
		p.FromProxy = true
		w.toVIP(pk, &p, nil)
		return
	}
	prefix, ok := w.snap.table.VIP(p.Dst.Addr())
	if !ok {
		w.foreign(pk, &p)
		return
	}
	w.toVIP(pk, &p, w.snap.vips[prefix])
}

// foreign handles a packet that is for no virtual address and belongs to no session.
func (w *Worker) foreign(pk *packet, p *policy.Packet) {
	v := &pk.v
	if w.tr != nil {
		w.tr.step("policy", "%v is not a virtual address", p.Dst.Addr())
	}
	// A node's own connections begin with a SYN; anything else from its service address
	// belongs to a session that is gone, and must not reach the client untranslated.
	own := v.Proto == wire.ProtoTCP && v.TCPFlags&(wire.SYN|wire.ACK) == wire.SYN
	if !own && v.Mark&wire.Ports != 0 && w.snap.answers(p.Src.Addr(), v.SrcPort, v.Proto) {
		if v.Proto == wire.ProtoTCP && (w.toParked(pk) || w.ask(pk, pk.key)) {
			return
		}
		w.drop(pk, NodeAlone)
		return
	}
	if w.intercept(pk, p) {
		return
	}
	if w.snap.foreign == Drop {
		w.drop(pk, ForeignPacket)
		return
	}
	if v.Mark&wire.Fragment != 0 && (len(w.snap.ends[p.Src.Addr()]) > 0 || w.snap.inline != nil) {
		if c, waiting, ok := w.firstFragment(pk, course{fate: passes}, nil, 0); ok {
			w.pass(pk)
			w.release(waiting, c)
		}
		return
	}
	w.pass(pk)
}

// toVIP handles a packet to a virtual address without a session.
func (w *Worker) toVIP(pk *packet, p *policy.Packet, addr *vip) {
	v := &pk.v
	if v.BadSource(pk.ip) {
		w.drop(pk, BadSource)
		return
	}
	svc, bound := w.regular(pk, p, addr)
	if svc == nil {
		s, ok := w.resolve(p)
		if !ok {
			w.noPolicy(pk, p, addr)
			return
		}
		svc = w.snap.byConf[s]
	}
	if svc.conf.Forward == Route {
		w.routed(pk, svc)
		return
	}
	if v.Mark&unfit != 0 && w.untranslatable(pk, svc.conf.Forward.direct()) {
		return
	}
	if svc.delay != nil && v.Proto == wire.ProtoTCP {
		if w.delayed(pk, p, svc, bound) && !w.ask(pk, pk.key) {
			w.asked = true
			w.delayed(pk, p, svc, bound)
			w.asked = false
		}
		return
	}
	switch v.Proto {
	case wire.ProtoTCP:
		if v.TCPFlags&(wire.SYN|wire.ACK|wire.RST) != wire.SYN {
			do, lost := w.unknown(pk, svc)
			if !lost && w.ask(pk, pk.key) || !w.midStream(pk, do, lost) {
				return
			}
		}
	case wire.ProtoICMP, wire.ProtoICMPv6:
		if v.Mark&wire.EchoAsk == 0 {
			w.drop(pk, Unanswered)
			return
		}
	}
	if !svc.conf.Ageing.NoUDP || v.Proto != wire.ProtoUDP {
		if r, ok := w.told(pk); ok {
			w.hit(pk, r)
			return
		}
	}
	if w.snap.draining {
		w.refuse(pk, svc, Draining)
		return
	}
	n, reason := w.choose(pk, p, svc, bound)
	if n == nil {
		w.refuse(pk, svc, reason)
		return
	}
	w.begin(pk, p, svc, n)
}

// routed sends a packet on as it is.
func (w *Worker) routed(pk *packet, svc *service) {
	var waiting [][]byte
	var c course
	if pk.v.Mark&wire.Fragment != 0 {
		var ok bool
		if c, waiting, ok = w.firstFragment(pk, course{fate: routes, service: svc.no}, nil, 0); !ok {
			return
		}
	}
	w.routeOn(pk, svc.no, w.markOf(pk, false).DSCP)
	w.release(waiting, c)
}

// routeOn sends a packet of a service that routes on. Nothing redirects it, so it is marked like what is for no virtual address.
func (w *Worker) routeOn(pk *packet, service uint32, d path.DSCP) {
	w.setDSCP(pk, d)
	w.stats.services[service].In.add(len(pk.ip))
	w.forward(pk)
}

// resolve asks the policies.
func (w *Worker) resolve(p *policy.Packet) (*Service, bool) {
	if w.tr != nil {
		return w.tr.policy(w.snap.table, p)
	}
	return w.snap.table.Lookup(*p)
}

func (w *Worker) refuse(pk *packet, svc *service, r Reason) {
	w.stats.services[svc.no].Refused++
	pk.service = svc.no + 1
	w.drop(pk, r)
}

// regular looks for an association in Regular mode: a hit names service and node, and no policy
// is searched.
func (w *Worker) regular(pk *packet, p *policy.Packet, addr *vip) (*service, binding) {
	if addr == nil || pk.v.IsPing() {
		return nil, binding{}
	}
	for _, m := range addr.regular {
		k := clienttable.RegularKey(p.Protocol, p.Src.Addr(), p.Dst, m)
		b, ok := w.loadAssoc(k)
		if !ok {
			continue
		}
		svc := w.snap.service(b.service)
		if svc == nil || !svc.live || svc.conf.Mode.FullKey() || svc.clients != m {
			continue // the service has changed its ways since
		}
		return svc, b
	}
	return nil, binding{}
}

func (w *Worker) loadAssoc(k clienttable.Association) (binding, bool) {
	load := w.p.assocs().LoadAt
	if w.dry {
		load = w.p.assocs().PeekAt
	}
	b, ok := load(w.now, k)
	if w.tr != nil {
		w.tr.association(w, k, b, ok)
	}
	return b, ok
}

// noPolicy handles a packet to a virtual address that no policy matches.
func (w *Worker) noPolicy(pk *packet, p *policy.Packet, addr *vip) {
	v := &pk.v
	if v.Mark&wire.EchoAsk == 0 {
		w.drop(pk, NoPolicy)
		return
	}
	if v.Mark&unfit != 0 && w.untranslatable(pk, false) {
		return
	}
	usable := 0
	if addr != nil {
		for _, q := range addr.pools {
			usable += int(q.usable.Load())
		}
	}
	if w.tr != nil {
		w.tr.step("ping", "%d nodes of %v are usable, %d must be", usable, p.Dst.Addr(), w.snap.pingNodes)
	}
	if w.snap.pingNodes < 0 || usable < w.snap.pingNodes {
		w.drop(pk, Unanswered)
		return
	}
	if v.Mark&wire.Fragment != 0 {
		if c, waiting, ok := w.firstFragment(pk, course{fate: echoes}, nil, 0); ok {
			w.stats.pings++
			w.echoFragment(pk)
			w.release(waiting, c)
		}
		return
	}
	w.stats.pings++
	start := v.EchoReply(pk.ip, pk.partial)
	n := len(pk.ip) - start
	out := w.reply(pk, n)
	copy(out, pk.ip[start:])
	w.answer(pk, n)
	if pk.partial {
		o := readOffload(pk.buf[Headroom-virtioLen:])
		o.csumStart -= uint16(start)
		last := w.out[len(w.out)-1]
		o.write(last[Headroom-virtioLen:])
	}
}

// echoFragment answers a fragment of an echo request by one of its reply: together they answer the request, which need
// not be put together for it.
func (w *Worker) echoFragment(pk *packet) {
	if pk.v.Version == 4 && pk.v.Mark&wire.Options != 0 {
		w.drop(pk, Unanswered) // a reply does not repeat them, and the fragments need not have the same
		return
	}
	out := w.reply(pk, len(pk.ip))
	copy(out, pk.ip)
	pk.v.EchoFragment(out)
	w.answer(pk, len(pk.ip))
}

// midStream handles a TCP packet to a virtual address that begins no connection and belongs
// to none, or to one whose node was lost. It returns true if the packet is to be given to a node all the same.
func (w *Worker) midStream(pk *packet, do MidStream, lost bool) bool {
	v, reason := &pk.v, NoSession
	if lost {
		reason = NodeLost
	}
	if v.TCPFlags&wire.RST != 0 {
		w.drop(pk, reason)
		return false
	}
	switch do {
	case Reselect:
		w.stats.reselected++
		return true
	case Silent:
		w.drop(pk, reason)
		return false
	}
	if !pk.partial && !v.SumOK(pk.ip) {
		w.drop(pk, BadChecksum) // who knows whose it is
		return false
	}
	n := wire.BuildRST(w.reply(pk, wire.MaxReply), pk.ip, v)
	if n == 0 {
		w.drop(pk, reason)
		return false
	}
	if w.tr != nil {
		w.tr.step("reset", "%s", map[bool]string{false: "no session is known, and the packet begins none", true: "the session's node was lost"}[lost])
	}
	w.stats.resets++
	w.answer(pk, n)
	return false
}

// choose finds the node for a new session and counts the session on it: the one the client is
// bound to, if it may have it, else the one the metric says.
func (w *Worker) choose(pk *packet, p *policy.Packet, svc *service, bound binding) (*node, Reason) {
	pool := svc.pool
	if usable := int(pool.usable.Load()); svc.conf.MinNodes > 1 && usable < svc.conf.MinNodes {
		if w.tr != nil {
			w.tr.step("nodes", "%d are usable, %d must be", usable, svc.conf.MinNodes)
		}
		return nil, TooFewNodes
	}
	if n := w.static(svc, pool, p.Src.Addr()); n != nil {
		return n, NotDropped
	}
	if bound.node == 0 && svc.conf.Mode.FullKey() && svc.conf.Mode.SameServer() {
		bound, _ = w.loadAssoc(clienttable.FarmKey(pool.no, p.Src.Addr(), svc.clients))
	}
	if bound.node != 0 {
		if n := w.node(steering.NodeID(bound.node)); n != nil && w.acquire(pool, n) {
			return n, NotDropped
		}
	}
	key := steering.Key{Client: p.Src.Addr(), Hash: pk.key.Hash(w.p.cfg.Seed)}
	var id steering.NodeID
	var err error
	if w.tr != nil {
		id, err = w.tr.pick(pool.Pool, key)
	}
	if !w.dry {
		id, err = pool.Pick(key)
	}
	if err != nil {
		if errors.Is(err, steering.ErrNoNode) {
			return nil, NoNode
		}
		return nil, Overload
	}
	n := w.node(id)
	if n == nil || n.pool != pool {
		// The node was added to the pool behind the Plane's back, a moment ago.
		w.p.notice()
		w.renew()
		if n = w.node(id); n == nil {
			if !w.dry {
				pool.Release(id)
			}
			return nil, NoNode
		}
	}
	return n, NotDropped
}

func (w *Worker) node(id steering.NodeID) *node { return w.snap.byID[id] }

func (w *Worker) acquire(q *pool, n *node) bool {
	ok := q.Acquire(n.id)
	if ok && w.dry {
		q.Release(n.id)
	}
	if w.tr != nil {
		w.tr.acquire(n, ok)
	}
	return ok
}

// begin makes a session and forwards the packet by it.
func (w *Worker) begin(pk *packet, p *policy.Packet, svc *service, n *node) {
	to := endOf(n.addr)
	switch {
	case pk.v.IsPing():
		to.Port = pk.v.DstPort
	case pk.v.Mark&wire.Ports == 0:
		to.Port = 0
	case to.Port == 0:
		to.Port = p.Dst.Port()
	}
	if n.addr.Addr().Is4() != (pk.v.Version == 4) && svc.conf.Forward != Tunnelled {
		w.unchoose(n)
		w.refuse(pk, svc, NoNode)
		return
	}
	if w.tr != nil {
		w.tr.begin(svc, n)
	}
	if w.dry {
		rec := record{vip: endOf(pk.key.Dst()), client: endOf(pk.key.Src()), node: to, way: svc.way}
		if pk.v.Proto == wire.ProtoSCTP {
			rec.flags = isSCTP
		}
		if len(svc.locals) > 0 {
			w.takeLocal(pk, svc, &rec, 0)
		}
		if svc.conf.Forward.direct() {
			w.deliver(pk, &rec)
		} else if w.translate(pk, &rec, toNode) {
			w.forward(pk)
		}
		return
	}
	if pk.v.Proto == wire.ProtoUDP && svc.conf.Ageing.NoUDP && pk.v.Mark&wire.Fragment == 0 {
		// Only where nodes answer past the balancer: each datagram is chosen for anew, and leaves no trace. (A
		// datagram in fragments needs a session to keep them together.)
		rec := record{node: to, way: svc.way}
		w.stats.nodes[n.no].In.add(len(pk.ip))
		w.stats.services[svc.no].In.add(len(pk.ip))
		w.deliver(pk, &rec)
		w.unchoose(n)
		return
	}
	r, reason := w.store(pk, svc, n, &to)
	if reason != NotDropped {
		w.unchoose(n)
		w.refuse(pk, svc, reason)
		return
	}
	w.fresh = true
	w.hit(pk, r)
}

func (w *Worker) unchoose(n *node) {
	if !w.dry && n.pool.Pool != nil { // what is intercepted is given back with its decision
		n.pool.Release(n.id)
	}
}
