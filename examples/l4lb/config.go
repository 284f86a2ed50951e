package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/policy"
)

// config is the file, version 1.
type config struct {
	Version      int                 `yaml:"version,required" doc:"Version of the format: 1."`
	Device       device              `yaml:"device" doc:"Where packets come from and go to."`
	Sessions     int                 `yaml:"sessions" doc:"Most sessions at a time. It can change while running: with fewer, those that there are go on, and new ones wait for room." default:"262144"`
	Associations int                 `yaml:"associations" doc:"Most clients remembered beyond their sessions. It can change while running." default:"262144"`
	Foreign      dataplane.Foreign   `yaml:"foreign" doc:"What happens to packets that are for no service." default:"pass"`
	PingNodes    int                 `yaml:"ping-nodes" doc:"How many nodes of a virtual address must be usable for it to answer pings; -1 never answers." default:"1"`
	State        state               `yaml:"state" doc:"Where sessions are kept over a restart."`
	Admin        admin               `yaml:"admin" doc:"How the balancer is watched and steered while it runs."`
	Flows        *flows              `yaml:"flow-export" doc:"Tell a collector about the flows of services that have export-flows set."`
	Elements     map[string]*element `yaml:"elements" doc:"Checks of anything that policies are about, such as a database behind the servers. One is made once the policy of a farm leads to it."`
	Policies     map[string]expr     `yaml:"policies" doc:"Boolean expressions over elements and other policies, such as 'db1 OR db2', for the policy of farms."`
	Farms        map[string]*farm    `yaml:"farms,required" doc:"Servers that do the same work, by name."`
	Services     []*service          `yaml:"services,required" doc:"What clients address. The most specific match wins; the order does not matter."`
}

func (c *config) sessions() int     { return cmp.Or(c.Sessions, dataplane.DefaultMaxSessions) }
func (c *config) associations() int { return cmp.Or(c.Associations, dataplane.DefaultMaxAssociations) }

// device is how the balancer is attached.
type device struct {
	Type       deviceType   `yaml:"type" doc:"tun works everywhere; afpacket is faster and needs interfaces whose traffic the kernel leaves alone." default:"tun"`
	Name       string       `yaml:"name" doc:"Name of the TUN interface." default:"lb0"`
	MTU        int          `yaml:"mtu" doc:"Largest packet of the TUN interface." default:"1500"`
	Interfaces []string     `yaml:"interfaces" doc:"For afpacket: all interfaces to clients and servers. For tun: those to NAT servers, whose answers come back through the balancer."`
	Queues     int          `yaml:"queues" doc:"Queues of the device, with a worker each." default:"1"`
	Addresses  []netip.Addr `yaml:"addresses" doc:"The balancer's own addresses, one of each family: the source of tunnels and of ICMP errors. They can change while running."`
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

// state is where sessions are kept over a restart.
type state struct {
	File  string        `yaml:"file" doc:"File for the sessions, the TLS sessions of tls-persistence, and what was asked over the admin interface of nodes and of the balancer. Without it these end with the program." default:"l4lb.state in $STATE_DIRECTORY, if systemd set that"`
	Every time.Duration `yaml:"every" doc:"How often it is written while running, besides at the end." default:"30s"`
}

func (s state) path() string {
	if s.File == "" && os.Getenv("STATE_DIRECTORY") != "" {
		return os.Getenv("STATE_DIRECTORY") + "/l4lb.state"
	}
	return s.File
}

func (s state) interval() time.Duration {
	if s.Every == 0 {
		return 30 * time.Second
	}
	return s.Every
}

// load reads and checks a file. All faults come at once, each with its place.
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
	f, _ := conf.Decode(data, c) // its faults come with those of check
	c.check(f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// check finds what the types cannot say. What is wrong in one place keeps nothing else from being looked at.
func (c *config) check(f *conf.File) {
	f.Version(c.Version)
	c.Device.validate(f)
	c.Admin.validate(f)
	c.Flows.validate(f, c.Services)
	for _, n := range []struct {
		path  string
		value int
	}{{"sessions", c.Sessions}, {"associations", c.Associations}} {
		if n.value < 0 || n.value > 1<<28 {
			f.Add(n.path, "%d: want 1 to %d", n.value, 1<<28)
		}
	}
	if c.State.Every < 0 || c.State.Every > 0 && c.State.Every < time.Second {
		f.Add("state.every", "%v: want 1s or more", c.State.Every)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Elements)) {
		if e := c.Elements[name]; e != nil {
			e.validate(f, "elements."+name, name)
		}
	}
	c.validatePolicies(f)
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		if c.Farms[name] != nil {
			c.Farms[name].validate(f, "farms."+name, name, c.Device, c.transport(name))
		}
	}
	seen := map[string]int{}
	for i, s := range c.Services {
		if s == nil {
			continue
		}
		if s.path = fmt.Sprintf("services[%d]", i); !f.Object(s.path) {
			continue
		}
		if j, ok := seen[s.Name]; ok && s.Name != "" {
			f.Add(s.path+".name", "%q is the name of services[%d] too", s.Name, j)
		}
		seen[s.Name] = i
		s.validate(f, s.path, c.Farms)
	}
	c.judge(f)
}

