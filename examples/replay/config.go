package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// config is what matters offline of a file of l4lb: farms and services. Other keys are named and not looked at.
type config struct {
	Version   int               `yaml:"version,required" doc:"Version of the format: 1."`
	Foreign   dataplane.Foreign `yaml:"foreign" doc:"What happens to packets that are for no service." default:"pass"`
	Sessions  int               `yaml:"sessions" doc:"Most sessions at a time." default:"262144"`
	Remember  int               `yaml:"associations" doc:"Most clients remembered beyond their sessions." default:"262144"`
	PingNodes int               `yaml:"ping-nodes" doc:"How many nodes must be usable for a virtual address to answer pings." default:"1"`
	Device    device            `yaml:"device" doc:"Only addresses matter here."`
	Farms     map[string]*farm  `yaml:"farms,required" doc:"Servers that do the same work, by name."`
	Services  []*service        `yaml:"services,required" doc:"What clients address."`
	Rest      conf.Rest
}

type device struct {
	Addresses []netip.Addr `yaml:"addresses" doc:"The balancer's own addresses: the source of tunnels." default:"198.18.0.1 and 2001:2::1"`
	Rest      conf.Rest
}

type farm struct {
	Metric    steering.Metric     `yaml:"metric" doc:"How a node is chosen for a new session." default:"leastconns"`
	Mode      clienttable.Mode    `yaml:"mode" doc:"How clients are remembered." default:"entry-per-session"`
	Forward   dataplane.Forward   `yaml:"forward" doc:"How packets reach a node." default:"nat"`
	Locals    []netip.Addr        `yaml:"locals" doc:"With fullnat: addresses that take the place of clients'."`
	Tunnel    *tunnel             `yaml:"tunnel" doc:"With tunnel: how packets are wrapped."`
	PathMTU   int                 `yaml:"path-mtu" doc:"Largest packet on the way to the nodes."`
	Clients   clients             `yaml:"clients" doc:"Which clients count as one."`
	Seed      uint64              `yaml:"seed" doc:"Of hashes and turns."`
	Backup    steering.BackupRule `yaml:"backup-when" doc:"When backup nodes are used." default:"down-or-full"`
	NoPreempt bool                `yaml:"no-preempt" doc:"Backups that took over keep new sessions." default:"false"`
	Panic     int                 `yaml:"panic-percent" doc:"While fewer than this part of the members are up, health is not looked at." default:"0"`
	Sticky    bool                `yaml:"sticky-over-limit" doc:"Known clients may exceed a node's limit." default:"false"`
	HashBits  int                 `yaml:"hash-client-bits" doc:"For minmisses: how much of an IPv4 client's address counts." default:"24"`
	Ageing    ageing              `yaml:"ageing" doc:"For how long sessions are remembered."`
	Nodes     []*node             `yaml:"nodes,required" doc:"The servers."`
	Rest      conf.Rest
}

type clients struct {
	Bits4 int `yaml:"bits4" doc:"Leading bits of IPv4 addresses that tell clients apart." default:"32"`
	Bits6 int `yaml:"bits6" doc:"The same for IPv6." default:"128"`
}

type ageing struct {
	Idle   time.Duration `yaml:"idle" doc:"Silence after which a session is forgotten." default:"1m"`
	SYN    time.Duration `yaml:"syn" doc:"Time for the TCP handshake." default:"5s"`
	Linger time.Duration `yaml:"linger" doc:"Time a session stays after its end." default:"5s"`
}

type tunnel struct {
	Kind dataplane.TunnelKind `yaml:"kind" doc:"How packets are wrapped." default:"ipip"`
	Key  uint32               `yaml:"key" doc:"Key of gre, network of vxlan." default:"0"`
	Port uint16               `yaml:"port" doc:"UDP port of gue and vxlan."`
	MAC  conf.MAC             `yaml:"node-mac" doc:"With vxlan: MAC of the node inside."`
}

