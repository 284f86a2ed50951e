package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkTwin compares everything a table says about packets with the oracle.
func checkTwin(t testing.TB, table *Table[int], o oracle, packets []Packet) {
	t.Helper()
	order := make(map[string]int)
	i := 0
	for r := range table.All() {
		order[r.Name] = i
		i++
	}
	require.Len(t, order, len(o.rules))
	for _, p := range packets {
		want := o.matches(p)
		rule := table.LookupRule(p)
		v, ok := table.Lookup(p)
		e := table.Explain(p)
		if ok != (len(want) > 0) || ok && v != want[0].Value {
			t.Fatalf("got %v %v, want %v\n%v\nrules:\n%v", v, ok, want, e, dump(table))
		}
		if rule != e.Rule || ok != (rule != nil) || ok && rule.Value != v {
			t.Fatalf("lookup and explain differ\n%v", e)
		}
		i := 0
		for r := range table.Matches(p) {
			if i >= len(want) || r.Value != want[i].Value {
				t.Fatalf("match %d is %v, want %v\n%v", i, r.Name, want, e)
			}
			if i > 0 && order[r.Name] < order[want[i-1].Name] {
				t.Fatalf("%v is listed after %v", want[i-1].Name, r.Name)
			}
			i++
		}
		require.Equal(t, len(want), i)
		checkExplanation(t, o, order, e)
	}
}

// checkExplanation checks that each rule is there for a reason, and none is missing.
func checkExplanation(t testing.TB, o oracle, order map[string]int, e Explanation[int]) {
	t.Helper()
	vip, ok := o.owner(e.Packet)
	if e.Outcome == Malformed {
		require.Empty(t, e.Considered)
		return
	}
	require.Equal(t, ok, e.Outcome != NotVIP)
	if !ok {
		return
	}
	require.Equal(t, vip, e.VIP)
	listed := make(map[string]Finding)
	enabled := 0
	for i, c := range e.Considered {
		listed[c.Rule.Name] = c.Finding
		if c.Finding != RuleDisabled {
			enabled++
		}
		if i > 0 && c.Finding != RuleDisabled && e.Considered[i-1].Finding != RuleDisabled {
			require.Less(t, order[e.Considered[i-1].Rule.Name], order[c.Rule.Name])
		}
	}
	total := 0
	firstTier := 9
	for _, r := range o.rules {
		if tier, _, ok := o.row(r, e.Packet); ok && !r.Disabled && r.Internal == e.Packet.FromProxy && oracleVIP(r.Match.Dst) == vip {
			firstTier = min(firstTier, tier)
		}
	}
	for _, r := range o.rules {
		if v := oracleVIP(r.Match.Dst); r.Internal != e.Packet.FromProxy || v != vip && (!r.Disabled || v.Bits() < vip.Bits()) {
			continue
		}
		if !r.Disabled {
			total++
		}
		tier, _, row := o.row(r, e.Packet)
		inside := r.Match.Contains(e.Packet)
		want := FindingNone
		switch {
		case !row || o.strict && tier != firstTier && !r.Disabled:
		case r.Disabled && inside && (e.Rule == nil || r.Match.Compare(e.Rule.Match) <= 0):
			want = RuleDisabled
		case r.Disabled:
		case e.Rule != nil && r.Name == e.Rule.Name:
			want = Winner
		case e.Rule == nil || order[r.Name] < order[e.Rule.Name]:
			want = ClientOutside
			if inside {
				t.Fatalf("%v holds the packet and was passed over\n%v", r.Name, e)
			}
		}
		if listed[r.Name] != want {
			t.Fatalf("rule %v (%v): found %v, want %v\n%v", r.Name, r.Match, listed[r.Name], want, e)
		}
	}
	require.Equal(t, total-enabled, e.Passed)
	require.NotEmpty(t, e.String())
}

func dump(t *Table[int]) (s string) {
	for r := range t.All() {
		s += fmt.Sprintf("%s %v disabled=%v internal=%v\n", r.Name, r.Match, r.Disabled, r.Internal)
	}
	return s
}

