package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

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

	path string // where it stands in the file
}

func (s *service) validate(f *conf.File, path string, farms map[string]*farm) {
	whole, parts := s.Match != (policy.Match{}), s.VIP.IsValid() || s.Protocol != 0 || s.Port != (policy.PortRange{}) || s.Clients != (policy.AddrRange{})
	switch {
	case whole && parts:
		f.Add(path+".match", "want either match or vip, protocol, port and clients")
	case !whole && !s.VIP.IsValid() && !f.Given(path+".vip") && !f.Given(path+".match"):
		f.Add(path, "vip is missing: want an address or a network")
	}
	if _, err := policy.Compile(nil, policy.Rule[struct{}]{Name: "x", Match: s.match()}); err != nil && s.match().Dst.IsValid() {
		for _, e := range joined(err) {
			text := e.Error()
			if r := (*policy.RuleError)(nil); errors.As(e, &r) {
				text = strings.TrimPrefix(r.Err.Error(), policy.ErrInvalid.Error()+": ")
			}
			f.Add(strings.TrimSuffix(path+"."+s.matchKey(text), "."), "%s", text)
		}
	}
	if s.MinNodes < 0 || s.MinNodes > steering.MaxNodes {
		f.Add(path+".min-nodes", "%d: want 1 to %d", s.MinNodes, steering.MaxNodes)
	}
	if s.Delay != nil && !s.match().Protocol.Contains(6) {
		f.Add(path+".delay", "only TCP connections have a beginning to read: want protocol tcp")
	}
	if s.Delay != nil && s.Lost == dataplane.Reselect {
		f.Add(path+".lost-session", "%v: want reset or silent with delay, which no unknown connection can go on without", s.Lost)
	}
	s.Delay.validate(f, path+".delay")
	fm := s.validateFarm(f, path+".farm", s.Farm, farms)
	if fm == nil {
		return
	}
	if vip := s.match().Dst.Addr(); vip.IsValid() && fm.Forward != dataplane.Tunnelled && vip.Is4() != fm.is4() {
		f.Add(path+".farm", "%q: its nodes are of another address family than %v: only forward tunnel reaches them", s.Farm, vip)
	}
	if s.Delay != nil && fm.Forward != dataplane.NAT && fm.Forward != dataplane.FullNAT {
		f.Add(path+".delay", "farm %q has forward %v: want nat or fullnat, with which answers pass the balancer", s.Farm, fm.Forward)
	}
	for i, r := range s.rules() {
		at := fmt.Sprintf("%s.delay.rules[%d].farm", path, i)
		switch other := s.validateFarm(f, at, r.Farm, farms); {
		case other == nil:
		case other.is4() != fm.is4():
			f.Add(at, "%q: its nodes are of another address family than those of %q", r.Farm, s.Farm)
		case other.Forward != fm.Forward || !slices.Equal(other.Locals, fm.Locals):
			f.Add(at, "%q: want the forward and locals of %q, the service's farm", r.Farm, s.Farm)
		}
	}
}

// validateFarm finds a farm that a service refers to; nil if nothing more can be said about it.
func (s *service) validateFarm(f *conf.File, path, name string, farms map[string]*farm) *farm {
	fm, ok := farms[name]
	switch {
	case name == "", farms == nil: // missing, which has been said
	case !ok && len(farms) == 0:
		f.Add(path, "%q: there are no farms", name)
	case !ok:
		names := slices.Sorted(maps.Keys(farms))
		text := fmt.Sprintf("%q: want one of %s", name, strings.Join(names, ", "))
		if near := conf.Nearest(name, names); strings.HasSuffix(near, "?") {
			text += "; " + near
		}
		f.Add(path, "%s", text)
	case fm == nil, len(fm.Nodes) == 0, f.Faulty("farms." + name + ".nodes"), f.Faulty("farms." + name + ".forward"):
	default:
		return fm
	}
	return nil
}

// rules are those of the service's delay.
func (s *service) rules() (rules []*delayRule) {
	if s.Delay != nil {
		for _, r := range s.Delay.Rules {
			if r != nil {
				rules = append(rules, r)
			}
		}
	}
	return rules
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
