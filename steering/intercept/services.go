package intercept

import (
	"cmp"
	"net/netip"
	"slices"
)

// services is the network services table, compiled, for each family on its own: a row whose
// networks are of one family is nothing to the other.
type services struct {
	rows    []Row
	v4, v6  family
	compile int // rows in force
}

// A family is the rows of one family of addresses. Their networks cut the addresses into
// intervals. A packet finds the intervals of its two ends; each leads to a list of the pairs of
// networks that have one of the two around this interval, the pair with the first row in front,
// so that a look-up reads two short lists from front to back and stops where no better row can
// follow. The other network of a pair is tested by the numbers of its first and last interval.
//
// A list has the pairs of the networks further out copied into it as long as these are few, so
// that the cost hardly depends on how deep networks nest. Only pairs of two networks that are
// in many pairs each are looked up one by one.
type family struct {
	rows     []Row
	nets     *prefixes
	leaves   []branch  // of each interval
	outer    []branch  // of each network, for those whose lists are not copied
	links    []link    // lists of the branches
	cells    []cell    // cells of one pair lie side by side
	bigA     []int32   // of a network in many pairs as A: the next such around it, or -1
	bigB     []int32   // the same as B
	bigPairs hashTable // (A, B) → first of the pair's cells, for pairs of two such networks
}

// A branch is what begins at an interval, or at a network.
type branch struct {
	links span
	best  int32 // first row of these links and of what comes next
	next  int32 // network whose branch goes on, or -1
	bigA  int32 // the next network around it that is in many pairs as A, or -1
	bigB  int32
}

// A link is a pair of networks in the list of one of them.
type link struct {
	other span  // intervals of the other network
	row   int32 // first of the cell
	cell  cellRef
}

// A cellRef is the number of a cell, and in the upper bits what spares a look at it.
type cellRef uint32

const (
	isB       cellRef = 1 << 31 // the network that has the link is the B of the pair
	isPlain   cellRef = 1 << 30 // the first row matches all ports
	protoBits cellRef = 3 << 28
	numBits   cellRef = 1<<28 - 1
)

func protoCode(proto uint8) cellRef {
	switch proto {
	case tcp:
		return 1 << 28
	case udp:
		return 2 << 28
	}
	return 0
}

// large is how many pairs a network lists at most, inherit how many links of networks further
// out are copied to those within.
const (
	large   = 16
	inherit = 16
)

func newServices(rows []Row) *services {
	t := &services{rows: rows}
	zero4 := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	zero6 := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	b4, b6 := builder{ids: map[netip.Prefix]int32{}}, builder{ids: map[netip.Prefix]int32{}}
	add := func(a, b netip.Prefix, r *Row, i int) {
		x := &b6
		if a.Addr().Is4() {
			x = &b4
		}
		x.places = append(x.places, place{x.number(a), x.number(b), r.Protocol, int32(i)})
	}
	for i := range rows {
		r := &rows[i]
		if r.Disabled {
			continue
		}
		t.compile++
		a, b := r.A.Net, r.B.Net
		switch {
		case a.IsValid() && b.IsValid():
			add(a, b, r, i)
		case a.IsValid():
			add(a, zeroOf(a, zero4, zero6), r, i)
		case b.IsValid():
			add(zeroOf(b, zero4, zero6), b, r, i)
		default:
			add(zero4, zero4, r, i)
			add(zero6, zero6, r, i)
		}
	}
	t.v4, t.v6 = b4.build(rows), b6.build(rows)
	return t
}

func zeroOf(p, zero4, zero6 netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return zero4
	}
	return zero6
}

// A builder collects the rows of a family.
type builder struct {
	nets   []netip.Prefix
	ids    map[netip.Prefix]int32
	places []place
}

// A place is where a row goes: the cell of two networks and a protocol.
type place struct {
	a, b  int32
	proto uint8
	row   int32
}

func (x *builder) number(p netip.Prefix) int32 {
	id, ok := x.ids[p]
	if !ok {
		id = int32(len(x.nets))
		x.ids[p] = id
		x.nets = append(x.nets, p)
	}
	return id
}

// sort numbers the networks in the order of newPrefixes.
func (x *builder) sort() {
	order := make([]int32, len(x.nets))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int { return comparePrefix(x.nets[i], x.nets[j]) })
	rank, sorted := make([]int32, len(order)), make([]netip.Prefix, len(order))
	for r, i := range order {
		rank[i], sorted[r] = int32(r), x.nets[i]
	}
	x.nets = sorted
	for i := range x.places {
		p := &x.places[i]
		p.a, p.b = rank[p.a], rank[p.b]
	}
	slices.SortFunc(x.places, func(p, q place) int {
		return cmp.Or(cmp.Compare(p.a, q.a), cmp.Compare(p.b, q.b), cmp.Compare(p.proto, q.proto), cmp.Compare(p.row, q.row))
	})
}

