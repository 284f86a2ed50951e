//go:build linux

package dataplane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/policy/l7"
)

var keptRules = []l7.Rule{
	{Index: 1, First: l7.Method{Kind: l7.PathPrefix, Value: "/a"}, Action: farm("a")},
	{Index: 2, First: l7.Method{Kind: l7.PathPrefix, Value: "/b"}, Action: farm("b")},
	{Index: 3, First: l7.Method{Kind: l7.PathExact, Value: "/old"}, Action: l7.Action{Do: l7.Redirect, Location: "/a/new"}},
}

// One curl, one connection of its own, and nginx on both hosts, which count the requests of each of theirs.
func TestKeptConnectionsMoveBetweenServers(t *testing.T) {
	curl := testenv.NeedServers(t, "curl")[0]
	w := newWorld(t, how{})
	const port = 8040
	for _, v6 := range []bool{false, true} {
		for i := range 2 {
			w.nginx(t, i, v6, port)
		}
	}
	for mode, want := range map[l7.Mode][]string{
		l7.First:     {"0 /a/1 1", "0 /b/1 2", "0 /a/2 3", "0 /a/3 4", "0 /b/2 5"},
		l7.Overwrite: {"0 /a/1 1", "1 /b/1 1", "0 /a/2 1", "0 /a/3 2", "1 /b/2 1"},
		l7.Maintain:  {"0 /a/1 1", "1 /b/1 1", "0 /a/2 2", "0 /a/3 3", "1 /b/2 2"},
	} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			w.farms(t, dataplane.ReadHTTP, &l7.Config{Mode: mode, Default: l7.Action{Do: l7.Reply, Code: 404}}, keptRules...)
			for _, v6 := range []bool{false, true} {
				base := "http://" + netip.AddrPortFrom(wvip(v6), port).String()
				urls := []string{"-s", "-S", "-m", "60", "-w", "%{num_connects}\n"}
				for _, r := range want {
					urls = append(urls, base+strings.Fields(r)[1])
				}
				out := output(t, w.client, curl, urls...)
				var got []string
				for i, r := range want {
					got = append(got, fmt.Sprintf("server %s\n%d", r, map[bool]int{true: 1, false: 0}[i == 0]))
				}
				require.Equal(t, strings.Join(got, "\n")+"\n", out)
			}
			require.Eventually(t, func() bool { return w.plane.Stats().Delay.Kept == 0 && w.plane.Stats().Delay.Held == 0 }, 20*time.Second, 10*time.Millisecond)
		})
	}
	require.NotZero(t, w.plane.Stats().Delay.Resumed)
}

// echoHTTP starts a server that says who it is and sends back what it gets.
func (w *world) echoHTTP(t testing.TB, i int, v6 bool, port uint16) {
	ln, err := w.servers[i].Listen(context.Background(), "tcp", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port).String())
	require.NoError(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		rw.Header().Set("X-Server", fmt.Sprint(i))
		if r.URL.Query().Has("chunked") {
			rw.(http.Flusher).Flush()
		}
		_, _ = rw.Write(b)
	})}
	t.Cleanup(func() { srv.Close() })
	go func() { _ = srv.Serve(ln) }()
}

// Go's client keeps its connections and posts bodies of all sizes, with a length or in chunks, over networks good and bad, while its requests are for
// both servers.
func TestKeptConnectionsWithBodies(t *testing.T) {
	for name, h := range map[string]how{
		"super-packets":      {},
		"verified checksums": {noOffload: true, queues: 2},
		"bad network": {noOffload: true, wrap: func(d dataplane.Device) dataplane.Device {
			return newBad(d, 5)
		}, limits: splice.Limits{Time: 30 * time.Second, ServerTime: 30 * time.Second, ReplayTime: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait, mostly
			w := newWorld(t, h)
			const port = 8050
			each, size, clients := 10, 200_000, 6
			if h.wrap != nil {
				each, size, clients = 2, 3_000, 3
			}
			for _, v6 := range []bool{false, true} {
				for i := range 2 {
					w.echoHTTP(t, i, v6, port)
				}
			}
			for _, mode := range []l7.Mode{l7.Overwrite, l7.Maintain} {
				w.farms(t, dataplane.ReadHTTP, &l7.Config{Mode: mode, Default: l7.Action{Do: l7.Reply, Code: 404}}, keptRules...)
				before := w.plane.Stats().Delay
				var wg sync.WaitGroup
				errs := make(chan error, clients)
				for k := range cap(errs) {
					wg.Go(func() {
						var err error
						for range 3 { // a reset that answers an old segment is no fault of a bad network's
							if err = w.posts(k, each, size, port); h.wrap == nil || !errors.Is(err, syscall.ECONNRESET) {
								break
							}
						}
						errs <- err
					})
				}
				wg.Wait()
				for range cap(errs) {
					require.NoError(t, <-errs, mode)
				}
				after := w.plane.Stats().Delay
				if h.wrap == nil { // else a client may have begun anew
					require.EqualValues(t, cap(errs), after.Confirmed-before.Confirmed)
				}
				require.NotZero(t, after.Moved-before.Moved)
			}
		})
	}
}

// posts does n requests over one connection.
func (w *world) posts(k, n, size int, port uint16) error {
	rng := rand.New(rand.NewPCG(uint64(k), 9))
	base := "http://" + netip.AddrPortFrom(wvip(k%2 == 0), port).String()
	tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return w.client.DialContext(ctx, network, addr)
	}}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: patience}
	for i := range n {
		body := make([]byte, rng.IntN(1+rng.IntN(size)))
		for j := range body {
			body[j] = byte(rng.Uint32())
		}
		to := rng.IntN(2)
		if i < 2 {
			to = i
		}
		url := base + []string{"/a", "/b"}[to]
		if rng.IntN(2) == 0 {
			url += "?chunked"
		}
		var src io.Reader = bytes.NewReader(body)
		if rng.IntN(2) == 0 {
			src = struct{ io.Reader }{src} // of unknown length: in chunks
		}
		req, err := http.NewRequest(http.MethodPost, url, src)
		if err != nil {
			return err
		}
		if rng.IntN(4) == 0 {
			req.Header.Set("Expect", "100-continue")
		}
		res, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("request %d of %d bytes: %w", i, len(body), err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			return fmt.Errorf("request %d of %d bytes: %w", i, len(body), err)
		}
		if res.Header.Get("X-Server") != fmt.Sprint(to) || !bytes.Equal(got, body) {
			return fmt.Errorf("request %d: server %s of %d, or %d bytes are not the %d sent", i, res.Header.Get("X-Server"), to, len(got), len(body))
		}
	}
	return nil
}
