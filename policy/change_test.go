package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChange makes random changes to a table and compares each result with a table
// compiled from nothing; old tables must go on answering as they did.
func TestChange(t *testing.T) {
	for seed := range uint64(20) {
		u := universe{rand.New(rand.NewPCG(seed, 4)), 12, 12}
		checkChanges(t, u, seed%2 == 0, 60)
	}
}

func checkChanges(t testing.TB, u universe, strict bool, steps int) {
	t.Helper()
	cfg := &Config{StrictTier: strict}
	table, err := Compile[int](cfg)
	require.NoError(t, err)
	var rules []Rule[int]
	packets := make([]Packet, 24)
	for i := range packets {
		packets[i] = u.packet()
	}
	type snapshot struct {
		table *Table[int]
		dump  string
		hits  []int
	}
	var olds []snapshot
	take := func(table *Table[int]) snapshot {
		s := snapshot{table: table, dump: dump(table)}
		for _, p := range packets {
			v, ok := table.Lookup(p)
			if !ok {
				v = -1
			}
			s.hits = append(s.hits, v)
		}
		return s
	}
	for step := range steps {
		want := slices.Clone(rules)
		var next *Table[int]
		var err error
		fresh := func(n int) (added []Rule[int]) {
			for i := range n {
				r := Rule[int]{
					Name: fmt.Sprint("s", step, "-", i), Match: u.match(), Value: step*100 + i,
					Disabled: u.IntN(10) == 0, Internal: u.IntN(10) == 0,
				}
				added = append(added, r)
			}
			return added
		}
		switch n := u.IntN(4); {
		case n == 0 && len(rules) > 0:
			i := u.IntN(len(rules))
			want = slices.Delete(want, i, i+1)
			next, err = table.Without(rules[i].Name)
		case n == 1 && len(rules) > 0:
			i := u.IntN(len(rules))
			r := fresh(1)[0]
			r.Name = rules[i].Name
			want[i] = r
			next, err = table.Replace(r)
		default:
			added := fresh(1 + u.IntN(4))
			want = append(want, added...)
			next, err = table.With(added...)
		}
		whole, wholeErr := Compile(cfg, want...)
		require.Equal(t, wholeErr == nil, err == nil, "%v | %v", wholeErr, err)
		if err != nil {
			require.Nil(t, next)
			continue
		}
		a, b := take(whole), take(next)
		require.Equal(t, a.dump, b.dump)
		require.Equal(t, a.hits, b.hits)
		require.Equal(t, whole.Len(), next.Len())
		for _, r := range want {
			require.Equal(t, r.Value, next.Rule(r.Name).Value)
		}
		olds = append(olds, take(table))
		table, rules = next, want
	}
	checkTwin(t, table, oracle{strict, rules}, packets)
	for _, s := range olds {
		now := take(s.table)
		require.Equal(t, s.dump, now.dump)
		require.Equal(t, s.hits, now.hits)
	}
}

func FuzzChange(f *testing.F) {
	f.Add([]byte("lbprim"), false)
	f.Add([]byte{0, 1, 2, 3, 200, 100}, true)
	f.Fuzz(func(t *testing.T, data []byte, strict bool) {
		u := universe{rand.New(&byteSource{data, rand.NewPCG(uint64(len(data)), 5)}), 8, 8}
		checkChanges(t, u, strict, 16)
	})
}

