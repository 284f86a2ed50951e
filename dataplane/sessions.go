package dataplane

import (
	"iter"
	"net/netip"

	"github.com/lbprim/lbprim/clienttable"
)

// Session is one session as it was at a moment. It is a plain value.
type Session struct {
	Protocol     uint8
	Client, VIP  netip.AddrPort
	Node         netip.AddrPort
	Local        netip.AddrPort // what the node takes for the client, if that is translated; else zero
	Service      string
	NodeName     string
	Phase        clienttable.TCPPhase // of TCP; else TCPNone
	pastBalancer bool
}

// Direct reports whether the node answers past the balancer.
func (s Session) Direct() bool { return s.pastBalancer }

// Sessions iterates over the sessions, in no order. Those that begin or end meanwhile may be missing.
func (p *Plane) Sessions() iter.Seq[Session] {
	return func(yield func(Session) bool) {
		for k, r := range p.sessions.All() {
			if r.dir() != toNode {
				continue
			}
			s := Session{Protocol: k.Protocol(), Client: k.Src(), VIP: k.Dst()}
			if p.peek(k, r, func(rec *record) { s.fill(p.snap.Load(), rec) }) && !yield(s) {
				return
			}
		}
	}
}

func (s *Session) fill(snap *snapshot, rec *record) {
	s.Node = addrPort(&rec.node)
	s.Service, s.NodeName = snap.services[rec.service].conf.Name, snap.nodes[rec.nodeNo].name
	s.pastBalancer = rec.flags&oneWay != 0
	if rec.flags&hasLocal != 0 {
		s.Local = addrPort(&rec.local)
	}
	rec.lock.acquire()
	s.Phase = rec.tcp.Phase()
	rec.lock.release()
}
