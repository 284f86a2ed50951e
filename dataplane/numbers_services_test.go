package dataplane

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
)

// numberOf returns the number of a service, if it has one.
func (p *testPlane) numberOf(name string) (no uint32, ok bool) {
	for svc := range p.snap.Load().named() {
		if svc.conf.Name == name {
			return svc.no, true
		}
	}
	return 0, false
}

// crowd applies rules together with those of n services that nobody else has, with ways of their own where mtu is not 0.
func (p *testPlane) crowd(name string, n, mtu int, rules ...policy.Rule[*Service]) {
	p.t.Helper()
	all := slices.Clone(rules)
	for i := range n {
		svc := &Service{Name: fmt.Sprint(name, " ", i), Pool: p.pool, Mode: clienttable.ServerPerSession}
		if mtu != 0 {
			svc.MTU = mtu + i
		}
		all = append(all, rule(svc.Name, fmt.Sprintf("%v udp/%d", p.fam.vip2, 1+i), svc))
	}
	require.NoError(p.t, p.Apply(table(p.t, all...)))
}

// leave has so many services gone that those are forgotten that nothing names.
func (p *testPlane) leave(rules ...policy.Rule[*Service]) {
	p.t.Helper()
	p.crowd(fmt.Sprint("crowd at ", p.now), 2*leastGone, 0, rules...)
	require.NoError(p.t, p.Apply(table(p.t, rules...)))
	p.later()
}

// later is when numbers are looked for again.
func (p *testPlane) later() {
	p.now = p.now.Add(lookPause)
	for p.Step(p.now) {
	}
}

// Reloads that bring new names each time for years take no more than what there is at a time, and no session of a service that is gone is taken for one of
// a service that has come since.
func TestServicesComeAndGo(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = clienttable.ServerPerSession })
		web := rule("web", fam.vip.String()+" tcp/80", p.svc)
		reloads, names := 250, 200 // with two families 100,000
		if underRace {
			reloads = 25
		}
		type alive struct {
			client, vip, node netip.AddrPort
			service           string
			until             int
			sent              uint64
		}
		var sessions []alive
		long := ap(fam.client, 40000)
		node := p.open(long)
		p.forwarded(tcp(long, ap(fam.vip, 80), "A", 101, 501, "x"), long, node)
		packets := p.traffic("web").In.Packets
		var heap uint64
		for i := range reloads {
			name := fmt.Sprint("release ", i)
			p.crowd(name, names, 1000, web)
			for j := range 3 {
				s := alive{client: ap(fam.client2, uint16(3*i+j+1)), vip: ap(fam.vip2, uint16(1+(i+7*j)%names)), until: i + 1 + 3*j}
				s.service = fmt.Sprint(name, " ", s.vip.Port()-1)
				v, out := p.send(udp(s.client, s.vip, "x"))
				require.Equal(t, Forwarded, v)
				f, _ := parseFlow(out)
				s.node, s.sent = f.Dst, 1
				require.EqualValues(t, 1, p.traffic(s.service).Sessions, "nothing of a former service is counted for it")
				require.EqualValues(t, 1, p.traffic(s.service).In.Packets)
				sessions = append(sessions, s)
			}
			sessions = slices.DeleteFunc(sessions, func(s alive) bool { return s.until < i })
			p.now = p.now.Add(20 * time.Second)
			for k := range sessions {
				s := &sessions[k]
				p.forwarded(udp(s.client, s.vip, "y"), s.client, s.node)
				s.sent++
				got, ok := p.Session(wire.ProtoUDP, s.client, s.vip)
				require.True(t, ok)
				require.Equal(t, s.service, got.Service)
				require.EqualValues(t, s.sent, p.traffic(s.service).In.Packets)
				rec := p.recordOf(wire.ProtoUDP, s.client, s.vip)
				require.Equal(t, int(999+s.vip.Port()), p.snap.Load().ways[rec.way].mtu, "it keeps its way")
			}
			p.forwarded(tcp(long, ap(fam.vip, 80), "A", 101, 501, "x"), long, node)
			packets++
			for p.Step(p.now) {
			}
			s := p.snap.Load()
			require.LessOrEqual(t, len(s.services), 5*names)
			require.LessOrEqual(t, len(s.ways), 2*names, "reloads use the same ones again")
			require.LessOrEqual(t, len(p.serviceNo), 5*names)
			require.LessOrEqual(t, len(p.own.stats.services), 5*names)
			if i == reloads/2 {
				heap = heapInUse()
			}
		}
		require.Equal(t, packets, p.traffic("web").In.Packets)
		require.Less(t, heapInUse(), heap+heap/4+(1<<20))
		require.NoError(t, p.Apply(table(t, web)))
		for range 4 {
			p.now = p.now.Add(lookPause)
			p.forwarded(tcp(long, ap(fam.vip, 80), "A", 101, 501, "x"), long, node)
			for p.Step(p.now) {
			}
		}
		services := 0
		for range p.Services() {
			services++
		}
		require.LessOrEqual(t, services, leastGone, "what is left is not worth a look")
	})
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// traffic returns what is counted for a service.
func (p *testPlane) traffic(service string) Traffic {
	p.t.Helper()
	for name, c := range p.Services() {
		if name == service {
			return c
		}
	}
	require.Fail(p.t, "no such service", service)
	return Traffic{}
}

