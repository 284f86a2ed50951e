package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// oracle is the slow twin: it holds every rule against the packet and compares the ones
// that match by the words of the package comment. It shares no code with the table
// but the parsing of matches.
type oracle struct {
	strict bool
	rules  []Rule[int]
}

func oracleRange(r AddrRange, v4 bool) (lo, hi netip.Addr) {
	if !r.IsAny() {
		return r.First.Unmap(), r.Last.Unmap()
	}
	if v4 {
		return netip.AddrFrom4([4]byte{}), netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	return netip.IPv6Unspecified(), netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
}

func oracleVIP(p netip.Prefix) netip.Prefix {
	p = p.Masked()
	if p.Addr().Is4In6() {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

func oracleProto(r Rule[int]) Protocol {
	if r.Match.Protocol == ICMP && oracleVIP(r.Match.Dst).Addr().Is6() {
		return ICMPv6
	}
	return r.Match.Protocol
}

// row tells whether protocol and port match, and how specific that is: smaller is more.
func (o oracle) row(r Rule[int], p Packet) (tier, width int, ok bool) {
	proto := oracleProto(r)
	ported := slices.Contains([]uint8{6, 17, 33, 132, 136}, p.Protocol)
	ports := r.Match.DstPort
	if proto != Any && ports == (PortRange{0, 65535}) {
		ports = PortRange{}
	}
	anyPort := ports == PortRange{}
	if !anyPort && (!ported || p.Dst.Port() < ports.First || p.Dst.Port() > ports.Last) {
		return 0, 0, false
	}
	width = 65536
	if !anyPort {
		width = int(ports.Last) - int(ports.First)
	}
	switch {
	case proto == Any:
		return 4, width, true
	case proto == Other:
		return 3, width, !slices.Contains([]uint8{1, 6, 17, 58}, p.Protocol)
	case proto != ProtocolNumber(p.Protocol):
		return 0, 0, false
	case anyPort:
		return 2, width, true
	}
	return 1, width, true
}

// owner returns the owning VIP.
func (o oracle) owner(p Packet) (vip netip.Prefix, ok bool) {
	dst := p.Dst.Addr().Unmap().WithZone("")
	for _, r := range o.rules {
		v := oracleVIP(r.Match.Dst)
		if !r.Disabled && r.Internal == p.FromProxy && v.Contains(dst) && (!ok || v.Bits() > vip.Bits()) {
			vip, ok = v, true
		}
	}
	return vip, ok
}

// matches returns the rules that hold p, best first.
func (o oracle) matches(p Packet) []Rule[int] {
	src := p.Src.Addr().Unmap().WithZone("")
	dst := p.Dst.Addr().Unmap().WithZone("")
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() {
		return nil
	}
	vip, ok := o.owner(p)
	if !ok {
		return nil
	}
	type cand struct {
		rule        Rule[int]
		tier, width int
		lo, hi      netip.Addr
		inside      bool
	}
	var cands []cand
	best := 9
	for _, r := range o.rules {
		if r.Disabled || r.Internal != p.FromProxy || oracleVIP(r.Match.Dst) != vip {
			continue
		}
		tier, width, ok := o.row(r, p)
		if !ok {
			continue
		}
		lo, hi := oracleRange(r.Match.Src, dst.Is4())
		cands = append(cands, cand{r, tier, width, lo, hi, lo.Compare(src) <= 0 && src.Compare(hi) <= 0})
		best = min(best, tier)
	}
	cands = slices.DeleteFunc(cands, func(c cand) bool {
		return !c.inside || o.strict && c.tier != best
	})
	slices.SortFunc(cands, func(a, b cand) int {
		switch {
		case a.tier != b.tier:
			return a.tier - b.tier
		case a.width != b.width:
			return a.width - b.width
		case a.lo == b.lo && a.hi == b.hi:
			return 0
		case a.lo.Compare(b.lo) >= 0 && a.hi.Compare(b.hi) <= 0: // a is inside b
			return -1
		}
		return 1
	})
	var out []Rule[int]
	for _, c := range cands {
		out = append(out, c.rule)
	}
	return out
}

func (o oracle) lookup(p Packet) (int, bool) {
	if m := o.matches(p); len(m) > 0 {
		return m[0].Value, true
	}
	return 0, false
}

// collide tells whether two rules may not be in one table.
func (o oracle) collide(a, b Rule[int]) bool {
	pa, pb := oracleProto(a), oracleProto(b)
	if a.Disabled || b.Disabled || a.Internal != b.Internal || oracleVIP(a.Match.Dst) != oracleVIP(b.Match.Dst) || pa != pb {
		return false
	}
	qa, qb := a.Match.DstPort, b.Match.DstPort
	full := PortRange{0, 65535}
	if pa != Any && qa == full {
		qa = PortRange{}
	}
	if pa != Any && qb == full {
		qb = PortRange{}
	}
	is4 := oracleVIP(a.Match.Dst).Addr().Is4()
	alo, ahi := oracleRange(a.Match.Src, is4)
	blo, bhi := oracleRange(b.Match.Src, is4)
	if ahi.Less(blo) || bhi.Less(alo) {
		return false
	}
	if qa == qb {
		if alo == blo && ahi == bhi {
			return true
		}
		aInB := blo.Compare(alo) <= 0 && ahi.Compare(bhi) <= 0
		bInA := alo.Compare(blo) <= 0 && bhi.Compare(ahi) <= 0
		return !aInB && !bInA
	}
	if qa == (PortRange{}) || qb == (PortRange{}) || qa.Last < qb.First || qb.Last < qa.First {
		return false
	}
	aInB := qb.First <= qa.First && qa.Last <= qb.Last
	bInA := qa.First <= qb.First && qb.Last <= qa.Last
	return !aInB && !bInA
}

// universe makes rules and packets that have a good chance to meet: few VIPs, ports and
// client ranges with common edges.
type universe struct {
	*rand.Rand
	ports int // upper bound of the ports used, plus one
	addrs int // upper bound of the last byte of clients, plus one
}

func (u universe) client(v4 bool, i int) netip.Addr {
	if v4 {
		return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
	}
	if i%2 == 0 { // some ranges within a /64, some beyond
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:0:%x::", i))
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:0:%x::%x", i-1, i))
}

func (u universe) vip(v4 bool) netip.Prefix {
	if v4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(u.IntN(4))}), 32-u.IntN(3)*u.IntN(2))
	}
	return netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:ff::%x", u.IntN(4))), 128-u.IntN(3)*u.IntN(2))
}

