package simnet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// A Model is what Layers do, by numbers alone, for clusters that are too large for a World: flows are an origin and a slot each, and nothing
// is kept of what members have but what the rules of flowshare say that they have. Exact are placements, which flows are affected by a change of
// members, who tells whom of them, and in how many frames. Modelled, from the seed, are the times at which members notice something. Left out are retransmissions
// after broken streams, comparisons that begin while what they would find is under way, and the questions of look-ups. It is for one goroutine, and for more members than
// everybody holds everything with.
type Model struct {
	Rand    *rand.Rand
	n, k    int
	cfg     Config
	names   []string
	home    *flowshare.Placement // while all are there
	origin  []uint16             // of each flow
	slot    []uint16
	ended   []bool
	open    [][]uint32 // flows, by balancer
	flow    func(i int) flowshare.Flow
	away    int // how many are cut off
	views   []modelView
	changed []uint32 // flows that began or ended since the partition began
	pairs   map[uint32]int

	// Sent by each balancer.
	Frames, Bytes []float64
}

// Sizes on the wire, as flowshare writes them, with logical clocks of three bytes: of a frame of items without them, of an item, of the value that
// some of a frame's items share, and of what a comparison takes to ask and to answer.
const (
	modelFrame   = 1 + 3 + 1 + (1 + 5 + 8) + 1 + 1
	modelItem    = 1 + (2 + 4 + 2 + 4 + 2) + 3 + 1 + 1
	modelTomb    = modelItem - 1
	modelValue   = 1 + 3 + 1
	modelDigest  = 1 + 3 + 8 + 1 + 1 + 8
	modelDiff    = 1 + 3 + 8 + 1 + 1 + 1
	modelValues  = 16 // that flows have
	modelRegular = 10 * time.Second
)

// NewModel makes n balancers with some flows each, which have begun and are known. flow names a flow by its number; k is how many holders
// a flow has.
func NewModel(cfg Config, n, each, k int, flow func(i int) flowshare.Flow) *Model {
	cfg.defaults()
	m := &Model{
		Rand: rand.New(rand.NewPCG(cfg.Seed, 3)), n: n, k: k, cfg: cfg, flow: flow, open: make([][]uint32, n), pairs: map[uint32]int{},
		Frames: make([]float64, n), Bytes: make([]float64, n),
	}
	for i := range n {
		m.names = append(m.names, fmt.Sprintf("b%04d", i))
	}
	m.home = flowshare.NewPlacement(nil, m.names, k)
	for range each {
		for b := range n {
			m.begin(b)
		}
	}
	return m
}

// begin begins a flow at a balancer.
func (m *Model) begin(b int) (f uint32) {
	f = uint32(len(m.origin))
	m.origin = append(m.origin, uint16(b))
	m.slot = append(m.slot, uint16(flowshare.SlotOf(m.flow(int(f)))))
	m.ended = append(m.ended, false)
	m.open[b] = append(m.open[b], f)
	return f
}

// end ends one of a balancer's flows.
func (m *Model) end(b int) (f uint32, ok bool) {
	open := m.open[b]
	if len(open) == 0 {
		return 0, false
	}
	i := m.Rand.IntN(len(open))
	f = open[i]
	open[i] = open[len(open)-1]
	m.open[b] = open[:len(open)-1]
	m.ended[f] = true
	return f, true
}

// A modelView is the members that some see, and where flows live by it.
type modelView struct {
	*flowshare.Placement
	number []int // of the members, among all
}

func (m *Model) view(has func(i int) bool) modelView {
	var v modelView
	var names []string
	for i := range m.n {
		if has(i) {
			names, v.number = append(names, m.names[i]), append(v.number, i)
		}
	}
	v.Placement = flowshare.NewPlacement(nil, names, m.k)
	return v
}

// holders appends the numbers of the members that hold a slot.
func (v *modelView) holders(b []int, slot uint16) []int {
	for _, h := range v.Holders(int(slot)) {
		b = append(b, v.number[h])
	}
	return b
}