// recordOf returns the record of a session.
func (p *testPlane) recordOf(proto uint8, client, vip netip.AddrPort) *record {
	p.t.Helper()
	r, ok := p.sessions().Peek(clienttable.MakeFlow(proto, client, vip))
	require.True(p.t, ok)
	return &p.slab.recs[r.record()]
}

// A service that comes back under its name takes over counters and sessions, whether its number was looked for meanwhile or not.
func TestServiceComesBack(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	web, old := rule("web", fam.vip.String()+" tcp/80", p.svc), rule("old", fam.vip2.String()+" udp/53", &Service{Name: "old", Pool: p.pool})
	require.NoError(t, p.Apply(table(t, web, old)))
	client, vip := ap(fam.client, 1), ap(fam.vip2, 53)
	v, out := p.send(udp(client, vip, "x"))
	require.Equal(t, Forwarded, v)
	f, _ := parseFlow(out)
	no, _ := p.numberOf("old")
	p.leave(web)
	p.forwarded(udp(client, vip, "x"), client, f.Dst)
	require.NotEmpty(t, p.snap.Load().spare.services)
	require.NoError(t, p.Apply(table(t, web, old)))
	again, _ := p.numberOf("old")
	require.Equal(t, no, again)
	require.EqualValues(t, 2, p.traffic("old").In.Packets)
	// And gone for good.
	p.leave(web)
	p.now = p.now.Add(10 * time.Minute)
	p.leave(web)
	_, ok := p.numberOf("old")
	require.False(t, ok)
	require.NoError(t, p.Apply(table(t, web, old)))
	require.Zero(t, p.traffic("old"))
}

