package healthcheck_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
)

// A virtual server is silent while fewer servers than it wants are usable, whatever
// makes them unusable.
func TestRosterMinimumServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lights := []*fake{{}, {}, {}}
		setup := healthcheck.Setup{Virtuals: []healthcheck.Virtual{
			{Name: "web", MinimumServers: 2, Members: []healthcheck.Member{{Server: "a", Port: "80"}, {Server: "a", Port: "81"}, {Server: "b", Port: "80"}, {Server: "c", Port: "80"}}},
			{Name: "any", Members: []healthcheck.Member{{Server: "a", Port: "80"}}},
		}}
		for i, name := range []string{"a", "b", "c"} {
			setup.Servers = append(setup.Servers, plain(name, []netip.Addr{s1, s2, s1}[i], lights[i]))
		}
		setup.Servers[0].Ports = append(setup.Servers[0].Ports, healthcheck.Port{Port: 81, L4: lights[0], Check: healthcheck.Check{Fall: 1}})
		g := newRig(t, setup)
		web := func() healthcheck.VirtualStatus { v, ok := g.Virtual("web"); require.True(t, ok); return v }
		require.Equal(t, healthcheck.VirtualStatus{Name: "web", Servers: 3, Minimum: 2}, web())
		time.Sleep(6 * time.Second)
		require.True(t, web().Answers)
		require.Equal(t, 3, web().Usable)
		since := web().Since
		require.False(t, since.IsZero())

		lights[1].down()
		time.Sleep(6 * time.Second)
		require.Equal(t, healthcheck.VirtualStatus{Name: "web", Answers: true, Since: since, Usable: 2, Servers: 3, Minimum: 2}, web())
		g.take()
		lights[2].down() // a has two ports, and is one server
		time.Sleep(6 * time.Second)
		require.False(t, web().Answers)
		require.Equal(t, 1, web().Usable)
		require.Equal(t, []string{"c/80 active→failed usable=false", "web answers=false"}, g.take())

		lights[1].up()
		time.Sleep(6 * time.Second)
		require.True(t, web().Answers)
		require.NoError(t, g.SetServerAdmin("b", healthcheck.Draining))
		require.False(t, web().Answers)
		require.NoError(t, g.SetServerAdmin("b", healthcheck.InService))
		require.True(t, web().Answers)

		// A virtual server that stays keeps what it is; one that wants less answers at once.
		g.take()
		before := web()
		require.NoError(t, g.Set(setup))
		require.Equal(t, before, web())
		require.Empty(t, g.take())
		lights[1].down()
		time.Sleep(6 * time.Second)
		require.False(t, web().Answers)
		setup.Virtuals[0].MinimumServers = 1
		require.NoError(t, g.Set(setup))
		require.True(t, web().Answers)
		require.Equal(t, []string{"any", "web"}, names(g.Roster))
		setup.Virtuals = setup.Virtuals[1:]
		require.NoError(t, g.Set(setup))
		_, ok := g.Virtual("web")
		require.False(t, ok)
		b, err := json.Marshal(slices.Collect(g.Virtuals()))
		require.NoError(t, err)
		require.Contains(t, string(b), `[{"name":"any","answers":true,`)
	})
}

// A virtual server may have thousands of members: what one of them does is not paid for by looking at all.
func TestRosterManyMembers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 2000
		light := new(fake)
		setup := healthcheck.Setup{Virtuals: []healthcheck.Virtual{{Name: "web", MinimumServers: n}}}
		for i := range n {
			name := fmt.Sprint(i)
			setup.Servers = append(setup.Servers, plain(name, s1, light))
			setup.Virtuals[0].Members = append(setup.Virtuals[0].Members, healthcheck.Member{Server: name, Port: "80"})
		}
		g := newRig(t, setup)
		usable := func() int { v, _ := g.Virtual("web"); return v.Usable }
		time.Sleep(6 * time.Second)
		require.Equal(t, n, usable())
		light.down()
		time.Sleep(6 * time.Second)
		require.Zero(t, usable())
		light.up()
		time.Sleep(6 * time.Second)
		require.Equal(t, n, usable())
		v, _ := g.Virtual("web")
		require.True(t, v.Answers)
		setup.Servers, setup.Virtuals[0].Members, setup.Virtuals[0].MinimumServers = setup.Servers[:2], setup.Virtuals[0].Members[:2], 2
		require.NoError(t, g.Set(setup))
		require.Equal(t, 2, usable())
		require.NoError(t, g.SetPortAdmin("1", "80", healthcheck.OutOfService))
		require.Equal(t, 1, usable())
	})
}

func names(r *healthcheck.Roster) (out []string) {
	for v := range r.Virtuals() {
		out = append(out, v.Name)
	}
	return out
}

func TestRosterVirtualErrors(t *testing.T) {
	t.Parallel()
	r, err := healthcheck.NewRoster(nil)
	require.NoError(t, err)
	a := healthcheck.Member{Server: "a", Port: "80"}
	err = r.Set(healthcheck.Setup{Servers: []healthcheck.Server{plain("a", s1, new(fake))}, Virtuals: []healthcheck.Virtual{
		{}, {Name: "v", Members: []healthcheck.Member{a, a, {Server: "b", Port: "80"}}}, {Name: "v", Members: []healthcheck.Member{a}, MinimumServers: 2}, {Name: "w", Members: []healthcheck.Member{a}, MinimumServers: -1},
	}})
	for _, want := range []string{`virtual server "": Name "", want a name`, `virtual server "": Members none`, `Members[1] "a/80": listed twice`, `Members[2] "b/80"`,
		`virtual server "v": Name used twice`, `virtual server "v": MinimumServers 2, want 1 to 1`, `virtual server "w": MinimumServers -1`} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorIs(t, err, healthcheck.ErrUnknownPort)
}

