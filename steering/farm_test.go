package steering

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// backedUp is two members and a backup.
func backedUp(limit int) []Node {
	ns := nodes(1, 1, 1)
	ns[0].MaxSessions, ns[1].MaxSessions = limit, limit
	ns[2].Backup = true
	return ns
}

func TestBackup(t *testing.T) {
	for _, m := range allMetrics() {
		t.Run(m.String(), func(t *testing.T) {
			p := newPool(t, &Config{Metric: m}, backedUp(2)...)
			got := picks(t, p, 6, false)
			require.NotContains(t, got[:4], "c")
			require.Equal(t, "cc", got[4:], "overflow")
			p.Release(id(t, p, "a"))
			require.Equal(t, "ac", picks(t, p, 2, false))

			p = newPool(t, &Config{Metric: m, Backup: BackupWhenDown}, backedUp(2)...)
			require.Equal(t, "--", picks(t, p, 6, false)[4:], "no overflow")
			_, err := p.Pick(client(1))
			require.ErrorIs(t, err, ErrOverload)
			p.SetUp(id(t, p, "a"), false)
			require.Equal(t, "--", picks(t, p, 2, false), "b is up")
			p.SetUp(id(t, p, "b"), false)
			require.Equal(t, "cc", picks(t, p, 2, false))
			p.SetUp(id(t, p, "b"), true)
			require.NotContains(t, picks(t, p, 1, false), "c", "pre-empted")
		})
	}
}

func TestNoPreempt(t *testing.T) {
	p := newPool(t, &Config{NoPreempt: true}, backedUp(0)...)
	a, b, c := id(t, p, "a"), id(t, p, "b"), id(t, p, "c")
	p.SetUp(a, false)
	require.Equal(t, "bb", picks(t, p, 2, true))
	p.SetUp(b, false)
	require.Equal(t, "cc", picks(t, p, 2, true))
	p.SetUp(a, true)
	p.SetUp(b, true)
	require.Equal(t, "cc", picks(t, p, 2, true), "keeps what it took over")
	_, err := p.Set(append(backedUp(0), Node{Name: "d", Weight: ZeroWeight})...)
	require.NoError(t, err)
	require.Equal(t, "cc", picks(t, p, 2, true), "over a reconfiguration too")
	p.Revert()
	require.NotContains(t, picks(t, p, 8, true), "c")
	p.SetUp(a, false)
	p.SetUp(b, false)
	require.Equal(t, "cc", picks(t, p, 2, true))
	p.SetUp(a, true)
	p.SetUp(c, false)
	require.Equal(t, "aa", picks(t, p, 2, true))
	p.SetUp(c, true)
	require.Equal(t, "aa", picks(t, p, 2, true), "the members did not fail")
}

func TestPanicMode(t *testing.T) {
	p := newPool(t, &Config{Metric: RoundRobin, PanicPercent: 50}, nodes(1, 1, 1, 1)...)
	p.SetUp(id(t, p, "a"), false)
	p.SetUp(id(t, p, "b"), false)
	require.Equal(t, "cdcd", picks(t, p, 4, true), "half are up")
	p.SetUp(id(t, p, "c"), false)
	require.Len(t, counts(strings.Split(picks(t, p, 8, true), "")), 4, "all are served")
	require.True(t, p.Usable(id(t, p, "a")))
	p.SetUp(id(t, p, "c"), true)
	require.False(t, p.Usable(id(t, p, "a")))
	require.NotContains(t, picks(t, p, 8, true), "a")
}

func TestStartDown(t *testing.T) {
	p := newPool(t, &Config{StartDown: true, RecoveryTime: time.Hour, SlowStart: time.Hour}, nodes(1, 1)...)
	_, err := p.Pick(Key{})
	require.ErrorIs(t, err, ErrNoNode)
	p.SetUp(id(t, p, "a"), true)
	require.Equal(t, "aa", picks(t, p, 2, true), "the first time up is no recovery")
	st, _ := p.Status(id(t, p, "a"))
	require.Equal(t, 1.0, st.Warmth)
}

