package afpacket

import (
	"net/netip"
	"sync/atomic"
)

// A Hop is the way of a packet to the next host: the interface it leaves by and the addresses of its frame.
type Hop struct {
	Port uint32  // interface index
	Src  [6]byte // the interface's MAC
	Dst  [6]byte // the next host's MAC
	MTU  int     // of the interface
}

// Hops knows the next hop of every destination, as the kernel's routing and neighbour tables have it. Use [NewHops], then [Hops.Run].
// Lookup takes no lock and may be called from any goroutine.
//
// Only routes of the main table count; of several with one destination the one with the lowest metric, and of a
// multipath route the first usable hop.
type Hops struct {
	table   atomic.Pointer[hopTable]
	missing chan neighbour // to be resolved or confirmed by the kernel
	sock    netlinkSocket
}

// neighbour is a host on a link.
type neighbour struct {
	link uint32
	addr netip.Addr
}

// known is a neighbour's MAC. A stale one is used, and the kernel asked to confirm it, as it does when it sends itself: the host may
// have been replaced.
type known struct {
	mac   [6]byte
	stale bool
	asked *atomic.Bool // since this became stale; nil unless it is
}

type link struct {
	mac   [6]byte
	mtu   int
	up    bool
	ether bool
}

// route is one row of the kernel's main table.
type route struct {
	dst    netip.Prefix
	via    netip.Addr // invalid: dst is on the link
	link   uint32
	metric uint32
	reject bool // blackhole, unreachable or prohibited: nothing goes there, whatever shorter prefixes say
}

// hopTable is an immutable view of the kernel's tables.
type hopTable struct {
	generation uint64
	links      map[uint32]link
	neighbours map[neighbour]known
	v4, v6     prefixes
}

// prefixes finds the longest prefix: one map per length that occurs, longest first.
type prefixes []samePrefix

type samePrefix struct {
	bits   int
	routes map[netip.Addr]route
}

func (p prefixes) lookup(a netip.Addr) (route, bool) {
	for i := range p {
		key, err := a.Prefix(p[i].bits)
		if err != nil {
			return route{}, false
		}
		if r, ok := p[i].routes[key.Addr()]; ok {
			return r, true
		}
	}
	return route{}, false
}

// Generation changes whenever a Hop may have changed, so that a Hop can be kept until then.
func (h *Hops) Generation() uint64 {
	if t := h.table.Load(); t != nil {
		return t.generation
	}
	return 0
}

// Lookup returns the next hop to dst. Where the kernel has no route to it or its link is down, ok is false. Where
// the next host's MAC is not known yet, ok is false too and the kernel is asked to find it; the answer usually is there within a millisecond.
func (h *Hops) Lookup(dst netip.Addr) (hop Hop, ok bool) {
	t := h.table.Load()
	if t == nil {
		return Hop{}, false
	}
	dst = dst.Unmap()
	ps := t.v6
	if dst.Is4() {
		ps = t.v4
	}
	r, ok := ps.lookup(dst)
	if !ok || r.reject {
		return Hop{}, false
	}
	return h.resolve(t, r, dst)
}

// OnLink returns the way to a neighbour on the link with the given index, past the routing table.
func (h *Hops) OnLink(port uint32, dst netip.Addr) (hop Hop, ok bool) {
	t := h.table.Load()
	if t == nil {
		return Hop{}, false
	}
	return h.resolve(t, route{link: port}, dst.Unmap())
}

func (h *Hops) resolve(t *hopTable, r route, dst netip.Addr) (Hop, bool) {
	l, ok := t.links[r.link]
	if !ok || !l.up || !l.ether {
		return Hop{}, false
	}
	n := neighbour{link: r.link, addr: dst}
	if r.via.IsValid() {
		n.addr = r.via
	}
	k, ok := t.neighbours[n]
	if !ok {
		h.ask(n)
		return Hop{}, false
	}
	if k.stale && !k.asked.Load() && k.asked.CompareAndSwap(false, true) && !h.ask(n) {
		k.asked.Store(false)
	}
	return Hop{Port: r.link, Src: l.mac, Dst: k.mac, MTU: l.mtu}, true
}

// ask has Run ask the kernel for a neighbour. It reports whether there was room: where many are being asked for already, the next
// packet asks again.
func (h *Hops) ask(n neighbour) bool {
	select {
	case h.missing <- n:
		h.sock.rouse()
		return true
	default:
		return false
	}
}
