package path

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const tcp = 6

// A Packet is what the rules look at.
type Packet struct {
	Src, Dst netip.AddrPort // of one family
	Protocol uint8          // IANA protocol number
	DSCP     uint8          // 0 to 63
	VLAN     uint16         // 0 is untagged
	// Optimized packets belong to an optimised connection.
	Optimized bool
	// HeaderOnly says that the cluster is not steady.
	HeaderOnly bool
	// App is the application, where it is known already.
	App string
	// Flow is the caller's handle for the connection, for its Identifier.
	Flow uint64
	// Via is the balancer interface that redirected this connection.
	Via Via
}

// A Via names an Interface of a Balancer. The zero Via names none.
type Via struct{ Balancer, Interface string }

// An Identifier names the application of a packet, or says that it does not know it yet.
// It is asked only when a rule depends on it, must not block, and must be safe for
// concurrent use.
type Identifier interface {
	// Identify returns the application of a packet, "" for one that no rule is about. ok is false if more packets are needed to tell.
	Identify(p *Packet) (app string, ok bool)
}

// An Outcome is the kind of a [Decision]. The zero Outcome is Relayed.
type Outcome uint8

const (
	// Relayed packets leave by the interface that redirected their connection.
	Relayed Outcome = iota
	// Sent packets go to a channel.
	Sent
	// Dropped packets do not leave.
	Dropped
)

// A Decision is the way of a packet.
type Decision struct {
	Outcome Outcome  // what becomes of it
	Channel *Channel // of Sent packets; not to be changed
	Via     Via      // of Relayed packets
	DSCP    DSCP     // to set, none to leave alone
	Export  bool     // export the flow
	Rule    string   // name of the path rule that matched
	Mark    string   // name of the QoS row that marked
}

// An Explanation is a Decision and the way to it, from the code of [Engine.Decide].
type Explanation struct {
	Packet   Packet // that was asked about
	Site     string // of the destination
	Decision Decision
	Steps    []string // for people, in order
}

// String formats x for people.
func (x Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", x.Decision.Outcome)
	if c := x.Decision.Channel; c != nil {
		fmt.Fprintf(&b, " by uplink %q, %s of %s", c.Uplink, c.Interface, c.Balancer)
	}
	fmt.Fprintf(&b, ", DSCP %s", x.Decision.DSCP)
	for _, s := range x.Steps {
		b.WriteString("\n  " + s)
	}
	return b.String()
}

// An Engine chooses paths, see the package comment. It must not be copied; use [New].
type Engine struct {
	view     atomic.Pointer[view]
	identify Identifier

	mu    sync.Mutex
	cfg   Config
	rand  *rand.Rand
	lines map[ChannelID]*line
	wake  chan struct{}
}

type view struct {
	rules   []Rule
	marks   []Mark
	sites   sites
	bySite  bool // some rule or mark asks for the site
	marking bool // some rule or mark sets a DSCP, or asks for export
	names   []string
	uplinks map[string]*uplink
	byRule  [][]*uplink
}

// An uplink is the channels of one gateway, of which one is active.
type uplink struct {
	name   string
	lines  []*line
	active atomic.Pointer[line] // nil: none is up
	wanted atomic.Bool          // by traffic, since the last look
	idle   atomic.Bool          // traffic would have it probed sooner
}

// New makes an engine. seed draws the active channels: members need not share it.
// identify may be nil; then only packets that carry an application match rules that ask
// for one. All faults of cfg are reported at once.
func New(cfg *Config, seed uint64, identify Identifier) (*Engine, error) {
	e := &Engine{
		identify: identify, rand: rand.New(rand.NewPCG(seed, seed^0x9E3779B97F4A7C15)), lines: map[ChannelID]*line{}, wake: make(chan struct{}, 1),
	}
	if err := e.set(cfg, true); err != nil {
		return nil, err
	}
	return e, nil
}

// Set replaces the configuration. Channels that stay keep their state and, where they
// were active, stay so. A fault, or the configuration in force, changes nothing. A nil
// cfg is the empty one.
func (e *Engine) Set(cfg *Config) error { return e.set(cfg, false) }

