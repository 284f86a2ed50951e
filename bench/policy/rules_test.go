package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/lbprim/lbprim/policy"
)

func vip(i int, v4 bool) netip.Prefix {
	if v4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}), 128)
}

// rulesOf makes n rules, four a VIP: two ports with clients, or without, a port of UDP, all
// of TCP.
func rulesOf(n int, v4, withClients bool) []policy.Rule[int] {
	a, b := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")
	if !v4 {
		a, b = netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2001:db8:1::/48")
	}
	rules := make([]policy.Rule[int], n)
	for i := range rules {
		m := policy.Match{Dst: vip(i/4, v4), Protocol: policy.TCP}
		switch i % 4 {
		case 0:
			m.DstPort = policy.Port(80)
			if withClients {
				m.Src = policy.PrefixRange(a)
			}
		case 1:
			m.DstPort = policy.Port(443)
			if withClients {
				m.Src = policy.PrefixRange(b)
			}
		case 2:
		case 3:
			m.Protocol, m.DstPort = policy.UDP, policy.Port(53)
		}
		rules[i] = policy.Rule[int]{Name: fmt.Sprint(i), Match: m, Value: i}
	}
	return rules
}

// oneVIP makes ports times clients rules for one VIP; the last client of a port is any.
func oneVIP(ports, clients int) (rules []policy.Rule[int]) {
	r := rand.New(rand.NewPCG(2, 2))
	for p := range ports {
		used := make(map[uint32]bool)
		for len(used) < clients-1 {
			c := r.Uint32() &^ 0xff
			if !used[c] {
				used[c] = true
				src := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(c >> 24), byte(c >> 16), byte(c >> 8), 0}), 24)
				rules = append(rules, policy.Rule[int]{Match: policy.Match{Dst: vip(0, true), Protocol: policy.TCP, DstPort: policy.Port(uint16(p + 1)), Src: policy.PrefixRange(src)}})
			}
		}
		rules = append(rules, policy.Rule[int]{Match: policy.Match{Dst: vip(0, true), Protocol: policy.TCP, DstPort: policy.Port(uint16(p + 1))}})
	}
	for i := range rules {
		rules[i].Name, rules[i].Value = fmt.Sprint(i), i
	}
	return rules
}

const packetCount = 1 << 16

// packetsOf picks random rules and makes packets for them, which hit, or miss at their
// VIPs.
func packetsOf(rules []policy.Rule[int], hit bool) []policy.Packet {
	r := rand.New(rand.NewPCG(1, 1))
	ps := make([]policy.Packet, packetCount)
	for i := range ps {
		m := rules[r.IntN(len(rules))].Match
		var src netip.Addr
		switch p, ok := m.Src.Prefix(); {
		case ok && p.Bits() >= 24 && r.IntN(4) > 0:
			src = m.Src.First.Next()
		case m.Dst.Addr().Is4():
			src = netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), byte(r.Uint32()), byte(r.Uint32())})
		default:
			src = netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 5: byte(r.IntN(4)), 15: byte(r.Uint32())})
		}
		proto, _ := m.Protocol.Number()
		port := m.DstPort.First
		if m.DstPort.IsAny() {
			port = uint16(1000 + r.IntN(1000))
		}
		if !hit {
			proto, port = 17, 1
		}
		ps[i] = policy.Packet{Src: netip.AddrPortFrom(src, 1), Dst: netip.AddrPortFrom(m.Dst.Addr(), port), Protocol: proto}
	}
	return ps
}
