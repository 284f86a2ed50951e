package main

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/steering"
)

type farm struct {
	Metric    steering.Metric     `yaml:"metric" doc:"How a node is chosen for a new session." default:"leastconns"`
	Mode      clienttable.Mode    `yaml:"mode" doc:"How clients are remembered." default:"entry-per-session"`
	Forward   dataplane.Forward   `yaml:"forward" doc:"How packets reach a node. nat: its default route is the balancer. fullnat: it needs none. dsr and tunnel: it has the virtual address itself and answers clients directly." default:"nat"`
	Locals    []netip.Addr        `yaml:"locals" doc:"With fullnat: addresses that take the place of clients'. They must be free; packets to them are brought to the balancer."`
	Tunnel    *tunnel             `yaml:"tunnel" doc:"With forward tunnel: how packets are wrapped."`
	PathMTU   int                 `yaml:"path-mtu" doc:"Largest packet on the way to the nodes, where the MSS of connections must be lowered for it." default:"1500 with tunnel, else none"`
	Clients   clients             `yaml:"clients" doc:"Which clients count as one, where clients are remembered."`
	SlowStart time.Duration       `yaml:"slow-start" doc:"How long the share of a node that came up rises to its weight." default:"0s"`
	Recovery  time.Duration       `yaml:"recovery" doc:"How long a node that came up gets nothing." default:"0s"`
	Backup    steering.BackupRule `yaml:"backup-when" doc:"When backup nodes are used." default:"down-or-full"`
	NoPreempt bool                `yaml:"no-preempt" doc:"Backups that took over keep new sessions after members came back." default:"false"`
	Panic     int                 `yaml:"panic-percent" doc:"While fewer than this part of the members are up, health is not looked at; 0 is never." default:"0"`
	Pressure  *pressure           `yaml:"pressure" doc:"From when on a node counts as pressed, and gets less or nothing new. Without it none does."`
	Sticky    bool                `yaml:"sticky-over-limit" doc:"Known clients may exceed a node's limit." default:"false"`
	HashBits  int                 `yaml:"hash-client-bits" doc:"For minmisses: how much of an IPv4 client's address counts, 24 or 32." default:"24"`
	Seed      uint64              `yaml:"seed" doc:"Of hashes and turns; balancers that must agree share one." default:"0"`
	Ageing    ageing              `yaml:"ageing" doc:"For how long sessions are remembered."`
	Check     *check              `yaml:"check" doc:"How nodes are checked. Without it and a policy, they count as up."`
	Ping      *ping               `yaml:"ping" doc:"Send nodes echo requests, too. A node that does not answer them is down; one that nothing comes from, while packets are sent to it, gets one at once."`
	SYNs      int                 `yaml:"unanswered" doc:"How many connections in a row a node may leave unanswered; with one more, and none answered for a second, it is down, and checked at once. -1 is any number. With forward dsr and tunnel answers are not seen, and not counted." default:"20 with a check, else -1"`
	Agent     *agent              `yaml:"agent" doc:"Ask an agent on each node, in the format of HAProxy's agent check, which can set its weight and limit of sessions, drain it, take it out of service, or say that it is down. It revives no node that its check or policy has down."`
	Policy    expr                `yaml:"policy" doc:"When a node is up: a boolean expression over elements and policies, and 'self', the node's own check. Such as 'self AND (db1 OR db2)'." default:"self"`
	Nodes     []*node             `yaml:"nodes,required" doc:"The servers."`
}

type agent struct {
	Port     uint16        `yaml:"port,required" doc:"TCP port of the agent."`
	Interval time.Duration `yaml:"interval" doc:"Time between questions." default:"5s"`
	Timeout  time.Duration `yaml:"timeout" doc:"Time for the answer." default:"the interval"`
	Send     string        `yaml:"send" doc:"What to send it first." default:"nothing"`
}

type ping struct {
	Interval time.Duration `yaml:"interval" doc:"Time between echo requests." default:"2s"`
	Fall     int           `yaml:"fall" doc:"Requests in a row without an answer until a node is down." default:"5"`
	Silence  time.Duration `yaml:"silence" doc:"How long nothing may come from a node that packets are sent to; negative is for ever." default:"3s"`
}

