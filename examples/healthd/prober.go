package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// check is one entry of the file's checks, and what the command probe takes as key=value. The tag for lists the methods
// a key goes with; without it, it goes with all.
type check struct {
	Method healthcheck.Method `yaml:"method" doc:"Protocol of the check." default:"that of the port: ftp for 21, telnet for 23, smtp for 25, http for 80, pop3 for 110, nntp for 119, imap4 for 143, ldap for 389, ssl for 443, rtsp for 554, mms for 1755, pnm for 7070, dns for 53, radius for 1645 and 1812; another port declared tcp gets tcp, and any other udp"`
	Target endpoint           `yaml:"target,required" doc:"Address and port such as 10.0.0.1:80, [2001:db8::1]:80 or mail.example:25; for icmp without a port. Names are looked up when the file is read, and once a minute."`

	Transport healthcheck.Transport `yaml:"transport" doc:"tcp or udp: declares the port of a check without a method."`
	Layer     healthcheck.Layer     `yaml:"layer" doc:"For a check without a method whose port is tcp. layer4: no more than tcp. layer7: the protocol of the port; where none is known, the check fails and does not fall back."`

	Interval     time.Duration `yaml:"interval" doc:"Time between probes." default:"5s"`
	FastInterval time.Duration `yaml:"fast-interval" doc:"Time between probes while the state is about to change." default:"a fifth of the interval"`
	Timeout      time.Duration `yaml:"timeout" doc:"Time one probe may take." default:"the interval"`
	Rise         int           `yaml:"rise" doc:"Passes in a row until it is up." default:"1"`
	Fall         int           `yaml:"fall" doc:"Failures in a row until it is down." default:"3"`
	HoldDown     time.Duration `yaml:"hold-down" doc:"How long it must stay good after it failed." default:"0s"`

	Source    netip.Addr `yaml:"source" doc:"Address to probe from." for:"-command"`
	Interface string     `yaml:"interface" doc:"Interface or VRF to probe by. Linux." for:"-command"`
	Mark      uint32     `yaml:"mark" doc:"Firewall mark of the packets. Linux." for:"-command"`
	DSCP      uint8      `yaml:"dscp" doc:"Code point of the packets." for:"-command"`

	TLS         bool          `yaml:"tls" doc:"Speak inside TLS from the start, as imaps and ldaps do." for:"script ftp smtp nntp pop3 imap4 telnet ldap rtsp redis grpc agent"`
	StartTLS    bool          `yaml:"starttls" doc:"Let STARTTLS succeed, too." for:"smtp pop3 imap4 ldap"`
	ServerName  string        `yaml:"server-name" doc:"Name asked for in TLS." for:"ssl ssl-complete script ftp smtp nntp pop3 imap4 telnet ldap rtsp redis grpc agent"`
	Verify      bool          `yaml:"verify" doc:"Check the certificate." for:"ssl-complete script ftp smtp nntp pop3 imap4 telnet ldap rtsp redis grpc agent"`
	CA          string        `yaml:"ca" doc:"File with the certificates to trust." default:"those of the system" for:"ssl-complete script ftp smtp nntp pop3 imap4 telnet ldap rtsp redis grpc agent"`
	MinValidity time.Duration `yaml:"min-validity" doc:"How long the certificate must still be valid." for:"ssl-complete"`

	Verb    string            `yaml:"verb" doc:"Request method." default:"HEAD, with content GET" for:"http ssl-complete"`
	Path    string            `yaml:"path" doc:"What to ask for." default:"/" for:"http ssl-complete"`
	Host    string            `yaml:"host" doc:"Name of the site." default:"the target" for:"http ssl-complete"`
	Header  map[string]string `yaml:"header" doc:"More header fields." for:"http ssl-complete"`
	Body    string            `yaml:"body" doc:"Body of the request." for:"http ssl-complete"`
	Status  []statusRange     `yaml:"status" doc:"Up to four codes or ranges that pass." default:"[200-299, 401]" for:"http ssl-complete"`
	Content []contentRule     `yaml:"content" doc:"Texts to look for in the reply. Of all that are found the first in the reply decides." for:"http ssl-complete"`
	NoMatch string            `yaml:"no-match" doc:"Verdict when none of content is found: pass or fail." default:"fail" for:"http ssl-complete"`

	Send   string       `yaml:"send" doc:"What to send." for:"tcp udp agent"`
	Expect string       `yaml:"expect" doc:"What the answer must contain." for:"tcp udp"`
	Steps  []scriptStep `yaml:"steps" doc:"What to send and to expect, step by step." for:"script"`

	HalfOpen  bool          `yaml:"half-open" doc:"Send SYN, want SYN with ACK, answer with RST. Needs CAP_NET_RAW." for:"tcp"`
	Wait      time.Duration `yaml:"wait" doc:"Silence that counts as life." default:"1s" for:"udp"`
	Datagrams int           `yaml:"datagrams" doc:"How many are sent." default:"2" for:"udp"`
	Size      int           `yaml:"size" doc:"Bytes of data in an echo request." default:"32" for:"icmp"`
	Attempts  int           `yaml:"attempts" doc:"Echo requests at most." default:"5" for:"icmp"`

	Hello   string `yaml:"hello" doc:"Name to say EHLO with." for:"smtp"`
	URL     string `yaml:"url" doc:"What to ask about." default:"*" for:"rtsp"`
	Service string `yaml:"service" doc:"Name of the service." default:"the server as a whole" for:"grpc"`

	Name      string       `yaml:"name" doc:"Name whose address is asked for." for:"dns"`
	Zone      string       `yaml:"zone" doc:"Zone whose SOA record is asked for." for:"dns"`
	IPv6      bool         `yaml:"ipv6" doc:"Ask for AAAA instead of A." for:"dns"`
	Addresses []netip.Addr `yaml:"addresses" doc:"One of them must be in the answer." for:"dns"`
	Recursion bool         `yaml:"recursion" doc:"Ask for recursion." for:"dns"`
	OverTCP   bool         `yaml:"over-tcp" doc:"Ask over TCP." for:"dns"`

	User         string   `yaml:"user" doc:"User to log in as." for:"radius redis mysql postgresql"`
	Password     string   `yaml:"password" doc:"Password of the user." for:"ldap radius redis"`
	Database     string   `yaml:"database" doc:"Database to ask for." default:"as the user" for:"postgresql"`
	ErrorPasses  bool     `yaml:"error-passes" doc:"An error such as an unknown user counts as life." for:"postgresql"`
	DN           string   `yaml:"dn" doc:"Who binds." default:"nobody" for:"ldap"`
	ResultCodes  []uint8  `yaml:"result-codes" doc:"Result codes that pass." default:"[0]" for:"ldap"`
	Secret       string   `yaml:"secret" doc:"The shared key." for:"radius"`
	StatusServer bool     `yaml:"status-server" doc:"Send Status-Server instead of Access-Request." for:"radius"`
	RejectFails  bool     `yaml:"reject-fails" doc:"Access-Reject is a failure." for:"radius"`
	File         string   `yaml:"file" doc:"File to ask for." for:"tftp"`
	Command      string   `yaml:"command" doc:"Program to run; exit status 0 passes." for:"command"`
	Args         []string `yaml:"args" doc:"Its arguments; {addr}, {port} and {target} are replaced." for:"command"`
	Inconclusive []int    `yaml:"inconclusive" doc:"Exit statuses that say nothing of the target." for:"command"`
}

