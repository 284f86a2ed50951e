package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
	"github.com/lbprim/lbprim/steering/path"
)

// Intercept has a Plane in the path of traffic redirect flows that are for no virtual address. What is to be done with a flow is
// its Engine's decision: in-path rules, load-balance rules and the network services table, in the order of package
// intercept. Both directions of a redirected flow go to its node as they are, in a tunnel; what nodes send in a tunnel
// to one of Config.Addrs is taken out of it and sent on without another decision. It is plain data.
type Intercept struct {
	// Engine decides. Required. It shares a steering.IDs with the pools of the Plane's services, see
	// intercept.Config; the Plane takes note of its nodes within a second, or at once by [Plane.Step].
	Engine *intercept.Engine
	// Name is that of the service under which redirected flows are counted and listed. Default "intercept"; no other
	// service has it.
	Name string
	// Tunnel and MTU are how packets reach the nodes, as in a Service. Default IP in IP and 1500.
	Tunnel Tunnel
	MTU    int
	// Ageing says for how long flows are remembered, as in a Service.
	Ageing clienttable.Ageing
	// Side is the side of the interface with an index, on devices that have ports. Default: all is the LAN.
	Side func(port uint32) intercept.Side
	// Probe returns the remote peer that the autodiscovery probe of a SYN names; packet begins with its IP header. It
	// must not keep or change it. Default: there are no probes.
	Probe func(packet []byte) (peer netip.Addr, ok bool)

	// Paths has the channels by which nodes choose a way out: a packet in GRE with the key of a channel leaves by that channel's
	// interface for its gateway. Channels of other balancers than Balancer are unknown here. Channel finds the
	// interface and the addresses of the frame; it is required with Balancer, and must be fast.
	//
	// What leaves past the interception, from a node (path.Packet.Optimized) or because nothing redirects it, gets the DSCP that the path rules
	// and QoS rows of Paths say; its ECN bits stay. Redirected flows that a path rule asks it for are exported.
	// Later fragments follow the first; those that a node sends match by their addresses only. Tunnels themselves that come in fragments are put together.
	Paths    *path.Engine
	Balancer string
	Channel  func(path.Channel) (Hop, bool)
	// ExportFlows has the flows exported that are redirected, as Config.Flows says, whatever Paths says of each.
	ExportFlows bool
}

func (x *Intercept) resolve(c *Config) (*Intercept, error) {
	r := *x
	var errs []error
	if r.Engine == nil {
		errs = append(errs, invalid("Intercept.Engine", nil, "an engine"))
	}
	if r.Name == "" {
		r.Name = "intercept"
	}
	if r.MTU == 0 {
		r.MTU = 1500
	}
	if r.MTU < 576 || r.MTU > 65535 {
		errs = append(errs, invalid("Intercept.MTU", r.MTU, "576 to 65535, or 0 for 1500"))
	}
	errs = append(errs, r.Tunnel.resolve("Intercept.Tunnel")...)
	if _, err := clienttable.NewTimers(&r.Ageing); err != nil {
		errs = append(errs, fmt.Errorf("%w: Intercept.Ageing: %w", ErrInvalid, err))
	}
	if r.Ageing.NoUDP {
		errs = append(errs, invalid("Intercept.Ageing.NoUDP", true, "false"))
	}
	if len(c.Addrs) == 0 {
		errs = append(errs, invalid("Config.Addrs", "none", "an address of the balancer's own, with Intercept"))
	}
	if r.Balancer != "" && (r.Paths == nil || r.Channel == nil || !c.ethernet()) {
		errs = append(errs, invalid("Intercept.Balancer", r.Balancer, "none, without Paths, Channel and devices of Ethernet frames"))
	}
	if r.Balancer == "" && r.Channel != nil {
		errs = append(errs, invalid("Intercept.Balancer", `""`, "the name of this balancer in Paths, with Channel"))
	}
	return &r, errors.Join(errs...)
}