func TestTwinRandom(t *testing.T) {
	for seed := range uint64(300) {
		u := universe{rand.New(rand.NewPCG(seed, 0)), 1 + int(seed*7%64), 1 + int(seed*5%32)}
		rules := u.rules(1 + int(seed%80))
		packets := make([]Packet, 100)
		for i := range packets {
			packets[i] = u.packet()
		}
		for _, strict := range []bool{false, true} {
			table, err := Compile(&Config{StrictTier: strict}, rules...)
			require.NoError(t, err)
			checkTwin(t, table, oracle{strict, rules}, packets)
		}
	}
}

// TestTwinShuffled is the promise that the order of rules never matters.
func TestTwinShuffled(t *testing.T) {
	for seed := range uint64(10) {
		u := universe{rand.New(rand.NewPCG(seed, 1)), 30, 20}
		rules := u.rules(60)
		packets := make([]Packet, 50)
		for i := range packets {
			packets[i] = u.packet()
		}
		first, err := Compile(nil, rules...)
		require.NoError(t, err)
		for range 100 {
			u.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
			table, err := Compile(nil, rules...)
			require.NoError(t, err)
			require.Equal(t, dump(first), dump(table))
			for _, p := range packets {
				a, ok1 := first.Lookup(p)
				b, ok2 := table.Lookup(p)
				require.Equal(t, a, b)
				require.Equal(t, ok1, ok2)
			}
		}
	}
}

// TestTwinExhaustive tries every table of up to three rules from a small universe on
// every packet of it: of up to two where clients are IPv6 hosts, for which there are programs in place of slots.
func TestTwinExhaustive(t *testing.T) {
	at := func(prefix string, i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(prefix, i)) }
	for _, u := range []struct {
		name, vip, client string
		bits              int // of a client
		three             bool
	}{
		{"IPv4", "192.0.2.1/32", "10.0.0.%d", 32, true},
		{"IPv6 networks", "2001:db8::1/128", "2001:db8:1:%d::", 64, true},
		{"IPv6 hosts", "2001:db8::1/128", "2001:db8:1::%d", 128, false},
	} {
		t.Run(u.name, func(t *testing.T) {
			exhaust(t, netip.MustParsePrefix(u.vip), func(i int) netip.Addr { return at(u.client, i) }, u.bits, u.three)
		})
	}
}

func exhaust(t *testing.T, vip netip.Prefix, client func(int) netip.Addr, bits int, three bool) {
	clients := func(first, last int) AddrRange {
		r := AddrRange{client(first), PrefixRange(netip.PrefixFrom(client(last), bits)).Last}
		require.True(t, r.IsValid())
		return r
	}
	var all []Rule[int]
	for _, proto := range []Protocol{Any, Other, TCP, ICMP} {
		for _, ports := range []PortRange{{}, {1, 1}, {1, 2}, {2, 3}} {
			if !ports.IsAny() && !proto.HasPorts() {
				continue
			}
			for _, src := range []AddrRange{{}, clients(0, 0), clients(0, 1), clients(1, 2)} {
				i := len(all)
				all = append(all, Rule[int]{Name: fmt.Sprint(i), Match: Match{vip, proto, ports, src}, Value: i})
			}
		}
	}
	var packets []Packet
	for _, proto := range []uint8{6, 17, 1, 47} {
		for port := range uint16(4) {
			for c := range 4 {
				if port == 0 || packetHasPorts(proto) {
					packets = append(packets, Packet{Src: netip.AddrPortFrom(client(c), 9), Dst: netip.AddrPortFrom(vip.Addr(), port), Protocol: proto})
				}
			}
		}
	}
	tables := 0
	try := func(rules ...Rule[int]) {
		collide := false
		for i, a := range rules {
			for _, b := range rules[:i] {
				collide = collide || oracle{}.collide(a, b)
			}
		}
		for _, strict := range []bool{false, true} {
			table, err := Compile(&Config{StrictTier: strict}, rules...)
			if (err != nil) != collide {
				t.Fatalf("collide %v, error %v", collide, err)
			}
			if err != nil {
				continue
			}
			tables++
			o := oracle{strict, rules}
			for _, p := range packets {
				want, ok1 := o.lookup(p)
				if got, ok2 := table.Lookup(p); got != want || ok1 != ok2 {
					t.Fatalf("got %v %v, want %v %v\n%v\n%v", got, ok2, want, ok1, table.Explain(p), dump(table))
				}
			}
		}
	}
	for i, a := range all {
		try(a)
		for j, b := range all[:i] {
			try(a, b)
			for _, c := range all[:j] {
				if !three {
					break
				}
				if testing.Short() && tables > 2000 {
					return
				}
				try(a, b, c)
			}
		}
	}
	t.Log(tables, "tables")
}