// transport is what a farm's nodes are asked by: TCP, unless all its services are UDP.
func (c *config) transport(farm string) healthcheck.Transport {
	of := healthcheck.AnyTransport
	for _, s := range c.Services {
		if s == nil {
			continue
		}
		if slices.ContainsFunc(s.rules(), func(r *delayRule) bool { return r.Farm == farm }) {
			return healthcheck.OverTCP // which is what is read
		}
		if s.Farm != farm {
			continue
		}
		if s.match().Protocol != policy.UDP {
			return healthcheck.OverTCP
		}
		of = healthcheck.OverUDP
	}
	return max(of, healthcheck.OverTCP)
}

// validatePolicies finds names in expressions that nothing has.
func (c *config) validatePolicies(f *conf.File) {
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		path := "policies." + name
		validName(f, path, name)
		if _, ok := c.Elements[name]; ok {
			f.AddKey(path, "%q is the name of an element too: want another", name)
		}
		if name == self {
			f.AddKey(path, "self is the name of a node's own check: want another")
		}
		c.known(f, path, c.Policies[name], false)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		if fm := c.Farms[name]; fm != nil {
			c.known(f, "farms."+name+".policy", fm.Policy, true)
		}
	}
	// What is no policy is taken for an element here, so that only policies that lead to themselves are left.
	leaves := slices.Sorted(maps.Keys(c.Elements))
	var policies []healthcheck.Policy
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		x := c.Policies[name].Expr
		if _, element := c.Elements[name]; element || x.IsZero() {
			leaves = append(leaves, name)
			continue
		}
		policies = append(policies, healthcheck.Policy{Name: name, Expr: x})
		for _, n := range x.Names() {
			if _, ok := c.Policies[n]; !ok && !slices.Contains(leaves, n) {
				leaves = append(leaves, n)
			}
		}
	}
	_, err := healthcheck.CompilePolicies(leaves, policies...)
	for _, e := range joined(err) {
		if errors.Is(e, healthcheck.ErrCycle) {
			_, way, _ := strings.Cut(e.Error(), "cycle: ")
			first, _, _ := strings.Cut(way, " ")
			f.Add("policies."+first, "it leads to itself: %s", way)
		}
	}
}

// known finds names in an expression that are neither an element nor a policy.
func (c *config) known(f *conf.File, path string, x expr, ofNode bool) {
	if c.Elements == nil && f.Faulty("elements") || c.Policies == nil && f.Faulty("policies") {
		return
	}
	for _, name := range x.Names() {
		_, element := c.Elements[name]
		_, policy := c.Policies[name]
		switch {
		case element || policy || name == self && ofNode:
		case name == self:
			f.Add(path, "self: only the policy of a farm has it")
		default:
			all := slices.Sorted(maps.Keys(c.Elements))
			all = append(all, slices.Sorted(maps.Keys(c.Policies))...)
			near := "there are none"
			if len(all) > 0 {
				near = conf.Nearest(name, all)
			}
			f.Add(path, "%q: want names of elements and policies; %s", name, near)
		}
	}
}

// sound is the configuration without the farms and services that something is wrong with, or with what they refer to.
func (c *config) sound(f *conf.File) *config {
	x := *c
	x.Farms, x.Services = map[string]*farm{}, nil
	for name, fm := range c.Farms {
		if fm != nil && !f.Faulty("farms."+name) {
			x.Farms[name] = fm
		}
	}
	for _, s := range c.Services {
		if s == nil || f.Faulty(s.path) || x.Farms[s.Farm] == nil {
			continue
		}
		if !slices.ContainsFunc(s.rules(), func(r *delayRule) bool { return r.Farm != "" && x.Farms[r.Farm] == nil }) {
			x.Services = append(x.Services, s)
		}
	}
	if f.Faulty("device") { // in place of it, one that can do everything
		x.Device = device{Type: afpacketDevice, Addresses: []netip.Addr{testAddr4, testAddr6}}
	}
	return &x
}