type contentRule struct {
	Kind    healthcheck.MatchKind `yaml:"kind" doc:"Where to look: simple is anywhere, compound from text to end." default:"simple"`
	Text    string                `yaml:"text,required" doc:"The text."`
	End     string                `yaml:"end" doc:"For compound: the second text."`
	Verdict string                `yaml:"verdict" doc:"What it means: pass or fail." default:"pass"`
}

type scriptStep struct {
	Name   string `yaml:"name" doc:"Name of the step in errors."`
	Send   string `yaml:"send" doc:"What to send."`
	Expect string `yaml:"expect" doc:"What the reply must contain."`
	Match  string `yaml:"match" doc:"Regular expression the reply must match, instead of expect."`
	Line   bool   `yaml:"line" doc:"Look at the next line only."`
	Not    bool   `yaml:"not" doc:"The reply must not have it."`
}

// statusRange is 200 or 200-299.
type statusRange probe.StatusRange

func (r *statusRange) UnmarshalText(b []byte) error {
	first, last, two := strings.Cut(string(b), "-")
	var err, err2 error
	r.First, err = strconv.Atoi(first)
	if two {
		r.Last, err2 = strconv.Atoi(last)
	}
	if errors.Join(err, err2) != nil {
		return fmt.Errorf("%q: want a status code such as 200, or a range such as 200-299", b)
	}
	return nil
}

