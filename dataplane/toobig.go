package dataplane

import (
	"net/netip"
	"sync"
	"time"

	"github.com/lbprim/lbprim/internal/wire"
)

// minMTU6 is what every IPv6 link takes (RFC 8200 section 5).
const minMTU6 = 1280

// tellTooBig tells a sender to send smaller packets, where the packet says that it may not be fragmented, and not more
// than once a second. The packet itself goes on.
func (w *Worker) tellTooBig(pk *packet, mtu int) {
	v := &pk.v
	if !v.DontFragment(pk.ip) || w.dry {
		return
	}
	if v.Version == 6 {
		if mtu = max(mtu, minMTU6); int(v.End) <= minMTU6 {
			return
		}
		w.sendError(pk, wire.ICMPv6TooBig, 0, uint32(mtu), 1)
		return
	}
	w.sendError(pk, wire.ICMPUnreachable, wire.CodeFragNeeded, uint32(mtu), 1)
}

// sendError sends an ICMP error about pk, unless one may not be sent or its sender had most of this type in the last
// second. It comes from the balancer's own address, or from where pk went to.
func (w *Worker) sendError(pk *packet, typ, code uint8, rest uint32, most int) bool {
	v := &pk.v
	if w.dry || v.Mark&wire.ICMPError != 0 {
		return false
	}
	w.untranslate(pk)
	if !v.MayAnswer(pk.ip) || !w.p.errors.allow(w.now, addrOf(v.Src(pk.ip)), typ, most) {
		return false
	}
	src := v.Dst(pk.ip)
	if a, ok := w.snap.addr(v.Version == 6); ok {
		own := a.As16()
		src = own[16-len(src):]
	}
	verdict := pk.verdict
	b, q := w.onTheWire(pk)
	n := wire.BuildICMPError(w.reply(pk, wire.MaxReply), b, &q, src, typ, code, rest)
	w.answer(pk, n)
	pk.verdict = verdict
	return true
}

// onTheWire returns a packet as its sender knows it, where it is not yet what will leave: the first packet of a
// super-packet, and with a checksum.
func (w *Worker) onTheWire(pk *packet) ([]byte, wire.View) {
	v := pk.v
	switch size := w.segmentSize(pk); {
	case size > 0 && v.Mark&wire.Fragment == 0 && (v.Proto == wire.ProtoTCP || v.Proto == wire.ProtoUDP):
		b := w.arena.take(int(v.Payload) + min(size, v.PayloadLen()))
		v.End = uint32(v.PutSegment(b, pk.ip, 0, size))
		return b, v
	case pk.partial:
		b := w.arena.take(len(pk.ip))
		copy(b, pk.ip)
		wire.Complete(b, int(v.L4), int(v.SumOff), v.Proto == wire.ProtoUDP)
		return b, v
	}
	return pk.ip, v
}

// expired drops a packet whose time to live is used up, and tells its sender: traceroute sends several at once.
func (w *Worker) expired(pk *packet) {
	typ := uint8(wire.ICMPTimeExceeded)
	if pk.v.Version == 6 {
		typ = wire.ICMPv6TimeExceeded
	}
	w.sendError(pk, typ, 0, 0, 10)
	w.drop(pk, TTLExpired)
}

// limiter allows a few events a second for each of a bounded number of addresses and types. It keeps those of the last two
// seconds, so that forgetting costs nothing.
type limiter struct {
	mu       sync.Mutex
	begun    time.Time
	new, old map[limited]events
}

type limited struct {
	addr netip.Addr
	typ  uint8
}

// events are those since a time.
type events struct {
	since time.Time
	n     int
}

// limiterSize is how many addresses a second may have an event; for the others there is none.
const limiterSize = 4096

func (l *limiter) allow(now time.Time, a netip.Addr, typ uint8, most int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age := now.Sub(l.begun); l.new == nil || age >= time.Second || age < 0 {
		if l.new, l.old = l.old, l.new; l.new == nil {
			l.new = make(map[limited]events)
		}
		clear(l.new)
		l.begun = now
	}
	k := limited{a, typ}
	e, ok := l.new[k]
	if !ok {
		if e, ok = l.old[k]; ok && now.Sub(e.since) >= time.Second {
			ok = false
		}
		if len(l.new) >= limiterSize {
			return false
		}
	}
	if !ok || now.Sub(e.since) >= time.Second {
		e = events{since: now}
	}
	if e.n >= most {
		return false
	}
	e.n++
	l.new[k] = e
	return true
}
