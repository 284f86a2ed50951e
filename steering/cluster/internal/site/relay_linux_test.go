package site

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/steering/cluster"
)

// TestRelay: connections whose every request is judged, and of which only one balancer can know how, while each of their directions, and some of
// their packets after others, come by another balancer: requests reach the servers that they are for, and answers the client, by GRE between the balancers.
func TestRelay(t *testing.T) {
	const members, conns, requests = 3, 24, 6
	var peers []cluster.Peer
	for i := range members {
		peers = append(peers, cluster.Peer{Name: fmt.Sprint("lb", i+1)})
	}
	s := newSite(t, cluster.Parallel, peers, dataplane.NAT)
	for i, ns := range s.servers {
		for _, v6 := range []bool{false, true} {
			l, err := ns.Listen(context.Background(), "tcp", netip.AddrPortFrom(addr(v6, serverNet+i, 2), httpPort).String())
			require.NoError(t, err)
			srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				fmt.Fprintf(w, "%d %s %s", i, r.URL.Path, body)
			})}
			go func() { _ = srv.Serve(l) }()
			t.Cleanup(func() { srv.Close() })
		}
	}
	for i := range members {
		s.start(i)
	}
	all := s.running()
	s.see(all)
	s.spread(all)
	var wg sync.WaitGroup
	errs := make(chan error, conns)
	for i := range conns {
		wg.Go(func() { errs <- s.ask(i%2 == 1, requests) })
	}
	wg.Wait()
	for range conns {
		require.NoError(t, <-errs)
	}
	var relayed, received uint64
	for _, i := range all {
		a := s.members[i].look(t)
		relayed, received = relayed+a.Plane.Relayed, received+a.Plane.Received
		require.Zero(t, a.Plane.Resets)
		require.Zero(t, a.Cluster.Malformed+a.Cluster.Refused, "%+v", a.Cluster)
		t.Logf("%s: relayed %d packets, received %d, dropped %v", s.name(i), a.Plane.Relayed, a.Plane.Received, a.Drops)
	}
	require.NotZero(t, relayed)
	require.NotZero(t, received)
}

// ask sends requests for changing servers by one connection, with bodies of some segments.
func (s *site) ask(v6 bool, requests int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := s.client.DialContext(ctx, "tcp", netip.AddrPortFrom(vip(v6), httpPort).String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	r := bufio.NewReader(c)
	for range requests {
		if err := exchange(c, r, rand.IntN(3)); err != nil {
			return fmt.Errorf("%v: %w", c.LocalAddr(), err)
		}
	}
	return nil
}

func exchange(c net.Conn, r *bufio.Reader, server int) error {
	body := make([]byte, 5000)
	for i := range body {
		body[i] = 'a' + byte(rand.IntN(26))
	}
	path := fmt.Sprintf("/%d/x", server)
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: site\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%d %s %s", server, path, body); string(got) != want {
		return fmt.Errorf("%d bytes that begin with %.20q, want %.20q", len(got), got, want)
	}
	return nil
}
