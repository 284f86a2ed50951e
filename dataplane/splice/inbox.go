package splice

// inbox puts the client's stream in order, from an offset of 0 on.
type inbox struct {
	data     []byte // the first got bytes are in order
	got      int
	gaps     []span // what lies behind, in order of offset
	fin      bool   // the client's FIN is in order
	finAt    int    // its offset, if it is known
	finKnown bool
}

// span is a range of offsets in the client's stream.
type span struct{ from, to int }

// mostGaps bounds how many pieces out of order are kept; others are sent again by the client.
const mostGaps = 8

// leastInbox is what a buffer begins with, in bytes: more than most requests take.
const leastInbox = 1024

// add puts a segment where it belongs, as far as that is below the limit. base is the sequence number of offset 0.
func (b *inbox) add(base uint32, s *Segment, most int) {
	// Offsets in the stream, in 64 bits: anything may be claimed. What is behind a FIN does not exist.
	from := int64(int32(s.Seq - base))
	end := from + int64(len(s.Payload))
	if s.Flags&FIN != 0 && !b.finKnown && end >= int64(b.placed()) && end <= int64(most) {
		b.finKnown, b.finAt = true, int(end)
	}
	limit := int64(most)
	if b.finKnown {
		limit = int64(b.finAt)
	}
	if first, to := max(from, int64(b.got)), min(end, limit); first < to {
		b.place(int(first), s.Payload[first-from:to-from], most)
	}
	b.fin = b.finKnown && b.got == b.finAt
}

// placed is the offset behind all that has arrived.
func (b *inbox) placed() int {
	if n := len(b.gaps); n > 0 {
		return b.gaps[n-1].to
	}
	return b.got
}

// grow makes room up to an offset.
func (b *inbox) grow(to, most int) {
	if to <= len(b.data) {
		return
	}
	data := make([]byte, min(max(to, 2*len(b.data), leastInbox), max(to, most)))
	copy(data, b.data)
	b.data = data
}

// place copies p to offset from and moves the edge of what is in order. The first copy of a byte stays: a later one that differs is not
// looked at, so that what was judged is what the server gets.
func (b *inbox) place(from int, p []byte, most int) {
	to := from + len(p)
	if to <= b.got {
		return
	}
	b.grow(to, most)
	if from < b.got {
		p, from = p[b.got-from:], b.got
	}
	if from == b.got && len(b.gaps) == 0 {
		copy(b.data[from:], p)
		b.got = to
		return
	}
	// Copy only what no piece has yet, then add the span and join neighbours.
	at := from
	for _, g := range b.gaps {
		if g.to <= at {
			continue
		}
		if g.from >= to {
			break
		}
		if g.from > at {
			copy(b.data[at:g.from], p[at-from:])
		}
		at = min(to, g.to)
	}
	if at < to {
		copy(b.data[at:to], p[at-from:])
	}
	merged := make([]span, 0, len(b.gaps)+1)
	add := span{from, to}
	for _, g := range b.gaps {
		switch {
		case g.to < add.from:
			merged = append(merged, g)
		case g.from > add.to:
			merged = append(merged, add)
			add = g
		default:
			add = span{min(add.from, g.from), max(add.to, g.to)}
		}
	}
	merged = append(merged, add)
	if merged[0].from <= b.got {
		b.got = max(b.got, merged[0].to)
		merged = merged[1:]
	}
	if len(merged) > mostGaps {
		merged = merged[:mostGaps]
	}
	b.gaps = merged
}

// drop forgets the first n bytes: what was at offset n is at 0 now.
func (b *inbox) drop(n int) {
	keep := b.placed()
	copy(b.data, b.data[n:keep])
	b.got -= n
	b.finAt -= n
	for i := range b.gaps {
		b.gaps[i].from -= n
		b.gaps[i].to -= n
	}
	if keep == n && len(b.data) > leastInbox {
		b.data = nil
	}
}
