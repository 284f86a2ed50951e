package dataplane

import "slices"

// assembler puts the bytes of one direction in order. Of bytes that nobody will look at, such as those of a reply's body with a length, it keeps
// only where they are.
type assembler struct {
	next  uint32 // as the client numbers them
	ahead []piece
	bytes int // in pieces
}

// piece is what came too early.
type piece struct {
	seq  uint32
	n    int
	data []byte // nil: need not be looked at
}

// mostAhead bounds what an assembler keeps of segments that come too early, in bytes and in pieces. The sender sends again what is
// not taken.
const (
	mostAhead  = 1 << 18
	mostPieces = 256
	farAhead   = 1 << 30
)

// room reports whether a segment can be taken. skip is how many bytes from next on need not be looked at.
func (a *assembler) room(seq uint32, n int, skip int64) bool {
	early := int32(seq - a.next)
	switch {
	case n == 0 || early <= 0:
		return true
	case early >= farAhead:
		return false
	case int64(early)+int64(n) <= skip:
		return len(a.ahead) < mostPieces || a.beside(seq, n) >= 0
	}
	return a.bytes+n <= mostAhead && len(a.ahead) < mostPieces
}

// beside returns the piece without bytes that a segment touches or overlaps, or -1.
func (a *assembler) beside(seq uint32, n int) int {
	return slices.IndexFunc(a.ahead, func(p piece) bool {
		return p.data == nil && int32(seq-p.seq) <= int32(p.n) && int32(p.seq-seq) <= int32(n)
	})
}

// add calls take with what a segment adds to the bytes in order, and pass with how many of them are known only by their number. skip is how many
// bytes from next on need not be looked at.
func (a *assembler) add(seq uint32, data []byte, skip int64, take func([]byte), pass func(int)) {
	early := int32(seq - a.next)
	switch {
	case len(data) == 0 || !a.room(seq, len(data), skip):
		return
	case early > 0 && int64(early)+int64(len(data)) <= skip:
		a.note(seq, len(data))
		return
	case early > 0:
		a.bytes += len(data)
		a.ahead = append(a.ahead, piece{seq, len(data), slices.Clone(data)})
		return
	case int(-early) >= len(data):
		return // again
	}
	data = data[-early:]
	a.next += uint32(len(data))
	take(data)
	for i := a.due(); i >= 0; i = a.due() {
		p := a.ahead[i]
		a.ahead = slices.Delete(a.ahead, i, i+1)
		a.bytes -= len(p.data)
		n := p.n - int(a.next-p.seq)
		if n <= 0 {
			continue
		}
		a.next += uint32(n)
		if p.data == nil {
			pass(n)
		} else {
			take(p.data[p.n-n:])
		}
	}
}

// due returns a piece that is not too early any more, or -1.
func (a *assembler) due() int {
	return slices.IndexFunc(a.ahead, func(p piece) bool { return int32(a.next-p.seq) >= 0 })
}

// note takes note of bytes that need not be looked at.
func (a *assembler) note(seq uint32, n int) {
	for i := a.beside(seq, n); i >= 0; i = a.beside(seq, n) {
		p := a.ahead[i]
		a.ahead = slices.Delete(a.ahead, i, i+1)
		end := max(int32(seq-p.seq)+int32(n), int32(p.n)) // from p.seq on
		if from := int32(p.seq - seq); from > 0 {
			end += from
		} else {
			seq = p.seq
		}
		n = int(end)
	}
	a.ahead = append(a.ahead, piece{seq: seq, n: n})
}