// TestTwinLarge has one VIP with much of everything, so that the index of large tables,
// long chains and the tree are used.
func TestTwinLarge(t *testing.T) {
	u := universe{rand.New(rand.NewPCG(1, 2)), 0, 0}
	clients := func(v4 bool, wide bool) AddrRange {
		switch {
		case v4:
			bits := 8 + u.IntN(25)
			return PrefixRange(netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(10 + u.IntN(4)), byte(u.IntN(256)), byte(u.IntN(256)), byte(u.IntN(256))}), bits))
		case wide:
			return PrefixRange(netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, byte(u.IntN(256)), byte(u.IntN(256)), byte(u.IntN(256))}), 16+u.IntN(48)))
		}
		return PrefixRange(netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 15: byte(u.IntN(256)), 14: byte(u.IntN(256)), 9: byte(u.IntN(256))}), 16+u.IntN(113)))
	}
	for _, tt := range []struct {
		name      string
		v4, wide  bool
		ports     func(i int) (Protocol, PortRange)
		n         int
		anyClient int // one in so many
	}{
		{"one port", true, false, func(int) (Protocol, PortRange) { return TCP, Port(80) }, 3000, 100},
		{"many ports", true, false, func(int) (Protocol, PortRange) { return TCP, Port(uint16(1 + u.IntN(500))) }, 3000, 10},
		{"many ports and fall-backs", true, false, func(int) (Protocol, PortRange) {
			return []Protocol{TCP, Any}[u.IntN(2)], Port(uint16(u.IntN(300)))
		}, 3000, 10},
		{"nested ports", true, false, func(i int) (Protocol, PortRange) {
			return TCP, PortRange{uint16(u.IntN(2) * (i % 500)), uint16(40000 - i%500)}
		}, 600, 300},
		{"nested ports of any protocol", false, true, func(i int) (Protocol, PortRange) {
			return []Protocol{TCP, Any, UDP}[i%3], PortRange{uint16(i % 500), uint16(40000 - i%500)}
		}, 600, 1000},
		{"IPv6 in /64 steps", false, true, func(int) (Protocol, PortRange) { return UDP, Port(53) }, 3000, 100},
		{"IPv6 within a /64", false, false, func(int) (Protocol, PortRange) { return UDP, PortRange{} }, 3000, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vip := netip.MustParsePrefix("2001:db8::1/128")
			if tt.v4 {
				vip = netip.MustParsePrefix("192.0.2.1/32")
			}
			var o oracle
			used := make(map[Match]bool)
			for i := range tt.n {
				m := Match{Dst: vip}
				m.Protocol, m.DstPort = tt.ports(i)
				if u.IntN(tt.anyClient) > 0 {
					m.Src = clients(tt.v4, tt.wide)
				}
				r := Rule[int]{Name: fmt.Sprint(i), Match: m, Value: i}
				if used[m] || !m.DstPort.IsAny() && m.DstPort.First != m.DstPort.Last && slices.ContainsFunc(o.rules, func(q Rule[int]) bool { return o.collide(q, r) }) {
					continue
				}
				used[m] = true
				o.rules = append(o.rules, r)
			}
			packets := make([]Packet, 150)
			for i := range packets {
				m := o.rules[u.IntN(len(o.rules))].Match
				src := clients(tt.v4, tt.wide).First
				switch n := u.IntN(4); {
				case m.Src.IsAny():
				case n == 0:
					src = m.Src.First
				case n == 1:
					src = m.Src.Last
				case n == 2 && m.Src.Last.Next().IsValid():
					src = m.Src.Last.Next()
				}
				port := m.DstPort.First + uint16(u.IntN(3)) - 1
				if u.IntN(2) == 0 {
					port = uint16(u.Uint32())
				}
				packets[i] = Packet{Src: netip.AddrPortFrom(src, 1), Dst: netip.AddrPortFrom(vip.Addr(), port), Protocol: []uint8{6, 17}[u.IntN(2)]}
			}
			for _, strict := range []bool{false, true} {
				table, err := Compile(&Config{StrictTier: strict}, o.rules...)
				require.NoError(t, err)
				o.strict = strict
				for _, p := range packets {
					want, ok1 := o.lookup(p)
					got, ok2 := table.Lookup(p)
					require.Equal(t, ok1, ok2, "%v", p)
					require.Equal(t, want, got, "%v", p)
					require.Equal(t, table.LookupRule(p), table.Explain(p).Rule)
				}
			}
		})
	}
}