type node struct {
	Name        string              `yaml:"name,required" doc:"Identity of the node in its farm."`
	Address     conf.Endpoint       `yaml:"address,required" doc:"IP address and port."`
	Weight      *int                `yaml:"weight" doc:"Share of new sessions." default:"1"`
	MaxSessions int                 `yaml:"max-sessions" doc:"Most sessions at a time; 0 is no limit." default:"0"`
	Capacity    int                 `yaml:"capacity" doc:"For the capacity metric."`
	Backup      bool                `yaml:"backup" doc:"Used only when no other node can be." default:"false"`
	Admin       steering.AdminState `yaml:"admin" doc:"What the operator wants of the node." default:"enabled"`
	Rest        conf.Rest
}

type service struct {
	Name     string              `yaml:"name,required" doc:"Identity of the service."`
	Match    policy.Match        `yaml:"match" doc:"The whole match as one text."`
	VIP      conf.Prefix         `yaml:"vip" doc:"Virtual address, or a network of them."`
	Protocol policy.Protocol     `yaml:"protocol" doc:"tcp, udp, icmp, a number, other, or any." default:"any"`
	Port     policy.PortRange    `yaml:"port" doc:"Port or range." default:"any"`
	Clients  policy.AddrRange    `yaml:"clients" doc:"Clients served." default:"any"`
	Farm     string              `yaml:"farm,required" doc:"Name of the farm that serves."`
	MinNodes int                 `yaml:"min-nodes" doc:"How many nodes must be usable." default:"1"`
	Delay    *delay              `yaml:"delay" doc:"Delayed binding. A capture shows a connection that the balancer's own numbers were not part of, so what it chooses by is only named."`
	Lost     dataplane.MidStream `yaml:"lost-session" doc:"What a TCP packet in the middle of an unknown connection gets." default:"reset"`
	LostNode dataplane.MidStream `yaml:"lost-server" doc:"What a client's packet of a TCP connection gets whose server was lost." default:"reset"`
	Disabled bool                `yaml:"disabled" doc:"Leaves the service out." default:"false"`
	Rest     conf.Rest
}

// delay is what matters of delayed binding.
type delay struct {
	Read dataplane.Read `yaml:"read" doc:"What a client's stream begins with." default:"nothing"`
	Rest conf.Rest
}

// load reads a file. All faults come at once, each with its place.
func load(name string) (*config, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	c, err := decode(data)
	return c, conf.InFile(name, err)
}

func decode(data []byte) (*config, error) {
	c := &config{}
	f, _ := conf.Decode(data, c) // its faults come with those below
	f.Version(c.Version)
	for _, n := range []struct {
		path  string
		value int
	}{{"sessions", c.Sessions}, {"associations", c.Remember}} {
		if n.value < 0 || n.value > 1<<28 {
			f.Add(n.path, "%d: want 1 to %d", n.value, 1<<28)
		}
	}
	for i, s := range c.Services {
		path := fmt.Sprintf("services[%d]", i)
		if c.Farms[s.Farm] == nil && s.Farm != "" {
			f.Add(path+".farm", "%q: want one of %v", s.Farm, slices.Sorted(maps.Keys(c.Farms)))
		}
		if s.Match == (policy.Match{}) && !s.VIP.IsValid() {
			f.Add(path, "vip is missing: want an address or a network")
		}
	}
	if f.Err() == nil {
		plane, err := c.plane(1024, 1024)
		if err != nil {
			f.Add("services", "%v", err)
		} else {
			plane.Close()
		}
	}
	return c, f.Err()
}

