package main

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/lab"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// vips are the virtual addresses, from the blocks for documentation (RFC 5737, RFC 3849).
func vip(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr("2001:db8::80")
	}
	return netip.MustParseAddr("192.0.2.80")
}

func port(s service) uint16 { return [...]uint16{web: 80, shop: 443, echo: 7}[s] }

func vipOf(s service, v6 bool) netip.AddrPort { return netip.AddrPortFrom(vip(v6), port(s)) }

func protocol(s service) uint8 {
	if s == echo {
		return 17
	}
	return 6
}

// member is a server of a service, as the balancer is told of it. It stands for two nodes, one a
// family.
type member struct {
	service service
	name    string
	host    int // number of the lab's server host
	weight  int
	admin   steering.AdminState
}

// nodeName names a member's node in one family; a pool's nodes have one family.
func nodeName(member string, v6 bool) string {
	if v6 {
		return member + "/ipv6"
	}
	return member + "/ipv4"
}

func memberName(node string) string {
	return strings.TrimSuffix(strings.TrimSuffix(node, "/ipv4"), "/ipv6")
}

// balancer is lbprim's packages put together: this is what a program of yours would look like.
type balancer struct {
	plane   *dataplane.Plane
	monitor *healthcheck.Monitor
	pools   [services][2]*steering.Pool // the second index: IPv6
}

// newBalancer balances members behind the virtual addresses on a device. Health checks connect from
// the balancer's own host.
func newBalancer(l *lab.Lab, members []member, o options, forgetful bool, changed func(healthcheck.Transition)) (*balancer, error) {
	b := &balancer{}
	ids := &steering.IDs{} // one for all pools, so that a node's id says which pool it is of
	var rules []policy.Rule[*dataplane.Service]
	for s := range services {
		for i, v6 := range []bool{false, true} {
			pool, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin, IDs: ids, StartDown: true}, nodes(s, v6, members)...)
			if err != nil {
				return nil, err
			}
			b.pools[s][i] = pool
			svc := &dataplane.Service{
				Name: nodeName(s.String(), v6), Pool: pool,
				// Each connection is weighed anew, whoever makes it …
				Mode:   clienttable.RemoveOnEndServerPerSession,
				Ageing: clienttable.Ageing{Idle: 20 * time.Second, Linger: 300 * time.Millisecond},
			}
			if s == shop && !forgetful {
				// … but a customer of the shop stays with his server, over any number of connections.
				svc.Mode = clienttable.Regular
			}
			rules = append(rules, policy.Rule[*dataplane.Service]{
				Name:  svc.Name,
				Match: policy.Match{Dst: netip.PrefixFrom(vip(v6), vip(v6).BitLen()), Protocol: policy.ProtocolNumber(protocol(s)), DstPort: policy.Port(port(s))},
				Value: svc,
			})
		}
	}
	table, err := policy.Compile(nil, rules...)
	if err != nil {
		return nil, err
	}
	if b.plane, err = dataplane.New(&dataplane.Config{Policies: table, Devices: []dataplane.Device{l.Device}, MaxSessions: 1 << 15, MaxAssociations: 1 << 12, Seed: o.seed}); err != nil {
		return nil, err
	}
	b.monitor, err = healthcheck.NewMonitor(&healthcheck.Config{
		Seed: o.seed + 1, // 0 would be random
		OnTransition: func(t healthcheck.Transition) {
			b.plane.SetUp(t.Check.ID, t.To.Usable())
			changed(t)
		},
	})
	if err == nil {
		err = b.monitor.Set(checks(lab.Dialer{Host: l.Balancer}, members)...)
	}
	return b, err
}

// nodes are the members of a service as nodes of one family.
func nodes(s service, v6 bool, members []member) (ns []steering.Node) {
	for _, m := range members {
		if m.service == s {
			ns = append(ns, steering.Node{
				Name: nodeName(m.name, v6), Addr: netip.AddrPortFrom(lab.ServerAddr(v6, m.host), port(s)),
				Weight: m.weight, Admin: m.admin,
			})
		}
	}
	return ns
}

// checks probe every node, often: a story of seconds cannot wait for the defaults.
func checks(from probe.Dialer, members []member) (cs []healthcheck.Check) {
	for _, m := range members {
		var p healthcheck.Prober
		switch m.service {
		case web:
			p = probe.HTTP{Dialer: from, Path: "/health"}
		case shop:
			p = probe.TCP{Dialer: from}
		case echo:
			p = probe.UDP{Dialer: from, Payload: []byte("ping"), Expect: []byte("ping")}
		}
		for _, v6 := range []bool{false, true} {
			cs = append(cs, healthcheck.Check{
				ID: nodeName(m.name, v6), Target: netip.AddrPortFrom(lab.ServerAddr(v6, m.host), port(m.service)), Prober: p,
				Interval: 200 * time.Millisecond, FastInterval: 50 * time.Millisecond, Rise: 2, Fall: 2,
				// Who is dead refuses, and who is slow since the machine is busy is as slow for clients, which wait as long.
				Timeout: patience,
			})
		}
	}
	return cs
}

// configure gives a service's members new weights or states, while running.
func (b *balancer) configure(s service, members []member) error {
	var errs []error
	for i, v6 := range []bool{false, true} {
		errs = append(errs, b.plane.SetNodes(b.pools[s][i], nodes(s, v6, members)...))
	}
	return errors.Join(errs...)
}

// run moves packets and probes servers until ctx is done.
func (b *balancer) run(ctx context.Context) error {
	errs := make(chan error, 2)
	go func() { errs <- b.plane.Run(ctx) }()
	go func() { errs <- b.monitor.Run(ctx) }()
	var failed []error
	for range 2 {
		if err := <-errs; err != nil && ctx.Err() == nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(append(failed, b.plane.Close())...)
}

// status is a member's over both families.
type status struct {
	open  int64
	total uint64
	state string
	share float64
	up    bool
}

func (b *balancer) status(m member) (s status) {
	var states []string
	s.up = true
	for i, v6 := range []bool{false, true} {
		pool := b.pools[m.service][i]
		id, _ := pool.ID(nodeName(m.name, v6))
		n, _ := pool.Status(id)
		s.open += n.Sessions
		s.total += n.Total
		s.share += n.Share / 2
		s.up = s.up && n.Up
		state := n.State.String()
		if n.State == steering.Available {
			state = "up"
		}
		states = append(states, state)
	}
	s.state = strings.Join(slices.Compact(states), ", ")
	return s
}

// explain tells how a new connection would be treated, by the code that treats it.
func (b *balancer) explain(protocol uint8, from, to netip.AddrPort) (string, error) {
	e, err := b.plane.ExplainFlow(protocol, from, to)
	return strings.TrimRight(e.String(), "\n"), err
}
