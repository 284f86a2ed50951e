package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
)

// config is the file, version 1.
type config struct {
	Version  int                         `yaml:"version,required" doc:"Version of the format: 1."`
	Listen   string                      `yaml:"listen" doc:"Address and port of the status page, /status.json, /metrics for Prometheus and /up/NAME, which answers 200 or 503." default:"none"`
	Checks   map[string]*check           `yaml:"checks,required" doc:"What is checked, by name."`
	Policies map[string]healthcheck.Expr `yaml:"policies" doc:"Boolean expressions over checks and other policies, by name, such as (web1 OR web2) AND NOT maint."`
	Agents   []agent                     `yaml:"agents" doc:"Answers to HAProxy's agent-check."`
	Files    []file                      `yaml:"files" doc:"Files with a number, for keepalived's track_file."`
}

// agent is an answer to agent checks.
type agent struct {
	Listen string `yaml:"listen,required" doc:"Address and port."`
	Of     string `yaml:"of" doc:"Check or policy to tell about." default:"the one whose name the asker sends in a line, as agent-send does"`
}

// file is a file that keepalived watches.
type file struct {
	Path string `yaml:"path,required" doc:"Where the file is."`
	Of   string `yaml:"of,required" doc:"Check or policy to tell about."`
	Up   int    `yaml:"up" doc:"Number while it is up." default:"0"`
	Down *int   `yaml:"down" doc:"Number while it is down; with weight 0 keepalived takes any but 0 for a fault." default:"1"`
}

func (f file) number(t healthcheck.Truth) int {
	switch {
	case t == healthcheck.IsUp:
		return f.Up
	case f.Down != nil:
		return *f.Down
	}
	return 1
}

// endpoint is a host, which may be a name, with or without a port.
type endpoint struct {
	host string
	port uint16
}

func (e *endpoint) UnmarshalText(b []byte) error {
	s := string(b)
	if a, err := netip.ParseAddr(s); err == nil {
		e.host = a.String()
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = s, "0"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || len(host) > 253 {
		return fmt.Errorf("%q: want an address and port such as 10.0.0.1:80, [2001:db8::1]:80 or mail.example:25", s)
	}
	e.host, e.port = host, uint16(n)
	return nil
}

func (e endpoint) String() string {
	if e.port == 0 {
		return e.host
	}
	return net.JoinHostPort(e.host, strconv.Itoa(int(e.port)))
}

// resolve looks the host up if it is a name.
func (e endpoint) resolve(ctx context.Context) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(e.host); err == nil {
		return netip.AddrPortFrom(a, e.port), nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", e.host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(addrs) == 0 {
		return netip.AddrPort{}, fmt.Errorf("%s has no address", e.host)
	}
	return netip.AddrPortFrom(addrs[0].Unmap(), e.port), nil
}

// load reads and checks a file. All faults come at once, each with its place.
func load(name string) (*config, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	c, err := decode(data)
	return c, conf.InFile(name, err)
}

func decode(data []byte) (*config, error) {
	c := &config{}
	f, _ := conf.Decode(data, c) // its faults come with those of validate
	c.validate(f)
	return c, f.Err()
}

