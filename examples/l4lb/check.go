package main

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// check is how something is checked.
type check struct {
	Method   healthcheck.Method `yaml:"method" doc:"Protocol of the check." default:"that of the port: ftp for 21, telnet for 23, smtp for 25, http for 80, pop3 for 110, nntp for 119, imap4 for 143, ldap for 389, ssl for 443, rtsp for 554, mms for 1755, pnm for 7070, dns for 53 and radius for 1812 and 1645 where the farm's services are udp; else tcp or udp"`
	Port     uint16             `yaml:"port" doc:"Port to check, where it is not the node's." default:"the node's"`
	Interval time.Duration      `yaml:"interval" doc:"Time between checks." default:"5s"`
	Timeout  time.Duration      `yaml:"timeout" doc:"Time one check may take." default:"the interval"`
	Rise     int                `yaml:"rise" doc:"Passes in a row until a node is up." default:"1"`
	Fall     int                `yaml:"fall" doc:"Failures in a row until a node is down." default:"3"`
	HoldDown time.Duration      `yaml:"hold-down" doc:"How long a node that failed must stay good." default:"0s"`

	Path       string        `yaml:"path" doc:"For http and ssl-complete: what to ask for. For command: the program."`
	Host       string        `yaml:"host" doc:"For http and ssl-complete: name of the site." default:"the node's address"`
	Status     []statusRange `yaml:"status" doc:"For http and ssl-complete: up to four ranges such as 200-204 that pass, instead of 200 to 299 and 401."`
	Body       string        `yaml:"body" doc:"For http and ssl-complete: what the body must contain."`
	ServerName string        `yaml:"server-name" doc:"For ssl and ssl-complete: name to ask for; ssl-complete then verifies the certificate for it."`
	Valid      time.Duration `yaml:"min-validity" doc:"For ssl-complete: how long the certificate must still be valid." default:"0s"`
	Send       string        `yaml:"send" doc:"For tcp, udp and agent: what to send."`
	Expect     string        `yaml:"expect" doc:"For tcp and udp: what the answer must contain."`
	Steps      []scriptStep  `yaml:"steps" doc:"For script: what to send and expect, in turn."`
	Args       []string      `yaml:"args" doc:"For command: arguments; {addr}, {port} and {target} stand for the node's."`
	Secret     string        `yaml:"secret" doc:"For radius: the shared key."`
	File       string        `yaml:"file" doc:"For tftp: the file to ask for."`
	User       string        `yaml:"user" doc:"For radius, redis, mysql and postgresql: whom to log in as."`
	Password   string        `yaml:"password" doc:"For ldap, radius and redis."`
	DN         string        `yaml:"dn" doc:"For ldap: whom to bind as." default:"anonymous"`
	Database   string        `yaml:"database" doc:"For postgresql." default:"as user"`
	Name       string        `yaml:"query" doc:"For dns: the name whose address is asked for."`
	Zone       string        `yaml:"zone" doc:"For dns: the zone whose SOA record is asked for."`
	Service    string        `yaml:"service" doc:"For grpc: the service whose health is asked for." default:"the whole server"`
	Secure     bool          `yaml:"tls" doc:"For grpc, smtp, imap4, pop3 and ldap: inside TLS; for all but grpc by STARTTLS." default:"false"`
}

type scriptStep struct {
	Send   string `yaml:"send" doc:"What to send."`
	Expect string `yaml:"expect" doc:"What the answer must contain."`
	Not    bool   `yaml:"not" doc:"The answer must not contain it." default:"false"`
}

// statusRange is a range of HTTP status codes.
type statusRange struct{ probe.StatusRange }

func (s *statusRange) UnmarshalText(b []byte) error {
	first, last, ranged := strings.Cut(string(b), "-")
	var err error
	if s.First, err = strconv.Atoi(first); err == nil && ranged {
		s.Last, err = strconv.Atoi(last)
	}
	if !ranged {
		s.Last = s.First
	}
	if err != nil || s.First < 200 || s.Last > 599 || s.First > s.Last {
		return fmt.Errorf("%q: want a status code from 200 to 599, or a range such as 200-299", b)
	}
	return nil
}

// element is a check of a target of its own.
type element struct {
	Target conf.Endpoint `yaml:"target,required" doc:"Address and port to check."`
	check
}

