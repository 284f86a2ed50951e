package path

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

// The QoS marking table applies to optimised and to pass-through traffic, whatever becomes of the
// packet: sent, relayed or dropped. While the cluster is not steady, its rows of applications do
// not match pass-through TCP either.
func TestMarksOfAllTraffic(t *testing.T) {
	c := office(1)
	c.Rules = []Rule{
		{Name: "sent", Match: Match{DstPort: Ports{1, 1}}, Uplinks: []string{"A"}},
		{Name: "marked", Match: Match{DstPort: Ports{2, 2}}, Uplinks: []string{"A"}, SetDSCP: CodePoint(46)},
		{Name: "dropped", Match: Match{DstPort: Ports{3, 3}}, Else: Drop},
	}
	c.Marks = []Mark{
		{Name: "app", Match: Match{App: "voice"}, DSCP: CodePoint(34)},
		{Name: "six", Match: Match{Dst: netip.MustParsePrefix("2001:db8::/32")}, DSCP: CodePoint(12)},
		{Name: "rest", DSCP: CodePoint(8)},
	}
	e := newEngine(t, c, nil)
	for _, optimized := range []bool{true, false} {
		for dst, want := range map[string]Decision{
			"10.2.0.1:1": {Outcome: Sent, Rule: "sent", DSCP: CodePoint(8), Mark: "rest"},
			"10.2.0.1:2": {Outcome: Sent, Rule: "marked", DSCP: CodePoint(46)},
			"10.2.0.1:3": {Outcome: Dropped, Rule: "dropped", DSCP: CodePoint(8), Mark: "rest"},
			"10.2.0.1:4": {Outcome: Relayed, DSCP: CodePoint(8), Mark: "rest", Via: Via{"b2", "inpath1"}},
		} {
			p := packet("10.1.0.1:1", dst)
			p.Optimized = optimized
			d := e.Decide(p)
			d.Channel = nil
			require.Equal(t, want, d)
		}
		p := packet("[2001:db8:1::1]:1", "[2001:db8:2::1]:1")
		p.Optimized = optimized
		require.Equal(t, "six", e.Decide(p).Mark)
		p.App = "voice"
		require.Equal(t, "app", e.Decide(p).Mark)
		p.HeaderOnly = true
		require.Equal(t, optimized, e.Decide(p).Mark == "app")
		p.Protocol = 17
		require.Equal(t, "app", e.Decide(p).Mark)
	}
}

// A rule that only asks for flow export leaves the packet where it is and as it is, but for the
// QoS marking table, and decides: the rules after it are not asked.
func TestRulesForExportOnly(t *testing.T) {
	c := office(1)
	c.Rules = []Rule{
		{Name: "export", Match: Match{Protocol: 17}, Export: true},
		{Name: "all", Uplinks: []string{"A"}},
	}
	e := newEngine(t, c, nil)
	p := packet("[2001:db8:1::1]:1", "[2001:db8:2::1]:1")
	require.False(t, e.Decide(p).Export)
	p.Protocol = 17
	require.Equal(t, Decision{Via: p.Via, Rule: "export", Export: true}, e.Decide(p))
	// One that also names an uplink exports what it sends.
	c.Rules[0].Uplinks = []string{"A"}
	require.NoError(t, e.Set(c))
	d := e.Decide(p)
	require.Equal(t, Sent, d.Outcome)
	require.True(t, d.Export)
	// Dropping is not exporting only.
	c.Rules[0].Uplinks, c.Rules[0].Else = nil, Drop
	require.ErrorContains(t, e.Set(c), `Rules[0] "export".Else`)
}

