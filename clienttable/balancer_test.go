package clienttable

import (
	"net/netip"
	"slices"
	"time"
)

// balancer is the smallest data plane: it puts the parts of this package together
// as one does. Sessions are looked up by their full key, then by the regular key;
// only then is a policy searched, and a server selected unless the client has one.
type balancer struct {
	sessions *Table[Flow, binding]
	assocs   *Table[Association, uint32]
	timers   *Timers
	mode     Mode
	group    Grouping
	oneWay   bool
	nodes    []node // round robin
	next     int
	searched int // policy look-ups
	released map[uint32]int
	taken    map[uint32]int
}

type binding struct {
	node uint32
	_    uint32
	tcp  TCPState
}

type nodeState int

const (
	up nodeState = iota
	sessionsShutdown
	connectionsShutdown
	down
)

type node struct {
	id    uint32
	state nodeState
}

func newBalancer(mode Mode, ageing *Ageing, nodes ...uint32) *balancer {
	b := &balancer{mode: mode, timers: must(NewTimers(ageing)), released: map[uint32]int{}, taken: map[uint32]int{}}
	b.sessions = must(New(&Config[Flow, binding]{
		MaxEntries: 1000, TTL: time.Minute,
		Owner:    func(v binding) uint32 { return v.node },
		OnRemove: func(_ Flow, v binding, _ Reason) { b.released[v.node]++ },
	}))
	b.assocs = must(New(&Config[Association, uint32]{
		MaxEntries: 1000, TTL: time.Minute, Owner: func(v uint32) uint32 { return v },
	}))
	for _, id := range nodes {
		b.nodes = append(b.nodes, node{id, up})
	}
	return b
}

func (b *balancer) close() {
	b.sessions.Close()
	b.assocs.Close()
}

func (b *balancer) set(id uint32, s nodeState) {
	i := slices.IndexFunc(b.nodes, func(n node) bool { return n.id == id })
	b.nodes[i].state = s
	if s == down {
		b.sessions.Invalidate(id)
		b.assocs.Invalidate(id)
	}
}

func (b *balancer) usable(id uint32, most nodeState) bool {
	return slices.ContainsFunc(b.nodes, func(n node) bool { return n.id == id && n.state <= most })
}

func (b *balancer) pick() uint32 {
	for range b.nodes {
		n := b.nodes[b.next%len(b.nodes)]
		b.next++
		if n.state == up {
			return n.id
		}
	}
	return 0
}

// packet handles a packet of a client and returns the node that gets it, or 0.
func (b *balancer) packet(now time.Time, f Flow, flags uint8, seq, ack uint32, n int) uint32 {
	if v, ok := b.sessions.LoadAt(now, f); ok {
		if f.Protocol() != 6 {
			return v.node
		}
		return b.track(now, f, v, FromClient, flags, seq, ack, n)
	}
	var key Association
	if b.mode == Regular {
		key = RegularKeyOf(f, b.group)
		if id, ok := b.assocs.LoadAt(now, key); ok && b.usable(id, sessionsShutdown) {
			return id
		}
	}
	b.searched++
	if f.Protocol() == 6 && flags&TCPSyn == 0 || !b.timers.Tracks(f.Protocol()) {
		return b.pick() // no entry; a real data plane resets the former
	}
	var id uint32
	if b.mode.SameServer() && b.mode != Regular {
		key = FarmKey(1, f.Src().Addr(), b.group)
		if a, ok := b.assocs.LoadAt(now, key); ok && b.usable(a, sessionsShutdown) {
			id = a
		}
	}
	if id == 0 {
		if id = b.pick(); id == 0 {
			return 0 // and nothing is remembered
		}
		if b.mode.SameServer() {
			_ = b.assocs.StoreLife(now, key, id, b.timers.Life(f.Protocol(), f.Dst().Port()))
		}
	}
	if !b.mode.FullKey() {
		return id
	}
	v := binding{node: id}
	l := b.timers.Life(f.Protocol(), f.Dst().Port())
	if f.Protocol() == 6 {
		if b.oneWay {
			v.tcp = OneWayTCP()
		}
		v.tcp.Update(FromClient, flags, seq, ack, n)
		l = b.timers.TCP(v.tcp, f.Dst().Port(), b.mode)
	}
	b.taken[id]++
	actual, loaded, err := b.sessions.LoadOrStoreLife(now, f, v, l)
	if loaded || err != nil {
		b.released[id]++
	}
	if err != nil {
		return 0
	}
	return actual.node
}

// answer handles a packet of a server for the session of a client's flow.
func (b *balancer) answer(now time.Time, f Flow, flags uint8, seq, ack uint32, n int) bool {
	v, ok := b.sessions.LoadAt(now, f)
	if ok {
		b.track(now, f, v, FromServer, flags, seq, ack, n)
	}
	return ok
}

func (b *balancer) track(now time.Time, f Flow, v binding, d Dir, flags uint8, seq, ack uint32, n int) uint32 {
	tcp := v.tcp
	if e := tcp.Update(d, flags, seq, ack, n); e == TCPRestarted && v.tcp.Ended() && !b.usable(v.node, up) {
		// Another session with the same ports, and its server takes no new ones.
		b.sessions.DeleteAt(now, f)
		return b.packet(now, f, flags, seq, ack, n)
	}
	b.sessions.Update(now, f, func(v binding, l Life) (binding, Life) {
		was := v.tcp
		v.tcp.Update(d, flags, seq, ack, n)
		if was.HalfOpen() != v.tcp.HalfOpen() || was.Ended() != v.tcp.Ended() {
			l = b.timers.TCP(v.tcp, f.Dst().Port(), b.mode)
		}
		return v, l
	})
	return v.node
}

// connect opens a connection and returns its node.
func (b *balancer) connect(now time.Time, f Flow) uint32 {
	id := b.packet(now, f, TCPSyn, 1000, 0, 0)
	b.answer(now, f, TCPSyn|TCPAck, 5000, 1001, 0)
	b.packet(now, f, TCPAck, 1001, 5001, 0)
	return id
}

var vip = netip.MustParseAddrPort("198.51.100.7:80")

func client(port uint16) Flow {
	return MakeFlow(6, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), port), vip)
}
