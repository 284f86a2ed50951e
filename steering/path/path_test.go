package path

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

// office is a site with uplinks to gateways .1 of 10.1.<n>.0/24, and two balancers with
// an interface on each of the subnets.
func office(uplinks int) *Config {
	c := &Config{
		Local: "office",
		Sites: []Site{
			{Name: "office", Networks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
			{Name: "dc", Networks: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("2001:db8:2::/48")}},
			{Name: "lab", Networks: []netip.Prefix{netip.MustParsePrefix("10.2.7.0/24")}},
		},
		Balancers: []Balancer{{Name: "b1"}, {Name: "b2"}},
	}
	for i := range uplinks {
		name := string(rune('A' + i))
		c.Sites[0].Uplinks = append(c.Sites[0].Uplinks, Uplink{Name: name, Gateway: netip.AddrFrom4([4]byte{10, 1, byte(i), 1})})
		for b := range c.Balancers {
			c.Balancers[b].Interfaces = append(c.Balancers[b].Interfaces, Interface{
				Name: fmt.Sprintf("inpath%d", i), Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), byte(10 + b)}), 24),
			})
		}
	}
	return c
}

func newEngine(t testing.TB, cfg *Config, id Identifier) *Engine {
	t.Helper()
	e, err := New(cfg, 1, id)
	require.NoError(t, err)
	return e
}

func packet(src, dst string) *Packet {
	return &Packet{
		Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), Protocol: tcp, Via: Via{"b2", "inpath1"},
	}
}

// fail makes the channels of the named uplinks lose probes until they are down.
func fail(e *Engine, now time.Time, uplinks string) time.Time {
	for range 4 {
		now = now.Add(time.Hour)
		e.Step(now, func(c Channel) bool { return !strings.Contains(uplinks, c.Uplink) })
	}
	return now
}

func TestChannelsOfTheWholeCluster(t *testing.T) {
	c := office(4)
	channels, err := c.Channels()
	require.NoError(t, err)
	require.Len(t, channels, 8, "4 uplinks × 2 interfaces")
	again, err := office(4).Channels()
	require.NoError(t, err)
	require.Equal(t, channels, again)
	ids := map[ChannelID]bool{}
	for _, ch := range channels {
		require.NotZero(t, ch.ID)
		ids[ch.ID] = true
	}
	require.Len(t, ids, 8)
	// Another uplink leaves the keys of the others alone.
	more, err := office(5).Channels()
	require.NoError(t, err)
	require.Equal(t, channels, more[:8])

	// Exactly one channel of each uplink is active; seeds differ in which.
	seen := map[Via]bool{}
	for seed := range uint64(20) {
		e, err := New(office(4), seed, nil)
		require.NoError(t, err)
		active := map[string]int{}
		for _, s := range e.Channels() {
			require.True(t, s.Up)
			if s.Active {
				active[s.Uplink]++
				seen[Via{s.Balancer, s.Interface}] = true
			}
		}
		require.Equal(t, map[string]int{"A": 1, "B": 1, "C": 1, "D": 1}, active)
	}
	require.Len(t, seen, 8)
}

func TestUplinksInOrderThenRelayOrDrop(t *testing.T) {
	c := office(4)
	c.Rules = []Rule{
		{Name: "drop", Match: Match{DstPort: Ports{9, 9}}, Uplinks: []string{"A"}, Else: Drop},
		{Name: "all", Uplinks: []string{"A", "B", "C"}},
	}
	e := newEngine(t, c, nil)
	p := packet("10.1.0.5:1", "10.2.0.5:80")
	require.Equal(t, "A", e.Decide(p).Channel.Uplink)
	now := fail(e, time.Unix(0, 0), "A")
	require.Equal(t, "B", e.Decide(p).Channel.Uplink)
	drop := packet("10.1.0.5:1", "10.2.0.5:9")
	require.Equal(t, Dropped, e.Decide(drop).Outcome)
	now = fail(e, now, "AB")
	require.Equal(t, "C", e.Decide(p).Channel.Uplink)
	now = fail(e, now, "ABC")
	d := e.Decide(p)
	require.Equal(t, Relayed, d.Outcome, "a fourth uplink only by relay")
	require.Nil(t, d.Channel)
	require.Equal(t, Via{"b2", "inpath1"}, d.Via, "out of the interface that redirected the connection")
	x := e.Explain(p)
	require.Equal(t, d, x.Decision)
	require.Contains(t, x.String(), `uplink "B" has no channel that is up`)
	fail(e, now, "")
	require.Equal(t, "A", e.Decide(p).Channel.Uplink, "up again: flows return")
	// No rule matches: relay.
	e = newEngine(t, office(1), nil)
	require.Equal(t, Relayed, e.Decide(p).Outcome)
}

