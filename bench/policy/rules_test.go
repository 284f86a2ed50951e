package policy

import (
	"encoding/binary"
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

const flowCount = 1 << 15

// flow is what a packet is made of, in 12 bytes. A slice of all Packets, at 72 bytes each, would
// not fit into the caches, and reading it would be measured too; a packet that has just come from a
// device is there.
type flow struct {
	vip, src uint32
	port     uint16
	proto    uint8
	v6       bool
}

// packet returns the packet of a flow. Addresses are put down in whole words: bytes that were
// just written one by one would make the processor wait when they are read.
func (f *flow) packet() policy.Packet {
	if f.v6 {
		return policy.Packet{
			Src:      netip.AddrPortFrom(addr6(uint64(f.src>>16&0xff)<<16, uint64(f.src&0xffff)), 1),
			Dst:      netip.AddrPortFrom(addr6(0, uint64(f.vip)), f.port),
			Protocol: f.proto,
		}
	}
	return policy.Packet{
		Src:      netip.AddrPortFrom(addr4(f.src), 1),
		Dst:      netip.AddrPortFrom(addr4(100<<24|f.vip), f.port),
		Protocol: f.proto,
	}
}

func addr4(x uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], x)
	return netip.AddrFrom4(b)
}

// addr6 returns an address of 2001:db8::/32.
func addr6(hi, lo uint64) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], 0x2001_0db8_0000_0000|hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}

// flowsOf picks random rules and makes flows for them, which hit, or miss at their VIPs.
func flowsOf(rules []policy.Rule[int], hit bool) []flow {
	r := rand.New(rand.NewPCG(1, 1))
	fs := make([]flow, flowCount)
	for i := range fs {
		m := rules[r.IntN(len(rules))].Match
		dst := m.Dst.Addr().As16()
		f := flow{
			vip:  uint32(dst[13])<<16 | uint32(dst[14])<<8 | uint32(dst[15]),
			src:  10<<24 | uint32(r.IntN(4))<<16 | uint32(r.IntN(1<<16)),
			port: m.DstPort.First,
			v6:   m.Dst.Addr().Is6(),
		}
		if p, ok := m.Src.Prefix(); ok && p.Addr().Is4() && p.Bits() >= 24 && r.IntN(4) > 0 {
			src := m.Src.First.Next().As4()
			f.src = uint32(src[0])<<24 | uint32(src[1])<<16 | uint32(src[2])<<8 | uint32(src[3])
		}
		f.proto, _ = m.Protocol.Number()
		if m.DstPort.IsAny() {
			f.port = uint16(1000 + r.IntN(1000))
		}
		if !hit {
			f.proto, f.port = 17, 1
		}
		fs[i] = f
	}
	return fs
}
