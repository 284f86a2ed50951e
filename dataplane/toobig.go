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
	if !v.DontFragment(pk.ip) || w.tr != nil {
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
	if w.tr != nil || !v.MayAnswer(pk.ip) || !w.p.errors.allow(w.now, addrOf(v.Src(pk.ip))) {
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

// limiter allows one event a second for each of a bounded number of addresses.
type limiter struct {
	mu   sync.Mutex
	last map[netip.Addr]time.Time
}

const limiterSize = 4096

func (l *limiter) allow(now time.Time, a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t, ok := l.last[a]; ok && now.Sub(t) < time.Second {
		return false
	}
	if l.last == nil || len(l.last) >= limiterSize {
		// Those of the last second stay; if these are as many, nobody else is answered for a moment.
		keep := make(map[netip.Addr]time.Time)
		for k, t := range l.last {
			if now.Sub(t) < time.Second {
				keep[k] = t
			}
		}
		l.last = keep
		if len(keep) >= limiterSize {
			return false
		}
	}
	l.last[a] = now
	return true
}
