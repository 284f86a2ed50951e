package dataplane

import (
	"math"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// Connections whose every request is judged outlive a restart between two requests. What is under way ends with the process: the next packet is answered
// by a reset. Where the service does not judge requests any more, the connection goes on with the node it has.

// savedParked is what is kept of a parked connection, under the flow of the node's packets. It has neither pointers nor padding.
type savedParked struct {
	client          clienttable.Flow // whose it is
	end             splice.Parked
	service, nodeNo uint32
}

// savedKepts are the connections of a state, beside their sessions.
type savedKepts struct {
	relays *clienttable.Table[clienttable.Flow, splice.Saved]
	parked *clienttable.Table[clienttable.Flow, savedParked]
}

func newSavedKepts(most int) (t savedKepts, err error) {
	t.relays, err = clienttable.New(&clienttable.Config[clienttable.Flow, splice.Saved]{MaxEntries: most, Layout: clienttable.Packed})
	if err != nil {
		return t, err
	}
	t.parked, err = clienttable.New(&clienttable.Config[clienttable.Flow, savedParked]{MaxEntries: most, Layout: clienttable.Packed})
	if err != nil {
		t.relays.Close()
	}
	return t, err
}

func (t *savedKepts) close() {
	t.relays.Close()
	t.parked.Close()
}

// save adds the connection of a session that is followed, and returns what its packets are translated by. It reports false if the connection is not
// between two requests.
func (t *savedKepts) save(p *Plane, now time.Time, k clienttable.Flow, r ref) (v savedSeam, ok bool) {
	s := p.holds.shard(k, p.cfg.Seed)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[k]
	if c == nil || !c.has || c.session != r || c.kept == nil || !c.kept.rests() {
		return v, false
	}
	relay, ok := c.kept.relay.Save()
	if !ok || !store(t.relays, p.sessions(), now, k, relay) {
		return v, false
	}
	_, info, ok := p.sessions().Info(now, k)
	if !ok {
		return v, false
	}
	for i := range c.kept.parked {
		e := &c.kept.parked[i]
		// Without one the client's next request of this kind opens another.
		_ = t.parked.StoreLife(begun(now, info), e.flow(), savedParked{k, e.Parked, c.svc.no, e.node.no}, info.Life)
	}
	return seamBy(c.kept.relay.Translation(), c.kept.relay.Client()), true
}

// rests reports whether a connection is between two requests: the last one is answered, and nothing of the next one is here.
func (k *kept) rests() bool {
	return k.relay != nil && !k.ready && !k.asking && !k.opaque && !k.ends && !k.within && k.replies.Complete() && len(k.down.ahead) == 0
}

// restoreKept goes on with a connection whose session is in the table now, and reports whether there was room.
func (p *Plane) restoreKept(now time.Time, k clienttable.Flow, at uint32, f *place, saved *splice.Saved, parked []parkedEnd) bool {
	rec, d := &p.slab.recs[at], f.svc.delay
	client, ours := saved.Numbers()
	c := &held{
		key: k, svc: f.svc, pool: f.node.pool, isn: client - 1, ourISN: ours - 1, tried: []steering.NodeID{f.node.id},
		session: ref{at<<1 | toNode, uint32(f.node.id)}, has: true, near: rec.client, far: rec.node, node: f.node, due: math.MaxInt64,
		probe: wire.BuildProbe(wire.ProtoTCP, endOf(k.Src()), endOf(k.Dst()), k.Src().Addr().Is4()),
		kept:  &kept{relay: saved.Relay(now, d.Limits, d.cookies), down: assembler{next: ours}, idle: true, counted: true, parked: parked},
	}
	if rec.flags&hasLocal != 0 {
		c.near = rec.local
	}
	c.openHTTP()
	h := p.holds
	s := h.shard(k, p.cfg.Seed)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[k] != nil || !h.add(s, c) {
		return false
	}
	h.n.Add(-1) // it takes no share of MaxHeld while it is idle
	h.kept.Add(1)
	for i := range parked {
		h.park(parked[i].flow(), k)
		p.announceOwned(f.svc, parked[i].flow())
	}
	return true
}

// parkedOf returns the parked connections of a state, by their clients' flows. find returns a service and a node by the state's numbers.
func (t *savedKepts) parkedOf(now time.Time, find func(service, nodeNo uint32) (*place, bool)) map[clienttable.Flow][]parkedEnd {
	all := make(map[clienttable.Flow][]parkedEnd)
	for flow, v := range t.parked.AllAt(now) {
		f, ok := find(v.service, v.nodeNo)
		if !ok || !f.node.keep || flow.Src().Addr() != f.node.addr.Addr() || len(all[v.client]) == maxParked {
			continue
		}
		all[v.client] = append(all[v.client], parkedEnd{v.end, f.node, endOf(flow.Dst()), endOf(flow.Src())})
	}
	return all
}