func (e *element) validate(f *conf.File, path, name string) {
	validName(f, path, name)
	if name == self {
		f.AddKey(path, "self is the name of a node's own check: want another")
	}
	if e.Target.IsValid() && e.Target.Port() == 0 && e.needsPort() {
		f.Add(path+".target", "%v: want a port too", e.Target.Addr())
	}
	e.check.validate(f, path, e.Target.Port(), healthcheck.OverTCP)
}

// on is the check of a port: one without a method gets that of the port.
func (c check) on(port uint16, over healthcheck.Transport) check {
	if c.Port != 0 {
		port = c.Port
	}
	if c.Method == healthcheck.NoMethod {
		c.Method = healthcheck.TCP
		if of, err := (healthcheck.PortProfile{Port: port, Transport: over, Element: true}).Resolve(); err == nil { // there is none without a port
			c.Method = of.Method
		}
	}
	return c
}

func (c *check) needsPort() bool {
	return c.Port == 0 && c.Method != healthcheck.ICMP && c.Method != healthcheck.Command
}

func (c *check) validate(f *conf.File, path string, port uint16, over healthcheck.Transport) {
	k, why := c.on(port, over), ""
	if c.Method == healthcheck.NoMethod && k.Method.Layer() == 7 {
		why = fmt.Sprintf(" (port %d is checked by %v unless method says otherwise)", cmp.Or(c.Port, port), k.Method)
	}
	for _, o := range k.strangers() {
		f.Add(path+"."+o.name, "does not go with method %v, but with %s%s", k.Method, strings.ReplaceAll(o.with, " ", ", "), why)
	}
	for i, s := range c.Steps {
		at := fmt.Sprintf("%s.steps[%d]", path, i)
		switch {
		case s.Send == "" && s.Expect == "":
			f.Add(at, "want send, expect or both")
		case s.Expect == "" && s.Not:
			f.Add(at+".not", "want expect too: not is about the answer")
		}
	}
	if !f.Faulty(path) {
		_, err := k.prober()
		for _, e := range joined(err) {
			key, text := checkKeys.translate(e)
			f.Add(strings.TrimSuffix(path+"."+key, "."), "%s%s", text, why)
		}
	}
	numbers := healthcheck.Check{ID: "x", Target: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), port)}
	k.fill(&numbers, over)
	numbers.Prober = probe.TCP{}
	tell(f, path, numbers.Validate(), checkKeys)
}

// stranger is an option that does not go with a check's method, and those that it goes with.
type stranger struct{ name, with string }

// strangers lists the options that do not go with the method.
func (c *check) strangers() (list []stranger) {
	m := c.Method
	for _, o := range []struct {
		name string
		set  bool
		with string
	}{
		{"path", c.Path != "", "http ssl-complete command"}, {"host", c.Host != "", "http ssl-complete"}, {"status", len(c.Status) > 0, "http ssl-complete"},
		{"body", c.Body != "", "http ssl-complete"}, {"server-name", c.ServerName != "", "ssl ssl-complete"}, {"min-validity", c.Valid != 0, "ssl-complete"},
		{"send", c.Send != "", "tcp udp agent"}, {"expect", c.Expect != "", "tcp udp"}, {"steps", len(c.Steps) > 0, "script"}, {"args", len(c.Args) > 0, "command"},
		{"secret", c.Secret != "", "radius"}, {"file", c.File != "", "tftp"}, {"user", c.User != "", "radius redis mysql postgresql"},
		{"password", c.Password != "", "ldap radius redis"}, {"dn", c.DN != "", "ldap"}, {"database", c.Database != "", "postgresql"},
		{"query", c.Name != "", "dns"}, {"zone", c.Zone != "", "dns"}, {"service", c.Service != "", "grpc"}, {"tls", c.Secure, "grpc smtp imap4 pop3 ldap"},
	} {
		if o.set && !slices.Contains(strings.Fields(o.with), m.String()) {
			list = append(list, stranger{o.name, o.with})
		}
	}
	return list
}

