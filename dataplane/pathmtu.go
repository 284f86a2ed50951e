package dataplane

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/internal/wire"
)

const (
	pathLife = 10 * time.Minute // RFC 1191 section 6.3, RFC 8201 section 4
	maxPaths = 4096
	// minMTU4 is the least MTU that is believed of a way over IPv4. Where a router says less, packets of so much are sent that it may break into
	// fragments: else anybody who can forge an error could have all sent in splinters.
	minMTU4 = 576
)

// paths is what routers have said of the ways that tunnels take (RFC 2003 section 5.1, RFC 2473 section 8.1), by where they lead. The zero
// paths knows nothing.
type paths struct {
	known atomic.Pointer[map[netip.Addr]*pathMTU] // nil: nothing; the map is never changed
	mu    sync.Mutex                              // for changes
}

type pathMTU struct {
	mtu   atomic.Int32
	until atomic.Int64 // in nanoseconds since the Plane's epoch
}

// learn notes an MTU. One larger than that which is known is not believed before that is too old.
func (p *paths) learn(now int64, to netip.Addr, mtu int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.known.Load()
	if m != nil && (*m)[to] != nil {
		e := (*m)[to]
		if was := int(e.mtu.Load()); now < e.until.Load() && was < mtu {
			return
		}
		e.mtu.Store(int32(mtu))
		e.until.Store(now + int64(pathLife))
		return
	}
	next := make(map[netip.Addr]*pathMTU)
	if m != nil {
		if len(*m) >= maxPaths {
			return // until Step makes room
		}
		next = maps.Clone(*m)
	}
	e := new(pathMTU)
	e.mtu.Store(int32(mtu))
	e.until.Store(now + int64(pathLife))
	next[to] = e
	p.known.Store(&next)
}

// step forgets what is too old.
func (p *paths) step(now int64) {
	if p.known.Load() == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	next := maps.Clone(*p.known.Load())
	maps.DeleteFunc(next, func(_ netip.Addr, e *pathMTU) bool { return now >= e.until.Load() })
	switch len(next) {
	case len(*p.known.Load()):
	case 0:
		p.known.Store(nil)
	default:
		p.known.Store(&next)
	}
}

// pathMTU returns the largest outer packet that a tunnel of a way takes to a host.
func (w *Worker) pathMTU(y *way, to netip.Addr) int {
	m := w.p.paths.known.Load()
	if m == nil {
		return y.mtu
	}
	if e := (*m)[to]; e != nil && w.p.nanos(w.now) < e.until.Load() {
		return min(y.mtu, int(e.mtu.Load()))
	}
	return y.mtu
}

// tooBigForTunnel takes note of an ICMP error that says that a packet of a tunnel of this Plane's was too large for its way. It returns false if pk is
// no such error, or is not to be believed: it must quote a packet from the balancer to one of its nodes, in one of its tunnels, and larger than what
// is said to fit (RFC 8201 section 4).
func (w *Worker) tooBigForTunnel(pk *packet, quote []byte, q *wire.View) bool {
	v := &pk.v
	v6 := v.Version == 6
	if v6 && v.Type != wire.ICMPv6TooBig || !v6 && (v.Type != wire.ICMPUnreachable || v.Code != wire.CodeFragNeeded) {
		return false
	}
	own, ok := w.snap.addr(v6)
	if !ok || own != addrOf(v.Dst(pk.ip)) || own != addrOf(q.Src(quote)) {
		return false
	}
	to := addrOf(q.Dst(quote))
	if !w.snap.tunnelled(to, quote, q) && !w.relayed(to, quote, q) {
		return false
	}
	size, mtu := int(binary.BigEndian.Uint16(quote[2:])), int(min(v.MTU(pk.ip), 65535))
	if v6 {
		size = wire.IPv6Len + int(binary.BigEndian.Uint16(quote[4:]))
	} else if mtu == 0 {
		mtu = plateau(size)
	}
	if mtu >= size || v6 && mtu < minMTU6 {
		return false
	}
	if !pk.partial && !v.SumOK(pk.ip) {
		w.drop(pk, BadChecksum)
		return true
	}
	if !v6 {
		mtu = max(mtu, minMTU4)
	}
	if w.tr != nil {
		w.tr.step("path", "tunnels to %v take packets of %d bytes", to, mtu)
	}
	if !w.dry {
		w.p.paths.learn(w.p.nanos(w.now), to, mtu)
	}
	w.stats.errors++
	pk.verdict = Held
	return true
}

// plateau is the MTU that is tried where a router does not say it (RFC 1191 section 7.1).
func plateau(size int) int {
	for _, n := range []int{32000, 17914, 8166, 4352, 2002, 1492, 1006} {
		if n < size {
			return n
		}
	}
	return minMTU4
}

// tunnelled reports whether a quoted packet may be one that was sent to a node in a tunnel.
func (s *snapshot) tunnelled(to netip.Addr, quote []byte, q *wire.View) bool {
	if s.nodeAddrs == nil || !s.nodeAddrs()[to] {
		return false
	}
	for _, y := range s.ways {
		if y != nil && y.forward == Tunnelled && y.wire.Quoted(quote, q) {
			return true
		}
	}
	return false
}

// relayed is the same for what is relayed to another balancer.
func (w *Worker) relayed(to netip.Addr, quote []byte, q *wire.View) bool {
	r := w.p.relay
	return r != nil && r.knows(to) && r.way.wire.Quoted(quote, q)
}

// addrsOf returns where nodes are.
func addrsOf(nodes []*node) map[netip.Addr]bool {
	m := make(map[netip.Addr]bool)
	for _, n := range nodes {
		if !n.gone {
			m[n.addr.Addr()] = true
		}
	}
	return m
}