func (e *Engine) set(cfg *Config, first bool) error {
	if cfg == nil {
		cfg = new(Config)
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	channels, err := cfg.channels()
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !first && reflect.DeepEqual(*cfg, e.cfg) {
		return nil
	}
	old := e.view.Load()
	e.cfg = cfg.clone()
	v := &view{rules: e.cfg.Rules, marks: e.cfg.Marks, uplinks: map[string]*uplink{}}
	for _, s := range e.cfg.Sites {
		for _, n := range s.Networks {
			v.sites.add(n, s.Name)
		}
		if s.Name == e.cfg.Local {
			for _, u := range s.Uplinks {
				v.uplinks[u.Name] = &uplink{name: u.Name}
				v.names = append(v.names, u.Name)
			}
		}
	}
	v.sites.ready()
	v.bySite = slices.ContainsFunc(v.rules, func(r Rule) bool { return r.Match.DstSite != "" }) ||
		slices.ContainsFunc(v.marks, func(m Mark) bool { return m.Match.DstSite != "" })
	v.marking = slices.ContainsFunc(v.rules, func(r Rule) bool { return !r.Disabled && (r.SetDSCP != 0 || r.Export) }) ||
		slices.ContainsFunc(v.marks, func(m Mark) bool { return !m.Disabled })
	lines := make(map[ChannelID]*line, len(channels))
	for _, c := range channels {
		l := e.lines[c.ID]
		if l == nil || l.Channel != c {
			l = &line{Channel: c, up: true}
		}
		lines[c.ID] = l
		u := v.uplinks[c.Uplink]
		u.lines = append(u.lines, l)
	}
	e.lines = lines
	for _, u := range v.uplinks {
		if old != nil && old.uplinks[u.name] != nil {
			if was := old.uplinks[u.name].active.Load(); was != nil && slices.Contains(u.lines, was) {
				u.active.Store(was)
			}
			u.wanted.Store(old.uplinks[u.name].wanted.Load())
		}
	}
	for _, name := range v.names {
		e.choose(v.uplinks[name])
	}
	v.byRule = make([][]*uplink, len(v.rules))
	for i, r := range v.rules {
		for _, name := range r.Uplinks {
			v.byRule[i] = append(v.byRule[i], v.uplinks[name])
		}
	}
	e.view.Store(v)
	e.poke()
	return nil
}

func (c *Config) clone() Config {
	n := *c
	n.Sites, n.Balancers = slices.Clone(c.Sites), slices.Clone(c.Balancers)
	n.Rules, n.Marks = slices.Clone(c.Rules), slices.Clone(c.Marks)
	for i := range n.Sites {
		n.Sites[i].Networks, n.Sites[i].Uplinks = slices.Clone(n.Sites[i].Networks), slices.Clone(n.Sites[i].Uplinks)
		for j := range n.Sites[i].Uplinks {
			n.Sites[i].Uplinks[j].Interfaces = slices.Clone(n.Sites[i].Uplinks[j].Interfaces)
		}
	}
	for i := range n.Balancers {
		n.Balancers[i].Interfaces = slices.Clone(n.Balancers[i].Interfaces)
	}
	for i := range n.Rules {
		n.Rules[i].Uplinks = slices.Clone(n.Rules[i].Uplinks)
	}
	return n
}

// choose draws the active channel anew unless the present one is up. e.mu is held.
func (e *Engine) choose(u *uplink) {
	if l := u.active.Load(); l != nil && l.up {
		return
	}
	var up []*line
	for _, l := range u.lines {
		if l.up {
			up = append(up, l)
		}
	}
	if len(up) == 0 {
		u.active.Store(nil)
		return
	}
	u.active.Store(up[e.rand.IntN(len(up))])
}

// Site returns the site of an address: the one with the longest network that contains
// it, "" if none does.
func (e *Engine) Site(a netip.Addr) string { return e.view.Load().sites.lookup(a.Unmap()) }

// Decide chooses the way of a packet. It takes no lock and does not allocate.
func (e *Engine) Decide(p *Packet) Decision { return e.decide(p, nil, true) }

// Mark is Decide for who asks for nothing but the DSCP and whether to export the flow: it counts as no traffic for the uplinks. It does not allocate.
func (e *Engine) Mark(p *Packet) Decision { return e.decide(p, nil, false) }

// Marks reports whether any rule or QoS row sets a DSCP or asks for export: where none does, Mark need not be called.
func (e *Engine) Marks() bool { return e.view.Load().marking }

// Explain says what Decide would do with p now; it counts as no traffic.
func (e *Engine) Explain(p *Packet) Explanation {
	x := Explanation{Packet: *p}
	x.Decision = e.decide(p, &x, false)
	return x
}

func (e *Engine) decide(p *Packet, x *Explanation, traffic bool) Decision {
	v := e.view.Load()
	m := matcher{e: e, p: p}
	if v.bySite || x != nil {
		m.site = v.sites.lookup(p.Dst.Addr().Unmap())
	}
	if x != nil {
		x.Site = m.site
	}
	d := Decision{Via: p.Via}
	for i := range v.marks {
		r := &v.marks[i]
		if r.Disabled {
			continue
		}
		if field := m.miss(&r.Match); field != "" {
			if x != nil {
				x.step("QoS row %d %q: another %s", i, r.Name, field)
			}
			continue
		}
		d.DSCP, d.Mark = r.DSCP, r.Name
		if x != nil {
			x.step("QoS row %d %q: DSCP %s", i, r.Name, r.DSCP)
		}
		break
	}
	for i := range v.rules {
		r := &v.rules[i]
		if r.Disabled {
			continue
		}
		if field := m.miss(&r.Match); field != "" {
			if x != nil {
				x.step("path rule %d %q: another %s", i, r.Name, field)
			}
			continue
		}
		d.Rule, d.Export = r.Name, r.Export
		if r.SetDSCP != 0 {
			d.DSCP, d.Mark = r.SetDSCP, ""
		}
		for _, u := range v.byRule[i] {
			if traffic && !u.wanted.Load() {
				// Only where that changes when it is probed: or Run would wake for every packet.
				if u.wanted.Store(true); u.idle.Load() {
					e.poke()
				}
			}
			if l := u.active.Load(); l != nil {
				d.Outcome, d.Channel, d.Via = Sent, &l.Channel, Via{}
				if x != nil {
					x.step("path rule %d %q: uplink %q", i, r.Name, u.name)
				}
				return d
			}
			if x != nil {
				x.step("path rule %d %q: uplink %q has no channel that is up", i, r.Name, u.name)
			}
		}
		if r.Else == Drop {
			d.Outcome, d.Via = Dropped, Via{}
		}
		if x != nil {
			x.step("path rule %d %q: %s", i, r.Name, r.Else)
		}
		return d
	}
	if x != nil {
		x.step("no path rule: relay")
	}
	return d
}

func (x *Explanation) step(format string, args ...any) {
	x.Steps = append(x.Steps, fmt.Sprintf(format, args...))
}

// A matcher is a packet and what was found out about it.
type matcher struct {
	e     *Engine
	p     *Packet
	site  string
	app   string
	asked bool
}

// miss says which field of r does not match, "" if all do.
func (m *matcher) miss(r *Match) string {
	p := m.p
	switch {
	case r.Src.IsValid() && !r.Src.Contains(p.Src.Addr().Unmap()):
		return "source"
	case r.Dst.IsValid() && !r.Dst.Contains(p.Dst.Addr().Unmap()):
		return "destination"
	case r.Protocol != 0 && r.Protocol != p.Protocol:
		return "protocol"
	case !r.SrcPort.contains(p.Src.Port()):
		return "source port"
	case !r.DstPort.contains(p.Dst.Port()):
		return "destination port"
	case r.VLAN == Untagged && p.VLAN != 0, r.VLAN > 0 && int(p.VLAN) != r.VLAN:
		return "VLAN"
	case r.DstSite != "" && r.DstSite != m.site:
		return "destination site"
	}
	if v, ok := r.DSCP.Value(); ok && v != p.DSCP {
		return "DSCP"
	}
	if r.App != "" && r.App != m.application() {
		return "application"
	}
	return ""
}

func (m *matcher) application() string {
	if m.p.HeaderOnly && !m.p.Optimized && m.p.Protocol == tcp {
		return ""
	}
	if !m.asked {
		m.asked = true
		m.app = m.p.App
		if m.app == "" && m.e.identify != nil {
			if app, ok := m.e.identify.Identify(m.p); ok {
				m.app = app
			}
		}
	}
	return m.app
}

func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// A ChannelStatus is what the engine knows of a channel.
type ChannelStatus struct {
	Channel
	Up       bool          // its probes are answered
	Active   bool          // it is the one of its uplink that packets are sent to
	Losses   int           // in a row
	Interval time.Duration // until the next probe, from the last one
	Next     time.Time     // when the next probe is due
}

// Channels returns the channels with their status, in order of uplink, balancer and
// interface.
func (e *Engine) Channels() []ChannelStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.view.Load()
	var out []ChannelStatus
	for _, name := range v.names {
		u := v.uplinks[name]
		for _, l := range u.lines {
			out = append(out, ChannelStatus{l.Channel, l.up, u.active.Load() == l, l.losses, l.interval, l.next})
		}
	}
	return out
}