// A pair is two networks with rows, and their cells.
type pair struct {
	a, b  int32
	cells span
}

func (x *builder) build(rows []Row) family {
	x.sort()
	f := family{rows: rows}
	var pairs []pair
	for places := x.places; len(places) > 0; {
		p := places[0]
		n := 1
		for n < len(places) && places[n].a == p.a && places[n].b == p.b && places[n].proto == p.proto {
			n++
		}
		at := uint32(len(f.cells))
		if k := len(pairs) - 1; k >= 0 && pairs[k].a == p.a && pairs[k].b == p.b {
			f.cells[at-1].last = false
			pairs[k].cells.to++
		} else {
			pairs = append(pairs, pair{p.a, p.b, span{at, at + 1}})
		}
		f.cells = append(f.cells, newCell(rows, places[:n]))
		places = places[n:]
	}
	nets, covers, in := newPrefixes(x.nets)
	f.nets = nets
	f.lists(f.own(pairs, covers), covers)
	f.leaves = make([]branch, len(in))
	for i, net := range in {
		f.leaves[i] = branch{best: noRow, next: -1, bigA: -1, bigB: -1}
		if net >= 0 {
			f.leaves[i] = f.outer[net]
		}
	}
	return f
}

// own finds each pair a list and returns the lists of the networks, each in the order of rows.
func (f *family) own(pairs []pair, covers []cover) [][]link {
	countA, countB := make([]uint32, len(covers)), make([]uint32, len(covers))
	for _, p := range pairs {
		countA[p.a]++
		countB[p.b]++
	}
	f.bigA, f.bigB = make([]int32, len(covers)), make([]int32, len(covers))
	const small = -2
	for i, c := range covers {
		f.bigA[i], f.bigB[i] = small, small
		if countA[i] > large {
			f.bigA[i] = c.parent
		}
		if countB[i] > large {
			f.bigB[i] = c.parent
		}
	}
	// A pair goes to the network with fewer intervals: fewer packets come by there.
	asA := func(p *pair) bool {
		return f.bigA[p.a] == small && (f.bigB[p.b] != small || covers[p.a].len() <= covers[p.b].len())
	}
	size := make([]uint32, len(covers))
	var both []*pair
	total := uint32(0)
	for i := range pairs {
		p := &pairs[i]
		switch {
		case asA(p):
			size[p.a] += p.cells.len()
		case f.bigB[p.b] == small:
			size[p.b] += p.cells.len()
		default:
			both = append(both, p)
			continue
		}
		total += p.cells.len()
	}
	lists, room := make([][]link, len(covers)), make([]link, total)
	for i, n := range size {
		lists[i], room = room[:0:n], room[n:]
	}
	for i := range pairs {
		p := &pairs[i]
		at, other, role := p.a, p.b, cellRef(0)
		if !asA(p) {
			if f.bigB[p.b] != small {
				continue
			}
			at, other, role = p.b, p.a, isB
		}
		for k := p.cells.from; k < p.cells.to; k++ {
			c := &f.cells[k]
			ref := cellRef(k) | role | protoCode(c.proto)
			if c.plain() {
				ref |= isPlain
			}
			lists[at] = append(lists[at], link{covers[other].span, c.row, ref})
		}
	}
	for _, l := range lists {
		slices.SortFunc(l, func(x, y link) int { return cmp.Compare(x.row, y.row) })
	}
	f.bigPairs = newHashTable(len(both))
	for _, p := range both {
		f.bigPairs.put(uint64(p.a)<<32|uint64(p.b), int32(p.cells.from))
	}
	return lists
}

