package dataplane

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/steering"
)

// giveBack says that a session of k on a node has ended.
func (q *pool) giveBack(k clienttable.Flow, id steering.NodeID) {
	if q.inter != nil {
		q.inter.end(k, id)
		return
	}
	q.Release(id)
}

// adopt counts a session that a node has already.
func (q *pool) adopt(id steering.NodeID) bool {
	if q.inter != nil {
		_, err := q.inter.conf.Engine.Restore(id, netip.Addr{})
		return err == nil
	}
	return q.Adopt(id)
}

// stepPools moves the pools' recovery times and slow starts on, and tells them what their nodes have
// moved. Workers may want p.mu while they count, so that it must not be held.
func (p *Plane) stepPools(now time.Time) {
	nodes := p.snap.Load().nodes
	sum := make([]Traffic, len(nodes))
	p.each(func(s *workerStats) {
		for i := range min(len(sum), len(s.nodes)) {
			sum[i].merge(&s.nodes[i])
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range nodes {
		if i == len(p.told) {
			p.told = append(p.told, 0)
		}
		if octets := sum[i].In.Octets + sum[i].Out.Octets; octets > p.told[i] && n.pool.Pool != nil {
			n.pool.AddOctets(n.id, octets-p.told[i]) // which knows whether it still has that node
			p.told[i] = octets
		}
	}
	for _, q := range p.pools {
		q.Step(now)
	}
	p.stepRoster(now)
	p.stepTraffic(now, sum)
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
