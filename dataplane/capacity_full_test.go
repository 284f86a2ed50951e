package dataplane

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A flow that a peer knows comes to a balancer whose records are all in use or wait to be used again: it has no room, and nobody waits for any.
func TestFullPlaneIsToldOfFlows(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, how := range []string{"told", "asked"} {
			d := new(directory)
			a := newPlane(t, fam, func(c *Config, _ *Service) { c.Peers = d })
			b := newPlane(t, fam, func(c *Config, _ *Service) { c.Peers, c.MaxSessions = d, 8 })
			client, vip := ap(fam.client, 7), ap(fam.vip, 80)
			for i := range uint16(8) {
				b.open(ap(fam.client2, 1000+i))
			}
			for i := range uint16(80) { // each that is refused leaves a record behind
				b.send(tcp(ap(fam.client2, 2000+i), vip, "S", 1, 0, ""))
			}
			packet := udp(client, vip, "x")
			if how == "asked" {
				a.open(client)
				packet = tcp(client, vip, "A", 101, 501, "x")
			} else {
				v, _ := a.send(packet)
				require.Equal(t, Forwarded, v)
			}
			done := make(chan Verdict, 1)
			go func() {
				v, _ := b.sendAll(packet)
				done <- v[0]
			}()
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				require.FailNow(t, "it waits for itself", how)
			}
			require.Equal(t, 8, b.Stats().Sessions)
		}
	})
}

// No entry of the table names a record that was given back, although workers begin half-open sessions in a full table at once, and each makes room
// by those of the others.
func TestFullTableNamesNoRecordThatIsFree(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(c *Config, s *Service) { c.MaxSessions, s.Ageing.SYN = 16, time.Minute })
		var workers []*Worker
		for range 4 {
			workers = append(workers, p.NewWorker(Link{}))
		}
		for round := range 60 {
			var wg sync.WaitGroup
			for n, w := range workers {
				wg.Go(func() {
					for i := range 40 {
						b := tcp(ap(fam.client2, uint16(1000+round*160+n*40+i)), ap(fam.vip, 80), "S", 1, 0, "")
						w.Process(p.now, [][]byte{append(make([]byte, ReadOffset), b...)}, []int{len(b)}, ReadOffset, nil)
					}
				})
			}
			wg.Wait()
			gone := map[uint32]bool{}
			p.slab.mu.Lock()
			for _, list := range [][]uint32{p.slab.free, p.slab.spare, p.slab.limbo} {
				for _, at := range list {
					gone[at] = true
				}
			}
			p.slab.mu.Unlock()
			for k, r := range p.sessions().All() {
				require.False(t, gone[r.record()], "round %d: %v", round, k)
			}
			p.slab.recycle(p.quiesce)
		}
	})
}