func TestResponseAndBandwidth(t *testing.T) {
	share := func(p *Pool) float64 { return float64(strings.Count(picks(t, p, 3000, true), "a")) / 3000 }

	p := newPool(t, &Config{Metric: Response}, nodes(1, 1)...)
	require.InDelta(t, 0.5, share(p), 0.001, "no samples: base weight")
	for range 5 {
		p.Observe(id(t, p, "a"), 10*time.Millisecond)
		p.Observe(id(t, p, "b"), 20*time.Millisecond)
	}
	require.InDelta(t, 2.0/3, share(p), 0.001)
	for range 40 {
		p.Observe(id(t, p, "a"), 40*time.Millisecond)
	}
	require.InDelta(t, 1.0/3, share(p), 0.03)

	p = newPool(t, &Config{Metric: Bandwidth}, nodes(1, 1, ZeroWeight)...)
	p.AddOctets(id(t, p, "a"), 1<<20)
	p.AddOctets(id(t, p, "b"), 2<<20)
	p.AddOctets(id(t, p, "c"), 9<<20)
	require.InDelta(t, 0.5, share(p), 0.001, "the interval is not over")
	p.Tick()
	require.InDelta(t, 2.0/3, share(p), 0.001)
	st, _ := p.Status(id(t, p, "b"))
	require.EqualValues(t, 2<<20, st.Octets)
	p.Tick()
	require.InDelta(t, 0.5, share(p), 0.001, "zero octets: base weight")

	// Weight and measure multiply; a huge count does not overflow.
	p = newPool(t, &Config{Metric: Bandwidth}, nodes(3, 1)...)
	p.AddOctets(id(t, p, "a"), 1<<63)
	p.AddOctets(id(t, p, "b"), 1<<63)
	p.Tick()
	require.InDelta(t, 0.75, share(p), 0.001)
}

// Two equal nodes, one under high pressure: 2:1; one severe: all to the other; both
// severe: none, with the reason. Sessions there are stay.
func TestPressure(t *testing.T) {
	for _, m := range allMetrics() {
		t.Run(m.String(), func(t *testing.T) {
			ns := nodes(1, 1)
			ns[0].Capacity, ns[1].Capacity = 100, 100
			p := newPool(t, &Config{Metric: m, ClientBits: 32}, ns...)
			a, b := id(t, p, "a"), id(t, p, "b")
			release := m != LeastConns && m != RandomTwo // theirs are shares of open sessions
			share := func(optimized bool) float64 {
				n, first, flows := 0, 0, 30000
				if optimized {
					flows = 2000
				}
				for i := range flows {
					k := client(i)
					k.Optimized = optimized
					id, err := p.Pick(k)
					if err != nil {
						continue
					}
					n++
					if id == a {
						first++
					}
					if release || optimized {
						defer p.Release(id)
					}
				}
				return float64(first) / float64(n)
			}
			p.SetPressure(b, High)
			require.InDelta(t, 2.0/3, share(false), 0.01)
			require.Equal(t, 1.0, share(true), "optimised: the calm node first")
			p.SetPressure(b, Severe)
			require.Equal(t, 1.0, share(false))
			require.True(t, p.Usable(b), "what is there stays")
			require.False(t, p.Acquire(b))
			require.True(t, p.AcquireOptimized(b))
			p.SetPressure(a, Severe)
			_, err := p.Pick(client(1))
			require.ErrorIs(t, err, ErrPressure)
			require.InDelta(t, 0.5, share(true), 0.5, "optimised are never refused")
			p.SetPressure(a, High)
			require.Equal(t, 1.0, share(true))
			st, _ := p.Status(b)
			require.Equal(t, UnderSeverePressure, st.State)
		})
	}
}

func TestPressureHysteresis(t *testing.T) {
	p := newPool(t, &Config{Pressure: Pressure{
		Memory:  Thresholds{HighRise: .8, HighFall: .7, SevereRise: .95, SevereFall: .9},
		Latency: Thresholds{HighRise: .1, HighFall: .05},
	}}, nodes(1)...)
	a := id(t, p, "a")
	for i, tt := range []struct {
		memory float64
		ms     time.Duration
		want   Level
	}{
		{.79, 0, Normal},
		{.80, 0, High},
		{.75, 0, High},
		{.70, 0, High},
		{.69, 0, Normal},
		{.79, 0, Normal},
		{.96, 0, Severe},
		{.91, 0, Severe},
		{.89, 0, High},
		{.94, 0, High},
		{.10, 99, Normal},
		{.10, 100, High},
		{.10, 60, High},
		{.96, 10, Severe},
		{.10, 10, Normal},
	} {
		require.Equal(t, tt.want, p.Report(a, Gauges{Memory: tt.memory, Latency: tt.ms * time.Millisecond}), "reading %d", i)
	}
	require.Equal(t, Normal, p.Report(99, Gauges{Memory: 1}), "an unknown node")
}

