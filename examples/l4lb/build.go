package main

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// pools are the farms' pools by name. They outlive reloads, so that sessions stay counted.
type pools struct {
	ids    *steering.IDs
	byFarm map[string]*steering.Pool
	tls    map[string]*tlsFarm // by service
}

// newPools returns no pools yet; ids nil is an allocator of their own.
func newPools(ids *steering.IDs) *pools {
	if ids == nil {
		ids = &steering.IDs{}
	}
	return &pools{ids: ids, byFarm: map[string]*steering.Pool{}, tls: map[string]*tlsFarm{}}
}

// id is the number of a node, by its full name.
func (ps *pools) id(name string) (steering.NodeID, bool) {
	farm, _, _ := strings.Cut(name, "/")
	if pool := ps.byFarm[farm]; pool != nil {
		return pool.ID(name)
	}
	return 0, false
}

// name is the full name of a node; "" if it is gone.
func (ps *pools) name(id steering.NodeID) string {
	for _, pool := range ps.byFarm {
		if st, ok := pool.Status(id); ok {
			return st.Node.Name
		}
	}
	return ""
}

// up are the full names of the nodes that are up.
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

// compile makes the policies, with pools for farms that are new in ps. What was learned of TLS sessions comes from old, if that is not nil.
func (c *config) compile(ps, old *pools, wish wishes) (*policy.Table[*dataplane.Service], error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		if ps.byFarm[name] != nil {
			continue
		}
		pool, err := steering.NewPool(c.Farms[name].config(ps.ids), c.Farms[name].nodes(name, wish)...)
		if err != nil {
			errs = append(errs, &placed{"farms." + name, err})
			continue
		}
		ps.byFarm[name] = pool
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	rules := make([]policy.Rule[*dataplane.Service], 0, len(c.Services))
	if old == nil {
		old = ps
	}
	for _, s := range c.Services {
		value := s.library(c.Farms[s.Farm], ps.byFarm[s.Farm])
		var err error
		if value.Delay, err = s.delay(old, ps); err != nil {
			errs = append(errs, within(s.path+".delay", err))
		}
		rules = append(rules, policy.Rule[*dataplane.Service]{
			Name: s.Name, Match: s.match(), Disabled: s.Disabled, Value: value,
		})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return policy.Compile(nil, rules...)
}

// vips lists the virtual addresses of all services that are not disabled.
func (c *config) vips() (vips []netip.Prefix) {
	seen := map[netip.Prefix]bool{}
	for _, s := range c.Services {
		if p := s.match().Dst.Masked(); !s.Disabled && !seen[p] {
			seen[p] = true
			vips = append(vips, p)
		}
	}
	return vips
}

// locals lists the addresses that take the place of clients'.
func (c *config) locals() (locals []netip.Addr) {
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		for _, a := range c.Farms[name].Locals {
			if !slices.Contains(locals, a) {
				locals = append(locals, a)
			}
		}
	}
	return locals
}

// routed lists what must come to a TUN device.
func (c *config) routed() []netip.Prefix {
	routed := c.vips()
	for _, a := range c.locals() {
		if !slices.ContainsFunc(routed, func(p netip.Prefix) bool { return p.Contains(a) }) {
			routed = append(routed, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return routed
}
