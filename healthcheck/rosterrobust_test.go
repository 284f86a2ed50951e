package healthcheck_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
)

// A server without an echo check keeps its shutdown over a new configuration, and
// says so when it comes up since its echo check was taken away.
func TestRosterServerWithoutEcho(t *testing.T) {
	bubble(t, func(t *testing.T) {
		setup := healthcheck.Setup{Servers: []healthcheck.Server{plain("a", s1, new(fake))}}
		g := newRig(t, setup)
		time.Sleep(6 * time.Second)
		state := func() healthcheck.State { st, _ := g.Server("a"); return st.State }
		require.NoError(t, g.SetServerAdmin("a", healthcheck.Draining))
		require.Equal(t, healthcheck.Graceful, state())
		g.take()
		require.NoError(t, g.Set(setup))
		require.Equal(t, healthcheck.Graceful, state())
		require.Empty(t, g.take())

		echo := new(fake)
		echo.down()
		setup.Servers[0].Echo = echo
		require.NoError(t, g.Set(setup))
		time.Sleep(time.Minute)
		require.Equal(t, healthcheck.Failed, state())
		g.take()
		setup.Servers[0].Echo = nil
		require.NoError(t, g.Set(setup))
		require.Equal(t, healthcheck.Graceful, state()) // it is still to be drained
		require.Equal(t, []string{"a failed→active draining", "a active→graceful draining", "a/80 failed→graceful usable=false"}, g.take())
	})
}

// A server whose echo check is taken away has nothing to be suspected of.
func TestRosterEchoTakenFromSuspect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		echo := new(fake)
		setup := healthcheck.Setup{Servers: []healthcheck.Server{plain("a", s1, new(fake))}}
		setup.Servers[0].Echo = echo
		g := newRig(t, setup)
		time.Sleep(6 * time.Second)
		echo.down()
		time.Sleep(3 * time.Second)
		st, _ := g.Server("a")
		require.Equal(t, healthcheck.Suspect, st.State)
		require.Error(t, st.Err)
		g.take()
		setup.Servers[0].Echo = nil
		require.NoError(t, g.Set(setup))
		st, _ = g.Server("a")
		require.Equal(t, healthcheck.Active, st.State)
		require.NoError(t, st.Err)
		require.Equal(t, []string{"a suspect→active in-service"}, g.take())
	})
}

func TestRosterRefusesUnknownAdmin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{plain("a", s1, new(fake))}})
		require.ErrorContains(t, g.SetServerAdmin("a", 7), "admin 7: want one of in-service")
		require.ErrorContains(t, g.SetPortAdmin("a", "80", 7), "admin 7: want one of in-service")
		require.Equal(t, healthcheck.InService, g.port("a", "80").Admin)
	})
}

