package main

import (
	"fmt"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// check is how the nodes of a farm are checked.
type check struct {
	Method   healthcheck.Method `yaml:"method" doc:"Protocol of the check." default:"tcp"`
	Port     uint16             `yaml:"port" doc:"Port to check, where it is not the node's."`
	Interval time.Duration      `yaml:"interval" doc:"Time between checks." default:"5s"`
	Timeout  time.Duration      `yaml:"timeout" doc:"Time one check may take." default:"the interval"`
	Rise     int                `yaml:"rise" doc:"Passes in a row until a node is up." default:"1"`
	Fall     int                `yaml:"fall" doc:"Failures in a row until a node is down." default:"3"`
	HoldDown time.Duration      `yaml:"hold-down" doc:"How long a node that failed must stay good." default:"0s"`
	Path     string             `yaml:"path" doc:"For http: what to ask for." default:"/"`
	Host     string             `yaml:"host" doc:"For http: name of the site." default:"the node's address"`
}

// prober returns the prober of the check's method.
func (c *check) prober() (healthcheck.Prober, error) {
	m := c.Method
	if m == healthcheck.NoMethod {
		m = healthcheck.TCP
	}
	if m == healthcheck.HTTP {
		p := probe.HTTP{Path: c.Path, Host: c.Host}
		return p, p.Validate()
	}
	if c.Path != "" || c.Host != "" {
		return nil, fmt.Errorf("path and host do not go with method %v", m)
	}
	if m == healthcheck.TCP {
		return probe.TCP{}, nil // the whole handshake, which takes no raw socket
	}
	p, ok := probe.For(m)
	if !ok || m == healthcheck.Command {
		return nil, fmt.Errorf("method %v: want a protocol to check by", m)
	}
	if v, ok := p.(interface{ Validate() error }); ok {
		return p, v.Validate()
	}
	return p, nil
}

// fill puts the check's numbers into a check of the library.
func (c *check) fill(to *healthcheck.Check) {
	to.Prober, _ = c.prober()
	to.Interval, to.Timeout, to.Rise, to.Fall, to.HoldDown = c.Interval, c.Timeout, c.Rise, c.Fall, c.HoldDown
}
