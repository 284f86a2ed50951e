package intercept

import (
	"cmp"
	"net/netip"
	"slices"
)

// services is the network services table, compiled. A packet finds the networks around
// its two addresses, then the cells of each pair of them, in both directions; a cell has
// only rows of that very pair, indexed by port. A network that is in few cells lists
// them; only pairs of two networks that are in many are looked up one by one. So the
// cost depends on how deep the networks are nested, not on the number of rows.
type services struct {
	rows    []Row
	v4, v6  *prefixes
	parent  []int32 // of each network: the next shorter one around it, or -1
	nets    []network
	links   []link    // lists of the networks
	cells   hashTable // (A, B) → first of the pair's cells, for pairs of two large networks
	list    []cell    // cells of one pair lie side by side
	compile int       // rows in force
}

// A network lists the pairs it is in as A, and as B, unless it is in many.
type network struct {
	a, b span
	bigA bool
	bigB bool
}

type span struct{ from, to uint32 }

// A link is a pair of networks in the list of one of them.
type link struct{ other, cell int32 }

// large is how many pairs a network lists at most.
const large = 16

// A cell is the rows of one pair of networks and one protocol. Rows are numbers in the
// order of the table.
type cell struct {
	proto uint8     // 0 for both
	last  bool      // the pair has no further cell
	all   int32     // first row without ports, noRow if none
	a, b  steps     // rows with ports at one end only
	ab    []int32   // ranges of ports at both ends, while these are few
	grid  *grid     // the same when they are many
	abAt  hashTable // single ports at both ends → row
	abOK  bool
}

const noRow = int32(1<<31 - 1)

// steps maps ports to the first row for them: sorted starts of intervals.
type steps struct {
	start []uint16
	row   []int32
}

func (s *steps) first(port uint16) int32 {
	if len(s.start) == 0 {
		return noRow
	}
	i, found := slices.BinarySearch(s.start, port)
	if !found {
		i--
	}
	return s.row[i]
}

type portRow struct {
	ports Ports
	row   int32
}

// newSteps lays rows over each other, the first on top.
func newSteps(rows []portRow) steps {
	if len(rows) == 0 {
		return steps{}
	}
	cuts := []uint32{0}
	for _, r := range rows {
		cuts = append(cuts, uint32(r.ports.First), uint32(r.ports.Last)+1)
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	s := steps{}
	top := make([]int32, len(cuts))
	for i := range top {
		top[i] = noRow
	}
	// Rows come in order, so that the first to paint an interval keeps it; next skips
	// what is painted.
	next := make([]int, len(cuts)+1)
	for i := range next {
		next[i] = i
	}
	find := func(i int) int {
		for next[i] != i {
			next[i] = next[next[i]]
			i = next[i]
		}
		return i
	}
	for _, r := range rows {
		from, _ := slices.BinarySearch(cuts, uint32(r.ports.First))
		for i := find(from); i < len(cuts) && cuts[i] <= uint32(r.ports.Last); i = find(i) {
			top[i] = r.row
			next[i] = i + 1
		}
	}
	for i, c := range cuts {
		if c > 0xffff {
			break
		}
		if n := len(s.row); n > 0 && s.row[n-1] == top[i] {
			continue
		}
		s.start = append(s.start, uint16(c))
		s.row = append(s.row, top[i])
	}
	return s
}

func newServices(rows []Row) *services {
	t := &services{rows: rows}
	ids := map[netip.Prefix]int32{}
	var nets4, nets6 []netip.Prefix
	var ids4, ids6 []int32
	number := func(p netip.Prefix) int32 {
		id, ok := ids[p]
		if !ok {
			id = int32(len(ids))
			ids[p] = id
			if p.Addr().Is4() {
				nets4, ids4 = append(nets4, p), append(ids4, id)
			} else {
				nets6, ids6 = append(nets6, p), append(ids6, id)
			}
		}
		return id
	}
	zero4 := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	zero6 := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	var places []place
	add := func(a, b netip.Prefix, r *Row, i int32) {
		places = append(places, place{number(a), number(b), r.Protocol, i})
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
			add(a, b, r, int32(i))
		case a.IsValid():
			add(a, zeroOf(a, zero4, zero6), r, int32(i))
		case b.IsValid():
			add(zeroOf(b, zero4, zero6), b, r, int32(i))
		default:
			add(zero4, zero4, r, int32(i))
			add(zero6, zero6, r, int32(i))
		}
	}
	t.parent = make([]int32, len(ids))
	t.v4 = newPrefixes(nets4, ids4, t.parent, 32)
	t.v6 = newPrefixes(nets6, ids6, t.parent, 128)
	t.link(places, len(ids))
	return t
}

