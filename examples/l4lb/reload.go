package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
)

// reload puts the file in force without disturbing a session, or changes nothing.
func (in *instance) reload() error {
	c, err := load(in.file)
	in.mu.Lock()
	defer in.mu.Unlock()
	if err == nil {
		err = in.apply(c)
	}
	if err != nil {
		in.refused++
		in.reloadError = err.Error()
		in.log.Error("the old configuration stays in force", "err", err)
		return err
	}
	in.reloads++
	in.reloadError, in.loaded = "", time.Now()
	in.log.Info("configuration reloaded", "file", in.file)
	return nil
}

// apply puts c in force, or nothing of it; in.mu is held.
func (in *instance) apply(c *config) error {
	if fixed := fixedChanges(in.conf, c); len(fixed) > 0 {
		return fmt.Errorf("%s cannot change while running, and nothing was changed: %s", strings.Join(fixed, ", "), remedy(in.conf))
	}
	steps, commit, err := in.steps(c)
	if err != nil {
		return err
	}
	if err := conf.Transact(steps); err != nil {
		return err
	}
	commit()
	return nil
}

// steps is the way from the configuration in force to c: first what others may refuse, then what costs nobody a session, then the nodes,
// since the sessions of a node that is taken away are gone, and at last what new sessions may be refused for. commit ends it and cannot fail.
func (in *instance) steps(c *config) (steps []conf.Step, commit func(), err error) {
	old, was := in.conf, in.exporting
	moved := c.State.path() != "" && c.State.path() != old.State.path()
	if moved {
		// Found out before anything is changed, as nodes that are taken away lose their sessions at once.
		if err := writable(c.State.path()); err != nil {
			return nil, nil, fmt.Errorf("state.file: %w", err)
		}
	}
	if err := c.preflightVIPs(); err != nil {
		return nil, nil, err
	}
	wish := maps.Clone(in.wishes)
	wish.prune(c)
	next := newPools(in.pools.ids)
	for name, fm := range c.Farms {
		// A pool has nodes of one family.
		if before := old.Farms[name]; before != nil && before.is4() == fm.is4() {
			next.byFarm[name] = in.pools.byFarm[name]
		}
	}
	kept := maps.Clone(next.byFarm)
	table, err := c.compile(next, in.pools, wish)
	if err != nil {
		return nil, nil, err
	}
	var entry *doors
	if c.Admin.Listen.IsValid() || len(conf.Diff(old.Admin, c.Admin)) > 0 { // its secrets are read anew
		steps = append(steps, conf.Step{Name: "the admin interface", Do: func() (err error) {
			entry, err = in.admin.prepare(old.Admin, c.Admin)
			return err
		}, Undo: func() error {
			in.admin.forget(entry)
			return nil
		}})
	}
	more, less := in.capacity(old, c)
	steps = append(steps, more...)
	now := was
	if old.Flows == nil || c.Flows == nil || *old.Flows != *c.Flows {
		steps = append(steps, conf.Step{Name: "the flow export", Do: func() (err error) {
			if now, err = c.Flows.open(); err != nil {
				return err
			}
			return in.plane.SetFlowExport(now.config())
		}, Undo: func() error {
			err := in.plane.SetFlowExport(was.config())
			if now != was {
				now.close()
			}
			return err
		}})
	}
	both := union(old.routed(), c.routed())
	steps = append(steps, conf.Step{Name: "the routes", Do: func() error { return in.follow(both) }, Undo: func() error { return in.follow(old.routed()) }})
	steps = append(steps, conf.Step{Name: "the policies", Do: func() error { return in.plane.Apply(table) }, Undo: func() error { return in.plane.Apply(in.table) }})
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		pool, fm, before := kept[name], c.Farms[name], old.Farms[name]
		set := func(to *farm, wish wishes, configure bool) error {
			nodes := to.nodes(name, wish)
			if configure {
				if _, err := pool.Reconfigure(to.config(in.pools.ids), nodes...); err != nil {
					return fmt.Errorf("farm %s: %w", name, err)
				}
			}
			if err := in.plane.SetNodes(pool, nodes...); err != nil {
				return fmt.Errorf("farm %s: %w", name, err)
			}
			return nil
		}
		other := *fm.config(nil) != *before.config(nil)
		if other || !slices.Equal(fm.nodes(name, wish), before.nodes(name, in.wishes)) {
			steps = append(steps, conf.Step{Name: "farm " + name, Do: func() error { return set(fm, wish, other) }, Undo: func() error { return set(before, in.wishes, other) }})
		}
	}
	up := in.pools.up()
	steps = append(steps, conf.Step{Name: "the checks", Do: func() error { return in.roster.Set(c.setup()) }, Undo: func() error {
		// What c took for up, since it has no check for it, is to be forgotten.
		setup := old.setup()
		known := setup
		known.Servers = slices.DeleteFunc(slices.Clone(setup.Servers), func(s healthcheck.Server) bool { return !up[s.Name] })
		err := errors.Join(in.roster.Set(known), in.roster.Set(setup))
		for node := range in.pools.up() {
			if !up[node] {
				in.plane.SetUp(node, false)
			}
		}
		return err
	}})
	if moved {
		// What a file held before does not come back. What follows hardly fails.
		steps = append(steps, conf.Step{Name: "the state file", Do: func() error {
			if err := in.saveTo(c.State.path()); err != nil {
				return fmt.Errorf("state.file: %w", err)
			}
			return nil
		}, Undo: func() error { return nil }})
	}
	return append(steps, less...), func() {
		in.conf, in.pools, in.table, in.wishes, in.exporting = c, next, table, wish, now
		if entry != nil {
			in.admin.become(entry)
		}
		if was != now {
			was.close()
		}
		for name, fm := range c.Farms {
			in.adviseChanged(name, old.Farms[name], fm)
		}
		if err := in.follow(c.routed()); err != nil {
			in.log.Warn("what came here for virtual addresses that are gone still does", "err", err)
		}
	}, nil
}

