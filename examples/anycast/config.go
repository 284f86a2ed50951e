package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// config is the file, version 1.
type config struct {
	Version     int              `yaml:"version,required" doc:"Version of the format: 1."`
	Seed        uint64           `yaml:"seed,required" doc:"Any number, the same on all balancers of the virtual addresses: it makes them choose the same node for a connection."`
	Source      []netip.Addr     `yaml:"source" doc:"Addresses of this balancer, one of each family: the outer source of tunnels. They can change while running."`
	Maintenance bool             `yaml:"maintenance" doc:"Announces nothing, and serves what still comes." default:"false"`
	Linger      *time.Duration   `yaml:"linger" doc:"How long a balancer that is told to end serves on after it has withdrawn everything." default:"5s"`
	Status      netip.AddrPort   `yaml:"status" doc:"Address and port of the status page. Without it, there is none."`
	Sessions    int              `yaml:"sessions" doc:"Most sessions at a time. It can change while running: with fewer, those that there are go on, and new ones wait for room." default:"262144"`
	Device      device           `yaml:"device" doc:"The TUN interface."`
	BGP         bgpSpeaker       `yaml:"bgp,required" doc:"Who is told of the virtual addresses."`
	Damping     damping          `yaml:"damping" doc:"What keeps announcements steady while nodes come and go."`
	Farms       map[string]*farm `yaml:"farms,required" doc:"Servers that do the same work, by name."`
	VIPs        []*vip           `yaml:"vips,required" doc:"The virtual addresses."`
}

func (c *config) sessions() int { return cmp.Or(c.Sessions, dataplane.DefaultMaxSessions) }

type device struct {
	Name       string        `yaml:"name" doc:"Name of the TUN interface." default:"lb0"`
	MTU        int           `yaml:"mtu" doc:"Largest packet of the TUN interface." default:"1500"`
	Queues     int           `yaml:"queues" doc:"Queues of the interface, with a worker each." default:"1"`
	Interfaces []string      `yaml:"interfaces" doc:"Those to NAT servers, whose answers come back through the balancer."`
	Networks   []conf.Prefix `yaml:"networks" doc:"What comes to the interface: networks that have room for further virtual addresses in a changed file." default:"the virtual addresses"`
}

// bgpSpeaker is this end of the BGP sessions.
type bgpSpeaker struct {
	AS         uint32         `yaml:"as,required" doc:"Number of the balancer's autonomous system."`
	RouterID   netip.Addr     `yaml:"router-id,required" doc:"An IPv4 address that no other speaker has as its router ID."`
	ListenPort uint16         `yaml:"listen-port" doc:"Port on which routers may connect. 0: the balancer connects to them." default:"0"`
	HoldTime   *time.Duration `yaml:"hold-time" doc:"Silence after which a router gives a balancer up: 3s or more, in whole seconds." default:"9s"`
	NextHops   []netip.Addr   `yaml:"next-hops" doc:"Where routers send the virtual addresses' packets, one address of a family: required for a family that is not a session's." default:"this end of the session"`
	Peers      []*peer        `yaml:"peers,required" doc:"The routers."`
}

type peer struct {
	Address  netip.Addr `yaml:"address,required" doc:"Address of the router."`
	AS       uint32     `yaml:"as,required" doc:"Number of the router's autonomous system."`
	Port     uint16     `yaml:"port" doc:"Port of the router." default:"179"`
	Local    netip.Addr `yaml:"local" doc:"Address of this end." default:"what the kernel chooses"`
	Families []family   `yaml:"families" doc:"What the session carries." default:"the family of the address"`
	Hops     uint8      `yaml:"hops" doc:"How far away the router may be." default:"1"`
	Password secret     `yaml:"password" doc:"Password of the TCP MD5 signature option (RFC 2385). ${NAME} stands for an environment variable."`
	Passive  bool       `yaml:"passive" doc:"Waits for the router to connect, on listen-port." default:"false"`
}

