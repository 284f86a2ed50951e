package path

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/lbprim/lbprim/steering"
)

// Addresses are of a small world, so that networks nest and rules match.
func worldAddr(r *rand.Rand) netip.Addr {
	if r.IntN(3) == 0 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 5: byte(r.IntN(3)), 15: byte(1 + r.IntN(4))})
	}
	return netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), byte(r.IntN(3)), byte(1 + r.IntN(4))})
}

func worldNet(r *rand.Rand) netip.Prefix {
	a := worldAddr(r)
	return netip.PrefixFrom(a, []int{0, a.BitLen() / 4, a.BitLen() / 2, a.BitLen() * 3 / 4, a.BitLen()}[r.IntN(5)]).Masked()
}

func worldMatch(r *rand.Rand) Match {
	m := Match{Protocol: []uint8{0, 0, tcp, 17}[r.IntN(4)], VLAN: []int{0, 0, 0, 5, Untagged}[r.IntN(5)]}
	if r.IntN(3) == 0 {
		m.Src = worldNet(r)
	}
	if r.IntN(3) == 0 {
		m.Dst = worldNet(r)
	}
	if r.IntN(4) == 0 {
		m.SrcPort = Ports{1, uint16(1 + r.IntN(4))}
	}
	if r.IntN(4) == 0 {
		p := uint16(r.IntN(5))
		m.DstPort = Ports{p, p + uint16(r.IntN(3))}
	}
	if r.IntN(4) == 0 {
		m.DSCP = CodePoint(uint8(r.IntN(3)))
	}
	if r.IntN(4) == 0 {
		m.DstSite = []string{"s0", "s1", "s2"}[r.IntN(3)]
	}
	if r.IntN(4) == 0 {
		m.App = []string{"voice", "video"}[r.IntN(2)]
	}
	return m
}

func worldConfig(r *rand.Rand) *Config {
	c := &Config{Local: "s0"}
	for i := range 1 + r.IntN(3) {
		s := Site{Name: fmt.Sprintf("s%d", i)}
		for range r.IntN(3) {
			s.Networks = append(s.Networks, worldNet(r))
		}
		c.Sites = append(c.Sites, s)
	}
	for i := range r.IntN(5) {
		u := Uplink{Name: fmt.Sprintf("u%d", i), Gateway: netip.AddrFrom4([4]byte{172, 16, byte(i), 1})}
		if i%2 == 1 {
			u.Gateway = netip.MustParseAddr(fmt.Sprintf("2001:db8:ff:%d::1", i))
		}
		c.Sites[0].Uplinks = append(c.Sites[0].Uplinks, u)
	}
	for b := range 1 + r.IntN(3) {
		x := Balancer{Name: fmt.Sprintf("b%d", b)}
		for i := range 4 {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), byte(10 + b)}), 24)
			if i%2 == 1 {
				p = netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:ff:%d::%d", i, 10+b)), 64)
			}
			x.Interfaces = append(x.Interfaces, Interface{Name: fmt.Sprintf("i%d", i), Prefix: p})
		}
		c.Balancers = append(c.Balancers, x)
	}
	for i := range r.IntN(7) {
		rule := Rule{
			Name: fmt.Sprintf("r%d", i), Match: worldMatch(r), Else: Fallback(r.IntN(2)), SetDSCP: DSCP(r.IntN(4)),
			Export: r.IntN(3) == 0, Disabled: r.IntN(6) == 0,
		}
		for _, u := range r.Perm(5)[:r.IntN(4)] {
			rule.Uplinks = append(rule.Uplinks, fmt.Sprintf("u%d", u))
		}
		if r.IntN(40) > 0 { // now and then one that is not there
			n := len(c.Sites[0].Uplinks)
			kept := rule.Uplinks[:0]
			for _, u := range rule.Uplinks {
				if int(u[1]-'0') < n {
					kept = append(kept, u)
				}
			}
			rule.Uplinks = kept
		}
		c.Rules = append(c.Rules, rule)
	}
	for i := range r.IntN(4) {
		c.Marks = append(c.Marks, Mark{Name: fmt.Sprintf("m%d", i), Match: worldMatch(r), DSCP: DSCP(1 + r.IntN(5)), Disabled: r.IntN(6) == 0})
	}
	return c
}