// fill puts the ping into a server.
func (p *ping) fill(to *healthcheck.Server) {
	to.Echo, to.Silence = probe.ICMP{Attempts: 1}, p.Silence
	to.EchoCheck.Interval, to.EchoCheck.Fall = p.Interval, p.Fall
}

type clients struct {
	Bits4 int `yaml:"bits4" doc:"Leading bits of IPv4 addresses that tell clients apart; -1 makes them one." default:"32"`
	Bits6 int `yaml:"bits6" doc:"The same for IPv6." default:"128"`
}

type ageing struct {
	Idle   time.Duration `yaml:"idle" doc:"Silence after which a session is forgotten." default:"1m"`
	SYN    time.Duration `yaml:"syn" doc:"Time for the TCP handshake." default:"5s"`
	Linger time.Duration `yaml:"linger" doc:"Time a session stays after its end, in the modes that remove it." default:"5s"`
}

type tunnel struct {
	Kind dataplane.TunnelKind `yaml:"kind" doc:"How packets are wrapped." default:"ipip"`
	Key  uint32               `yaml:"key" doc:"Key of gre, 0 for none; network identifier of vxlan." default:"0"`
	Port uint16               `yaml:"port" doc:"UDP port of gue and vxlan." default:"6080 and 4789"`
	MAC  conf.MAC             `yaml:"node-mac" doc:"With vxlan: MAC of the node inside." default:"broadcast"`
}

type node struct {
	Name        string              `yaml:"name,required" doc:"Identity of the node in its farm, over any change."`
	Address     conf.Endpoint       `yaml:"address,required" doc:"IP address and port; without a port, the one that the client asked for."`
	Weight      *int                `yaml:"weight" doc:"Share of new sessions; 0 gets none." default:"1"`
	MaxSessions int                 `yaml:"max-sessions" doc:"Most sessions at a time; 0 is no limit." default:"0"`
	Capacity    int                 `yaml:"capacity" doc:"For the capacity metric: what the node can handle, for all nodes of the farm or none." default:"0"`
	Backup      bool                `yaml:"backup" doc:"Used only when no other node can be." default:"false"`
	Admin       steering.AdminState `yaml:"admin" doc:"What the operator wants of the node." default:"enabled"`
}

