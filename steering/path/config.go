package path

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/lbprim/lbprim/steering"
)

// Config is the whole of path selection: plain data, the same on every member of the
// cluster. See [Config.Export].
type Config struct {
	// Local is the name of the site this cluster stands at.
	Local string `json:"local"`
	Sites []Site `json:"sites"`
	// Balancers are all members of the cluster.
	Balancers []Balancer `json:"balancers"`
	Rules     []Rule     `json:"rules,omitempty"`
	// Marks is the QoS marking table.
	Marks []Mark `json:"marks,omitempty"`
	// Probing says how channels are watched.
	Probing Probing `json:"probing,omitzero"`
}

// A Site is a place with networks. Only the uplinks of the local site carry traffic.
type Site struct {
	Name     string         `json:"name"`               // unique
	Networks []netip.Prefix `json:"networks,omitempty"` // that are there
	Uplinks  []Uplink       `json:"uplinks,omitempty"`  // ways out, of the local site
}

// An Uplink is a way out of a site, through a gateway.
type Uplink struct {
	Name    string     `json:"name"`    // unique at the site
	Gateway netip.Addr `json:"gateway"` // the next hop
	// Interfaces are the names of balancer interfaces the gateway is reached by, on
	// whichever balancers have them. None is every interface on the gateway's subnet.
	Interfaces []string `json:"interfaces,omitempty"`
}

// A Balancer is a member of the cluster.
type Balancer struct {
	Name       string      `json:"name"`       // unique
	Interfaces []Interface `json:"interfaces"` // those in the path
}

// An Interface is one of a balancer's in-path interfaces: its address and subnet.
type Interface struct {
	Name   string       `json:"name"`   // unique at the balancer
	Prefix netip.Prefix `json:"prefix"` // its address with the length of its subnet
}

// MaxUplinks is how many uplinks a rule may name.
const MaxUplinks = 3

// A Rule says which way packets go. The first rule that matches decides.
type Rule struct {
	Name  string `json:"name,omitempty"` // for explanations
	Match Match  `json:"match,omitzero"` // the packets it is about
	// Uplinks in order of preference, at most MaxUplinks. None relays.
	Uplinks []string `json:"uplinks,omitempty"`
	// Else is what happens when no uplink can be used. Default Relay.
	Else Fallback `json:"else,omitempty"`
	// SetDSCP marks the packet. The zero value leaves it alone.
	SetDSCP DSCP `json:"setDSCP,omitempty"`
	// Export asks for the flow to be exported.
	Export   bool `json:"export,omitempty"`
	Disabled bool `json:"disabled,omitempty"`
}

// A Mark is a row of the QoS marking table. The first that matches decides.
type Mark struct {
	Name     string `json:"name,omitempty"`     // for explanations
	Match    Match  `json:"match,omitzero"`     // the packets it is about
	DSCP     DSCP   `json:"dscp"`               // that they get
	Disabled bool   `json:"disabled,omitempty"` // rows are passed over
}

// A Match is what a rule looks at; zero fields match anything.
type Match struct {
	Src      netip.Prefix `json:"src,omitzero"`       // the network of the source
	Dst      netip.Prefix `json:"dst,omitzero"`       // the network of the destination
	SrcPort  Ports        `json:"srcPort,omitzero"`   // the source's
	DstPort  Ports        `json:"dstPort,omitzero"`   // the destination's
	Protocol uint8        `json:"protocol,omitempty"` // 0 is any
	DSCP     DSCP         `json:"dscp,omitempty"`     // as the packet came
	VLAN     int          `json:"vlan,omitempty"`     // 1 to 4094, 0 for any, Untagged
	// DstSite is the name of the destination's site.
	DstSite string `json:"dstSite,omitempty"`
	// App is the name of the application, as the Identifier names it.
	App string `json:"app,omitempty"`
}

// Untagged, as a VLAN to match, is traffic without a VLAN tag.
const Untagged = -1

// Ports is a range of ports, both ends included. The zero Ports is any port.
type Ports struct {
	First uint16 `json:"first"` // 1 to 65535
	Last  uint16 `json:"last"`  // First or more
}

func (r Ports) contains(p uint16) bool { return r == Ports{} || p >= r.First && p <= r.Last }

// A Fallback is what happens to a packet when no uplink of its rule can be used. The
// zero Fallback is Relay.
type Fallback uint8

