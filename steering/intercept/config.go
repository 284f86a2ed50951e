package intercept

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lbprim/lbprim/steering"
)

// A Side is one of the two sides of the balancer. The zero Side is the LAN.
type Side uint8

// The sides.
const (
	LAN Side = iota
	WAN
)

// An Action is what a rule does. The zero Action is Redirect.
type Action uint8

const (
	// Redirect sends the flow to a node.
	Redirect Action = iota
	// PassThrough lets the flow go by; the network services table may still choose a
	// node for it.
	PassThrough
	// Discard drops the packet and says nothing. In-path rules only.
	Discard
	// Deny drops the packet and answers with a reset. In-path rules only.
	Deny
)

// A PeerKind says what a load-balance rule asks of the remote peer. The zero PeerKind is
// AnyPeer.
type PeerKind uint8

const (
	// AnyPeer matches with and without a probe.
	AnyPeer PeerKind = iota
	// ProbeOnly matches SYNs that carry an autodiscovery probe.
	ProbeOnly
	// NonProbe matches SYNs that carry none.
	NonProbe
	// PeerAddress matches probes of peers within Rule.Peers.
	PeerAddress
)

// Untagged, as a VLAN of a rule, is traffic without a VLAN tag. VLAN 0 is any.
const Untagged = -1

// Ports is a range of ports from First to Last, both included. The zero Ports is any port.
type Ports struct{ First, Last uint16 }

// Port is a range of one port.
func Port(p uint16) Ports { return Ports{p, p} }

func (r Ports) any() bool { return r == Ports{} }

// Contains says whether p is in r.
func (r Ports) Contains(p uint16) bool { return r.any() || p >= r.First && p <= r.Last }

