package dataplane

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// Peers are the other balancers of a cluster, as far as a Plane tells and asks them. A flow is named by its protocol and both
// ends, in any order: the directions of a connection are the same flow. A session that is translated has two of them,
// one as clients know it and one as its node knows it.
//
// None of the methods may wait for others, and they are called by several workers at once. A node is told by its name,
// which all members share, and a note, at most 255 bytes that only Planes understand; most flows of a service have the same.
type Peers interface {
	// Announce tells the others that a flow has gone to a node. The node "@" is the balancer itself, see [Relay]; that is forgotten when
	// the balancer is gone.
	Announce(protocol uint8, a, b netip.AddrPort, node, note string)
	// Withdraw tells them that this balancer has forgotten the flow. It may be told so of flows that were never
	// announced.
	Withdraw(protocol uint8, a, b netip.AddrPort)
	// Lookup returns what this balancer itself was told of a flow. It is asked for every packet that would begin a session.
	Lookup(protocol uint8, a, b netip.AddrPort) (node, note string, ok bool)
	// Find asks the others for a flow. It calls done once, from any goroutine, perhaps before it returns. A Plane waits
	// for [AskTimeout] at most; done does nothing after that.
	Find(protocol uint8, a, b netip.AddrPort, done func(node, note string, ok bool))
}

// AskTimeout is for how long a packet of an unknown connection waits for what the [Peers] know of it, before it is
// refused or balanced anew.
const AskTimeout = 50 * time.Millisecond

// A note says what another balancer needs to take a flow over, beside its node: the service; of a flow as the node knows
// it the virtual address, and the client if it is translated; of one as the client knows it what the node takes for
// the client; and of a spliced connection how its numbers are translated.
type note struct {
	service            string
	vip, client, local netip.AddrPort
	spliced            bool
	seam               savedSeam
	owner              netip.Addr // the balancer that alone can deal with the flow; then there is nothing else but the service
}

// String is the service alone, or that and three addresses behind zero bytes, and perhaps five numbers; or the service and
// the owner.
func (n note) String() string {
	if n.owner.IsValid() {
		return n.service + ownerNote + n.owner.String()
	}
	if !n.vip.IsValid() && !n.local.IsValid() && !n.spliced {
		return n.service
	}
	b := append([]byte(n.service), 0)
	for i, a := range []netip.AddrPort{n.vip, n.client, n.local} {
		if i > 0 {
			b = append(b, 0)
		}
		if a.IsValid() {
			b = a.AppendTo(b)
		}
	}
	if n.spliced {
		b = fmt.Appendf(b, "\x00%x %x %x %x %x", n.seam.seq, n.seam.ts, n.seam.first, n.seam.rest, n.seam.client)
	}
	return string(b)
}

func parseNote(s string) (n note, err error) {
	parts := strings.Split(s, "\x00")
	n.service = parts[0]
	if len(parts) == 1 {
		return n, nil
	}
	if len(parts) == 2 && strings.HasPrefix(parts[1], "@") {
		return n, n.parseOwner(parts[0], parts[1])
	}
	if len(parts) == 5 {
		n.spliced = true
		if _, err := fmt.Sscanf(parts[4], "%x %x %x %x %x", &n.seam.seq, &n.seam.ts, &n.seam.first, &n.seam.rest, &n.seam.client); err != nil {
			return n, fmt.Errorf("numbers %q: %w", parts[4], err)
		}
		parts = parts[:4]
	}
	if len(parts) != 4 {
		return n, fmt.Errorf("note of %d parts, want 1, 4 or 5", len(parts))
	}
	for i, a := range []*netip.AddrPort{&n.vip, &n.client, &n.local} {
		if parts[i+1] == "" {
			continue
		}
		if *a, err = netip.ParseAddrPort(parts[i+1]); err != nil {
			return n, err
		}
		if a.Addr().Is4In6() || a.Addr().Zone() != "" {
			return n, fmt.Errorf("address %v, want one in its plain form", a)
		}
	}
	return n, nil
}

// announce tells the peers of a session that is in the table now.
func (p *Plane) announce(k clienttable.Flow, rec *record, svc *service, n *node) {
	if p.cfg.Peers == nil {
		return
	}
	there := note{service: svc.conf.Name}
	if rec.flags&isDelayed != 0 {
		if there.seam, there.spliced = rec.saveSeam(); !there.spliced {
			p.announceOwned(svc, k, rec.other(k.Protocol(), toNode))
			return // until it is spliced it needs this balancer
		}
	}
	if rec.flags&hasLocal != 0 {
		there.local = addrPort(&rec.local)
	}
	p.cfg.Peers.Announce(k.Protocol(), k.Src(), k.Dst(), n.name, there.String())
	if rec.flags&asIs != 0 {
		return
	}
	back := note{service: svc.conf.Name, vip: addrPort(&rec.vip), spliced: there.spliced, seam: there.seam}
	if rec.flags&hasLocal != 0 {
		back.client = addrPort(&rec.client)
	}
	o := rec.other(k.Protocol(), toNode)
	p.cfg.Peers.Announce(k.Protocol(), o.Src(), o.Dst(), n.name, back.String())
}

