package healthcheck_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
)

// fake is a prober whose answer can be set, and which counts.
type fake struct {
	n      atomic.Int64
	result atomic.Pointer[healthcheck.Result]
}

func (f *fake) Probe(context.Context, netip.AddrPort) healthcheck.Result {
	f.n.Add(1)
	if r := f.result.Load(); r != nil {
		return *r
	}
	return healthcheck.Passed("")
}

func (f *fake) set(r healthcheck.Result) { f.result.Store(&r) }
func (f *fake) up()                      { f.set(healthcheck.Passed("")) }
func (f *fake) down()                    { f.set(failing()) }

func (f *fake) agent(line string) {
	a, err := healthcheck.ParseAgent(line)
	if err != nil {
		panic(err)
	}
	f.set(a.Result())
}

func expr(s string) healthcheck.Expr {
	e, err := healthcheck.ParseExpr(s)
	if err != nil {
		panic(err)
	}
	return e
}

// log keeps what a Roster tells, as lines.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *log) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.lines
	l.lines = nil
	return out
}

type rig struct {
	*healthcheck.Roster
	t *testing.T
	log
}

func newRig(t *testing.T, setup healthcheck.Setup) *rig {
	g := &rig{t: t}
	r, err := healthcheck.NewRoster(&healthcheck.RosterConfig{
		OnPort: func(x healthcheck.PortTransition) {
			g.add("%s/%s %v→%v usable=%v", x.Status.Server, x.Status.Port, x.From, x.To, x.Status.Usable)
		},
		OnServer: func(x healthcheck.ServerTransition) {
			g.add("%s %v→%v %v", x.Status.Server, x.From, x.To, x.Status.Admin)
		},
		OnVirtual: func(x healthcheck.VirtualStatus) { g.add("%s answers=%v", x.Name, x.Answers) },
		OnAgent:   func(server string, sum healthcheck.AgentReport) { g.add("%s agent %d%%", server, sum.Weight) },
		Monitor:   healthcheck.Config{Jitter: -1, Seed: 1},
	})
	require.NoError(t, err)
	require.NoError(t, r.Set(setup))
	g.Roster = r
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.ErrorIs(t, <-done, context.Canceled) })
	return g
}

func (g *rig) port(server, port string) healthcheck.PortStatus {
	st, ok := g.Port(server, port)
	require.True(g.t, ok)
	return st
}

func (g *rig) want(server, port string, s healthcheck.State, usable bool) {
	g.t.Helper()
	st := g.port(server, port)
	require.Equal(g.t, s, st.State)
	require.Equal(g.t, usable, st.Usable)
}

var s1, s2 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::2")

func plain(name string, a netip.Addr, p healthcheck.Prober) healthcheck.Server {
	return healthcheck.Server{Name: name, Addr: a, Ports: []healthcheck.Port{{Port: 80, L4: p, Check: healthcheck.Check{Fall: 1}}}}
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, f)
}

func TestRosterWithoutChecksIsUsable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{{Name: "a", Addr: s1, Ports: []healthcheck.Port{{Port: 80}}}}})
		g.want("a", "80", healthcheck.Active, true)
		require.Equal(t, []string{"a/80 enabled→active usable=true"}, g.take())
		require.Zero(t, g.Monitor().Len())
		require.Zero(t, g.port("a", "80").RampFrom)
	})
}

func TestRosterUnusableUntilFirstPass(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := new(fake)
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{plain("a", s1, p)}})
		g.want("a", "80", healthcheck.Testing, false)
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
		require.Zero(t, g.port("a", "80").RampFrom) // no slow start at the start of the process
		p.down()
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Failed, false)
		p.up()
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
		require.False(t, g.port("a", "80").RampFrom.IsZero())
		require.Equal(t, []string{"a/80 enabled→testing usable=false", "a/80 testing→active usable=true", "a/80 active→failed usable=false", "a/80 failed→active usable=true"}, g.take())
	})
}

// A policy that is defined and not attached sends nothing.
func TestRosterPolicyInertUntilAttached(t *testing.T) {
	bubble(t, func(t *testing.T) {
		web, db := new(fake), new(fake)
		setup := healthcheck.Setup{
			Elements: []healthcheck.Check{
				{ID: "web", Target: netip.AddrPortFrom(s1, 80), Prober: web},
				{ID: "db", Target: netip.AddrPortFrom(s2, 3306), Prober: db},
			},
			Policies: []healthcheck.Policy{{Name: "both", Expr: expr("web AND db")}},
			Servers:  []healthcheck.Server{plain("a", s1, new(fake)), plain("b", s2, new(fake))},
		}
		g := newRig(t, setup)
		time.Sleep(time.Minute)
		require.Zero(t, web.n.Load())
		require.Zero(t, db.n.Load())

		setup.Servers[0].Ports[0].Policy, setup.Servers[1].Ports[0].Policy = "both", "both"
		require.NoError(t, g.Set(setup))
		time.Sleep(time.Minute)
		g.want("a", "80", healthcheck.Active, true)
		g.want("b", "80", healthcheck.Active, true)
		// One probe of an element serves all that use it.
		require.InDelta(t, 12, web.n.Load(), 1)
		require.InDelta(t, 12, db.n.Load(), 1)

		// AND: one fails, and the ports on all servers the policy checks go down.
		db.down()
		time.Sleep(20 * time.Second)
		g.want("a", "80", healthcheck.Failed, false)
		g.want("b", "80", healthcheck.Failed, false)
		require.EqualError(t, g.port("a", "80").Err, "both is down: db down [web AND db]")
		why, err := g.Explain("a", "80")
		require.NoError(t, err)
		require.Equal(t, "a/80 is failed by policy both; both is down: db down [web AND db]", why)

		setup.Servers[0].Ports[0].Policy, setup.Servers[1].Ports[0].Policy = "", ""
		require.NoError(t, g.Set(setup))
		n := web.n.Load()
		time.Sleep(time.Minute)
		require.Equal(t, n, web.n.Load())
		g.want("a", "80", healthcheck.Active, true)
	})
}