// String returns "any", "80" or "8000-8099".
func (r Ports) String() string {
	switch {
	case r.any():
		return "any"
	case r.First == r.Last:
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// A Match is what in-path and load-balance rules look at. The zero Match is any SYN.
type Match struct {
	Src, Dst netip.Prefix // zero is any address of both families
	DstPort  Ports        // zero is any
	VLAN     int          // 1 to 4094, 0 for any, or Untagged
}

// An InPathRule decides about SYNs from the LAN side.
type InPathRule struct {
	Name     string // for explanations; may be empty
	Match    Match  // the SYNs it is about
	Action   Action // what is done with them
	Disabled bool   // rules are passed over
}

// A Rule is a load-balance rule.
type Rule struct {
	Name  string // for explanations; may be empty
	Match Match  // the SYNs it is about
	// Peer and Peers are about the remote peer, which a probe names.
	Peer  PeerKind
	Peers netip.Prefix
	// Action is Redirect or PassThrough.
	Action Action
	// Targets are names of nodes, for Redirect. A node named in any rule, disabled ones
	// too, is not in the automatic pool.
	Targets []string
	// FairPeering keeps the targets under a cap of remote peers, see Config.
	FairPeering bool
	Disabled    bool
}

// An Endpoint is one end of the flows a row matches. The zero Endpoint is any.
type Endpoint struct {
	Net   netip.Prefix // zero is any address of both families
	Ports Ports        // zero is any
}

// A Row is an entry of the network services table: flows between A and B, in either
// direction. The first row that matches decides.
type Row struct {
	Name string // for explanations; may be empty
	A, B Endpoint
	// Protocol is 6 (TCP) or 17 (UDP), 0 for both.
	Protocol uint8
	// Targets are names of nodes; none is all nodes.
	Targets []string
	// PassThrough rows send their flows to no node.
	PassThrough bool
	Disabled    bool
}

// A Node is a node and the side of the balancer it stands on. Capacity is the number of
// optimised connections it can handle; either all nodes state one or none does. Backup,
// RecoveryTime and WarmUp are for pools only and must be zero.
type Node struct {
	steering.Node
	Side Side // where it stands. Default LAN
}

// Config configures an [Engine]. It is plain data; the Engine keeps what it needs.
type Config struct {
	Nodes  []Node       // of all rules; names are unique
	InPath []InPathRule // in-path rules: the first that matches decides
	Rules  []Rule       // load-balance rules: the first that matches decides
	// Services is the network services table.
	Services []Row

	// FairPeeringV2 keeps every node under a cap of remote peers, whatever rule
	// chose it: with P peers in all, ceil(P × its part of the capacity) × (1 + Slack).
	// It is required with PathSelection.
	FairPeeringV2 bool
	// Slack of the caps, in percent. Default 10; -1 is none.
	Slack int
	// PathSelection says that nodes choose uplinks (see steering/path).
	PathSelection bool
	// AllowFailure lets new optimised connections be redirected while a parallel peer
	// or both of a failover pair are down. Default: no. It does not concern
	// pass-through traffic.
	AllowFailure bool
	// Buckets of the network services table. Default 256.
	Buckets int
	// Seed of the bucket hash; balancers that must agree share it.
	Seed uint64
	// Pressure are the thresholds of Report.
	Pressure steering.Pressure
	// IDs gives out node ids. Default: an allocator of the engine's own.
	IDs *steering.IDs
}

// Validate reports the faults of c, all at once, as New and Set would.
func (c *Config) Validate() error {
	pc, nodes := c.pool()
	pc.IDs = nil
	_, err := steering.NewPool(pc, nodes...)
	return errors.Join(c.validate(), err)
}

// pool returns the configuration of the pool that keeps the state of the nodes. Capacity is for
// the metric to check: all nodes or none.
func (c *Config) pool() (*steering.Config, []steering.Node) {
	nodes := make([]steering.Node, len(c.Nodes))
	for i, n := range c.Nodes {
		nodes[i] = n.Node
	}
	return &steering.Config{Metric: steering.Capacity, Seed: c.Seed, Buckets: c.Buckets, Pressure: c.Pressure, IDs: c.IDs}, nodes
}

// validate reports all faults at once but those of the pool.
func (c *Config) validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, &steering.FieldError{Field: field, Value: value, Want: want})
	}
	known := map[string]bool{}
	for i, n := range c.Nodes {
		known[n.Name] = true
		if n.Side > WAN {
			bad(fmt.Sprintf("Nodes[%d] %q.Side", i, n.Name), uint8(n.Side), "lan or wan")
		}
		if n.RecoveryTime > 0 {
			bad(fmt.Sprintf("Nodes[%d] %q.RecoveryTime", i, n.Name), n.RecoveryTime, "none: recovery times are for pools")
		}
		if n.WarmUp > 0 {
			bad(fmt.Sprintf("Nodes[%d] %q.WarmUp", i, n.Name), n.WarmUp, "none: slow starts are for pools")
		}
		if n.Backup {
			bad(fmt.Sprintf("Nodes[%d] %q.Backup", i, n.Name), true, "false: backups are for pools, rules name their targets in order")
		}
	}
	targets := func(field string, names []string) {
		for j, name := range names {
			if !known[name] {
				bad(fmt.Sprintf("%s.Targets[%d]", field, j), fmt.Sprintf("%q", name), "the name of a node")
			}
			if slices.Contains(names[:j], name) {
				bad(fmt.Sprintf("%s.Targets[%d]", field, j), fmt.Sprintf("%q", name), "each node once")
			}
		}
	}
	seen := map[string]bool{}
	named := func(table string, i int, name string) string {
		field := fmt.Sprintf("%s[%d] %q", table, i, name)
		if name != "" && seen[table+name] {
			bad(field+".Name", fmt.Sprintf("%q", name), "a name of its own, or none")
		}
		seen[table+name] = true
		return field
	}
	for i := range c.InPath {
		r := &c.InPath[i]
		field := named("InPath", i, r.Name)
		r.Match.validate(field, bad)
		if r.Action > Deny {
			bad(field+".Action", uint8(r.Action), "redirect, pass-through, discard or deny")
		}
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		field := named("Rules", i, r.Name)
		r.Match.validate(field, bad)
		targets(field, r.Targets)
		switch {
		case r.Action > PassThrough:
			bad(field+".Action", r.Action, "redirect or pass-through")
		case r.Action == Redirect && len(r.Targets) == 0:
			bad(field+".Targets", "none", "at least one node to redirect to")
		case r.Action == PassThrough && len(r.Targets) > 0:
			bad(field+".Targets", r.Targets, "none with pass-through")
		}
		prefix(field+".Peers", r.Peers, bad)
		switch {
		case r.Peer > PeerAddress:
			bad(field+".Peer", uint8(r.Peer), "any, probe-only, non-probe or address")
		case r.Peer == PeerAddress && !r.Peers.IsValid():
			bad(field+".Peers", "none", "a network, with peer address")
		case r.Peer != PeerAddress && r.Peers.IsValid():
			bad(field+".Peers", r.Peers, "none unless Peer is address")
		}
	}
	for i := range c.Services {
		r := &c.Services[i]
		field := named("Services", i, r.Name)
		prefix(field+".A.Net", r.A.Net, bad)
		prefix(field+".B.Net", r.B.Net, bad)
		r.A.Ports.validate(field+".A.Ports", bad)
		r.B.Ports.validate(field+".B.Ports", bad)
		if r.A.Net.IsValid() && r.B.Net.IsValid() && r.A.Net.Addr().Is4() != r.B.Net.Addr().Is4() {
			bad(field+".B.Net", r.B.Net, "the family of A.Net, "+r.A.Net.String())
		}
		if r.Protocol != 0 && r.Protocol != tcp && r.Protocol != udp {
			bad(field+".Protocol", r.Protocol, "6 (TCP), 17 (UDP) or 0 for both")
		}
		targets(field, r.Targets)
		if r.PassThrough && len(r.Targets) > 0 {
			bad(field+".Targets", r.Targets, "none with pass-through")
		}
	}
	if c.PathSelection && !c.FairPeeringV2 {
		bad("FairPeeringV2", false, "true: path selection needs it")
	}
	if c.Slack < -1 || c.Slack > 1000 {
		bad("Slack", c.Slack, "0 to 1000 percent, or -1 for none")
	}
	return errors.Join(errs...)
}

const (
	tcp = 6
	udp = 17
)

func (r Ports) validate(field string, bad func(string, any, string)) {
	if !r.any() && (r.First > r.Last || r.First == 0) {
		bad(field, fmt.Sprintf("%d-%d", r.First, r.Last), "1 to 65535, the lower port first")
	}
}

func prefix(field string, p netip.Prefix, bad func(string, any, string)) {
	switch {
	case p == netip.Prefix{}:
	case !p.IsValid():
		bad(field, p, "a network such as 192.0.2.0/24")
	case p.Addr().Is4In6():
		bad(field, p, "the IPv4 form of the network")
	case p != p.Masked():
		bad(field, p, p.Masked().String()+", without bits beyond the mask")
	}
}

func (m *Match) validate(field string, bad func(string, any, string)) {
	prefix(field+".Src", m.Src, bad)
	prefix(field+".Dst", m.Dst, bad)
	m.DstPort.validate(field+".DstPort", bad)
	if m.Src.IsValid() && m.Dst.IsValid() && m.Src.Addr().Is4() != m.Dst.Addr().Is4() {
		bad(field+".Dst", m.Dst, "the family of Src, "+m.Src.String())
	}
	if m.VLAN < Untagged || m.VLAN > 4094 {
		bad(field+".VLAN", m.VLAN, "1 to 4094, 0 for any, or Untagged")
	}
}
