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
		w.sendError(pk, wire.ICMPv6TooBig, 0, uint32(mtu))
		return
	}
	w.sendError(pk, wire.ICMPUnreachable, wire.CodeFragNeeded, uint32(mtu))
}

// sendError sends an ICMP error about pk, unless one may not be sent or its sender had one a moment
// ago. It comes from the balancer's own address, or from where pk went to.
func (w *Worker) sendError(pk *packet, typ, code uint8, rest uint32) bool {
	v := &pk.v
	if w.dry || v.Mark&wire.ICMPError != 0 {
		return false
	}
	w.untranslate(pk)
	if !v.MayAnswer(pk.ip) || !w.p.errors.allow(w.now, addrOf(v.Src(pk.ip))) {
		return false
	}
	src := v.Dst(pk.ip)
	if a, ok := w.p.cfg.addr(v.Version == 6); ok {
		own := a.As16()
		src = own[16-len(src):]
	}
	verdict := pk.verdict
	n := wire.BuildICMPError(w.reply(pk, wire.MaxReply), pk.ip, v, src, typ, code, rest)
	w.answer(pk, n)
	pk.verdict = verdict
	return true
}

// limiter allows one event a second for each of a bounded number of addresses. It keeps those of the last two
// seconds, so that forgetting costs nothing.
type limiter struct {
	mu       sync.Mutex
	begun    time.Time
	new, old map[netip.Addr]time.Time
}

// limiterSize is how many addresses a second may have an event; for the others there is none.
const limiterSize = 4096

func (l *limiter) allow(now time.Time, a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age := now.Sub(l.begun); l.new == nil || age >= time.Second || age < 0 {
		if l.new, l.old = l.old, l.new; l.new == nil {
			l.new = make(map[netip.Addr]time.Time)
		}
		clear(l.new)
		l.begun = now
	}
	for _, m := range []map[netip.Addr]time.Time{l.new, l.old} {
		if t, ok := m[a]; ok && now.Sub(t) < time.Second {
			return false
		}
	}
	if len(l.new) >= limiterSize {
		return false
	}
	l.new[a] = now
	return true
}
