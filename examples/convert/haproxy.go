package main

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// section is a proxy of HAProxy's configuration.
type section struct {
	kind, name string
	line       int
	lines      []directive
}

type directive struct {
	words []string
	line  int
}

func (d directive) word(i int) string {
	if i < len(d.words) {
		return d.words[i]
	}
	return ""
}

// proxy is what a section says.
type proxy struct {
	section
	mode, balance, hash, backend string
	idle, stick                  time.Duration
	sticky                       bool
	check                        check
	binds                        []directive
	servers                      []directive
	defaults                     []string // of default-server
}

// fromHAProxy takes the proxies of mode tcp over. wildcard is the address that "*" stands for.
func fromHAProxy(text string, wildcard netip.Addr) (*setup, error) {
	s := &setup{}
	defaults := &proxy{mode: "tcp"} // HAProxy Configuration Manual, "mode"
	proxies := map[string]*proxy{}
	for _, sec := range sections(text) {
		switch sec.kind {
		case "defaults":
			defaults = s.proxy(sec, &proxy{mode: "tcp"})
		case "frontend", "backend", "listen":
			p := s.proxy(sec, defaults)
			if p.mode != "tcp" {
				s.note(sec.line, "%s %s is of mode %s and left out", sec.kind, sec.name, p.mode)
				continue
			}
			key := "front " + sec.name
			if sec.kind == "backend" {
				key = "back " + sec.name
			}
			proxies[key] = p
		case "global":
		default:
			s.note(sec.line, "%s is not taken over", strings.TrimSpace(sec.kind+" "+sec.name))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(proxies), func(a, b string) int { return proxies[a].line - proxies[b].line }) {
		p := proxies[key]
		if len(p.binds) == 0 {
			continue
		}
		back := p
		if p.kind == "frontend" {
			if back = proxies["back "+p.backend]; back == nil {
				s.note(p.line, "frontend %s has no default_backend of mode tcp and is left out", p.name)
				continue
			}
		}
		if !slices.ContainsFunc(s.farms, func(f *farm) bool { return f.name == word(back.name) }) {
			f := s.haproxyFarm(back, max(p.idle, back.idle))
			if f == nil {
				continue
			}
			s.farms = append(s.farms, f)
		}
		s.bind(p, word(back.name), wildcard)
	}
	return s, nil
}

func sections(text string) (all []section) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		w := words(line, "", "#")
		if len(w) == 0 {
			continue
		}
		if line[0] != ' ' && line[0] != '\t' && slices.Contains([]string{
			"global", "defaults", "frontend", "backend", "listen", "resolvers", "peers", "mailers", "userlist", "program", "cache", "ring", "http-errors", "log-forward",
		}, w[0]) {
			sec := section{kind: w[0], line: n}
			if len(w) > 1 {
				sec.name = w[1]
			}
			all = append(all, sec)
			continue
		}
		if len(all) > 0 {
			last := &all[len(all)-1]
			last.lines = append(last.lines, directive{w, n})
		}
	}
	return all
}

// proxy reads a section on top of the defaults.
func (s *setup) proxy(sec section, defaults *proxy) *proxy {
	p := *defaults
	p.section, p.binds, p.servers, p.defaults = sec, nil, nil, slices.Clone(defaults.defaults)
	for _, d := range sec.lines {
		switch d.word(0) {
		case "mode":
			p.mode = d.word(1)
		case "balance":
			p.balance = d.word(1)
		case "hash-type":
			p.hash = d.word(1)
		case "bind":
			p.binds = append(p.binds, d)
		case "server":
			p.servers = append(p.servers, d)
		case "default-server":
			p.defaults = append(p.defaults, d.words[1:]...)
		case "default_backend":
			p.backend = d.word(1)
		case "timeout":
			switch d.word(1) {
			case "client", "server", "tunnel":
				p.idle = max(p.idle, span(d.word(2)))
			case "check":
				p.check.timeout = span(d.word(2))
			}
		case "stick-table":
			for i, w := range d.words {
				if w == "expire" {
					p.stick = span(d.word(i + 1))
				}
			}
		case "stick":
			if p.sticky = slices.Contains(d.words, "src"); !p.sticky {
				s.note(d.line, "stickiness by other than the source is not taken over")
			}
		case "option":
			s.option(&p, d)
		case "log", "maxconn", "retries", "errorfile", "description", "id", "log-format", "http-reuse", "no":
		default:
			s.note(d.line, "%s is not taken over", d.word(0))
		}
	}
	return &p
}

