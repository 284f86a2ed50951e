package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// setup is what other balancers' files have in common with l4lb's.
type setup struct {
	farms    []*farm
	services []*service
	notes    []string // what was not taken over, with its line
	dsr      bool
}

type farm struct {
	name, metric, mode, forward string
	idle                        time.Duration
	check                       *check
	nodes                       []*node
}

type node struct {
	name   string
	addr   netip.AddrPort // port 0: as the client asked
	weight int            // negative: as by default
	max    int
	backup bool
	admin  string
}

type service struct {
	name  string
	vip   netip.Addr
	proto string
	ports string
	farm  string
}

// check is one check; its zero fields are left to the defaults.
type check struct {
	method                  string
	port                    uint16
	interval, timeout       time.Duration
	rise, fall              int
	path, host, query, user string
	status                  []string
}

func (s *setup) note(line int, format string, args ...any) {
	text := fmt.Sprintf("line %d: ", line) + fmt.Sprintf(format, args...)
	if !slices.Contains(s.notes, text) {
		s.notes = append(s.notes, text)
	}
}

// word makes a name of what other programs allow in names.
func word(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.:", r) {
			return r
		}
		return '-'
	}, s)
	return strings.TrimLeft(s, "-.:")
}

// yaml writes the setup as a file of l4lb.
func (s *setup) yaml(from string, locals []netip.Addr) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Made from %s. Look at what follows before you use it: convert takes over the common part only.\n", from)
	for _, n := range s.notes {
		fmt.Fprintf(&b, "# - %s\n", n)
	}
	fmt.Fprintln(&b, "version: 1")
	if s.dsr {
		fmt.Fprintln(&b, "device: {type: afpacket, interfaces: [eth0]}   # all interfaces to clients and servers")
	} else {
		fmt.Fprintln(&b, "device: {type: tun, interfaces: [eth1]}        # those to the servers, whose default route is this machine")
	}
	fmt.Fprintln(&b, "farms:")
	for _, f := range s.farms {
		fmt.Fprintf(&b, "  %s:\n    metric: %s\n    mode: %s\n", strconv.Quote(f.name), f.metric, f.mode)
		switch {
		case f.forward == "nat" && len(locals) > 0:
			var of []string
			for _, a := range locals {
				if len(f.nodes) > 0 && a.Is4() == f.nodes[0].addr.Addr().Is4() {
					of = append(of, strconv.Quote(a.String()))
				}
			}
			fmt.Fprintf(&b, "    forward: fullnat\n    locals: [%s]\n", strings.Join(of, ", "))
		case f.forward == "tunnel":
			fmt.Fprintf(&b, "    forward: tunnel\n    tunnel: {kind: ipip}\n")
		case f.forward != "nat":
			fmt.Fprintf(&b, "    forward: %s\n", f.forward)
		}
		if f.idle > 0 {
			fmt.Fprintf(&b, "    ageing: {idle: %v}\n", f.idle)
		}
		if f.check != nil {
			fmt.Fprintf(&b, "    check: {%s}\n", f.check.fields())
		}
		fmt.Fprintln(&b, "    nodes:")
		for _, n := range f.nodes {
			addr := n.addr.String()
			if n.addr.Port() == 0 {
				addr = n.addr.Addr().String()
			}
			fmt.Fprintf(&b, "      - {name: %q, address: %q", n.name, addr)
			if n.weight >= 0 && n.weight != 1 {
				fmt.Fprintf(&b, ", weight: %d", n.weight)
			}
			if n.max > 0 {
				fmt.Fprintf(&b, ", max-sessions: %d", n.max)
			}
			if n.backup {
				fmt.Fprint(&b, ", backup: true")
			}
			if n.admin != "" {
				fmt.Fprintf(&b, ", admin: %s", n.admin)
			}
			fmt.Fprintln(&b, "}")
		}
	}
	fmt.Fprintln(&b, "services:")
	for _, v := range s.services {
		fmt.Fprintf(&b, "  - {name: %q, vip: %q, protocol: %s, port: %s, farm: %q}\n", v.name, v.vip, v.proto, v.ports, v.farm)
	}
	return b.Bytes()
}

func (c *check) fields() string {
	out := []string{"method: " + c.method}
	add := func(key string, set bool, value any) {
		if set {
			out = append(out, fmt.Sprintf("%s: %v", key, value))
		}
	}
	add("port", c.port > 0, c.port)
	add("interval", c.interval > 0, c.interval)
	add("timeout", c.timeout > 0, c.timeout)
	add("rise", c.rise > 0, c.rise)
	add("fall", c.fall > 0, c.fall)
	add("path", c.path != "", strconv.Quote(c.path))
	add("host", c.host != "", strconv.Quote(c.host))
	add("query", c.query != "", strconv.Quote(c.query))
	add("user", c.user != "", strconv.Quote(c.user))
	add("status", len(c.status) > 0, "["+strings.Join(c.status, ", ")+"]")
	return strings.Join(out, ", ")
}

// same reports whether two checks are alike; nil only nil.
func (c *check) same(d *check) bool {
	if c == nil || d == nil {
		return c == d
	}
	return c.fields() == d.fields()
}

// unite gives a farm the check of its nodes, and notes when they differ.
func (s *setup) unite(f *farm, line int, checks []*check) {
	for i, c := range checks {
		if i == 0 {
			f.check = c
		} else if !f.check.same(c) {
			s.note(line, "farm %s: its servers have different checks; the first one's is used for all", f.name)
			break
		}
	}
}
