package policy

import "math/bits"

// prog is the compiled form of one VIP: flat tables in one block of words, so that the
// usual VIP with a handful of rules is one or two cache lines and holds no pointers.
//
// A table answers "which value holds at x?" for an ordered set of start points:
//
//	header   count of starts | key width | whether there is an index
//	index    (large tables only) shift, buckets, first start, first candidate by bucket
//	starts   ascending; 1 word each for IPv4 and ports, 2 for IPv6 ranges that end at
//	         /64 boundaries (nearly all), else 4
//	values   one more than starts: the first holds below the first start
//
// The table at 0 maps protocol and port, see portKey, to a value. Values are:
//
//	0               no rule
//	direct | rank   that rule, whatever the source
//	chained | at    at that word: a count, then so many pairs of the lowest rank in a
//	                table and the table; the lowest rank found in any of them wins
//	at              the table of sources at that word, whose values are rank plus one
type prog []uint32

const (
	direct  = 1 << 31
	chained = 1 << 30
	operand = chained - 1

	sizeMask  = 1<<26 - 1
	wide64    = 1 << 26
	wide128   = 1 << 27
	indexed   = 1 << 28
	scanMax   = 8  // up to so many starts are counted, more are halved first
	indexOver = 32 // tables with more starts than this get an index
)

// The keys of protocols and ports: the protocols that have ports get 1<<16 keys each, in the
// order of portful, the others one each behind them.
var portful = [...]uint8{6, 17, 132, 33, 136}

const portless = uint32(len(portful))

// portKey is the key of a protocol and port in the table at 0.
func portKey(proto uint8, port uint16) uint32 {
	switch proto {
	case 6:
		return uint32(port)
	case 17:
		return 1<<16 | uint32(port)
	}
	return rarePortKey(proto, port)
}

func rarePortKey(proto uint8, port uint16) uint32 {
	switch proto {
	case 132:
		return 2<<16 | uint32(port)
	case 33:
		return 3<<16 | uint32(port)
	case 136:
		return 4<<16 | uint32(port)
	}
	return portless<<16 | uint32(proto)
}

// key32 returns the value of x in the table at o, whose keys are one word.
func (p prog) key32(o uint32, x uint32) uint32 {
	h := p[o]
	n := int(h & sizeMask)
	at := int(o) + 1
	lo, hi := 0, n
	if h&indexed != 0 {
		shift, buckets, base := p[at]&31, p[at+1], p[at+2]
		index := p[at+3:]
		at += 4 + int(buckets)
		b := (x - base) >> shift
		switch {
		case x < base:
			return p[at+n]
		case b >= buckets:
			return p[at+n+n]
		}
		index = index[b : b+2]
		lo, hi = int(index[0]), int(index[1])
	}
	starts := p[at : at+n]
	for hi-lo > scanMax {
		half := (hi - lo) / 2
		if starts[lo+half] <= x {
			lo += half
		} else {
			hi = lo + half
		}
	}
	c := lo
	for _, s := range starts[lo:hi] {
		c += int((uint64(s) - uint64(x) - 1) >> 63) // 1 if s <= x
	}
	return p[at+n+c]
}

// key128 returns the value of x in the table at o, whose keys are addresses of IPv6.
func (p prog) key128(o uint32, x u128) uint32 {
	h := p[o]
	n := int(h & sizeMask)
	at := int(o) + 1
	lo, hi := 0, n
	w := 2
	if h&wide128 != 0 {
		w = 4
	}
	if h&indexed != 0 {
		shift, cut, buckets := p[at]&63, p[at]>>8, int(p[at+1])
		base := u128{uint64(p[at+2])<<32 | uint64(p[at+3]), uint64(p[at+4])<<32 | uint64(p[at+5])}
		last := u128{uint64(p[at+6])<<32 | uint64(p[at+7]), uint64(p[at+8])<<32 | uint64(p[at+9])}
		index := p[at+10:]
		at += 11 + buckets
		switch {
		case x.less(base):
			return p[at+n*w]
		case last.less(x):
			return p[at+n*w+n]
		}
		b := int((x.window(cut) - base.window(cut)) >> shift)
		index = index[b : b+2]
		lo, hi = int(index[0]), int(index[1])
	}
	starts := p[at : at+n*w]
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		s := starts[mid*w : mid*w+2]
		y := u128{hi: uint64(s[0])<<32 | uint64(s[1])}
		if w == 4 {
			s = starts[mid*4+2 : mid*4+4]
			y.lo = uint64(s[0])<<32 | uint64(s[1])
		}
		if x.less(y) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return p[at+n*w+lo]
}

// window returns the 64 bits of x that follow the first cut ones, cut ≤ 64.
func (x u128) window(cut uint32) uint64 { return x.hi<<cut | x.lo>>(64-cut) }

// appendTable32 appends a table with keys of one word.
func (p prog) appendTable32(starts, values []uint32) prog {
	n := len(starts)
	h := uint32(n)
	if n > indexOver {
		base, last := starts[0], starts[n-1]
		shift := max(0, bits.Len32(last-base)-bits.Len(uint(n)))
		buckets := (last-base)>>shift + 1
		p = append(p, h|indexed, uint32(shift), buckets, base)
		p = appendIndex(p, int(buckets), n, func(i int) int { return int((starts[i] - base) >> shift) })
	} else {
		p = append(p, h)
	}
	p = append(p, starts...)
	return append(p, values...)
}

// appendSources appends a table with addresses for keys.
func (p prog) appendSources(fam family, f *flat) prog {
	n := len(f.starts)
	if fam == v4 {
		starts := make([]uint32, 0, 16)
		for _, s := range f.starts {
			starts = append(starts, uint32(s.lo))
		}
		return p.appendTable32(starts, f.values)
	}
	h := uint32(n) | wide64
	for _, s := range f.starts {
		if s.lo != 0 {
			h = uint32(n) | wide128
			break
		}
	}
	if n > indexOver {
		base, last := f.starts[0], f.starts[n-1]
		cut := uint32(bits.LeadingZeros64(base.hi ^ last.hi)) // 64 if they agree
		spread := last.window(cut) - base.window(cut)
		shift := max(0, bits.Len64(spread)-bits.Len(uint(n)))
		buckets := int(spread>>shift) + 1
		p = append(p, h|indexed, uint32(shift)|cut<<8, uint32(buckets))
		p = append(p, base.words()...)
		p = append(p, last.words()...)
		p = appendIndex(p, buckets, n, func(i int) int {
			return int((f.starts[i].window(cut) - base.window(cut)) >> shift)
		})
	} else {
		p = append(p, h)
	}
	for _, s := range f.starts {
		w := s.words()
		if h&wide64 != 0 {
			w = w[:2]
		}
		p = append(p, w...)
	}
	return append(p, f.values...)
}

func (x u128) words() []uint32 {
	return []uint32{uint32(x.hi >> 32), uint32(x.hi), uint32(x.lo >> 32), uint32(x.lo)}
}

// appendIndex appends, for each bucket and the end, how many starts lie in buckets
// before it.
func appendIndex(p prog, buckets, n int, bucket func(i int) int) prog {
	i := 0
	for b := range buckets + 1 {
		for i < n && bucket(i) < b {
			i++
		}
		p = append(p, uint32(i))
	}
	return p
}