func TestOneChannelDownTheOtherTakesOver(t *testing.T) {
	c := office(1)
	c.Rules = []Rule{{Uplinks: []string{"A"}}}
	e := newEngine(t, c, nil)
	p := packet("10.1.0.5:1", "10.2.0.5:80")
	first := e.Decide(p).Channel
	now := time.Unix(0, 0)
	lose := func(what func(Channel) bool) {
		for range 4 {
			now = now.Add(time.Hour)
			e.Step(now, func(c Channel) bool { return !what(c) })
		}
	}
	lose(func(c Channel) bool { return c.ID == first.ID })
	second := e.Decide(p).Channel
	require.NotEqual(t, first.ID, second.ID)
	lose(func(Channel) bool { return false })
	require.Equal(t, second, e.Decide(p).Channel, "no need to change back")
	lose(func(Channel) bool { return true })
	require.Equal(t, Relayed, e.Decide(p).Outcome, "both down: the uplink is unusable")
}

func TestMatching(t *testing.T) {
	rule := func(m Match) *Engine {
		c := office(1)
		c.Rules = []Rule{{Name: "off", Disabled: true, Else: Drop}, {Name: "r", Match: m, Uplinks: []string{"A"}}}
		return newEngine(t, c, nil)
	}
	p := packet("10.1.0.5:1000", "10.2.0.5:80")
	p.DSCP, p.VLAN = 46, 12
	for _, tt := range []struct {
		m    Match
		want bool
	}{
		{Match{}, true},
		{Match{Src: netip.MustParsePrefix("10.1.0.0/24")}, true},
		{Match{Src: netip.MustParsePrefix("10.3.0.0/24")}, false},
		{Match{Dst: netip.MustParsePrefix("10.2.0.5/32")}, true},
		{Match{Dst: netip.MustParsePrefix("2001:db8::/32")}, false},
		{Match{SrcPort: Ports{1000, 2000}}, true},
		{Match{SrcPort: Ports{1001, 2000}}, false},
		{Match{DstPort: Ports{80, 80}}, true},
		{Match{DstPort: Ports{81, 81}}, false},
		{Match{Protocol: 6}, true},
		{Match{Protocol: 17}, false},
		{Match{DSCP: CodePoint(46)}, true},
		{Match{DSCP: CodePoint(0)}, false},
		{Match{VLAN: 12}, true},
		{Match{VLAN: Untagged}, false},
		{Match{DstSite: "dc"}, true},
		{Match{DstSite: "lab"}, false},
	} {
		require.Equal(t, tt.want, rule(tt.m).Decide(p).Rule == "r", "%+v", tt.m)
	}
	e := rule(Match{DstSite: "lab"})
	require.Equal(t, "r", e.Decide(packet("10.1.0.5:1", "10.2.7.9:80")).Rule, "longest prefix")
	require.Equal(t, "dc", e.Site(netip.MustParseAddr("2001:db8:2::9")))
	require.Equal(t, "dc", e.Site(netip.MustParseAddr("::ffff:10.2.1.1")))
	require.Empty(t, e.Site(netip.MustParseAddr("192.0.2.1")))
}

type identifier struct{ asked atomic.Int32 }

func (i *identifier) Identify(p *Packet) (string, bool) {
	i.asked.Add(1)
	return "voice", p.Flow == 7
}

