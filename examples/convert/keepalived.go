package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// stanza is a line of keepalived's configuration with the block behind it, if it has one.
type stanza struct {
	words []string
	body  []*stanza
	line  int
}

// word returns the i-th word; "" if there is none.
func (t *stanza) word(i int) string {
	if i < len(t.words) {
		return t.words[i]
	}
	return ""
}

func (t *stanza) number(i int) int {
	n, _ := strconv.Atoi(t.word(i))
	return n
}

func (t *stanza) seconds(i int) time.Duration {
	f, err := strconv.ParseFloat(t.word(i), 64)
	if err != nil || f < 0 || f > 1e6 {
		return 0
	}
	return time.Duration(f * float64(time.Second))
}

// parseKeepalived reads the syntax: words in lines, blocks in braces, comments from ! or #.
func parseKeepalived(text string) ([]*stanza, error) {
	top := &stanza{}
	open := []*stanza{top}
	n := 0
	for line := range strings.Lines(text) {
		n++
		last := func() *stanza { return open[len(open)-1] }
		t := &stanza{line: n}
		flush := func() {
			if len(t.words) > 0 {
				last().body = append(last().body, t)
				t = &stanza{line: n}
			}
		}
		for _, w := range words(line, "{}", "!#") {
			switch w {
			case "{":
				if len(t.words) == 0 { // its head stands in the line before
					b := last().body
					if len(b) == 0 {
						return nil, fmt.Errorf("line %d: { without a name before it", n)
					}
					open = append(open, b[len(b)-1])
					continue
				}
				head := t
				flush()
				open = append(open, head)
			case "}":
				flush()
				if len(open) == 1 {
					return nil, fmt.Errorf("line %d: } without {", n)
				}
				open = open[:len(open)-1]
			default:
				t.words = append(t.words, w)
			}
		}
		flush()
	}
	if len(open) > 1 {
		return nil, fmt.Errorf("line %d: { without }", open[len(open)-1].line)
	}
	return top.body, nil
}

// words splits a line at blanks; quotes keep them, every byte of alone is a word, and one of comment ends the line.
func words(line, alone, comment string) (out []string) {
	cur, quoted, has := "", byte(0), false
	end := func() {
		if has {
			out = append(out, cur)
		}
		cur, has = "", false
	}
	for i := range len(line) {
		c := line[i]
		switch {
		case quoted != 0 && c == quoted:
			quoted = 0
		case quoted != 0:
			cur += line[i : i+1]
		case c == '"' || c == '\'':
			quoted, has = c, true
		case strings.IndexByte(comment, c) >= 0:
			end()
			return out
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			end()
		case strings.IndexByte(alone, c) >= 0:
			end()
			out = append(out, string(c))
		default:
			cur, has = cur+line[i:i+1], true
		}
	}
	end()
	return out
}

// fromKeepalived takes the virtual servers over.
func fromKeepalived(text string) (*setup, error) {
	top, err := parseKeepalived(text)
	if err != nil {
		return nil, err
	}
	s := &setup{}
	groups := map[string]*stanza{}
	for _, t := range top {
		if t.word(0) == "virtual_server_group" {
			groups[t.word(1)] = t
		}
	}
	for _, t := range top {
		switch t.word(0) {
		case "virtual_server":
			s.virtualServer(t, groups)
		case "virtual_server_group", "global_defs":
		case "include":
			s.note(t.line, "include %s is not read", t.word(1))
		default:
			if strings.HasPrefix(t.word(0), "vrrp") || strings.HasPrefix(t.word(0), "static_") || t.word(0) == "bfd_instance" {
				s.note(t.line, "%s stays with keepalived", strings.Join(t.words, " "))
			} else {
				s.note(t.line, "%s is not taken over", t.word(0))
			}
		}
	}
	return s, nil
}

// addresses lists what a virtual server stands for.
func (s *setup) addresses(t *stanza, groups map[string]*stanza) (all []netip.AddrPort) {
	one := func(line int, addr, port string) {
		a, err := netip.ParseAddr(addr)
		p, err2 := strconv.ParseUint(port, 10, 16)
		if err != nil || err2 != nil {
			s.note(line, "%s %s is not taken over: want an address and a port", addr, port)
			return
		}
		all = append(all, netip.AddrPortFrom(a, uint16(p)))
	}
	switch t.word(1) {
	case "fwmark":
		s.note(t.line, "virtual_server fwmark %s is not taken over: name the addresses it stands for", t.word(2))
	case "group":
		g := groups[t.word(2)]
		if g == nil {
			s.note(t.line, "virtual_server_group %s is not there", t.word(2))
			return nil
		}
		for _, x := range g.body {
			one(x.line, x.word(0), x.word(1))
		}
	default:
		one(t.line, t.word(1), t.word(2))
	}
	return all
}