// prober returns the prober of the check's method, which must be there, see on.
func (c *check) prober() (healthcheck.Prober, error) {
	switch m := c.Method; m {
	case healthcheck.TCP:
		if c.Send == "" && c.Expect == "" {
			return probe.TCP{}, nil
		}
		return validated(probe.Script{Steps: []probe.Step{{Send: []byte(c.Send), Expect: []byte(c.Expect)}}})
	case healthcheck.UDP:
		p := probe.UDP{Payload: []byte(c.Send), Expect: []byte(c.Expect)}
		if c.Expect == "" && c.Rise == 0 {
			p.Datagrams = 1 // another one follows, see fill
		}
		return p, nil
	case healthcheck.HTTP:
		h, err := c.http()
		if err != nil {
			return nil, err
		}
		return validated(h)
	case healthcheck.SSL:
		return validated(probe.TLSHello{ServerName: c.ServerName})
	case healthcheck.SSLComplete:
		h, err := c.http()
		if err != nil {
			return nil, err
		}
		p := probe.TLS{HTTP: h, MinValidity: c.Valid}
		if c.ServerName != "" {
			p.Config = &tls.Config{ServerName: c.ServerName, MinVersion: tls.VersionTLS12}
		}
		return validated(p)
	case healthcheck.Script:
		p := probe.Script{}
		for _, s := range c.Steps {
			p.Steps = append(p.Steps, probe.Step{Send: []byte(s.Send), Expect: []byte(s.Expect), Not: s.Not})
		}
		return validated(p)
	case healthcheck.Command:
		return validated(probe.Command{Path: c.Path, Args: c.Args})
	case healthcheck.RADIUS:
		return validated(probe.RADIUS{Key: c.Secret, User: c.User, Password: c.Password})
	case healthcheck.TFTP:
		return validated(probe.TFTP{File: c.File})
	case healthcheck.SMTP:
		return validated(probe.SMTP{StartTLS: c.Secure})
	case healthcheck.IMAP4:
		return probe.IMAP{StartTLS: c.Secure}, nil
	case healthcheck.POP3:
		return probe.POP3{StartTLS: c.Secure}, nil
	case healthcheck.LDAP:
		return validated(probe.LDAP{DN: c.DN, Password: c.Password, StartTLS: c.Secure})
	case healthcheck.DNS:
		return validated(probe.DNS{Name: c.Name, Zone: c.Zone})
	case healthcheck.GRPC:
		return validated(probe.GRPC{Service: c.Service, Secure: c.Secure})
	case healthcheck.Redis:
		return validated(probe.Redis{User: c.User, Password: c.Password})
	case healthcheck.MySQL:
		return validated(probe.MySQL{User: c.User})
	case healthcheck.PostgreSQL:
		return validated(probe.Postgres{User: c.User, Database: c.Database})
	case healthcheck.Agent:
		return probe.Agent{Send: c.Send}, nil
	default:
		p, ok := probe.For(m)
		if !ok {
			return nil, fault("method", "%v: want a protocol to check by", m)
		}
		return p, nil
	}
}

func (c *check) http() (p probe.HTTP, err error) {
	p = probe.HTTP{Path: c.Path, Host: c.Host, Header: http.Header{"User-Agent": {"l4lb"}}}
	for _, s := range c.Status {
		p.Ranges = append(p.Ranges, s.StatusRange)
	}
	if c.Body != "" {
		if p.Content, err = healthcheck.NewMatchList(healthcheck.Fail, healthcheck.MatchRule{Text: c.Body, Verdict: healthcheck.Pass}); err != nil {
			return p, &placed{"body", err}
		}
	}
	return p, nil
}

type validator interface {
	healthcheck.Prober
	Validate() error
}

func validated(p validator) (healthcheck.Prober, error) { return p, p.Validate() }

// fill puts the check into to, whose Target is the node.
func (c *check) fill(to *healthcheck.Check, over healthcheck.Transport) {
	k := c.on(to.Target.Port(), over)
	to.Prober, _ = k.prober()
	to.Interval, to.Timeout, to.Rise, to.Fall, to.HoldDown = k.Interval, k.Timeout, k.Rise, k.Fall, k.HoldDown
	if k.Port != 0 {
		to.Target = netip.AddrPortFrom(to.Target.Addr(), k.Port)
	}
	if k.Expect == "" { // a datagram that expects an answer is no plain one
		*to = healthcheck.PortCheck{Method: k.Method}.WithDefaults(*to)
	}
}
