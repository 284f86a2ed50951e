package dataplane

import (
	"context"
	"maps"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

// light is a prober that passes while it is on.
type light struct{ off atomic.Bool }

func (l *light) Probe(context.Context, netip.AddrPort) healthcheck.Result {
	if l.off.Load() {
		return healthcheck.Result{Verdict: healthcheck.Fail}
	}
	return healthcheck.Result{Verdict: healthcheck.Pass}
}

// rostered is a plane whose nodes a Roster watches: n1 is named by server and port, n2 by its server.
type rostered struct {
	*testPlane
	roster *healthcheck.Roster
	lights [2]*light
	agent  func(string, healthcheck.AgentReport)
}

func newRostered(t *testing.T, fam family, start healthcheck.SlowStart, change func(*Service), edit ...func(*healthcheck.Setup)) *rostered {
	p := newPlane(t, fam, func(c *Config, s *Service) {
		c.Addrs = []netip.Addr{fam.router}
		pool, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin, StartDown: true, IDs: new(steering.IDs)},
			steering.Node{Name: "s1/web", Addr: ap(fam.n1, 8080)}, steering.Node{Name: "s2", Addr: ap(fam.n2, 8080)})
		require.NoError(t, err)
		s.Pool, s.Mode = pool, 4
		if change != nil {
			change(s)
		}
	})
	r := &rostered{testPlane: p, lights: [2]*light{{}, {}}}
	onPort, onAgent, err := p.ApplyRoster(start)
	require.NoError(t, err)
	r.agent = onAgent
	r.roster, err = healthcheck.NewRoster(&healthcheck.RosterConfig{OnPort: onPort, OnAgent: onAgent, Monitor: healthcheck.Config{Jitter: -1, Seed: 1}})
	require.NoError(t, err)
	check := healthcheck.Check{Interval: time.Second, Fall: 1}
	setup := healthcheck.Setup{Servers: []healthcheck.Server{
		{Name: "s1", Addr: fam.n1, Ports: []healthcheck.Port{{Name: "web", Port: 8080, L4: r.lights[0], Check: check}, {Port: 9090}}},
		{Name: "s2", Addr: fam.n2, Ports: []healthcheck.Port{{Port: 8080, L4: r.lights[1], Check: check}, {Port: 9090}}},
	}}
	for _, f := range edit {
		f(&setup)
	}
	require.NoError(t, r.roster.Set(setup))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.roster.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	r.wait(0)
	return r
}

// wait lets time pass, and the plane take note.
func (r *rostered) wait(d time.Duration) {
	for end := time.Now().Add(d + 3*time.Second); time.Now().Before(end); {
		time.Sleep(time.Second)
		synctest.Wait()
		r.now = time.Now()
		r.Step(r.now)
	}
}

func (r *rostered) want(t *testing.T, from uint16, first, second int) {
	t.Helper()
	a, b := r.shares(from, first+second)
	require.Equal(t, [2]int{first, second}, [2]int{a, b})
}

func TestRosterDecidesAboutNodes(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			r := newRostered(t, fam, healthcheck.SlowStart{}, nil)
			r.want(t, 1000, 5, 5)
			r.lights[0].off.Store(true)
			r.wait(2 * time.Second)
			r.want(t, 2000, 0, 10)
			r.lights[0].off.Store(false)
			r.wait(10 * time.Second)
			r.want(t, 3000, 5, 5)

			// Draining takes nothing new and keeps what there is; out of service loses it.
			client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
			_, out := r.send(tcp(client, vip, "S", 1, 0, ""))
			f, _ := parseFlow(out)
			server := map[netip.Addr]string{fam.n1: "s1", fam.n2: "s2"}[f.Dst.Addr()]
			left := map[string][2]int{"s1": {0, 10}, "s2": {10, 0}}[server]
			require.NoError(t, r.roster.SetServerAdmin(server, healthcheck.Draining))
			r.wait(0)
			r.want(t, 5000, left[0], left[1])
			v, out := r.send(tcp(client, vip, "A", 2, 1, "x"))
			require.Equal(t, Forwarded, v)
			g, _ := parseFlow(out)
			require.Equal(t, f.Dst, g.Dst)
			require.NoError(t, r.roster.SetServerAdmin(server, healthcheck.OutOfService))
			r.wait(0)
			v, _ = r.send(tcp(client, vip, "A", 2, 1, "x"))
			require.Equal(t, Answered, v) // a reset
			require.NoError(t, r.roster.SetServerAdmin(server, healthcheck.InService))
			r.wait(0)
			r.want(t, 6000, 5, 5)

			// The agent's weight and limit.
			r.agent("s1", healthcheck.AgentReport{Weight: 25, HasWeight: true})
			for id, st := range r.svc.Pool.All() {
				if st.Node.Name == "s1/web" {
					require.Equal(t, 25, st.Advice.Percent, id)
				}
			}
			r.agent("s1", healthcheck.AgentReport{Weight: 0, HasWeight: true})
			r.want(t, 7000, 0, 10)
			r.agent("s1", healthcheck.AgentReport{Weight: 100, HasWeight: true, MaxConn: 1, HasMaxConn: true})
			a, b := r.shares(8000, 10)
			require.LessOrEqual(t, a, 1)
			require.GreaterOrEqual(t, b, 9)
		})
	})
}

