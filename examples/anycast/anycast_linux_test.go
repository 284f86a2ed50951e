package main

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// flow is a long connection of the client's.
type flow struct {
	net.Conn
	vip, server string
	said        int
}

// chat says something on a flow and wants it back: the connection lives, and with the same server.
func (f *flow) chat() error {
	f.said++
	if err := f.SetDeadline(time.Now().Add(40 * time.Second)); err != nil {
		return err
	}
	text := fmt.Sprintf("word %d", f.said)
	if _, err := fmt.Fprintln(f, text); err != nil {
		return err
	}
	got, err := line(f)
	if err == nil && got != text {
		err = fmt.Errorf("got %q instead of %q", got, text)
	}
	return err
}

// flows opens n connections to each of the first two virtual addresses, one an address family.
func (s *site) flows(t *testing.T, n int) (all []*flow) {
	t.Helper()
	for _, vip := range siteVIPs[:2] {
		for range n {
			c, server, err := s.dial(t, vip, 40*time.Second)
			require.NoErrorf(t, err, "%s", vip)
			t.Cleanup(func() { c.Close() })
			all = append(all, &flow{Conn: c, vip: vip, server: server})
		}
	}
	return all
}

// chatAll has all flows say something at the same time.
func chatAll(t *testing.T, flows []*flow) {
	t.Helper()
	errs := make([]error, len(flows))
	done := make(chan struct{})
	for i, f := range flows {
		go func() {
			errs[i] = f.chat()
			done <- struct{}{}
		}()
	}
	for range flows {
		<-done
	}
	for i, f := range flows {
		require.NoErrorf(t, errs[i], "%v to %s, at %s", f.LocalAddr(), f.vip, f.server)
	}
}

// newOnes wants new connections to both families' first address, many in a row, and tells how long it took until they could be had.
func (s *site) newOnes(t *testing.T) time.Duration {
	t.Helper()
	begun, last := time.Now(), time.Now()
	for good := 0; good < 12; {
		c, _, err := s.dial(t, siteVIPs[good%2], 2*time.Second)
		if err != nil {
			require.Lessf(t, time.Since(begun), time.Minute, "no connection: %v", err)
			good, last = 0, time.Now()
			continue
		}
		c.Close()
		good++
	}
	return last.Sub(begun)
}

// newWithin is how soon new connections reach the balancers that are left once the router knows; on an idle machine it takes a tenth of a
// second. siteHold is how long the router waits for a balancer that is silent.
const (
	newWithin = 10 * time.Second
	siteHold  = 6 * time.Second
)

