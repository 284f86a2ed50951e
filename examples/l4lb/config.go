package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// config is the file, version 1.
type config struct {
	Version      int               `yaml:"version,required" doc:"Version of the format: 1."`
	Device       device            `yaml:"device" doc:"Where packets come from and go to."`
	Sessions     int               `yaml:"sessions" doc:"Most sessions at a time." default:"262144"`
	Associations int               `yaml:"associations" doc:"Most clients remembered beyond their sessions." default:"262144"`
	Foreign      dataplane.Foreign `yaml:"foreign" doc:"What happens to packets that are for no service." default:"pass"`
	Farms        map[string]*farm  `yaml:"farms,required" doc:"Servers that do the same work, by name."`
	Services     []*service        `yaml:"services,required" doc:"What clients address. The most specific match wins; the order does not matter."`
}

// device is how the balancer is attached.
type device struct {
	Type       deviceType `yaml:"type" doc:"tun works everywhere; afpacket is faster and needs interfaces whose traffic the kernel leaves alone." default:"tun"`
	Name       string     `yaml:"name" doc:"Name of the TUN interface." default:"lb0"`
	MTU        int        `yaml:"mtu" doc:"Largest packet of the TUN interface." default:"1500"`
	Interfaces []string   `yaml:"interfaces" doc:"For afpacket: all interfaces to clients and servers. For tun: those to NAT servers, whose answers come back through the balancer."`
	Queues     int        `yaml:"queues" doc:"Queues of the device, with a worker each." default:"1"`
}

type deviceType uint8

const (
	tunDevice deviceType = iota
	afpacketDevice
)

var deviceNames = []string{"tun", "afpacket"}

func (d deviceType) MarshalText() ([]byte, error) {
	if int(d) >= len(deviceNames) {
		return nil, fmt.Errorf("device type %d: want tun or afpacket", uint8(d))
	}
	return []byte(deviceNames[d]), nil
}

func (d *deviceType) UnmarshalText(b []byte) error {
	i := slices.Index(deviceNames, string(b))
	if i < 0 {
		return fmt.Errorf("%q: want tun or afpacket", b)
	}
	*d = deviceType(i)
	return nil
}

type farm struct {
	Metric    steering.Metric  `yaml:"metric" doc:"How a node is chosen for a new session." default:"leastconns"`
	Mode      clienttable.Mode `yaml:"mode" doc:"How clients are remembered." default:"entry-per-session"`
	SlowStart time.Duration    `yaml:"slow-start" doc:"How long the share of a node that came up rises to its weight." default:"0s"`
	Recovery  time.Duration    `yaml:"recovery" doc:"How long a node that came up gets nothing." default:"0s"`
	Ageing    ageing           `yaml:"ageing" doc:"For how long sessions are remembered."`
	Check     *check           `yaml:"check" doc:"How nodes are checked. Without it, they count as up."`
	Nodes     []*node          `yaml:"nodes,required" doc:"The servers."`
}

type ageing struct {
	Idle   time.Duration `yaml:"idle" doc:"Silence after which a session is forgotten." default:"1m"`
	SYN    time.Duration `yaml:"syn" doc:"Time for the TCP handshake." default:"5s"`
	Linger time.Duration `yaml:"linger" doc:"Time a session stays after its end, in the modes that remove it." default:"5s"`
}

