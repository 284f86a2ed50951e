package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// fromIPVS reads what "ipvsadm -S -n" prints, and scripts of such commands: -A or --add-service begins a virtual service, -a or --add-server
// adds a real server to one (ipvsadm(8)).
func fromIPVS(text string) (*setup, error) {
	s := &setup{}
	farms := map[string]*ipvsService{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		w := strings.Fields(strings.SplitN(line, "#", 2)[0])
		if len(w) > 0 && strings.HasSuffix(w[0], "ipvsadm") {
			w = w[1:]
		}
		if len(w) == 0 {
			continue
		}
		c, err := ipvsCommand(w)
		switch {
		case err != nil:
			s.note(n, "%s is not taken over: %v", strings.Join(w, " "), err)
			if _, known := farms[c.key]; c.add && !known {
				farms[c.key] = nil // its servers go without a note each
			}
		case c.add:
			s.addIPVS(n, c, farms)
		case c.server.IsValid():
			if v, known := farms[c.key]; v != nil {
				v.addServer(s, n, c)
			} else if !known {
				s.note(n, "%s is not taken over: no line adds its service", strings.Join(w, " "))
			}
		}
	}
	for _, v := range s.services {
		if f := farms[v.proto+" "+ipvsKey(v)].farm; len(f.nodes) > 0 {
			s.farms = append(s.farms, f)
		}
	}
	kept := s.services[:0]
	for _, v := range s.services {
		if of := farms[v.proto+" "+ipvsKey(v)]; len(of.farm.nodes) == 0 {
			s.note(of.line, "service %s has no servers and is left out", v.name)
		} else {
			kept = append(kept, v)
		}
	}
	s.services = kept
	return s, nil
}

// ipvsService is a virtual service whose servers follow.
type ipvsService struct {
	line     int
	farm     *farm
	weighted bool
	port     uint16
}

func ipvsKey(v *service) string {
	port, _ := strconv.ParseUint(v.ports, 10, 16) // "any" is 0
	return netip.AddrPortFrom(v.vip, uint16(port)).String()
}

// ipvsLine is a command.
type ipvsLine struct {
	add                      bool // a service, else a server
	proto                    string
	key                      string // protocol and address of the service
	vip, server              netip.AddrPort
	scheduler, forward, tune string
	weight, max              int
	persistent               time.Duration
	left                     []string // options that are not taken over
}

func ipvsCommand(w []string) (c ipvsLine, err error) {
	c.scheduler, c.forward, c.weight = "wlc", "dsr", -1 // ipvsadm(8): the defaults
	switch w[0] {
	case "-A", "--add-service":
		c.add = true
	case "-a", "--add-server":
	default:
		return c, fmt.Errorf("want -A or -a")
	}
	for i := 1; i < len(w); i++ {
		option, value, inline := strings.Cut(w[i], "=")
		whole := w[i]
		next := func() string {
			if inline {
				return value
			}
			if i+1 < len(w) && !strings.HasPrefix(w[i+1], "-") {
				i++
				return w[i]
			}
			return ""
		}
		switch option {
		case "-t", "--tcp-service", "-u", "--udp-service", "--sctp-service":
			c.proto = map[byte]string{'t': "tcp", 'u': "udp", 's': "sctp"}[strings.TrimLeft(option, "-")[0]]
			address := next()
			c.key = c.proto + " " + address
			if c.vip, err = ipvsAddress(address); err != nil {
				return c, err
			}
			c.key = c.proto + " " + c.vip.String()
		case "-f", "--fwmark-service":
			c.key = "fwmark " + next()
			err = fmt.Errorf("a firewall mark says nothing of addresses")
		case "-s", "--scheduler":
			c.scheduler = next()
		case "-p", "--persistent":
			c.persistent = 300 * time.Second // ipvsadm(8): the default
			if t := next(); t != "" {
				seconds, bad := strconv.ParseUint(t, 10, 31)
				if bad != nil {
					return c, fmt.Errorf("%s %s: want seconds", option, t)
				}
				c.persistent = time.Duration(seconds) * time.Second
			}
		case "-r", "--real-server":
			if c.server, err = ipvsAddress(next()); err != nil {
				return c, err
			}
		case "-g", "--gatewaying":
			c.forward = "dsr"
		case "-i", "--ipip":
			c.forward = "tunnel"
		case "-m", "--masquerading":
			c.forward = "nat"
		case "-w", "--weight", "-x", "--u-threshold":
			text := next()
			number, bad := strconv.ParseUint(text, 10, 31)
			if bad != nil {
				return c, fmt.Errorf("%s %s: want a number", option, text)
			}
			if option == "-w" || option == "--weight" {
				c.weight = int(number)
			} else {
				c.max = int(number)
			}
		case "--tun-type":
			if c.tune = next(); c.tune != "ipip" {
				c.left = append(c.left, option+" "+c.tune)
			}
		case "-n", "--numeric", "-6", "--ipv6":
		default:
			if !inline {
				whole = strings.TrimSpace(whole + " " + next())
			}
			c.left = append(c.left, whole)
		}
	}
	switch {
	case err != nil:
	case !c.vip.IsValid():
		err = fmt.Errorf("no service in it")
	case !c.add && !c.server.IsValid():
		err = fmt.Errorf("no real server in it")
	}
	return c, err
}

// ipvsAddress reads an address with or without a port.
func ipvsAddress(text string) (netip.AddrPort, error) {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return ap, nil
	}
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: want an address, as ipvsadm -S -n prints", text)
	}
	return netip.AddrPortFrom(a, 0), nil
}

func (s *setup) addIPVS(line int, c ipvsLine, farms map[string]*ipvsService) {
	f := &farm{name: word(fmt.Sprintf("%v-%s-%s", c.vip.Addr(), c.proto, ports(c.vip.Port()))), mode: "server-per-session"}
	v := &ipvsService{line: line, farm: f, port: c.vip.Port()}
	f.metric, v.weighted = s.scheduler(line, c.scheduler)
	if c.persistent > 0 {
		f.mode, f.idle = "entry-per-session", c.persistent
	}
	for _, o := range c.left {
		s.note(line, "%s is not taken over", o)
	}
	if farms[c.key] != nil {
		s.note(line, "%s is added twice; the first one is used", c.key)
		return
	}
	farms[c.key] = v
	s.services = append(s.services, &service{name: f.name, vip: c.vip.Addr(), proto: c.proto, ports: ports(c.vip.Port()), farm: f.name, line: line})
}

func (v *ipvsService) addServer(s *setup, line int, c ipvsLine) {
	f := v.farm
	for _, o := range c.left {
		s.note(line, "%s is not taken over", o)
	}
	if len(f.nodes) > 0 && f.forward != c.forward {
		s.note(line, "server %v gets packets otherwise than the first one of its service, and is not taken over", c.server)
		return
	}
	if len(f.nodes) > 0 && f.nodes[0].addr.Addr().Is4() != c.server.Addr().Is4() {
		s.note(line, "server %v is of the other address family and not taken over", c.server)
		return
	}
	if f.forward = c.forward; f.forward == "dsr" {
		s.dsr = true
	}
	n := &node{name: fmt.Sprintf("s%d", len(f.nodes)+1), addr: c.server, weight: c.weight, max: c.max}
	if !v.weighted && n.weight != 0 {
		n.weight = -1 // the scheduler does not look at weights, but at 0
	}
	// Past the balancer, servers see the port that the client asked for.
	if f.forward != "nat" {
		n.addr = netip.AddrPortFrom(n.addr.Addr(), 0)
	}
	f.nodes = append(f.nodes, n)
}
