package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// set reads rules of the form "name match" and gives each its place as value.
func set(t testing.TB, lines ...string) []Rule[string] {
	t.Helper()
	rules := make([]Rule[string], 0, len(lines))
	for _, l := range lines {
		name, match, _ := strings.Cut(l, " ")
		m, err := ParseMatch(match)
		require.NoError(t, err)
		rules = append(rules, Rule[string]{Name: name, Match: m, Value: name})
	}
	return rules
}

func packet(t testing.TB, s string) Packet {
	t.Helper()
	p, err := ParsePacket(s)
	require.NoError(t, err)
	return p
}

func TestRightAnswers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cfg     *Config
		rules   []string
		packets string // "packet = value" by line; - is none
	}{
		{"port before protocol", nil,
			[]string{"A 10.0.0.1 tcp/80", "B 10.0.0.1 tcp"},
			`tcp 192.0.2.1:1 > 10.0.0.1:80 = A
			 tcp 192.0.2.1:1 > 10.0.0.1:81 = B`},
		{"protocol before any", nil,
			[]string{"B 10.0.0.1 tcp", "C 10.0.0.1"},
			`tcp 192.0.2.1:1 > 10.0.0.1:5 = B
			 udp 192.0.2.1:1 > 10.0.0.1:5 = C
			 icmp 192.0.2.1:0 > 10.0.0.1:0 = C`},
		{"a matched VIP discards", nil,
			[]string{"A 10.0.0.1 tcp/443"},
			`tcp 192.0.2.1:1 > 10.0.0.1:8080 = -
			 udp 192.0.2.1:1 > 10.0.0.1:53 = -
			 tcp 192.0.2.1:1 > 10.0.0.1:443 = A`},
		{"a client outside goes on with the next tier", nil,
			[]string{"A 10.0.0.1 tcp/80 from 10.0.0.0-10.255.255.255", "B 10.0.0.1 tcp"},
			`tcp 192.0.2.1:1 > 10.0.0.1:80 = B
			 tcp 10.3.2.1:1 > 10.0.0.1:80 = A`},
		{"strict tier: a client outside is discarded", &Config{StrictTier: true},
			[]string{"A 10.0.0.1 tcp/80 from 10.0.0.0-10.255.255.255", "B 10.0.0.1 tcp"},
			`tcp 192.0.2.1:1 > 10.0.0.1:80 = -
			 tcp 10.3.2.1:1 > 10.0.0.1:80 = A
			 tcp 192.0.2.1:1 > 10.0.0.1:81 = B`},
		{"strict tier: wider ports are the same tier", &Config{StrictTier: true},
			[]string{"A 10.0.0.1 tcp/80 from 10.0.0.0/8", "B 10.0.0.1 tcp/0-1023", "C 10.0.0.1"},
			`tcp 192.0.2.1:1 > 10.0.0.1:80 = B
			 tcp 192.0.2.1:1 > 10.0.0.1:1024 = C`},
		{"clients before any client", nil,
			[]string{"A 10.0.0.1 tcp/80 from 10.0.0.0/8", "B 10.0.0.1 tcp/80"},
			`tcp 10.1.1.1:1 > 10.0.0.1:80 = A
			 tcp 192.0.2.1:1 > 10.0.0.1:80 = B`},
		{"narrower clients first", nil,
			[]string{"A 10.0.0.1 tcp/80 from 10.0.0.0/8", "B 10.0.0.1 tcp/80 from 10.1.0.0/16"},
			`tcp 10.1.2.3:1 > 10.0.0.1:80 = B
			 tcp 10.2.2.3:1 > 10.0.0.1:80 = A
			 tcp 11.2.2.3:1 > 10.0.0.1:80 = -`},
		{"tier before clients", nil,
			[]string{"A 10.0.0.1 tcp from 10.0.0.0/8", "B 10.0.0.1 tcp/80"},
			`tcp 10.1.1.1:1 > 10.0.0.1:80 = B
			 tcp 10.1.1.1:1 > 10.0.0.1:81 = A`},
		{"exact port before range", nil,
			[]string{"A 10.0.0.1 tcp/0-1023", "B 10.0.0.1 tcp/80"},
			`tcp 192.0.2.1:1 > 10.0.0.1:80 = B
			 tcp 192.0.2.1:1 > 10.0.0.1:79 = A
			 tcp 192.0.2.1:1 > 10.0.0.1:81 = A
			 tcp 192.0.2.1:1 > 10.0.0.1:1023 = A
			 tcp 192.0.2.1:1 > 10.0.0.1:0 = A
			 tcp 192.0.2.1:1 > 10.0.0.1:1024 = -`},
		{"all tiers", nil,
			[]string{"1 10.0.0.1 tcp/80", "2 10.0.0.1 tcp", "3 10.0.0.1", "4 10.0.0.1 icmp"},
			`tcp 192.0.2.1:1 > 10.0.0.1:80 = 1
			 tcp 192.0.2.1:1 > 10.0.0.1:81 = 2
			 udp 192.0.2.1:1 > 10.0.0.1:53 = 3
			 icmp 192.0.2.1:0 > 10.0.0.1:0 = 4
			 sctp 192.0.2.1:1 > 10.0.0.1:80 = 3
			 tcp 192.0.2.1:1 > 10.0.0.2:80 = -`},
		{"L01: one more specific in ports, one in clients", nil,
			[]string{"A 10.0.0.1 tcp", "B 10.0.0.1 tcp/80 from 10.0.0.0/8"},
			`tcp 10.1.1.1:1 > 10.0.0.1:80 = B
			 tcp 10.1.1.1:1 > 10.0.0.1:81 = A
			 tcp 192.0.2.1:1 > 10.0.0.1:80 = A
			 tcp 192.0.2.1:1 > 10.0.0.1:81 = A`},
		{"L05: nested clients", nil,
			[]string{"A 10.0.0.1 from 0.0.0.0/1", "B 10.0.0.1 from 10.0.0.0/8", "C 10.0.0.1 from 10.0.1.0/24"},
			`tcp 1.1.1.1:1 > 10.0.0.1:80 = A
			 tcp 10.0.0.1:1 > 10.0.0.1:80 = B
			 tcp 10.0.1.1:1 > 10.0.0.1:80 = C
			 tcp 128.0.0.0:1 > 10.0.0.1:80 = -`},
		{"the longest VIP owns", nil,
			[]string{"A 10.0.0.0/8", "B 10.0.0.1 tcp/80", "C 10.0.0.0/24 udp"},
			`tcp 192.0.2.1:1 > 10.0.0.1:81 = -
			 tcp 192.0.2.1:1 > 10.0.0.1:80 = B
			 udp 192.0.2.1:1 > 10.0.0.2:80 = C
			 tcp 192.0.2.1:1 > 10.0.0.2:80 = -
			 tcp 192.0.2.1:1 > 10.0.1.2:80 = A`},
		{"other", nil,
			[]string{"O 10.0.0.1 other", "G 10.0.0.1 gre", "P 10.0.0.1 any/80", "X 10.0.0.1"},
			`gre 192.0.2.1:0 > 10.0.0.1:0 = G
			 esp 192.0.2.1:0 > 10.0.0.1:0 = O
			 sctp 192.0.2.1:1 > 10.0.0.1:80 = O
			 0 192.0.2.1:1 > 10.0.0.1:80 = O
			 tcp 192.0.2.1:1 > 10.0.0.1:80 = P
			 udp 192.0.2.1:1 > 10.0.0.1:80 = P
			 udp 192.0.2.1:1 > 10.0.0.1:81 = X
			 icmp 192.0.2.1:0 > 10.0.0.1:80 = X
			 icmpv6 192.0.2.1:0 > 10.0.0.1:80 = X`},
		{"ICMP on an IPv6 VIP is ICMPv6", nil,
			[]string{"A 2001:db8::1 icmp", "B 2001:db8::1"},
			`icmpv6 [2001:db8::2]:0 > [2001:db8::1]:0 = A
			 icmp [2001:db8::2]:0 > [2001:db8::1]:0 = B`},
		{"IPv6 clients", nil,
			[]string{"A 2001:db8::1 tcp/80 from 2001:db8:1::-2001:db8:1::ff", "B 2001:db8::1 tcp/80 from 2001:db8:1::/64", "C 2001:db8::/32"},
			`tcp [2001:db8:1::ff]:1 > [2001:db8::1]:80 = A
			 tcp [2001:db8:1::100]:1 > [2001:db8::1]:80 = B
			 tcp [2001:db8:1:1::]:1 > [2001:db8::1]:80 = -
			 tcp [2001:db8:1:1::]:1 > [2001:db8::2]:80 = C`},
		{"IPv4-mapped addresses are IPv4", nil,
			[]string{"A ::ffff:10.0.0.1 tcp from ::ffff:10.0.0.0/104", "B 10.0.0.1"},
			`tcp 10.1.1.1:1 > 10.0.0.1:80 = A
			 tcp [::ffff:10.1.1.1]:1 > [::ffff:10.0.0.1]:80 = A
			 tcp [::ffff:11.1.1.1]:1 > 10.0.0.1:80 = B
			 tcp [2001:db8::1]:1 > 10.0.0.1:80 = -`},
		{"crossing ports of different clients", nil,
			[]string{"A 10.0.0.1 tcp/10-20 from 10.0.0.0/8", "B 10.0.0.1 tcp/15-30 from 192.168.0.0/16"},
			`tcp 10.1.1.1:1 > 10.0.0.1:17 = A
			 tcp 192.168.1.1:1 > 10.0.0.1:17 = B
			 tcp 192.168.1.1:1 > 10.0.0.1:14 = -
			 tcp 192.168.1.1:1 > 10.0.0.1:30 = B`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rules := set(t, tt.rules...)
			var dump string
			for range 100 {
				rand.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
				table, err := Compile(tt.cfg, rules...)
				require.NoError(t, err)
				for line := range strings.Lines(tt.packets) {
					in, want, _ := strings.Cut(strings.TrimSpace(line), " = ")
					p := packet(t, in)
					got, ok := table.Lookup(p)
					if !ok {
						got = "-"
					}
					require.Equal(t, want, got, "%s\n%v", in, table.Explain(p))
					require.Equal(t, table.LookupRule(p), table.Explain(p).Rule)
				}
				var b strings.Builder
				for r := range table.All() {
					fmt.Fprintln(&b, r.Name, r.Match)
				}
				if dump == "" {
					dump = b.String()
				}
				require.Equal(t, dump, b.String(), "the dump depends on the order of rules")
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules []string
		want  error
		port  []uint16 // of the witness
		src   []string // first and last possible
	}{
		{"the same range written twice", []string{"A 10.0.0.1 tcp from 10.161.3.4/8", "B 10.0.0.1 tcp from 10.0.0.0/8"}, ErrDuplicate, nil, []string{"10.0.0.0", "10.255.255.255"}},
		{"a prefix and a from-to", []string{"A 10.0.0.1 tcp from 10.0.0.0/8", "B 10.0.0.1 tcp from 10.0.0.0-10.255.255.255"}, ErrDuplicate, nil, nil},
		{"any client and all clients", []string{"A 10.0.0.1 tcp from 0.0.0.0/0", "B 10.0.0.1 tcp"}, ErrDuplicate, nil, nil},
		{"any port and all ports", []string{"A 10.0.0.1 tcp/0-65535", "B 10.0.0.1 tcp"}, ErrDuplicate, nil, nil},
		{"host bits in the VIP", []string{"A 10.1.2.3/8", "B 10.0.0.0/8"}, ErrDuplicate, nil, nil},
		{"icmp and icmpv6", []string{"A ::1 icmp", "B ::1 icmpv6"}, ErrDuplicate, nil, nil},
		{"crossing clients", []string{"A 10.0.0.9 tcp/80 from 10.0.0.0-10.0.0.100", "B 10.0.0.9 tcp/80 from 10.0.0.50-10.0.0.150"}, ErrAmbiguous, []uint16{80, 80}, []string{"10.0.0.50", "10.0.0.100"}},
		{"crossing ports", []string{"A 10.0.0.9 tcp/10-20", "B 10.0.0.9 tcp/15-30"}, ErrAmbiguous, []uint16{15, 20}, nil},
		{"crossing ports with a client in common", []string{"A ::9 any/10-20 from 2001:db8::/32", "B ::9 any/15-30 from 2001:db8:1::/48"}, ErrAmbiguous, []uint16{15, 20}, []string{"2001:db8:1::", "2001:db8:1:ffff:ffff:ffff:ffff:ffff"}},
		{"other", []string{"A 10.0.0.9 other from 10.0.0.0-10.0.0.100", "B 10.0.0.9 other from 10.0.0.50-10.0.0.150"}, ErrAmbiguous, nil, []string{"10.0.0.50", "10.0.0.100"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rules := set(t, tt.rules...)
			for range 2 {
				table, err := Compile(nil, rules...)
				require.Nil(t, table)
				require.ErrorIs(t, err, tt.want)
				var re *RuleError
				require.ErrorAs(t, err, &re)
				require.ElementsMatch(t, []string{"A", "B"}, []string{re.Name, re.Other})
				require.Equal(t, []int{0, 1}, []int{re.Index, re.OtherIndex})
				require.True(t, rules[0].Match.Contains(re.Witness), "%v", re.Witness)
				require.True(t, rules[1].Match.Contains(re.Witness), "%v", re.Witness)
				if tt.port != nil {
					require.GreaterOrEqual(t, re.Witness.Dst.Port(), tt.port[0])
					require.LessOrEqual(t, re.Witness.Dst.Port(), tt.port[1])
				}
				if tt.src != nil {
					require.True(t, AddrRange{netip.MustParseAddr(tt.src[0]), netip.MustParseAddr(tt.src[1])}.Contains(re.Witness.Src.Addr()), "%v", re.Witness)
				}
				require.Contains(t, err.Error(), `"A"`)
				require.Contains(t, err.Error(), `"B"`)
				slices.Reverse(rules)
			}
		})
	}
}

func TestEveryFaultAtOnce(t *testing.T) {
	rules := set(t,
		"a 10.0.0.1 tcp/80",
		"b 10.0.0.1 tcp/80",
		"c 10.0.0.2 tcp/10-20",
		"d 10.0.0.2 tcp/15-30",
		"e 10.0.0.2 tcp/25-40",
		"a 10.0.0.3",
	)
	rules = append(rules,
		Rule[string]{Name: "no vip"},
		Rule[string]{Name: "port", Match: Match{Dst: netip.MustParsePrefix("10.0.0.1/32"), Protocol: GRE, DstPort: Port(1)}},
		Rule[string]{Name: "other port", Match: Match{Dst: netip.MustParsePrefix("10.0.0.1/32"), Protocol: Other, DstPort: Port(1)}},
		Rule[string]{Name: "backwards", Match: Match{Dst: netip.MustParsePrefix("10.0.0.1/32"), Protocol: TCP, DstPort: PortRange{2, 1}}},
		Rule[string]{Name: "family", Match: Match{Dst: netip.MustParsePrefix("10.0.0.1/32"), Src: PrefixRange(netip.MustParsePrefix("::/0"))}},
		Rule[string]{Name: "protocol", Match: Match{Dst: netip.MustParsePrefix("10.0.0.1/32"), Protocol: 77}},
		Rule[string]{Name: "clients", Match: Match{Dst: netip.MustParsePrefix("10.0.0.1/32"), Src: AddrRange{Last: netip.MustParseAddr("::1")}}},
		Rule[string]{Name: "prefix", Match: Match{Dst: netip.MustParsePrefix("10.0.0.1/32"), Src: PrefixRange(netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 99))}},
		Rule[string]{Match: rules[0].Match, Disabled: true},
	)
	_, err := Compile(nil, rules...)
	var got []string
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var re *RuleError
		require.ErrorAs(t, e, &re)
		kind := "invalid"
		for name, sentinel := range map[string]error{"duplicate": ErrDuplicate, "ambiguous": ErrAmbiguous, "name": ErrName} {
			if errors.Is(e, sentinel) {
				kind = name
			}
		}
		got = append(got, fmt.Sprintf("%s %d %d %s", kind, re.Index, re.OtherIndex, re.Name))
	}
	require.Equal(t, []string{
		"duplicate 0 1 a", "ambiguous 2 3 c", "ambiguous 3 4 d", "name 5 0 a",
		"invalid 6 -1 no vip", "invalid 7 -1 port", "invalid 8 -1 other port", "invalid 9 -1 backwards",
		"invalid 10 -1 family", "invalid 11 -1 protocol", "invalid 12 -1 clients", "invalid 13 -1 prefix", "name 14 -1 ",
	}, got)
}

