package policy

import (
	"cmp"
	"slices"
)

const (
	// chainMax is how many tables of sources a packet may have to pass at most before
	// the rows of a VIP are arranged as a tree, which bounds them by the logarithm.
	chainMax = 6
	// mergeMax is up to how many rules all rows of a chain are flattened into one table, so
	// that backtracking costs nothing. Larger chains are merged only where that does
	// not much enlarge the first row's table, and for each first row only as often as
	// mergeTimes its size allows: a row of many clients may begin many chains, and the
	// program must stay linear in the rules.
	mergeMax   = 8
	mergeTimes = 4
)

// row is the rules of a VIP that name the same protocol and ports: ranks from start to
// end.
type row struct {
	start, end uint32
	tier       Tier
	total      bool // one of them takes any client
	table      uint32
	merged     uint32 // rules in tables that begin with this row and have others too
}

// keyRange is the keys, see portKey, of a row; a row may have several.
type keyRange struct {
	first, last uint32
	row         int32
}

type chain [chainMax]int32 // rows in order, then -1

// builder compiles VIPs. It keeps its buffers from one VIP to the next.
type builder struct {
	strict bool

	fam    family
	norms  []norm // of the VIP, by precedence
	rows   []row
	keys   []keyRange
	edges  []uint32
	active []int32 // rows, ascending

	prog           prog
	members        []uint32 // see service.members
	starts, values []uint32 // of the table at 0
	chains         []chain
	chainValues    []uint32
	chainIndex     map[chain]uint32
	paints         []paint
	flattener      flattener
}

// build compiles the rules of one VIP, which must be in order of precedence and free of
// conflicts. The result is good until the next call.
func (b *builder) build(fam family, norms []norm) (p prog, members []uint32) {
	b.fam, b.norms = fam, norms
	b.rows, b.keys = b.rows[:0], b.keys[:0]
	for i := range norms {
		n := &norms[i]
		if i == 0 || n.compareRow(&norms[i-1]) != 0 {
			b.keys = n.appendKeys(b.keys, int32(len(b.rows)))
			b.rows = append(b.rows, row{start: uint32(i), tier: n.tier})
		}
		r := &b.rows[len(b.rows)-1]
		r.end = uint32(i) + 1
		r.total = r.total || n.anySrc
	}
	b.edges = b.edges[:0]
	for _, k := range b.keys {
		b.edges = append(b.edges, k.first, k.last+1)
	}
	slices.Sort(b.edges)
	b.edges = slices.Compact(b.edges)
	slices.SortFunc(b.keys, func(x, y keyRange) int { return cmp.Compare(x.first, y.first) })

	b.reset()
	b.chains, b.chainValues = b.chains[:0], b.chainValues[:0]
	clear(b.chainIndex)
	if !b.sweep() {
		b.reset()
		b.tree()
	}
	return b.finish(), b.members
}

// reset makes room for the table at 0, whose size is known at the end: sources are put
// down first and moved behind it.
func (b *builder) reset() {
	b.prog, b.members, b.starts, b.values = b.prog[:0], b.members[:0], b.starts[:0], b.values[:0]
	for i := range b.rows {
		b.rows[i].table, b.rows[i].merged = 0, 0
	}
}

// finish puts the table of ports before the tables of sources.
func (b *builder) finish() prog {
	values := b.values
	if len(values) == 0 {
		values = append(values, 0)
	}
	head := prog(nil).appendTable32(b.starts, values)
	shift := uint32(len(head)) - 1 // offsets were counted from one
	move := func(v uint32) uint32 {
		if v == 0 || v&direct != 0 {
			return v
		}
		return v + shift
	}
	tail := head[len(head)-len(values):]
	for i, v := range tail {
		tail[i] = move(v)
		if v&chained != 0 && v&direct == 0 {
			at := v&operand - 1
			if b.prog[at]&chained == 0 { // chains are shared: move each once
				for j := range b.prog[at] {
					b.prog[at+2+2*j] += shift
				}
				b.prog[at] |= chained
			}
		}
	}
	for _, v := range values {
		if v&chained != 0 && v&direct == 0 {
			b.prog[v&operand-1] &^= chained
		}
	}
	for m := b.members; len(m) > 0; m = m[2+2*m[1]:] {
		m[0] += shift
	}
	b.prog = append(b.prog, head...)
	copy(b.prog[len(head):], b.prog[:len(b.prog)-len(head)])
	copy(b.prog, head)
	return b.prog
}

// put adds a stretch of keys to the table at 0.
func (b *builder) put(key, value uint32) {
	switch {
	case len(b.values) == 0 && key == 0:
		b.values = append(b.values, value)
	case len(b.values) == 0:
		b.values = append(b.values, 0)
		b.put(key, value)
	case b.values[len(b.values)-1] != value:
		b.starts = append(b.starts, key)
		b.values = append(b.values, value)
	}
}

// sweep goes through the keys and puts down what holds between each two edges. It
// reports false if too many rows overlap somewhere.
func (b *builder) sweep() bool {
	b.active = b.active[:0]
	keys := b.keys
	for _, e := range b.edges {
		b.active = slices.DeleteFunc(b.active, func(r int32) bool { return !b.holds(r, e) })
		for len(keys) > 0 && keys[0].first == e {
			at, found := slices.BinarySearch(b.active, keys[0].row)
			if !found {
				b.active = slices.Insert(b.active, at, keys[0].row)
			}
			keys = keys[1:]
		}
		c, ok := b.chain()
		if !ok {
			return false
		}
		b.put(e, b.chainValue(c))
	}
	return true
}