// The hash lists of Web OS: which clients move when one of three nodes fails.
func TestWhoMovesWhenANodeFails(t *testing.T) {
	for _, m := range []Metric{Hash, MinMisses, PHash, Maglev, Capacity} {
		t.Run(m.String(), func(t *testing.T) {
			p := newPool(t, &Config{Metric: m, ClientBits: 32}, nodes(1, 1, 1)...)
			before := picks(t, p, 5000, true)
			p.SetUp(id(t, p, "a"), false)
			during := picks(t, p, 5000, true)
			others := 0
			for i := range before {
				if before[i] != 'a' && before[i] != during[i] {
					others++
				}
			}
			switch m {
			case Hash:
				require.Positive(t, others)
			case Capacity:
				require.Less(t, others, 1000, "few")
			default:
				require.Zero(t, others)
			}
			c := counts(strings.Split(during, ""))
			require.InDelta(t, 2500, c["b"], 200)
			require.InDelta(t, 2500, c["c"], 200)
			p.SetUp(id(t, p, "a"), true)
			require.Equal(t, before, picks(t, p, 5000, true), "clients return")
		})
	}
}

func TestMinMissesClientBits(t *testing.T) {
	key := func(s string) Key { return Key{Client: netip.MustParseAddr(s)} }
	pick := func(p *Pool, s string) string {
		id, err := p.Pick(key(s))
		require.NoError(t, err)
		return name(t, p, id)
	}
	ns := nodes(1, 1, 1, 1, 1, 1, 1, 1)
	p := newPool(t, &Config{Metric: MinMisses, ClientBits: 24}, ns...)
	require.Equal(t, pick(p, "10.0.0.1"), pick(p, "10.0.0.200"))
	require.Equal(t, pick(p, "10.0.0.1"), pick(p, "::ffff:10.0.0.200"))
	require.Equal(t, pick(p, "2001:db8::1"), pick(p, "2001:db8::ffff:200"))
	seen24, seen32 := map[string]bool{}, map[string]bool{}
	q := newPool(t, &Config{Metric: MinMisses, ClientBits: 32}, ns...)
	for i := range 100 {
		seen24[pick(p, fmt.Sprintf("10.0.0.%d", i))] = true
		seen32[pick(q, fmt.Sprintf("10.0.0.%d", i))] = true
	}
	require.Len(t, seen24, 1)
	require.Len(t, seen32, 8)
	// Nodes with one address, and nodes without one, share all the same.
	for _, addr := range []netip.AddrPort{{}, netip.MustParseAddrPort("10.1.1.1:80")} {
		for i := range ns {
			ns[i].Addr = addr
		}
		r := newPool(t, &Config{Metric: MinMisses, ClientBits: 32}, ns...)
		seen := map[string]bool{}
		for i := range 100 {
			seen[pick(r, fmt.Sprintf("10.0.0.%d", i))] = true
		}
		require.Len(t, seen, 8)
	}
}

// The client's port does not leak into a hash of the address, and keys without an
// address do not all hash to one node.
func TestHashesOfKeys(t *testing.T) {
	for _, m := range []Metric{Hash, MinMisses, PHash} {
		p := newPool(t, &Config{Metric: m}, nodes(1, 1, 1)...)
		seen := map[NodeID]bool{}
		for port := range 1000 {
			id, err := p.Pick(Key{Client: netip.MustParseAddr("192.0.2.1"), Hash: uint64(port)})
			require.NoError(t, err)
			seen[id] = true
		}
		require.Len(t, seen, 1)
	}
	for _, m := range []Metric{Hash, MinMisses, PHash, Maglev, Capacity} {
		p := newPool(t, &Config{Metric: m}, nodes(1, 1, 1)...)
		seen := map[NodeID]int{}
		for i := range 3000 {
			id, err := p.Pick(Key{Hash: uint64(i)})
			require.NoError(t, err)
			seen[id]++
		}
		for _, n := range seen {
			require.InDelta(t, 1000, n, 150, m)
		}
	}
}

