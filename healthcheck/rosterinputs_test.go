package healthcheck_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
)

func TestRosterPassive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := new(fake)
		s := plain("a", s1, p)
		s.Ports[0].Check.NoKeepalive = true
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{s}})
		time.Sleep(time.Minute)
		g.want("a", "80", healthcheck.Active, true)
		require.Equal(t, int64(1), p.n.Load()) // no keepalive
		syns := g.SYNs("a", "80")
		syn := func(n int) {
			for range n {
				if syns.SYN() {
					require.NoError(t, g.FailPassive("a", "80"))
				}
			}
		}
		syn(20)
		syns.SYNACK()
		syn(20)
		g.want("a", "80", healthcheck.Active, true)
		p.down()
		syn(1)
		g.want("a", "80", healthcheck.Failed, false)
		require.ErrorIs(t, g.port("a", "80").Err, healthcheck.ErrUnanswered)
		require.Equal(t, 21, g.port("a", "80").Unanswered)
		time.Sleep(time.Minute)
		g.want("a", "80", healthcheck.Failed, false)
		require.ErrorIs(t, g.port("a", "80").Err, errRefused)
		p.up()
		time.Sleep(10 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
		require.Zero(t, syns.Unanswered())
		syn(21)
		g.want("a", "80", healthcheck.Failed, false)
		time.Sleep(2 * time.Second)
		g.want("a", "80", healthcheck.Active, true) // probed at once, not after an interval
		require.Nil(t, g.SYNs("a", "81"))
		require.ErrorIs(t, g.FailPassive("a", "81"), healthcheck.ErrUnknownPort)
	})
}

// What one source of health has to say is not masked by another: everything that
// the active checks fail is down, however much the passive check failed already.
func TestRosterSourcesDoNotMaskEachOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var setup healthcheck.Setup
		fakes := make([]*fake, 10)
		for i := range fakes {
			fakes[i] = new(fake)
			setup.Servers = append(setup.Servers, plain(fmt.Sprint(i), s1, fakes[i]))
		}
		g := newRig(t, setup)
		time.Sleep(6 * time.Second)
		for i := range 5 {
			require.NoError(t, g.FailPassive(fmt.Sprint(i), "80"))
		}
		for _, f := range fakes {
			f.down()
		}
		time.Sleep(10 * time.Second)
		for st := range g.Ports() {
			require.Equal(t, healthcheck.Failed, st.State)
		}
	})
}

func TestRosterAgent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, a := new(fake), new(fake)
		s := plain("a", s1, p)
		s.Agent = a
		a.agent("up 100%")
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{s}})
		time.Sleep(10 * time.Second)
		g.want("a", "80", healthcheck.Active, true)

		// "up" does not revive what the active check fails.
		p.down()
		time.Sleep(time.Minute)
		g.want("a", "80", healthcheck.Failed, false)
		p.up()
		time.Sleep(10 * time.Second)
		g.want("a", "80", healthcheck.Active, true)

		a.agent("down # disk full")
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Failed, false)
		require.EqualError(t, g.port("a", "80").Err, "agent says down: disk full")
		// An agent that cannot be reached says nothing.
		a.down()
		time.Sleep(time.Minute)
		g.want("a", "80", healthcheck.Failed, false)
		a.agent("up")
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Active, true)

		a.agent("drain 50%")
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Graceful, false)
		require.True(t, g.port("a", "80").KeepsSessions)
		st, _ := g.Server("a")
		require.Equal(t, 50, st.Agent.Weight)
		require.Equal(t, healthcheck.Graceful, st.State)
		a.agent("maint")
		time.Sleep(6 * time.Second)
		st2 := g.port("a", "80")
		require.False(t, st2.Usable)
		require.False(t, st2.KeepsSessions)
		require.Equal(t, healthcheck.OutOfService, st2.Admin)
		a.agent("ready")
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
		require.False(t, g.port("a", "80").RampFrom.IsZero()) // after maintenance
		require.Contains(t, g.take(), "a agent 50%")
		// The administrator's word stays.
		require.NoError(t, g.SetServerAdmin("a", healthcheck.OutOfService))
		time.Sleep(10 * time.Second)
		g.want("a", "80", healthcheck.Active, false)
	})
}