// A place is where a row goes: the cell of two networks and a protocol.
type place struct {
	a, b  int32
	proto uint8
	row   int32
}

// link makes the cells, and finds each pair a list.
func (t *services) link(places []place, networks int) {
	slices.SortFunc(places, func(x, y place) int {
		return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b), cmp.Compare(x.proto, y.proto), cmp.Compare(x.row, y.row))
	})
	type pair struct{ a, b, cell int32 }
	var pairs []pair
	for len(places) > 0 {
		p := places[0]
		n := 1
		for n < len(places) && places[n].a == p.a && places[n].b == p.b && places[n].proto == p.proto {
			n++
		}
		if k := len(pairs) - 1; k >= 0 && pairs[k].a == p.a && pairs[k].b == p.b {
			t.list[len(t.list)-1].last = false
		} else {
			pairs = append(pairs, pair{p.a, p.b, int32(len(t.list))})
		}
		t.list = append(t.list, newCell(t.rows, places[:n]))
		places = places[n:]
	}
	t.nets = make([]network, networks)
	countA, countB := make([]uint32, networks), make([]uint32, networks)
	for _, p := range pairs {
		countA[p.a]++
		countB[p.b]++
	}
	both := 0
	listed := func(p pair) (asA, asB bool) {
		asA = countA[p.a] <= large
		return asA, !asA && countB[p.b] <= large
	}
	sizeA, sizeB := make([]uint32, networks), make([]uint32, networks)
	for _, p := range pairs {
		switch asA, asB := listed(p); {
		case asA:
			sizeA[p.a]++
		case asB:
			sizeB[p.b]++
		default:
			both++
		}
	}
	at := uint32(0)
	for i := range t.nets {
		n := &t.nets[i]
		n.bigA, n.bigB = countA[i] > large, countB[i] > large
		n.a = span{at, at}
		at += sizeA[i]
		n.b = span{at, at}
		at += sizeB[i]
	}
	t.links = make([]link, at)
	t.cells = newHashTable(both)
	for _, p := range pairs {
		switch asA, asB := listed(p); {
		case asA:
			s := &t.nets[p.a].a
			t.links[s.to] = link{p.b, p.cell}
			s.to++
		case asB:
			s := &t.nets[p.b].b
			t.links[s.to] = link{p.a, p.cell}
			s.to++
		default:
			t.cells.put(uint64(p.a)<<32|uint64(p.b), p.cell)
		}
	}
}

func newCell(rows []Row, places []place) cell {
	c := cell{proto: places[0].proto, last: true, all: noRow}
	var a, b []portRow
	var ab []int32
	for _, p := range places {
		pa, pb := rows[p.row].A.Ports, rows[p.row].B.Ports
		switch {
		case pa.any() && pb.any():
			c.all = min(c.all, p.row)
		case pb.any():
			a = append(a, portRow{pa, p.row})
		case pa.any():
			b = append(b, portRow{pb, p.row})
		default:
			ab = append(ab, p.row)
		}
	}
	c.a, c.b = newSteps(a), newSteps(b)
	c.pairs(rows, ab)
	return c
}

func zeroOf(p, zero4, zero6 netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return zero4
	}
	return zero6
}

