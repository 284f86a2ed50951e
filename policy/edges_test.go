package policy

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEdges: the ends of addresses, ports and protocol numbers.
func TestEdges(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cfg     *Config
		rules   []string
		packets string
	}{
		{"VIPs that are everything", nil,
			[]string{"A 0.0.0.0/0 tcp", "B ::/0 udp", "C 255.255.255.255", "D ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "E 0.0.0.0", "F ::"},
			`tcp 1.1.1.1:1 > 9.9.9.9:0 = A
			 tcp 1.1.1.1:1 > 255.255.255.254:65535 = A
			 udp 1.1.1.1:1 > 9.9.9.9:0 = -
			 udp [::1]:1 > [::1]:0 = B
			 udp [::1]:1 > [ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe]:0 = B
			 tcp 1.1.1.1:1 > 255.255.255.255:1 = C
			 udp [::1]:1 > [ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:0 = D
			 udp 1.1.1.1:1 > 0.0.0.0:1 = E
			 udp [::1]:1 > [::]:0 = F
			 udp [::ffff:1.1.1.1]:1 > [::ffff:9.9.9.9]:1 = -
			 tcp [::ffff:1.1.1.1]:1 > [::ffff:9.9.9.9]:1 = A
			 udp [::1]:1 > [::ffff:9.9.9.9]:1 = -
			 udp 1.1.1.1:1 > [::1]:1 = -`},
		{"half of all addresses as VIP", nil,
			[]string{"A 128.0.0.0/1", "B 8000::/1", "C 8000::/64", "D 8000::/65"},
			`tcp 1.1.1.1:1 > 128.0.0.0:1 = A
			 tcp 1.1.1.1:1 > 127.255.255.255:1 = -
			 tcp [::1]:1 > [9000::]:1 = B
			 tcp [::1]:1 > [7fff::]:1 = -
			 tcp [::1]:1 > [8000::8000:0:0:0]:1 = C
			 tcp [::1]:1 > [8000::7fff:0:0:0]:1 = D`},
		{"clients at both ends", nil,
			[]string{"A 10.0.0.1 tcp from 0.0.0.0-0.0.0.0", "B 10.0.0.1 tcp from 255.255.255.255", "C 10.0.0.1 tcp from 0.0.0.0-255.255.255.254",
				"D 10.0.0.1 from 0.0.0.1-255.255.255.255"},
			`tcp 0.0.0.0:1 > 10.0.0.1:1 = A
			 tcp 0.0.0.1:1 > 10.0.0.1:1 = C
			 tcp 255.255.255.254:1 > 10.0.0.1:1 = C
			 tcp 255.255.255.255:1 > 10.0.0.1:1 = B
			 udp 0.0.0.0:1 > 10.0.0.1:1 = -
			 udp 255.255.255.255:1 > 10.0.0.1:1 = D`},
		{"IPv6 clients at both ends", nil,
			[]string{"A ::9 tcp from ::", "B ::9 tcp from ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "C ::9 tcp from ::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe",
				"D ::9 from ::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "E ::9 udp from 0:0:0:1::-0:0:0:1:ffff:ffff:ffff:ffff"},
			`tcp [::]:1 > [::9]:1 = A
			 tcp [::1]:1 > [::9]:1 = C
			 tcp [ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe]:1 > [::9]:1 = C
			 tcp [ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:1 > [::9]:1 = B
			 udp [::]:1 > [::9]:1 = -
			 udp [0:0:0:1::]:1 > [::9]:1 = E
			 udp [0:0:0:1:ffff:ffff:ffff:ffff]:1 > [::9]:1 = E
			 udp [0:0:0:2::]:1 > [::9]:1 = D
			 tcp [::ffff:1.2.3.4]:1 > [::9]:1 = -`},
		{"ports at both ends", nil,
			[]string{"A 10.0.0.1 tcp/65535", "B 10.0.0.1 tcp/0-1", "C 10.0.0.1 any/65534-65535", "D 10.0.0.1 any/0-65535", "E 10.0.0.1 any/0", "F 10.0.0.1 udp/1-65535"},
			`tcp 1.1.1.1:1 > 10.0.0.1:65535 = A
			 tcp 1.1.1.1:1 > 10.0.0.1:65534 = C
			 tcp 1.1.1.1:1 > 10.0.0.1:0 = B
			 tcp 1.1.1.1:1 > 10.0.0.1:1 = B
			 tcp 1.1.1.1:1 > 10.0.0.1:2 = D
			 udp 1.1.1.1:1 > 10.0.0.1:0 = D
			 udp 1.1.1.1:1 > 10.0.0.1:65535 = F
			 sctp 1.1.1.1:1 > 10.0.0.1:65535 = C
			 dccp 1.1.1.1:1 > 10.0.0.1:0 = D
			 udplite 1.1.1.1:1 > 10.0.0.1:65533 = D
			 gre 1.1.1.1:0 > 10.0.0.1:65535 = E
			 icmp 1.1.1.1:0 > 10.0.0.1:0 = E
			 0 1.1.1.1:0 > 10.0.0.1:0 = E
			 255 1.1.1.1:0 > 10.0.0.1:0 = E`},
		{"protocol numbers at both ends", nil,
			[]string{"A 10.0.0.1 0", "B 10.0.0.1 255", "O 10.0.0.1 other"},
			`0 1.1.1.1:0 > 10.0.0.1:9 = A
			 255 1.1.1.1:0 > 10.0.0.1:9 = B
			 254 1.1.1.1:0 > 10.0.0.1:9 = O
			 1 1.1.1.1:0 > 10.0.0.1:9 = -
			 58 1.1.1.1:0 > 10.0.0.1:9 = -
			 sctp 1.1.1.1:0 > 10.0.0.1:9 = O`},
		{"back through all tiers", nil,
			[]string{"1 ::9 sctp/80 from ::1", "2 ::9 sctp/79-81 from ::1-::2", "3 ::9 sctp from ::1-::3", "4 ::9 other from ::1-::4",
				"5 ::9 any/80 from ::1-::5", "6 ::9 any/0-100 from ::1-::6", "7 ::9 from ::1-::7", "8 ::9 from ::1-::8", "9 ::/64"},
			`sctp [::1]:1 > [::9]:80 = 1
			 sctp [::2]:1 > [::9]:80 = 2
			 sctp [::3]:1 > [::9]:80 = 3
			 sctp [::4]:1 > [::9]:80 = 4
			 sctp [::5]:1 > [::9]:80 = 5
			 sctp [::6]:1 > [::9]:80 = 6
			 sctp [::7]:1 > [::9]:80 = 7
			 sctp [::8]:1 > [::9]:80 = 8
			 sctp [::a]:1 > [::9]:80 = -
			 tcp [::1]:1 > [::9]:80 = 5
			 icmpv6 [::1]:1 > [::9]:80 = 7`},
		{"strict tiers", &Config{StrictTier: true},
			[]string{"1 ::9 sctp/80 from ::1", "2 ::9 sctp/79-81 from ::1-::2", "3 ::9 sctp from ::1-::3", "4 ::9 other from ::1-::4",
				"5 ::9 any/80 from ::1-::5", "6 ::9 any/0-100 from ::1-::6", "7 ::9 from ::1-::7"},
			`sctp [::2]:1 > [::9]:80 = 2
			 sctp [::3]:1 > [::9]:80 = -
			 sctp [::3]:1 > [::9]:82 = 3
			 sctp [::4]:1 > [::9]:82 = -
			 dccp [::4]:1 > [::9]:80 = 4
			 dccp [::5]:1 > [::9]:80 = -
			 tcp [::6]:1 > [::9]:80 = 6
			 tcp [::7]:1 > [::9]:80 = 7
			 icmp [::7]:1 > [::9]:80 = 7`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table, err := Compile(tt.cfg, set(t, tt.rules...)...)
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
		})
	}
}

