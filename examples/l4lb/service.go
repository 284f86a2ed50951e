package main

import (
	"maps"
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
	VIP      conf.Prefix         `yaml:"vip" doc:"Virtual address, or a network of them."`
	Protocol policy.Protocol     `yaml:"protocol" doc:"tcp, udp, icmp, sctp, a number, other, or any." default:"any"`
	Port     policy.PortRange    `yaml:"port" doc:"Port, a range such as 8000-8099, or any." default:"any"`
	Clients  policy.AddrRange    `yaml:"clients" doc:"Clients served: a network, or a range such as 10.0.0.5-10.0.0.9." default:"any"`
	Farm     string              `yaml:"farm,required" doc:"Name of the farm that serves."`
	Lost     dataplane.MidStream `yaml:"lost-session" doc:"What a TCP packet in the middle of an unknown connection gets." default:"reset"`
	LostNode dataplane.MidStream `yaml:"lost-server" doc:"What a client's packet of a TCP connection gets whose server was lost." default:"reset"`
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
		Name: s.Name, Pool: pool, Mode: fm.Mode, Forward: fm.Forward, Locals: fm.Locals, MTU: fm.PathMTU, MidStream: s.Lost, ServerLost: s.LostNode, MinNodes: s.MinNodes, ExportFlows: s.Flows,
		Ageing:      clienttable.Ageing{Idle: fm.Ageing.Idle, SYN: fm.Ageing.SYN, Linger: fm.Ageing.Linger},
		ClientBits4: fm.Clients.Bits4, ClientBits6: fm.Clients.Bits6,
	}
	if t := fm.Tunnel; t != nil {
		out.Tunnel = dataplane.Tunnel{Kind: t.Kind, Key: t.Key, Port: t.Port, NodeMAC: t.MAC}
	}
	return out
}
