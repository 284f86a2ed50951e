package dataplane

import (
	"maps"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// witness is what is seen of one node, for as long as the Plane knows it.
type witness struct {
	syns    atomic.Pointer[healthcheck.SYNCount] // nil: nobody wants to know
	tripped atomic.Bool                          // too many SYNs in a row went unanswered
}

// passive is how a Roster is told of what the Plane sees. Plane.mu guards it.
type passive struct {
	roster *healthcheck.Roster   // nil: nobody is told
	bound  map[uint32]*boundNode // by the node's number
	looked int                   // nodes below this number have been looked for in the Roster
	fed    bool                  // nodes that come from now on have missed what was said
}

// boundNode is a node with the port of the Roster that it is.
type boundNode struct {
	server, port string // never change
	tripped      time.Time
	traffic      *healthcheck.Traffic
	in, out      uint64 // packets, as far as they were told
}

// FeedRoster has the Plane tell a Roster whose ports are its nodes, as [Plane.ApplyRoster] says, what it sees of them. Each SYN sent to a node
// and each SYN-ACK of it counts for the reassign threshold of the port (healthcheck.SYNCount): too many in a row, and no answer to any
// for a second, fail the port, and its check is repeated at once. Packets sent to the nodes of a server, and packets from them, tell once a second whether the
// server is silent (healthcheck.Server.Silence).
//
// A SYN counts if it begins a session, or is sent again, the Plane has sent it on, and its checksum is right; with delayed binding it is the
// Plane's own. No session moves before the port has failed. A refusal by a reset is no SYN-ACK, and does not end the count.
// What answers past the Plane is never counted: nodes of a service with DSR or tunnels; and where answers come by way of another balancer
// ([Peers]), a client that goes on has been answered. As clients choose what they send, one who finds
// SYNs that a node has to drop can fail a port that nobody else uses; its check brings it back (healthcheck.Port.Reassign turns the count off).
//
// A node that is added when its port has settled is told of that, too. It costs two atomic operations a connection, and none for other packets.
// Only one Roster is told; nil ends that.
func (p *Plane) FeedRoster(r *healthcheck.Roster) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passive = passive{roster: r, bound: make(map[uint32]*boundNode)}
	for _, n := range p.snap.Load().nodes {
		n.seen.syns.Store(nil)
	}
	p.bindNodes()
}

// bindNodes looks for the nodes that are new in the Roster. p.mu is held.
func (p *Plane) bindNodes() {
	nodes := p.snap.Load().nodes
	if p.passive.roster == nil || p.passive.fed && p.passive.looked == len(nodes) {
		return
	}
	first := !p.passive.fed
	p.passive.fed, p.passive.looked = true, len(nodes)
	for st := range p.passive.roster.Ports() {
		name, ids := p.named(st.Server, st.Port, st.Target.Port())
		fresh := maps.Clone(ids)
		maps.DeleteFunc(fresh, func(id steering.NodeID, _ *pool) bool {
			n := p.snap.Load().byID[id]
			return n == nil || p.passive.bound[n.no] != nil
		})
		p.bind(st.Server, st.Port, ids)
		if first {
			continue
		}
		ids = fresh // which came, or came back, after their port, and have missed what was said of it
		if len(ids) > 0 && p.roster.nodes != nil {
			p.obey(&st, name, ids)
		}
	}
}

// bind has nodes tell of a port. p.mu is held.
func (p *Plane) bind(server, port string, ids map[steering.NodeID]*pool) {
	r := p.passive.roster
	if r == nil {
		return
	}
	snap := p.snap.Load()
	for id := range ids {
		n := snap.byID[id]
		if n == nil {
			continue // as new as can be: it is looked for later
		}
		n.seen.syns.Store(r.SYNs(server, port))
		b := p.passive.bound[n.no]
		if b == nil || b.server != server || b.port != port {
			b = &boundNode{server: server, port: port}
			p.passive.bound[n.no] = b
		}
		b.traffic = r.Traffic(server)
	}
}