const (
	// Relay sends the packet out of the balancer interface that redirected it.
	Relay Fallback = iota
	// Drop drops it.
	Drop
)

// A DSCP is a differentiated services code point to match or to set. The zero DSCP is
// none: any to match, no change to set. See [CodePoint].
type DSCP uint8

// CodePoint is the DSCP with value v, 0 to 63 (RFC 2474).
func CodePoint(v uint8) DSCP { return DSCP(v + 1) }

// Value returns the code point, and whether there is one.
func (d DSCP) Value() (uint8, bool) { return uint8(d) - 1, d != 0 }

// Probing are the parameters of probing; zero fields take the defaults.
type Probing struct {
	Interval time.Duration `json:"interval,omitempty"` // under traffic; default 2 s
	Idle     time.Duration `json:"idle,omitempty"`     // longest without traffic; default 30 min
	Timeout  time.Duration `json:"timeout,omitempty"`  // of one probe; default 2 s
	Losses   int           `json:"losses,omitempty"`   // in a row before a channel is down; default 3
}

func (p Probing) withDefaults() Probing {
	if p.Interval == 0 {
		p.Interval = 2 * time.Second
	}
	if p.Idle == 0 {
		p.Idle = 1800 * time.Second
	}
	if p.Timeout == 0 {
		p.Timeout = 2 * time.Second
	}
	if p.Losses == 0 {
		p.Losses = 3
	}
	return p
}

// Validate reports the faults of c, all at once.
func (c *Config) Validate() error {
	_, err := c.channels()
	return errors.Join(c.validate(), err)
}

func (c *Config) validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, &steering.FieldError{Field: field, Value: value, Want: want})
	}
	// The file of Export carries UTF-8 only.
	named := func(field, name string) {
		if !utf8.ValidString(name) {
			bad(field, fmt.Sprintf("%q", name), "UTF-8")
		}
	}
	sites, uplinks := map[string]bool{}, map[string]bool{}
	networks := map[netip.Prefix]string{}
	gateways := map[netip.Addr]string{}
	for i := range c.Sites {
		s := &c.Sites[i]
		field := fmt.Sprintf("Sites[%d] %q", i, s.Name)
		if s.Name == "" || sites[s.Name] {
			bad(field+".Name", fmt.Sprintf("%q", s.Name), "a name of its own")
		}
		named(field+".Name", s.Name)
		sites[s.Name] = true
		for j, n := range s.Networks {
			at := fmt.Sprintf("%s.Networks[%d]", field, j)
			prefix(at, n, bad)
			if other, dup := networks[n]; dup {
				bad(at, n, "a network no other entry has; site "+other+" has this one")
			}
			networks[n] = s.Name
		}
		seen := map[string]bool{}
		for j := range s.Uplinks {
			u := &s.Uplinks[j]
			at := fmt.Sprintf("%s.Uplinks[%d] %q", field, j, u.Name)
			if u.Name == "" || seen[u.Name] {
				bad(at+".Name", fmt.Sprintf("%q", u.Name), "a name of its own")
			}
			named(at+".Name", u.Name)
			seen[u.Name] = true
			if s.Name == c.Local {
				uplinks[u.Name] = true
				if other, dup := gateways[u.Gateway.Unmap()]; dup {
					bad(at+".Gateway", u.Gateway, fmt.Sprintf("a gateway of its own, uplink %q has this one", other))
				}
				gateways[u.Gateway.Unmap()] = u.Name
			}
			if !u.Gateway.IsValid() || u.Gateway.IsUnspecified() {
				bad(at+".Gateway", u.Gateway, "an address")
			}
		}
	}
	if !sites[c.Local] && (c.Local != "" || len(c.Sites) > 0) {
		bad("Local", fmt.Sprintf("%q", c.Local), "the name of a site")
	}
	balancers := map[string]bool{}
	for i := range c.Balancers {
		b := &c.Balancers[i]
		field := fmt.Sprintf("Balancers[%d] %q", i, b.Name)
		if b.Name == "" || balancers[b.Name] {
			bad(field+".Name", fmt.Sprintf("%q", b.Name), "a name of its own")
		}
		named(field+".Name", b.Name)
		balancers[b.Name] = true
		seen := map[string]bool{}
		for j, x := range b.Interfaces {
			at := fmt.Sprintf("%s.Interfaces[%d] %q", field, j, x.Name)
			if x.Name == "" || seen[x.Name] {
				bad(at+".Name", fmt.Sprintf("%q", x.Name), "a name of its own")
			}
			named(at+".Name", x.Name)
			seen[x.Name] = true
			if !x.Prefix.IsValid() {
				bad(at+".Prefix", x.Prefix, "the interface's address with its prefix length")
			}
		}
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		field := fmt.Sprintf("Rules[%d] %q", i, r.Name)
		named(field+".Name", r.Name)
		named(field+".Match.App", r.Match.App)
		r.Match.validate(field+".Match", sites, bad)
		if len(r.Uplinks) > MaxUplinks {
			bad(field+".Uplinks", len(r.Uplinks), fmt.Sprintf("at most %d; what is left is relayed or dropped", MaxUplinks))
		}
		for j, u := range r.Uplinks {
			if !uplinks[u] || slices.Contains(r.Uplinks[:j], u) {
				bad(fmt.Sprintf("%s.Uplinks[%d]", field, j), fmt.Sprintf("%q", u), "an uplink of the local site, each once")
			}
		}
		if r.Else > Drop {
			bad(field+".Else", uint8(r.Else), "relay or drop")
		}
		if r.Else == Drop && len(r.Uplinks) == 0 && r.Export {
			bad(field+".Else", "drop", "relay in a rule that only asks for export")
		}
		r.SetDSCP.validate(field+".SetDSCP", bad)
	}
	for i := range c.Marks {
		m := &c.Marks[i]
		field := fmt.Sprintf("Marks[%d] %q", i, m.Name)
		named(field+".Name", m.Name)
		named(field+".Match.App", m.Match.App)
		m.Match.validate(field+".Match", sites, bad)
		m.DSCP.validate(field+".DSCP", bad)
		if m.DSCP == 0 {
			bad(field+".DSCP", "none", "a code point")
		}
	}
	p := c.Probing
	if p.Interval < 0 || p.Idle < 0 || p.Timeout < 0 || p.Losses < 0 {
		bad("Probing", p, "no negative value")
	}
	if q := p.withDefaults(); q.Idle < q.Interval {
		bad("Probing.Idle", q.Idle, "at least Interval, "+q.Interval.String())
	}
	return errors.Join(errs...)
}

