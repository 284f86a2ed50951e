package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// Protocol is what a rule says of a packet's protocol: any, other, or one IP protocol
// number. It is wider than a protocol number because every number, 0 included, is a
// real protocol. The zero Protocol is [Any]. Protocols are comparable.
type Protocol uint16

const (
	// Any matches every protocol.
	Any Protocol = 0
	// Other matches every protocol but TCP, UDP, ICMP and ICMPv6.
	Other Protocol = 1

	numbered Protocol = 0x100

	// The common protocols. On an IPv6 VIP a rule for ICMP means ICMPv6.
	ICMP    = numbered | 1
	TCP     = numbered | 6
	UDP     = numbered | 17
	DCCP    = numbered | 33
	GRE     = numbered | 47
	ESP     = numbered | 50
	AH      = numbered | 51
	ICMPv6  = numbered | 58
	SCTP    = numbered | 132
	UDPLite = numbered | 136
)

// ProtocolNumber returns the Protocol that matches exactly the IP protocol number n,
// as assigned by IANA.
func ProtocolNumber(n uint8) Protocol { return numbered | Protocol(n) }

// Number returns the protocol number, and whether p is one.
func (p Protocol) Number() (n uint8, ok bool) { return uint8(p), p&^0xff == numbered }

// IsValid reports whether p is Any, Other or a protocol number.
func (p Protocol) IsValid() bool { return p == Any || p == Other || p&^0xff == numbered }

// Contains reports whether p matches the IP protocol number n.
func (p Protocol) Contains(n uint8) bool {
	switch p {
	case Any:
		return true
	case Other:
		return n != 1 && n != 6 && n != 17 && n != 58
	}
	return p == ProtocolNumber(n)
}

// HasPorts reports whether rules for p can name ports: TCP, UDP, UDP-Lite, DCCP and
// SCTP can, and so can Any, which then matches packets of these protocols.
func (p Protocol) HasPorts() bool {
	switch p {
	case Any, TCP, UDP, UDPLite, DCCP, SCTP:
		return true
	}
	return false
}

// protocolNames are the names written and read; numbers are read too.
var protocolNames = [...]struct {
	p    Protocol
	name string
}{
	{Any, "any"}, {Other, "other"}, {TCP, "tcp"}, {UDP, "udp"}, {ICMP, "icmp"}, {ICMPv6, "icmpv6"},
	{SCTP, "sctp"}, {DCCP, "dccp"}, {UDPLite, "udplite"}, {GRE, "gre"}, {ESP, "esp"}, {AH, "ah"},
}

// ParseProtocol reads a protocol's name ("any", "other", "tcp", …; in any case) or
// number ("89").
func ParseProtocol(s string) (Protocol, error) {
	for _, e := range protocolNames {
		if strings.EqualFold(s, e.name) {
			return e.p, nil
		}
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return Any, fmt.Errorf("%w: protocol %q: want any, other, a name like tcp, or a number from 0 to 255", ErrInvalid, s)
	}
	return ProtocolNumber(uint8(n)), nil
}

// String returns the name that [ParseProtocol] reads.
func (p Protocol) String() string {
	for _, e := range protocolNames {
		if e.p == p {
			return e.name
		}
	}
	if n, ok := p.Number(); ok {
		return strconv.Itoa(int(n))
	}
	return "Protocol(" + strconv.Itoa(int(p)) + ")"
}

// AppendText implements encoding.TextAppender.
func (p Protocol) AppendText(b []byte) ([]byte, error) {
	if !p.IsValid() {
		return b, fmt.Errorf("%w: protocol %v", ErrInvalid, p)
	}
	return append(b, p.String()...), nil
}

// MarshalText implements encoding.TextMarshaler.
func (p Protocol) MarshalText() ([]byte, error) { return p.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler; see [ParseProtocol].
func (p *Protocol) UnmarshalText(text []byte) (err error) {
	*p, err = ParseProtocol(string(text))
	return err
}
