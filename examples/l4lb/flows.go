package main

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/flowexport"
	"github.com/lbprim/lbprim/examples/internal/conf"
)

// flows is how a collector is told about flows.
type flows struct {
	Collector netip.AddrPort     `yaml:"collector,required" doc:"Address and UDP port of the collector."`
	Version   flowexport.Version `yaml:"version" doc:"Protocol." default:"ipfix"`
	Domain    uint32             `yaml:"domain" doc:"Observation domain, which tells balancers behind one address apart." default:"0"`
	Active    time.Duration      `yaml:"active" doc:"After how long a flow that goes on is reported." default:"1m"`
	Inactive  time.Duration      `yaml:"inactive" doc:"After how long without a packet a flow is reported." default:"15s"`
	Sample    int                `yaml:"sample" doc:"One session in so many is reported." default:"1"`
}

func (x *flows) validate(f *conf.File, services []*service) {
	if x == nil {
		for i, s := range services {
			if s != nil && s.Flows {
				f.Add(fmt.Sprintf("services[%d].export-flows", i), "to whom? flow-export is missing")
			}
		}
		return
	}
	if x.Collector.IsValid() && x.Collector.Port() == 0 {
		f.Add("flow-export.collector", "%v: want a port from 1 to 65535", x.Collector)
	}
	if x.Sample < 0 || x.Sample > 1<<30 {
		f.Add("flow-export.sample", "%d: want 1 to %d", x.Sample, 1<<30)
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"active", x.Active}, {"inactive", x.Inactive}} {
		if d.value < 0 {
			f.Add("flow-export."+d.key, "%v: want a positive duration", d.value)
		}
	}
}

// exporting is a way to a collector that is open. The nil exporting is none.
type exporting struct {
	conf *dataplane.FlowExport
	conn net.Conn
}

// open opens the way to the collector; nil without one.
func (x *flows) open() (*exporting, error) {
	if x == nil {
		return nil, nil
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(x.Collector))
	if err != nil {
		return nil, fmt.Errorf("flow-export: %w", err)
	}
	exporter, err := flowexport.New(&flowexport.Config{Collector: c, Version: x.Version, Domain: x.Domain})
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("flow-export: %w", err)
	}
	return &exporting{&dataplane.FlowExport{Exporter: exporter, Active: x.Active, Inactive: x.Inactive, Sample: x.Sample}, c}, nil
}

func (x *exporting) config() *dataplane.FlowExport {
	if x == nil {
		return nil
	}
	return x.conf
}

func (x *exporting) close() {
	if x != nil {
		x.conn.Close()
	}
}