func TestApplicationsAndTheNonsteadyState(t *testing.T) {
	c := office(2)
	c.Rules = []Rule{
		{Name: "app", Match: Match{App: "voice"}, Uplinks: []string{"A"}},
		{Name: "other", Match: Match{App: "video"}, Uplinks: []string{"A"}},
		{Name: "port", Match: Match{DstPort: Ports{80, 80}}, Uplinks: []string{"B"}},
	}
	var id identifier
	e := newEngine(t, c, &id)
	p := packet("10.1.0.5:1", "10.2.0.5:80")
	require.Equal(t, "port", e.Decide(p).Rule, "not known yet")
	require.EqualValues(t, 1, id.asked.Load(), "asked once a packet")
	p.Flow = 7
	require.Equal(t, "app", e.Decide(p).Rule)
	p.HeaderOnly = true
	require.Equal(t, "port", e.Decide(p).Rule, "nonsteady: no application rule for pass-through TCP, a port rule matches")
	p.Optimized = true
	require.Equal(t, "app", e.Decide(p).Rule)
	p.Optimized, p.Protocol = false, 17
	require.Equal(t, "app", e.Decide(p).Rule)
	p.App = "video"
	require.Equal(t, "other", e.Decide(p).Rule)
}

func TestDSCPAndExport(t *testing.T) {
	c := office(1)
	c.Marks = []Mark{
		{Name: "off", DSCP: CodePoint(1), Disabled: true},
		{Name: "bulk", Match: Match{DstPort: Ports{21, 21}}, DSCP: CodePoint(8)},
		{Name: "rest", DSCP: CodePoint(0)},
	}
	c.Rules = []Rule{
		{Name: "ef", Match: Match{DstPort: Ports{5060, 5060}}, Uplinks: []string{"A"}, SetDSCP: CodePoint(46)},
		{Name: "export", Match: Match{DstPort: Ports{21, 21}}, Export: true},
	}
	e := newEngine(t, c, nil)
	d := e.Decide(packet("10.1.0.5:1", "10.2.0.5:5060"))
	require.Equal(t, Decision{Outcome: Sent, Channel: d.Channel, DSCP: CodePoint(46), Rule: "ef"}, d, "the path rule's DSCP wins")
	d = e.Decide(packet("10.1.0.5:1", "10.2.0.5:21"))
	require.Equal(t, Decision{Via: Via{"b2", "inpath1"}, DSCP: CodePoint(8), Rule: "export", Mark: "bulk", Export: true}, d, "only flow export")
	d = e.Decide(packet("10.1.0.5:1", "10.2.0.5:22"))
	v, ok := d.DSCP.Value()
	require.True(t, ok)
	require.Zero(t, v)
	require.Equal(t, "rest", d.Mark)
}

