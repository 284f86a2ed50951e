package dataplane

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// pausing is an Accelerator that takes its time when it is asked for what it has done.
type pausing struct {
	*shortcut
	asked, on chan struct{} // once both are set
	once      sync.Once
}

func (a *pausing) Usage(f clienttable.Flow) (Usage, bool) {
	if a.asked != nil {
		a.once.Do(func() { close(a.asked); <-a.on })
	}
	return a.shortcut.Usage(f)
}

// all waits until so many functions have returned.
func all(t *testing.T, done <-chan string, n int) {
	t.Helper()
	for i := range n {
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of %d wait for each other", n-i, n)
		}
	}
}

// awaitWaiter returns once somebody waits for all who look at records.
func awaitWaiter(t *testing.T, p *Plane) {
	t.Helper()
	require.Eventually(t, func() bool {
		if p.readers.waits.TryLock() {
			p.readers.waits.Unlock()
			return false
		}
		return true
	}, 30*time.Second, time.Millisecond)
}

// A session is ended while the accelerator is asked for its use, and a capture ends: nobody waits for those who wait for him.
func TestKilledWhileAccelerated(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		a := &pausing{shortcut: &shortcut{room: 100, flows: map[clienttable.Flow]*shortcutFlow{}}}
		p := newPlane(t, fam, func(c *Config, _ *Service) { c.Accelerator, c.AccelerateAfter = a, 1 })
		a.now = &p.now
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		for range 4 {
			p.forwarded(tcp(client, vip, "A", 101, 501, "x"), client, node)
		}
		p.Step(p.now)
		require.Len(t, a.flows, 2)
		for _, f := range a.flows {
			f.Packets++
		}
		a.asked, a.on = make(chan struct{}), make(chan struct{})
		done := make(chan string, 3)
		go func() { p.Step(p.now); done <- "step" }()
		<-a.asked
		go func() {
			p.KillSession(Session{Protocol: wire.ProtoTCP, Client: client, VIP: vip})
			done <- "kill"
		}()
		require.Eventually(t, func() bool { _, ok := p.sessions().Peek(clienttable.MakeFlow(wire.ProtoTCP, client, vip)); return !ok }, 30*time.Second, time.Millisecond)
		go func() { p.quiesce(); done <- "quiesce" }()
		awaitWaiter(t, p.Plane)
		close(a.on)
		all(t, done, 3)
		require.Empty(t, a.flows)
	})
}

// answering are peers that answer a question when they are told that a flow is over, as they may.
type answering struct {
	*directory
	over func()
}

func (a *answering) Withdraw(proto uint8, x, y netip.AddrPort) {
	if a.over != nil {
		over := a.over
		a.over = nil
		over()
	}
	a.directory.Withdraw(proto, x, y)
}

func TestKilledWhilePeersAnswer(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		d := new(directory)
		peers := &answering{directory: d}
		a := newPlane(t, fam, func(c *Config, _ *Service) { c.Peers = d })
		b := newPlane(t, fam, func(c *Config, _ *Service) { c.Peers = peers })
		one, other, vip := ap(fam.client, 40000), ap(fam.client2, 40000), ap(fam.vip, 80)
		a.open(one)
		b.open(other)
		d.wait = true
		v, _ := b.send(tcp(one, vip, "A", 101, 501, "x"))
		require.Equal(t, Held, v)
		done := make(chan string, 2)
		peers.over = func() { // within KillSession
			go func() { b.quiesce(); done <- "quiesce" }()
			awaitWaiter(t, b.Plane)
			d.later[0]()
		}
		go func() {
			b.KillSession(Session{Protocol: wire.ProtoTCP, Client: other, VIP: vip})
			done <- "kill"
		}()
		all(t, done, 2)
	})
}

func TestGate(t *testing.T) {
	var g gate
	first := g.enter()
	done := make(chan string, 1)
	wait := func() {
		go func() { g.pass(); done <- "pass" }()
		require.Eventually(t, func() bool {
			if g.waits.TryLock() {
				g.waits.Unlock()
				return false
			}
			return true
		}, 30*time.Second, time.Millisecond)
		require.Eventually(t, func() bool { // which it gives back when it waits
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.in[g.turn] == 0
		}, 30*time.Second, time.Millisecond)
	}
	wait()
	for range 3 { // come and go meanwhile
		g.leave(g.enter())
	}
	second := g.enter() // stays
	require.Empty(t, done)
	g.leave(first)
	all(t, done, 1)
	wait()
	require.Empty(t, done)
	g.leave(second)
	all(t, done, 1)
	g.pass()
	require.Equal(t, [2]int{}, g.in)

	// What is given out again after pass, nobody reads any more.
	var wg sync.WaitGroup
	values := [2]int{1, 1}
	var at sync.Map
	at.Store("now", 0)
	for range 2 {
		wg.Go(func() {
			for range 500 {
				turn := g.enter()
				i, _ := at.Load("now")
				_ = values[i.(int)]
				g.leave(turn)
			}
		})
	}
	for i := range 200 {
		at.Store("now", (i+1)%2)
		g.pass()
		values[i%2]++ // a race, were there readers
	}
	wg.Wait()
}
