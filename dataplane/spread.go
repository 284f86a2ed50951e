package dataplane

import (
	"github.com/lbprim/lbprim/internal/spread"
	"github.com/lbprim/lbprim/internal/wire"
)

// spread returns the hash by which a packet finds its worker: that of its client's endpoint, so that both directions of a
// session meet one worker although their addresses differ. Packets of which neither end is known to be the client get
// one hash for both directions. All fragments of a packet, of which only the first has ports, go by the
// client's address alone.
func (s *snapshot) spread(b []byte) uint32 {
	var v wire.View
	if wire.Parse(b, &v) != wire.OK {
		return 0
	}
	if v.Mark&wire.ICMPError != 0 && v.Mark&wire.Fragment == 0 {
		// It goes where the packet goes that it quotes, seen backwards.
		quote := v.Quote(b)
		var q wire.View
		if wire.ParseQuoted(quote, &q) == wire.OK && q.Mark&wire.ICMPError == 0 {
			return s.spreadEnds(q.Dst(quote), q.Src(quote), q.DstPort, q.SrcPort, &q)
		}
	}
	return s.spreadEnds(v.Src(b), v.Dst(b), v.SrcPort, v.DstPort, &v)
}

func (s *snapshot) spreadEnds(src, dst []byte, sport, dport uint16, v *wire.View) uint32 {
	if v.Mark&wire.Ports == 0 || v.Mark&wire.Fragment != 0 {
		sport, dport = 0, 0
	}
	if s.table != nil {
		if s.table.OwnsVIP(addrOf(dst)) {
			return spread.Hash(spread.Fold(src), sport)
		}
		if len(s.ends[addrOf(src)]) > 0 || s.table.OwnsVIP(addrOf(src)) {
			return spread.Hash(spread.Fold(dst), dport)
		}
	}
	return spread.Hash(spread.Fold(src), sport) + spread.Hash(spread.Fold(dst), dport)
}

// etherSpread is spread of a frame. Frames that are no IP go to one worker.
func etherSpread(s *snapshot, frame []byte) uint32 {
	f, st := wire.ParseEthernet(frame)
	if st != wire.OK || f.Type != wire.EtherIPv4 && f.Type != wire.EtherIPv6 {
		return 0
	}
	return s.spread(frame[f.L3:])
}

// spreadEnd is the hash of an endpoint.
func spreadEnd(e *wire.End, version uint8) uint32 {
	if version == 4 {
		return spread.Hash(spread.Fold(e.Addr[12:]), e.Port)
	}
	return spread.Hash(spread.Fold(e.Addr[:]), e.Port)
}