// A port with a profile and no prober of its own gets the check that its number and
// its profile say.
func TestRosterProfiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		asked := map[healthcheck.Method]*fake{}
		probers := func(m healthcheck.Method) (healthcheck.Prober, bool) {
			if m == healthcheck.MMS {
				return nil, false
			}
			if asked[m] == nil {
				asked[m] = new(fake)
			}
			return asked[m], true
		}
		port := func(number uint16, p healthcheck.PortProfile) healthcheck.Port {
			return healthcheck.Port{Port: number, Profile: &p, Check: healthcheck.Check{Fall: 1}}
		}
		setup := healthcheck.Setup{Probers: probers, Servers: []healthcheck.Server{{Name: "a", Addr: s1, Ports: []healthcheck.Port{
			port(80, healthcheck.PortProfile{}),
			port(8080, healthcheck.PortProfile{Transport: healthcheck.OverTCP, BasedOn: 25}),
			port(53, healthcheck.PortProfile{}),
			port(9000, healthcheck.PortProfile{}),
			port(7000, healthcheck.PortProfile{Transport: healthcheck.OverTCP, Layer: healthcheck.Layer7, Element: true}),
			port(143, healthcheck.PortProfile{Layer: healthcheck.Layer4}),
		}}}}
		g := newRig(t, setup)
		time.Sleep(15 * time.Second)
		for _, name := range []string{"80", "8080", "53", "9000", "143"} {
			g.want("a", name, healthcheck.Active, true)
		}
		g.want("a", "7000", healthcheck.Failed, false)
		require.ErrorIs(t, g.port("a", "7000").Err, healthcheck.ErrNoMethod)
		require.Len(t, asked, 5) // tcp, http, smtp, dns, udp
		c, _ := g.Monitor().Check("port:a/8080")
		require.Equal(t, uint16(25), c.Target.Port())
		c, _ = g.Monitor().Check("port:a/9000")
		require.True(t, c.BringUpLast)
		require.Equal(t, 2, c.Rise)
		require.Equal(t, time.Second, c.FastInterval)
		c, _ = g.Monitor().Check("port:a/80")
		require.False(t, c.BringUpLast)
		require.Equal(t, 1, c.Rise)
		asked[healthcheck.SMTP].down() // 8080 is based on it
		asked[healthcheck.DNS].down()
		time.Sleep(6 * time.Second)
		g.want("a", "8080", healthcheck.Failed, false)
		g.want("a", "53", healthcheck.Failed, false)
		g.want("a", "80", healthcheck.Active, true)
		require.Nil(t, setup.Servers[0].Ports[0].L7, "the caller's stays as it was")
		require.NoError(t, g.Set(setup))
		g.want("a", "80", healthcheck.Active, true)

		// A prober of one's own, or an element, goes before the profile.
		own := new(fake)
		setup.Servers[0].Ports[0].L7 = own
		require.NoError(t, g.Set(setup))
		asked[healthcheck.HTTP].down()
		time.Sleep(6 * time.Second)
		g.want("a", "80", healthcheck.Active, true)
		require.NotZero(t, own.n.Load())

		bad := healthcheck.Setup{Probers: probers, Servers: []healthcheck.Server{{Name: "b", Addr: s1, Ports: []healthcheck.Port{
			port(1755, healthcheck.PortProfile{}), port(80, healthcheck.PortProfile{Port: 81}), port(443, healthcheck.PortProfile{BasedOn: 80}),
		}}}}
		err := g.Set(bad)
		require.ErrorContains(t, err, `port "1755": Profile: no prober for mms in Setup.Probers`)
		require.ErrorContains(t, err, `port "80": Profile: its Port is 81, want 80 or 0`)
		require.ErrorContains(t, err, `port "443": Profile: healthcheck: port 443: BasedOn 80`)
		bad.Probers = nil
		require.ErrorContains(t, g.Set(bad), "it is a check by mms, want Setup.Probers")
	})
}

// Ports that are brought up by two datagrams have their second one when all others
// had their first.
func TestRosterBringsUDPUpLast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		calls := map[uint16]int{}
		early := 0
		setup := healthcheck.Setup{Probers: func(m healthcheck.Method) (healthcheck.Prober, bool) {
			return healthcheck.ProberFunc(func(_ context.Context, a netip.AddrPort) healthcheck.Result {
				mu.Lock()
				defer mu.Unlock()
				if calls[a.Port()]++; m == healthcheck.UDP && calls[a.Port()] == 2 && len(calls) < 40 {
					early++
				}
				return healthcheck.Assumed("silence")
			}), true
		}}
		s := healthcheck.Server{Name: "a", Addr: s1}
		for i := range 20 {
			s.Ports = append(s.Ports,
				healthcheck.Port{Port: uint16(9000 + i), Profile: &healthcheck.PortProfile{}},
				healthcheck.Port{Port: uint16(8000 + i), Profile: &healthcheck.PortProfile{Transport: healthcheck.OverTCP}})
		}
		setup.Servers = append(setup.Servers, s)
		g := newRig(t, setup)
		time.Sleep(9 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Zero(t, early, "some had no first one yet")
		for p := range g.Ports() {
			require.Equal(t, healthcheck.Active, p.State, p.Port)
		}
	})
}