// judge has the library compile what nothing is wrong with so far.
func (c *config) judge(f *conf.File) {
	c.judgeFarms(f)
	x := c.sound(f)
	ps := newPools(nil)
	table, err := x.compile(ps, nil, nil)
	for _, e := range joined(err) {
		var at *placed
		if errors.As(e, &at) {
			f.Add(at.path, "%v", at.err)
		} else {
			tellRules(f, e, x.Services)
		}
	}
	if err == nil {
		err = x.dry(table)
		tellPlane(f, err, func(service string) (string, string) {
			for _, s := range x.Services {
				if s.Name == service {
					return s.path, "farms." + s.Farm
				}
			}
			return "services", "farms"
		})
	}
	if f.Err() != nil {
		return
	}
	// Nothing more can be wrong with the checks; and if something is, it is said.
	if r, err := healthcheck.NewRoster(nil); err != nil {
		f.Add("", "%v", err)
	} else if err := r.Set(c.setup()); err != nil {
		tell(f, "farms", err, "")
	}
}

// Addresses for tests (RFC 2544, RFC 5180).
var (
	testAddr4 = netip.AddrFrom4([4]byte{198, 18, 0, 0})
	testAddr6 = netip.AddrFrom16([16]byte{0x20, 0x01, 0, 2})
)

// judgeFarms has the data plane look at every farm, whether a service has it or not, and at the flow export.
func (c *config) judgeFarms(f *conf.File) {
	x := c.sound(f)
	four, six := testAddr4, testAddr6
	x.Services = nil
	for _, name := range slices.Sorted(maps.Keys(x.Farms)) {
		vip := &four
		if !x.Farms[name].is4() {
			vip = &six
		}
		*vip = vip.Next()
		x.Services = append(x.Services, &service{Name: name, Farm: name, VIP: conf.Prefix{Prefix: netip.PrefixFrom(*vip, vip.BitLen())}})
	}
	table, err := x.compile(newPools(nil), nil, nil)
	for _, e := range joined(err) {
		f.Add("farms", "%v", e)
	}
	if err == nil {
		tellPlane(f, x.dry(table), func(name string) (string, string) { return "", "farms." + name })
	}
}

// dry makes and closes a plane for questions only.
func (c *config) dry(table *policy.Table[*dataplane.Service]) error {
	plane, err := c.dryPlane(table)
	if err == nil {
		plane.Close()
	}
	return err
}

// dryPlane is a plane for questions only, without a device.
func (c *config) dryPlane(table *policy.Table[*dataplane.Service]) (*dataplane.Plane, error) {
	cfg := dataplane.Config{Policies: table, MaxSessions: 1024, MaxAssociations: 1024, Addrs: c.Device.Addresses, PingNodes: c.PingNodes, Foreign: c.Foreign}
	if c.Device.Type == afpacketDevice {
		cfg.Link = dataplane.Link{Ethernet: true}
		cfg.NextHop = func(netip.Addr) (dataplane.Hop, bool) { return dataplane.Hop{}, true }
	}
	return dataplane.New(&cfg)
}

func (d device) validate(f *conf.File) {
	if d.Type == afpacketDevice && len(d.Interfaces) == 0 {
		f.Add("device.interfaces", "empty: afpacket needs the interfaces to clients and servers")
	}
	if d.MTU != 0 && (d.MTU < 1280 || d.MTU > 65521) {
		f.Add("device.mtu", "%d: want 1280 to 65521", d.MTU)
	}
	if d.Queues < 0 || d.Queues > 256 {
		f.Add("device.queues", "%d: want 1 to 256", d.Queues)
	}
	if len(d.Name) > 15 {
		f.Add("device.name", "%q: want 15 characters at most", d.Name)
	}
	seen := map[string]bool{}
	for i, name := range d.Interfaces {
		if name == "" || seen[name] {
			f.Add(fmt.Sprintf("device.interfaces[%d]", i), "%q: want the name of an interface, once", name)
		}
		seen[name] = true
	}
	var v4, v6 bool
	for i, a := range d.Addresses {
		at := fmt.Sprintf("device.addresses[%d]", i)
		if a.Is4() && v4 || a.Is6() && v6 {
			f.Add(at, "%v: want one address of each family", a)
		}
		if a.IsValid() && !isHost(a) {
			f.Add(at, "%v: want an address of a host", a)
		}
		v4, v6 = v4 || a.Is4(), v6 || a.Is6()
	}
}

// isHost reports whether an address can be a host's.
func isHost(a netip.Addr) bool { return a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() }

func (d device) name() string {
	if d.Name == "" {
		return "lb0"
	}
	return d.Name
}