func TestChangeFaults(t *testing.T) {
	table, err := Compile(nil, set(t, "A 10.0.0.1 tcp/80", "B 10.0.0.1 tcp")...)
	require.NoError(t, err)

	_, err = table.Without("A", "C", "A")
	require.ErrorIs(t, err, ErrName)
	require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), 2)

	_, err = table.With(set(t, "A 10.0.0.2", "C 10.0.0.1 tcp", "D 10.0.0.1 tcp/80 from 10.0.0.0-10.0.0.9", "E 10.0.0.1 tcp/80 from 10.0.0.5-10.0.0.10")...)
	require.ErrorIs(t, err, ErrName)
	require.ErrorIs(t, err, ErrDuplicate)
	require.ErrorIs(t, err, ErrAmbiguous)
	var got []string
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var re *RuleError
		require.ErrorAs(t, e, &re)
		got = append(got, fmt.Sprintf("%s %d %s %d", re.Name, re.Index, re.Other, re.OtherIndex))
	}
	require.Equal(t, []string{"A 0 A -1", "C 1 B -1", "D 2 E 3"}, got)

	_, err = table.Replace(set(t, "A 10.0.0.2", "A 10.0.0.3")...)
	require.ErrorIs(t, err, ErrName)

	var empty *Table[string]
	one, err := empty.With(set(t, "A 10.0.0.1")...)
	require.NoError(t, err)
	require.Equal(t, 1, one.Len())
	none, err := one.Without("A")
	require.NoError(t, err)
	require.Zero(t, none.Len())
	require.False(t, none.OwnsVIP(netip.MustParseAddr("10.0.0.1")))
	require.True(t, one.OwnsVIP(netip.MustParseAddr("10.0.0.1")))
	_, err = empty.Without("A")
	require.ErrorIs(t, err, ErrName)
}

// TestGrowing adds rules one by one to an empty table, past several sizes of its hash
// tables.
func TestGrowing(t *testing.T) {
	table := new(Table[int])
	const n = 3000
	vip := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	for i := range n {
		var err error
		table, err = table.With(Rule[int]{Name: fmt.Sprint(i), Match: Match{Dst: netip.PrefixFrom(vip(i), 32)}, Value: i})
		require.NoError(t, err)
	}
	for i := range n {
		v, ok := table.Lookup(Packet{Src: netip.AddrPortFrom(vip(0), 1), Dst: netip.AddrPortFrom(vip(i), 80), Protocol: 6})
		require.True(t, ok)
		require.Equal(t, i, v)
	}
	require.False(t, table.OwnsVIP(vip(n)))
	for i := range n / 2 {
		var err error
		table, err = table.Without(fmt.Sprint(2 * i))
		require.NoError(t, err)
	}
	for i := range n {
		require.Equal(t, i%2 == 1, table.OwnsVIP(vip(i)))
	}
}

// TestColliding adds two VIPs for which no places can be found in the second of two shards, after the first has been changed.
func TestColliding(t *testing.T) {
	rule := func(vip string, v int) Rule[int] {
		return Rule[int]{Name: vip, Match: Match{Dst: netip.PrefixFrom(netip.MustParseAddr(vip), 32)}, Value: v}
	}
	var old, rules []Rule[int]
	for i := range 40 {
		old = append(old, rule(fmt.Sprintf("192.0.2.%d", i), i))
	}
	table, err := Compile(nil, old...)
	require.NoError(t, err)
	require.Zero(t, table.live[0][v4-1].seed)
	for i := 20; i < 60; i++ {
		rules = append(rules, rule(fmt.Sprintf("192.0.2.%d", i), 100+i))
	}
	// The hashes of these differ in nothing that tells places apart.
	rules = append(rules, rule("10.0.3.130", 1), rule("13.24.210.168", 2))
	next, err := table.Replace(rules...)
	require.NoError(t, err)
	require.NotZero(t, next.live[0][v4-1].seed, "the table is built with another seed")
	for at, want := range map[*Table[int]][]Rule[int]{table: old, next: append(slices.Clone(old[:20]), rules...)} {
		require.Equal(t, len(want), at.Len())
		n := 0
		for range at.All() {
			n++
		}
		require.Equal(t, len(want), n)
		for _, r := range want {
			v, ok := at.Lookup(Packet{Src: netip.MustParseAddrPort("192.0.2.1:1"), Dst: netip.AddrPortFrom(r.Match.Dst.Addr(), 80), Protocol: 6})
			require.True(t, ok, r.Name)
			require.Equal(t, r.Value, v)
		}
	}
	require.False(t, table.OwnsVIP(netip.MustParseAddr("10.0.3.130")))
	none, err := next.Without("10.0.3.130", "192.0.2.1", "192.0.2.59")
	require.NoError(t, err)
	require.True(t, none.OwnsVIP(netip.MustParseAddr("13.24.210.168")))
	require.Equal(t, len(old)+len(rules)-20-3, none.Len())
}