// lists lays the lists of the networks side by side, those of wider networks copied to the ones
// within, and notes for each the networks in many pairs around it.
func (f *family) lists(own [][]link, covers []cover) {
	f.outer = make([]branch, len(covers))
	for i, c := range covers {
		n := branch{best: noRow, next: -1, bigA: -1, bigB: -1}
		var copied []link
		if c.parent >= 0 {
			up := &f.outer[c.parent]
			n.bigA, n.bigB = up.bigA, up.bigB
			if len(own[i]) == 0 { // nothing of its own
				n = *up
			} else if n.next = c.parent; up.links.len() <= inherit {
				copied, n.next = f.links[up.links.from:up.links.to], up.next
			}
		}
		if l := own[i]; len(l) > 0 {
			n.links.from = uint32(len(f.links))
			f.links = merge(f.links, l, copied)
			n.links.to = uint32(len(f.links))
			n.best = f.links[n.links.from].row
			if n.next >= 0 {
				n.best = min(n.best, f.outer[n.next].best)
			}
		}
		// Those in many pairs are linked with one another.
		if f.bigA[i] != -2 {
			f.bigA[i], n.bigA = n.bigA, int32(i)
		}
		if f.bigB[i] != -2 {
			f.bigB[i], n.bigB = n.bigB, int32(i)
		}
		f.outer[i] = n
	}
}

// merge appends two lists in the order of rows.
func merge(to, a, b []link) []link {
	for len(a) > 0 && len(b) > 0 {
		if a[0].row <= b[0].row {
			to, a = append(to, a[0]), a[1:]
		} else {
			to, b = append(to, b[0]), b[1:]
		}
	}
	return append(append(to, a...), b...)
}

// lookup returns the number of the first row that matches, or -1.
func (t *services) lookup(proto uint8, src, dst netip.AddrPort) int {
	if t == nil || t.compile == 0 {
		return -1
	}
	f := &t.v4
	sa, da := src.Addr().Unmap(), dst.Addr().Unmap()
	if !sa.Is4() {
		f = &t.v6
	}
	if sa.Is4() != da.Is4() || !sa.IsValid() || proto != tcp && proto != udp {
		return -1
	}
	x := end{f.nets.lookup(wordOf(sa)), src.Port()}
	y := end{f.nets.lookup(wordOf(da)), dst.Port()}
	q := query{f, proto, noRow}
	q.scan(x, y)
	q.scan(y, x)
	q.big(x, y)
	q.big(y, x)
	if q.best == noRow {
		return -1
	}
	return int(q.best)
}

// An end of a packet is the interval of its address, and its port.
type end struct {
	at   uint32
	port uint16
}

// A query is one look-up.
type query struct {
	f     *family
	proto uint8
	best  int32
}

// scan reads the list of the interval at x for pairs that have the other network around y.
func (q *query) scan(x, y end) {
	f, code := q.f, protoCode(q.proto)
	for n := &f.leaves[x.at]; n.best < q.best; n = &f.outer[n.next] {
		for i := range f.links[n.links.from:n.links.to] {
			l := &f.links[int(n.links.from)+i]
			if l.row >= q.best {
				break
			}
			if y.at-l.other.from >= l.other.len() || l.cell&protoBits != 0 && l.cell&protoBits != code {
				continue
			}
			if l.cell&isPlain != 0 {
				q.best = l.row
				break
			}
			pa, pb := x.port, y.port
			if l.cell&isB != 0 {
				pa, pb = pb, pa
			}
			q.best = min(q.best, f.cells[l.cell&numBits].first(f.rows, pa, pb))
		}
		if n.next < 0 {
			return
		}
	}
}

// big looks up the pairs of networks that are in many, with the end A at x and B at y.
func (q *query) big(x, y end) {
	f := q.f
	for a := f.leaves[x.at].bigA; a >= 0; a = f.bigA[a] {
		for b := f.leaves[y.at].bigB; b >= 0; b = f.bigB[b] {
			if i, ok := f.bigPairs.get(uint64(a)<<32 | uint64(b)); ok {
				q.cells(i, x.port, y.port)
			}
		}
	}
}

// cells takes the cells of one pair into account.
func (q *query) cells(i int32, pa, pb uint16) {
	for ; ; i++ {
		c := &q.f.cells[i]
		if c.row < q.best && (c.proto == 0 || c.proto == q.proto) {
			q.best = min(q.best, c.first(q.f.rows, pa, pb))
		}
		if c.last {
			return
		}
	}
}

// matches is the obvious way to test one row.
func (r *Row) matches(proto uint8, src, dst netip.AddrPort) bool {
	if r.Disabled || proto != tcp && proto != udp || r.Protocol != 0 && r.Protocol != proto {
		return false
	}
	return r.A.contains(src) && r.B.contains(dst) || r.A.contains(dst) && r.B.contains(src)
}

func (e *Endpoint) contains(a netip.AddrPort) bool {
	return (!e.Net.IsValid() || e.Net.Contains(a.Addr().Unmap())) && e.Ports.Contains(a.Port())
}