// TestFaultsAreRealAndComplete: Compile refuses exactly what has a pair of rules that
// collide, names every rule that does, and each witness is in both.
func TestFaultsAreRealAndComplete(t *testing.T) {
	for seed := range uint64(500) {
		u := universe{rand.New(rand.NewPCG(seed, 3)), 1 + int(seed%12), 1 + int(seed%9)}
		rules := make([]Rule[int], 1+u.IntN(25))
		for i := range rules {
			rules[i] = Rule[int]{Name: fmt.Sprint(i), Match: u.match(), Internal: u.IntN(8) == 0, Disabled: u.IntN(8) == 0}
		}
		checkFaults(t, rules)
	}
}

func checkFaults(t testing.TB, rules []Rule[int]) {
	t.Helper()
	guilty := make(map[int]bool)
	for i, a := range rules {
		for j, b := range rules[:i] {
			if (oracle{}).collide(a, b) {
				guilty[i], guilty[j] = true, true
			}
		}
	}
	_, err := Compile(nil, rules...)
	if err == nil {
		require.Empty(t, guilty)
		return
	}
	named := make(map[int]bool)
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var re *RuleError
		require.ErrorAs(t, e, &re)
		a, b := rules[re.Index], rules[re.OtherIndex]
		require.Equal(t, []string{a.Name, b.Name}, []string{re.Name, re.Other})
		named[re.Index], named[re.OtherIndex] = true, true
		require.True(t, oracle{}.collide(a, b), "%v", re)
		require.True(t, a.Match.Contains(re.Witness) && b.Match.Contains(re.Witness), "%v", re)
		require.Equal(t, a.Internal, re.Witness.FromProxy)
		require.Equal(t, errors.Is(re, ErrDuplicate), a.Match.Compare(b.Match) == 0)
	}
	require.Equal(t, guilty, named)
}

// byteSource is randomness that a fuzzer can steer.
type byteSource struct {
	data []byte
	rest *rand.PCG
}

func (s *byteSource) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.rest.Uint64()
	}
	// IntN looks at the high bits first, so one byte decides one choice.
	v := uint64(s.data[0])
	s.data = s.data[1:]
	return v * 0x0101010101010101
}

func FuzzTable(f *testing.F) {
	for i := range 8 {
		f.Add(binary.LittleEndian.AppendUint64(nil, uint64(i)*0x9e3779b97f4a7c15), uint8(4*i), uint8(3*i), uint8(5*i), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, data []byte, n, ports, addrs uint8, strict bool) {
		u := universe{rand.New(&byteSource{data, rand.NewPCG(uint64(n), uint64(len(data)))}), 1 + int(ports)%100, 1 + int(addrs)%60}
		rules := u.rules(int(n) % 64)
		packets := make([]Packet, 32)
		for i := range packets {
			packets[i] = u.packet()
		}
		table, err := Compile(&Config{StrictTier: strict}, rules...)
		require.NoError(t, err)
		checkTwin(t, table, oracle{strict, rules}, packets)
		checkShadowed(t, table, oracle{strict, rules}, packets)
		checkBatch(t, table, packets)

		loose := make([]Rule[int], int(n)%16)
		for i := range loose {
			loose[i] = Rule[int]{Name: fmt.Sprint(i), Match: u.match(), Internal: u.IntN(8) == 0, Disabled: u.IntN(8) == 0}
		}
		checkFaults(t, loose)
	})
}