func TestTooManyFaults(t *testing.T) {
	var rules []Rule[int]
	for i := range 3000 {
		rules = append(rules, Rule[int]{Name: fmt.Sprint(i), Match: Match{Dst: netip.MustParsePrefix("10.0.0.1/32"), Protocol: TCP, DstPort: PortRange{uint16(i + 1), uint16(i + 5000)}}})
	}
	_, err := Compile(nil, rules...)
	require.ErrorIs(t, err, ErrAmbiguous)
	require.ErrorIs(t, err, ErrTooMany)
}

func TestDisabledRulesOwnNoVIPAndCollideWithNone(t *testing.T) {
	rules := set(t, "A 10.0.0.0/8", "B 10.0.0.1 tcp/80", "C 10.0.0.1 tcp/80")
	rules[1].Disabled, rules[2].Disabled = true, true
	table, err := Compile(nil, rules...)
	require.NoError(t, err)
	p := packet(t, "tcp 192.0.2.1:1 > 10.0.0.1:80")
	require.Equal(t, "A", table.LookupRule(p).Name)
	require.Equal(t, 3, table.Len())
	require.Equal(t, netip.MustParsePrefix("10.0.0.0/8"), table.Explain(p).VIP)
	require.Equal(t, []Considered[string]{
		{table.Rule("B"), RuleDisabled}, {table.Rule("C"), RuleDisabled}, {table.Rule("A"), Winner},
	}, table.Explain(p).Considered, "enabled, either would own the address")

	// An internal rule says nothing of the user's traffic, whatever its VIP.
	more := append(slices.Clone(rules[1:]), set(t, "I 10.0.0.1", "W 10.0.0.0/31")...)
	more[2].Disabled, more[2].Internal, more[3].Disabled = true, true, true
	table, err = Compile(nil, more...)
	require.NoError(t, err)
	e := table.Explain(p)
	require.Equal(t, NotVIP, e.Outcome)
	require.Len(t, e.Considered, 3)
	require.Equal(t, "W", e.Considered[2].Rule.Name)

	rules = rules[1:]
	table, err = Compile(nil, rules...)
	require.NoError(t, err)
	require.False(t, table.OwnsVIP(p.Dst.Addr()))
	e = table.Explain(p)
	require.Equal(t, NotVIP, e.Outcome)
	require.Len(t, e.Considered, 2)
	require.Equal(t, RuleDisabled, e.Considered[0].Finding)
}