// The whole, exported by one member, is imported by another and pushed to all while they run: the
// same channels with the same keys everywhere, and what stays keeps its state.
func TestOneFileForAllMembers(t *testing.T) {
	c := office(4)
	c.Sites[0].Uplinks = append(c.Sites[0].Uplinks, Uplink{Name: "six", Gateway: netip.MustParseAddr("2001:db8:f::1"), Interfaces: []string{"inpath9"}})
	for b := range c.Balancers {
		c.Balancers[b].Interfaces = append(c.Balancers[b].Interfaces, Interface{
			Name: "inpath9", Prefix: netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 0xf, 15: byte(10 + b)}), 64),
		})
	}
	c.Rules = []Rule{{Name: "r", Uplinks: []string{"six", "A"}, Export: true, SetDSCP: CodePoint(46)}}
	c.Marks = []Mark{{Name: "m", DSCP: CodePoint(8)}}
	members := []*Engine{newEngine(t, office(4), nil), newEngine(t, office(1), nil), newEngine(t, nil, nil)}
	fail(members[0], time.Unix(0, 0), "A")
	file, err := c.Export()
	require.NoError(t, err)
	want, err := c.Channels()
	require.NoError(t, err)
	require.Len(t, want, 10)
	for i, e := range members {
		got, err := Import(file)
		require.NoError(t, err)
		require.Equal(t, c, got)
		require.NoError(t, e.Set(got))
		var channels []Channel
		for _, s := range e.Channels() {
			channels = append(channels, s.Channel)
			require.Equal(t, i != 0 || s.Uplink != "A", s.Up, "%d: %+v", i, s)
		}
		require.Equal(t, want, channels)
		require.Equal(t, "six", e.Decide(packet("[2001:db8:1::1]:1", "[2001:db8:2::1]:1")).Channel.Uplink)
		v := e.view.Load()
		require.NoError(t, e.Set(got))
		require.Same(t, v, e.view.Load(), "the same file again changes nothing")
	}
}

func TestMoreFaults(t *testing.T) {
	c := office(2)
	c.Sites[0].Uplinks[0].Gateway = netip.MustParseAddr("10.1.0.10") // that of b1 itself
	c.Sites[0].Uplinks[1].Name = "A"
	c.Sites[1].Uplinks = []Uplink{{Name: "x"}}
	c.Sites[1].Networks = append(c.Sites[1].Networks, netip.Prefix{}, netip.PrefixFrom(netip.MustParseAddr("::ffff:10.0.0.0"), 104))
	c.Balancers[0].Interfaces = append(c.Balancers[0].Interfaces, Interface{Name: "inpath0"})
	c.Rules = []Rule{{Name: "r", Match: Match{Src: netip.MustParsePrefix("10.0.0.0/8"), Dst: netip.MustParsePrefix("::/0")}}}
	c.Marks = []Mark{{Name: "m", DSCP: 99, Match: Match{DstPort: Ports{0, 9}}}}
	c.Probing = Probing{Interval: time.Hour, Idle: time.Minute}
	err := c.Validate()
	require.ErrorIs(t, err, steering.ErrInvalid)
	for _, want := range []string{
		`"A".Gateway = 10.1.0.10: want an address other than that of interface inpath0 of b1`, `Uplinks[1] "A".Name = "A": want a name of its own`,
		`Sites[1] "dc".Uplinks[0] "x".Gateway = invalid IP: want an address`, `Sites[1] "dc".Networks[2] = invalid Prefix`, "the IPv4 form",
		`Interfaces[2] "inpath0".Name`, `Interfaces[2] "inpath0".Prefix`, `Rules[0] "r".Match.Dst = ::/0: want the family of Src`,
		`Marks[0] "m".DSCP = 98: want 0 to 63`, `Marks[0] "m".Match.DstPort`, "Probing.Idle = 1m0s: want at least Interval, 1h0m0s",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestTextRoundTrips(t *testing.T) {
	for i, want := range []string{"relayed", "sent", "dropped"} {
		b, err := Outcome(i).MarshalText()
		require.NoError(t, err)
		require.Equal(t, want, string(b))
		require.Equal(t, want, Outcome(i).String())
		var back Outcome
		require.NoError(t, back.UnmarshalText(b))
		require.EqualValues(t, i, back)
	}
	for i, want := range []string{"relay", "drop"} {
		b, err := Fallback(i).MarshalText()
		require.NoError(t, err)
		require.Equal(t, want, string(b))
		var back Fallback
		require.NoError(t, back.UnmarshalText(b))
		require.EqualValues(t, i, back)
	}
	for d := range DSCP(65) {
		b, err := d.MarshalText()
		require.NoError(t, err)
		require.Equal(t, d.String(), string(b))
		var back DSCP
		require.NoError(t, back.UnmarshalText(b))
		require.Equal(t, d, back)
	}
	_, err := DSCP(65).MarshalText()
	require.Error(t, err)
	_, err = Outcome(3).MarshalText()
	require.Error(t, err)
	require.Error(t, new(Outcome).UnmarshalText([]byte("lost")))
	require.Error(t, new(DSCP).UnmarshalText([]byte("64")))
}
