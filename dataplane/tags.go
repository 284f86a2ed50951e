package dataplane

import (
	"encoding/binary"

	"github.com/lbprim/lbprim/internal/wire"
)

// tags are the VLAN tags of a frame as they stand in it, between the addresses and the EtherType: four bytes each. What the balancer sends of its
// own accord has those of the session's client, as what it forwards has. The zero tags are none.
type tags struct {
	n uint8
	b [16]byte
}

// tagsOf returns the tags that a packet came with.
func (w *Worker) tagsOf(pk *packet) (t tags) {
	if w.link.Ethernet && pk.frame.Tags > 0 {
		t.n = uint8(copy(t.b[:], pk.buf[Headroom+12:Headroom+pk.frame.L3-2]))
	}
	return t
}

// packedTags are one or two tags without their priorities, as a record keeps them: how many, and of each which protocol it has and its identifier.
//
//	| 0 2 | second: protocol 2, identifier 12 | first: the same 14 | how many 2 |
type packedTags uint32

// manyTags are more than are kept.
const manyTags packedTags = 3

// tagProtocols are those of tags: IEEE 802.1Q, 802.1ad, and what was used before that.
var tagProtocols = [...]uint16{wire.EtherVLAN, wire.EtherQinQ, 0x9100}

func (t *tags) packed() (p packedTags) {
	if t.n > 8 {
		return manyTags
	}
	for i := range int(t.n) / 4 {
		tag := t.b[4*i:]
		v := packedTags(binary.BigEndian.Uint16(tag[2:]) & 0xfff)
		for j, proto := range tagProtocols {
			if proto == binary.BigEndian.Uint16(tag) {
				v |= packedTags(j) << 12
			}
		}
		p += v<<(2+14*i) + 1
	}
	return p
}

// unpack returns the tags, or false if they were not kept.
func (p packedTags) unpack() (t tags, ok bool) {
	n := p & 3
	if n == manyTags {
		return t, false
	}
	for i := range int(n) {
		v := p >> (2 + 14*i)
		binary.BigEndian.PutUint16(t.b[4*i:], tagProtocols[v>>12&3])
		binary.BigEndian.PutUint16(t.b[4*i+2:], uint16(v&0xfff))
		t.n += 4
	}
	return t, true
}

// setTags keeps the tags of a session's client.
func (r *record) setTags(t tags) {
	for p := uint32(t.packed()) << 1; ; {
		old := r.aged.Load()
		if r.aged.CompareAndSwap(old, old&1|p) {
			return
		}
	}
}

// tags returns what setTags kept, or false if these were too many.
func (r *record) tags() (tags, bool) { return packedTags(r.aged.Load() >> 1).unpack() }