// properName is what farms, nodes and elements may be called, so that the names can stand in paths, expressions and labels.
var properName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]*$`)

func validName(f *conf.File, path, name string) {
	if !properName.MatchString(name) {
		f.AddKey(path, "%q: want letters, digits, _, -, . and :", name)
	}
}

func (fm *farm) validate(f *conf.File, path, name string, d device, over healthcheck.Transport) {
	validName(f, path, name)
	if len(fm.Nodes) == 0 && f.Given(path+".nodes") && !f.Faulty(path+".nodes") {
		f.Add(path+".nodes", "empty: want at least one node")
	}
	seen := map[string]int{}
	var first *node
	for i, n := range fm.Nodes {
		if n == nil {
			f.Add(fmt.Sprintf("%s.nodes[%d]", path, i), "nothing: want a node")
			continue
		}
		at := fmt.Sprintf("%s.nodes[%d]", path, i)
		if j, ok := seen[n.Name]; ok && n.Name != "" {
			f.Add(at+".name", "%q is the name of nodes[%d] too", n.Name, j)
		}
		seen[n.Name] = i
		if n.Name != "" {
			if !properName.MatchString(n.Name) {
				f.Add(at+".name", "%q: want letters, digits, _, -, . and :", n.Name)
			}
		}
		if n.Weight != nil && (*n.Weight < 0 || *n.Weight > steering.MaxWeight) {
			f.Add(at+".weight", "%d: want 0 to %d", *n.Weight, steering.MaxWeight)
		}
		if n.MaxSessions < 0 {
			f.Add(at+".max-sessions", "%d: want 0 or more", n.MaxSessions)
		}
		if n.Capacity < 0 || n.Capacity > steering.MaxCapacity {
			f.Add(at+".capacity", "%d: want 0 to %d", n.Capacity, steering.MaxCapacity)
		}
		if a := n.Address.Addr(); a.IsValid() && !isHost(a) {
			f.Add(at+".address", "%v: want an address of a host", a)
		}
		if first == nil {
			first = n
		} else if n.Address.IsValid() && first.Address.IsValid() && n.Address.Addr().Is4() != first.Address.Addr().Is4() {
			f.Add(at+".address", "%v: the farm's first node, %v, is of the other address family", n.Address, first.Address)
		}
		if fm.Check != nil && n.Address.IsValid() && n.Address.Port() == 0 && fm.Check.needsPort() {
			f.Add(at+".address", "%v: no port, so that the farm's check needs one", n.Address.Addr())
		}
	}
	if fm.Check != nil {
		fm.validateCheck(f, path+".check", over)
	}
	if fm.Ping != nil {
		to := healthcheck.Server{}
		fm.Ping.fill(&to)
		to.EchoCheck.ID, to.EchoCheck.Target, to.EchoCheck.Prober = "x", netip.MustParseAddrPort("192.0.2.1:1"), to.Echo
		tell(f, path+".ping", to.EchoCheck.Validate(), checkKeys)
	}
	if _, err := healthcheck.NewSYNCount(fm.SYNs, false); err != nil {
		f.Add(path+".unanswered", "%s", strings.TrimPrefix(err.Error(), "healthcheck: "))
	}
	if a := fm.Agent; a != nil {
		to := healthcheck.Check{ID: "x", Target: netip.MustParseAddrPort("192.0.2.1:1")}
		a.fill(&to)
		tell(f, path+".agent", to.Validate(), checkKeys)
		if a.Port == 0 && f.Given(path+".agent.port") && !f.Faulty(path+".agent.port") {
			f.Add(path+".agent.port", "0: want 1 to 65535")
		}
	}
	fm.validateForward(f, path, first, d)
	fm.validateSteering(f, path)
	if fm.Policy.usesSelf() && fm.Check == nil {
		f.Add(path+".policy", "self: the farm has no check")
	}
	if fm.Check != nil && !fm.Policy.IsZero() && !fm.Policy.usesSelf() && !f.Faulty(path+".policy") {
		f.Add(path+".check", "the farm's policy has no self, so that it would never be made: want self in the policy, or no check")
	}
}

// validateCheck looks at the check of every port that nodes have: without a method, it may be another one for each.
func (fm *farm) validateCheck(f *conf.File, path string, over healthcheck.Transport) {
	var ports []uint16
	for _, n := range fm.Nodes {
		if n != nil {
			ports = append(ports, n.Address.Port())
		}
	}
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		if fm.Check.validate(f, path, port, over); f.Faulty(path) {
			return // once is enough
		}
	}
}

// validateSteering finds what nodes cannot be chosen by, and how clients cannot be remembered.
func (fm *farm) validateSteering(f *conf.File, path string) {
	if fm.Metric == steering.Capacity {
		has := func(n *node) bool { return n != nil && n.Capacity > 0 }
		for i, n := range fm.Nodes {
			if n != nil && n.Capacity == 0 && (n.Weight == nil || *n.Weight > 0) && slices.ContainsFunc(fm.Nodes, has) {
				f.Add(fmt.Sprintf("%s.nodes[%d].capacity", path, i), "missing: want one for all nodes of the farm or none")
			}
		}
	}
	for _, x := range []struct {
		key         string
		value, most int
	}{{"bits4", fm.Clients.Bits4, 32}, {"bits6", fm.Clients.Bits6, 128}} {
		if x.value < -1 || x.value > x.most {
			f.Add(path+".clients."+x.key, "%d: want 1 to %d, or -1", x.value, x.most)
		}
	}
	if m := fm.PathMTU; m != 0 && (m < 576 || m > 65535) {
		f.Add(path+".path-mtu", "%d: want 576 to 65535", m)
	}
	_, err := clienttable.NewTimers(&clienttable.Ageing{Idle: fm.Ageing.Idle, SYN: fm.Ageing.SYN, Linger: fm.Ageing.Linger})
	tell(f, path+".ageing", err, ageingKeys)
	fm.Pressure.validate(f, path+".pressure")
	if at := path + ".pressure.response"; fm.Pressure != nil && fm.Pressure.Response != nil && fm.Check == nil && !f.Faulty(at) {
		f.Add(at, "the farm has no check, by whose times it goes")
	}
	var nodes []steering.Node
	if !f.Faulty(path + ".nodes") {
		nodes = fm.nodes("", nil)
	}
	cfg := fm.config(nil)
	if f.Faulty(path + ".pressure") {
		cfg.Pressure = steering.Pressure{}
	}
	_, err = steering.NewPool(cfg, nodes...)
	tell(f, path, err, farmKeys)
}

// validateForward finds ways to nodes that cannot work.
func (fm *farm) validateForward(f *conf.File, path string, first *node, d device) {
	if first == nil || !first.Address.IsValid() || f.Faulty(path+".forward") {
		return
	}
	device := !f.Faulty("device")
	v4 := first.Address.Addr().Is4()
	switch fm.Forward {
	case dataplane.FullNAT:
		if len(fm.Locals) == 0 {
			f.Add(path+".locals", "empty: fullnat needs addresses to take the place of clients'")
		}
	case dataplane.DSR:
		if device && d.Type != afpacketDevice {
			f.Add(path+".forward", "dsr sends Ethernet frames: it needs device type afpacket; tunnel does the same through routers")
		}
	case dataplane.Tunnelled:
		have := false
		for _, a := range d.Addresses {
			have = have || a.Is4() == v4
		}
		if device && !have {
			f.Add(path+".forward", "tunnel needs an address of the nodes' family in device.addresses, as the source of the outer packets")
		}
	case dataplane.Route:
		f.Add(path+".forward", "route goes to no node: leave the service out, foreign packets pass")
	}
	if fm.Forward != dataplane.FullNAT && len(fm.Locals) > 0 {
		f.Add(path+".locals", "want none with forward %v", fm.Forward)
	}
	for i, a := range fm.Locals {
		switch at := fmt.Sprintf("%s.locals[%d]", path, i); {
		case !a.IsValid():
		case a.Is4() != v4:
			f.Add(at, "%v: want an address of the nodes' family", a)
		case !isHost(a):
			f.Add(at, "%v: want an address of a host", a)
		}
	}
	if fm.Forward != dataplane.Tunnelled && fm.Tunnel != nil {
		f.Add(path+".tunnel", "want none with forward %v", fm.Forward)
	}
}

// config is what the library wants to know of the farm.
func (fm *farm) config(ids *steering.IDs) *steering.Config {
	return &steering.Config{
		Metric: fm.Metric, IDs: ids, StartDown: fm.checked(), SlowStart: fm.SlowStart, RecoveryTime: fm.Recovery, Backup: fm.Backup,
		NoPreempt: fm.NoPreempt, PanicPercent: fm.Panic, StickyOverLimit: fm.Sticky, ClientBits: fm.HashBits, Seed: fm.Seed,
		Pressure: fm.Pressure.library(),
	}
}

// is4 reports whether the nodes have IPv4 addresses.
func (fm *farm) is4() bool { return fm.Nodes[0].Address.Addr().Is4() }

// checked reports whether anything decides about the nodes' health.
func (fm *farm) checked() bool { return fm.Check != nil || !fm.Policy.IsZero() || fm.Ping != nil }

// unanswered is the threshold of connections that a node leaves unanswered.
func (fm *farm) unanswered() int {
	if fm.SYNs == 0 && fm.Check == nil {
		return -1 // what would bring a node back does not ask it
	}
	return fm.SYNs
}

// fill puts the agent check into c.
func (a *agent) fill(to *healthcheck.Check) {
	to.Interval, to.Timeout, to.Prober = a.Interval, a.Timeout, probe.Agent{Send: a.Send}
	to.Target = netip.AddrPortFrom(to.Target.Addr(), a.Port)
}

// nodes are the library's nodes. wish says what was asked of nodes over the admin interface.
func (fm *farm) nodes(name string, wish wishes) (nodes []steering.Node) {
	for _, n := range fm.Nodes {
		weight := 0
		if n.Weight != nil {
			if weight = *n.Weight; weight == 0 {
				weight = steering.ZeroWeight
			}
		}
		full := nodeName(name, n.Name)
		nodes = append(nodes, steering.Node{
			Name: full, Addr: n.Address.AddrPort, Weight: weight, MaxSessions: n.MaxSessions, Capacity: n.Capacity, Backup: n.Backup, Admin: wish.admin(full, n.Admin),
		})
	}
	return nodes
}

// nodeName is what the library calls a node: farms may use one name for different nodes.
func nodeName(farm, node string) string { return farm + "/" + node }