// TestOwnersComeAndGo: what owns an address follows every change of what is enabled, and
// whose traffic a rule is for.
func TestOwnersComeAndGo(t *testing.T) {
	rules := set(t, "wide 10.0.0.0/8", "net 10.0.0.0/24 tcp", "host 10.0.0.1 tcp/80")
	table, err := Compile(nil, rules...)
	require.NoError(t, err)
	p := packet(t, "udp 1.1.1.1:1 > 10.0.0.1:53")
	owner := func() string {
		vip, ok := table.VIP(p.Dst.Addr())
		require.Equal(t, ok, table.OwnsVIP(p.Dst.Addr()))
		require.Equal(t, vip, table.Explain(p).VIP)
		return vip.String()
	}
	require.Equal(t, "10.0.0.1/32", owner())
	_, ok := table.Lookup(p)
	require.False(t, ok)

	host := rules[2]
	host.Internal = true
	table, err = table.Replace(host)
	require.NoError(t, err)
	require.Equal(t, "10.0.0.0/24", owner(), "an internal rule owns no VIP of users")
	back := packet(t, "tcp 1.1.1.1:1 > 10.0.0.1:80 from proxy")
	require.Equal(t, "host", table.LookupRule(back).Name)
	back.Dst = netip.MustParseAddrPort("10.0.0.2:80")
	require.Nil(t, table.LookupRule(back), "what comes back from a proxy meets no user's rule")

	net := rules[1]
	net.Disabled = true
	table, err = table.Replace(net)
	require.NoError(t, err)
	require.Equal(t, "10.0.0.0/8", owner())
	require.Equal(t, "wide", table.LookupRule(p).Name)

	table, err = table.Replace(rules[1], rules[2])
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1/32", owner())
	table, err = table.Without("host", "wide", "net")
	require.NoError(t, err)
	require.False(t, table.OwnsVIP(p.Dst.Addr()))
	require.Zero(t, table.Len())
}

