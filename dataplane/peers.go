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
// None of the methods may block, and they are called by several workers at once. A node is told by its name,
// which all members share, and a note, at most 255 bytes that only Planes understand; most flows of a service have the same.
type Peers interface {
	// Announce tells the others that a flow has gone to a node.
	Announce(protocol uint8, a, b netip.AddrPort, node, note string)
	// Withdraw tells them that this balancer has forgotten the flow. It may be told so of flows that were never
	// announced.
	Withdraw(protocol uint8, a, b netip.AddrPort)
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
}

// String is the service alone, or that and three addresses behind zero bytes, and perhaps four numbers.
func (n note) String() string {
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
		b = fmt.Appendf(b, "\x00%x %x %x %x", n.seam.seq, n.seam.ts, n.seam.first, n.seam.rest)
	}
	return string(b)
}

func parseNote(s string) (n note, err error) {
	parts := strings.Split(s, "\x00")
	n.service = parts[0]
	if len(parts) == 1 {
		return n, nil
	}
	if len(parts) == 5 {
		n.spliced = true
		if _, err := fmt.Sscanf(parts[4], "%x %x %x %x", &n.seam.seq, &n.seam.ts, &n.seam.first, &n.seam.rest); err != nil {
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
		if there.seam, there.spliced = rec.seam.save(); !there.spliced {
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
}

// withdraw tells the peers that a flow is forgotten. At the end of the Plane it says nothing: they may take
// its flows over.
func (p *Plane) withdraw(k clienttable.Flow) {
	if p.cfg.Peers != nil && !p.closed.Load() {
		p.cfg.Peers.Withdraw(k.Protocol(), k.Src(), k.Dst())
	}
}

// adopt makes a session of what the peers know of a flow. k is the flow as a packet of it came.
func (p *Plane) adopt(now time.Time, k clienttable.Flow, nodeName, text string) error {
	n, err := parseNote(text)
	if err != nil {
		return err
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
		st.Update(clienttable.FromClient, wire.ACK, 0, 0, 0)
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
	if !p.restore(now, clienttable.MakeFlow(k.Protocol(), client, vip), &v, f, clienttable.Info{Life: life, Left: life.TTL}) {
		return fmt.Errorf("no room for it, or it is there already")
	}
	return nil
}