// settle gives a check without a method that of its port. A check that cannot be made for want of one fails.
func (c *check) settle() error {
	if c.Method != healthcheck.NoMethod {
		if c.Transport != healthcheck.AnyTransport || c.Layer != healthcheck.DefaultLayer {
			return fmt.Errorf("transport and layer are for checks without a method; this one has method %v", c.Method)
		}
		return nil
	}
	if c.Target.host != "" && c.Target.port == 0 {
		return errors.New("method is missing, and the target has no port that would tell it")
	}
	of, err := c.ofPort()
	switch {
	case c.Target.host == "", errors.Is(err, healthcheck.ErrNoMethod):
		return nil // which is said already, and by the prober
	case err != nil:
		return err
	}
	c.Method, c.Transport, c.Layer = of.Method, healthcheck.AnyTransport, healthcheck.DefaultLayer
	return nil
}

// ofPort is the check of the target's port.
func (c *check) ofPort() (healthcheck.PortCheck, error) {
	return healthcheck.PortProfile{Port: c.Target.port, Transport: c.Transport, Layer: c.Layer, Element: true}.Resolve()
}

// misplaced lists the keys that are set and do not go with the method.
func (c *check) misplaced() (errs []error) {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		methods := f.Tag.Get("for")
		if methods == "" || v.Field(i).IsZero() {
			continue
		}
		not, negated := strings.CutPrefix(methods, "-")
		if has := slices.Contains(strings.Fields(not), c.Method.String()); has == negated {
			if negated {
				methods = "all but " + not
			}
			errs = append(errs, fmt.Errorf("%s does not go with method %v; it is for %s", f.Tag.Get("yaml"), c.Method, methods))
		}
	}
	return errs
}

