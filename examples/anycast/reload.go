package main

import (
	"errors"
	"fmt"
)

// reload puts the file in force without disturbing a session, or changes nothing.
func (in *instance) reload() error {
	c, err := load(in.file)
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := in.mayBecome(c); err != nil {
		return err
	}
	// Addresses that go are withdrawn while they are still served, and those that come are announced once they are.
	in.forget(c.VIPs)
	next := newPools(in.pools.ids)
	for name, fm := range c.Farms {
		pool := in.pools.byFarm[name]
		if pool == nil {
			continue
		}
		if was := in.conf.Farms[name]; was.metric() != fm.metric() || (was.Check == nil) != (fm.Check == nil) {
			if _, err := pool.Reconfigure(fm.config(c.Seed, in.pools.ids), fm.nodes(name)...); err != nil {
				return fmt.Errorf("farm %s: %w", name, err)
			}
		}
		if err := in.plane.SetNodes(pool, fm.nodes(name)...); err != nil {
			return fmt.Errorf("farm %s: %w", name, err)
		}
		next.byFarm[name] = pool
	}
	table, err := c.compile(next)
	if err != nil {
		return err
	}
	if err := in.plane.Apply(table); err != nil {
		return err
	}
	in.conf, in.pools = c, next
	in.look()
	return errors.Join(in.speaker.setPeers(c.BGP.Peers), in.monitor.Set(c.checks()...))
}

// mayBecome says what cannot change while running. in.mu is held.
func (in *instance) mayBecome(c *config) error {
	fixed := func(c *config) string {
		b := c.BGP
		return fmt.Sprint(c.Seed, c.Source, c.Status, c.Sessions, c.Device, b.AS, b.RouterID, b.ListenPort, b.NextHops) + fmt.Sprint(or(b.HoldTime, 0))
	}
	if fixed(c) != fixed(in.conf) {
		return errors.New("seed, source, status, sessions, device, and of bgp as, router-id, listen-port, next-hops and hold-time cannot change while running; restart for that")
	}
	var errs []error
	for _, v := range c.VIPs {
		within := false
		for _, n := range in.networks {
			within = within || n.Bits() <= v.Address.Bits() && n.Contains(v.Address.Addr())
		}
		if !within {
			errs = append(errs, fmt.Errorf("vip %v is in none of the networks that come to the device, %v; list networks with room in device.networks, and restart", v.Address, in.networks))
		}
	}
	return errors.Join(errs...)
}