var universeProtocols = []Protocol{Any, Other, TCP, TCP, UDP, ICMP, SCTP, GRE, ProtocolNumber(0), ProtocolNumber(255)}

func (u universe) match() Match {
	v4 := u.IntN(2) == 0
	m := Match{Dst: u.vip(v4), Protocol: universeProtocols[u.IntN(len(universeProtocols))]}
	if m.Protocol.HasPorts() && u.IntN(3) > 0 {
		first := u.IntN(u.ports)
		last := first
		if u.IntN(2) == 0 {
			last = min(u.ports-1, first+u.IntN(u.ports))
		}
		m.DstPort = PortRange{uint16(first), uint16(last)}
		if u.IntN(20) == 0 {
			m.DstPort = PortRange{0, 65535}
		}
	}
	if u.IntN(3) > 0 {
		lo := u.IntN(u.addrs)
		hi := min(u.addrs-1, lo+u.IntN(u.addrs))
		if u.IntN(2) == 0 {
			hi = lo
		}
		m.Src = AddrRange{u.client(v4, lo), u.client(v4, hi)}
		if !v4 && u.IntN(2) == 0 { // such as a slot holds
			m.Src = PrefixRange(netip.PrefixFrom(m.Src.First, 64-u.IntN(6)).Masked())
		}
		if !v4 && m.Src.Last.Less(m.Src.First) {
			m.Src.Last = m.Src.First
		}
	}
	return m
}

// rules returns n rules; any that collides with an earlier one is left out.
func (u universe) rules(n int) []Rule[int] {
	var o oracle
	for i := range n {
		r := Rule[int]{
			Name: fmt.Sprint("r", i), Match: u.match(), Value: i,
			Disabled: u.IntN(16) == 0, Internal: u.IntN(16) == 0,
		}
		if !slices.ContainsFunc(o.rules, func(q Rule[int]) bool { return o.collide(q, r) }) {
			o.rules = append(o.rules, r)
		}
	}
	return o.rules
}

func (u universe) packet() Packet {
	v4 := u.IntN(2) == 0
	p := Packet{FromProxy: u.IntN(16) == 0}
	p.Protocol = []uint8{6, 6, 6, 17, 1, 58, 132, 47, 0, 255, 33, 89, uint8(u.IntN(256))}[u.IntN(13)]
	port := uint16(u.IntN(u.ports + 1))
	dst := u.vip(v4).Addr()
	src := u.client(v4, u.IntN(u.addrs+1))
	switch u.IntN(32) {
	case 0:
		dst = netip.MustParseAddr("198.51.100.1")
	case 1:
		src = netip.Addr{}
	case 2:
		src = u.client(!v4, 0)
	case 3:
		if v4 {
			src = netip.AddrFrom16(src.As16())
		} else {
			src = src.Next()
		}
	case 4:
		if v4 {
			dst = netip.AddrFrom16(dst.As16())
		} else {
			src = src.WithZone("eth0")
		}
	case 5:
		port = uint16(u.Uint32())
	case 6:
		if src.Prev().IsValid() {
			src = src.Prev()
		}
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, 40000), netip.AddrPortFrom(dst, port)
	return p
}
