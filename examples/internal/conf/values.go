package conf

import (
	"fmt"
	"net"
	"net/netip"
)

// A Prefix is an address or a network, such as a virtual address. The zero Prefix is none.
type Prefix struct{ netip.Prefix }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Prefix) UnmarshalText(b []byte) error {
	if a, err := netip.ParseAddr(string(b)); err == nil {
		p.Prefix = netip.PrefixFrom(a, a.BitLen())
		return nil
	}
	x, err := netip.ParsePrefix(string(b))
	if err != nil {
		return fmt.Errorf("%q: want an address or a network such as 192.0.2.80, 2001:db8::80 or 192.0.2.0/24", b)
	}
	p.Prefix = x.Masked()
	return nil
}

// An Endpoint is an address with or without a port. The zero Endpoint is none.
type Endpoint struct{ netip.AddrPort }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *Endpoint) UnmarshalText(b []byte) error {
	if ap, err := netip.ParseAddrPort(string(b)); err == nil {
		e.AddrPort = ap
		return nil
	}
	a, err := netip.ParseAddr(string(b))
	if err != nil {
		return fmt.Errorf("%q: want an address such as 10.0.0.1:80, [2001:db8::1]:80 or 10.0.0.1", b)
	}
	e.AddrPort = netip.AddrPortFrom(a, 0)
	return nil
}

func (e Endpoint) String() string {
	if e.Port() == 0 {
		return e.Addr().String()
	}
	return e.AddrPort.String()
}

// MarshalText implements encoding.TextMarshaler.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// A MAC is an Ethernet address. The zero MAC is none.
type MAC [6]byte

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(b []byte) error {
	hw, err := net.ParseMAC(string(b))
	if err != nil || len(hw) != len(m) {
		return fmt.Errorf("%q: want a MAC such as 02:00:00:00:00:01", b)
	}
	copy(m[:], hw)
	return nil
}