// TestServerSlowStart has a server that came back take ten sessions for each second at first.
func TestServerSlowStart(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			r := newRostered(t, fam, healthcheck.SlowStart{Mode: healthcheck.ServerSlowStart}, nil)
			r.lights[0].off.Store(true)
			r.wait(2 * time.Second)
			r.lights[0].off.Store(false)
			advice := func() steering.Advice {
				r.Step(time.Now())
				for _, st := range r.svc.Pool.All() {
					if st.Node.Name == "s1/web" {
						return st.Advice
					}
				}
				return steering.Advice{}
			}
			for st, _ := r.roster.Port("s1", "web"); !st.Usable; st, _ = r.roster.Port("s1", "web") {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			require.Equal(t, steering.Draining, advice().Admin) // nothing in its first second
			st, _ := r.roster.Port("s1", "web")
			for seconds, limit := range map[int]int{1: 10, 5: 50, 20: 200, 21: 420, 29: 580} {
				r.mu.Lock()
				a := *r.Plane.roster.nodes["s1/web"]
				id, _ := r.svc.Pool.ID("s1/web")
				for _, q := range r.pools {
					r.advise(st.RampFrom.Add(time.Duration(seconds)*time.Second), &a, q, id)
				}
				r.mu.Unlock()
				got, _ := r.svc.Pool.Status(id)
				require.Equal(t, limit, got.Advice.MaxSessions, seconds)
			}
			r.wait(31 * time.Second)
			require.Equal(t, steering.Advice{}, advice())
		})
	})
}

func TestMinNodes(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			r := newRostered(t, fam, healthcheck.SlowStart{}, func(s *Service) { s.MinNodes = 2 })
			r.want(t, 1000, 5, 5)
			client, vip := ap(fam.client, 2000), ap(fam.vip, 80)
			r.send(tcp(client, vip, "S", 1, 0, ""))
			r.want(t, 2001, 5, 5)
			r.lights[1].off.Store(true)
			r.wait(2 * time.Second)
			v, _ := r.send(tcp(ap(fam.client, 3000), vip, "S", 1, 0, ""))
			require.Equal(t, Dropped, v)
			require.Equal(t, uint64(1), maps.Collect(r.Drops())[TooFewNodes])
		})
	})
}

func TestApplyRosterRefuses(t *testing.T) {
	p := newPlane(t, families2()[0])
	_, _, err := p.ApplyRoster(healthcheck.SlowStart{Mode: 9})
	require.ErrorContains(t, err, "SlowStart.Mode 9")
}

// A slow start ends, although its node was removed meanwhile: what changes nothing any more is not published each second.
func TestSlowStartOfRemovedNodeEnds(t *testing.T) {
	p := newPlane(t, families2()[0])
	onPort, _, err := p.ApplyRoster(healthcheck.SlowStart{Mode: healthcheck.LinearSlowStart, Window: time.Minute})
	require.NoError(t, err)
	onPort(healthcheck.PortTransition{Status: healthcheck.PortStatus{
		Server: "n1", Port: "web", Target: ap(p.fam.n1, 8080), State: healthcheck.Enabled, Usable: true, KeepsSessions: true, RampFrom: p.now,
	}})
	step := func() bool {
		was := p.snap.Load()
		p.now = p.now.Add(10 * time.Second)
		p.Step(p.now)
		return p.snap.Load() != was
	}
	require.True(t, step(), "under way")
	require.NoError(t, p.SetNodes(p.pool, steering.Node{Name: "n2", Addr: ap(p.fam.n2, 8080)}))
	for range 7 {
		step()
	}
	require.False(t, step())
}
