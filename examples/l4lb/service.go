package main

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

type service struct {
	Name     string              `yaml:"name,required" doc:"Identity of the service, over any change."`
	Match    policy.Match        `yaml:"match" doc:"The whole match as one text, such as '192.0.2.80 tcp/80 from 10.0.0.0/8', instead of vip, protocol, port and clients."`
	VIP      vip                 `yaml:"vip" doc:"Virtual address, or a network of them."`
	Protocol policy.Protocol     `yaml:"protocol" doc:"tcp, udp, icmp, sctp, a number, other, or any." default:"any"`
	Port     policy.PortRange    `yaml:"port" doc:"Port, a range such as 8000-8099, or any." default:"any"`
	Clients  policy.AddrRange    `yaml:"clients" doc:"Clients served: a network, or a range such as 10.0.0.5-10.0.0.9." default:"any"`
	Farm     string              `yaml:"farm,required" doc:"Name of the farm that serves."`
	Lost     dataplane.MidStream `yaml:"lost-session" doc:"What a TCP packet in the middle of an unknown connection gets." default:"reset"`
	MinNodes int                 `yaml:"min-nodes" doc:"How many nodes must be usable for the service to take new sessions." default:"1"`
	Delay    *delay              `yaml:"delay" doc:"Choose the node after reading the beginning of a TCP connection. It needs forward nat or fullnat."`
	Flows    bool                `yaml:"export-flows" doc:"Export the service's flows, see flow-export." default:"false"`
	Disabled bool                `yaml:"disabled" doc:"Leaves the service out." default:"false"`
}

func (s *service) validate(f *conf.File, path string, farms map[string]*farm) {
	whole, parts := s.Match != (policy.Match{}), s.VIP.IsValid() || s.Protocol != 0 || s.Port != (policy.PortRange{}) || s.Clients != (policy.AddrRange{})
	switch {
	case whole && parts:
		f.Add(path+".match", "want either match or vip, protocol, port and clients")
	case !whole && !s.VIP.IsValid():
		f.Add(path, "vip is missing: want an address or a network")
	}
	if s.Delay != nil && !s.match().Protocol.Contains(6) {
		f.Add(path+".delay", "only TCP connections have a beginning to read: want protocol tcp")
	}
	if _, ok := farms[s.Farm]; !ok && s.Farm != "" {
		f.Add(path+".farm", "%q: want one of %v", s.Farm, slices.Sorted(maps.Keys(farms)))
	}
}

// match is what the service is for, however it was written.
func (s *service) match() policy.Match {
	if s.VIP.IsValid() {
		return policy.Match{Dst: s.VIP.Prefix, Protocol: s.Protocol, DstPort: s.Port, Src: s.Clients}
	}
	return s.Match
}

// library is the service as the data plane wants it.
func (s *service) library(fm *farm, pool *steering.Pool) *dataplane.Service {
	out := &dataplane.Service{
		Name: s.Name, Pool: pool, Mode: fm.Mode, Forward: fm.Forward, Locals: fm.Locals, MTU: fm.PathMTU, MidStream: s.Lost, MinNodes: s.MinNodes, ExportFlows: s.Flows,
		Ageing:      clienttable.Ageing{Idle: fm.Ageing.Idle, SYN: fm.Ageing.SYN, Linger: fm.Ageing.Linger},
		ClientBits4: fm.Clients.Bits4, ClientBits6: fm.Clients.Bits6,
	}
	if t := fm.Tunnel; t != nil {
		out.Tunnel = dataplane.Tunnel{Kind: t.Kind, Key: t.Key, Port: t.Port, NodeMAC: t.MAC}
	}
	return out
}

// vip is an address or a network.
type vip struct{ netip.Prefix }

func (v *vip) UnmarshalText(b []byte) error {
	if a, err := netip.ParseAddr(string(b)); err == nil {
		v.Prefix = netip.PrefixFrom(a, a.BitLen())
		return nil
	}
	p, err := netip.ParsePrefix(string(b))
	if err != nil {
		return fmt.Errorf("%q: want an address or a network such as 192.0.2.80, 2001:db8::80 or 192.0.2.0/24", b)
	}
	v.Prefix = p.Masked()
	return nil
}

// endpoint is an address with or without a port.
type endpoint struct{ netip.AddrPort }

func (e *endpoint) UnmarshalText(b []byte) error {
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

func (e endpoint) String() string {
	if e.Port() == 0 {
		return e.Addr().String()
	}
	return e.AddrPort.String()
}

// MarshalText implements encoding.TextMarshaler.
func (e endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// mac is an Ethernet address.
type mac [6]byte

func (m *mac) UnmarshalText(b []byte) error {
	hw, err := net.ParseMAC(string(b))
	if err != nil || len(hw) != len(m) {
		return fmt.Errorf("%q: want a MAC such as 02:00:00:00:00:01", b)
	}
	copy(m[:], hw)
	return nil
}
