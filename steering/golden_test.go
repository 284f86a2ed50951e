package steering

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func nodes(weights ...int) []Node {
	ns := make([]Node, len(weights))
	for i, w := range weights {
		ns[i] = Node{
			Name: string(rune('a' + i)), Weight: w,
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}), 80),
		}
	}
	return ns
}

func newPool(t testing.TB, cfg *Config, ns ...Node) *Pool {
	t.Helper()
	p, err := NewPool(cfg, ns...)
	require.NoError(t, err)
	return p
}

func id(t testing.TB, p *Pool, name string) NodeID {
	t.Helper()
	id, ok := p.ID(name)
	require.True(t, ok, "node %q", name)
	return id
}

func name(t testing.TB, p *Pool, id NodeID) string {
	t.Helper()
	s, ok := p.Name(id)
	require.True(t, ok, "node id %d", id)
	return s
}

// client is a key of client number i.
func client(i int) Key {
	a := netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)})
	return Key{Client: a, Hash: mix(uint64(i))}
}

// picks returns the names of n picks, releasing each at once if release is set.
func picks(t testing.TB, p *Pool, n int, release bool) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		id, err := p.Pick(client(i))
		if err != nil {
			b.WriteString("-")
			continue
		}
		b.WriteString(name(t, p, id))
		if release {
			p.Release(id)
		}
	}
	return b.String()
}

func allMetrics() (ms []Metric) {
	for i := range metricNames.Len() {
		ms = append(ms, Metric(i))
	}
	return ms
}

func TestGoldenSequences(t *testing.T) {
	for _, tt := range []struct {
		metric  Metric
		weights []int
		release bool
		want    string
	}{
		{RoundRobin, []int{1, 1, 1}, true, "abcabcabc"},
		{RoundRobin, []int{4, 3, 2}, true, "abcabcabaabcabcaba"},
		{RoundRobin, []int{2, 4, 6}, true, "abcbccabcbcc"},
		{Cyclic, []int{1, 5, 9}, true, "abcabcabc"},
		{WeightedCyclic, []int{2, 5}, true, "aabbbbbaabbbbb"},
		{WeightedCyclic, []int{1, 0, 1}, true, "abcabc"},
		{SmoothCyclic, []int{5, 1, 1}, true, "aabacaaaabacaa"},
		{LeastConns, []int{1, 1, 1}, true, "abcabcabc"},
		{LeastConns, []int{1, 1, 1}, false, "abcabcabc"},
		{LeastConns, []int{1, 2}, false, "abbabbabb"},
		{LeastConns, []int{3, 1}, true, "abaaabaa"},
	} {
		t.Run(fmt.Sprintf("%s %v release=%v", tt.metric, tt.weights, tt.release), func(t *testing.T) {
			p := newPool(t, &Config{Metric: tt.metric}, nodes(tt.weights...)...)
			require.Equal(t, tt.want, picks(t, p, len(tt.want), tt.release))
		})
	}
}

// The hashed metrics answer alike on every balancer and in every release: these rows
// must never change.
func TestGoldenHashes(t *testing.T) {
	for _, tt := range []struct {
		metric Metric
		want   string
	}{
		{Hash, "ecdbcbaacbcebbcdecacabadceeebdaeebaededa"},
		{MinMisses, "cbeedaeddaebeeeecbdcaeccaaeccddbdcaedabd"},
		{PHash, "ecdbcbaacbcebbcdecacabadceeebdaeebaededa"},
		{Maglev, "ddbccaaaeeaeddecabbcaedcbdebdebdaabaaade"},
		{Capacity, "aeebdedcaebddbddbbebadcdedaceabdaaecadac"},
	} {
		t.Run(tt.metric.String(), func(t *testing.T) {
			p := newPool(t, &Config{Metric: tt.metric, ClientBits: 32}, nodes(1, 1, 1, 1, 1)...)
			require.Equal(t, tt.want, picks(t, p, 40, false))
		})
	}
}

