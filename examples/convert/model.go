package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/policy"
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

// nodeName is unique among the farm's nodes.
func (f *farm) nodeName(name string) string {
	return unique(name, func(name string) bool {
		return slices.ContainsFunc(f.nodes, func(n *node) bool { return n.name == name })
	})
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
	line  int // of the file it comes from
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

// farmName is a name, or one with a number behind it if a farm has it already.
func (s *setup) farmName(name string) string {
	return unique(name, func(name string) bool {
		return slices.ContainsFunc(s.farms, func(f *farm) bool { return f.name == name })
	})
}

func (s *setup) serviceName(name string) string {
	return unique(name, func(name string) bool {
		return slices.ContainsFunc(s.services, func(v *service) bool { return v.name == name })
	})
}

func unique(name string, taken func(string) bool) string {
	for i := 1; ; i++ {
		n := name
		if i > 1 {
			n = fmt.Sprintf("%s-%d", name, i)
		}
		if !taken(n) {
			return n
		}
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

// is4 reports the address family of a farm's servers.
func (f *farm) is4() bool { return f.nodes[0].addr.Addr().Is4() }

// families leaves out the services whose servers are of the other address family, since nothing translates between the two, and farms that
// no service is left of.
func (s *setup) families() {
	farms := map[string]*farm{}
	for _, f := range s.farms {
		farms[f.name] = f
	}
	used := map[string]bool{}
	s.services = slices.DeleteFunc(s.services, func(v *service) bool {
		f := farms[v.farm]
		if f.forward != "tunnel" && f.is4() != v.vip.Is4() {
			s.note(v.line, "service %s at %v is left out: its servers, such as %v, are of the other address family", v.name, v.vip, f.nodes[0].addr.Addr())
			return true
		}
		return false
	})
	s.distinct()
	for _, v := range s.services {
		used[v.farm] = true
	}
	s.farms = slices.DeleteFunc(s.farms, func(f *farm) bool { return !used[f.name] })
	s.dsr = slices.ContainsFunc(s.farms, func(f *farm) bool { return f.forward == "dsr" })
}

// distinct leaves out services for packets of a service before them, which l4lb refuses: the same address and port, or a port range that
// begins in the other and ends outside. HAProxy listens on the IPv4 and the IPv6 of all addresses by two lines, which are one address here.
func (s *setup) distinct() {
	var kept []*service
	for _, v := range s.services {
		at := slices.IndexFunc(kept, func(w *service) bool { return collide(v, w) })
		if at < 0 {
			kept = append(kept, v)
			continue
		}
		s.note(v.line, "service %s at %v, port %s, is left out: line %d has that already", v.name, v.vip, v.ports, kept[at].line)
	}
	s.services = kept
}

// collide reports whether two services are for the same packets, or for some in common without that one's are part of the other's.
func collide(v, w *service) bool {
	a, err := v.match()
	b, err2 := w.match()
	r := a.Relate(b)
	return err == nil && err2 == nil && (r == policy.Equal || r == policy.Overlapping)
}

func (v *service) match() (m policy.Match, err error) {
	m.Dst = netip.PrefixFrom(v.vip, v.vip.BitLen())
	return m, errors.Join(m.Protocol.UnmarshalText([]byte(v.proto)), m.DstPort.UnmarshalText([]byte(v.ports)))
}

// fits says what the command line lacks for the farms there are.
func (s *setup) fits(o options) error {
	var errs []error
	name := map[bool]string{true: "IPv4", false: "IPv6"}
	for _, f := range s.farms {
		of := func(a netip.Addr) bool { return a.Is4() == f.is4() }
		if f.forward == "nat" && len(o.locals) > 0 && !slices.ContainsFunc(o.locals, of) {
			errs = append(errs, fmt.Errorf("-local %s: the servers of farm %s, such as %v, are of the other address family: want an %s address, too", list(o.locals), f.name, f.nodes[0].addr.Addr(), name[f.is4()]))
		}
		if f.forward == "tunnel" && len(o.addresses) > 0 && !slices.ContainsFunc(o.addresses, of) {
			errs = append(errs, fmt.Errorf("-addresses %s: the tunnels to the servers of farm %s, such as %v, are of the other address family: want an %s address, too", list(o.addresses), f.name, f.nodes[0].addr.Addr(), name[f.is4()]))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cli.Usage("%v", err)
	}
	if len(o.addresses) == 0 && slices.ContainsFunc(s.farms, func(f *farm) bool { return f.forward == "tunnel" }) {
		s.notes = append(s.notes, "device.addresses is missing: tunnels come from addresses of the balancer's; -addresses puts them there")
	}
	return nil
}

func list(addrs []netip.Addr) string {
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return strings.Join(all, ",")
}

// device is the line of the file about it.
func (s *setup) device(o options) string {
	kind, name, why := "tun", "eth1", "those to the servers, whose default route is this machine"
	if s.dsr {
		kind, name, why = "afpacket", "eth0", "all interfaces to clients and servers"
	}
	if len(o.interfaces) > 0 {
		name = strings.Join(o.interfaces, ", ")
	}
	text := fmt.Sprintf("device: {type: %s, interfaces: [%s]", kind, name)
	if len(o.addresses) > 0 {
		var all []string
		for _, a := range o.addresses {
			all = append(all, strconv.Quote(a.String()))
		}
		text += ", addresses: [" + strings.Join(all, ", ") + "]"
	}
	return fmt.Sprintf("%-46s # %s", text+"}", why)
}

// yaml writes the setup as a file of l4lb.
func (s *setup) yaml(from string, o options) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Made from %s. Look at what follows before you use it: convert takes over the common part only.\n", from)
	for _, n := range s.notes {
		fmt.Fprintf(&b, "# - %s\n", n)
	}
	fmt.Fprintln(&b, "version: 1")
	fmt.Fprintln(&b, s.device(o))
	fmt.Fprintln(&b, "farms:")
	for _, f := range s.farms {
		fmt.Fprintf(&b, "  %s:\n    metric: %s\n    mode: %s\n", strconv.Quote(f.name), f.metric, f.mode)
		switch {
		case f.forward == "nat" && len(o.locals) > 0:
			var of []string
			for _, a := range o.locals {
				if a.Is4() == f.is4() {
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
