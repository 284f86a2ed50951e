package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

// reload puts the file in force without disturbing a session, or changes nothing.
func (in *instance) reload() error {
	c, err := load(in.file)
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.apply(c)
}

// apply puts c in force, or nothing of it. in.mu is held.
func (in *instance) apply(c *config) error {
	if err := in.mayBecome(c); err != nil {
		return err
	}
	steps, commit, err := in.steps(c)
	if err != nil {
		return err
	}
	if err := conf.Transact(steps); err != nil {
		in.look()
		return err
	}
	commit()
	return nil
}

// steps is the way from the configuration in force to c: first what others may refuse, then what costs nobody a session, and at last the nodes,
// since the sessions of a node that is taken away are gone. commit ends it and cannot fail. in.mu is held.
func (in *instance) steps(c *config) (steps []conf.Step, commit func(), err error) {
	old, next := in.conf, newPools(in.pools.ids)
	for name, fm := range c.Farms {
		// A pool has nodes of one family.
		if was := old.Farms[name]; was != nil && was.family() == fm.family() {
			next.byFarm[name] = in.pools.byFarm[name]
		}
	}
	kept := maps.Clone(next.byFarm)
	table, err := c.compile(next)
	if err != nil {
		return nil, nil, err
	}
	was := in.table
	more, less := in.plain(old, c)
	gone, told := in.gone(c.VIPs), maps.Clone(in.told)
	steps = []conf.Step{
		{Name: "the routers", Do: func() error { return in.speaker.setPeers(c.BGP.Peers) }, Undo: func() error { return in.speaker.setPeers(old.BGP.Peers) }},
		// Addresses that go are withdrawn while they are still served, and those that come are announced once they are.
		{Name: "the withdrawals", Do: func() error {
			for _, v := range gone {
				if err := in.tell(v, false, "no longer configured"); err != nil {
					return err
				}
			}
			return nil
		}, Undo: func() (err error) {
			for _, v := range gone {
				if told[v.Address.Prefix] != "" {
					err = errors.Join(err, in.tell(v, true, "as before"))
				}
			}
			return err
		}},
		{Name: "the policies", Do: func() error { return in.plane.Apply(table) }, Undo: func() error { return in.plane.Apply(was) }},
	}
	steps = append(more, steps...)
	up := in.pools.up()
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		pool, fm, before := kept[name], c.Farms[name], old.Farms[name]
		set := func(to *farm, seed uint64) error {
			if _, err := pool.Reconfigure(to.config(seed, in.pools.ids), to.nodes(name)...); err != nil {
				return fmt.Errorf("farm %s: %w", name, err)
			}
			if err := in.plane.SetNodes(pool, to.nodes(name)...); err != nil {
				return fmt.Errorf("farm %s: %w", name, err)
			}
			return nil
		}
		if *fm.config(0, nil) != *before.config(0, nil) || !slices.Equal(fm.nodes(name), before.nodes(name)) {
			steps = append(steps, conf.Step{Name: "farm " + name, Do: func() error { return set(fm, c.Seed) }, Undo: func() error {
				err := set(before, old.Seed)
				in.setUp(before.nodes(name), up) // those that are back begin anew
				return err
			}})
		}
	}
	steps = append(steps, conf.Step{Name: "the checks", Do: func() error {
		if err := in.monitor.Set(c.checks()...); err != nil {
			return err
		}
		for name, fm := range c.Farms {
			if fm.Check == nil { // nobody would find them up again
				in.setUp(fm.nodes(name), nil)
			}
		}
		return nil
	}, Undo: func() error {
		err := in.monitor.Set(old.checks()...)
		for name, fm := range old.Farms {
			in.setUp(fm.nodes(name), up)
		}
		return err
	}})
	return append(steps, less...), func() {
		in.conf, in.pools, in.table = c, next, table
		for _, v := range gone {
			p := v.Address.Prefix
			delete(in.told, p)
			delete(in.routes, p)
			delete(in.why, p)
		}
		in.look()
	}, nil
}

// plain is the way to another number of sessions, and to other addresses of the balancer's own: what takes memory, and a family of addresses that is new, come
// before what needs them, and what goes leaves after that.
func (in *instance) plain(old, c *config) (more, less []conf.Step) {
	more, less = conf.OwnAddrs("source", old.Source, c.Source, in.plane.SetAddrs)
	set := func(n int) func() error {
		return func() error {
			if err := in.plane.SetMaxSessions(n); err != nil {
				return fmt.Errorf("sessions: %w", err)
			}
			return nil
		}
	}
	was, is := old.sessions(), c.sessions()
	change := conf.Step{Name: "sessions", Do: set(is), Undo: set(was)}
	if is > was {
		more = append(more, change)
	} else if is < was {
		less = append(less, change)
	}
	return more, less
}

// setUp says of nodes whether they are up: all of them if known is nil, bar those that have failed meanwhile.
func (in *instance) setUp(nodes []steering.Node, known map[string]bool) {
	for _, n := range nodes {
		up := known == nil
		if !up {
			st, checked := in.monitor.Status(n.Name)
			up = known[n.Name] && (!checked || st.State != healthcheck.Failed)
		}
		in.plane.SetUp(n.Name, up)
	}
}

// gone lists the addresses in force that are not in vips. in.mu is held.
func (in *instance) gone(vips []*vip) (gone []*vip) {
	for _, was := range in.conf.VIPs {
		if !slices.ContainsFunc(vips, func(v *vip) bool { return v.Address == was.Address }) {
			gone = append(gone, was)
		}
	}
	return gone
}

// mayBecome says what cannot change while running. in.mu is held.
func (in *instance) mayBecome(c *config) error {
	fixed := func(c *config) string {
		b := c.BGP
		return fmt.Sprint(c.Seed, c.Status, c.Device, b.AS, b.RouterID, b.ListenPort, b.NextHops) + fmt.Sprint(or(b.HoldTime, 0))
	}
	if fixed(c) != fixed(in.conf) {
		return errors.New("seed, status, device, and of bgp as, router-id, listen-port, next-hops and hold-time cannot change while running; restart for that")
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