// The boolean policy may say otherwise: it can have an agent as an element.
func TestRosterAgentInPolicy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		web, a := new(fake), new(fake)
		web.down()
		a.agent("up")
		s := healthcheck.Server{Name: "a", Addr: s1, Ports: []healthcheck.Port{{Port: 80, Policy: "any"}}}
		g := newRig(t, healthcheck.Setup{
			Elements: []healthcheck.Check{{ID: "web", Target: web1, Prober: web}, {ID: "agent", Target: web1, Prober: a}},
			Policies: []healthcheck.Policy{{Name: "any", Expr: expr("web OR agent")}},
			Servers:  []healthcheck.Server{s},
		})
		time.Sleep(time.Minute)
		g.want("a", "80", healthcheck.Active, true)
	})
}

func TestRosterGraceful(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := new(fake)
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{plain("a", s1, p)}})
		require.NoError(t, g.SetPortAdmin("a", "80", healthcheck.Draining))
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Graceful, false) // comes up drained
		require.NoError(t, g.SetPortAdmin("a", "80", healthcheck.InService))
		g.want("a", "80", healthcheck.Active, true)
		require.NoError(t, g.SetServerAdmin("a", healthcheck.Draining))
		g.want("a", "80", healthcheck.Graceful, false)
		require.True(t, g.port("a", "80").KeepsSessions)
		p.down()
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Failed, false)
		p.up()
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Graceful, false)
		require.NoError(t, g.SetServerAdmin("a", healthcheck.InService))
		g.want("a", "80", healthcheck.Active, true)
		require.ErrorIs(t, g.SetServerAdmin("b", healthcheck.InService), healthcheck.ErrUnknownPort)
		require.ErrorIs(t, g.SetPortAdmin("a", "x", healthcheck.InService), healthcheck.ErrUnknownPort)
	})
}

func TestRosterUnbound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		setup := healthcheck.Setup{Servers: []healthcheck.Server{plain("a", s1, new(fake))}}
		setup.Servers[0].Ports[0].Unbound = true
		g := newRig(t, setup)
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Unbound, false)
		setup.Servers[0].Ports[0].Unbound = false
		require.NoError(t, g.Set(setup))
		g.want("a", "80", healthcheck.Active, true) // its check has passed
		setup.Servers[0].Ports[0].Unbound = true
		require.NoError(t, g.Set(setup))
		g.want("a", "80", healthcheck.Unbound, false)
	})
}

func TestRosterSetKeepsState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := new(fake)
		setup := healthcheck.Setup{Servers: []healthcheck.Server{plain("a", s1, p), plain("b", s2, new(fake))}}
		g := newRig(t, setup)
		time.Sleep(6 * time.Second)
		before := g.port("a", "80")
		g.take()
		require.NoError(t, g.Set(setup)) // the same again moves nothing
		require.Empty(t, g.take())
		setup.Servers = setup.Servers[:1]
		setup.Servers[0].Ports = append(setup.Servers[0].Ports, healthcheck.Port{Name: "alt", Port: 8080, L4: new(fake)})
		require.NoError(t, g.Set(setup))
		require.Equal(t, before, g.port("a", "80"))
		_, ok := g.Port("b", "80")
		require.False(t, ok)
		time.Sleep(6 * time.Second)
		g.want("a", "alt", healthcheck.Active, true)
		n := 0
		for range g.Servers() {
			n++
		}
		require.Equal(t, 1, n)
	})
}