// answeredElsewhere gives a session a life like any other's whose client goes on without a word of its node's: the node answers by way of
// another balancer. As a SYN and a blind acknowledgement look alike, the session still yields to others when the table is full; then
// its next packet asks the peers.
func (w *Worker) answeredElsewhere(pk *packet, rec *record, svc *service) {
	life := svc.timers.Life(pk.v.Proto, rec.vip.Port)
	life.Class = clienttable.HalfOpen
	w.setLife(pk.v.Proto, rec, svc, life)
	w.synAnswered(w.snap.nodes[rec.nodeNo])
}

// withdraw tells the peers that a flow is forgotten. At the end of the Plane it says nothing: they may take
// its flows over.
func (p *Plane) withdraw(k clienttable.Flow) {
	if p.cfg.Peers != nil && !p.closed.Load() {
		p.cfg.Peers.Withdraw(k.Protocol(), k.Src(), k.Dst())
	}
}

// adopt makes a session of what the peers know of a flow. k is the flow as a packet of it came; flags are those by which its life begins
// here.
func (p *Plane) adopt(now time.Time, k clienttable.Flow, nodeName, text string, flags uint8) error {
	n, err := parseNote(text)
	if err != nil {
		return err
	}
	if nodeName == itself || n.owner.IsValid() {
		return fmt.Errorf("only balancer %v can deal with it", n.owner)
	}
	snap := p.snap.Load()
	f, ok := snap.find(n.service, [2]string{n.service, nodeName})
	if !ok || !f.node.keep {
		return fmt.Errorf("service %q has no usable node %q here", n.service, nodeName)
	}
	client, vip, end := k.Src(), k.Dst(), f.node.addr
	if n.vip.IsValid() { // the flow as the node knows it
		client, vip, end = k.Dst(), n.vip, k.Src()
		if n.client.IsValid() {
			n.local, client = k.Dst(), n.client
		}
	} else if end.Port() == 0 || isPing(k.Protocol()) {
		end = netip.AddrPortFrom(end.Addr(), vip.Port())
	}
	if isPing(k.Protocol()) {
		return fmt.Errorf("flows of protocol %d are not taken over", k.Protocol())
	}
	direct := f.svc.conf.Forward.direct() && !f.svc.inline
	for _, a := range []netip.AddrPort{client, vip, n.local} {
		if a.IsValid() && a.Addr().Is4() != client.Addr().Is4() {
			return fmt.Errorf("addresses %v and %v of two families", client, a)
		}
	}
	if !direct && !f.svc.inline && end.Addr().Is4() != client.Addr().Is4() || end.Addr() != f.node.addr.Addr() {
		return fmt.Errorf("node %q has not the address %v here", nodeName, end)
	}
	v := savedSession{vip: endOf(vip), node: endOf(end), service: f.svc.no, nodeNo: f.node.no}
	if n.local.IsValid() {
		v.flags, v.local = hasLocal, endOf(n.local)
	}
	life := f.svc.timers.Life(k.Protocol(), vip.Port())
	switch k.Protocol() {
	case wire.ProtoTCP:
		v.flags |= isTCP
		if n.spliced {
			v.flags |= isDelayed
			v.seam = n.seam
		}
		if direct {
			v.tcp = clienttable.OneWayTCP()
		}
		st := v.tcp
		st.Update(clienttable.FromClient, flags, 0, 0, 0)
		life = f.svc.timers.TCP(st, vip.Port(), f.svc.conf.Mode)
	case wire.ProtoSCTP:
		v.flags |= isSCTP
	}
	if direct {
		v.flags |= oneWay
	}
	if f.svc.inline {
		v.flags |= isInline
	}
	if flags == wire.SYN && f.node.pool.Pool != nil { // a connection that begins, for all this balancer can know
		if !f.node.pool.Acquire(f.node.id) {
			return fmt.Errorf("node %q takes no new session here", nodeName)
		}
		defer f.node.pool.Release(f.node.id) // it is counted below
	}
	if !p.restore(now, clienttable.MakeFlow(k.Protocol(), client, vip), &v, f, clienttable.Info{Life: life, Left: life.TTL}, nil, nil, false) {
		return fmt.Errorf("no room for it, or it is there already")
	}
	return nil
}

// told takes over what this balancer was told of the flow of a packet that would begin a session, such as a SYN that is sent again and comes by
// another balancer than the first one did; or a datagram of a flow that came by another one until now.
func (w *Worker) told(pk *packet) (r ref, ok bool) {
	p := w.p
	if p.cfg.Peers == nil || w.asked || pk.v.IsPing() {
		return r, false
	}
	k := pk.key
	node, text, ok := p.cfg.Peers.Lookup(k.Protocol(), k.Src(), k.Dst())
	if !ok {
		return r, false
	}
	if w.tr != nil {
		w.tr.step("cluster", "%v is known to have gone to %q", k, node)
	}
	if w.dry {
		return r, false
	}
	flags := uint8(wire.ACK)
	if pk.v.Proto == wire.ProtoTCP {
		flags = pk.v.TCPFlags & (wire.SYN | wire.ACK)
	}
	if err := p.adopt(w.now, k, node, text, flags); err != nil {
		p.cfg.Logger.Debug("a flow of the cluster", "flow", k, "node", node, "err", err)
		return r, false
	}
	w.stats.adopted++
	w.fresh = true
	return p.sessions().LoadAt(w.now, k)
}