func TestBackOff(t *testing.T) {
	c := office(1)
	c.Rules = []Rule{{Uplinks: []string{"A"}}}
	e := newEngine(t, c, nil)
	now := time.Unix(0, 0)
	good := func(Channel) bool { return true }
	var waits []time.Duration
	for range 12 {
		next := e.Step(now, good)
		waits = append(waits, next.Sub(now))
		now = next
	}
	second := time.Second
	require.Equal(t, []time.Duration{
		2 * second, 4 * second, 8 * second, 16 * second, 32 * second, 64 * second, 128 * second, 256 * second, 512 * second,
		1024 * second, 1800 * second, 1800 * second,
	}, waits)
	// Traffic: at once, then every 2 s as long as there is some.
	p := packet("10.1.0.5:1", "10.2.0.5:80")
	now = now.Add(-time.Minute)
	e.Decide(p)
	due, _ := e.Due(now)
	require.Len(t, due, 2)
	for _, ch := range due {
		e.Result(now, ch.ID, true)
	}
	for range 5 {
		e.Decide(p)
		next := e.Step(now, good)
		require.LessOrEqual(t, next.Sub(now), 2*second)
		now = next
	}
	// Two losses and an answer: still up. Three: down.
	bad := func(Channel) bool { return false }
	now = e.Step(now, bad)
	now = e.Step(now, bad)
	require.Equal(t, Sent, e.Decide(p).Outcome)
	now = e.Step(now, good)
	now = e.Step(now, bad)
	now = e.Step(now, bad)
	require.Equal(t, Sent, e.Decide(p).Outcome)
	begin := now
	now = e.Step(now, bad)
	require.Equal(t, Relayed, e.Decide(p).Outcome)
	require.LessOrEqual(t, begin.Sub(time.Unix(0, 0)), 4*time.Hour)
	e.Step(now, good)
	require.Equal(t, Sent, e.Decide(p).Outcome)
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := office(2)
		c.Rules = []Rule{{Uplinks: []string{"A", "B"}}}
		e := newEngine(t, c, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var dead atomic.Bool
		var probes atomic.Int32
		done := make(chan error)
		go func() {
			done <- e.Run(ctx, func(ctx context.Context, c Channel) error {
				probes.Add(1)
				if dead.Load() && c.Uplink == "A" {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			})
		}()
		p := packet("10.1.0.5:1", "10.2.0.5:80")
		for range 20 {
			require.Equal(t, "A", e.Decide(p).Channel.Uplink)
			time.Sleep(time.Second)
		}
		require.InDelta(t, 26, probes.Load(), 8, "two channels of A every 2 s, those of B now and then")
		dead.Store(true)
		for range 15 {
			e.Decide(p)
			time.Sleep(time.Second)
		}
		require.Equal(t, "B", e.Decide(p).Channel.Uplink)
		dead.Store(false)
		for range 5 {
			e.Decide(p)
			time.Sleep(time.Second)
		}
		require.Equal(t, "A", e.Decide(p).Channel.Uplink)
		probes.Store(0)
		time.Sleep(2 * time.Hour)
		require.Less(t, probes.Load(), int32(80), "idle")
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

func TestSetKeepsChannels(t *testing.T) {
	c := office(2)
	c.Rules = []Rule{{Uplinks: []string{"A", "B"}}}
	e := newEngine(t, c, nil)
	v := e.view.Load()
	require.NoError(t, e.Set(c))
	require.Same(t, v, e.view.Load(), "the same configuration changes nothing")
	fail(e, time.Unix(0, 0), "A")
	before := e.Channels()
	next := office(3)
	next.Rules = []Rule{{Name: "new", Uplinks: []string{"A", "C"}}}
	require.NoError(t, e.Set(next))
	require.Equal(t, before, e.Channels()[:4])
	require.Equal(t, "C", e.Decide(packet("10.1.0.5:1", "10.2.0.5:80")).Channel.Uplink)
	// A fault changes nothing.
	v = e.view.Load()
	next.Rules = append(next.Rules, Rule{Uplinks: []string{"Z"}})
	require.ErrorIs(t, e.Set(next), steering.ErrInvalid)
	require.Same(t, v, e.view.Load())
}

func TestConcurrentUse(t *testing.T) {
	e := newEngine(t, office(2), nil)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			p := packet("10.1.0.5:1", "10.2.0.5:80")
			for range 3000 {
				e.Decide(p)
			}
		})
	}
	now := time.Unix(0, 0)
	for i := range 100 {
		c := office(1 + i%3)
		c.Rules = []Rule{{Uplinks: []string{"A"}}}
		require.NoError(t, e.Set(c))
		now = now.Add(time.Minute)
		e.Step(now, func(c Channel) bool { return i%5 != 0 })
	}
	wg.Wait()
}

