package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// check is how the nodes of a farm are checked.
type check struct {
	Method   healthcheck.Method `yaml:"method" doc:"Protocol of the check." default:"tcp"`
	Port     uint16             `yaml:"port" doc:"Port to check, where it is not the node's." default:"the node's"`
	Interval time.Duration      `yaml:"interval" doc:"Time between checks." default:"5s"`
	Timeout  time.Duration      `yaml:"timeout" doc:"Time one check may take." default:"the interval"`
	Rise     int                `yaml:"rise" doc:"Passes in a row until a node is up." default:"1"`
	Fall     int                `yaml:"fall" doc:"Failures in a row until a node is down." default:"3"`
	HoldDown time.Duration      `yaml:"hold-down" doc:"How long a node that failed must stay good." default:"0s"`
	Path     string             `yaml:"path" doc:"For http: what to ask for." default:"/"`
	Host     string             `yaml:"host" doc:"For http: name of the site." default:"the node's address"`
	Status   []int              `yaml:"status" doc:"For http: status codes that pass, instead of 200 to 299 and 401."`
	Send     string             `yaml:"send" doc:"For tcp and udp: what to send."`
	Expect   string             `yaml:"expect" doc:"For tcp and udp: what the answer must contain."`
	Secret   string             `yaml:"secret" doc:"For radius: the shared key."`
	File     string             `yaml:"file" doc:"For tftp: the file to ask for."`
}

// prober returns the prober of the check's method.
func (c *check) prober() (healthcheck.Prober, error) {
	m := c.Method
	if m == healthcheck.NoMethod {
		m = healthcheck.TCP
	}
	for _, f := range []struct {
		name string
		set  bool
		ok   bool
	}{
		{"path", c.Path != "", m == healthcheck.HTTP}, {"host", c.Host != "", m == healthcheck.HTTP}, {"status", len(c.Status) > 0, m == healthcheck.HTTP},
		{"send", c.Send != "", m == healthcheck.TCP || m == healthcheck.UDP}, {"expect", c.Expect != "", m == healthcheck.TCP || m == healthcheck.UDP},
		{"secret", c.Secret != "", m == healthcheck.RADIUS}, {"file", c.File != "", m == healthcheck.TFTP},
	} {
		if f.set && !f.ok {
			return nil, fmt.Errorf("%s does not go with method %v", f.name, m)
		}
	}
	switch m {
	case healthcheck.TCP:
		if c.Send == "" && c.Expect == "" {
			return probe.TCP{}, nil
		}
		return validated(probe.Script{Steps: []probe.Step{{Send: []byte(c.Send), Expect: []byte(c.Expect)}}})
	case healthcheck.UDP:
		return validated(probe.UDP{Payload: []byte(c.Send), Expect: []byte(c.Expect)})
	case healthcheck.HTTP:
		p := probe.HTTP{Path: c.Path, Host: c.Host, Header: http.Header{"User-Agent": {"l4lb"}}}
		for _, s := range c.Status {
			p.Ranges = append(p.Ranges, probe.StatusRange{First: s})
		}
		return validated(p)
	case healthcheck.RADIUS:
		return validated(probe.RADIUS{Key: c.Secret})
	case healthcheck.TFTP:
		return validated(probe.TFTP{File: c.File})
	}
	p, ok := probe.For(m)
	if !ok || m == healthcheck.Command {
		return nil, fmt.Errorf("method %v: want a protocol to check by", m)
	}
	return p, nil
}

type validator interface {
	healthcheck.Prober
	Validate() error
}

func validated(p validator) (healthcheck.Prober, error) { return p, p.Validate() }

// fill puts the check's numbers into c.
func (c *check) fill(to *healthcheck.Check) {
	to.Prober, _ = c.prober()
	to.Interval, to.Timeout, to.Rise, to.Fall, to.HoldDown = c.Interval, c.Timeout, c.Rise, c.Fall, c.HoldDown
}