func TestRosterPrecedence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fakes := map[string]*fake{}
		var elements []healthcheck.Check
		for _, n := range []string{"e", "p", "v"} {
			fakes[n] = new(fake)
			elements = append(elements, healthcheck.Check{ID: n, Target: web1, Prober: fakes[n]})
		}
		own := new(fake)
		fakes["own"] = own
		setup := healthcheck.Setup{
			Elements: elements,
			Policies: []healthcheck.Policy{{Name: "real", Expr: expr("p")}, {Name: "virtual", Expr: expr("v")}},
			Servers: []healthcheck.Server{{Name: "a", Addr: s1, Ports: []healthcheck.Port{
				{Port: 80, L4: own, Element: "e", Policy: "real", VirtualPolicy: "virtual"},
			}}},
		}
		g := newRig(t, setup)
		port := &setup.Servers[0].Ports[0]
		for _, step := range []struct {
			name, by string
			change   func()
		}{
			{"e", "element e", func() {}},
			{"p", "policy real", func() { port.Element = "" }},
			{"v", "policy virtual of the virtual server", func() { port.Policy = "" }},
			{"own", "its own check", func() { port.VirtualPolicy = "" }},
			{"", "its server", func() { port.L4 = nil }},
		} {
			step.change()
			require.NoError(t, g.Set(setup))
			before := map[string]int64{}
			for n, f := range fakes {
				before[n] = f.n.Load()
			}
			time.Sleep(30 * time.Second)
			require.Equal(t, step.by, g.port("a", "80").By)
			for n, f := range fakes {
				require.Equal(t, n == step.name, f.n.Load() > before[n], "%s while %s decides", n, step.name)
			}
		}
	})
}

// Hold-down of 120 s: disabling and enabling after 10 s does not shorten it.
func TestRosterHoldDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := new(fake)
		s := plain("a", s1, p)
		s.Ports[0].Check.HoldDown = 120 * time.Second
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{s}})
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
		p.down()
		time.Sleep(5 * time.Second)
		g.want("a", "80", healthcheck.Failed, false)
		p.up()
		for g.port("a", "80").HoldUntil.IsZero() {
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		for _, admin := range []healthcheck.Admin{healthcheck.OutOfService, healthcheck.InService} {
			require.NoError(t, g.SetPortAdmin("a", "80", admin))
			require.NoError(t, g.SetServerAdmin("a", admin))
			g.want("a", "80", healthcheck.Failed, false)
			time.Sleep(time.Second)
		}
		until := g.port("a", "80").HoldUntil
		why, _ := g.Explain("a", "80")
		require.Contains(t, why, "held down for another 1m48s")
		time.Sleep(time.Until(until) - time.Millisecond)
		g.want("a", "80", healthcheck.Failed, false)
		time.Sleep(time.Second)
		g.want("a", "80", healthcheck.Active, true)

		// A failure in between starts it anew.
		p.down()
		time.Sleep(6 * time.Second)
		p.up()
		time.Sleep(100 * time.Second)
		p.down()
		time.Sleep(6 * time.Second)
		p.up()
		time.Sleep(100 * time.Second)
		g.want("a", "80", healthcheck.Failed, false)
		time.Sleep(26 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
	})
}

