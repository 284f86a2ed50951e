package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/healthcheck"
)

// expr is a boolean expression over elements and policies.
type expr struct{ healthcheck.Expr }

const self = "self"

func (e expr) usesSelf() bool { return slices.Contains(e.Names(), self) }

// of returns e with self replaced by a node's name.
func (e expr) of(node string) healthcheck.Expr {
	if e.IsZero() {
		return healthcheck.Name(node)
	}
	var out strings.Builder
	quoted, word := false, ""
	flush := func() {
		if word == self {
			word = node
		}
		out.WriteString(word)
		word = ""
	}
	for i, text := 0, e.String(); i < len(text); i++ {
		switch c := text[i]; {
		case quoted:
			out.WriteByte(c)
			if c == '\\' {
				i++
				out.WriteByte(text[i])
			}
			quoted = c != '"'
		case c == '"':
			quoted = true
			out.WriteByte(c)
		case c == ' ' || c == '(' || c == ')':
			flush()
			out.WriteByte(c)
		default:
			word += string(c)
		}
	}
	flush()
	x, err := healthcheck.ParseExpr(out.String())
	if err != nil {
		return e.Expr // its names are proper ones, so this cannot be
	}
	return x
}

// The roster knows each node as a server with this port.
const nodePort = "node"

// healthPolicy is what the policy of a node is called.
func healthPolicy(node string) string { return "health of " + node }

// setup is what the roster checks: an element for each check, and a server for each node. Nodes that nothing decides about are up.
func (c *config) setup() (s healthcheck.Setup) {
	for _, name := range slices.Sorted(maps.Keys(c.Elements)) {
		e := c.Elements[name]
		hc := healthcheck.Check{ID: name, Target: e.Target.AddrPort}
		e.fill(&hc, healthcheck.OverTCP)
		s.Elements = append(s.Elements, hc)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		s.Policies = append(s.Policies, healthcheck.Policy{Name: name, Expr: c.Policies[name].Expr})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		fm := c.Farms[name]
		for _, n := range fm.Nodes {
			full := nodeName(name, n.Name)
			port := healthcheck.Port{Name: nodePort, Port: max(1, n.Address.Port()), Reassign: fm.unanswered()}
			port.DSR = fm.Forward == dataplane.DSR || fm.Forward == dataplane.Tunnelled
			if fm.Check != nil {
				hc := healthcheck.Check{ID: full, Target: n.Address.AddrPort}
				fm.Check.fill(&hc, c.transport(name))
				s.Elements = append(s.Elements, hc)
				port.Element = full
			}
			if !fm.Policy.IsZero() {
				s.Policies = append(s.Policies, healthcheck.Policy{Name: healthPolicy(full), Expr: fm.Policy.of(full)})
				port.Element, port.Policy = "", healthPolicy(full)
			}
			server := healthcheck.Server{Name: full, Addr: n.Address.Addr(), Ports: []healthcheck.Port{port}}
			if fm.Ping != nil {
				fm.Ping.fill(&server)
			}
			if fm.Agent != nil {
				server.AgentCheck.Target = n.Address.AddrPort
				fm.Agent.fill(&server.AgentCheck)
				server.Agent = server.AgentCheck.Prober
			}
			s.Servers = append(s.Servers, server)
		}
	}
	return s
}

// idle returns the elements that are never checked, as no node's health depends on them.
func (c *config) idle() []string {
	s := c.setup()
	var all []string
	for i := range s.Elements {
		all = append(all, s.Elements[i].ID)
	}
	policies, err := healthcheck.CompilePolicies(all, s.Policies...)
	if err != nil {
		return nil // the roster says so
	}
	used := make(map[string]bool)
	for i := range s.Servers {
		for _, p := range s.Servers[i].Ports {
			used[p.Element] = true
			if p.Policy == "" {
				continue
			}
			for _, e := range policies.Elements(p.Policy) {
				used[e] = true
			}
		}
	}
	return slices.DeleteFunc(all, func(name string) bool { return used[name] })
}

// newRoster has the plane follow a roster. What the roster says of agents can be said again by advise.
func (in *instance) newRoster(cfg healthcheck.Config) error {
	observe := in.plane.ObserveHealth()
	cfg.OnResult = func(c healthcheck.Check, r healthcheck.Result, st healthcheck.Status) {
		name, ours := strings.CutPrefix(c.ID, "element:")
		if c.ID = name; ours {
			observe(c, r, st)
		}
	}
	onPort, onAgent, err := in.plane.ApplyRoster(healthcheck.SlowStart{}) // the farms' pools have slow starts of their own
	if err != nil {
		return err
	}
	in.advise = onAgent
	in.roster, err = healthcheck.NewRoster(&healthcheck.RosterConfig{Monitor: cfg, OnPort: onPort, OnAgent: onAgent})
	if err == nil {
		in.plane.FeedRoster(in.roster)
	}
	return err
}

// adviseAgain tells the plane what a node's agent has said, since the node or the agent is another one.
func (in *instance) adviseAgain(full string) {
	said := in.agentOf(full)
	for {
		in.advise(full, said)
		again := in.agentOf(full)
		if again == said {
			return
		}
		said = again // meanwhile it has said something new
	}
}

// agentOf is what a node's agent has said, in sum.
func (in *instance) agentOf(full string) (said healthcheck.AgentReport) {
	if st, ok := in.roster.Server(full); ok && st.Agent != nil {
		said = *st.Agent
	}
	return said
}