// option reads the kinds of checks.
func (s *setup) option(p *proxy, d directive) {
	switch d.word(1) {
	case "httpchk":
		p.check.method = "http"
		switch uri := d.words[2:]; {
		case len(uri) == 1:
			p.check.path = uri[0]
		case len(uri) > 1:
			p.check.path = uri[1]
		}
	case "smtpchk":
		p.check.method = "smtp"
	case "mysql-check":
		p.check.method = "mysql"
		if d.word(2) == "user" {
			p.check.user = d.word(3)
		}
	case "pgsql-check":
		p.check.method = "postgresql"
		if d.word(2) == "user" {
			p.check.user = d.word(3)
		}
	case "redis-check":
		p.check.method = "redis"
	case "ldap-check":
		p.check.method = "ldap"
	case "ssl-hello-chk":
		p.check.method = "ssl"
	case "tcplog", "httplog", "dontlognull", "tcpka", "clitcpka", "srvtcpka", "dontlog-normal", "redispatch", "logasap", "splice-auto":
	default:
		s.note(d.line, "option %s is not taken over", d.word(1))
	}
}

// haproxyFarm makes a farm of a backend.
func (s *setup) haproxyFarm(p *proxy, idle time.Duration) *farm {
	f := &farm{name: word(p.name), mode: "server-per-session", forward: "nat", idle: idle}
	if p.sticky {
		f.mode = "entry-per-session"
		f.idle = max(idle, p.stick)
	}
	switch p.balance {
	case "", "roundrobin", "static-rr":
		f.metric = "roundrobin"
	case "leastconn":
		f.metric = "leastconns"
	case "source":
		f.metric = "hash"
		if p.hash == "consistent" {
			f.metric = "maglev"
		}
	case "random":
		f.metric = "randomtwo"
	default:
		s.note(p.line, "balance %s of %s: roundrobin takes its place", p.balance, p.name)
		f.metric = "roundrobin"
	}
	var checks []*check
	for _, d := range p.servers {
		if n, c := s.haproxyServer(p, f, d); n != nil {
			f.nodes = append(f.nodes, n)
			checks = append(checks, c)
		}
	}
	if len(f.nodes) == 0 {
		s.note(p.line, "%s has no servers with addresses and is left out", p.name)
		return nil
	}
	s.unite(f, p.line, checks)
	return f
}

