package path

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSetNilIsTheEmptyConfiguration(t *testing.T) {
	e := newEngine(t, office(2), nil)
	require.NoError(t, e.Set(nil))
	require.Empty(t, e.Channels())
	require.Equal(t, Relayed, e.Decide(packet("10.1.0.1:1", "10.2.0.1:80")).Outcome)
}

// Names that JSON cannot carry would not come back as they were.
func TestNamesAreUTF8(t *testing.T) {
	c := office(1)
	c.Sites[2].Name = "l\xffb"
	c.Sites[0].Uplinks[0].Name = "\xff"
	c.Balancers[0].Name = "b\xfe"
	c.Rules = []Rule{{Name: "r\xff"}, {Match: Match{App: "\xff"}}}
	c.Marks = []Mark{{Name: "m\xff", DSCP: CodePoint(1)}}
	err := c.Validate()
	for _, field := range []string{"Sites[2]", "Uplinks[0]", "Balancers[0]", "Rules[0]", "Rules[1]", "Marks[0]"} {
		require.ErrorContains(t, err, field)
	}
	_, err = c.Export()
	require.Error(t, err)
}

// Two uplinks through one gateway would have two active channels of it.
func TestOneGatewayOneUplink(t *testing.T) {
	c := office(2)
	c.Sites[0].Uplinks[1].Gateway = c.Sites[0].Uplinks[0].Gateway
	require.ErrorContains(t, c.Validate(), "Uplinks[1]")
	c = office(2)
	c.Sites[1].Uplinks = []Uplink{{Name: "A", Gateway: c.Sites[0].Uplinks[0].Gateway}}
	require.NoError(t, c.Validate(), "other sites have gateways of their own")
}

// An export of an import is the same, byte by byte, whatever the configuration.
func TestExportIsStable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		c := office(1 + r.IntN(4))
		c.Sites[0].Uplinks[0].Interfaces = []string{"inpath0"}
		if r.IntN(2) == 0 {
			c.Probing = Probing{Interval: time.Duration(1+r.IntN(1e9)) * 3, Losses: r.IntN(5)}
		}
		for i := range r.IntN(6) {
			rule := Rule{
				Name: fmt.Sprintf("<é&%d>", i), Else: Fallback(r.IntN(2)), SetDSCP: DSCP(r.IntN(65)), Disabled: r.IntN(2) == 0,
				Match: Match{
					VLAN: r.IntN(4096) - 1, DSCP: DSCP(r.IntN(65)), Protocol: uint8(r.IntN(256)), DstSite: []string{"", "lab"}[r.IntN(2)],
					Src: []netip.Prefix{{}, netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("0.0.0.0/0")}[r.IntN(3)],
				},
			}
			if rule.Match.VLAN == 4095 {
				rule.Match.VLAN = 0
			}
			rule.Uplinks = []string{"A"}
			c.Rules = append(c.Rules, rule)
			c.Marks = append(c.Marks, Mark{Name: rule.Name, Match: rule.Match, DSCP: DSCP(1 + r.IntN(64))})
		}
		first, err := c.Export()
		require.NoError(t, err)
		back, err := Import(first)
		require.NoError(t, err)
		require.Equal(t, c, back)
		again, err := back.Export()
		require.NoError(t, err)
		require.Equal(t, string(first), string(again))
	}
}

// The destination's site against the obvious search, with many networks of both
// families.
func TestSitesAgainstTheSlowTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	addr := func() netip.Addr {
		if r.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), byte(r.IntN(4)), byte(r.IntN(256))})
		}
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(r.IntN(4)), byte(r.IntN(4)), 15: byte(r.IntN(256))})
	}
	for _, n := range []int{0, 1, 5, 40, 400} {
		c := office(1)
		seen := map[netip.Prefix]string{}
		for i := range n {
			a := addr()
			net := netip.PrefixFrom(a, r.IntN(a.BitLen()+1)).Masked()
			if seen[net] != "" {
				continue
			}
			name := fmt.Sprintf("s%d", i)
			seen[net] = name
			c.Sites = append(c.Sites, Site{Name: name, Networks: []netip.Prefix{net}})
		}
		c.Sites[0].Networks, c.Sites[1].Networks, c.Sites[2].Networks = nil, nil, nil
		e := newEngine(t, c, nil)
		for range 2000 {
			a := addr()
			want, bits := "", -1
			for net, name := range seen {
				if net.Contains(a) && net.Bits() > bits {
					want, bits = name, net.Bits()
				}
			}
			require.Equal(t, want, e.Site(a), a)
			require.Equal(t, want, e.Site(netip.AddrFrom16(a.As16())), a)
			require.Zero(t, e.Site(netip.Addr{}))
		}
	}
}