// TestReplaceInOneStep: rules may change places, and a fault leaves nothing half done.
func TestReplaceInOneStep(t *testing.T) {
	table, err := Compile(nil, set(t, "A 10.0.0.1 tcp/80", "B 10.0.0.1 tcp/81", "C 10.0.0.2")...)
	require.NoError(t, err)
	before := table.Explain(packet(t, "tcp 1.1.1.1:1 > 10.0.0.1:80")).String()
	next, err := table.Replace(set(t, "A 10.0.0.1 tcp/81", "B 10.0.0.1 tcp/80", "N 10.0.0.3")...)
	require.NoError(t, err)
	require.Equal(t, 4, next.Len())
	require.Equal(t, "B", next.LookupRule(packet(t, "tcp 1.1.1.1:1 > 10.0.0.1:80")).Name)
	require.Equal(t, before, table.Explain(packet(t, "tcp 1.1.1.1:1 > 10.0.0.1:80")).String())

	_, err = next.Replace(set(t, "A 10.0.0.2", "N 10.0.0.9")...)
	var re *RuleError
	require.ErrorAs(t, err, &re)
	require.Equal(t, []string{"A", "C"}, []string{re.Name, re.Other})
	require.Equal(t, []int{0, -1}, []int{re.Index, re.OtherIndex})
	require.Equal(t, "A", next.LookupRule(packet(t, "tcp 1.1.1.1:1 > 10.0.0.1:81")).Name)
	require.True(t, next.OwnsVIP(netip.MustParseAddr("10.0.0.3")))
	require.False(t, next.OwnsVIP(netip.MustParseAddr("10.0.0.9")))
}

// TestResolverWithManyWriters: each writer derives its table from the one in force; no
// change is lost, and readers always see whole tables.
func TestResolverWithManyWriters(t *testing.T) {
	var r Resolver[string]
	base, err := Compile(nil, set(t, "base 10.0.0.1 tcp/80")...)
	require.NoError(t, err)
	r.Store(base)
	const writers, each = 4, 40
	var writing, reading sync.WaitGroup
	stop := make(chan struct{})
	p := packet(t, "tcp 192.0.2.1:1 > 10.0.0.1:80")
	for range 2 {
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				table := r.Load()
				v, ok := table.Lookup(p)
				e := table.Explain(p)
				n := 0
				for range table.All() {
					n++
				}
				if !ok || v != "base" || e.Rule.Name != v || n != table.Len() {
					t.Errorf("torn table: %v %v %v of %v", v, ok, n, table.Len())
					return
				}
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				add := Rule[string]{Name: string(rune('a'+w)) + string(rune('A'+i)), Value: "other", Match: Match{
					Dst: netip.MustParsePrefix("10.0.0.1/32"), Protocol: TCP, DstPort: Port(uint16(1000 + w*each + i)),
				}}
				for {
					old := r.Load()
					next, err := old.With(add)
					if err != nil {
						t.Error(err)
						return
					}
					if r.CompareAndSwap(old, next) {
						break
					}
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	reading.Wait()
	require.Equal(t, 1+writers*each, r.Load().Len())
}