// Churn ends and begins some flows of each balancer, at once.
func (m *Model) Churn(k int) { m.churn(k, m.allView()) }

func (m *Model) allView() modelView {
	v := modelView{Placement: m.home}
	for i := range m.n {
		v.number = append(v.number, i)
	}
	return v
}

func (m *Model) churn(k int, views ...modelView) {
	var buf [flowshare.MaxHolders]int
	for b := range m.n {
		v := views[0]
		for _, x := range views {
			if x.has(b) {
				v = x
			}
		}
		to := map[int][2]int{} // entries and tombstones for each
		tell := func(f uint32, what int) {
			for _, h := range v.holders(buf[:0], m.slot[f]) {
				if h != b {
					c := to[h]
					c[what]++
					to[h] = c
				}
			}
		}
		for range k {
			if f, ok := m.end(b); ok {
				tell(f, 1)
				m.changed = append(m.changed, f)
			}
		}
		for range k {
			f := m.begin(b)
			tell(f, 0)
			m.changed = append(m.changed, f)
		}
		for _, c := range to {
			m.send(b, c[0], c[1])
		}
	}
}

func (v *modelView) has(b int) bool { return slices.Contains(v.number, b) }

// send counts a frame of items, or several if they are many.
func (m *Model) send(b, items, tombs int) {
	if items+tombs == 0 {
		return
	}
	bytes := float64(items*modelItem + tombs*modelTomb + modelFrame + modelValue*min(items, modelValues))
	frames := 1 + int(bytes)/flowshare.DefaultMaxFrame
	m.Frames[b] += float64(frames)
	m.Bytes[b] += bytes + float64((frames-1)*(modelFrame+modelValue*modelValues))
}

// Let lets time pass, in which members compare now and then, as at all times.
func (m *Model) Let(d time.Duration) {
	each := float64(d) / float64(modelRegular)
	for b := range m.n {
		m.Frames[b] += 2 * each
		m.Bytes[b] += each * (modelDigest + modelDiff)
	}
}

func (m *Model) tell(from, to int) uint64 {
	m.pairs[uint32(from)<<16|uint32(to)]++
	return 1
}

// flush sends what tell has collected.
func (m *Model) flush() {
	for p, items := range m.pairs {
		m.send(int(p>>16), items, 0)
	}
	clear(m.pairs)
}

// A Change is what a change of members costs: entries told to another holder, or because of a comparison, and how long it takes
// until every look-up is right.
type Change struct {
	Entries uint64
	Took    time.Duration
}

func (m *Model) between(r [2]time.Duration) time.Duration {
	return r[0] + time.Duration(m.Rand.Int64N(int64(r[1]-r[0])+1))
}

// Kill ends a balancer. A flow that it held has another holder, which answers all the time; one that it had begun has two.
func (m *Model) Kill(victim int) (c Change) {
	v := m.view(func(i int) bool { return i != victim })
	var before, after [flowshare.MaxHolders]int
	for f, o := range m.origin {
		if m.ended[f] {
			continue
		}
		was, is := m.homes(before[:0], m.slot[f]), v.holders(after[:0], m.slot[f])
		if int(o) != victim {
			if !slices.Contains(was, victim) {
				continue
			}
			for _, h := range is {
				if !slices.Contains(was, h) && h != int(o) {
					c.Entries += m.tell(int(o), h)
				}
			}
			continue
		}
		// Its holders tell each other, and the first one who has it the new ones.
		for _, from := range is {
			for _, to := range is {
				if from != to && slices.Contains(was, from) {
					c.Entries += m.tell(from, to)
				}
			}
		}
	}
	m.flush()
	return c
}

// Adopt has the flows of a balancer that is gone go on by way of the others.
func (m *Model) Adopt(victim int) {
	flows := m.open[victim]
	m.open[victim] = nil
	v := m.view(func(i int) bool { return i != victim })
	var buf [flowshare.MaxHolders]int
	for i, f := range flows {
		b := v.number[i%len(v.number)]
		m.origin[f] = uint16(b)
		m.open[b] = append(m.open[b], f)
		for _, h := range v.holders(buf[:0], m.slot[f]) {
			if h != b {
				m.tell(b, h)
			}
		}
	}
	m.flush()
}