// A Run that ends is no loss of the probes under way, and the next Run asks again.
func TestStoppedRunLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, office(1), nil)
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			asked := 0
			go func() {
				done <- e.Run(ctx, func(ctx context.Context, _ Channel) error {
					<-ctx.Done()
					return ctx.Err()
				})
			}()
			synctest.Wait()
			cancel()
			require.True(t, errors.Is(<-done, context.Canceled))
			for _, c := range e.Channels() {
				require.True(t, c.Up)
				require.Zero(t, c.Losses)
				asked++
			}
			require.Equal(t, 2, asked)
		}
		due, _ := e.Due(time.Now())
		require.Len(t, due, 2)
	})
}

// Mark says what Decide does, and is no traffic: nothing is probed for it.
func TestMarkIsNoTraffic(t *testing.T) {
	cfg := &Config{
		Local:     "here",
		Sites:     []Site{{Name: "here", Uplinks: []Uplink{{Name: "mpls", Gateway: netip.MustParseAddr("192.0.2.1")}}}},
		Balancers: []Balancer{{Name: "b1", Interfaces: []Interface{{Name: "wan0", Prefix: netip.MustParsePrefix("192.0.2.2/24")}}}},
		Rules:     []Rule{{Name: "all", Uplinks: []string{"mpls"}}},
	}
	e, err := New(cfg, 1, nil)
	require.NoError(t, err)
	require.False(t, e.Marks())
	next := *cfg
	next.Rules = []Rule{{Name: "all", Uplinks: []string{"mpls"}, SetDSCP: CodePoint(46), Export: true}}
	require.NoError(t, e.Set(&next))
	require.True(t, e.Marks())
	p := Packet{Src: netip.MustParseAddrPort("10.0.0.1:1"), Dst: netip.MustParseAddrPort("10.1.0.1:2"), Protocol: 6}
	u := e.view.Load().uplinks["mpls"]
	d := e.Mark(&p)
	require.False(t, u.wanted.Load())
	require.Equal(t, CodePoint(46), d.DSCP)
	require.True(t, d.Export)
	require.Zero(t, testing.AllocsPerRun(100, func() { e.Mark(&p) }))
	require.Equal(t, d, e.Decide(&p))
	require.True(t, u.wanted.Load())
	next.Rules[0].Disabled = true
	require.NoError(t, e.Set(&next))
	require.False(t, e.Marks())
	next.Rules = nil
	next.Marks = []Mark{{Name: "m", DSCP: CodePoint(1)}}
	require.NoError(t, e.Set(&next))
	require.True(t, e.Marks())
}

// Traffic wakes Run when it changes something, not with every packet.
func TestTrafficWakesRunOnce(t *testing.T) {
	c := office(1)
	c.Rules = []Rule{{Uplinks: []string{"A"}}}
	e := newEngine(t, c, nil)
	now := time.Unix(0, 0)
	p := packet("10.1.0.5:1", "10.2.0.5:80")
	woken := func() bool {
		select {
		case <-e.wake:
			return true
		default:
			return false
		}
	}
	flood := func() (wakes int) {
		for range 1000 {
			if e.Decide(p); woken() {
				wakes++
				e.Due(now)
			}
		}
		return wakes
	}
	answer := func() {
		due, _ := e.Due(now)
		for _, ch := range due {
			e.Result(now, ch.ID, true)
		}
		for woken() {
			e.Due(now)
		}
	}
	answer()
	require.LessOrEqual(t, flood(), 2, "under traffic from the beginning")
	// Without traffic the interval grows; then the first packet wakes Run, and the probe is due.
	for range 10 {
		now = now.Add(time.Hour)
		answer()
	}
	now = now.Add(time.Minute)
	require.False(t, woken())
	e.Decide(p)
	require.True(t, woken())
	due, _ := e.Due(now)
	require.Len(t, due, 2)
	require.LessOrEqual(t, flood(), 2, "while probes are under way")
	for _, ch := range due {
		e.Result(now, ch.ID, true)
	}
	require.True(t, woken())
	e.Due(now)
	require.LessOrEqual(t, flood(), 2)
}

// A shorter idle interval holds at once, and not after the longer one.
func TestIdleIntervalIsShortened(t *testing.T) {
	c := office(1)
	c.Rules = []Rule{{Uplinks: []string{"A"}}}
	e := newEngine(t, c, nil)
	now := time.Unix(0, 0)
	for range 12 {
		now = e.Step(now, func(Channel) bool { return true })
	}
	c.Probing.Idle = 10 * time.Second
	require.NoError(t, e.Set(c))
	now = now.Add(-1790 * time.Second)
	due, _ := e.Due(now)
	require.Len(t, due, 2)
}