// prober returns the prober of the check. spy, if not nil, sees what it sends and receives.
func (c *check) prober(spy *tracer) (healthcheck.Prober, error) {
	errs := c.misplaced()
	if _, err := c.ofPort(); c.Method == healthcheck.NoMethod && errors.Is(err, healthcheck.ErrNoMethod) {
		return healthcheck.FailWith(err), nil
	}
	socket := probe.Socket{Source: c.Source, Interface: c.Interface, Mark: c.Mark, DSCP: c.DSCP}
	if err := socket.Validate(); err != nil {
		errs = append(errs, err)
	}
	config, err := c.tlsConfig(spy)
	if err != nil {
		errs = append(errs, err)
	}
	web, err := c.web()
	if err != nil {
		errs = append(errs, err)
	}
	script, err := c.script()
	if err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	dial := spy.dialer(socket)
	if c.TLS && c.Method != healthcheck.GRPC {
		dial = spy.inside(probe.TLSDialer{Dialer: dial, Config: config})
	}
	switch c.Method {
	case healthcheck.ICMP:
		return validated(probe.ICMP{Socket: socket, Size: c.Size, Attempts: c.Attempts})
	case healthcheck.TCP:
		switch {
		case c.HalfOpen && script != nil:
			return nil, errors.New("half-open does not go with send and expect")
		case c.HalfOpen:
			return validated(probe.TCPHalfOpen{Socket: socket})
		case script != nil:
			return validated(probe.Script{Dialer: dial, Steps: script})
		}
		return probe.TCP{Dialer: dial}, nil
	case healthcheck.UDP:
		p := probe.UDP{Dialer: dial, Payload: []byte(c.Send), Expect: []byte(c.Expect), Wait: c.Wait, Datagrams: c.Datagrams}
		if p.Datagrams == 0 && c.comesUpByTwo() {
			p.Datagrams = 1 // the second one comes with the next probe
		}
		return validated(p)
	case healthcheck.FTP:
		return probe.FTP{Dialer: dial}, nil
	case healthcheck.SMTP:
		return validated(probe.SMTP{Dialer: dial, Hello: c.Hello, StartTLS: c.StartTLS, TLS: config})
	case healthcheck.NNTP:
		return probe.NNTP{Dialer: dial}, nil
	case healthcheck.POP3:
		return probe.POP3{Dialer: dial, StartTLS: c.StartTLS, TLS: config}, nil
	case healthcheck.IMAP4:
		return probe.IMAP{Dialer: dial, StartTLS: c.StartTLS, TLS: config}, nil
	case healthcheck.TELNET:
		return probe.Telnet{Dialer: dial}, nil
	case healthcheck.HTTP:
		web.Dialer = dial
		return validated(web)
	case healthcheck.SSL:
		return validated(probe.TLSHello{Dialer: dial, ServerName: c.ServerName})
	case healthcheck.SSLComplete:
		if spy != nil && c.MinValidity == 0 {
			// The same conversation, but so that what is said inside can be shown.
			web.Dialer = spy.inside(probe.TLSDialer{Dialer: dial, Config: config})
			return validated(web)
		}
		return validated(probe.TLS{Dialer: dial, Config: config, HTTP: web, MinValidity: c.MinValidity})
	case healthcheck.LDAP:
		return validated(probe.LDAP{Dialer: dial, DN: c.DN, Password: c.Password, ResultCodes: c.ResultCodes, StartTLS: c.StartTLS, TLS: config})
	case healthcheck.RTSP:
		return validated(probe.RTSP{Dialer: dial, URL: c.URL})
	case healthcheck.MMS:
		return probe.MMS{Dialer: dial}, nil
	case healthcheck.PNM:
		return probe.PNM{Dialer: dial}, nil
	case healthcheck.DNS:
		return validated(probe.DNS{Dialer: dial, Name: c.Name, Zone: c.Zone, IPv6: c.IPv6, Expect: c.Addresses, RecursionDesired: c.Recursion, TCP: c.OverTCP})
	case healthcheck.RADIUS:
		return validated(probe.RADIUS{Dialer: dial, Key: c.Secret, User: c.User, Password: c.Password, StatusServer: c.StatusServer, RejectFails: c.RejectFails})
	case healthcheck.TFTP:
		return validated(probe.TFTP{Socket: socket, File: c.File})
	case healthcheck.GRPC:
		return validated(probe.GRPC{Dialer: dial, Service: c.Service, Secure: c.TLS, TLS: config})
	case healthcheck.Redis:
		return validated(probe.Redis{Dialer: dial, User: c.User, Password: c.Password})
	case healthcheck.MySQL:
		return validated(probe.MySQL{Dialer: dial, User: c.User})
	case healthcheck.PostgreSQL:
		return validated(probe.Postgres{Dialer: dial, User: c.User, Database: c.Database, ErrorPasses: c.ErrorPasses})
	case healthcheck.Script:
		return validated(probe.Script{Dialer: dial, Steps: script})
	case healthcheck.Command:
		return validated(probe.Command{Path: c.Command, Args: c.Args, InconclusiveStatus: c.Inconclusive})
	case healthcheck.Agent:
		return probe.Agent{Dialer: dial, Send: c.Send}, nil
	}
	return nil, fmt.Errorf("method %v: want a protocol to check by", c.Method)
}

