package steering

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func newTable(t testing.TB, size int, shares ...Share) *MaglevTable {
	t.Helper()
	table, err := NewMaglevTable(size, 0, shares...)
	require.NoError(t, err)
	return table
}

func evenShares(n int) []Share {
	shares := make([]Share, n)
	for i := range shares {
		shares[i] = Share{fmt.Sprintf("node-%d", i), 1}
	}
	return shares
}

func TestMaglevExactAndIndependentOfOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 10 {
		shares := randomShares(r, 1+r.IntN(40))
		table := newTable(t, 65537, shares...)
		want := names(table.Slots(), shares)
		total := 0
		for _, s := range shares {
			total += s.Weight
		}
		c := counts(want)
		for _, s := range shares {
			require.InDelta(t, 65537*float64(s.Weight)/float64(total), c[s.Name], 1)
		}
		r.Shuffle(len(shares), func(i, j int) { shares[i], shares[j] = shares[j], shares[i] })
		require.Equal(t, want, names(newTable(t, 65537, shares...).Slots(), shares))
	}
}

// Weights 1:10 once came out 1:1, and twice as odd.
func TestMaglevWeights(t *testing.T) {
	table := newTable(t, 65537, Share{"a", 1}, Share{"b", 10})
	c := counts(names(table.Slots(), []Share{{"a", 1}, {"b", 10}}))
	require.InDelta(t, 5958, c["a"], 1)
	require.InDelta(t, 59579, c["b"], 1)

	// Shares of other implementations' tests.
	for _, tt := range []struct {
		size    int
		weights []int
		want    []int
	}{
		{1021, []int{2, 13, 111, 10}, []int{15, 98, 833, 75}}, // share ±1; Cilium 16, 98, 832, 75
		{17, []int{1, 2}, []int{6, 11}},
	} {
		var shares []Share
		for i, w := range tt.weights {
			shares = append(shares, Share{fmt.Sprint(i), w})
		}
		c := counts(names(newTable(t, tt.size, shares...).Slots(), shares))
		for i, want := range tt.want {
			require.InDelta(t, want, c[fmt.Sprint(i)], 1)
		}
	}
}

func TestMaglevOneNodeGoneMovesFewOthers(t *testing.T) {
	shares := evenShares(100)
	a := names(newTable(t, 65537, shares...).Slots(), shares)
	fewer := slices.Delete(slices.Clone(shares), 40, 41)
	b := names(newTable(t, 65537, fewer...).Slots(), fewer)
	other := 0
	for s := range a {
		if a[s] != shares[40].Name && a[s] != b[s] {
			other++
		}
	}
	require.Less(t, other, 65537/100, "less than 1 %% of the slots of the others")
}

// Nodes down and up lay over the table: only their slots move, the result does not
// depend on the history, and a return restores the table exactly.
func TestMaglevOverlay(t *testing.T) {
	const n = 12
	r := rand.New(rand.NewPCG(4, 4))
	shares := randomShares(r, n)
	full := newTable(t, 4099, shares...)
	parts := slices.Repeat([]uint8{FullPart}, n)
	was := full
	for range 300 {
		i := r.IntN(n)
		old := parts[i]
		parts[i] = uint8(r.IntN(3) * FullPart / 2)
		is := full.With(parts...)
		if slices.Max(parts) == 0 {
			require.Equal(t, -1, is.Lookup(1))
		} else if had, has := was.Slots(), is.Slots(); slices.Max(had) >= 0 {
			for s := range has {
				if has[s] != had[s] {
					if parts[i] < old {
						require.EqualValues(t, i, had[s], "only slots of the node that lost")
					} else {
						require.EqualValues(t, i, has[s], "only to the node that gained")
					}
				}
			}
		}
		was = is
	}
	require.Equal(t, full.Slots(), full.With().Slots())
	require.Equal(t, full.Slots(), full.With(slices.Repeat([]uint8{FullPart}, n)...).Slots())
}

// Even when nearly all are down every slot finds a living node, soon.
// Both ways to find a node's slots come to the same table.
func TestMaglevOverlayWays(t *testing.T) {
	shares := evenShares(300)
	full := newTable(t, 4099, shares...)
	some := slices.Repeat([]uint8{FullPart}, 300)
	some[7], some[200] = 0, FullPart/2
	base := full.Slots()
	for s, i := range full.With(some...).Slots() {
		was := base[s]
		switch some[was] {
		case FullPart:
			require.Equal(t, was, i)
		case 0:
			require.NotEqual(t, was, i)
		}
	}
	// One node more than the walk is for, and back.
	many := slices.Clone(some)
	for i := range 100 {
		many[i] = 0
	}
	wide := full.With(many...).Slots()
	for s, i := range full.With(some...).Slots() {
		if many[i] == FullPart && many[base[s]] == FullPart {
			require.Equal(t, i, wide[s])
		}
	}
}

func TestMaglevNearlyAllDown(t *testing.T) {
	shares := evenShares(1000)
	full := newTable(t, 65537, shares...)
	parts := make([]uint8, 1000)
	parts[3], parts[777] = FullPart, FullPart
	c := map[int]int{}
	for _, i := range full.With(parts...).Slots() {
		c[int(i)]++
	}
	require.Len(t, c, 2)
	require.InDelta(t, 65537/2, c[3], 1000)
}

func TestMaglevShareWithNodesDown(t *testing.T) {
	for _, tt := range []struct{ n, down int }{{10, 1}, {10, 5}, {100, 1}, {100, 10}} {
		shares := evenShares(tt.n)
		parts := slices.Repeat([]uint8{FullPart}, tt.n)
		for i := range tt.down {
			parts[i] = 0
		}
		c := make([]int, tt.n)
		for _, i := range newTable(t, 65537, shares...).With(parts...).Slots() {
			c[i]++
		}
		mean := 65537 / float64(tt.n-tt.down)
		worst := float64(slices.Max(c)) / mean
		t.Logf("%d nodes, %d down: the busiest has %.3f of its share", tt.n, tt.down, worst)
		require.Less(t, worst, 1.05)
	}
}

func TestMaglevSkewedWeightsBuildSoon(t *testing.T) {
	shares := evenShares(500)
	shares[7].Weight = MaxWeight
	c := counts(names(newTable(t, 65537, shares...).Slots(), shares))
	require.InDelta(t, 65537*float64(MaxWeight)/float64(MaxWeight+499), c["node-7"], 1)
}

func TestMaglevFaults(t *testing.T) {
	_, err := NewMaglevTable(65536, 0)
	require.ErrorContains(t, err, "prime")
	_, err = NewMaglevTable(7, 0, Share{"a", -1})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = NewMaglevTable(7, 0, Share{"a", 1}, Share{"a", 1})
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, -1, newTable(t, 7).Lookup(0))
	require.Equal(t, -1, newTable(t, 7, Share{"a", 0}).Lookup(0))
	// Counters spread as well as hashes.
	seen := map[int]int{}
	even := newTable(t, 65537, evenShares(10)...)
	for i := range 10000 {
		seen[even.Lookup(uint64(i))]++
	}
	for i := range 10 {
		require.InDelta(t, 1000, seen[i], 150)
	}
}