type node struct {
	Name        string              `yaml:"name,required" doc:"Identity of the node in its farm, over any change."`
	Address     endpoint            `yaml:"address,required" doc:"IP address and port; without a port, the one that the client asked for."`
	Weight      *int                `yaml:"weight" doc:"Share of new sessions; 0 gets none." default:"1"`
	MaxSessions int                 `yaml:"max-sessions" doc:"Most sessions at a time; 0 is no limit." default:"0"`
	Backup      bool                `yaml:"backup" doc:"Used only when no other node can be." default:"false"`
	Admin       steering.AdminState `yaml:"admin" doc:"What the operator wants of the node." default:"enabled"`
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

type service struct {
	Name     string              `yaml:"name,required" doc:"Identity of the service, over any change."`
	Match    policy.Match        `yaml:"match" doc:"The whole match as one text, such as '192.0.2.80 tcp/80 from 10.0.0.0/8', instead of vip, protocol, port and clients."`
	VIP      vip                 `yaml:"vip" doc:"Virtual address, or a network of them."`
	Protocol policy.Protocol     `yaml:"protocol" doc:"tcp, udp, icmp, sctp, a number, other, or any." default:"any"`
	Port     policy.PortRange    `yaml:"port" doc:"Port, a range such as 8000-8099, or any." default:"any"`
	Clients  policy.AddrRange    `yaml:"clients" doc:"Clients served: a network, or a range such as 10.0.0.5-10.0.0.9." default:"any"`
	Farm     string              `yaml:"farm,required" doc:"Name of the farm that serves."`
	Lost     dataplane.MidStream `yaml:"lost-session" doc:"What a TCP packet in the middle of an unknown connection gets." default:"reset"`
	Disabled bool                `yaml:"disabled" doc:"Leaves the service out." default:"false"`
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

// load reads and checks a file. All faults come at once, each with its place.
func load(name string) (*config, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	c, err := decode(data)
	if err != nil {
		return nil, &fileError{name, err}
	}
	return c, nil
}

// fileError puts the file's name before every fault in it.
type fileError struct {
	name string
	err  error
}

func (e *fileError) Error() string {
	var faults interface{ Unwrap() []error }
	if !errors.As(e.err, &faults) {
		return e.name + ":" + e.err.Error()
	}
	text := ""
	for i, f := range faults.Unwrap() {
		if i > 0 {
			text += "\n"
		}
		text += e.name + ":" + f.Error()
	}
	return text
}

func (e *fileError) Unwrap() error { return e.err }

func decode(data []byte) (*config, error) {
	c := &config{}
	f, _ := conf.Decode(data, c) // its faults come with those of check
	c.check(f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// check finds what the types cannot say.
func (c *config) check(f *conf.File) {
	if c.Version != 1 && c.Version != 0 {
		f.Add("version", "%d: this program knows version 1", c.Version)
	}
	if c.Device.Type == afpacketDevice && len(c.Device.Interfaces) == 0 {
		f.Add("device.interfaces", "empty: afpacket needs the interfaces to clients and servers")
	}
	if c.Device.MTU != 0 && (c.Device.MTU < 1280 || c.Device.MTU > 65521) {
		f.Add("device.mtu", "%d: want 1280 to 65521", c.Device.MTU)
	}
	if c.Device.Queues < 0 || c.Device.Queues > 256 {
		f.Add("device.queues", "%d: want 1 to 256", c.Device.Queues)
	}
	for _, n := range []struct {
		path  string
		value int
	}{{"sessions", c.Sessions}, {"associations", c.Associations}} {
		if n.value < 0 || n.value > 1<<28 {
			f.Add(n.path, "%d: want 1 to %d", n.value, 1<<28)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		if c.Farms[name] != nil {
			c.Farms[name].validate(f, "farms."+name)
		}
	}
	seen := map[string]int{}
	for i, s := range c.Services {
		if s == nil {
			continue
		}
		path := fmt.Sprintf("services[%d]", i)
		if j, ok := seen[s.Name]; ok {
			f.Add(path+".name", "%q is the name of services[%d] too", s.Name, j)
		}
		seen[s.Name] = i
		whole, parts := s.Match != (policy.Match{}), s.VIP.IsValid() || s.Protocol != 0 || s.Port != (policy.PortRange{}) || s.Clients != (policy.AddrRange{})
		switch {
		case whole && parts:
			f.Add(path+".match", "want either match or vip, protocol, port and clients")
		case !whole && !s.VIP.IsValid():
			f.Add(path, "vip is missing: want an address or a network")
		}
		if _, ok := c.Farms[s.Farm]; !ok && s.Farm != "" {
			f.Add(path+".farm", "%q: want one of %v", s.Farm, slices.Sorted(maps.Keys(c.Farms)))
		}
	}
	if f.Err() != nil {
		return
	}
	// The library's own judgement of what is left: overlapping matches, families, metrics.
	if _, err := c.compile(newPools(nil)); err != nil {
		f.Add("services", "%v", err)
	}
}

func (fm *farm) validate(f *conf.File, path string) {
	if len(fm.Nodes) == 0 {
		f.Add(path+".nodes", "empty: want at least one node")
	}
	seen := map[string]int{}
	var first *node
	for i, n := range fm.Nodes {
		if n == nil {
			continue
		}
		at := fmt.Sprintf("%s.nodes[%d]", path, i)
		if j, ok := seen[n.Name]; ok {
			f.Add(at+".name", "%q is the name of nodes[%d] too", n.Name, j)
		}
		seen[n.Name] = i
		if n.Weight != nil && *n.Weight < 0 {
			f.Add(at+".weight", "%d: want 0 or more", *n.Weight)
		}
		if n.MaxSessions < 0 {
			f.Add(at+".max-sessions", "%d: want 0 or more", n.MaxSessions)
		}
		if first == nil {
			first = n
		} else if n.Address.IsValid() && first.Address.IsValid() && n.Address.Addr().Is4() != first.Address.Addr().Is4() {
			f.Add(at+".address", "%v: the farm's first node, %v, is of the other address family", n.Address, first.Address)
		}
	}
	if fm.Check != nil {
		if _, err := fm.Check.prober(); err != nil {
			f.Add(path+".check", "%v", err)
		}
		probe := healthcheck.Check{ID: "x", Target: netip.MustParseAddrPort("192.0.2.1:1")}
		fm.Check.fill(&probe)
		if err := probe.Validate(); err != nil {
			f.Add(path+".check", "%v", err)
		}
	}
}