// comesUpByTwo reports whether a check is a plain datagram, of which two bring it up: the second one after all other checks had their
// first.
func (c *check) comesUpByTwo() bool {
	return c.Method == healthcheck.UDP && c.Expect == "" && c.Rise == 0
}

type validator interface {
	healthcheck.Prober
	Validate() error
}

func validated(p validator) (healthcheck.Prober, error) { return p, p.Validate() }

// tlsConfig is nil where the prober's default will do.
func (c *check) tlsConfig(spy *tracer) (*tls.Config, error) {
	if !c.Verify && c.CA == "" && c.ServerName == "" && spy == nil {
		return nil, nil
	}
	// What is asked by default is life, whatever the certificate says.
	config := &tls.Config{ServerName: c.ServerName, InsecureSkipVerify: !c.Verify && c.CA == ""} //nolint:gosec // as documented
	if spy != nil {
		config.VerifyConnection = spy.handshake
	}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s: want PEM certificates", c.CA)
		}
	}
	return config, nil
}

func (c *check) web() (probe.HTTP, error) {
	p := probe.HTTP{Method: c.Verb, Path: c.Path, Host: c.Host, Header: http.Header{"User-Agent": {"healthd"}}, Body: c.Body}
	for k, v := range c.Header {
		p.Header.Set(k, v)
	}
	for _, r := range c.Status {
		p.Ranges = append(p.Ranges, probe.StatusRange(r))
	}
	if len(c.Content) == 0 {
		if c.NoMatch != "" {
			return p, errors.New("no-match is given without content")
		}
		return p, nil
	}
	fallback, err := passOrFail(c.NoMatch, healthcheck.Fail)
	errs := []error{err}
	rules := make([]healthcheck.MatchRule, 0, len(c.Content))
	for i, r := range c.Content {
		v, err := passOrFail(r.Verdict, healthcheck.Pass)
		if err != nil {
			errs = append(errs, fmt.Errorf("content[%d]: %w", i, err))
		}
		rules = append(rules, healthcheck.MatchRule{Kind: r.Kind, Text: r.Text, End: r.End, Verdict: v})
	}
	if err := errors.Join(errs...); err != nil {
		return p, err
	}
	p.Content, err = healthcheck.NewMatchList(fallback, rules...)
	return p, err
}

func passOrFail(s string, otherwise healthcheck.Verdict) (healthcheck.Verdict, error) {
	switch s {
	case "":
		return otherwise, nil
	case "pass":
		return healthcheck.Pass, nil
	case "fail":
		return healthcheck.Fail, nil
	}
	return otherwise, fmt.Errorf("verdict %q: want pass or fail", s)
}

// script is nil for a check that neither sends nor expects anything of its own.
func (c *check) script() (steps []probe.Step, err error) {
	if c.Method == healthcheck.TCP && (c.Send != "" || c.Expect != "") {
		return []probe.Step{{Send: []byte(c.Send), Expect: []byte(c.Expect)}}, nil
	}
	var errs []error
	for i, s := range c.Steps {
		step := probe.Step{Name: s.Name, Send: []byte(s.Send), Expect: []byte(s.Expect), Line: s.Line, Not: s.Not}
		if s.Match != "" {
			if step.Match, err = regexp.Compile(s.Match); err != nil {
				errs = append(errs, fmt.Errorf("steps[%d].match: %w", i, err))
			}
		}
		steps = append(steps, step)
	}
	return steps, errors.Join(errs...)
}