// slowDecide is the obvious way from a configuration and the state of the channels to a
// decision.
func slowDecide(c *Config, channels []ChannelStatus, p *Packet) (d Decision) {
	app := p.App
	if p.HeaderOnly && !p.Optimized && p.Protocol == tcp {
		app = ""
	}
	site, longest := "", -1
	for _, s := range c.Sites {
		for _, n := range s.Networks {
			if n.Contains(p.Dst.Addr()) && n.Bits() > longest {
				site, longest = s.Name, n.Bits()
			}
		}
	}
	in := func(r Ports, port uint16) bool { return r == Ports{} || r.First <= port && port <= r.Last }
	matches := func(m *Match) bool {
		return (m.Src == netip.Prefix{} || m.Src.Contains(p.Src.Addr())) && (m.Dst == netip.Prefix{} || m.Dst.Contains(p.Dst.Addr())) &&
			(m.Protocol == 0 || m.Protocol == p.Protocol) && in(m.SrcPort, p.Src.Port()) && in(m.DstPort, p.Dst.Port()) &&
			(m.VLAN == 0 || m.VLAN == int(p.VLAN) || m.VLAN == Untagged && p.VLAN == 0) &&
			(m.DSCP == 0 || m.DSCP == CodePoint(p.DSCP)) && (m.DstSite == "" || m.DstSite == site) && (m.App == "" || m.App == app)
	}
	d.Via = p.Via
	for i := range c.Marks {
		if m := &c.Marks[i]; !m.Disabled && matches(&m.Match) {
			d.DSCP, d.Mark = m.DSCP, m.Name
			break
		}
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Disabled || !matches(&r.Match) {
			continue
		}
		d.Rule, d.Export = r.Name, r.Export
		if r.SetDSCP != 0 {
			d.DSCP, d.Mark = r.SetDSCP, ""
		}
		for _, u := range r.Uplinks {
			for i := range channels {
				if channels[i].Uplink == u && channels[i].Active {
					d.Outcome, d.Channel, d.Via = Sent, &channels[i].Channel, Via{}
					return d
				}
			}
		}
		if r.Else == Drop {
			d.Outcome, d.Via = Dropped, Via{}
		}
		return d
	}
	return d
}

// FuzzEngine makes configurations, losses and packets out of arbitrary numbers: a configuration is
// taken or refused as a whole, each gateway has one active channel as long as one is up, and a
// decision is that of the slow twin and of its own explanation.
func FuzzEngine(f *testing.F) {
	for i := range uint64(8) {
		f.Add(i, i*i)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		r := rand.New(rand.NewPCG(a, b))
		cfg := worldConfig(r)
		e, err := New(cfg, a, nil)
		if err != nil {
			if !errors.Is(err, steering.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		now := time.Unix(0, 0)
		for range 60 {
			switch r.IntN(8) {
			case 0:
				next := worldConfig(r)
				was := e.Channels()
				if err := e.Set(next); err == nil {
					cfg = next
					kept(t, was, e.Channels())
				} else if !errors.Is(err, steering.ErrInvalid) {
					t.Fatal(err)
				}
			case 1, 2:
				now = now.Add(time.Duration(r.IntN(4000)) * time.Second)
				e.Step(now, func(Channel) bool { return r.IntN(3) == 0 })
			default:
				p := &Packet{
					Src: netip.AddrPortFrom(worldAddr(r), uint16(r.IntN(6))), Protocol: []uint8{tcp, 17}[r.IntN(2)], DSCP: uint8(r.IntN(3)),
					VLAN: uint16(r.IntN(2) * 5), Optimized: r.IntN(2) == 0, HeaderOnly: r.IntN(2) == 0, App: []string{"", "voice", "video"}[r.IntN(3)],
					Via: Via{"b0", "i0"},
				}
				p.Dst = netip.AddrPortFrom(worldAddr(r), uint16(r.IntN(6)))
				channels := e.Channels()
				active, up := map[string]int{}, map[string]int{}
				for _, c := range channels {
					if c.Up {
						up[c.Uplink] = 1
					}
					if c.Active {
						active[c.Uplink]++
						if !c.Up {
							t.Fatalf("%+v is active and down", c)
						}
					}
				}
				for _, c := range channels {
					if active[c.Uplink] != up[c.Uplink] {
						t.Fatalf("uplink %q has %d active channels", c.Uplink, active[c.Uplink])
					}
				}
				want, x, got := slowDecide(cfg, channels, p), e.Explain(p), e.Decide(p)
				if !same(want, got) || !same(x.Decision, got) {
					t.Fatalf("%+v: %+v, want %+v\n%s", p, got, want, x)
				}
			}
		}
	})
}

func same(a, b Decision) bool {
	if (a.Channel == nil) != (b.Channel == nil) || a.Channel != nil && *a.Channel != *b.Channel {
		return false
	}
	a.Channel, b.Channel = nil, nil
	return a == b
}

// kept sees to it that channels that stay are as they were.
func kept(t *testing.T, was, is []ChannelStatus) {
	before := map[ChannelID]ChannelStatus{}
	for _, c := range was {
		before[c.ID] = c
	}
	for _, c := range is {
		if b, ok := before[c.ID]; ok && b.Channel == c.Channel && b.Active && b != c {
			t.Fatalf("%+v, was %+v", c, b)
		}
	}
}