func (s *setup) virtualServer(t *stanza, groups map[string]*stanza) {
	vips := s.addresses(t, groups)
	if len(vips) == 0 {
		return
	}
	proto := "tcp"
	f := &farm{name: s.farmName(word(strings.Join(t.words[1:], "-"))), metric: "leastconns", mode: "server-per-session", forward: "nat"}
	var checks []*check
	interval, weighted := time.Duration(0), true
	for _, x := range t.body {
		switch x.word(0) {
		case "delay_loop":
			interval = x.seconds(1)
		case "protocol":
			proto = strings.ToLower(x.word(1))
		case "lb_algo", "lvs_sched":
			f.metric, weighted = s.scheduler(x.line, x.word(1))
		case "lb_kind", "lvs_method":
			switch x.word(1) {
			case "DR":
				f.forward, s.dsr = "dsr", true
			case "TUN":
				f.forward = "tunnel"
			}
		case "persistence_timeout":
			f.mode, f.idle = "entry-per-session", x.seconds(1)
			if f.idle == 0 {
				f.idle = 6 * time.Minute // keepalived.conf(5)
			}
		case "sorry_server":
			if n := s.server(x, f, len(f.nodes)); n != nil {
				n.backup = true
				f.nodes = append(f.nodes, n)
			}
		case "real_server":
			n := s.server(x, f, len(f.nodes))
			if n == nil {
				continue
			}
			f.nodes = append(f.nodes, n)
			checks = append(checks, s.realServer(x, n, vips[0].Port()))
		default:
			s.note(x.line, "%s is not taken over", strings.Join(x.words, " "))
		}
	}
	if len(f.nodes) == 0 {
		s.note(t.line, "virtual_server %s has no servers and is left out", strings.Join(t.words[1:], " "))
		return
	}
	for _, n := range f.nodes {
		if !weighted {
			n.weight = -1 // the scheduler does not look at weights
		}
		// Past the balancer, servers see the port that the client asked for.
		if f.forward != "nat" {
			n.addr = netip.AddrPortFrom(n.addr.Addr(), 0)
		}
	}
	s.unite(f, t.line, checks)
	if f.check != nil {
		f.check.interval = interval
		if f.check.port == 0 && f.forward != "nat" && f.check.method != "icmp" {
			f.check.port = vips[0].Port()
		}
	}
	s.farms = append(s.farms, f)
	for _, v := range vips {
		name := s.serviceName(f.name)
		s.services = append(s.services, &service{name: name, vip: v.Addr(), proto: proto, ports: ports(v.Port()), farm: f.name, line: t.line})
	}
}

func ports(p uint16) string {
	if p == 0 {
		return "any"
	}
	return strconv.Itoa(int(p))
}

// scheduler names the metric for one of IPVS's schedulers.
func (s *setup) scheduler(line int, name string) (metric string, weighted bool) {
	switch name {
	case "rr":
		return "roundrobin", false
	case "wrr":
		return "roundrobin", true
	case "lc":
		return "leastconns", false
	case "wlc":
		return "leastconns", true
	case "sh":
		return "hash", true
	case "mh":
		return "maglev", true
	}
	s.note(line, "scheduler %s: leastconns takes its place", name)
	return "leastconns", true
}

// server reads the address of a real or sorry server.
func (s *setup) server(t *stanza, f *farm, i int) *node {
	a, err := netip.ParseAddr(t.word(1))
	p, err2 := strconv.ParseUint(t.word(2), 10, 16)
	if t.word(2) == "" {
		p, err2 = 0, nil
	}
	if err != nil || err2 != nil {
		s.note(t.line, "%s is not taken over: want an address and a port", strings.Join(t.words, " "))
		return nil
	}
	if i > 0 && f.nodes[0].addr.Addr().Is4() != a.Is4() {
		s.note(t.line, "%s is of the other address family and not taken over", t.word(1))
		return nil
	}
	return &node{name: fmt.Sprintf("s%d", i+1), addr: netip.AddrPortFrom(a, uint16(p)), weight: -1}
}

func (s *setup) realServer(t *stanza, n *node, port uint16) *check {
	var c *check
	for _, x := range t.body {
		switch x.word(0) {
		case "weight":
			n.weight = x.number(1)
		case "uthreshold":
			n.max = x.number(1)
		case "HTTP_GET", "SSL_GET", "TCP_CHECK", "SMTP_CHECK", "DNS_CHECK", "UDP_CHECK", "PING_CHECK":
			if c != nil {
				s.note(x.line, "only the first check of a server is used")
				continue
			}
			c = s.keepalivedCheck(x, n)
		default:
			s.note(x.line, "%s is not taken over", strings.Join(x.words, " "))
		}
	}
	if c != nil && c.port == port && n.addr.Port() == port {
		c.port = 0
	}
	return c
}

func (s *setup) keepalivedCheck(t *stanza, n *node) *check {
	c := &check{method: map[string]string{
		"HTTP_GET": "http", "SSL_GET": "ssl-complete", "TCP_CHECK": "tcp", "SMTP_CHECK": "smtp", "DNS_CHECK": "dns", "UDP_CHECK": "udp", "PING_CHECK": "icmp",
	}[t.word(0)]}
	urls := 0
	for _, x := range t.body {
		switch x.word(0) {
		case "connect_timeout", "timeout":
			c.timeout = x.seconds(1)
		case "connect_port":
			if p := uint16(x.number(1)); p != n.addr.Port() { //nolint:gosec // a port
				c.port = p
			}
		case "retry", "nb_get_retry":
			c.fall = x.number(1) + 1
		case "virtualhost":
			c.host = x.word(1)
		case "name":
			c.query = x.word(1)
		case "url":
			if urls++; urls > 1 {
				s.note(x.line, "only the first url of a check is used")
				continue
			}
			for _, y := range x.body {
				switch y.word(0) {
				case "path":
					c.path = y.word(1)
				case "virtualhost":
					c.host = y.word(1)
				case "status_code":
					c.status = y.words[1:]
				default:
					s.note(y.line, "%s is not taken over", y.word(0))
				}
			}
		default:
			s.note(x.line, "%s of %s is not taken over", x.word(0), t.word(0))
		}
	}
	return c
}