func TestRosterErrorsAllAtOnce(t *testing.T) {
	t.Parallel()
	r, err := healthcheck.NewRoster(nil)
	require.NoError(t, err)
	err = r.Set(healthcheck.Setup{
		Elements: []healthcheck.Check{{ID: "e", Target: web1, Prober: new(fake)}, {ID: "e", Target: web1}},
		Policies: []healthcheck.Policy{{Name: "p", Expr: expr("p OR nobody")}},
		Servers: []healthcheck.Server{
			{Name: "a", Addr: s1}, {Name: "a", Ports: []healthcheck.Port{{Port: 80}, {Port: 80, Name: "80"}, {}, {Port: 81, Element: "x", Policy: "y", Reassign: 1<<20 + 1, Check: healthcheck.Check{Interval: 1}}}},
			{}, {Name: "r", Addr: s1, Ports: []healthcheck.Port{{Port: 1645, L7: new(fake)}, {Port: 1812, L7: new(fake)}}},
		},
	})
	for _, want := range []string{
		`element "e": ID used twice`, "Prober <nil>", "p → p", "p → nobody", `server "a": Name used twice`, `server "a": Addr invalid IP`,
		`port "80": Name used twice`, `port "0": Port 0`, `Element "x"`, `Policy "y"`, "Reassign: healthcheck: reassign threshold 1048577", "Interval 1ns",
		`server "": Name ""`, "RADIUS on one of the two",
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = healthcheck.NewRoster(&healthcheck.RosterConfig{Monitor: healthcheck.Config{Jitter: 2}})
	require.ErrorContains(t, err, "Jitter 2")
	_, err = r.Explain("a", "80")
	require.ErrorIs(t, err, healthcheck.ErrUnknownPort)
}

func TestJSONViews(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := new(fake)
		p.down()
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{plain("a", s1, p)}})
		time.Sleep(6 * time.Second)
		view := func(v any) map[string]any {
			b, err := json.Marshal(v)
			require.NoError(t, err)
			var m map[string]any
			require.NoError(t, json.Unmarshal(b, &m))
			return m
		}
		m := view(g.port("a", "80"))
		require.Equal(t, "failed", m["state"])
		require.Equal(t, "192.0.2.1:80", m["target"])
		require.Equal(t, "tcp: connect: connection refused", m["err"])
		require.Equal(t, "in-service", m["admin"])
		st, ok := g.Monitor().Status("port:a/80")
		require.True(t, ok)
		m = view(st)
		require.Equal(t, "fail", m["verdict"])
		require.Equal(t, "tcp: connect: connection refused", m["err"])
		require.NotContains(t, m, "holdUntil")
		srv, _ := g.Server("a")
		require.Equal(t, "active", view(srv)["state"])
		h := g.Monitor().History("port:a/80")
		require.Equal(t, "fail", view(h[0])["verdict"])
		require.Error(t, errors.Join(st.Err))
	})
}

// The passive check fails a port by whatever it is decided otherwise; it comes
// back when every element it depends on has been probed anew and is still up.
func TestRosterPassiveWithElements(t *testing.T) {
	for _, port := range []healthcheck.Port{{Port: 80, Element: "web"}, {Port: 80, Policy: "both"}, {Port: 80, VirtualPolicy: "both"}} {
		t.Run(port.Element+port.Policy+port.VirtualPolicy, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				web, db := new(fake), new(fake)
				other := healthcheck.Port{Port: 81, Element: "web"}
				g := newRig(t, healthcheck.Setup{
					Elements: []healthcheck.Check{{ID: "web", Target: web1, Prober: web, Interval: time.Hour, FastInterval: time.Second}, {ID: "db", Target: web1, Prober: db, Interval: time.Hour}},
					Policies: []healthcheck.Policy{{Name: "both", Expr: expr("web AND db")}},
					Servers:  []healthcheck.Server{{Name: "a", Addr: s1, Ports: []healthcheck.Port{port, other}}},
				})
				time.Sleep(time.Hour + time.Minute)
				g.want("a", "80", healthcheck.Active, true)
				require.NoError(t, g.FailPassive("a", "80"))
				g.want("a", "80", healthcheck.Failed, false)
				g.want("a", "81", healthcheck.Active, true) // the element itself is not failed
				time.Sleep(time.Second)
				g.want("a", "80", healthcheck.Active, true)
				require.False(t, g.port("a", "80").RampFrom.IsZero())

				web.set(healthcheck.Undecided("tcp", web1, errors.New("no descriptors")))
				require.NoError(t, g.FailPassive("a", "80"))
				time.Sleep(time.Minute)
				g.want("a", "80", healthcheck.Failed, false) // that says nothing about it
				web.up()
				require.NoError(t, g.Monitor().Trigger("element:web"))
				time.Sleep(time.Second)
				g.want("a", "80", healthcheck.Active, true)
			})
		})
	}
}