// interception is an Intercept in force.
type interception struct {
	conf  *Intercept
	pool  *pool
	parts reassembler // of what nodes send in fragments of the tunnel

	// Decisions that name a remote peer are kept until their flow ends.
	mu    sync.Mutex
	peers map[clienttable.Flow]intercept.Decision
}

// keep remembers the decision about a flow that is in the table now.
func (x *interception) keep(k clienttable.Flow, d intercept.Decision) {
	if !d.Peer.IsValid() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.peers[k] = d
}

// end gives a flow back.
func (x *interception) end(k clienttable.Flow, id steering.NodeID) {
	x.mu.Lock()
	d, ok := x.peers[k]
	delete(x.peers, k)
	x.mu.Unlock()
	if !ok || d.Node != id {
		d = intercept.Decision{Node: id, Counted: true}
	}
	x.conf.Engine.End(d)
}

// interceptService is the service of redirected flows. p.mu is held.
func (p *Plane) interceptService(next *snapshot, no uint32, again bool) error {
	x := p.inter
	c := Service{Name: x.conf.Name, Forward: Tunnelled, Tunnel: x.conf.Tunnel, MTU: x.conf.MTU, Ageing: x.conf.Ageing, Mode: clienttable.ServerPerSession, ExportFlows: x.conf.ExportFlows}
	svc := &service{no: no, again: again, live: true, conf: c, pool: x.pool, clients: grouping(&c), inline: true}
	svc.timers, _ = clienttable.NewTimers(&c.Ageing)
	var ok bool
	if svc.way, ok = next.wayOf(&c); !ok {
		return invalid("Intercept.Tunnel and MTU", maxWays, "fewer different ways, those of sessions from before included")
	}
	svc.touch = touchTicks(shortest(&c.Ageing, svc.timers))
	next.services[no] = svc
	next.inline = svc
	return nil
}

// interceptNodes adds the nodes of the engine to a snapshot, and notes from where tunnels may come. p.mu is held.
func (p *Plane) interceptNodes(next *snapshot) error {
	next.senders = make(map[netip.Addr]*node)
	for id, st := range p.inter.conf.Engine.All() {
		n := next.byID[id]
		if n != nil && n.pool != p.inter.pool {
			return fmt.Errorf("%w: node %q of Intercept.Engine and node %q have one id: give them the same steering.IDs in their Config", ErrInvalid, st.Node.Name, n.name)
		}
		if n == nil {
			n = next.newNode(id)
		}
		n.pool, n.name, n.gone = p.inter.pool, st.Node.Name, false
		n.addr = netip.AddrPortFrom(st.Node.Addr.Addr().Unmap(), st.Node.Addr.Port())
		n.keep = p.inter.conf.Engine.Usable(id)
		next.senders[n.addr.Addr()] = n
	}
	next.channels = make(map[uint32]path.Channel)
	if e := p.inter.conf.Paths; e != nil {
		for _, c := range e.Channels() {
			if c.Balancer == p.inter.conf.Balancer {
				next.channels[uint32(c.ID)] = c.Channel
			}
		}
	}
	return nil
}

// staleIntercept reports whether nodes or channels have changed, and how many nodes there are. p.mu is held.
func (p *Plane) staleIntercept(s *snapshot) (known int, stale bool) {
	if p.inter == nil {
		return 0, false
	}
	for id, st := range p.inter.conf.Engine.All() {
		n := s.byID[id]
		if n == nil || n.gone || n.keep != p.inter.conf.Engine.Usable(id) || n.addr != netip.AddrPortFrom(st.Node.Addr.Addr().Unmap(), st.Node.Addr.Port()) {
			return 0, true
		}
		known++
	}
	if e := p.inter.conf.Paths; e != nil {
		here := 0
		for _, c := range e.Channels() {
			if c.Balancer != p.inter.conf.Balancer {
				continue
			}
			if s.channels[uint32(c.ID)] != c.Channel {
				return known, true
			}
			here++
		}
		return known, here != len(s.channels)
	}
	return known, false
}