// What is still to be told of a check that was removed is not taken for news of
// one that was added under the same name.
func TestRosterElementRemovedAndAdded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		setup := func(attached bool, p healthcheck.Prober) healthcheck.Setup {
			port := healthcheck.Port{Port: 80}
			if attached {
				port.Element = "e"
			}
			return healthcheck.Setup{
				Elements: []healthcheck.Check{{ID: "e", Target: web1, Prober: p, Interval: time.Hour}},
				Servers:  []healthcheck.Server{{Name: "a", Addr: s1, Ports: []healthcheck.Port{port}}},
			}
		}
		dead := new(fake)
		dead.set(healthcheck.Result{Verdict: healthcheck.Fail, Final: true, Err: errRefused})
		blocked := make(chan struct{})
		r, err := healthcheck.NewRoster(&healthcheck.RosterConfig{Monitor: healthcheck.Config{OnResult: func(healthcheck.Check, healthcheck.Result, healthcheck.Status) { <-blocked }}})
		require.NoError(t, err)
		require.NoError(t, r.Set(setup(true, dead)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		require.NoError(t, r.Monitor().Trigger("element:e"))
		time.Sleep(time.Second) // it failed, and nobody has been told
		st, _ := r.Monitor().Status("element:e")
		require.Equal(t, healthcheck.Failed, st.State)
		never := healthcheck.ProberFunc(func(context.Context, netip.AddrPort) healthcheck.Result { return healthcheck.Result{} })
		require.NoError(t, r.Set(setup(false, never)))
		require.NoError(t, r.Set(setup(true, never)))
		close(blocked)
		time.Sleep(2 * time.Hour)
		st, _ = r.Monitor().Status("element:e")
		require.Equal(t, healthcheck.Enabled, st.State)
		p, _ := r.Port("a", "80")
		require.Equal(t, healthcheck.Active, p.State) // as its server was when the element was not there
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

// What could not be asked, for a reason on this machine, is said of a port and a server that have not been up, with the cause.
func TestRosterTellsLocalFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		local := func(what string) healthcheck.Prober {
			return healthcheck.ProberFunc(func(_ context.Context, a netip.AddrPort) healthcheck.Result {
				return healthcheck.Undecided("test", a, errors.New(what))
			})
		}
		setup := healthcheck.Setup{
			Elements: []healthcheck.Check{{ID: "e", Target: netip.AddrPortFrom(s2, 80), Prober: local("no descriptors")}},
			Servers:  []healthcheck.Server{plain("a", s1, local("no route")), plain("b", s2, new(fake)), plain("c", s2, nil)},
		}
		setup.Servers[1].Echo = local("no permission")
		setup.Servers[2].Ports = []healthcheck.Port{{Port: 80, Element: "e"}}
		g := newRig(t, setup)
		time.Sleep(20 * time.Second)
		for server, want := range map[string]string{"a": "local: no route", "b": "local: no permission", "c": "local: no descriptors"} {
			st := g.port(server, "80")
			require.False(t, st.Usable)
			require.ErrorIs(t, st.Err, healthcheck.ErrLocal)
			require.ErrorContains(t, st.Err, want)
			text, err := g.Explain(server, "80")
			require.NoError(t, err)
			require.Contains(t, text, want)
		}
		st, _ := g.Server("b")
		require.ErrorContains(t, st.Err, "local: no permission")
		// Of what is up it is not said: it says nothing.
		ok := new(fake)
		setup.Servers = setup.Servers[:1]
		setup.Servers[0] = plain("a", s1, ok)
		require.NoError(t, g.Set(setup))
		time.Sleep(20 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
		require.NoError(t, g.port("a", "80").Err)
	})
}

// What is still to be told of a server's former address, as a callback took its time, does not fell it at its new one.
func TestRosterServerMovedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		started := time.Now()
		byAddr := healthcheck.ProberFunc(func(_ context.Context, a netip.AddrPort) healthcheck.Result {
			if a.Addr() == s1 && time.Since(started) > 10*time.Second {
				return failing()
			}
			return healthcheck.Passed("")
		})
		agent := healthcheck.ProberFunc(func(_ context.Context, a netip.AddrPort) healthcheck.Result {
			if a.Addr() == s1 && time.Since(started) > 10*time.Second {
				return healthcheck.AgentReport{Verdict: healthcheck.Fail}.Result()
			}
			return healthcheck.AgentReport{Verdict: healthcheck.Pass}.Result()
		})
		setup := healthcheck.Setup{Servers: []healthcheck.Server{{Name: "a", Addr: s1, Echo: byAddr, Agent: agent, Ports: []healthcheck.Port{{Port: 80}}}}}
		block, entered := make(chan struct{}), make(chan struct{})
		var path []string
		once := sync.OnceFunc(func() { close(entered); <-block })
		r, err := healthcheck.NewRoster(&healthcheck.RosterConfig{
			OnPort: func(x healthcheck.PortTransition) { path = append(path, x.To.String()) },
			OnServer: func(x healthcheck.ServerTransition) {
				if path = append(path, "server "+x.To.String()); x.To == healthcheck.Suspect {
					once()
				}
			},
			Monitor: healthcheck.Config{Jitter: -1, Seed: 1},
		})
		require.NoError(t, err)
		require.NoError(t, r.Set(setup))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		<-entered
		time.Sleep(time.Minute)
		setup.Servers[0].Addr = s2
		require.NoError(t, r.Set(setup))
		close(block)
		time.Sleep(time.Minute)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Equal(t, "server active", path[len(path)-1])
		require.NotContains(t, path, "server failed")
		require.NotContains(t, path, "failed")
	})
}