// family is an address family.
type family uint8

const (
	ipv4 family = iota
	ipv6
)

var familyNames = [...]string{"ipv4", "ipv6"}

func (f family) String() string { return familyNames[f] }

func (f family) MarshalText() ([]byte, error) {
	if int(f) >= len(familyNames) {
		return nil, fmt.Errorf("family %d: want ipv4 or ipv6", uint8(f))
	}
	return []byte(familyNames[f]), nil
}

func (f *family) UnmarshalText(b []byte) error {
	for i, n := range familyNames {
		if n == string(b) {
			*f = family(i)
			return nil
		}
	}
	return fmt.Errorf("%q: want ipv4 or ipv6", b)
}

func familyOf(a netip.Addr) family {
	if a.Unmap().Is4() {
		return ipv4
	}
	return ipv6
}

// secret is a text that may come from the environment, and that is never printed.
type secret struct{ text string }

func (s *secret) UnmarshalText(b []byte) error {
	s.text = string(b)
	if name, ok := strings.CutPrefix(s.text, "${"); ok {
		name, ok = strings.CutSuffix(name, "}")
		if !ok {
			return fmt.Errorf("want ${NAME} with its end")
		}
		if s.text = os.Getenv(name); s.text == "" {
			return fmt.Errorf("the environment variable %s is not set, or empty", name)
		}
	}
	if len(s.text) > 80 {
		return fmt.Errorf("%d characters: want at most 80", len(s.text))
	}
	return nil
}

func (s secret) String() string { return "(hidden)" }

// damping is about all virtual addresses, each for itself.
type damping struct {
	AnnounceAfter *time.Duration `yaml:"announce-after" doc:"How long there must have been nodes enough before an address is announced." default:"2s"`
	WithdrawAfter *time.Duration `yaml:"withdraw-after" doc:"How long there must have been too few before it is withdrawn." default:"0s"`
	HalfLife      *time.Duration `yaml:"half-life" doc:"Time in which half of an address' penalty is forgiven; each withdrawal adds 1000 (RFC 2439)." default:"1m"`
	Suppress      *int           `yaml:"suppress" doc:"Penalty from which an address stays withdrawn." default:"3000"`
	Reuse         *int           `yaml:"reuse" doc:"Penalty below which it may be announced again." default:"750"`
	Longest       *time.Duration `yaml:"longest" doc:"Longest time for which an address stays withdrawn after its last withdrawal." default:"10m"`
}

type farm struct {
	Forward  *dataplane.Forward `yaml:"forward" doc:"How packets reach a node; dsr and route do not go with a TUN interface. With tunnel, nodes answer past the balancer, so that another one can take a connection over." default:"tunnel"`
	Tunnel   tunnel             `yaml:"tunnel" doc:"How packets are put into others."`
	Locals   []netip.Addr       `yaml:"locals" doc:"For fullnat: addresses of the balancer's own that take the place of clients'."`
	Metric   *steering.Metric   `yaml:"metric" doc:"How a node is chosen for a new session." default:"maglev"`
	MinNodes *int               `yaml:"min-nodes" doc:"With fewer usable nodes than this, the virtual addresses of the farm are withdrawn." default:"1"`
	Idle     time.Duration      `yaml:"idle" doc:"Silence after which a session is forgotten." default:"1m"`
	Check    *check             `yaml:"check" doc:"How nodes are checked. Without it, they count as up."`
	Nodes    []*node            `yaml:"nodes,required" doc:"The servers: with the same names and weights on all balancers."`
}

type tunnel struct {
	Kind dataplane.TunnelKind `yaml:"kind" doc:"Form of the outer packet." default:"ipip"`
	Key  uint32               `yaml:"key" doc:"Key of GRE, or network identifier of VXLAN." default:"0"`
	Port uint16               `yaml:"port" doc:"Port of GUE and VXLAN." default:"6080 and 4789"`
	MAC  conf.MAC             `yaml:"mac" doc:"For VXLAN: the hardware address that all nodes' ends of the tunnel have."`
}

