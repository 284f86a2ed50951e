package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

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

// up are the names of the nodes that are up.
func (ps *pools) up() map[string]bool {
	names := map[string]bool{}
	for _, pool := range ps.byFarm {
		for _, st := range pool.All() {
			if st.Up {
				names[st.Node.Name] = true
			}
		}
	}
	return names
}

// nodeName is what the library calls a node: farms may use one name for different nodes.
func nodeName(farm, node string) string { return farm + "/" + node }

func (fm *farm) forward() dataplane.Forward { return or(fm.Forward, dataplane.Tunnelled) }

func (fm *farm) family() family { return familyOf(fm.Nodes[0].Address.Addr()) }

func (fm *farm) metric() steering.Metric { return or(fm.Metric, steering.Maglev) }

// config has the seed that all balancers share, and no clock: a node's share must not depend on when a balancer came to know it.
func (fm *farm) config(seed uint64, ids *steering.IDs) *steering.Config {
	return &steering.Config{Metric: fm.metric(), Seed: seed, IDs: ids, StartDown: fm.Check != nil}
}

func (fm *farm) nodes(name string) (nodes []steering.Node) {
	for _, n := range fm.Nodes {
		weight := 0
		if n.Weight != nil {
			if weight = *n.Weight; weight == 0 {
				weight = steering.ZeroWeight
			}
		}
		nodes = append(nodes, steering.Node{Name: nodeName(name, n.Name), Addr: n.Address.AddrPort, Weight: weight, Admin: n.Admin})
	}
	return nodes
}

func (fm *farm) service(s *service, pool *steering.Pool) *dataplane.Service {
	svc := &dataplane.Service{
		Name: s.Name, Pool: pool, Forward: fm.forward(), Locals: fm.Locals,
		// Each session is chosen anew: what one balancer remembers of a client, the others would not know.
		Mode: clienttable.ServerPerSession, Ageing: clienttable.Ageing{Idle: fm.Idle},
		MidStream: or(s.Lost, dataplane.Reselect), ServerLost: s.LostNode,
	}
	if svc.Forward == dataplane.Tunnelled {
		svc.Tunnel = dataplane.Tunnel{Kind: fm.Tunnel.Kind, Key: fm.Tunnel.Key, Port: fm.Tunnel.Port, NodeMAC: fm.Tunnel.MAC}
	}
	return svc
}

// compile makes the policies, with pools for farms that are new in ps.
func (c *config) compile(ps *pools) (*policy.Table[*dataplane.Service], error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		if ps.byFarm[name] != nil {
			continue
		}
		pool, err := steering.NewPool(c.Farms[name].config(c.Seed, ps.ids), c.Farms[name].nodes(name)...)
		if err != nil {
			errs = append(errs, fmt.Errorf("farm %s: %w", name, err))
			continue
		}
		ps.byFarm[name] = pool
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var rules []policy.Rule[*dataplane.Service]
	for _, v := range c.VIPs {
		for _, s := range v.Services {
			rules = append(rules, policy.Rule[*dataplane.Service]{
				Name:  s.Name,
				Match: policy.Match{Dst: v.Address.Prefix, Protocol: s.Protocol, DstPort: s.Port},
				Value: c.Farms[s.Farm].service(s, ps.byFarm[s.Farm]),
			})
		}
	}
	table, err := policy.Compile(nil, rules...)
	if err != nil {
		return nil, err
	}
	// A plane without devices says what is wrong with services.
	plane, err := dataplane.New(&dataplane.Config{Policies: table, Addrs: c.Source, MaxSessions: 1024, MaxAssociations: 1024})
	if err != nil {
		return nil, err
	}
	return table, plane.Close()
}

// checks lists a check for every node of a farm that has one.
func (c *config) checks() (checks []healthcheck.Check) {
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
			checks = append(checks, hc)
		}
	}
	return checks
}

// networks are what comes to the device.
func (c *config) networks() (ps []netip.Prefix) {
	for _, n := range c.Device.Networks {
		ps = append(ps, n.Prefix)
	}
	if len(ps) == 0 {
		for _, v := range c.VIPs {
			ps = append(ps, v.Address.Prefix)
		}
	}
	return ps
}

// rules are the numbers of damping, with their defaults.
func (d *damping) rules() dampingRules {
	return dampingRules{
		announceAfter: or(d.AnnounceAfter, 2*time.Second), withdrawAfter: or(d.WithdrawAfter, 0),
		halfLife: or(d.HalfLife, time.Minute), longest: or(d.Longest, 10*time.Minute),
		suppress: float64(or(d.Suppress, 3000)), reuse: float64(or(d.Reuse, 750)),
	}
}