func TestLeastConnsFollowsLiveCounts(t *testing.T) {
	p := newPool(t, nil, nodes(1, 1, 1)...)
	require.Equal(t, "abcabc", picks(t, p, 6, false))
	p.Release(id(t, p, "b"))
	p.Release(id(t, p, "b"))
	p.Release(id(t, p, "c"))
	// b has none, c has one: b, then they are level and c's turn came first.
	require.Equal(t, "bcb", picks(t, p, 3, false))
}

func TestOneNodeAllDownAndBack(t *testing.T) {
	for _, m := range allMetrics() {
		t.Run(m.String(), func(t *testing.T) {
			p := newPool(t, &Config{Metric: m}, nodes(7)...)
			require.Equal(t, "aaaa", picks(t, p, 4, true))
			p.SetUp(id(t, p, "a"), false)
			_, err := p.Pick(client(1))
			require.ErrorIs(t, err, ErrNoNode)
			p.SetUp(id(t, p, "a"), true)
			require.Equal(t, "aaaa", picks(t, p, 4, true))

			p = newPool(t, &Config{Metric: m}, nodes(1, 2, 3)...)
			before := picks(t, p, 12, true)
			for _, n := range []string{"a", "b", "c"} {
				p.SetUp(id(t, p, n), false)
			}
			_, err = p.Pick(client(1))
			require.ErrorIs(t, err, ErrNoNode)
			for _, n := range []string{"c", "a", "b"} {
				p.SetUp(id(t, p, n), true)
			}
			after := picks(t, p, 12, true)
			if m.hashed() {
				require.Equal(t, before, after)
			}
			require.NotContains(t, after, "-")

			p = newPool(t, &Config{Metric: m})
			_, err = p.Pick(client(1))
			require.ErrorIs(t, err, ErrNoNode)
		})
	}
}

func TestWeightZeroIsNeverPicked(t *testing.T) {
	for _, m := range allMetrics() {
		t.Run(m.String(), func(t *testing.T) {
			p := newPool(t, &Config{Metric: m, ClientBits: 32}, nodes(ZeroWeight, 1, 1)...)
			got := picks(t, p, 1000, false)
			require.NotContains(t, got, "a")
			require.NotContains(t, got, "-")
			require.Greater(t, strings.Count(got, "b"), 300)
			require.Greater(t, strings.Count(got, "c"), 300)

			p = newPool(t, &Config{Metric: m}, nodes(ZeroWeight)...)
			_, err := p.Pick(client(1))
			require.ErrorIs(t, err, ErrNoNode)
			// It keeps its clients.
			require.True(t, p.Acquire(id(t, p, "a")))
			require.True(t, p.Usable(id(t, p, "a")))
		})
	}
}

func TestAllAtLimit(t *testing.T) {
	for _, m := range allMetrics() {
		t.Run(m.String(), func(t *testing.T) {
			ns := nodes(1, 1, 1)
			for i := range ns {
				ns[i].MaxSessions = 2
			}
			p := newPool(t, &Config{Metric: m}, ns...)
			got := picks(t, p, 8, false)
			require.Equal(t, 2, strings.Count(got, "a"))
			require.Equal(t, 2, strings.Count(got, "b"))
			require.Equal(t, 2, strings.Count(got, "c"))
			require.Equal(t, "--", got[6:])
			_, err := p.Pick(client(1))
			require.ErrorIs(t, err, ErrOverload)
			p.Release(id(t, p, "b"))
			require.Equal(t, "b-", picks(t, p, 2, false))
		})
	}
}

func TestDeadNodeLeavesItsTurns(t *testing.T) {
	for _, m := range []Metric{RoundRobin, WeightedCyclic, SmoothCyclic, LeastConns, Maglev, Capacity, RandomTwo} {
		t.Run(m.String(), func(t *testing.T) {
			p := newPool(t, &Config{Metric: m}, nodes(3, 1)...)
			p.SetUp(id(t, p, "a"), false)
			require.Equal(t, 400, strings.Count(picks(t, p, 400, true), "b"))
			p.SetUp(id(t, p, "a"), true)
			require.InDelta(t, 3000, strings.Count(picks(t, p, 4000, true), "a"), 120)
		})
	}
}
