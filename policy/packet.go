package policy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Packet is what a look-up is asked about. Ports count only for protocols that have
// them; for an ICMP packet they are ignored. IPv4-mapped IPv6 addresses count as IPv4.
// A packet whose addresses are missing or of two families belongs to no service.
//
// The zero Packet belongs to no service. Packets are comparable.
type Packet struct {
	Src, Dst netip.AddrPort // of one family
	Protocol uint8          // IANA IP protocol number

	// FromProxy marks traffic that comes back from a proxy (SSL, caching, compression
	// and so on) to which a rule had sent it. It meets internal rules only; all other
	// traffic meets no internal rule.
	FromProxy bool
}

// packetHasPorts reports whether packets of IP protocol n carry ports: TCP, UDP, DCCP,
// SCTP, UDP-Lite.
func packetHasPorts(n uint8) bool {
	return n == 6 || n == 17 || n == 33 || n == 132 || n == 136
}

// String returns the form that [ParsePacket] reads.
func (p Packet) String() string {
	s := ProtocolNumber(p.Protocol).String() + " " + p.Src.String() + " > " + p.Dst.String()
	if p.FromProxy {
		s += " from proxy"
	}
	return s
}

// ParsePacket reads a packet: its protocol, source and destination with their ports,
// and whether it comes from a proxy.
//
//	tcp 192.0.2.1:40000 > 10.0.0.1:80
//	icmpv6 [2001:db8::1]:0 > [2001:db8::80]:0 from proxy
func ParsePacket(s string) (Packet, error) {
	f := strings.Fields(s)
	var p Packet
	if len(f) == 6 && f[4] == "from" && f[5] == "proxy" {
		p.FromProxy = true
		f = f[:4]
	}
	if len(f) != 4 || f[2] != ">" {
		return Packet{}, fmt.Errorf("%w: packet %q: want a form like tcp 192.0.2.1:40000 > 10.0.0.1:80", ErrInvalid, s)
	}
	proto, err := ParseProtocol(f[0])
	if err != nil {
		return Packet{}, err
	}
	var ok bool
	if p.Protocol, ok = proto.Number(); !ok {
		return Packet{}, fmt.Errorf("%w: packet protocol %q: want a name like tcp, or a number from 0 to 255", ErrInvalid, f[0])
	}
	if p.Src, err = netip.ParseAddrPort(f[1]); err != nil {
		return Packet{}, fmt.Errorf("%w: packet source %s: %w; want a form like 192.0.2.1:40000", ErrInvalid, strconv.Quote(f[1]), err)
	}
	if p.Dst, err = netip.ParseAddrPort(f[3]); err != nil {
		return Packet{}, fmt.Errorf("%w: packet destination %s: %w; want a form like 10.0.0.1:80", ErrInvalid, strconv.Quote(f[3]), err)
	}
	return p, nil
}

// AppendText implements encoding.TextAppender.
func (p Packet) AppendText(b []byte) ([]byte, error) {
	if !p.Src.IsValid() || !p.Dst.IsValid() {
		return b, fmt.Errorf("%w: packet %v: an address is missing", ErrInvalid, p)
	}
	return append(b, p.String()...), nil
}

// MarshalText implements encoding.TextMarshaler.
func (p Packet) MarshalText() ([]byte, error) { return p.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler; see [ParsePacket].
func (p *Packet) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePacket(string(text))
	return err
}
