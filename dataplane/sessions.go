package dataplane

import (
	"iter"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/clienttable"
)

// Session is one session as it was at a moment. It is a plain value.
type Session struct {
	Protocol     uint8                // 6 for TCP, 17 for UDP, 1 and 58 for ICMP
	Client, VIP  netip.AddrPort       // as the client writes and sees them
	Node         netip.AddrPort       // where the session is served
	Local        netip.AddrPort       // what the node takes for the client, if that is translated; else zero
	Service      string               // its name
	NodeName     string               // the name of the node in its pool
	Phase        clienttable.TCPPhase // of TCP; else TCPNone
	pastBalancer bool

	// In and Out are what came from the client, and from the node; what answers past the balancer is not counted.
	In, Out Count
	// Begun is when the session began, over restarts too.
	Begun time.Time
	// Last is when it last had a packet. It is noted now and then, so that it may be early by a 64th of the
	// session's idle time.
	Last time.Time
}

// Direct reports whether the node answers past the balancer.
func (s Session) Direct() bool { return s.pastBalancer }

// key is what the session's packets from the client are found by.
func (s *Session) key() clienttable.Flow { return clienttable.MakeFlow(s.Protocol, s.Client, s.VIP) }

// Sessions iterates over the sessions, in no order. Those that begin or end meanwhile may be missing. It disturbs no
// worker, and may be stopped at any time.
func (p *Plane) Sessions() iter.Seq[Session] {
	return func(yield func(Session) bool) {
		for k, r := range p.sessions().All() {
			if r.dir() != toNode {
				continue
			}
			if s, ok := p.session(k, r); ok && !yield(s) {
				return
			}
		}
	}
}

// Session returns the session of a flow from a client to a virtual address. Of an echo request the client's port is its
// identifier, and the virtual address has port 0.
func (p *Plane) Session(protocol uint8, client, vip netip.AddrPort) (Session, bool) {
	k := clienttable.MakeFlow(protocol, client, vip)
	r, ok := p.sessions().Peek(k)
	if !ok || r.dir() != toNode {
		return Session{}, false
	}
	return p.session(k, r)
}

func (p *Plane) session(k clienttable.Flow, r ref) (s Session, ok bool) {
	s = Session{Protocol: k.Protocol(), Client: k.Src(), VIP: k.Dst()}
	return s, p.peek(k, r, func(rec *record) { s.fill(p, rec) })
}

func (s *Session) fill(p *Plane, rec *record) {
	snap := p.snap.Load()
	s.Node = addrPort(&rec.node)
	s.Service, s.NodeName = snap.serviceName(rec.service), snap.nodes[rec.nodeNo].name
	s.pastBalancer = rec.flags&oneWay != 0
	if rec.flags&hasLocal != 0 {
		s.Local = addrPort(&rec.local)
	}
	c := rec.counts()
	s.In, s.Out = c[toNode], c[toClient]
	s.Begun = p.time(rec.begun)
	s.Last = p.time(uint32(max(int32(rec.begun), int32(rec.alive[toNode].Load()), int32(rec.alive[toClient].Load()))))
	rec.lock.acquire()
	s.Phase = rec.tcp.Phase()
	rec.lock.release()
}

// KillSession ends the session that has s's protocol, client and virtual address, and reports whether there was one. Of
// a TCP connection the client and the node each get a reset that they must believe; where the node answers past the
// balancer, its numbers are not known, and only the client does. The client's association stays.
func (p *Plane) KillSession(s Session) bool {
	k := s.key()
	r, ok := p.sessions().Peek(k)
	return ok && p.kill(k, r)
}

// KillSessions ends the sessions for which kill returns true, as [Plane.KillSession] does, and returns how many these
// were. Where these are thousands at a time, some get no reset until their next packet.
func (p *Plane) KillSessions(kill func(Session) bool) (killed int) {
	for s := range p.Sessions() {
		if kill(s) && p.KillSession(s) {
			killed++
		}
	}
	return killed
}

func (p *Plane) kill(k clienttable.Flow, r ref) (killed bool) {
	if r.dir() != toNode {
		return false
	}
	p.peek(k, r, func(rec *record) {
		if killed = p.sessions().Delete(k); killed && rec.flags&isTCP != 0 {
			p.resetEnds(r, rec, clienttable.CloseBoth)
		}
	})
	return killed
}