func TestRosterServerStates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		echo, p := new(fake), new(fake)
		unresolved := healthcheck.Failure("icmp: send", web1, fmt.Errorf("%w", healthcheck.ErrUnresolved))
		echo.set(unresolved)
		s := plain("a", s1, p)
		s.Echo = echo
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{s}})
		state := func() healthcheck.State { st, _ := g.Server("a"); return st.State }
		time.Sleep(time.Minute)
		require.Equal(t, healthcheck.Enabled, state()) // does not resolve
		g.want("a", "80", healthcheck.Enabled, false)
		echo.down() // resolves, and does not answer: for ever in testing
		time.Sleep(time.Hour)
		require.Equal(t, healthcheck.Testing, state())
		g.want("a", "80", healthcheck.Enabled, false) // though its own check passes
		echo.up()
		time.Sleep(3 * time.Second)
		require.Equal(t, healthcheck.Active, state())
		g.want("a", "80", healthcheck.Active, true)
		require.Equal(t, []string{"a enabled→testing in-service", "a testing→active in-service", "a/80 enabled→active usable=true"}, g.take())

		echo.down()
		time.Sleep(2500 * time.Millisecond)
		require.Equal(t, healthcheck.Suspect, state())
		g.want("a", "80", healthcheck.Active, true)
		time.Sleep(10 * time.Second)
		require.Equal(t, healthcheck.Failed, state())
		g.want("a", "80", healthcheck.Failed, false)
		require.ErrorIs(t, g.port("a", "80").Err, errRefused)
		// Traffic does not revive it.
		g.Traffic("a").Heard()
		time.Sleep(3 * time.Second)
		require.Equal(t, healthcheck.Failed, state())
		echo.up()
		time.Sleep(3 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
		st, _ := g.Server("a")
		require.False(t, st.RampFrom.IsZero())
	})
}

func TestRosterSuspectsSilence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		echo := new(fake)
		s := healthcheck.Server{Name: "a", Addr: s1, Echo: echo, EchoCheck: healthcheck.Check{Interval: time.Minute, FastInterval: time.Second}, Ports: []healthcheck.Port{{Port: 80}}}
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{s}})
		state := func() healthcheck.State { synctest.Wait(); st, _ := g.Server("a"); return st.State }
		traffic := func(d time.Duration, heard bool) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				g.Traffic("a").Sent(time.Now())
				if heard {
					g.Traffic("a").Heard()
				}
			}
		}
		time.Sleep(time.Minute + time.Second)
		require.Equal(t, healthcheck.Active, state())
		traffic(10*time.Second, true)
		require.Equal(t, healthcheck.Active, state())
		g.take()

		// One packet without answer is no silence.
		g.Traffic("a").Sent(time.Now())
		time.Sleep(20 * time.Second)
		require.Equal(t, healthcheck.Active, state())
		g.Traffic("a").Heard()

		n := echo.n.Load()
		echo.down()
		traffic(2900*time.Millisecond, false)
		require.Equal(t, healthcheck.Active, state())
		traffic(1200*time.Millisecond, false)
		require.Equal(t, healthcheck.Suspect, state()) // after 3 to 4 s
		require.Greater(t, echo.n.Load(), n)           // and pinged at once
		g.want("a", "80", healthcheck.Active, true)    // still in use
		traffic(time.Second, true)
		synctest.Wait()
		require.Equal(t, "a suspect→active in-service", g.lines[1]) // it was heard
		traffic(8*time.Second, false)
		require.Equal(t, healthcheck.Failed, state()) // retries used up
		require.Equal(t, []string{"a active→suspect in-service", "a suspect→active in-service"}, g.take()[:2])
		require.Nil(t, g.Traffic("nobody"))
		g.Traffic("nobody").Sent(time.Now())
		g.Traffic("nobody").Heard()
	})
}

func TestRosterBringUp(t *testing.T) {
	for _, c := range []struct {
		name     string
		l7       bool
		fast     bool
		l4, l7ok bool
		want     healthcheck.State
	}{
		{"both pass", true, false, true, true, healthcheck.Active},
		{"L7 fails", true, false, true, false, healthcheck.Failed},
		{"L4 fails", true, false, false, true, healthcheck.Failed},
		{"no L7", false, false, true, false, healthcheck.Active},
		{"fast, both pass", true, true, true, true, healthcheck.Active},
		{"fast, L4 fails", true, true, false, true, healthcheck.Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l4, l7 := new(fake), new(fake)
				if !c.l4 {
					l4.down()
				}
				if !c.l7ok {
					l7.down()
				}
				p := healthcheck.Port{Port: 80, L4: l4, FastBringUp: c.fast}
				if c.l7 {
					p.L7 = l7
				}
				g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{{Name: "a", Addr: s1, Ports: []healthcheck.Port{p}}}})
				time.Sleep(time.Minute)
				g.want("a", "80", c.want, c.want.Usable())
				if c.want == healthcheck.Active && c.l7 {
					require.Equal(t, int64(1), l4.n.Load(), "L4 repeats only without L7")
					require.Greater(t, l7.n.Load(), int64(10))
				} else {
					require.Greater(t, l4.n.Load(), int64(5))
				}
			})
		})
	}
}

func TestRosterFastBringUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l4, l7 := new(fake), new(fake)
		l7.down()
		g := newRig(t, healthcheck.Setup{Servers: []healthcheck.Server{{Name: "a", Addr: s1, Ports: []healthcheck.Port{{Port: 80, L4: l4, L7: l7, FastBringUp: true}}}}})
		time.Sleep(time.Minute)
		// An L4 pass is enough, but what L7 failed it does not bring back.
		require.Equal(t, []string{"a/80 enabled→testing usable=false", "a/80 testing→active usable=true", "a/80 active→suspect usable=true", "a/80 suspect→failed usable=false"}, g.take())
		l7.up()
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
	})
}