// The same nodes in any order answer alike.
func TestOrderDoesNotMatterToHashes(t *testing.T) {
	for _, m := range []Metric{Hash, MinMisses, PHash, Maglev, Capacity} {
		ns := nodes(1, 2, 3, 4, 5)
		p := newPool(t, &Config{Metric: m, Seed: 7}, ns...)
		q := newPool(t, &Config{Metric: m, Seed: 7}, ns[3], ns[1], ns[4], ns[0], ns[2])
		require.Equal(t, picks(t, p, 500, true), picks(t, q, 500, true), m)
		r := newPool(t, &Config{Metric: m, Seed: 8}, ns...)
		require.NotEqual(t, picks(t, p, 500, true), picks(t, r, 500, true), m)
	}
}

// A fleet of fresh pickers must not start on the same foot: 99:1 weights, one pick
// each.
func TestFreshPickers(t *testing.T) {
	for _, m := range []Metric{LeastConns, RoundRobin, WeightedCyclic, SmoothCyclic, Bandwidth, Response, RandomTwo} {
		light := 0
		for seed := range uint64(10000) {
			p := newPool(t, &Config{Metric: m, Seed: seed}, nodes(99, 1)...)
			if picks(t, p, 1, true) == "b" {
				light++
			}
		}
		if m == RandomTwo {
			continue // the light node must be drawn and be less loaded
		}
		require.InDelta(t, 100, light, 40, m)
	}
}

func TestSharesFollowWeights(t *testing.T) {
	for _, m := range []Metric{LeastConns, RoundRobin, WeightedCyclic, SmoothCyclic, Maglev, Capacity, RandomTwo, Bandwidth, Response} {
		p := newPool(t, &Config{Metric: m}, nodes(1, 10)...)
		n := strings.Count(picks(t, p, 22000, m != LeastConns && m != RandomTwo), "a")
		delta := 250.0
		if m == Capacity {
			delta = 300 // 23 of 256 buckets
		}
		require.InDelta(t, 2000, n, delta, m)
	}
}

// The share of a node that came up again rises and equals the rest after the window,
// whatever the metric; it never takes all new sessions for having none.
func TestSlowStartOfEveryMetric(t *testing.T) {
	for _, m := range allMetrics() {
		t.Run(m.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool(t, &Config{Metric: m, SlowStart: 32 * time.Second, ClientBits: 32}, nodes(1, 1, 1)...)
				a := id(t, p, "a")
				p.SetUp(a, false)
				picks(t, p, 6000, false)
				p.SetUp(a, true)
				last := -1.0
				for second := range 33 {
					p.Step(time.Now())
					n := 1500
					st, _ := p.Status(a)
					require.LessOrEqual(t, st.Warmth, 1.0)
					require.Positive(t, st.Warmth)
					share := float64(strings.Count(picks(t, p, n, m != LeastConns && m != RandomTwo), "a")) / float64(n)
					want := st.Warmth / (2 + st.Warmth)
					switch {
					case m == RandomTwo: // the empty node wins whenever it is drawn
						require.Less(t, share, 2*want+0.1)
					case m == Capacity:
						require.InDelta(t, want, share, 0.05)
					case second == 32 && m == LeastConns:
						// Warm: it catches up now.
					default:
						require.InDelta(t, want, share, 0.03, "second %d", second)
					}
					if second%8 == 0 && second < 32 {
						require.Greater(t, share, last-0.01)
						last = share
					}
					time.Sleep(time.Second)
				}
				require.True(t, p.Step(time.Now()).IsZero(), "nothing is due any more")
			})
		})
	}
}

func TestSlowStartSurvivesSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, &Config{Metric: RoundRobin, SlowStart: 100 * time.Second}, nodes(1, 1)...)
		_, err := p.Set(nodes(1, 1, 1)...)
		require.NoError(t, err)
		time.Sleep(50 * time.Second)
		p.Step(time.Now())
		st, _ := p.Status(id(t, p, "c"))
		require.InDelta(t, 0.5, st.Warmth, 0.05)
		_, err = p.Set(nodes(3, 10, 10)...)
		require.NoError(t, err)
		st, _ = p.Status(id(t, p, "c"))
		require.InDelta(t, 0.5, st.Warmth, 0.05)
		ns := nodes(1, 1, 1)
		ns[2].WarmUp = -1
		_, err = p.Set(ns...)
		require.NoError(t, err)
		p.Step(time.Now())
		st, _ = p.Status(id(t, p, "c"))
		require.Equal(t, 1.0, st.Warmth)
	})
}

