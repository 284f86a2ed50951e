package intercept

import (
	"net/netip"
	"slices"
)

// services is the network services table, compiled. A packet finds the networks of its
// two addresses, then looks up each pair of them, in both directions; only rows of that
// very pair of networks are left, indexed by port. So the cost depends on how deep the
// networks are nested, not on the number of rows.
type services struct {
	rows    []Row
	v4, v6  *prefixes
	asA     []bool // by network: some row has it as A
	asB     []bool
	cells   hashTable // (A, B, protocol) → index of cells
	list    []cell
	tcp     bool // some row asks for TCP or UDP alone
	both    bool // some row is for both
	compile int  // rows in force
}

// A cell is the rows of one pair of networks and one protocol. Rows are numbers in the
// order of the table.
type cell struct {
	all  int32 // first row without ports, noRow if none
	a, b steps // rows with ports at one end only
	ab   []int32
	abAt hashTable // single ports at both ends → row
	abOK bool
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
	type key struct {
		a, b  int32
		proto uint8
	}
	type build struct{ all, a, b, ab []portRow }
	cells := map[key]*build{}
	var order []key
	add := func(a, b netip.Prefix, r *Row, i int32) {
		k := key{number(a), number(b), r.Protocol}
		c := cells[k]
		if c == nil {
			c = new(build)
			cells[k] = c
			order = append(order, k)
		}
		pa, pb := r.A.Ports, r.B.Ports
		switch {
		case pa.any() && pb.any():
			c.all = append(c.all, portRow{row: i})
		case pb.any():
			c.a = append(c.a, portRow{pa, i})
		case pa.any():
			c.b = append(c.b, portRow{pb, i})
		default:
			c.ab = append(c.ab, portRow{row: i})
		}
	}
	for i := range rows {
		r := &rows[i]
		if r.Disabled {
			continue
		}
		t.compile++
		t.tcp = t.tcp || r.Protocol != 0
		t.both = t.both || r.Protocol == 0
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
	t.v4 = newPrefixes(nets4, ids4, len(ids))
	t.v6 = newPrefixes(nets6, ids6, len(ids))
	t.asA, t.asB = make([]bool, len(ids)), make([]bool, len(ids))
	t.cells = newHashTable(len(order))
	for n, k := range order {
		t.asA[k.a], t.asB[k.b] = true, true
		b := cells[k]
		c := cell{all: noRow, a: newSteps(b.a), b: newSteps(b.b)}
		if len(b.all) > 0 {
			c.all = b.all[0].row
		}
		c.pairs(rows, b.ab)
		t.list = append(t.list, c)
		t.cells.put(tableKey{uint64(k.a), uint64(k.b), uint64(k.proto)}, int32(n))
	}
	return t
}

func zeroOf(p, zero4, zero6 netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return zero4
	}
	return zero6
}

// pairs indexes rows with ports at both ends: single ports by hash, ranges in order.
func (c *cell) pairs(rows []Row, ab []portRow) {
	if len(ab) == 0 {
		return
	}
	single := map[tableKey]int32{}
	for _, p := range ab {
		a, b := rows[p.row].A.Ports, rows[p.row].B.Ports
		if a.First == a.Last && b.First == b.Last {
			k := tableKey{uint64(a.First), uint64(b.First)}
			if _, ok := single[k]; !ok {
				single[k] = p.row
			}
		} else {
			c.ab = append(c.ab, p.row)
		}
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
		if row, ok := c.abAt.get(tableKey{uint64(pa), uint64(pb)}); ok {
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
	if sa.Is4() != da.Is4() || !sa.IsValid() {
		return -1
	}
	best := noRow
	s0, d0 := p.lookup(wordOf(sa)), p.lookup(wordOf(da))
	for s := s0; s >= 0; s = p.parent[s] {
		for d := d0; d >= 0; d = p.parent[d] {
			if t.asA[s] && t.asB[d] {
				best = min(best, t.cell(s, d, proto, src.Port(), dst.Port()))
			}
			if t.asA[d] && t.asB[s] {
				best = min(best, t.cell(d, s, proto, dst.Port(), src.Port()))
			}
		}
	}
	if best == noRow {
		return -1
	}
	return int(best)
}

func (t *services) cell(a, b int32, proto uint8, pa, pb uint16) int32 {
	best := noRow
	if t.both && (proto == tcp || proto == udp) {
		if n, ok := t.cells.get(tableKey{uint64(a), uint64(b), 0}); ok {
			best = t.list[n].first(t.rows, pa, pb)
		}
	}
	if t.tcp {
		if n, ok := t.cells.get(tableKey{uint64(a), uint64(b), uint64(proto)}); ok {
			best = min(best, t.list[n].first(t.rows, pa, pb))
		}
	}
	return best
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