// haproxyServer reads a line such as: server web1 10.0.0.1:80 check weight 10.
func (s *setup) haproxyServer(p *proxy, f *farm, d directive) (*node, *check) {
	addr, ok := haproxyAddress(d.word(2))
	if !ok {
		s.note(d.line, "server %s %s is not taken over: want an IP address", d.word(1), d.word(2))
		return nil, nil
	}
	if len(f.nodes) > 0 && f.nodes[0].addr.Addr().Is4() != addr.Addr().Is4() {
		s.note(d.line, "server %s is of the other address family and not taken over", d.word(1))
		return nil, nil
	}
	n := &node{name: f.nodeName(word(d.word(1))), addr: addr, weight: -1}
	c, checked := p.check, false
	if c.method == "" {
		c.method = "tcp"
	}
	args := slices.Concat(p.defaults, d.words[min(3, len(d.words)):])
	for _, word := range []string{"ssl", "send-proxy", "send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn"} {
		if slices.Contains(args, word) {
			s.note(d.line, "server %s is not taken over: it expects what HAProxy says by %s, and l4lb passes on what clients say", n.name, word)
			return nil, nil
		}
	}
	for i := 0; i < len(args); i++ {
		value := func() string {
			if i++; i < len(args) {
				return args[i]
			}
			return ""
		}
		number := func() int { v, _ := strconv.Atoi(value()); return v }
		switch args[i] {
		case "check":
			checked = true
		case "no-check":
			checked = false
		case "weight":
			n.weight = number()
		case "maxconn":
			n.max = number()
		case "backup":
			n.backup = true
		case "disabled":
			n.admin = "disabled"
		case "inter":
			c.interval = span(value())
		case "rise":
			c.rise = number()
		case "fall":
			c.fall = number()
		case "port":
			c.port = uint16(number()) //nolint:gosec // a port
		case "fastinter", "downinter", "id", "cookie", "slowstart", "on-marked-down", "on-error", "error-limit", "resolvers", "init-addr", "agent-port", "agent-inter", "agent-send", "agent-addr", "ca-file", "verify", "sni":
			s.note(d.line, "%s of server %s is not taken over", args[i], n.name)
			i++
		default:
			s.note(d.line, "%s of server %s is not taken over", args[i], n.name)
		}
	}
	if !checked {
		return n, nil
	}
	return n, &c
}

// haproxyAddress reads the address of a server: behind the last colon stands the port, also after an IPv6 address without brackets (HAProxy
// Configuration Manual, "Address formats").
func haproxyAddress(text string) (netip.AddrPort, bool) {
	host, port, _ := cutLast(strings.TrimPrefix(strings.TrimPrefix(text, "ipv4@"), "ipv6@"), ":")
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	n, err2 := uint64(0), error(nil)
	if port != "" {
		n, err2 = strconv.ParseUint(port, 10, 16)
	}
	return netip.AddrPortFrom(a, uint16(n)), err == nil && err2 == nil
}

// bind makes services of the addresses a proxy listens on.
func (s *setup) bind(p *proxy, farm string, wildcard netip.Addr) {
	for _, d := range p.binds {
		if at := slices.IndexFunc(d.words, func(w string) bool { return w == "ssl" || w == "accept-proxy" }); at > 0 {
			s.note(d.line, "bind %s is not taken over: l4lb passes on what clients say, and cannot do what %s asks for", d.word(1), d.words[at])
			continue
		}
		if len(d.words) > 2 {
			s.note(d.line, "%s of bind is not taken over", strings.Join(d.words[2:], " "))
		}
		for _, text := range strings.Split(d.word(1), ",") {
			host, port, ok := cutLast(text, ":")
			host = strings.Trim(strings.TrimPrefix(strings.TrimPrefix(host, "ipv4@"), "ipv6@"), "[]")
			addr, err := netip.ParseAddr(host)
			if host == "" || host == "*" || err == nil && addr.IsUnspecified() {
				if addr = wildcard; !addr.IsValid() {
					s.note(d.line, "bind %s names no address: give the virtual one by -vip", text)
					continue
				}
			} else if err != nil {
				s.note(d.line, "bind %s is not taken over: want an IP address", text)
				continue
			}
			first, last, ranged := strings.Cut(port, "-")
			n, err := strconv.ParseUint(first, 10, 16)
			m, err2 := n, error(nil)
			if ranged {
				m, err2 = strconv.ParseUint(last, 10, 16)
			}
			if !ok || err != nil || err2 != nil || n == 0 || m < n {
				s.note(d.line, "bind %s is not taken over: want a port", text)
				continue
			}
			name := s.serviceName(word(p.name))
			s.services = append(s.services, &service{name: name, vip: addr, proto: "tcp", ports: port, farm: farm, line: d.line})
		}
	}
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// span reads a time of HAProxy's: milliseconds without a unit.
func span(text string) time.Duration {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(n) * time.Millisecond
	}
	if n, ok := strings.CutSuffix(text, "d"); ok {
		v, _ := strconv.ParseUint(n, 10, 16)
		return time.Duration(v) * 24 * time.Hour
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0
	}
	return d
}