// checkShadowed: a shadowed rule never wins, and where it would, its cover does.
func checkShadowed(t testing.TB, table *Table[int], o oracle, packets []Packet) {
	t.Helper()
	shadowed := make(map[string][]*Rule[int])
	for r, cover := range table.Shadowed() {
		require.NotEmpty(t, cover, r.Name)
		shadowed[r.Name] = cover
	}
	for _, p := range packets {
		win := table.LookupRule(p)
		if win != nil && shadowed[win.Name] != nil {
			t.Fatalf("%v wins and is shadowed by %v\n%v", win.Name, shadowed[win.Name][0].Name, dump(table))
		}
		if win == nil {
			continue
		}
		for _, r := range o.rules {
			if cover := shadowed[r.Name]; cover != nil && oracleVIP(r.Match.Dst) == win.Match.Dst && r.Internal == p.FromProxy && r.Match.Contains(p) && !slices.Contains(cover, win) {
				t.Fatalf("%v is shadowed, %v wins %v and is not in the cover", r.Name, win.Name, p)
			}
		}
	}
}

func TestShadowed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cfg   *Config
		rules []string
		want  string
	}{
		{"none", nil, []string{"A 10.0.0.1 tcp/80", "B 10.0.0.1 tcp"}, ""},
		{"two halves of the ports", nil, []string{"A 10.0.0.1 tcp/0-32767", "B 10.0.0.1 tcp/32768-65535", "C 10.0.0.1 tcp"}, "C:A,B;"},
		{"two halves of the clients", nil, []string{"A 10.0.0.1 tcp from 0.0.0.0/1", "B 10.0.0.1 tcp from 128.0.0.0/1", "C 10.0.0.1 tcp"}, "C:A,B;"},
		{"halves in two tiers", nil, []string{"A 10.0.0.1 tcp/0-65534 from 0.0.0.0/1", "B 10.0.0.1 tcp from 0.0.0.0/1", "D 10.0.0.1 tcp from 128.0.0.0/1", "C 10.0.0.1 any/80 from 192.0.2.0/24", "E 10.0.0.1 udp", "O 10.0.0.1 other"}, "C:D,E,O;"},
		{"any port 80 behind tcp", nil, []string{"A 10.0.0.1 tcp", "C 10.0.0.1 any/80"}, ""},
		{"any port 80 behind all protocols with ports", nil, []string{"A 10.0.0.1 tcp", "B 10.0.0.1 udp", "O 10.0.0.1 other", "C 10.0.0.1 any/80"}, "C:A,B,O;"},
		{"a VIP made up of others", nil, []string{"A 10.0.0.0/32 tcp/80", "B 10.0.0.1/32", "C 10.0.0.0/31 udp"}, "C:A,B;"},
		{"a VIP not wholly made up of others", nil, []string{"A 10.0.0.0/32 tcp/80", "B 10.0.0.2/32", "C 10.0.0.0/30 udp"}, ""},
		{"all protocols", nil, []string{"T 10.0.0.1 tcp", "U 10.0.0.1 udp", "I 10.0.0.1 icmp", "J 10.0.0.1 icmpv6", "O 10.0.0.1 other", "C 10.0.0.1"}, "C:I,T,U,J,O;"},
		{"strict", &Config{StrictTier: true}, []string{"A 10.0.0.1 tcp from 10.0.0.0/8", "B 10.0.0.1 any/80 from 192.0.2.0/24", "O 10.0.0.1 other", "U 10.0.0.1 udp"}, "B:A,U,O;"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table, err := Compile(tt.cfg, set(t, tt.rules...)...)
			require.NoError(t, err)
			got := ""
			for r, cover := range table.Shadowed() {
				got += r.Name + ":"
				for i, c := range cover {
					if i > 0 {
						got += ","
					}
					got += c.Name
				}
				got += ";"
			}
			require.Equal(t, tt.want, got)
		})
	}
}