func TestFaults(t *testing.T) {
	c := office(2)
	c.Local = "nowhere"
	err := c.Validate()
	require.ErrorContains(t, err, "Local")

	c = office(2)
	c.Sites[0].Uplinks[0].Gateway = netip.MustParseAddr("192.0.2.1")
	c.Sites[0].Uplinks[1].Interfaces = []string{"inpath0", "nosuch"}
	c.Sites[1].Networks = append(c.Sites[1].Networks, netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.9.0.1/16"))
	c.Sites[2].Name = "dc"
	c.Balancers[1].Name = "b1"
	c.Rules = []Rule{
		{Name: "four", Uplinks: []string{"A", "B", "A", "Z"}},
		{Name: "ports", Match: Match{SrcPort: Ports{5, 1}, DSCP: 99, VLAN: 5000, DstSite: "moon"}, SetDSCP: 80, Else: 7},
	}
	c.Marks = []Mark{{Name: "none"}}
	c.Probing = Probing{Interval: -1}
	_, err = New(c, 0, nil)
	require.ErrorIs(t, err, steering.ErrInvalid)
	for _, want := range []string{
		`"A".Gateway = 192.0.2.1: want an address on the subnet`, `"B".Gateway = 10.1.1.1: want an address on the subnet of interface inpath0 of b1`,
		`"nosuch"`, "site office has this one", "10.9.0.0/16, without bits", `Sites[2] "dc".Name`, `Balancers[1] "b1".Name`,
		"at most 3", `Uplinks[2] = "A"`, `Uplinks[3] = "Z"`, "SrcPort", "DSCP = 98", "VLAN = 5000", `"moon"`, "SetDSCP = 79", "Else",
		`Marks[0] "none".DSCP`, "Probing",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestExportImport(t *testing.T) {
	c := office(3)
	c.Rules = []Rule{
		{Name: "r", Match: Match{Src: netip.MustParsePrefix("2001:db8::/32"), DstPort: Ports{1, 9}, DSCP: CodePoint(0), App: "x", VLAN: Untagged},
			Uplinks: []string{"A", "C"}, Else: Drop, SetDSCP: CodePoint(10), Export: true},
	}
	c.Marks = []Mark{{Match: Match{DstSite: "dc"}, DSCP: CodePoint(0)}}
	c.Probing = Probing{Interval: 3 * time.Second, Losses: 5}
	b, err := c.Export()
	require.NoError(t, err)
	back, err := Import(b)
	require.NoError(t, err)
	require.Equal(t, c, back)
	again, err := back.Export()
	require.NoError(t, err)
	require.Equal(t, string(b), string(again))
	require.NoError(t, newEngine(t, nil, nil).Set(back), "pushed to a running member")

	for name, bad := range map[string]string{
		"unknown field": strings.Replace(string(b), `"local"`, `"locale"`, 1),
		"version":       strings.Replace(string(b), `"version": 1`, `"version": 2`, 1),
		"twice":         string(b) + string(b),
		"fault":         strings.Replace(string(b), `"C"`, `"Z"`, 1),
		"DSCP":          strings.Replace(string(b), `"setDSCP": "10"`, `"setDSCP": "64"`, 1),
		"empty":         "",
		"fallback":      strings.Replace(string(b), `"drop"`, `"lose"`, 1),
	} {
		_, err := Import([]byte(bad))
		require.Error(t, err, name)
	}
}

func TestHeader(t *testing.T) {
	payload := []byte{0x60, 1, 2, 3}
	b := append(AppendHeader(nil, 0xdeadbeef, EtherIPv6), payload...)
	require.Equal(t, []byte{0x20, 0, 0x86, 0xdd, 0xde, 0xad, 0xbe, 0xef, 0x60, 1, 2, 3}, b)
	id, ether, rest, err := ParseHeader(b)
	require.NoError(t, err)
	require.Equal(t, ChannelID(0xdeadbeef), id)
	require.EqualValues(t, EtherIPv6, ether)
	require.Equal(t, payload, rest)
	for n := range HeaderLen {
		_, _, _, err := ParseHeader(b[:n])
		require.ErrorIs(t, err, ErrHeader)
	}
	for _, i := range []int{0, 1, 2, 3} {
		wrong := append([]byte(nil), b...)
		wrong[i] ^= 0x40
		_, _, _, err := ParseHeader(wrong)
		require.ErrorIs(t, err, ErrHeader)
	}
	_, _, _, err = ParseHeader(make([]byte, 8))
	require.True(t, errors.Is(err, ErrHeader))
}

func TestDecideDoesNotAllocate(t *testing.T) {
	c := office(2)
	c.Rules = []Rule{{Match: Match{DstSite: "lab"}, Uplinks: []string{"B"}}, {Uplinks: []string{"A"}}}
	e := newEngine(t, c, nil)
	p := packet("10.1.0.5:1", "10.2.0.5:80")
	require.Zero(t, testing.AllocsPerRun(100, func() { e.Decide(p) }))
}

func FuzzImport(f *testing.F) {
	b, err := office(2).Export()
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Import(b)
		if err != nil {
			return
		}
		e, err := New(c, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		e.Explain(packet("10.1.0.5:1", "10.2.0.5:80"))
		out, err := c.Export()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Import(out); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	f.Add(AppendHeader(nil, 1, EtherIPv4))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, ether, rest, err := ParseHeader(b)
		if err == nil && string(append(AppendHeader(nil, id, ether), rest...)) != string(b) {
			t.Fatal("not the same header")
		}
	})
}