// unused lists the keys that were not looked at, each kind once.
func (c *config) unused() []string {
	all := slices.Concat(c.Rest, c.Device.Rest)
	for _, fm := range c.Farms {
		all = append(all, fm.Rest...)
		for _, n := range fm.Nodes {
			all = append(all, n.Rest...)
		}
	}
	for _, s := range c.Services {
		all = append(all, s.Rest...)
		if s.Delay != nil {
			all = append(all, s.Delay.Rest...)
		}
	}
	for i, path := range all {
		if parts := strings.Split(path, "."); parts[0] == "farms" && len(parts) > 2 {
			parts[1] = "NAME"
			all[i] = strings.Join(parts, ".")
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// notes say of which services the flows may go elsewhere in truth.
func (c *config) notes() (notes []string) {
	for _, s := range c.Services {
		if s.Delay != nil && !s.Disabled && len(s.Delay.Rest) > 0 {
			notes = append(notes, fmt.Sprintf("service %s reads %v before it chooses: its flows are shown with its own farm, as if no rule and no TLS session led elsewhere", s.Name, s.Delay.Read))
		}
	}
	return notes
}

// ethernet reports whether packets must be frames: only they reach a node by its MAC.
func (c *config) ethernet() bool {
	for _, fm := range c.Farms {
		if fm.Forward == dataplane.DSR {
			return true
		}
	}
	return false
}

// plane builds a data plane without devices, with room for so many sessions and associations; 0 is the library's default. All nodes count as up.
func (c *config) plane(sessions, associations int) (*dataplane.Plane, error) {
	ids := &steering.IDs{}
	pools := map[string]*steering.Pool{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		fm := c.Farms[name]
		var nodes []steering.Node
		for _, n := range fm.Nodes {
			weight := 0
			if n.Weight != nil {
				if weight = *n.Weight; weight == 0 {
					weight = steering.ZeroWeight
				}
			}
			nodes = append(nodes, steering.Node{
				Name: name + "/" + n.Name, Addr: n.Address.AddrPort, Weight: weight, MaxSessions: n.MaxSessions,
				Capacity: n.Capacity, Backup: n.Backup, Admin: n.Admin,
			})
		}
		pool, err := steering.NewPool(&steering.Config{
			Metric: fm.Metric, IDs: ids, Seed: fm.Seed, Backup: fm.Backup, NoPreempt: fm.NoPreempt, PanicPercent: fm.Panic, StickyOverLimit: fm.Sticky, ClientBits: fm.HashBits,
		}, nodes...)
		if err != nil {
			errs = append(errs, fmt.Errorf("farm %s: %w", name, err))
		}
		pools[name] = pool
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var rules []policy.Rule[*dataplane.Service]
	for _, s := range c.Services {
		fm, m := c.Farms[s.Farm], s.Match
		if s.VIP.IsValid() {
			m = policy.Match{Dst: s.VIP.Prefix, Protocol: s.Protocol, DstPort: s.Port, Src: s.Clients}
		}
		v := &dataplane.Service{
			Name: s.Name, Pool: pools[s.Farm], Mode: fm.Mode, Forward: fm.Forward, Locals: fm.Locals, MTU: fm.PathMTU, MidStream: s.Lost, ServerLost: s.LostNode, MinNodes: s.MinNodes,
			Ageing:      clienttable.Ageing{Idle: fm.Ageing.Idle, SYN: fm.Ageing.SYN, Linger: fm.Ageing.Linger},
			ClientBits4: fm.Clients.Bits4, ClientBits6: fm.Clients.Bits6,
		}
		if t := fm.Tunnel; t != nil {
			v.Tunnel = dataplane.Tunnel{Kind: t.Kind, Key: t.Key, Port: t.Port, NodeMAC: t.MAC}
		}
		rules = append(rules, policy.Rule[*dataplane.Service]{Name: s.Name, Match: m, Disabled: s.Disabled, Value: v})
	}
	table, err := policy.Compile(nil, rules...)
	if err != nil {
		return nil, err
	}
	cfg := dataplane.Config{
		Policies: table, MaxSessions: sessions, MaxAssociations: associations, Foreign: c.Foreign,
		PingNodes: c.PingNodes, Addrs: c.Device.Addresses, Link: dataplane.Link{Ethernet: c.ethernet()},
		NextHop: func(netip.Addr) (dataplane.Hop, bool) {
			return dataplane.Hop{Src: [6]byte{2, 0, 0, 0, 0, 1}, Dst: [6]byte{2, 0, 0, 0, 0, 2}}, true
		},
	}
	if len(cfg.Addrs) == 0 {
		cfg.Addrs = []netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:2::1")}
	}
	return dataplane.New(&cfg)
}