// pairs indexes rows with ports at both ends: single ports by hash, a few ranges in order,
// many in a grid.
func (c *cell) pairs(rows []Row, ab []int32) {
	if len(ab) == 0 {
		return
	}
	single := map[uint64]int32{}
	for _, row := range ab {
		a, b := rows[row].A.Ports, rows[row].B.Ports
		if a.First == a.Last && b.First == b.Last {
			k := uint64(a.First)<<16 | uint64(b.First)
			if _, ok := single[k]; !ok {
				single[k] = row
			}
		} else {
			c.ab = append(c.ab, row)
		}
	}
	if len(c.ab) > gridWorth {
		c.grid, c.ab = newGrid(rows, c.ab), nil
	}
	if len(single) > 0 {
		c.abOK = true
		c.abAt = newHashTable(len(single))
		for k, row := range single {
			c.abAt.put(k, row)
		}
	}
}

// first returns the first row of c for ports at the ends A and B.
func (c *cell) first(rows []Row, pa, pb uint16) int32 {
	best := min(c.all, c.a.first(pa), c.b.first(pb))
	if c.abOK {
		if row, ok := c.abAt.get(uint64(pa)<<16 | uint64(pb)); ok {
			best = min(best, row)
		}
	}
	for _, i := range c.ab {
		if i >= best {
			break
		}
		if rows[i].A.Ports.Contains(pa) && rows[i].B.Ports.Contains(pb) {
			best = i
			break
		}
	}
	if c.grid != nil {
		best = c.grid.lookup(pa, pb, best)
	}
	return best
}

// lookup returns the number of the first row that matches, or -1.
func (t *services) lookup(proto uint8, src, dst netip.AddrPort) int {
	if t == nil || t.compile == 0 {
		return -1
	}
	p := t.v4
	sa, da := src.Addr().Unmap(), dst.Addr().Unmap()
	if !sa.Is4() {
		p = t.v6
	}
	if sa.Is4() != da.Is4() || !sa.IsValid() || proto != tcp && proto != udp {
		return -1
	}
	q := query{t: t, proto: proto, best: noRow}
	q.src.fill(t, p.lookup(wordOf(sa)), src.Port())
	q.dst.fill(t, p.lookup(wordOf(da)), dst.Port())
	q.ask(&q.src, &q.dst)
	q.ask(&q.dst, &q.src)
	if q.best == noRow {
		return -1
	}
	return int(q.best)
}

// A query is one look-up.
type query struct {
	t        *services
	src, dst around
	proto    uint8
	best     int32
}

// around is the networks around one end of a packet, the longest first: one at most of
// each length.
type around struct {
	nets [129]int32
	n    int
	port uint16
}

func (a *around) fill(t *services, net int32, port uint16) {
	a.port = port
	for ; net >= 0; net = t.parent[net] {
		a.nets[a.n] = net
		a.n++
	}
}

func (a *around) has(net int32) bool {
	for _, n := range a.nets[:a.n] {
		if n == net {
			return true
		}
	}
	return false
}

// ask looks for rows with x at end A and y at end B.
func (q *query) ask(x, y *around) {
	t := q.t
	big := false
	for _, a := range x.nets[:x.n] {
		n := &t.nets[a]
		big = big || n.bigA
		for _, l := range t.links[n.a.from:n.a.to] {
			if y.has(l.other) {
				q.cell(l.cell, x.port, y.port)
			}
		}
	}
	if !big {
		return
	}
	for _, b := range y.nets[:y.n] {
		n := &t.nets[b]
		for _, l := range t.links[n.b.from:n.b.to] {
			if x.has(l.other) {
				q.cell(l.cell, x.port, y.port)
			}
		}
		if !n.bigB {
			continue
		}
		for _, a := range x.nets[:x.n] {
			if t.nets[a].bigA {
				if c, ok := t.cells.get(uint64(a)<<32 | uint64(b)); ok {
					q.cell(c, x.port, y.port)
				}
			}
		}
	}
}

// cell takes the cells of one pair into account.
func (q *query) cell(i int32, pa, pb uint16) {
	for ; ; i++ {
		c := &q.t.list[i]
		if c.proto == 0 || c.proto == q.proto {
			q.best = min(q.best, c.first(q.t.rows, pa, pb))
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
