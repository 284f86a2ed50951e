package probe_test

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// site is a web server whose answers are set by path.
type site struct {
	mu     sync.Mutex
	status map[string][]string // the next ones; the last stays
}

func (s *site) serve(p *peer) {
	words := strings.Fields(p.hear())
	for p.hear() != "" {
	}
	s.mu.Lock()
	next := s.status[words[1]]
	if len(next) > 1 {
		s.status[words[1]] = next[1:]
	}
	s.mu.Unlock()
	p.say("HTTP/1.1 " + next[0] + " X\r\n\r\n")
	p.drain()
}

// TestHTTPThroughAMonitor has a Monitor judge a row of statuses: with a fall of 3 it takes three failures in a row, with FailFast the first wrong
// status is enough, and 401 is a right one.
func TestHTTPThroughAMonitor(t *testing.T) {
	for name, row := range map[string]struct {
		prober   probe.HTTP
		statuses []string
		want     []string // the state after each
	}{
		"three in a row": {probe.HTTP{}, []string{"404", "200", "404", "404", "404"}, []string{"testing", "active", "suspect", "suspect", "failed"}},
		"not over life":  {probe.HTTP{}, []string{"404", "200", "200", "404", "200", "200", "404", "200"}, []string{"testing", "active", "active", "suspect", "active", "active", "suspect", "active"}},
		"at the first":   {probe.HTTP{FailFast: true}, []string{"200", "404", "200"}, []string{"active", "failed", "active"}},
		"from the start": {probe.HTTP{FailFast: true}, []string{"404", "401", "503"}, []string{"failed", "active", "failed"}},
		"who are you":    {probe.HTTP{}, []string{"401", "401"}, []string{"active", "active"}},
		"103 and then":   {probe.HTTP{}, []string{"103 X\r\nLink: </a>\r\n\r\nHTTP/1.1 200"}, []string{"active"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{status: map[string][]string{"/": row.statuses}}
				row.prober.Dialer = memory{serve: s.serve}
				var states []string
				m, err := healthcheck.NewMonitor(&healthcheck.Config{OnResult: func(_ healthcheck.Check, _ healthcheck.Result, st healthcheck.Status) {
					states = append(states, st.State.String())
				}})
				require.NoError(t, err)
				require.NoError(t, m.Set(healthcheck.Check{ID: "web", Target: target, Prober: row.prober, Fall: 3}))
				for range row.statuses {
					require.NoError(t, m.Trigger("web"))
					n, _, err := m.Step(t.Context())
					require.NoError(t, err)
					require.Equal(t, 1, n)
				}
				require.Equal(t, row.want, states)
			})
		})
	}
}

// TestEveryURLIsAsked: where two URLs make a port healthy together, each is asked, and one that is not found fails the port.
func TestEveryURLIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{status: map[string][]string{"/one": {"200"}, "/two": {"404"}}}
		url := func(id, path string) healthcheck.Check {
			return healthcheck.Check{ID: id, Target: target, Prober: probe.HTTP{Dialer: memory{serve: s.serve}, Path: path}}
		}
		r, err := healthcheck.NewRoster(nil)
		require.NoError(t, err)
		both, err := healthcheck.ParseExpr("one AND two")
		require.NoError(t, err)
		require.NoError(t, r.Set(healthcheck.Setup{
			Elements: []healthcheck.Check{url("one", "/one"), url("two", "/two")},
			Policies: []healthcheck.Policy{{Name: "both", Expr: both}},
			Servers:  []healthcheck.Server{{Name: "a", Addr: netip.MustParseAddr("192.0.2.1"), Ports: []healthcheck.Port{{Port: 80, Policy: "both"}}}},
		}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		state := func() healthcheck.State {
			st, ok := r.Port("a", "80")
			require.True(t, ok)
			return st.State
		}
		time.Sleep(20 * time.Second)
		require.Equal(t, healthcheck.Failed, state())
		why, err := r.Explain("a", "80")
		require.NoError(t, err)
		require.Contains(t, why, "two")
		s.mu.Lock()
		s.status["/two"] = []string{"200"}
		s.mu.Unlock()
		time.Sleep(20 * time.Second)
		require.Equal(t, healthcheck.Active, state())
		cancel()
		<-done
	})
}