// What outlives sessions keeps the number of their service, too: associations, lost connections, connections that are held, and fragments.
func TestWhatNamesServices(t *testing.T) {
	udpVIP := func(fam family) netip.AddrPort { return ap(fam.vip2, 53) }
	for name, c := range map[string]struct {
		svc   func(p *testPlane, s *Service)
		begin func(p *testPlane) // something that names the service
		lasts time.Duration
	}{
		"association": {func(_ *testPlane, s *Service) { s.Mode, s.Ageing.Idle = clienttable.Regular, 5*time.Minute }, func(p *testPlane) {
			v, _ := p.send(udp(ap(p.fam.client, 1), udpVIP(p.fam), "x"))
			require.Equal(p.t, Forwarded, v)
			s, ok := p.Session(wire.ProtoUDP, ap(p.fam.client, 1), udpVIP(p.fam))
			require.True(p.t, ok)
			require.True(p.t, p.KillSession(s))
		}, 5 * time.Minute},
		"lost connection": {func(_ *testPlane, s *Service) {
			s.ServerLost, s.Ageing.Idle, s.Mode = Silent, 5*time.Minute, clienttable.ServerPerSession
		}, func(p *testPlane) {
			client, vip := ap(p.fam.client, 1), udpVIP(p.fam)
			v, out := p.send(tcp(client, vip, "S", 100, 0, ""))
			require.Equal(p.t, Forwarded, v)
			f, _ := parseFlow(out)
			p.forwarded(tcp(f.Dst, client, "SA", 500, 101, ""), vip, client)
			p.forwarded(tcp(client, vip, "A", 101, 501, ""), client, f.Dst)
			for _, up := range []bool{false, true} {
				p.SetUp("n1", up)
				p.SetUp("n2", up)
			}
		}, 5 * time.Minute},
		"held connection": {func(p *testPlane, s *Service) {
			s.Delay = &Delay{Read: ReadHTTP, Rules: byHost(p.t)}
			s.Delay.Limits.Time = 5 * time.Minute
		}, func(p *testPlane) {
			client, vip := ap(p.fam.client, 1), udpVIP(p.fam)
			_, out := p.send(tcp(client, vip, "S", 100, 0, ""))
			p.send(tcp(client, vip, "PA", 101, numbers(out).Seq+1, "GET "))
			require.EqualValues(p.t, 1, p.Stats().Delay.Held)
		}, 5 * time.Minute},
		"fragments": {func(_ *testPlane, s *Service) { s.Forward, s.Pool = Route, nil }, func(p *testPlane) {
			b := udp(ap(p.fam.client, 1), udpVIP(p.fam), string(make([]byte, 1000)))
			v, _ := p.send(split(b, 600, 77)[0])
			require.Equal(p.t, Forwarded, v)
		}, fragmentLife},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, fam family) {
				p := newPlane(t, fam)
				svc := &Service{Name: "old", Pool: p.pool}
				c.svc(p, svc)
				web := rule("web", fam.vip.String()+" tcp/80", p.svc)
				require.NoError(t, p.Apply(table(t, web, rule("old", fam.vip2.String()+"", svc))))
				no, ok := p.numberOf("old")
				require.True(t, ok)
				c.begin(p)
				end := p.now.Add(c.lasts)
				p.now = p.now.Add(-lookPause) // without time passing
				p.leave(web)
				require.NotEmpty(t, p.snap.Load().spare.services)
				got, ok := p.numberOf("old")
				require.True(t, ok, "%s names it", name)
				require.Equal(t, no, got)
				for p.now.Before(end.Add(2 * clockSkew)) {
					p.now = p.now.Add(10 * time.Second)
					p.sendAll()
					for p.Step(p.now) {
					}
				}
				p.leave(web)
				_, ok = p.numberOf("old")
				require.False(t, ok, "nothing names it any more")
			})
		})
	}
}

// While a state is saved or taken over no number changes its meaning.
func TestNumbersStayWhileAStateIsSaved(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	web := rule("web", fam.vip.String()+" tcp/80", p.svc)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := p.WriteTo(w)
		w.CloseWithError(err)
		done <- err
	}()
	var state bytes.Buffer
	_, err := io.CopyN(&state, r, 8) // so it is under way
	require.NoError(t, err)
	p.leave(web)
	require.Empty(t, p.snap.Load().spare.services)
	_, err = io.Copy(&state, r)
	require.NoError(t, err)
	require.NoError(t, <-done)
	p.later()
	require.NotEmpty(t, p.snap.Load().spare.services)

	r, w = io.Pipe()
	go func() {
		_, err := p.Restore(r)
		done <- err
	}()
	_, err = w.Write(state.Bytes())
	require.NoError(t, err)
	require.NoError(t, <-done)
}