type node struct {
	Name    string              `yaml:"name,required" doc:"Identity of the node in its farm, over any change and on all balancers."`
	Address conf.Endpoint       `yaml:"address,required" doc:"IP address, with a port for nat and fullnat if it is another one than clients ask for."`
	Weight  *int                `yaml:"weight" doc:"Share of new sessions; 0 gets none." default:"1"`
	Admin   steering.AdminState `yaml:"admin" doc:"What the operator wants of the node." default:"enabled"`
}

type vip struct {
	Address     conf.Prefix `yaml:"address,required" doc:"Virtual address, or a network of them; this is what routers are told."`
	Communities []community `yaml:"communities" doc:"BGP communities of the route, such as 64512:80 or no-export."`
	MED         *uint32     `yaml:"med" doc:"Multi-exit discriminator of the route. Routers balance over equal ones only."`
	Prepend     uint8       `yaml:"prepend" doc:"How often the balancer's AS is prepended once more: a balancer that is to be used last." default:"0"`
	Withdraw    withdraw    `yaml:"withdraw" doc:"When the address is withdrawn: when any of its services has too few nodes, or only when all have." default:"any"`
	Services    []*service  `yaml:"services,required" doc:"What clients address here. The most specific match wins; the order does not matter."`
}

// withdraw says whose shortage withdraws an address.
type withdraw uint8

const (
	onAny withdraw = iota
	onAll
)

var withdrawNames = [...]string{"any", "all"}

func (w withdraw) MarshalText() ([]byte, error) {
	if int(w) >= len(withdrawNames) {
		return nil, fmt.Errorf("withdraw %d: want any or all", uint8(w))
	}
	return []byte(withdrawNames[w]), nil
}

func (w *withdraw) UnmarshalText(b []byte) error {
	for i, n := range withdrawNames {
		if n == string(b) {
			*w = withdraw(i)
			return nil
		}
	}
	return fmt.Errorf("%q: want any or all", b)
}

// community is a BGP community (RFC 1997).
type community uint32

// The well-known communities of RFC 1997, RFC 3765 and RFC 8326.
var knownCommunities = map[string]community{
	"no-export": 0xffffff01, "no-advertise": 0xffffff02, "no-export-subconfed": 0xffffff03, "no-peer": 0xffffff04, "graceful-shutdown": 0xffff0000,
}

func (c *community) UnmarshalText(b []byte) error {
	if k, ok := knownCommunities[string(b)]; ok {
		*c = k
		return nil
	}
	high, low, ok := strings.Cut(string(b), ":")
	h, err1 := strconv.ParseUint(high, 10, 16)
	l, err2 := strconv.ParseUint(low, 10, 16)
	if !ok || err1 != nil || err2 != nil {
		return fmt.Errorf("%q: want two numbers up to 65535 such as 64512:80, or no-export, no-advertise, no-export-subconfed, no-peer or graceful-shutdown", b)
	}
	*c = community(h<<16 | l)
	return nil
}

type service struct {
	Name     string               `yaml:"name,required" doc:"Identity of the service, over any change."`
	Protocol policy.Protocol      `yaml:"protocol" doc:"tcp, udp, icmp, sctp, a number, other, or any." default:"any"`
	Port     policy.PortRange     `yaml:"port" doc:"Port, a range such as 8000-8099, or any." default:"any"`
	Farm     string               `yaml:"farm,required" doc:"Name of the farm that serves."`
	Lost     *dataplane.MidStream `yaml:"lost-session" doc:"What a TCP packet of an unknown connection gets: reselect takes connections of other balancers over." default:"reselect"`
	LostNode dataplane.MidStream  `yaml:"lost-server" doc:"What a client's packet of a TCP connection gets whose server was lost." default:"reset"`
}

// or is a value or its default.
func or[T any](v *T, def T) T {
	if v == nil {
		return def
	}
	return *v
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
