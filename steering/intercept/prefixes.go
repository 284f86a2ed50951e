package intercept

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// prefixes cuts the addresses of one family into the intervals that a set of networks makes of
// them, and finds the interval of an address.
type prefixes struct {
	hi, lo []uint64 // starts of the intervals, ascending; lo is nil for IPv4
	index  []finder // the first is the root
	slots  []slot
}

// A word is an address of up to 128 bits, left-aligned.
type word struct{ hi, lo uint64 }

func wordOf(a netip.Addr) word {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return word{uint64(binary.BigEndian.Uint32(b[:])) << 32, 0}
	}
	b := a.As16()
	return word{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// after returns the first address behind the network of n bits at w, and whether there
// is one.
func (w word) after(n int) (word, bool) {
	var step word
	switch {
	case n == 0:
		return word{}, false
	case n <= 64:
		step.hi = 1 << (64 - n)
	default:
		step.lo = 1 << (128 - n)
	}
	lo, carry := bits.Add64(w.lo, step.lo, 0)
	hi, over := bits.Add64(w.hi, step.hi, carry)
	return word{hi, lo}, over == 0
}

func (w word) compare(o word) int {
	return cmp.Or(cmp.Compare(w.hi, o.hi), cmp.Compare(w.lo, o.lo))
}

// comparePrefix orders networks of one family by address, wider ones first.
func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// A cover is what a network has of the intervals, and the next wider network around it, -1 if
// there is none.
type cover struct {
	span
	parent int32
}

type span struct{ from, to uint32 }

func (s span) len() uint32 { return s.to - s.from }

// newPrefixes makes the intervals of different networks of one family, in the order of
// comparePrefix. It returns what each network covers, and the longest network around each
// interval, -1 for none.
func newPrefixes(nets []netip.Prefix) (p *prefixes, covers []cover, in []int32) {
	p = &prefixes{hi: []uint64{0}}
	v6 := len(nets) > 0 && !nets[0].Addr().Is4()
	if v6 {
		p.lo = []uint64{0}
	}
	in = []int32{-1}
	covers = make([]cover, len(nets))
	begin := func(w word, net int32) uint32 {
		n := len(p.hi) - 1
		if p.hi[n] == w.hi && (!v6 || p.lo[n] == w.lo) {
			in[n] = net
			return uint32(n)
		}
		p.hi, in = append(p.hi, w.hi), append(in, net)
		if v6 {
			p.lo = append(p.lo, w.lo)
		}
		return uint32(n + 1)
	}
	// The stack holds the networks around the present place, and where they end.
	type open struct {
		net int32
		end word
		all bool // to the last address
	}
	var stack []open
	top := func() int32 {
		if len(stack) == 0 {
			return -1
		}
		return stack[len(stack)-1].net
	}
	leave := func(until *word) {
		for len(stack) > 0 {
			t := stack[len(stack)-1]
			if until != nil && (t.all || until.compare(t.end) < 0) {
				return
			}
			stack = stack[:len(stack)-1]
			if t.all {
				covers[t.net].to = uint32(len(p.hi))
			} else {
				covers[t.net].to = begin(t.end, top())
			}
		}
	}
	for i, n := range nets {
		w := wordOf(n.Addr())
		leave(&w)
		covers[i].parent = top()
		covers[i].from = begin(w, int32(i))
		end, ok := w.after(n.Bits())
		stack = append(stack, open{int32(i), end, !ok})
	}
	leave(nil)
	p.finder(span{0, uint32(len(p.hi))}, false)
	return p, covers, in
}

// A finder leads from an address to the few starts around it: it divides the values from its
// first start to its last evenly into slots, about as many as there are starts.
type finder struct {
	base  uint64
	alike uint64 // with low: the upper half of all its starts
	span         // its starts
	slots span
	shift uint8
	low   bool // by the lower half of the address
}

// A slot has the number of its first start, or a finder of its own if there are many.
type slot struct {
	from uint32
	sub  int32 // number of a finder, 0 for none
}

// few is how many starts are looked at one by one.
const few = 8

// finder adds a finder of the starts in s and returns its number.
func (p *prefixes) finder(s span, low bool) int32 {
	keys := p.hi
	if low {
		keys = p.lo
	}
	keys = keys[s.from:s.to]
	f := finder{base: keys[0], span: s, low: low, alike: p.hi[s.from]}
	n := uint32(1)
	if len(keys) > few {
		n = 1 << bits.Len(uint(len(keys)-1))
		f.shift = uint8(max(bits.Len64(keys[len(keys)-1]-keys[0])-bits.Len32(n-1), 0))
		n = uint32((keys[len(keys)-1]-keys[0])>>f.shift) + 1
	}
	first := uint32(len(p.slots))
	f.slots = span{first, first + n}
	number := int32(len(p.index))
	p.index = append(p.index, f)
	p.slots = append(p.slots, make([]slot, n+1)...)
	at := uint32(0)
	for k := range n {
		from := at
		for at < uint32(len(keys)) && uint32((keys[at]-f.base)>>f.shift) == k {
			at++
		}
		sub := int32(0)
		switch {
		case at-from <= few:
		case keys[at-1] > keys[from]:
			sub = p.finder(span{s.from + from, s.from + at}, low)
		case !low && p.lo != nil:
			sub = p.finder(span{s.from + from, s.from + at}, true)
		}
		p.slots[first+k] = slot{s.from + from, sub}
	}
	p.slots[first+n] = slot{from: s.to}
	return number
}

// lookup returns the number of the interval that contains the address.
func (p *prefixes) lookup(w word) uint32 {
	f := &p.index[0]
	for {
		x := w.hi
		if f.low {
			if w.hi != f.alike {
				if w.hi < f.alike {
					return f.from - 1
				}
				return f.to - 1
			}
			x = w.lo
		}
		if x < f.base {
			return f.from - 1
		}
		k := min((x-f.base)>>f.shift, uint64(f.slots.len()-1))
		s := p.slots[uint64(f.slots.from)+k : uint64(f.slots.from)+k+2]
		if s[0].sub != 0 {
			f = &p.index[s[0].sub]
			continue
		}
		n := s[0].from
		for ; n < s[1].from; n++ {
			if p.hi[n] > w.hi || p.lo != nil && p.hi[n] == w.hi && p.lo[n] > w.lo {
				break
			}
		}
		return n - 1
	}
}