// holds reports whether a row has the key.
func (b *builder) holds(r int32, key uint32) bool {
	n := &b.norms[b.rows[r].start]
	if key>>16 < portless {
		return n.hasRow(portful[key>>16], uint16(key))
	}
	return key&0xffff < 256 && n.hasRow(uint8(key), 0)
}

// chain returns the rows a packet may have to be held against: up to the first that
// takes any client and, with StrictTier, of the first tier only.
func (b *builder) chain() (c chain, ok bool) {
	for i := range c {
		c[i] = -1
	}
	for i, r := range b.active {
		row := &b.rows[r]
		if b.strict && row.tier != b.rows[b.active[0]].tier {
			break
		}
		if i == chainMax {
			return c, false
		}
		c[i] = r
		if row.total {
			break
		}
	}
	return c, true
}

// chainValue puts down the tables of a chain, once, and returns its value.
func (b *builder) chainValue(c chain) uint32 {
	if c[0] < 0 {
		return 0
	}
	if r := b.rows[c[0]]; r.total && r.end-r.start == 1 {
		return direct | r.start
	}
	const few = 16
	if len(b.chains) <= few {
		if i := slices.Index(b.chains, c); i >= 0 {
			return b.chainValues[i]
		}
	} else if v, ok := b.chainIndex[c]; ok {
		return v
	}
	v := b.addChain(c)
	b.chains = append(b.chains, c)
	b.chainValues = append(b.chainValues, v)
	switch {
	case len(b.chains) == few+1:
		if b.chainIndex == nil {
			b.chainIndex = make(map[chain]uint32)
		}
		for i, c := range b.chains {
			b.chainIndex[c] = b.chainValues[i]
		}
	case len(b.chains) > few:
		b.chainIndex[c] = v
	}
	return v
}

func (b *builder) addChain(c chain) uint32 {
	rows := c[:]
	if i := slices.Index(rows, -1); i >= 0 {
		rows = rows[:i]
	}
	size := func(r int32) uint32 { return b.rows[r].end - b.rows[r].start }
	var total uint32
	for _, r := range rows {
		total += size(r)
	}
	first := &b.rows[rows[0]]
	switch own := size(rows[0]); {
	case len(rows) == 1:
		return b.rowTable(rows[0])
	case total <= mergeMax:
		return b.addTable(rows)
	case total <= 2*own && first.merged+total <= mergeTimes*own:
		first.merged += total
		return b.addTable(rows)
	}
	for _, r := range rows {
		b.rowTable(r)
	}
	at := uint32(len(b.prog)) + 1
	b.prog = append(b.prog, uint32(len(rows)))
	for _, r := range rows {
		b.prog = append(b.prog, b.rows[r].start, b.rows[r].table)
	}
	return chained | at
}

// rowTable returns the table of one row, which is put down once.
func (b *builder) rowTable(r int32) uint32 {
	if b.rows[r].table == 0 {
		b.rows[r].table = b.addTable([]int32{r})
	}
	return b.rows[r].table
}

// addTable flattens rows into one table of sources. Offsets are counted from one until
// finish.
func (b *builder) addTable(rows []int32) uint32 {
	b.paints = b.paints[:0]
	for _, r := range rows {
		for i := b.rows[r].start; i < b.rows[r].end; i++ {
			b.paints = append(b.paints, paint{b.norms[i].src, i})
		}
	}
	at := uint32(len(b.prog)) + 1
	b.prog = b.prog.appendSources(b.fam, b.flattener.paint(b.fam, b.paints))
	b.members = append(b.members, at, uint32(len(rows)))
	for _, r := range rows {
		b.members = append(b.members, b.rows[r].start, b.rows[r].end)
	}
	return at
}

// appendKeys appends the ranges of keys of the packets that n's row holds.
func (n *norm) appendKeys(keys []keyRange, row int32) []keyRange {
	add := func(first, last uint32) {
		keys = append(keys, keyRange{first, last, row})
	}
	switch num, isNum := n.proto.Number(); {
	case isNum && !packetHasPorts(num):
		k := portKey(num, 0)
		add(k, k)
	case isNum && n.ports.IsAny():
		add(portKey(num, 0), portKey(num, 65535))
	case isNum:
		add(portKey(num, n.ports.First), portKey(num, n.ports.Last))
	case n.proto == Any && n.ports.IsAny():
		add(0, portKey(255, 0))
	case n.proto == Any:
		for _, p := range portful {
			add(portKey(p, n.ports.First), portKey(p, n.ports.Last))
		}
	default: // Other
		for class, p := range portful {
			if n.proto.Contains(p) {
				add(uint32(class)<<16, uint32(class)<<16|0xffff)
			}
		}
		for first, p := 0, 0; p <= 256; p++ {
			if p == 256 || !n.proto.Contains(uint8(p)) {
				if p > first {
					add(portKeyless(first), portKeyless(p-1))
				}
				first = p + 1
			}
		}
	}
	return keys
}

// portKeyless is the key of protocol p among those without ports; for one that has
// ports it is a key no packet has.
func portKeyless(p int) uint32 { return portless<<16 | uint32(p) }