// A batch that began before a number was given to another service takes sessions of that one for what they are.
func TestBatchBeforeANumberIsUsedAgain(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	web := rule("web", fam.vip.String()+" tcp/80", p.svc)
	p.leave(web)
	before := p.snap.Load()
	require.NotEmpty(t, before.spare.services)
	w := p.NewWorker(Link{})
	require.NoError(t, p.Apply(table(t, web, rule("new", fam.vip2.String()+" udp/53", &Service{Name: "new", Pool: p.pool, MTU: 1234}))))
	no, _ := p.numberOf("new")
	require.Less(t, int(no), len(before.services))
	client, vip := ap(fam.client, 1), ap(fam.vip2, 53)
	v, _ := p.send(udp(client, vip, "x"))
	require.Equal(t, Forwarded, v)
	rec := p.recordOf(wire.ProtoUDP, client, vip)
	w.snap = before
	w.stats.fit(before)
	require.Equal(t, "new", w.service(rec).conf.Name)
	w.snap = before
	require.Equal(t, 1234, w.way(rec.way).mtu)
}

// What a balancer tells others of associations is not said of a service that has the number now.
func TestReplicasOfFormerNumbers(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		change := func(c *Config, s *Service) { c.AssociationChanges = 4096 }
		a, b := newPlane(t, fam, change), newPlane(t, fam, change)
		web := rule("web", fam.vip.String()+" tcp/80", a.svc)
		service := func(p *testPlane, name string) *Service {
			return &Service{Name: name, Pool: p.pool, Mode: clienttable.Regular}
		}
		put := func(p *testPlane, name string) {
			p.svc.Pool = p.pool
			require.NoError(t, p.Apply(table(t, rule("web", web.Match.Dst.Addr().String()+" tcp/80", p.svc), rule(name, fam.vip2.String()+" udp/53", service(p, name)))))
		}
		put(a, "old")
		no, _ := a.numberOf("old")
		v, _ := a.send(udp(ap(fam.client, 1), ap(fam.vip2, 53), "x"))
		require.Equal(t, Forwarded, v)
		a.now = a.now.Add(5 * time.Minute)
		for a.Step(a.now) {
		}
		a.leave(web)
		for range len(a.snap.Load().spare.services) { // until it is had again
			put(a, fmt.Sprint("new ", a.now))
			if got, _ := a.numberOf(fmt.Sprint("new ", a.now)); got == no {
				break
			}
			a.now = a.now.Add(time.Second)
		}
		name := fmt.Sprint("new ", a.now)
		got, _ := a.numberOf(name)
		require.Equal(t, no, got)
		put(b, name)
		last := tellOf(t, a, b, 0)
		require.Zero(t, b.assocs().Len(), "the association was of the former service")
		v, _ = a.send(udp(ap(fam.client2, 1), ap(fam.vip2, 53), "x"))
		require.Equal(t, Forwarded, v)
		tellOf(t, a, b, last)
		require.Equal(t, 1, b.assocs().Len(), "and this one is of the service that has the number now")
		var snapshot bytes.Buffer
		require.NoError(t, a.Replicas()["associations"].Snapshot(&snapshot))
		c := newPlane(t, fam, change)
		put(c, name)
		require.NoError(t, c.Replicas()["associations"].Restore(&snapshot))
		require.Equal(t, 1, c.assocs().Len())
	})
}

// The largest packet that is looked at for its way is that of the ways there are.
func TestNarrowWaysAreForgotten(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	web := rule("web", fam.vip.String()+" tcp/80", p.svc)
	p.crowd("narrow", 2*leastGone, 600, web)
	require.Equal(t, 600, p.snap.Load().narrow)
	p.svc.MTU = 1400
	require.NoError(t, p.Apply(table(t, web)))
	p.later()
	require.Equal(t, 1400, p.snap.Load().narrow)
}