// intercept handles a packet that is for no virtual address and belongs to no session. It returns false if that is to be passed on.
func (w *Worker) intercept(pk *packet, p *policy.Packet) (done bool) {
	svc := w.snap.inline
	if svc == nil {
		return false
	}
	if own, ok := w.snap.addr(pk.v.Version == 6); ok && own == p.Dst.Addr() {
		return w.fromTunnel(pk, p.Src.Addr())
	}
	v := &pk.v
	if v.Proto != wire.ProtoTCP && v.Proto != wire.ProtoUDP || v.BadSource(pk.ip) {
		return false
	}
	q := intercept.Packet{Src: p.Src, Dst: p.Dst, Protocol: v.Proto, SYN: v.Proto == wire.ProtoTCP && v.TCPFlags&(wire.SYN|wire.ACK|wire.RST) == wire.SYN}
	if v.Proto == wire.ProtoTCP && !q.SYN {
		if v.TCPFlags&wire.RST != 0 {
			return false
		}
		if w.ask(pk, pk.key) {
			return true
		}
	} else if r, ok := w.told(pk); ok {
		w.hit(pk, r)
		return true
	}
	x := w.p.inter
	if w.link.Ethernet {
		q.VLAN = pk.frame.VLAN
	}
	if w.link.Ports && x.conf.Side != nil {
		q.From = x.conf.Side(binary.NativeEndian.Uint32(pk.buf))
	}
	if n := w.snap.senders[p.Src.Addr()]; n != nil {
		q.Sender = n.id
	}
	if q.SYN && x.conf.Probe != nil {
		if peer, ok := x.conf.Probe(pk.ip); ok {
			q.Peer = peer
		}
	}
	var d intercept.Decision
	if w.tr != nil {
		e := x.conf.Engine.Explain(&q)
		w.tr.step("intercept", "%v", e)
		d = e.Decision
	}
	if !w.dry {
		d = x.conf.Engine.Decide(&q)
	}
	switch d.Action {
	case intercept.PassThrough:
		return false
	case intercept.Discard:
		w.drop(pk, Discarded)
		return true
	case intercept.Deny:
		w.deny(pk)
		return true
	}
	n := w.node(d.Node)
	if n == nil { // added a moment ago
		w.p.notice()
		w.renew()
		n = w.node(d.Node)
	}
	if n == nil || n.gone || w.snap.draining {
		x.conf.Engine.End(d)
		return false
	}
	to := endOf(n.addr)
	if w.tr != nil {
		w.tr.begin(svc, n)
	}
	if w.dry {
		w.deliver(pk, &record{node: to, way: svc.way})
		return true
	}
	pk.export = w.markOf(pk, false).Export
	began := w.stats.services[svc.no].Sessions
	r, reason := w.store(pk, svc, n, &to)
	if w.stats.services[svc.no].Sessions == began {
		x.conf.Engine.End(d) // no room, or somebody else was faster
	} else {
		x.keep(pk.key, d)
	}
	if reason != NotDropped {
		return false // it goes by, rather than not at all
	}
	w.fresh = true
	w.hit(pk, r)
	return true
}

// deny answers a SYN that a rule denies with a reset.
func (w *Worker) deny(pk *packet) {
	if !pk.partial && !pk.v.SumOK(pk.ip) {
		w.drop(pk, BadChecksum)
		return
	}
	n := wire.BuildRST(w.reply(pk, wire.MaxReply), pk.ip, &pk.v)
	if n == 0 {
		w.drop(pk, Discarded)
		return
	}
	w.stats.resets++
	w.answer(pk, n)
}

