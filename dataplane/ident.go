package dataplane

import (
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// identifications are those of the fragmented packets that were translated in the last 30 to 60 seconds. Hosts choose them
// for an address each without knowing of the others, whose packets may have the same addresses behind the balancer: who puts
// fragments together would mix them (RFC 6864 section 5.3). The zero value is ready for use; the fragments' lock guards it.
type identifications struct {
	begun    time.Time
	new, old map[clienttable.Flow]clienttable.Flow // by what the fragments have in common, as they left: as they came
}

// sentAs returns what the fragments of a packet have in common when its ends have been changed; nil stays.
func sentAs(b []byte, v *wire.View, src, dst *wire.End) clienttable.Flow {
	s, d := v.Src(b), v.Dst(b)
	if src != nil {
		s = src.Addr[16-len(s):]
	}
	if dst != nil {
		d = dst.Addr[16-len(d):]
	}
	if v.Version == 4 {
		return clienttable.MakeFlow4(v.Proto, [4]byte(s), [4]byte(d), 0, uint16(v.FragID))
	}
	return clienttable.MakeFlow6(wire.ProtoFragment, [16]byte(s), [16]byte(d), uint16(v.FragID>>16), uint16(v.FragID))
}

// choose returns the identification for a packet that came as in and is to leave as out: its own, unless
// another one has that.
func (x *identifications) choose(now time.Time, in, out clienttable.Flow, v6 bool) uint32 {
	if age := now.Sub(x.begun); x.new == nil || age >= fragmentLife || age < 0 || len(x.new) >= maxDatagrams {
		if x.new, x.old = x.old, x.new; x.new == nil {
			x.new = make(map[clienttable.Flow]clienttable.Flow)
		}
		clear(x.new)
		x.begun = now
	}
	first := uint32(out.Src().Port())<<16 | uint32(out.Dst().Port())
	id := first
	for range 64 {
		if o, ok := x.lookup(out); !ok || o == in {
			x.new[out] = in
			return id
		}
		// The next one, and not another one at random: hosts count.
		id++
		if v6 {
			out = clienttable.MakeFlow6(out.Protocol(), out.Src().Addr().As16(), out.Dst().Addr().As16(), uint16(id>>16), uint16(id))
		} else {
			id &= 0xffff
			out = clienttable.MakeFlow4(out.Protocol(), out.Src().Addr().As4(), out.Dst().Addr().As4(), 0, uint16(id))
		}
	}
	return first
}

func (x *identifications) lookup(out clienttable.Flow) (in clienttable.Flow, ok bool) {
	if in, ok = x.new[out]; !ok {
		in, ok = x.old[out]
	}
	return in, ok
}

// identify returns the identification for a packet that has been translated and is about to be broken into fragments. flow is
// that by which its session was found.
func (f *fragments) identify(now time.Time, flow clienttable.Flow, b []byte, v *wire.View) uint32 {
	x := *v
	x.FragID = uint32(b[4])<<8 | uint32(b[5])
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent.choose(now, flow, sentAs(b, &x, nil, nil), false)
}
