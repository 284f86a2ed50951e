package main

import (
	"sync"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/intercept"
)

// ledger is what the hosts around the balancers have seen of each flow, by phase. Balancers write nothing into it.
type ledger struct {
	mu      sync.Mutex
	phase   int
	flows   map[flowshare.Flow]*[phases]entry
	waiting map[flowshare.Flow]chan answer
	// Sums of all flows.
	nodes, ways map[string]uint64
}

// entry is one flow in one phase.
type entry struct {
	nodes [2]map[string]int // that had packets of it, by the side these came from
	ways  map[string]int    // by which packets reached the server
}

type answer struct {
	seq     uint32
	refused bool
}

func newLedger() *ledger {
	return &ledger{flows: map[flowshare.Flow]*[phases]entry{}, waiting: map[flowshare.Flow]chan answer{}, nodes: map[string]uint64{}, ways: map[string]uint64{}}
}

// at is the entry of a flow in the phase that is on. l.mu is held.
func (l *ledger) at(f flowshare.Flow) *entry {
	e := l.flows[f]
	if e == nil {
		e = &[phases]entry{}
		for i := range e {
			e[i] = entry{nodes: [2]map[string]int{{}, {}}, ways: map[string]int{}}
		}
		l.flows[f] = e
	}
	return &e[l.phase]
}

// of is what was seen of a flow in every phase. l.mu is held.
func (l *ledger) of(f *flow) *[phases]entry {
	if e := l.flows[flowOf(f.packet())]; e != nil {
		return e
	}
	return &[phases]entry{}
}

func (l *ledger) seen(f flowshare.Flow, node string, from intercept.Side) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes[node]++
	if from == intercept.LAN || from == intercept.WAN {
		l.at(f).nodes[from][node]++
	}
}

func (l *ledger) arrived(f flowshare.Flow, way string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ways[way]++
	l.at(f).ways[way]++
}

func (l *ledger) answered(f flowshare.Flow, seq uint32, refused bool) {
	l.mu.Lock()
	c := l.waiting[f]
	l.mu.Unlock()
	select {
	case c <- answer{seq, refused}:
	default: // nobody waits any more
	}
}

// wait is where the answers to a flow's packets come.
func (l *ledger) wait(f flowshare.Flow) <-chan answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.waiting[f]
	if c == nil {
		c = make(chan answer, 8)
		l.waiting[f] = c
	}
	return c
}

// forget ends the waiting for a flow's answers. What was seen of it stays.
func (l *ledger) forget(f flowshare.Flow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, f)
}

// sums are the packets at each node and by each way.
func (l *ledger) sums(nodes, ways []counter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range nodes {
		nodes[i].Packets = l.nodes[nodes[i].Name]
	}
	for i := range ways {
		ways[i].Packets = l.ways[ways[i].Name]
	}
}

func (l *ledger) begin(phase int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = phase
}
