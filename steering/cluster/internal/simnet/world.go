// Package simnet runs Layers of steering/cluster/flowshare in a simulated network, by a
// simulated clock, from a seed: the same seed gives the same course of events.
//
// The layers are the real ones. Modelled are the network (latency, partitions, bytes that are
// lost with a stream) and what hashicorp/memberlist does: who is gone is noticed by each
// member for itself between [Config.Detect] seconds after the fact, who is there again
// within [Config.Gossip].
package simnet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// Config configures a [World]. Zero fields take the defaults.
type Config struct {
	Seed uint64
	// Latency of a frame, from and to. Default 100 µs to 500 µs.
	Latency [2]time.Duration
	// Detect is how long it takes a member to notice that another one is gone, from and to. Default
	// 1.5 s to 3.5 s, which is what memberlist needs as steering/cluster sets it.
	Detect [2]time.Duration
	// Gossip is how long it takes a member to notice that another one is there. Default 50 ms to 1 s.
	Gossip [2]time.Duration
	// Layer is the template of the layers' configurations.
	Layer flowshare.Config
	// Store makes the stores of the layers. Default: the layers' own.
	Store func() flowshare.Store
}

// A World is a number of balancers. It is for one goroutine.
type World struct {
	cfg    Config
	Rand   *rand.Rand
	Now    time.Time
	Nodes  []*Node
	byName map[string]*Node
	events events
	seq    uint64
	places map[uint64]*flowshare.Placement
	placed []uint64 // keys of places, oldest first
}

// A Node is a balancer.
type Node struct {
	w     *World
	Name  string
	Layer *flowshare.Layer
	Alive bool
	epoch uint64
	side  int // of a partition
	sees  map[string]flowshare.Member
	step  time.Time
	links map[string]*link
	// Frames and Bytes it has sent in all its lives.
	Frames, Bytes uint64
}

type link struct {
	free   time.Time // the last frame arrives then
	broken bool      // frames were lost
}

type event struct {
	at  time.Time
	seq uint64
	run func()
}

func (e *event) before(o *event) bool {
	if c := e.at.Compare(o.at); c != 0 {
		return c < 0
	}
	return e.seq < o.seq
}

// events is a heap.
type events []event