func TestInternalRulesSeeProxyTrafficOnly(t *testing.T) {
	rules := set(t, "A 10.0.0.1 tcp/80", "B 10.0.0.1 tcp/80", "C 10.0.0.2")
	rules[1].Internal, rules[2].Internal = true, true
	table, err := Compile(nil, rules...)
	require.NoError(t, err)
	p := packet(t, "tcp 192.0.2.1:1 > 10.0.0.1:80")
	require.Equal(t, "A", table.LookupRule(p).Name)
	p.FromProxy = true
	require.Equal(t, "B", table.LookupRule(p).Name)
	p.Dst = netip.MustParseAddrPort("10.0.0.2:1")
	require.Equal(t, "C", table.LookupRule(p).Name)
	p.FromProxy = false
	require.Nil(t, table.LookupRule(p))
	require.True(t, table.OwnsVIP(netip.MustParseAddr("::ffff:10.0.0.1")))
	require.False(t, table.OwnsVIP(netip.MustParseAddr("10.0.0.2")))
	require.False(t, table.OwnsVIP(netip.Addr{}))
}

func TestEmpty(t *testing.T) {
	p := packet(t, "tcp 192.0.2.1:1 > 10.0.0.1:80")
	var r Resolver[int]
	_, ok := r.Lookup(p)
	require.False(t, ok)
	for _, table := range []*Table[int]{nil, new(Table[int]), r.Load()} {
		require.Nil(t, table.LookupRule(p))
		require.False(t, table.OwnsVIP(p.Dst.Addr()))
		require.Zero(t, table.Len())
		require.Equal(t, NotVIP, table.Explain(p).Outcome)
		for range table.All() {
			t.Fatal("a rule")
		}
		for range table.Matches(p) {
			t.Fatal("a match")
		}
		for range table.Shadowed() {
			t.Fatal("a shadowed rule")
		}
	}
	table, err := Compile[int](nil)
	require.NoError(t, err)
	require.Nil(t, table.LookupRule(p))
	r.Store(table)
	require.True(t, r.CompareAndSwap(table, nil))
	require.False(t, r.CompareAndSwap(table, nil))
}

