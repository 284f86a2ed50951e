package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lbprim/lbprim/internal/enum"
)

// Match is the set of packets a rule applies to. Matches are comparable, but two that
// are not equal by == may hold the same packets; see [Match.Relate].
//
// The zero Match is invalid: a rule must name a VIP. Its text form, which JSON and YAML
// use too, is
//
//	VIP [protocol[/ports]] [from clients]
//
// as in "10.0.0.1 tcp/80", "2001:db8::1 udp/5000-5999 from 2001:db8:1::/48",
// "192.0.2.0/28 other", or "10.0.0.1 from 10.0.0.1-10.0.0.99".
type Match struct {
	Dst      netip.Prefix // the VIP; normally one address
	Protocol Protocol     // zero is any
	DstPort  PortRange    // zero is any; needs a protocol that has ports, or any
	Src      AddrRange    // the clients, of the VIP's family; zero is any
}

// Tier is the coarse rank of a match by protocol and port.
type Tier uint8

const (
	// TierNone is the tier of no valid match.
	TierNone Tier = iota
	// TierPort has the rules that name a protocol and ports.
	TierPort
	// TierProtocol has the rules that name a protocol and no port.
	TierProtocol
	// TierOther has the rules for [Other].
	TierOther
	// TierAny has the rules for any protocol, with or without ports.
	TierAny
)

var tierNames = enum.Wrapping[Tier](ErrInvalid, "tier", "none", "port", "protocol", "other", "any")

// String returns "port", "protocol", "other" or "any".
func (t Tier) String() string { return tierNames.String(t) }

// AppendText implements encoding.TextAppender.
func (t Tier) AppendText(b []byte) ([]byte, error) { return tierNames.Append(b, t) }

// MarshalText implements encoding.TextMarshaler.
func (t Tier) MarshalText() ([]byte, error) { return t.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Tier) UnmarshalText(text []byte) error { return tierNames.Parse(t, text) }

// Tier returns the tier of a valid match.
func (m Match) Tier() Tier {
	n, err := m.norm()
	if err != nil {
		return TierNone
	}
	return n.tier
}

// norm is a match in the form that is compared and compiled: one form for each set of
// packets of one rank.
type norm struct {
	fam    family
	bits   uint8 // of the VIP
	tier   Tier
	anySrc bool
	proto  Protocol
	ports  PortRange
	vip    u128
	src    span
}

// norm checks a match and brings it to its normal form.
func (m Match) norm() (norm, error) {
	var n norm
	if !m.Dst.IsValid() {
		return n, fmt.Errorf("%w: no VIP: want an address or a prefix like 192.0.2.0/28", ErrInvalid)
	}
	dst := m.Dst.Masked()
	vip, fam := split(dst.Addr())
	bits := dst.Bits()
	if dst.Addr().Is4In6() {
		bits -= 96
	}
	n = norm{fam: fam, bits: uint8(bits), proto: m.Protocol, ports: m.DstPort, vip: vip}
	if fam == v6 && n.proto == ICMP {
		n.proto = ICMPv6
	}
	if !n.proto.IsValid() {
		return n, fmt.Errorf("%w: protocol %v: want any, other or a protocol number", ErrInvalid, m.Protocol)
	}
	if !n.ports.IsValid() {
		return n, fmt.Errorf("%w: ports %v: the first is after the last", ErrInvalid, m.DstPort)
	}
	if !n.ports.IsAny() && !n.proto.HasPorts() {
		return n, fmt.Errorf("%w: ports %v: protocol %v has none; want tcp, udp, udplite, dccp, sctp or any", ErrInvalid, m.DstPort, m.Protocol)
	}
	if n.proto != Any && n.ports == (PortRange{0, 65535}) {
		n.ports = PortRange{} // every packet of the protocol has a port
	}
	if err := m.Src.validate(); err != nil {
		return n, err
	}
	n.src = m.Src.span(fam)
	if !m.Src.IsAny() {
		if _, f := split(m.Src.First); f != fam {
			return n, fmt.Errorf("%w: clients %v: are %v, the VIP %v is %v", ErrInvalid, m.Src, f, m.Dst, fam)
		}
	}
	n.anySrc = n.src == span{u128{}, fam.max()}
	switch {
	case n.proto == Any:
		n.tier = TierAny
	case n.proto == Other:
		n.tier = TierOther
	case n.ports.IsAny():
		n.tier = TierProtocol
	default:
		n.tier = TierPort
	}
	return n, nil
}

// match returns the match that a table shows for a rule.
func (n norm) match() Match {
	m := Match{Dst: netip.PrefixFrom(n.fam.addr(n.vip), int(n.bits)), Protocol: n.proto, DstPort: n.ports}
	if !n.anySrc {
		m.Src = AddrRange{n.fam.addr(n.src.first), n.fam.addr(n.src.last)}
	}
	return m
}

// compareVIP orders VIPs: hosts, then longer prefixes; IPv4 before IPv6.
func (n *norm) compareVIP(o *norm) int {
	return cmp.Or(
		cmp.Compare(n.fam.bits()-int(n.bits), o.fam.bits()-int(o.bits)),
		cmp.Compare(n.fam, o.fam),
		n.vip.cmp(o.vip),
	)
}

