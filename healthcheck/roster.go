package healthcheck

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// The defaults of a server's echo check.
const (
	DefaultEchoInterval = 2 * time.Second
	DefaultEchoFall     = 5 // 4 retries
	DefaultSilence      = 3 * time.Second
)

// Server is a real server with its ports, as configured. Zero fields mean the
// defaults named. It is plain data; a [Roster] copies it.
type Server struct {
	// Name is unique within a Roster. Required.
	Name string
	// Addr is what the checks of the server and its ports probe. Required.
	Addr netip.Addr
	// Echo is the Layer 3 check, with port 0; nil: the server counts as up.
	Echo Prober
	// EchoCheck has the schedule of Echo; its ID, Target and Prober are filled in.
	// Default: every 2 s, also while failing, and failed after 5 failures in a row.
	EchoCheck Check
	// Silence is after how long without a packet from the server, while packets
	// are sent to it, it becomes suspect and is pinged; default 3 s, negative never.
	// It needs the data plane to feed [Roster.Traffic].
	Silence time.Duration
	// Agent is an agent check; it runs with AgentCheck's schedule. What an agent
	// says can take a server out of service and set its weight. It does not revive
	// what the other checks fail.
	Agent      Prober
	AgentCheck Check
	Ports      []Port
}

// Port is a port of a real server, as configured. Zero fields mean the defaults
// named. It is plain data.
//
// Of what is attached to it, the first of Element, Policy, VirtualPolicy and the
// plain check (L4 and L7) decides, and only that is probed. A port with none of
// them is up while its server is.
type Port struct {
	// Name is unique within the server; default the number in decimal.
	Name string
	// Port is the number. Required.
	Port uint16

	// L4 and L7 are the plain check. To come up the port must pass both, one after
	// the other within one timeout. Once it is up L7 alone is repeated, or L4 if
	// there is no L7.
	L4, L7 Prober
	// Profile, if not nil, decides about the plain check if neither L4 nor L7 is set:
	// it is what [PortProfile.Resolve] says, by Setup.Probers, with Layer 4 before a
	// Layer 7 check over TCP. Profile.Port is filled in if it is 0.
	Profile *PortProfile
	// FastBringUp lets a pass of L4 bring the port up; L7 follows. A port that L7
	// failed needs L7 to come back.
	FastBringUp bool
	// Check has the schedule of the plain check; its ID, Target and Prober are
	// filled in. Its HoldDown holds for whatever decides about the port.
	Check Check

	// Element names an element attached to the port of the real server.
	Element string
	// Policy names a policy attached to the port of the real server.
	Policy string
	// VirtualPolicy names the policy attached to the port of the virtual server
	// that this port is bound to.
	VirtualPolicy string

	// Unbound: no virtual port is bound to it.
	Unbound bool
	// Reassign is the threshold of the passive check, see [SYNCount]; default 20,
	// negative: none. It needs the data plane to feed [Roster.SYNs].
	Reassign int
	// DSR: the server answers clients directly, so unanswered SYNs mean nothing.
	DSR bool

	checked uint16 // another port whose check is that of this one
}

// Setup is the whole configuration of a [Roster].
type Setup struct {
	// Elements are what policies are about, and ports may refer to. An element is
	// probed only while it decides about a port.
	Elements []Check
	Policies []Policy
	Servers  []Server
	Virtuals []Virtual
	// Probers returns the prober of a method, for ports with a Profile; probe.For of
	// package probe is one.
	Probers func(Method) (Prober, bool)
}

// attachment is what decides about a port.
type attachment struct {
	kind attachmentKind
	name string
}

type attachmentKind uint8

const (
	byNothing attachmentKind = iota
	byElement
	byPolicy
	byVirtualPolicy
	byCheck
)

func (a attachment) String() string {
	switch a.kind {
	case byElement:
		return "element " + a.name
	case byPolicy:
		return "policy " + a.name
	case byVirtualPolicy:
		return "policy " + a.name + " of the virtual server"
	case byCheck:
		return "its own check"
	}
	return "its server"
}

func (p *Port) decides() attachment {
	switch {
	case p.Element != "":
		return attachment{byElement, p.Element}
	case p.Policy != "":
		return attachment{byPolicy, p.Policy}
	case p.VirtualPolicy != "":
		return attachment{byVirtualPolicy, p.VirtualPolicy}
	case p.L4 != nil || p.L7 != nil || p.Profile != nil:
		return attachment{kind: byCheck}
	}
	return attachment{}
}

func (p *Port) name() string {
	if p.Name != "" {
		return p.Name
	}
	return strconv.Itoa(int(p.Port))
}

// resolve fills in the plain check of a port that has a profile.
func (s *Setup) resolve(p *Port) error {
	if p.decides().kind != byCheck || p.L4 != nil || p.L7 != nil {
		return nil
	}
	profile := *p.Profile
	if profile.Port == 0 {
		profile.Port = p.Port
	}
	if profile.Port != p.Port {
		return fmt.Errorf("its Port is %d, want %d or 0; BasedOn names another port to check", profile.Port, p.Port)
	}
	c, err := profile.Resolve()
	switch {
	case errors.Is(err, ErrNoMethod):
		p.L7 = FailWith(err)
		return nil
	case err != nil:
		return err
	case s.Probers == nil:
		return fmt.Errorf("it is a check by %v, want Setup.Probers to have its prober", c.Method)
	}
	prober := func(m Method) Prober {
		q, ok := s.Probers(m)
		if !ok || q == nil {
			err = fmt.Errorf("no prober for %v in Setup.Probers", m)
		}
		return q
	}
	switch {
	case c.Method.Layer() == 4:
		p.L4 = prober(c.Method)
	case c.Transport == OverTCP:
		p.L4, p.L7 = prober(TCP), prober(c.Method)
	default:
		p.L7 = prober(c.Method)
	}
	p.Check, p.checked = c.WithDefaults(p.Check), c.Port
	return err
}