func TestResolverSwap(t *testing.T) {
	a, err := Compile(nil, set(t, "A 10.0.0.1 tcp/80")...)
	require.NoError(t, err)
	b, err := Compile(nil, set(t, "B 10.0.0.1")...)
	require.NoError(t, err)
	var r Resolver[string]
	r.Store(a)
	p := packet(t, "tcp 192.0.2.1:1 > 10.0.0.1:80")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 1000 {
			r.Store([]*Table[string]{a, b}[i%2])
		}
	}()
	for range 1000 {
		v, ok := r.Lookup(p)
		require.True(t, ok)
		require.Contains(t, "AB", v)
	}
	<-done
}

func TestRulesAsJSON(t *testing.T) {
	const text = `[{"name":"web","match":"10.0.0.1 tcp/80 from 10.0.0.0/8","value":"farm1"},` +
		`{"name":"all","match":"2001:db8::/64","value":"farm2","disabled":true,"internal":true}]`
	var rules []Rule[string]
	require.NoError(t, json.Unmarshal([]byte(text), &rules))
	require.Equal(t, netip.MustParsePrefix("2001:db8::/64"), rules[1].Match.Dst)
	out, err := json.Marshal(rules)
	require.NoError(t, err)
	require.JSONEq(t, text, string(out))
}