func TestExplain(t *testing.T) {
	ns := nodes(1, 1, 1, 1, ZeroWeight, 1)
	ns[0].MaxSessions = 1
	ns[3].Backup = true
	ns[5].Admin = Draining
	for _, m := range allMetrics() {
		p := newPool(t, &Config{Metric: m, ClientBits: 32}, ns...)
		p.Acquire(id(t, p, "a"))
		p.SetUp(id(t, p, "c"), false)
		for i := range 50 {
			e := p.Explain(client(i))
			again := p.Explain(client(i))
			require.Equal(t, e, again, "asking changes nothing")
			got, err := p.Pick(client(i))
			require.NoError(t, err)
			require.Equal(t, got, e.Node, "%v: the explanation is the choice", m)
			p.Release(got)
			text := e.String()
			for _, want := range []string{
				`members "a": at-limit`, `members "b": chosen`, `members "c": down`, `members "e": weight-zero`, `members "f": draining`,
			} {
				require.Contains(t, text, want)
			}
		}
		p.SetUp(id(t, p, "b"), false)
		p.SetUp(id(t, p, "d"), false)
		e := p.Explain(client(1))
		require.ErrorIs(t, e.Err, ErrOverload)
		require.Contains(t, e.String(), "no node")
	}
}

func TestTextRoundTrips(t *testing.T) {
	for i := range metricNames.Len() {
		var back Metric
		b, err := Metric(i).MarshalText()
		require.NoError(t, err)
		require.NoError(t, back.UnmarshalText(b))
		require.Equal(t, Metric(i), back)
		require.Equal(t, string(b), Metric(i).String())
	}
	for i := range adminNames.Len() {
		var back AdminState
		b, err := AdminState(i).MarshalText()
		require.NoError(t, err)
		require.NoError(t, back.UnmarshalText(b))
		require.Equal(t, AdminState(i), back)
	}
	for i := range levelNames.Len() {
		var back Level
		b, err := Level(i).MarshalText()
		require.NoError(t, err)
		require.NoError(t, back.UnmarshalText(b))
		require.Equal(t, Level(i), back)
	}
	for i := range availabilityNames.Len() {
		var back Availability
		b, err := Availability(i).MarshalText()
		require.NoError(t, err)
		require.NoError(t, back.UnmarshalText(b))
		require.Equal(t, Availability(i), back)
	}
	for i := range backupNames.Len() {
		var back BackupRule
		b, err := BackupRule(i).MarshalText()
		require.NoError(t, err)
		require.NoError(t, back.UnmarshalText(b))
		require.Equal(t, BackupRule(i), back)
	}
	var m Metric
	require.ErrorContains(t, m.UnmarshalText([]byte("fastest")), "leastconns")
	_, err := Metric(200).MarshalText()
	require.Error(t, err)
	require.Equal(t, "Metric(200)", Metric(200).String())
}

func TestHashFlowIsSymmetricAndSpreads(t *testing.T) {
	a, b := netip.MustParseAddrPort("192.0.2.1:1000"), netip.MustParseAddrPort("198.51.100.7:80")
	require.Equal(t, HashFlow(6, a, b), HashFlow(6, b, a))
	require.NotEqual(t, HashFlow(6, a, b), HashFlow(17, a, b))
	m := netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	require.Equal(t, HashFlow(6, a, b), HashFlow(6, m, b))
	const golden = 0xe08dbe39d292c717
	require.EqualValues(t, uint64(golden), HashFlow(6, a, b), "fixed between releases")
	var buckets [256]int
	seen := map[uint64]bool{}
	for port := range uint16(25600) {
		h := HashFlow(6, netip.AddrPortFrom(a.Addr(), 1024+port), b)
		seen[h] = true
		buckets[h>>56]++
	}
	require.Len(t, seen, 25600)
	for _, n := range buckets {
		require.InDelta(t, 100, n, 60)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { HashFlow(6, a, b) }))
}
