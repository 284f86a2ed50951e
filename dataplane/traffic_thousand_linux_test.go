package dataplane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/steering"
)

// crowd is a number of clients that each keep one connection busy and compare every byte. A connection may only end where its server is
// dead; then the client makes another one.
type crowd struct {
	w     *world
	to    netip.AddrPort
	think time.Duration // at most, between two pieces

	rounds []atomic.Int64
	on     []atomic.Int32 // the server that the client is connected to, or -1
	dead   [2]atomic.Bool // a server whose connections may end
	ended  atomic.Int64   // connections that did
	bad    chan error
}

func (w *world) crowd(t *testing.T, to netip.AddrPort, n int, think time.Duration) *crowd {
	c := &crowd{w: w, to: to, think: think, rounds: make([]atomic.Int64, n), on: make([]atomic.Int32, n), bad: make(chan error, n)}
	noise := make([]byte, 1<<16)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(noise)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range n {
		c.on[i].Store(-1)
		wg.Go(func() {
			if err := c.client(ctx, i, noise); err != nil {
				c.bad <- fmt.Errorf("client %d: %w", i, err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return c
}

func (c *crowd) client(ctx context.Context, i int, noise []byte) error {
	rng := rand.New(rand.NewPCG(1, uint64(i)))
	var conn net.Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	got := make([]byte, 4096)
	for ctx.Err() == nil {
		server := int(c.on[i].Load())
		if conn == nil {
			var err error
			if conn, server, err = c.w.dialTo(c.to); err != nil {
				if c.dead[0].Load() || c.dead[1].Load() {
					c.ended.Add(1)
					conn = nil
					continue // to a server that nobody has noticed yet
				}
				return fmt.Errorf("dial: %w", err)
			}
			c.on[i].Store(int32(server))
		}
		n := 1 + rng.IntN(len(got))
		at := rng.IntN(len(noise) - n)
		began := time.Now()
		conn.SetDeadline(began.Add(patience))
		_, err := conn.Write(noise[at : at+n])
		if err == nil {
			_, err = io.ReadFull(conn, got[:n])
		}
		if err != nil {
			if !c.dead[server].Load() {
				return fmt.Errorf("of server %d: %w", server, err)
			}
			c.ended.Add(1)
			c.on[i].Store(-1)
			conn.Close()
			conn = nil
			continue
		}
		if !bytes.Equal(got[:n], noise[at:at+n]) {
			return errors.New("other bytes came back than were sent")
		}
		c.rounds[i].Add(1)
		// It thinks, for longer on a machine that is slow: a thousand at once are load enough.
		time.Sleep(rand.N(c.think) + 4*time.Since(began))
	}
	return nil
}

// goOn waits until every client of every crowd has compared n more pieces.
func goOn(t *testing.T, crowds []*crowd, what string, n int64) {
	t.Helper()
	var goals [][]int64
	for _, c := range crowds {
		var goal []int64
		for i := range c.rounds {
			goal = append(goal, c.rounds[i].Load()+n)
		}
		goals = append(goals, goal)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		behind := 0
		for k, c := range crowds {
			select {
			case err := <-c.bad:
				require.NoError(t, err, what)
			default:
			}
			for i, goal := range goals[k] {
				if c.rounds[i].Load() < goal {
					behind++
				}
			}
		}
		if behind == 0 {
			return
		}
		require.True(t, time.Now().Before(deadline), "%s: %d clients make no progress", what, behind)
	}
}

func (c *crowd) connected() (n [2]int) {
	for i := range c.on {
		if s := c.on[i].Load(); s >= 0 {
			n[s]++
		}
	}
	return n
}

// TestNetnsThousandConnections: servers are drained, die, are disabled and return under a thousand busy connections. None of another
// server ends, and no byte is lost, doubled or anybody else's.
func TestNetnsThousandConnections(t *testing.T) {
	w := newWorld(t, how{
		queues: 2, routes: []netip.Prefix{netip.PrefixFrom(wlocal(false), 32), netip.PrefixFrom(wlocal(true), 128)},
		third: func(s *dataplane.Service, v6 bool) { s.Forward, s.Locals = dataplane.FullNAT, []netip.Addr{wlocal(v6)} },
	})
	const n = 250 // by NAT and full NAT, of each family
	var crowds []*crowd
	listeners := map[bool][]*listener{}
	for _, v6 := range []bool{false, true} {
		for i := range w.servers {
			listeners[v6] = append(listeners[v6], w.serve(t, i, v6, 5040))
		}
		for _, vip := range []netip.Addr{wvip(v6), wvip3(v6)} {
			crowds = append(crowds, w.crowd(t, netip.AddrPortFrom(vip, 5040), n, 1500*time.Millisecond))
		}
	}
	connected := func(want ...int) {
		t.Helper()
		got := [2]int{}
		for _, c := range crowds {
			for i, n := range c.connected() {
				got[i] += n
			}
		}
		require.Equal(t, [2]int(want), got)
	}
	may := func(server int, end bool) {
		for _, c := range crowds {
			c.dead[server].Store(end)
		}
	}
	admin := func(server int, state steering.AdminState) {
		t.Helper()
		for v6, nodes := range w.nodes {
			nodes[server].Admin = state
			require.NoError(t, w.plane.SetNodes(w.pools[v6], nodes...))
		}
	}
	goOn(t, crowds, "at first", 1)
	connected(2*n, 2*n)
	admin(1, steering.Draining)
	for v6 := range w.nodes {
		c, server, err := w.dial(v6, 5040)
		require.NoError(t, err)
		require.Zero(t, server, "nothing new for a server that drains")
		c.Close()
	}
	goOn(t, crowds, "draining", 1)
	connected(2*n, 2*n)
	admin(1, steering.Enabled)
	goOn(t, crowds, "enabled again", 1)

	// Its process dies, and is found to be down.
	may(1, true)
	for v6, ls := range listeners {
		ls[1].kill()
		require.Positive(t, w.plane.SetUp(w.nodes[v6][1].Name, false))
	}
	goOn(t, crowds, "one server dead", 2)
	connected(4*n, 0)
	may(1, false)
	// It returns, and new connections find it, while the others stay.
	for v6 := range w.nodes {
		w.serve(t, 1, v6, 5040)
		require.Positive(t, w.plane.SetUp(w.nodes[v6][1].Name, true))
		servers := make(chan int, 10)
		for range cap(servers) {
			go func() {
				c, server, err := w.dial(v6, 5040)
				if err != nil {
					server = -1
				} else {
					c.Close()
				}
				servers <- server
			}()
		}
		seen := map[int]int{}
		for range cap(servers) {
			seen[<-servers]++
		}
		require.Equal(t, map[int]int{0: 5, 1: 5}, seen)
	}
	goOn(t, crowds, "it returns", 1)
	connected(4*n, 0)
	// The other one is disabled, which ends its connections without its process knowing: the clients go to the one that has returned.
	may(0, true)
	admin(0, steering.Disabled)
	goOn(t, crowds, "the other one disabled", 2)
	connected(0, 4*n)
}