// fromTunnel takes a packet that a node has sent in a tunnel out of it. It returns false if pk is no such tunnel.
func (w *Worker) fromTunnel(pk *packet, src netip.Addr) (done bool) {
	t := &w.p.inter.conf.Tunnel
	at, key, ok := wire.OpenTunnel(pk.ip, &pk.v, t.Port)
	if !ok {
		return false
	}
	if w.snap.senders[src] == nil {
		w.drop(pk, ForeignTunnel)
		return true
	}
	if pk.v.Mark&wire.Fragment != 0 {
		w.drop(pk, BadFragment)
		return true
	}
	var hop Hop
	channel := false
	if key != 0 && key != t.Key {
		c, known := w.snap.channels[key]
		if known {
			hop, known = w.p.inter.conf.Channel(c)
		}
		if !known {
			w.drop(pk, UnknownChannel)
			return true
		}
		channel = true
		if w.tr != nil {
			w.tr.step("channel", "uplink %q by %s, gateway %v", c.Uplink, c.Interface, c.Gateway)
		}
	}
	if r := w.unwrap(pk, at); r != NotDropped {
		w.drop(pk, r)
		return true
	}
	w.stats.unwrapped++
	w.setDSCP(pk, w.markOf(pk, true).DSCP)
	if !channel {
		w.passOn(pk)
		return true
	}
	if w.routeBy(pk, &hop) {
		pk.verdict = Passed
		w.stats.passed++
		w.emitPacket(pk)
	}
	return true
}

// fragmentOfTunnel deals with a fragment of a tunnel's packet that a node has sent. Nodes send what is too large for the way to the balancer like that, as the balancer does
// the other way. It returns false if pk is none, or is whole now.
func (w *Worker) fragmentOfTunnel(pk *packet) (done bool) {
	x, v := w.p.inter, &pk.v
	switch v.Proto {
	case wire.ProtoIPv4, wire.ProtoIPv6, wire.ProtoGRE:
	case wire.ProtoUDP:
		if k := x.conf.Tunnel.Kind; k != GUE && k != VXLAN {
			return false
		}
	default:
		return false
	}
	if own, ok := w.snap.addr(v.Version == 6); !ok || own != addrOf(v.Dst(pk.ip)) || w.snap.senders[addrOf(v.Src(pk.ip))] == nil {
		return false
	}
	if w.dry {
		w.tr.step("tunnel", "waits for the other fragments of what node %q has sent", w.snap.senders[addrOf(v.Src(pk.ip))].name)
		pk.verdict = Held
		return true
	}
	return !w.reassemble(&x.parts, pk)
}

// ecnCE says in the low bits of the type of service that a router was congested; both bits 0 that the packet's ends would not understand
// that (RFC 3168, section 5).
const ecnCE = 3

// unwrap makes pk the packet that begins at at of it.
func (w *Worker) unwrap(pk *packet, at int) Reason {
	var v wire.View
	if s := wire.Parse(pk.ip[at:], &v); s != wire.OK {
		return parseReason[s]
	}
	if w.link.Virtio {
		o := readOffload(pk.buf[Headroom-virtioLen:])
		if o.gsoType != gsoNone {
			return OddOffload
		}
		pk.partial = false
		if o.flags&virtioNeedsCsum != 0 {
			if v.SumOff == 0 || !o.partial(pk.l3-Headroom+at+int(v.SumOff)) {
				return OddOffload
			}
			wire.Complete(pk.ip[at:at+int(v.End)], int(v.L4), int(v.SumOff), v.Proto == wire.ProtoUDP)
			clear(pk.buf[Headroom-virtioLen : Headroom])
		}
	}
	// Congestion on the way through the tunnel is told to the packet's receiver (RFC 6040, section 4.2). Who copies what the packet says of it into
	// the outer header has none of it marked that does not understand that.
	if in := v.TOS(pk.ip[at:]); pk.v.TOS(pk.ip)&ecnCE == ecnCE && in&ecnCE != 0 {
		v.SetTOS(pk.ip[at:], in|ecnCE)
	}
	copy(pk.buf[at:], pk.buf[:pk.l3]) // what precedes a packet moves up to it
	pk.buf = pk.buf[at : at+pk.l3+int(v.End)]
	pk.ip, pk.v, pk.inner = pk.buf[pk.l3:], v, true
	pk.key = flowOf(pk.ip, &pk.v)
	if w.link.Ethernet {
		typ := uint16(wire.EtherIPv4)
		if v.Version == 6 {
			typ = wire.EtherIPv6
		}
		pk.frame.Type = typ
		binary.BigEndian.PutUint16(pk.buf[pk.l3-2:], typ)
	}
	return NotDropped
}
