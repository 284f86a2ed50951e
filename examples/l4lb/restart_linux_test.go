package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
)

// stream is a connection on which a server says something all the time.
type stream struct {
	lines chan string
}

func (h *labHosts) stream(t *testing.T, addr string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	tr := &http.Transport{DialContext: h.client.DialContext}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/slow", nil)
	require.NoError(t, err)
	resp, err := (&http.Client{Transport: tr}).Do(req) //nolint:bodyclose // closed when the test ends
	require.NoError(t, err)
	s := &stream{lines: make(chan string)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.lines)
		for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
			select {
			case s.lines <- sc.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
		<-done
		tr.CloseIdleConnections()
	})
	return s
}

// tick waits for the server to say something.
func (s *stream) tick(t *testing.T) {
	t.Helper()
	select {
	case _, ok := <-s.lines:
		require.True(t, ok, "the connection has ended")
	case <-time.After(patience):
		require.FailNow(t, "silence")
	}
}

// fresh waits for something that the server says from now on: what the kernels still held is passed over.
func (s *stream) fresh(t *testing.T) {
	t.Helper()
	for range 60 { // 3 s of the server's clock
		s.tick(t)
	}
}

// ends waits for the connection to end.
func (s *stream) ends(t *testing.T) {
	t.Helper()
	for end := time.After(patience); ; {
		select {
		case _, ok := <-s.lines:
			if !ok {
				return
			}
		case <-end:
			require.FailNow(t, "the connection goes on")
		}
	}
}

// load has clients that ask all the time; failed counts requests without an answer.
func (h *labHosts) load(t *testing.T, clients int, addrs ...string) (answered, failed *atomic.Int64, why func() string) {
	answered, failed = &atomic.Int64{}, &atomic.Int64{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	log := &rig.Log{}
	for i := range clients {
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				if _, err := h.get(addrs[n%len(addrs)]); err != nil {
					failed.Add(1)
					fmt.Fprintln(log, err)
				} else {
					answered.Add(1)
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return answered, failed, log.String
}

// A thousand reloads, with a service that comes and goes and metrics and a weight that change, cost no request.
func TestReloadUnderLoad(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	text := strings.Replace(fmt.Sprintf(labFile, "tun", "e1, e2"), "{socket: none}", "{socket: SOCKET}", 1)
	p := h.start(t, text)
	p.ready()
	answered, failed, why := h.load(t, 3, "10.9.100.1", "fd09:100::1")
	lasting := h.stream(t, "10.9.100.1")
	other := strings.NewReplacer("metric: roundrobin", "metric: leastconns", `8080"}
services`, `8080", weight: 3}
services`, "- {name: web6", `- {name: extra, vip: 10.9.100.7, farm: v4}
  - {name: web6`).Replace(text)
	require.NotEqual(t, text, other)
	const reloads = 1000
	for i := range reloads {
		p.write([]string{other, text}[i%2])
		require.NoError(t, (&client{socket: p.socket}).call(t.Context(), http.MethodPost, "/api/v1/reload", nil, nil))
	}
	s := p.status()
	require.GreaterOrEqual(t, s.Config.Reloads, uint64(reloads))
	require.Zero(t, s.Config.Refused)
	require.Zero(t, failed.Load(), "%s\n%v", why(), p.log)
	require.Positive(t, answered.Load())
	lasting.fresh(t)
}

// Connections outlive a restart and a kill, and no request fails meanwhile: with the kernel set up by the printed commands nothing answers
// for the balancer while it is away, and TCP waits.
func TestRestartUnderLoad(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	text := strings.Replace(fmt.Sprintf(labFile, "tun", "e1, e2"), "{socket: none}", "{socket: SOCKET}\nstate: {file: DIR/state, every: 1s}", 1)
	sh := func(script string) string { return rig.Shell(t, h.balancer, script) }
	name := write(t, strings.NewReplacer("SOCKET", "none", "DIR", "/tmp").Replace(text))
	status, commands, errs := invoke(t, "setup", name)
	require.Zero(t, status, errs)
	sh(commands)
	p := h.start(t, text, "-no-setup")
	p.ready()
	require.Contains(t, p.log.String(), "ip route replace 10.9.100.1/32 dev lb0")
	answered, failed, why := h.load(t, 2, "10.9.100.1", "fd09:100::1")
	four, six := h.stream(t, "10.9.100.1"), h.stream(t, "[fd09:100::1]")
	p.must("drain", "v6/s1")
	for i, end := range []func(){p.stop, p.kill} {
		four.tick(t)
		six.tick(t)
		before := p.status().Now
		p.eventually("the state is saved", func() bool { return p.savedSince(before) })
		end()
		p.run("-no-setup")
		p.servesAgain("v6/s1")
		four.fresh(t)
		six.fresh(t)
		n := answered.Load()
		p.eventually("requests go on", func() bool { return answered.Load() > n+5 })
		if i == 0 {
			require.Zero(t, failed.Load(), "%s\n%v", why(), p.log)
		}
	}
	// Of a balancer that was killed nobody knows the connections that were younger than the saved state: at most one of each client.
	require.LessOrEqual(t, failed.Load(), int64(2), "%s\n%v", why(), p.log)
	require.Contains(t, p.log.String(), "sessions restored")
	_, commands, _ = invoke(t, "setup", "-undo", name)
	p.stop()
	sh(commands)
	out := sh("ip rule; ip -6 rule; ip link show lb0 2>&1 || true")
	require.NotContains(t, out, fmt.Sprint(setupTable))
	require.Contains(t, out, "does not exist")
}