// The IDs of a Roster's checks in its Monitor.
func echoID(server string) string       { return "echo:" + server }
func agentID(server string) string      { return "agent:" + server }
func portID(server, port string) string { return "port:" + server + "/" + port }
func elementID(name string) string      { return "element:" + name }

// echoCheck returns the check of the server's Echo.
func (s *Server) echoCheck() Check {
	c := s.EchoCheck
	c.ID, c.Target, c.Prober = echoID(s.Name), netip.AddrPortFrom(s.Addr, 0), s.Echo
	if c.Interval == 0 {
		c.Interval = DefaultEchoInterval
	}
	if c.FastInterval == 0 {
		c.FastInterval = c.Interval // pings may be lost in a burst
	}
	if c.Fall == 0 {
		c.Fall = DefaultEchoFall
	}
	c.watched = true
	return c
}

func (s *Server) agentCheck() Check {
	c := s.AgentCheck
	c.ID, c.Prober, c.watched = agentID(s.Name), s.Agent, true
	if !c.Target.IsValid() {
		c.Target = netip.AddrPortFrom(s.Addr, 0)
	}
	return c
}

// validate compiles the policies, resolves the ports' profiles, and reports all that is
// wrong, joined.
func (s *Setup) validate() (*Policies, error) {
	var errs []error
	s.Servers = slices.Clone(s.Servers)
	names := make([]string, 0, len(s.Elements))
	elements := map[string]bool{}
	for i := range s.Elements {
		e := &s.Elements[i]
		if err := e.Validate(); err != nil {
			errs = append(errs, err)
		}
		if elements[e.ID] {
			errs = append(errs, fmt.Errorf("healthcheck: element %q: ID used twice, want it unique", e.ID))
		}
		elements[e.ID] = true
		names = append(names, e.ID)
	}
	ps, err := CompilePolicies(names, s.Policies...)
	if err != nil {
		errs = append(errs, err)
	}
	policies := map[string]bool{}
	for _, p := range s.Policies {
		policies[p.Name] = true
	}
	servers, ports := map[string]bool{}, map[Member]bool{}
	for i := range s.Servers {
		v := &s.Servers[i]
		v.Ports = slices.Clone(v.Ports)
		for j := range v.Ports {
			p := &v.Ports[j]
			ports[Member{v.Name, p.name()}] = true
			if err := s.resolve(p); err != nil {
				errs = append(errs, fmt.Errorf("healthcheck: server %q: port %q: Profile: %w", v.Name, p.name(), err))
			}
		}
		if servers[v.Name] {
			errs = append(errs, fmt.Errorf("healthcheck: server %q: Name used twice, want it unique", v.Name))
		}
		servers[v.Name] = true
		errs = append(errs, v.validate(elements, policies)...)
	}
	virtuals := map[string]bool{}
	for i := range s.Virtuals {
		v := &s.Virtuals[i]
		if virtuals[v.Name] {
			errs = append(errs, fmt.Errorf("healthcheck: virtual server %q: Name used twice, want it unique", v.Name))
		}
		virtuals[v.Name] = true
		errs = append(errs, v.validate(ports)...)
	}
	return ps, errors.Join(errs...)
}

func (s *Server) validate(elements, policies map[string]bool) (errs []error) {
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("healthcheck: server %q: %w", s.Name, fmt.Errorf(format, args...)))
	}
	if s.Name == "" {
		bad(`Name "", want a name`)
	}
	if !s.Addr.IsValid() {
		bad("Addr %v, want an address", s.Addr)
	} else {
		if s.Echo != nil {
			if err := s.echoCheck().Validate(); err != nil {
				bad("EchoCheck: %w", err)
			}
		}
		if s.Agent != nil {
			if err := s.agentCheck().Validate(); err != nil {
				bad("AgentCheck: %w", err)
			}
		}
	}
	seen, radius := map[string]bool{}, 0
	for i := range s.Ports {
		p := &s.Ports[i]
		pbad := func(format string, args ...any) {
			bad("port %q: %w", p.name(), fmt.Errorf(format, args...))
		}
		if seen[p.name()] {
			pbad("Name used twice, want it unique")
		}
		seen[p.name()] = true
		if p.Port == 0 {
			pbad("Port 0, want 1 to 65535")
		}
		if p.Element != "" && !elements[p.Element] {
			pbad("Element %q: %w", p.Element, ErrUnknownName)
		}
		for _, name := range []string{p.Policy, p.VirtualPolicy} {
			if name != "" && !policies[name] {
				pbad("Policy %q: %w", name, ErrUnknownName)
			}
		}
		if _, err := NewSYNCount(p.Reassign, p.DSR); err != nil {
			pbad("Reassign: %w", err)
		}
		c := p.Check
		c.ID, c.Target, c.Prober = portID(s.Name, p.name()), netip.AddrPortFrom(netip.IPv4Unspecified(), p.Port), ProberFunc(nil)
		if err := c.Validate(); err != nil {
			pbad("Check: %w", err)
		}
		if p.L7 != nil && p.decides().kind == byCheck && slices.Contains([]uint16{1645, 1812}, p.Port) {
			radius++
		}
	}
	if radius > 1 {
		bad("ports 1645 and 1812 both have a Layer 7 check, want RADIUS on one of the two")
	}
	return errs
}