// compareRow orders what two rules of one VIP say of protocol and port.
func (n *norm) compareRow(o *norm) int {
	return cmp.Or(
		cmp.Compare(n.tier, o.tier),
		cmp.Compare(n.ports.width(), o.ports.width()),
		cmp.Compare(n.proto, o.proto),
		cmp.Compare(n.ports.First, o.ports.First),
	)
}

// compareSrc orders two rules of one row: narrower client ranges first.
func (n *norm) compareSrc(o *norm) int {
	return cmp.Or(n.src.size().cmp(o.src.size()), n.src.first.cmp(o.src.first))
}

func (n *norm) compare(o *norm) int {
	if c := n.compareVIP(o); c != 0 {
		return c
	}
	if c := n.compareRow(o); c != 0 {
		return c
	}
	return n.compareSrc(o)
}

// Validate reports what is wrong with m; the error wraps [ErrInvalid].
func (m Match) Validate() error {
	_, err := m.norm()
	return err
}

// Compare orders valid matches by precedence: it is negative if m is consulted before
// n, zero if they are the same match, and invalid matches come last. Where a packet
// cannot tell, the order is by number, so that it is total.
func (m Match) Compare(n Match) int {
	a, err1 := m.norm()
	b, err2 := n.norm()
	switch {
	case err1 != nil && err2 != nil:
		return 0
	case err1 != nil:
		return 1
	case err2 != nil:
		return -1
	}
	return a.compare(&b)
}

// Contains reports whether m holds p. It is what a rule says on its own, without
// regard to other rules. An invalid match holds nothing.
func (m Match) Contains(p Packet) bool {
	n, err := m.norm()
	if err != nil {
		return false
	}
	src, f1 := split(p.Src.Addr())
	dst, f2 := split(p.Dst.Addr())
	return f1 == n.fam && f2 == n.fam &&
		n.fam.mask(dst, int(n.bits)) == n.vip &&
		n.hasRow(p.Protocol, p.Dst.Port()) &&
		n.src.contains(src)
}

// hasRow reports whether protocol and port are those of the rule.
func (n *norm) hasRow(proto uint8, port uint16) bool {
	return n.proto.Contains(proto) && (n.ports.IsAny() || packetHasPorts(proto) && n.ports.Contains(port))
}

// ParseMatch reads the text form of a match; see [Match].
func ParseMatch(s string) (Match, error) {
	f := strings.Fields(s)
	var m Match
	var err error
	if len(f) == 0 {
		return Match{}, fmt.Errorf("%w: match %q: want a VIP first, as in 10.0.0.1 tcp/80 from 10.0.0.0/8", ErrInvalid, s)
	}
	if strings.Contains(f[0], "/") {
		m.Dst, err = netip.ParsePrefix(f[0])
	} else {
		var a netip.Addr
		if a, err = netip.ParseAddr(f[0]); err == nil {
			m.Dst, err = a.WithZone("").Prefix(a.BitLen())
			if a.Zone() != "" {
				err = fmt.Errorf("a VIP has no zone")
			}
		}
	}
	if err != nil {
		return Match{}, fmt.Errorf("%w: VIP %q: %w; want an address or a prefix like 192.0.2.0/28", ErrInvalid, f[0], err)
	}
	f = f[1:]
	if len(f) > 0 && f[0] != "from" {
		proto, ports, hasPorts := strings.Cut(f[0], "/")
		if m.Protocol, err = ParseProtocol(proto); err != nil {
			return Match{}, err
		}
		if hasPorts {
			if m.DstPort, err = ParsePortRange(ports); err != nil {
				return Match{}, err
			}
		}
		f = f[1:]
	}
	if len(f) == 2 && f[0] == "from" {
		if m.Src, err = ParseAddrRange(f[1]); err != nil {
			return Match{}, err
		}
		f = nil
	}
	if len(f) > 0 {
		return Match{}, fmt.Errorf("%w: match %q: %q is unexpected; want a form like 10.0.0.1 tcp/80 from 10.0.0.0/8", ErrInvalid, s, f[0])
	}
	return m, nil
}

// String returns the text form of m.
func (m Match) String() string {
	var b strings.Builder
	if m.Dst.IsSingleIP() {
		b.WriteString(m.Dst.Addr().String())
	} else {
		b.WriteString(m.Dst.String())
	}
	if m.Protocol != Any || !m.DstPort.IsAny() {
		b.WriteString(" " + m.Protocol.String())
	}
	if !m.DstPort.IsAny() {
		b.WriteString("/" + m.DstPort.String())
	}
	if !m.Src.IsAny() {
		b.WriteString(" from " + m.Src.String())
	}
	return b.String()
}

// AppendText implements encoding.TextAppender. It refuses an invalid match.
func (m Match) AppendText(b []byte) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return b, err
	}
	return append(b, m.String()...), nil
}

// MarshalText implements encoding.TextMarshaler.
func (m Match) MarshalText() ([]byte, error) { return m.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler; see [ParseMatch].
func (m *Match) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMatch(string(text))
	return err
}