func (e *events) push(x event) {
	*e = append(*e, x)
	h := *e
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 4
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (e *events) pop() event {
	h := *e
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	*e = h
	for i := 0; ; {
		best := i
		for d := 4*i + 1; d <= 4*i+4 && d < last; d++ {
			if h[d].before(&h[best]) {
				best = d
			}
		}
		if best == i {
			return first
		}
		h[i], h[best] = h[best], h[i]
		i = best
	}
}

func (cfg *Config) defaults() {
	def := func(v *[2]time.Duration, from, to time.Duration) {
		if *v == [2]time.Duration{} {
			*v = [2]time.Duration{from, to}
		}
	}
	def(&cfg.Latency, 100*time.Microsecond, 500*time.Microsecond)
	def(&cfg.Detect, 1500*time.Millisecond, 3500*time.Millisecond)
	def(&cfg.Gossip, 50*time.Millisecond, time.Second)
}

// New makes a world with n balancers that know each other.
func New(cfg Config, n int) *World {
	cfg.defaults()
	w := &World{
		cfg: cfg, Rand: rand.New(rand.NewPCG(cfg.Seed, 1)), Now: time.Unix(1_000_000_000, 0),
		byName: map[string]*Node{}, places: map[uint64]*flowshare.Placement{},
	}
	for i := range n {
		node := &Node{w: w, Name: fmt.Sprintf("b%04d", i)}
		w.Nodes = append(w.Nodes, node)
		w.byName[node.Name] = node
		w.start(node)
	}
	for _, a := range w.Nodes {
		for _, b := range w.Nodes {
			if a != b {
				a.sees[b.Name] = b.member()
			}
		}
		a.tellMembers()
	}
	return w
}

func (w *World) start(n *Node) {
	n.epoch++
	n.Alive, n.side, n.step = true, 0, time.Time{}
	n.sees, n.links = map[string]flowshare.Member{}, map[string]*link{}
	c := w.cfg.Layer
	c.Self, c.Transport, c.Place = n.member(), transport{n, n.epoch}, w.place
	c.Rand = rand.New(rand.NewPCG(w.Rand.Uint64(), 2))
	if w.cfg.Store != nil {
		c.Store = w.cfg.Store()
	}
	l, err := flowshare.New(&c)
	if err != nil {
		panic(err)
	}
	n.Layer = l
	n.tellMembers()
}

func (n *Node) member() flowshare.Member { return flowshare.Member{Name: n.Name, Epoch: n.epoch} }

// mostPlaced is how many placements are kept, of some 600 KB each.
const mostPlaced = 128

// place shares placements: they are the same for all who see the same members.
func (w *World) place(prev *flowshare.Placement, names []string, k int) *flowshare.Placement {
	key := uint64(k)
	for _, n := range names {
		for i := range len(n) {
			key = (key ^ uint64(n[i])) * 0x100000001b3
		}
		key *= 0x9e3779b97f4a7c15
	}
	if p := w.places[key]; p != nil {
		return p
	}
	if len(w.placed) > mostPlaced {
		delete(w.places, w.placed[0])
		w.placed = w.placed[1:]
	}
	w.places[key] = flowshare.NewPlacement(prev, names, k)
	w.placed = append(w.placed, key)
	return w.places[key]
}

// After runs f after d.
func (w *World) After(d time.Duration, f func()) {
	w.seq++
	w.events.push(event{w.Now.Add(d), w.seq, f})
}

// Run lets d pass.
func (w *World) Run(d time.Duration) {
	end := w.Now.Add(d)
	for len(w.events) > 0 && !w.events[0].at.After(end) {
		e := w.events.pop()
		w.Now = e.at
		e.run()
	}
	w.Now = end
}

// Until lets time pass until ok, which is asked every so often, or for most at most.
func (w *World) Until(every, most time.Duration, ok func() bool) (took time.Duration, met bool) {
	for took = 0; took <= most; took += every {
		if ok() {
			return took, true
		}
		w.Run(every)
	}
	return took, ok()
}

func (w *World) between(r [2]time.Duration) time.Duration {
	return r[0] + time.Duration(w.Rand.Int64N(int64(r[1]-r[0])+1))
}

// Touch has a balancer's layer look at what it was given; call it after Announce and Withdraw.
func (n *Node) Touch() { n.plan(n.w.Now.Add(flowshare.DefaultBatch)) }

func (n *Node) plan(at time.Time) {
	if !n.step.IsZero() && !at.Before(n.step) {
		return
	}
	n.step = at
	epoch := n.epoch
	n.w.After(at.Sub(n.w.Now), func() {
		if !n.Alive || n.epoch != epoch || n.step.After(n.w.Now) || n.step.IsZero() {
			return
		}
		n.step = time.Time{}
		n.plan(n.Layer.Step(n.w.Now))
	})
}

func (n *Node) tellMembers() {
	var ms []flowshare.Member
	for _, m := range n.sees {
		ms = append(ms, m)
	}
	slices.SortFunc(ms, func(a, b flowshare.Member) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	n.Layer.SetMembers(n.w.Now, ms)
	n.Touch()
}

// Find asks a balancer for a flow.
func (n *Node) Find(f flowshare.Flow, done func(flowshare.Value, bool)) {
	n.Layer.Find(n.w.Now, f, done)
	n.plan(n.w.Now.Add(flowshare.DefaultAskTimeout))
}

func (w *World) reach(a, b *Node) bool { return a.Alive && b.Alive && a.side == b.side }

type transport struct {
	n     *Node
	epoch uint64
}

// Send implements flowshare.Transport.
func (t transport) Send(to flowshare.Member, frame []byte, _ bool) bool {
	n, w := t.n, t.n.w
	n.Frames++
	n.Bytes += uint64(len(frame))
	dst := w.byName[to.Name]
	k := n.links[to.Name]
	if k == nil {
		k = &link{}
		n.links[to.Name] = k
	}
	if !w.reach(n, dst) {
		k.broken = true
		return true // into a stream nobody reads
	}
	at := w.Now.Add(w.between(w.cfg.Latency))
	if at.Before(k.free) {
		at = k.free
	}
	k.free = at
	from := n.member()
	w.After(at.Sub(w.Now), func() {
		if !w.reach(n, dst) || dst.epoch != to.Epoch || n.epoch != from.Epoch {
			k.broken = true
			return
		}
		if err := dst.Layer.Receive(w.Now, from, frame); err != nil {
			panic(err)
		}
		dst.Touch()
	})
	return true
}

// notice has a see, after a while, whether b can be reached.
func (w *World) notice(a, b *Node) {
	if a == b || !a.Alive {
		return
	}
	epoch := a.epoch
	up := w.reach(a, b)
	delay := w.between(w.cfg.Gossip)
	if !up {
		delay = w.between(w.cfg.Detect)
	}
	w.After(delay, func() {
		if !a.Alive || a.epoch != epoch || w.reach(a, b) != up {
			return
		}
		before, knew := a.sees[b.Name]
		if up && before == b.member() {
			w.mend(a, b)
			return
		}
		if !up && !knew {
			return
		}
		if up {
			a.sees[b.Name] = b.member()
		} else {
			delete(a.sees, b.Name)
		}
		a.tellMembers()
		if up {
			w.mend(a, b)
		}
	})
}

// manyNodes is how many balancers notice a partition one by one. Where there are more, each notices all of it at
// once, at a time of its own: otherwise each would see other members than all others hundreds of times.
const manyNodes = 32

// noticeAll has a see, after a while, whom it can reach.
func (w *World) noticeAll(a *Node, after [2]time.Duration) {
	if !a.Alive {
		return
	}
	epoch := a.epoch
	w.After(w.between(after), func() {
		if !a.Alive || a.epoch != epoch {
			return
		}
		changed := false
		var back []*Node
		for _, b := range w.Nodes {
			if a == b {
				continue
			}
			m, knew := a.sees[b.Name]
			switch up := w.reach(a, b); {
			case up && (!knew || m != b.member()):
				a.sees[b.Name], changed = b.member(), true
				back = append(back, b)
			case !up && knew:
				delete(a.sees, b.Name)
				changed = true
			}
		}
		if changed {
			a.tellMembers()
		}
		for _, b := range back {
			w.mend(a, b)
		}
	})
}

// mend tells a that the stream to b had a gap.
func (w *World) mend(a, b *Node) {
	if k := a.links[b.Name]; k != nil && k.broken {
		k.broken = false
		a.Layer.Lost(w.Now, b.member())
		a.Touch()
	}
}

// Kill ends a balancer at once.
func (w *World) Kill(n *Node) {
	n.Alive = false
	for _, o := range w.Nodes {
		w.notice(o, n)
	}
}

// Restart brings a balancer that is gone back, knowing nothing.
func (w *World) Restart(n *Node) {
	w.start(n)
	many := len(w.Nodes) > manyNodes
	if many {
		w.noticeAll(n, w.cfg.Gossip) // whom it joins tells it all members
	}
	for _, o := range w.Nodes {
		w.notice(o, n)
		if !many {
			w.notice(n, o)
		}
	}
}

// Partition puts balancers on another side, from where only each other can be reached; side 0 is where all
// are at first.
func (w *World) Partition(side int, nodes ...*Node) {
	for _, n := range nodes {
		n.side = side
	}
	if len(w.Nodes) > manyNodes {
		for _, a := range w.Nodes {
			w.noticeAll(a, w.cfg.Detect)
		}
		return
	}
	for _, a := range w.Nodes {
		for _, b := range nodes {
			w.notice(a, b)
			w.notice(b, a)
		}
	}
}

// AliveNodes returns those who run.
func (w *World) AliveNodes() (ns []*Node) {
	for _, n := range w.Nodes {
		if n.Alive {
			ns = append(ns, n)
		}
	}
	return ns
}