// Back has a balancer take part again that knows nothing. Until it sees the others, its look-ups fail.
func (m *Model) Back(victim int) (c Change) {
	var buf [flowshare.MaxHolders]int
	for f, o := range m.origin {
		if !m.ended[f] && int(o) != victim && slices.Contains(m.homes(buf[:0], m.slot[f]), victim) {
			c.Entries += m.tell(int(o), victim)
		}
	}
	m.flush()
	c.Took = m.between(m.cfg.Gossip)
	return c
}

func (m *Model) homes(b []int, slot uint16) []int {
	for _, h := range m.home.Holders(int(slot)) {
		b = append(b, int(h))
	}
	return b
}

// Partition cuts the first balancers off for some seconds, in each of which some flows of each balancer end and as many begin.
func (m *Model) Partition(away, seconds, churn int) {
	m.away, m.changed = away, m.changed[:0]
	m.views = []modelView{m.view(m.cut), m.view(func(i int) bool { return !m.cut(i) })}
	for range seconds {
		m.churn(churn, m.views...)
	}
	m.Let(time.Duration(seconds) * time.Second)
}

// cut says whether a balancer is among those that were cut off.
func (m *Model) cut(b int) bool { return b < m.away }

// Heal ends a partition.
func (m *Model) Heal() (healed Change) {
	of := func(b int) *modelView {
		if m.cut(b) {
			return &m.views[0]
		}
		return &m.views[1]
	}
	// Whoever sees all again tells the holders of its flows that have none of its side's.
	sees := make([]time.Duration, m.n)
	for b := range sees {
		sees[b] = m.between(m.cfg.Detect)
		healed.Took = max(healed.Took, sees[b])
	}
	var before, after [flowshare.MaxHolders]int
	for f, o := range m.origin {
		if m.ended[f] {
			continue
		}
		was, is := of(int(o)).holders(before[:0], m.slot[f]), m.homes(after[:0], m.slot[f])
		for _, h := range is {
			if !slices.Contains(was, h) && h != int(o) {
				healed.Entries += m.tell(int(o), h)
			}
		}
	}
	// Everybody compares with everybody of the other side; what two share is sent both ways if any of it differs.
	differ := make([]uint64, (m.n*m.n+63)/64)
	cross := func(f uint32, do func(x, y int)) {
		set := m.homes(after[:0], m.slot[f])
		if o := int(m.origin[f]); !slices.Contains(set, o) {
			set = append(set, o)
		}
		for i, x := range set {
			for _, y := range set[:i] {
				if m.cut(x) != m.cut(y) {
					do(x, y)
				}
			}
		}
	}
	mark := func(x, y int) int { return min(x, y)*m.n + max(x, y) }
	for _, f := range m.changed {
		cross(f, func(x, y int) { differ[mark(x, y)/64] |= 1 << (mark(x, y) % 64) })
	}
	for f := range m.origin {
		if m.ended[f] {
			continue
		}
		cross(uint32(f), func(x, y int) {
			if differ[mark(x, y)/64]>>(mark(x, y)%64)&1 != 0 {
				healed.Entries += m.tell(x, y) + m.tell(y, x)
			}
		})
	}
	m.flush()
	for x := range m.n {
		for y := range m.n {
			if m.cut(x) == m.cut(y) {
				continue
			}
			// Who does not see all members yet gives no answer, and is asked again.
			asks := 1.0
			for at := sees[x]; at < sees[y]; at += m.between([2]time.Duration{time.Second, 3 * time.Second}) {
				asks++
			}
			m.Frames[x] += asks
			m.Bytes[x] += asks * modelDigest
			m.Frames[y]++
			m.Bytes[y] += modelDiff
		}
	}
	return healed
}
