package main

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// chatEvery is how often a conversation says something.
const chatEvery = 100 * time.Millisecond

// chatter are conversations that go on all the time, also while something fails: they are what moves on the screen. Of every kind there is one in each
// family over each link. What is said of them in the end holds at any moment, since nobody can say what exactly was down when a packet passed.
type chatter struct {
	site *site
	lan  outlet
	opt  options

	// act is the act that has settled: long conversations begin anew with it, so that each lives through the next failure.
	act atomic.Int64

	mu       sync.Mutex
	flows    []*flow
	answered uint64
	longest  time.Duration // that a packet had to wait
}

// run talks until ctx is done.
func (c *chatter) run(ctx context.Context) {
	var wg sync.WaitGroup
	for k := range kinds {
		for n := range 4 {
			wg.Go(func() { c.talk(ctx, k, n) })
		}
	}
	wg.Wait()
}

// talk has one conversation after another.
func (c *chatter) talk(ctx context.Context, k kind, n int) {
	pause := time.NewTicker(chatEvery)
	defer pause.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		act := c.act.Load()
		f := chatFlow(k, n, i)
		for ctx.Err() == nil && !f.refused && f.failed == nil && (k != telnet || f.said == 0) && act == c.act.Load() {
			began := time.Now()
			f.failed = c.site.say(ctx, c.lan, f, c.opt)
			c.mu.Lock()
			if f.failed == nil {
				c.answered++
				c.longest = max(c.longest, time.Since(began))
			}
			c.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
		}
		if ctx.Err() != nil {
			f.failed = nil // it was cut short
		}
		c.site.ledger.forget(flowOf(f.packet()))
		c.mu.Lock()
		c.flows = append(c.flows, f)
		c.mu.Unlock()
	}
}

// chatFlow is conversation i of those that n tells apart: by family and link.
func chatFlow(k kind, n, i int) *flow {
	f := &flow{kind: k, v6: n&1 != 0, link: n >> 1}
	port := uint16(30000 + i%30000)
	if f.v6 {
		f.src = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", 100+10*int(k)+n)), port)
		f.dst = netip.AddrPortFrom(netip.MustParseAddr("2001:db8:2::80"), kindPorts[k])
	} else {
		f.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(100 + 10*int(k) + n)}), port)
		f.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 80}), kindPorts[k])
	}
	return f
}

// status is what is shown of the conversations.
func (c *chatter) status() (answered uint64, longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered, c.longest
}
