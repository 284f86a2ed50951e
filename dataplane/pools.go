package dataplane

import (
	"context"
	"sync"
	"time"
)

// stepPools moves the pools' recovery times and slow starts on, and tells them what their nodes have
// moved. Workers may want p.mu while they count, so that it must not be held.
func (p *Plane) stepPools(now time.Time) {
	nodes := p.snap.Load().nodes
	octets := make([]uint64, len(nodes))
	p.each(func(s *workerStats) {
		for i := range min(len(octets), len(s.nodes)) {
			octets[i] += s.nodes[i].In.Octets + s.nodes[i].Out.Octets
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range nodes {
		if i == len(p.told) {
			p.told = append(p.told, 0)
		}
		if d := octets[i] - p.told[i]; octets[i] > p.told[i] {
			p.told[i] = octets[i]
			n.pool.AddOctets(n.id, d) // which knows whether it still has that node
		}
	}
	for _, q := range p.pools {
		q.Step(now)
	}
	p.stepRoster(now)
}

// clocks runs the pools that are in force.
type clocks struct {
	wg      sync.WaitGroup
	running map[*pool]context.CancelFunc
}

// follow starts and stops clocks, as pools come and go.
func (c *clocks) follow(ctx context.Context, p *Plane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := make(map[*pool]context.CancelFunc, len(p.pools))
	for _, q := range p.pools {
		stop := c.running[q]
		if stop == nil {
			var own context.Context
			own, stop = context.WithCancel(ctx)
			c.wg.Go(func() { _ = q.Run(own) }) // ends with its context
		}
		now[q] = stop
	}
	for q, stop := range c.running {
		if now[q] == nil {
			stop()
		}
	}
	c.running = now
}

// stop ends all clocks.
func (c *clocks) stop() {
	for _, stop := range c.running {
		stop()
	}
	c.wg.Wait()
}