// handshake tells of a SYN that was sent to its node, or of a SYN-ACK of it.
func (w *Worker) handshake(pk *packet, rec *record, dir uint32) {
	if rec.flags&(asIs|isDelayed) != 0 || w.dry {
		return // with delayed binding, the Plane does the handshake with the node
	}
	switch flags := pk.v.TCPFlags & (wire.SYN | wire.ACK | wire.RST | wire.FIN); {
	case dir == toClient && flags == wire.SYN|wire.ACK:
		w.synAnswered(w.snap.nodes[rec.nodeNo])
	case dir == toNode && flags == wire.SYN && pk.v.Mark&wire.Fragment == 0 && rec.word[toClient].Load() == 0:
		// Nothing has come from the node in this session: else the SYN is one within a connection, and the node need not answer. Nor does
		// it answer what has a wrong checksum, and anybody could send it such.
		if n := w.snap.nodes[rec.nodeNo]; n.seen.syns.Load() != nil && (pk.partial || pk.v.SumOK(pk.ip)) {
			w.synSent(n)
		}
	}
}

// synSent counts a SYN to a node.
func (w *Worker) synSent(n *node) {
	if c := n.seen.syns.Load(); c != nil && c.SYN() {
		n.seen.tripped.Store(true)
	}
}

// synAnswered says that a node answered a SYN.
func (w *Worker) synAnswered(n *node) {
	if c := n.seen.syns.Load(); c != nil {
		c.SYNACK()
	}
}

// answerTime is how long a node has for its SYN-ACK: a burst of connections is sent faster than any node can answer.
const answerTime = time.Second

// stepPassive tells the Roster which ports have failed: those of nodes that have tripped and not answered a single SYN for answerTime since.
// It is told without p.mu, since it tells the Plane in turn.
func (p *Plane) stepPassive(now time.Time) {
	var failed []*boundNode
	p.mu.Lock()
	r, nodes := p.passive.roster, p.snap.Load().nodes
	for no, b := range p.passive.bound {
		n := nodes[no]
		switch {
		case n.seen.tripped.Load():
			n.seen.tripped.Store(false) // should it trip again meanwhile, it has answered in between
			b.tripped = now
		case b.tripped.IsZero() || now.Sub(b.tripped) < answerTime:
		default:
			b.tripped = time.Time{}
			if c := n.seen.syns.Load(); c != nil && c.Failed() && !n.gone {
				failed = append(failed, b)
			}
		}
	}
	p.mu.Unlock()
	for _, b := range failed {
		p.cfg.Logger.Warn("node does not answer connections", "server", b.server, "port", b.port)
		if err := r.FailPassive(b.server, b.port); err != nil {
			p.cfg.Logger.Warn("a port that is no more", "err", err)
		}
	}
}

// stepTraffic tells the Roster which servers were sent packets, and which were heard. p.mu is held; sum has the packets of every node.
func (p *Plane) stepTraffic(now time.Time, sum []Traffic) {
	if p.passive.roster == nil {
		return
	}
	p.bindNodes()
	snap := p.snap.Load()
	past := make(map[*pool]bool) // pools whose nodes may answer past the Plane
	for svc := range snap.named() {
		if svc.live && svc.conf.Forward.direct() {
			past[svc.pool] = true
		}
	}
	var heard []*healthcheck.Traffic
	for no, b := range p.passive.bound {
		n := snap.nodes[no]
		if int(no) >= len(sum) {
			continue
		}
		in, out := sum[no].In.Packets, sum[no].Out.Packets
		sent, answered := in != b.in, out != b.out
		b.in, b.out = in, out
		if past[n.pool] {
			continue
		}
		if sent {
			b.traffic.Sent(now)
		}
		if answered {
			heard = append(heard, b.traffic)
		}
	}
	for _, t := range heard { // after all that was sent, of other nodes of the server, too
		t.Heard()
	}
}