// capacity is the way to another number of sessions and of clients remembered, which takes memory where there are to be more, and to what happens
// to foreign packets and pings, and to other addresses of the balancer's own.
func (in *instance) capacity(old, c *config) (more, less []conf.Step) {
	step := func(name string, set func(c *config) error) conf.Step {
		return conf.Step{Name: name, Do: func() error { return set(c) }, Undo: func() error { return set(old) }}
	}
	for _, n := range []struct {
		key string
		of  func(c *config) int
		set func(n int) error
	}{
		{"sessions", (*config).sessions, in.plane.SetMaxSessions},
		{"associations", (*config).associations, in.plane.SetMaxAssociations},
	} {
		change := step("the number of "+n.key, func(c *config) error {
			if err := n.set(n.of(c)); err != nil {
				return fmt.Errorf("%s: %d: %w", n.key, n.of(c), err)
			}
			return nil
		})
		switch was, is := n.of(old), n.of(c); {
		case is > was:
			more = append(more, change)
		case is < was:
			less = append(less, change)
		}
	}
	first, last := conf.OwnAddrs("device.addresses", old.Device.Addresses, c.Device.Addresses, in.plane.SetAddrs)
	more, less = append(more, first...), append(less, last...)
	if c.Foreign != old.Foreign || c.PingNodes != old.PingNodes {
		less = append(less, step("foreign packets and pings", func(c *config) error {
			in.plane.SetPingNodes(c.PingNodes)
			return in.plane.SetForeign(c.Foreign)
		}))
	}
	return more, less
}

// adviseChanged has the plane look again at the nodes of which its agent's limit of sessions, or the agent, is another one.
func (in *instance) adviseChanged(name string, old, fm *farm) {
	if old == nil {
		return
	}
	limits := map[string]int{}
	for _, n := range old.Nodes {
		limits[n.Name] = n.MaxSessions
	}
	for _, n := range fm.Nodes {
		if limit, ok := limits[n.Name]; ok && (limit != n.MaxSessions || old.Agent != nil && (fm.Agent == nil || *fm.Agent != *old.Agent)) {
			in.adviseAgain(nodeName(name, n.Name))
		}
	}
}

// fixedChanges names what c has otherwise and cannot change while running. A default that is written out is no change.
func fixedChanges(old, c *config) (names []string) {
	for _, x := range conf.Diff(old.fixed(), c.fixed()) {
		key, _, _ := strings.Cut(x[2:], ":")
		names = append(names, key)
	}
	return names
}

// remedy is what to do about a change that a reload refuses.
func remedy(c *config) string {
	if c.State.path() != "" {
		return "restart for that, which keeps sessions by way of state.file"
	}
	return "restart for that; with state.file, which is empty, sessions would outlive it"
}

// fixed is the part of the configuration that cannot change while running: what the device is made of.
func (c *config) fixed() config {
	d := c.Device
	d.Addresses = nil
	return config{Device: d}
}

// union returns what is in a or b.
func union(a, b []netip.Prefix) []netip.Prefix { return slices.Concat(a, difference(b, a)) }

// difference returns what is in a and not in b.
func difference(a, b []netip.Prefix) (d []netip.Prefix) {
	for _, p := range a {
		if !slices.Contains(b, p) {
			d = append(d, p)
		}
	}
	return d
}