// validate finds what the types cannot say.
func (c *config) validate(f *conf.File) {
	f.Version(c.Version)
	for _, name := range slices.Sorted(maps.Keys(c.Checks)) {
		if k := c.Checks[name]; k != nil {
			if err := k.settle(); err != nil {
				f.Add("checks."+name, "%v", err)
				continue
			}
			for _, err := range k.faults(name) {
				f.Add("checks."+name, "%v", err)
			}
		}
	}
	known := slices.Sorted(maps.Keys(c.Checks))
	// A policy that could not be read has its fault already, and counts as an element for those that name it.
	broken := func(name string) bool { return f.Faulty("policies." + name) }
	if _, err := c.compile(broken); err != nil {
		f.Add("policies", "%v", err)
	}
	known = append(known, slices.Sorted(maps.Keys(c.Policies))...)
	of := func(path, name string) {
		if name != "" && !slices.Contains(known, name) {
			f.Add(path+".of", "%q: want one of %v", name, known)
		}
	}
	at := map[string]string{}
	listen := func(path, address string) {
		if address == "" {
			return
		}
		if _, port, err := net.SplitHostPort(address); err != nil || !isPort(port) {
			f.Add(path, "%q: want an address and port such as 127.0.0.1:9180 or :9180", address)
		}
		if other, ok := at[address]; ok {
			f.Add(path, "%q is that of %s too", address, other)
		}
		at[address] = path
	}
	listen("listen", c.Listen)
	for i, a := range c.Agents {
		listen(fmt.Sprintf("agents[%d].listen", i), a.Listen)
		of(fmt.Sprintf("agents[%d]", i), a.Of)
	}
	seen := map[string]int{}
	for i, x := range c.Files {
		path := fmt.Sprintf("files[%d]", i)
		of(path, x.Of)
		if j, ok := seen[x.Path]; ok {
			f.Add(path+".path", "%q is the path of files[%d] too", x.Path, j)
		}
		seen[x.Path] = i
		// keepalived's track_file counts from -254 to 254.
		if x.Up < -254 || x.Up > 254 || x.number(healthcheck.IsDown) < -254 || x.number(healthcheck.IsDown) > 254 {
			f.Add(path, "up %d, down %d: want -254 to 254", x.Up, x.number(healthcheck.IsDown))
		}
	}
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// faults lists what is wrong with a check.
func (c *check) faults(name string) []error {
	p, err := c.prober(nil)
	if err != nil {
		return []error{err}
	}
	if needs := c.Method != healthcheck.ICMP && c.Method != healthcheck.Command; needs && c.Target.host != "" && c.Target.port == 0 {
		return []error{fmt.Errorf("target %v: method %v needs a port", c.Target, c.Method)}
	}
	hc := c.check(name, netip.MustParseAddrPort("192.0.2.1:1"), p)
	if err := hc.Validate(); err != nil {
		return []error{err}
	}
	return nil
}

func (c *check) check(name string, target netip.AddrPort, p healthcheck.Prober) healthcheck.Check {
	of := healthcheck.PortCheck{}
	if c.comesUpByTwo() {
		of.Method = c.Method
	}
	return of.WithDefaults(healthcheck.Check{
		ID: name, Target: target, Prober: p, Interval: c.Interval, FastInterval: c.FastInterval,
		Timeout: c.Timeout, Rise: c.Rise, Fall: c.Fall, HoldDown: c.HoldDown,
	})
}

// compile compiles the policies. If broken is not nil, it says which of them count as elements.
func (c *config) compile(broken func(name string) bool) (*healthcheck.Policies, error) {
	elements := slices.Sorted(maps.Keys(c.Checks))
	var policies []healthcheck.Policy
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		if broken != nil && broken(name) {
			if c.Checks[name] == nil {
				elements = append(elements, name)
			}
			continue
		}
		policies = append(policies, healthcheck.Policy{Name: name, Expr: c.Policies[name]})
	}
	return healthcheck.CompilePolicies(elements, policies...)
}

// checks resolves the targets and makes the checks of the monitor. A name that cannot be resolved fails its check
// and no other.
func (c *config) checks(ctx context.Context) (checks []healthcheck.Check, err error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Checks)) {
		k := c.Checks[name]
		p, err := k.prober(nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		target, err := k.Target.resolve(ctx)
		if err != nil {
			target, p = netip.AddrPortFrom(netip.IPv4Unspecified(), k.Target.port), healthcheck.FailWith(fmt.Errorf("%v: %w", k.Target, err))
		}
		checks = append(checks, k.check(name, target, p))
	}
	return checks, errors.Join(errs...)
}

// exampleFile is the file of healthd example.
const exampleFile = `# healthd: two web servers, a database, and what they are together.
version: 1
listen: 127.0.0.1:9180            # status page, /status.json, /metrics, /up/NAME
checks:
  web1: {method: http, target: "10.0.0.11:8080", path: /health, interval: 2s}
  web2: {method: http, target: "10.0.0.12:8080", path: /health, interval: 2s}
  mail: {target: "10.0.0.30:25"}  # no method: that of the port, smtp
  db: {method: postgresql, target: "10.0.0.20:5432", fall: 2}
policies:
  web: web1 OR web2
  shop: web AND db
agents:
  - {listen: "127.0.0.1:9181"}    # HAProxy: agent-check agent-port 9181 agent-send "web1\n"
files:
  - {path: /run/healthd.shop, of: shop}   # keepalived: track_file
`
