package intercept

import (
	"math/bits"
	"slices"
)

// A cell is the rows of one pair of networks and one protocol. Rows are numbers in the
// order of the table; those behind one without ports are left out, as they never decide.
type cell struct {
	proto uint8 // 0 for both
	last  bool  // the pair has no further cell
	a, b  Ports // of the row one
	row   int32 // the first
	all   int32 // the one without ports, noRow if there is none
	one   int32 // the only one with ports, noRow if there is none or several
	more  *ports
}

// ports finds the first of several rows with ports.
type ports struct {
	a, b steps     // rows with ports at one end only
	ab   []int32   // ranges of ports at both ends, while these are few
	grid *grid     // the same when they are many
	abAt hashTable // single ports at both ends → row
	abOK bool
}

const noRow = int32(1<<31 - 1)

func newCell(rows []Row, places []place) cell {
	c := cell{proto: places[0].proto, last: true, row: places[0].row, all: noRow, one: noRow}
	var a, b []portRow
	var ab []int32
	for _, p := range places {
		pa, pb := rows[p.row].A.Ports, rows[p.row].B.Ports
		if pa.any() && pb.any() {
			c.all = p.row
			break
		}
		switch {
		case pb.any():
			a = append(a, portRow{pa, p.row})
		case pa.any():
			b = append(b, portRow{pb, p.row})
		default:
			ab = append(ab, p.row)
		}
	}
	switch len(a) + len(b) + len(ab) {
	case 0:
	case 1:
		c.one, c.a, c.b = c.row, rows[c.row].A.Ports, rows[c.row].B.Ports
	default:
		c.more = &ports{a: newSteps(a), b: newSteps(b)}
		c.more.pairs(rows, ab)
	}
	return c
}

// plain says whether the first row of c matches all ports.
func (c *cell) plain() bool { return c.row == c.all }

// first returns the first row of c for ports at the ends A and B.
func (c *cell) first(rows []Row, pa, pb uint16) int32 {
	switch {
	case c.more != nil:
		return min(c.all, c.more.first(rows, pa, pb))
	case c.one < c.all && c.a.Contains(pa) && c.b.Contains(pb):
		return c.one
	}
	return c.all
}

// pairs indexes rows with ports at both ends: single ports by hash, a few ranges in order,
// many in a grid.
func (c *ports) pairs(rows []Row, ab []int32) {
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

func (c *ports) first(rows []Row, pa, pb uint16) int32 {
	best := min(c.a.first(pa), c.b.first(pb))
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

// A hashTable is an immutable map from pairs of small numbers to int32 with open
// addressing, at most half full.
type hashTable struct {
	slots []tableSlot
	shift uint8
}

type tableSlot struct {
	key uint64
	v   int32 // 0 is an empty slot, else the value + 1
}

func newHashTable(n int) hashTable {
	b := max(bits.Len(uint(2*n)), 1)
	return hashTable{make([]tableSlot, 1<<b), uint8(64 - b)}
}

func (t *hashTable) put(k uint64, v int32) {
	mask := uint64(len(t.slots) - 1)
	for s := k * 0x9E3779B97F4A7C15 >> t.shift; ; s = (s + 1) & mask {
		if t.slots[s].v == 0 {
			t.slots[s] = tableSlot{k, v + 1}
			return
		}
	}
}

func (t *hashTable) get(k uint64) (int32, bool) {
	mask := uint64(len(t.slots) - 1)
	for s := k * 0x9E3779B97F4A7C15 >> t.shift; ; s = (s + 1) & mask {
		if slot := &t.slots[s]; slot.v == 0 {
			return 0, false
		} else if slot.key == k {
			return slot.v - 1, true
		}
	}
}
