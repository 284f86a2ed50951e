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

// setup is what the roster checks: an element for each check, and a server for each node that something decides about.
func (c *config) setup() (s healthcheck.Setup) {
	for _, name := range slices.Sorted(maps.Keys(c.Elements)) {
		e := c.Elements[name]
		hc := healthcheck.Check{ID: name, Target: e.Target.AddrPort}
		e.fill(&hc)
		s.Elements = append(s.Elements, hc)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		s.Policies = append(s.Policies, healthcheck.Policy{Name: name, Expr: c.Policies[name].Expr})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		fm := c.Farms[name]
		if !fm.checked() {
			continue
		}
		for _, n := range fm.Nodes {
			full := nodeName(name, n.Name)
			port := healthcheck.Port{Name: nodePort, Port: max(1, n.Address.Port())}
			if fm.Check != nil {
				hc := healthcheck.Check{ID: full, Target: n.Address.AddrPort}
				fm.Check.fill(&hc)
				s.Elements = append(s.Elements, hc)
				port.Element = full
			}
			if !fm.Policy.IsZero() {
				s.Policies = append(s.Policies, healthcheck.Policy{Name: healthPolicy(full), Expr: fm.Policy.of(full)})
				port.Element, port.Policy = "", healthPolicy(full)
			}
			s.Servers = append(s.Servers, healthcheck.Server{Name: full, Addr: n.Address.Addr(), Ports: []healthcheck.Port{port}})
		}
	}
	return s
}

// newRoster returns a roster that tells the plane.
func newRoster(plane *dataplane.Plane, cfg healthcheck.Config) (*healthcheck.Roster, error) {
	observe := plane.ObserveHealth()
	cfg.OnResult = func(c healthcheck.Check, r healthcheck.Result, st healthcheck.Status) {
		c.ID = strings.TrimPrefix(c.ID, "element:")
		observe(c, r, st)
	}
	return healthcheck.NewRoster(&healthcheck.RosterConfig{Monitor: cfg, OnPort: func(t healthcheck.PortTransition) {
		switch {
		case t.Status.Usable:
			plane.SetUp(t.Status.Server, true)
		case t.Status.State == healthcheck.Failed:
			plane.SetUp(t.Status.Server, false)
		}
	}})
}
