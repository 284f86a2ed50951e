package policy

import "github.com/lbprim/lbprim/internal/enum"

// Relation says how the packets of two matches relate as sets.
type Relation uint8

const (
	// Disjoint: no packet is in both. The zero Relation.
	Disjoint Relation = iota
	// Equal: both hold the same packets.
	Equal
	// Narrower: every packet of the first is in the second, which holds more.
	Narrower
	// Wider: every packet of the second is in the first, which holds more.
	Wider
	// Overlapping: some packets are in both, and each holds some the other does not.
	Overlapping
)

var relationNames = enum.Wrapping[Relation](ErrInvalid, "relation", "disjoint", "equal", "narrower", "wider", "overlapping")

// String returns the relation's name in lower case.
func (r Relation) String() string { return relationNames.String(r) }

// AppendText implements encoding.TextAppender.
func (r Relation) AppendText(b []byte) ([]byte, error) { return relationNames.Append(b, r) }

// MarshalText implements encoding.TextMarshaler.
func (r Relation) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Relation) UnmarshalText(text []byte) error { return relationNames.Parse(r, text) }

// Relate says how the packets of m relate to those of n. An invalid match holds no
// packet and is disjoint from every other.
func (m Match) Relate(n Match) Relation {
	a, err1 := m.norm()
	b, err2 := n.norm()
	if err1 != nil || err2 != nil || a.fam != b.fam {
		return Disjoint
	}
	return both(both(
		relateSpans(a.vipSpan(), b.vipSpan()),
		relateRows(&a, &b)),
		relateSpans(a.src, b.src))
}

func (n *norm) vipSpan() span { return span{n.vip, n.fam.last(n.vip, int(n.bits))} }

func relateSpans(a, b span) Relation {
	switch {
	case a.last.less(b.first) || b.last.less(a.first):
		return Disjoint
	case a == b:
		return Equal
	case b.contains(a.first) && b.contains(a.last):
		return Narrower
	case a.contains(b.first) && a.contains(b.last):
		return Wider
	}
	return Overlapping
}

// both combines the relations of two dimensions into that of their products.
func both(x, y Relation) Relation {
	switch {
	case x == Disjoint || y == Disjoint:
		return Disjoint
	case x == Equal || x == y:
		return y
	case y == Equal:
		return x
	}
	return Overlapping
}

// relateRows compares what two rules say of protocol and port, protocol by protocol:
// the sets are not products, since "any protocol, port 80" has no packet of GRE.
func relateRows(a, b *norm) Relation {
	var onlyA, onlyB, common bool
	for p := range 256 {
		x, okX := a.portsOf(uint8(p))
		y, okY := b.portsOf(uint8(p))
		switch {
		case okX && okY:
			switch relateSpans(x, y) {
			case Disjoint:
				onlyA, onlyB = true, true
			case Equal:
				common = true
			case Narrower:
				common, onlyB = true, true
			case Wider:
				common, onlyA = true, true
			case Overlapping:
				common, onlyA, onlyB = true, true, true
			}
		case okX:
			onlyA = true
		case okY:
			onlyB = true
		}
	}
	switch {
	case !common:
		return Disjoint
	case onlyA && onlyB:
		return Overlapping
	case onlyA:
		return Wider
	case onlyB:
		return Narrower
	}
	return Equal
}

// portsOf returns the ports a rule has of IP protocol p; a protocol without ports
// counts as having one.
func (n *norm) portsOf(p uint8) (ports span, ok bool) {
	if !n.proto.Contains(p) {
		return span{}, false
	}
	switch hasPorts := packetHasPorts(p); {
	case n.ports.IsAny() && hasPorts:
		return span{u128{}, u128{lo: 65535}}, true
	case n.ports.IsAny():
		return span{}, true
	case hasPorts:
		return span{u128{lo: uint64(n.ports.First)}, u128{lo: uint64(n.ports.Last)}}, true
	}
	return span{}, false
}
