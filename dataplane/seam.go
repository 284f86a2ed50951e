package dataplane

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
)

// seam is the part of a record that a session with delayed binding needs: how the two connections, the client's with the balancer and
// the balancer's with the node, are one.
type seam struct {
	stage atomic.Uint32
	tr    splice.Translation // written before stage leaves connecting, like the record's shift before stage is spliced
}

// Stages of a seam.
const (
	connecting = iota // the node has not answered
	replaying         // it has: segments are translated, but the balancer has a hand in it
	following         // segments are translated, and read on the way
	spliced           // segments are translated
)

// sums collects what changes in a TCP header.
type sums struct{ d wire.Diff }

func (s *sums) Long(from, to uint32) { s.d = s.d.Long(from, to) }

// LongOdd swaps the bytes of each word: that is what an odd offset does to their sum.
func (s *sums) LongOdd(from, to uint32) { s.d = s.d.Long(swapped(from), swapped(to)) }
func (s *sums) Word(from, to uint16)    { s.d = s.d.Word(from, to) }

func swapped(v uint32) uint32 { return v&0x00ff00ff<<8 | v>>8&0x00ff00ff }

// seamOf returns the translation of a packet of a session with delayed binding, or nil if the packet has been dealt with.
func (w *Worker) seamOf(pk *packet, r ref, rec *record) *splice.Translation {
	sm := &w.p.slab.recs[r.record()].seam
	switch sm.stage.Load() {
	case spliced:
		pk.client = w.recs[r.record()].shift()
	case following:
		w.readPacket(pk, r, sm)
	default:
		return w.unspliced(pk, r, rec, sm)
	}
	return &sm.tr
}

// renumber translates the numbers of a segment, which may be a super-packet: a checksum that is left to be completed does not cover
// them yet.
func (w *Worker) renumber(pk *packet, tr *splice.Translation, dir uint32) {
	w.sums = sums{}
	segment := pk.ip[pk.v.L4:pk.v.End]
	if dir == toNode {
		tr.ToServer(segment, &w.sums)
	} else {
		tr.ToClient(segment, &w.sums)
	}
	if tr == &w.kept.tr && dir == toClient {
		splice.LimitWindow(segment, w.kept.window, &w.sums)
	}
	if pk.client != 0 {
		splice.ShiftClient(segment, splice.Side(dir^toClient), pk.client, &w.sums)
	}
	if at := pk.v.SumOff; at != 0 && !pk.partial {
		sum := binary.BigEndian.Uint16(pk.ip[at:])
		binary.BigEndian.PutUint16(pk.ip[at:], w.sums.d.Apply(sum))
	}
	pk.tr = tr
}

// unnumber gives a segment that is not going to be sent the sequence number back that its sender knows.
func unnumber(pk *packet, dir uint32) {
	if pk.tr != nil && dir == toClient && pk.tr.Seq != 0 {
		shiftSeq(pk.ip[pk.v.L4:], -pk.tr.Seq, pk.ip, int(pk.v.SumOff), pk.partial)
	}
	if pk.tr != nil && dir == toNode && pk.client != 0 {
		shiftSeq(pk.ip[pk.v.L4:], -pk.client, pk.ip, int(pk.v.SumOff), pk.partial)
	}
	pk.tr = nil
}

// shiftSeq adds d to the sequence number of a segment, and mends the checksum at an offset of b, if that is there.
func shiftSeq(segment []byte, d uint32, b []byte, sumAt int, partial bool) {
	seq := binary.BigEndian.Uint32(segment[4:])
	binary.BigEndian.PutUint32(segment[4:], seq+d)
	if sumAt == 0 || sumAt+2 > len(b) || partial {
		return
	}
	var diff wire.Diff
	binary.BigEndian.PutUint16(b[sumAt:], diff.Long(seq, seq+d).Apply(binary.BigEndian.Uint16(b[sumAt:])))
}

// quoteSeq translates the sequence number in the quotation of an ICMP error to the node, which would not believe it otherwise (RFC 5927, 4.1). It
// reports false if there is no connection to the node yet.
func (w *Worker) quoteSeq(pk *packet, q *wire.View, r ref) bool {
	sm := &w.p.slab.recs[r.record()].seam
	if sm.stage.Load() == connecting {
		return false
	}
	quote := pk.v.Quote(pk.ip)
	lacks := sm.tr.Seq
	if r.dir() != toNode {
		lacks = w.lacks(r) // else the client's own numbers
	}
	if lacks == 0 || int(q.L4)+8 > len(quote) {
		return true
	}
	at := int(pk.v.SumOff)
	old, was := binary.BigEndian.Uint32(quote[q.L4+4:]), uint16(0)
	sumAt := int(q.SumOff)
	has := sumAt != 0 && sumAt+2 <= len(quote)
	if has {
		was = binary.BigEndian.Uint16(quote[sumAt:])
	}
	shiftSeq(quote[q.L4:], -lacks, quote, sumAt, false)
	var diff wire.Diff
	diff = diff.Long(old, old-lacks)
	if has {
		diff = diff.Word(was, binary.BigEndian.Uint16(quote[sumAt:]))
	}
	sum := binary.BigEndian.Uint16(pk.ip[at:])
	if pk.partial {
		return true
	}
	binary.BigEndian.PutUint16(pk.ip[at:], diff.Apply(sum))
	return true
}

// lacks returns what the client's numbers lack to those the node knows, of a connection that is followed.
func (w *Worker) lacks(r ref) uint32 {
	rec := &w.recs[r.record()]
	switch rec.seam.stage.Load() {
	case spliced:
		return rec.shift()
	case replaying:
	default:
		return 0
	}
	key := rec.other(wire.ProtoTCP, toClient)
	s := w.p.holds.shard(key, w.p.cfg.Seed)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.conns[key]; c != nil && c.kept != nil && c.kept.relay != nil && c.session.record() == r.record() {
		return c.kept.relay.Client()
	}
	return 0
}

// savedSeam is what is kept of a seam, and of the client's shift. It has no padding where it is saved.
type savedSeam struct{ seq, ts, first, rest, client, _ uint32 }

// save returns what is to be kept, and false if the connection has no node yet. Reading it on the way ends with the process: what was not learned
// by then is not.
func (r *record) saveSeam() (savedSeam, bool) {
	s := &r.seam
	if s.stage.Load() < following {
		return savedSeam{}, false
	}
	return seamBy(s.tr, r.shift()), true
}

// seamBy is what is kept of a translation and the client's shift.
func seamBy(tr splice.Translation, client uint32) savedSeam {
	v := savedSeam{seq: tr.Seq, ts: tr.TS, first: tr.First, rest: uint32(uint8(tr.Shift)), client: client}
	if tr.Timestamps {
		v.rest |= 1 << 8
	}
	return v
}

func (r *record) restoreSeam(v savedSeam) {
	s := &r.seam
	r.setShift(v.client)
	s.tr = splice.Translation{Seq: v.seq, TS: v.ts, First: v.first, Timestamps: v.rest>>8&1 != 0, Shift: int8(uint8(v.rest))}
	s.tr.Shift = min(max(s.tr.Shift, -14), 14)
	s.stage.Store(spliced)
}

// uses reports whether a pool is one of the service's.
func (s *service) uses(q *pool) bool {
	for sp := range s.conf.all {
		if q.Pool == sp {
			return true
		}
	}
	return false
}