func (d DSCP) validate(field string, bad func(string, any, string)) {
	if d > 64 {
		bad(field, uint8(d)-1, "0 to 63")
	}
}

func prefix(field string, p netip.Prefix, bad func(string, any, string)) {
	switch {
	case !p.IsValid():
		bad(field, p, "a network such as 192.0.2.0/24")
	case p.Addr().Is4In6():
		bad(field, p, "the IPv4 form of the network")
	case p != p.Masked():
		bad(field, p, p.Masked().String()+", without bits beyond the mask")
	}
}

func (m *Match) validate(field string, sites map[string]bool, bad func(string, any, string)) {
	for _, x := range []struct {
		name string
		p    netip.Prefix
	}{{".Src", m.Src}, {".Dst", m.Dst}} {
		if x.p != (netip.Prefix{}) {
			prefix(field+x.name, x.p, bad)
		}
	}
	if m.Src.IsValid() && m.Dst.IsValid() && m.Src.Addr().Is4() != m.Dst.Addr().Is4() {
		bad(field+".Dst", m.Dst, "the family of Src, "+m.Src.String())
	}
	for _, x := range []struct {
		name string
		r    Ports
	}{{".SrcPort", m.SrcPort}, {".DstPort", m.DstPort}} {
		if x.r != (Ports{}) && (x.r.First == 0 || x.r.First > x.r.Last) {
			bad(field+x.name, fmt.Sprintf("%d-%d", x.r.First, x.r.Last), "1 to 65535, the lower port first")
		}
	}
	m.DSCP.validate(field+".DSCP", bad)
	if m.VLAN < Untagged || m.VLAN > 4094 {
		bad(field+".VLAN", m.VLAN, "1 to 4094, 0 for any, or Untagged")
	}
	if m.DstSite != "" && !sites[m.DstSite] {
		bad(field+".DstSite", fmt.Sprintf("%q", m.DstSite), "the name of a site")
	}
}
