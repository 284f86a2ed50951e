package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// pools are the farms' pools by name. They outlive reloads, so that sessions stay counted.
type pools struct {
	ids    *steering.IDs
	byFarm map[string]*steering.Pool
}

// newPools returns no pools yet; ids nil is an allocator of their own.
func newPools(ids *steering.IDs) *pools {
	if ids == nil {
		ids = &steering.IDs{}
	}
	return &pools{ids: ids, byFarm: map[string]*steering.Pool{}}
}

// nodeName is what the library calls a node: farms may use one name for different nodes.
func nodeName(farm, node string) string { return farm + "/" + node }

func (fm *farm) config(ids *steering.IDs) *steering.Config {
	return &steering.Config{Metric: fm.Metric, IDs: ids, StartDown: fm.Check != nil, SlowStart: fm.SlowStart, RecoveryTime: fm.Recovery}
}

func (fm *farm) nodes(name string) (nodes []steering.Node) {
	for _, n := range fm.Nodes {
		weight := 0
		if n.Weight != nil {
			if weight = *n.Weight; weight == 0 {
				weight = steering.ZeroWeight
			}
		}
		nodes = append(nodes, steering.Node{Name: nodeName(name, n.Name), Addr: n.Address.AddrPort, Weight: weight, MaxSessions: n.MaxSessions, Backup: n.Backup, Admin: n.Admin})
	}
	return nodes
}

// compile makes the policies, with pools for farms that are new in ps.
func (c *config) compile(ps *pools) (*policy.Table[*dataplane.Service], error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		if ps.byFarm[name] != nil {
			continue
		}
		pool, err := steering.NewPool(c.Farms[name].config(ps.ids), c.Farms[name].nodes(name)...)
		if err != nil {
			errs = append(errs, fmt.Errorf("farm %s: %w", name, err))
			continue
		}
		ps.byFarm[name] = pool
	}
	var rules []policy.Rule[*dataplane.Service]
	for _, s := range c.Services {
		fm := c.Farms[s.Farm]
		m := s.Match
		if s.VIP.IsValid() {
			m = policy.Match{Dst: s.VIP.Prefix, Protocol: s.Protocol, DstPort: s.Port, Src: s.Clients}
		}
		rules = append(rules, policy.Rule[*dataplane.Service]{
			Name: s.Name, Match: m, Disabled: s.Disabled,
			Value: &dataplane.Service{
				Name: s.Name, Pool: ps.byFarm[s.Farm], Mode: fm.Mode, MidStream: s.Lost,
				Ageing: clienttable.Ageing{Idle: fm.Ageing.Idle, SYN: fm.Ageing.SYN, Linger: fm.Ageing.Linger},
			},
		})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return policy.Compile(nil, rules...)
}

// checks lists a check for every node of a farm that has one.
func (c *config) checks() (checks []healthcheck.Check, err error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		fm := c.Farms[name]
		if fm.Check == nil {
			continue
		}
		for _, n := range fm.Nodes {
			target := n.Address.AddrPort
			if fm.Check.Port != 0 {
				target = netip.AddrPortFrom(target.Addr(), fm.Check.Port)
			}
			hc := healthcheck.Check{ID: nodeName(name, n.Name), Target: target}
			fm.Check.fill(&hc)
			if target.Port() == 0 && fm.Check.Method != healthcheck.ICMP {
				errs = append(errs, fmt.Errorf("farm %s: node %s has no port, so its check needs one", name, n.Name))
			}
			checks = append(checks, hc)
		}
	}
	return checks, errors.Join(errs...)
}
