package policy

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/lbprim/lbprim/policy"
)

// lookuper is what all candidates can do. The peers know what the rules of this
// benchmark need: exact ports, client prefixes, host VIPs.
type lookuper interface {
	Lookup(policy.Packet) (int, bool)
}

// linear tries rules in order of precedence.
type linear struct{ rules []policy.Rule[int] }

func newLinear(rules []policy.Rule[int]) *linear {
	l := &linear{slices.Clone(rules)}
	slices.SortFunc(l.rules, func(a, b policy.Rule[int]) int { return a.Match.Compare(b.Match) })
	return l
}

func (l *linear) Lookup(p policy.Packet) (int, bool) {
	dst, src, port := p.Dst.Addr(), p.Src.Addr(), p.Dst.Port()
	for i := range l.rules {
		m := &l.rules[i].Match
		if m.Dst.Addr() != dst {
			continue
		}
		if n, ok := m.Protocol.Number(); ok && n != p.Protocol {
			continue
		}
		if !m.DstPort.IsAny() && (port < m.DstPort.First || port > m.DstPort.Last) {
			continue
		}
		if !m.Src.IsAny() && (src.Less(m.Src.First) || m.Src.Last.Less(src)) {
			continue
		}
		return l.rules[i].Value, true
	}
	return 0, false
}

// clients are the rules of one tuple, narrowest first.
type clients []struct {
	src   netip.Prefix // zero is any
	value int
}

func (c clients) find(src netip.Addr) (int, bool) {
	for i := range c {
		if !c[i].src.IsValid() || c[i].src.Contains(src) {
			return c[i].value, true
		}
	}
	return 0, false
}

type (
	tuple1 struct {
		dst   netip.Addr
		proto uint8
		port  uint16
	}
	tuple2 struct {
		dst   netip.Addr
		proto uint8
	}
)

// threeMaps has a map for each tier.
type threeMaps struct {
	t1 map[tuple1]clients
	t2 map[tuple2]clients
	t3 map[netip.Addr]clients
}

func newThreeMaps(rules []policy.Rule[int]) *threeMaps {
	m := &threeMaps{make(map[tuple1]clients), make(map[tuple2]clients), make(map[netip.Addr]clients)}
	for _, r := range newLinear(rules).rules {
		src, _ := r.Match.Src.Prefix()
		e := clients{{src, r.Value}}
		dst := r.Match.Dst.Addr()
		n, ok := r.Match.Protocol.Number()
		switch {
		case !ok:
			m.t3[dst] = append(m.t3[dst], e...)
		case r.Match.DstPort.IsAny():
			k := tuple2{dst, n}
			m.t2[k] = append(m.t2[k], e...)
		default:
			k := tuple1{dst, n, r.Match.DstPort.First}
			m.t1[k] = append(m.t1[k], e...)
		}
	}
	return m
}

func (m *threeMaps) Lookup(p policy.Packet) (int, bool) {
	dst, src := p.Dst.Addr(), p.Src.Addr()
	if v, ok := m.t1[tuple1{dst, p.Protocol, p.Dst.Port()}].find(src); ok {
		return v, ok
	}
	if v, ok := m.t2[tuple2{dst, p.Protocol}].find(src); ok {
		return v, ok
	}
	return m.t3[dst].find(src)
}

// nested has a map by VIP of maps by protocol and port of bart tables of clients.
type nested struct {
	vips map[netip.Addr]map[uint32]*bart.Fast[int]
}

func newNested(rules []policy.Rule[int]) *nested {
	n := &nested{make(map[netip.Addr]map[uint32]*bart.Fast[int])}
	for _, r := range rules {
		dst := r.Match.Dst.Addr()
		src, ok := r.Match.Src.Prefix()
		if !ok {
			src = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			if dst.Is4() {
				src = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			}
		}
		if n.vips[dst] == nil {
			n.vips[dst] = make(map[uint32]*bart.Fast[int])
		}
		key := uint32(1 << 24)
		if num, ok := r.Match.Protocol.Number(); ok {
			key = nestedKey(num, r.Match.DstPort.First)
		}
		t := n.vips[dst][key]
		if t == nil {
			t = new(bart.Fast[int])
			n.vips[dst][key] = t
		}
		t.Insert(src, r.Value)
	}
	return n
}

func nestedKey(proto uint8, port uint16) uint32 { return uint32(proto)<<16 | uint32(port) }

func (n *nested) Lookup(p policy.Packet) (int, bool) {
	m := n.vips[p.Dst.Addr()]
	if m == nil {
		return 0, false
	}
	src := p.Src.Addr()
	for _, k := range [3]uint32{nestedKey(p.Protocol, p.Dst.Port()), nestedKey(p.Protocol, 0), 1 << 24} {
		if t := m[k]; t != nil {
			if v, ok := t.Lookup(src); ok {
				return v, ok
			}
		}
	}
	return 0, false
}
