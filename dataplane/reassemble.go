package dataplane

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// Bounds of what waits to be put together.
const (
	maxWholes     = 256
	maxWholeBytes = 4 << 20
)

// A reassembler puts packets together that arrive in fragments (RFC 791 section 3.2, RFC 8200 section 4.5). The zero reassembler is ready for
// use. What does not arrive as a whole within fragmentLife is forgotten; of a packet whose fragments overlap nothing is used (RFC 5722).
type reassembler struct {
	mu    sync.Mutex
	m     map[clienttable.Flow]*whole
	bytes int
}

// whole is a packet of which some fragments have come.
type whole struct {
	datagram
	head []byte // of the first fragment
	body []byte
	ce   bool // some fragment has met congestion
}

// add takes a fragment, and returns the packet if it was the last one to come.
func (r *reassembler) add(now time.Time, b []byte, v *wire.View) (packet []byte, why Reason) {
	s := spanOf(v)
	data := b[v.End-(s.to-s.from) : v.End]
	if s.to > 65535 || len(data) == 0 || v.Version == 6 && v.FragAt != wire.IPv6Len {
		return nil, BadFragment
	}
	k := fragmentKey(b, v)
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.m[k]
	if p != nil && now.Sub(p.born) >= fragmentLife {
		r.forget(k, p)
		p = nil
	}
	if p == nil {
		if len(r.m) >= maxWholes {
			r.forgetOldest()
		}
		if r.m == nil {
			r.m = make(map[clienttable.Flow]*whole)
		}
		p = &whole{datagram: datagram{born: now}}
		r.m[k] = p
	}
	grow := int(s.to) - len(p.body)
	if r.bytes+max(grow, 0) > maxWholeBytes {
		r.age(now) // p itself is young
	}
	if r.bytes+max(grow, 0) > maxWholeBytes {
		return nil, FragmentsFull
	}
	if why := p.add(s, v.Mark&wire.MoreFrags == 0); why != NotDropped {
		return nil, why
	}
	if grow > 0 {
		p.body = append(p.body, make([]byte, grow)...)
		r.bytes += grow
	}
	copy(p.body[s.from:], data)
	if s.from == 0 {
		n := int(v.End) - len(data)
		if v.Version == 6 {
			n = wire.IPv6Len
		}
		p.known, p.head = true, append([]byte(nil), b[:n]...)
	}
	p.ce = p.ce || v.TOS(b)&ecnCE == ecnCE
	if !p.complete() {
		return nil, NotDropped
	}
	r.forget(k, p)
	packet = slices.Concat(p.head, p.body)
	if p.ce { // RFC 3168, section 5.3
		v.SetTOS(packet, v.TOS(packet)|ecnCE)
	}
	if len(packet) > 65535 {
		return nil, BadFragment
	}
	if v.Version == 4 {
		binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
		binary.BigEndian.PutUint16(packet[6:], 0)
		binary.BigEndian.PutUint16(packet[10:], 0)
		binary.BigEndian.PutUint16(packet[10:], wire.Checksum(packet[:len(p.head)]))
	} else {
		binary.BigEndian.PutUint16(packet[4:], uint16(len(p.body)))
		packet[6] = v.Proto
	}
	return packet, NotDropped
}

// reassemble makes pk the packet that it is the last fragment of. It returns false if it is not the last one to come: then it is dealt with.
func (w *Worker) reassemble(r *reassembler, pk *packet) bool {
	whole, why := r.add(w.now, pk.ip, &pk.v)
	if why != NotDropped {
		w.drop(pk, why)
		return false
	}
	if whole == nil {
		pk.verdict = Held
		return false
	}
	buf := w.arena.take(pk.l3 + len(whole))
	copy(buf, pk.buf[:pk.l3])
	copy(buf[pk.l3:], whole)
	pk.buf, pk.ip = buf, buf[pk.l3:]
	if s := wire.Parse(pk.ip, &pk.v); s != wire.OK {
		w.drop(pk, parseReason[s])
		return false
	}
	pk.key = flowOf(pk.ip, &pk.v)
	return true
}

func (r *reassembler) forget(k clienttable.Flow, p *whole) {
	r.bytes -= len(p.body)
	delete(r.m, k)
}

// forgetOldest makes room: what has waited longest has lost a fragment, most likely.
func (r *reassembler) forgetOldest() {
	var first clienttable.Flow
	var oldest *whole
	for k, p := range r.m {
		if oldest == nil || p.born.Before(oldest.born) {
			first, oldest = k, p
		}
	}
	r.forget(first, oldest)
}

func (r *reassembler) age(now time.Time) {
	for k, p := range r.m {
		if now.Sub(p.born) >= fragmentLife {
			r.forget(k, p)
		}
	}
}
