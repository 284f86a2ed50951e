package dataplane

import "sync"

// gate lets those pass who look at records outside of a batch, and has others wait until whoever looked has done so. The zero gate is ready for use.
//
// Nobody waits to get in: not for others, nor for those who wait for the end. So it may be entered by who holds any lock, and by who
// is in already, as a removed session may lead to an answer of the peers. It is what a sync.RWMutex is not: that one keeps
// readers out once somebody waits for the end of others.
type gate struct {
	mu    sync.Mutex
	empty sync.Cond
	in    [2]int // who is in, by the turn in which they came
	turn  uint8

	waits sync.Mutex // one at a time
}

// enter returns what leave wants.
func (g *gate) enter() (turn uint8) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.in[g.turn]++
	return g.turn
}

func (g *gate) leave(turn uint8) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in[turn]--; g.in[turn] == 0 {
		g.empty.Broadcast()
	}
}

// pass waits until everybody has left who is in. It must not be called by one of them.
func (g *gate) pass() {
	g.waits.Lock()
	defer g.waits.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.empty.L = &g.mu
	old := g.turn // the other turn is over, and empty
	g.turn ^= 1
	for g.in[old] > 0 {
		g.empty.Wait()
	}
}