func TestTwoBalancersBehindEqualCostRoutes(t *testing.T) {
	s := newSite(t)
	for i := range s.balancers {
		s.configure(t, i, "")
	}
	s.bird(t)
	a, b := s.balance(t, 0), s.balance(t, 1)
	s.await(t, 2, siteVIPs[:]...)

	flows := s.flows(t, 16)
	chatAll(t, flows)
	atA, atB := s.clients(t, 0), s.clients(t, 1)
	served := map[string]int{}
	var viaA, viaB int
	for _, f := range flows {
		served[f.server]++
		node, ok := atA[f.LocalAddr().String()]
		if ok {
			viaA++
		} else {
			viaB++
			node, ok = atB[f.LocalAddr().String()]
		}
		require.Truef(t, ok, "%v has no session at either balancer", f.LocalAddr())
		require.Contains(t, node, "/server"+f.server[len("server "):], "the balancer knows the server that answered")
	}
	t.Logf("%d connections through the first balancer, %d through the second; servers: %v", viaA, viaB, served)
	require.NotZero(t, viaA, "the router uses both balancers")
	require.NotZero(t, viaB, "the router uses both balancers")
	// By the hashes of so few connections a server may have none of them.
	for i := 0; len(served) < 3 && i < 200; i++ {
		c, server, err := s.dial(t, siteVIPs[i%2], patience)
		require.NoError(t, err)
		c.Close()
		served[server]++
	}
	require.Len(t, served, 3, "all servers are used")

	// The first one dies: the kernel ends its BGP sessions.
	require.NoError(t, a.Kill())
	<-a.Done
	took := s.newOnes(t)
	t.Logf("killed: new connections again after %v", took)
	require.Less(t, took, newWithin, "the router gives a balancer up at once whose sessions end")
	s.await(t, 1, siteVIPs[:]...)
	chatAll(t, flows) // those of the survivor go on, the others are taken over
	var st status
	require.NoError(t, s.get(t, 1, "/", &st))
	require.GreaterOrEqual(t, st.TakenOver, uint64(viaA), "one for each connection of the dead balancer")
	atB = s.clients(t, 1)
	for _, f := range flows {
		require.Containsf(t, atB[f.LocalAddr().String()], "/server"+f.server[len("server "):], "%v", f.LocalAddr())
	}

	// It comes back: about half of the connections move to it.
	a = s.balance(t, 0)
	s.await(t, 2, siteVIPs[:]...)
	chatAll(t, flows)
	require.NotEmpty(t, s.clients(t, 0))
	chatAll(t, append(flows, s.flows(t, 4)...))

	// It hangs: the router gives it up after the hold time.
	require.NoError(t, a.Signal(syscall.SIGSTOP))
	took = s.await(t, 1, siteVIPs[:]...)
	more := s.newOnes(t)
	t.Logf("stopped: given up after %v with a hold time of 6s, new connections after %v more", took, more)
	require.Less(t, took+more, siteHold+newWithin, "the router gives a balancer up that is silent for the hold time")
	chatAll(t, flows)
	require.NoError(t, a.Signal(syscall.SIGCONT))
	s.await(t, 2, siteVIPs[:]...)
	chatAll(t, flows)

	// It ends in an orderly way: everything is withdrawn before it ends, and no connection notices.
	asked := time.Now()
	require.NoError(t, a.Signal(syscall.SIGTERM))
	s.await(t, 1, siteVIPs[:]...)
	chatAll(t, append(flows, s.flows(t, 2)...))
	<-a.Done
	require.NoError(t, a.Err)
	require.GreaterOrEqual(t, time.Since(asked), siteLinger, "ended without lingering")
	require.Contains(t, a.Log.String(), "withdrawn; serving what still comes")
	chatAll(t, flows)
	require.NoError(t, b.Signal(syscall.SIGTERM))
	s.await(t, 0, siteVIPs[:]...)
	<-b.Done
	require.NoError(t, b.Err)
}

func TestWithdrawsWhatItCannotServe(t *testing.T) {
	s := newSite(t)
	for i := range s.balancers {
		s.configure(t, i, "")
	}
	s.bird(t)
	s.balance(t, 0)
	s.balance(t, 1)
	s.await(t, 2, siteVIPs[:]...)

	// The last server fails its checks: the second pair of addresses has no other.
	s.stops[2]()
	t.Logf("withdrawn after %v", s.await(t, 0, siteVIPs[2:]...))
	s.await(t, 2, siteVIPs[:2]...)
	for i := range s.balancers { // each farm has checks of its own
		s.counts(t, i, 2)
	}
	for range 8 {
		for _, v := range siteVIPs[:2] {
			c, server, err := s.dial(t, v, 40*time.Second)
			require.NoError(t, err)
			require.NotEqual(t, "server 2", server)
			c.Close()
		}
	}
	var st status
	require.NoError(t, s.get(t, 0, "/", &st))
	require.Len(t, st.VIPs, 4)
	require.True(t, st.VIPs[0].Announced)
	require.False(t, st.VIPs[2].Announced)
	require.Contains(t, st.VIPs[2].Why, "echo2 has 0 of 1 nodes, wants 1")
	require.Len(t, st.Routers, 2)
	require.True(t, st.Routers[0].Established && st.Routers[1].Established)

	s.health(t, 2)
	s.await(t, 2, siteVIPs[:]...)
	for i := range s.balancers {
		s.counts(t, i, 3)
	}

	// Maintenance of one balancer, by its file; a wrong file changes nothing.
	flows := s.flows(t, 8)
	s.configure(t, 0, "maintenance: true\n")
	s.await(t, 1, siteVIPs[:]...)
	chatAll(t, flows)
	s.configure(t, 0, "maintenance: perhaps\n")
	s.configure(t, 1, "maintenance: perhaps\n")
	s.configure(t, 0, "maintenance: false\n")
	s.await(t, 2, siteVIPs[:]...)
	chatAll(t, flows)
}
