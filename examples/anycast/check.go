package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

// check finds what the types cannot say.
func (c *config) check(f *conf.File) {
	f.Version(c.Version)
	if c.Sessions < 0 || c.Sessions > 1<<28 {
		f.Add("sessions", "%d: want 1 to %d", c.Sessions, 1<<28)
	}
	if or(c.Linger, 0) < 0 {
		f.Add("linger", "%v: want 0s or more", *c.Linger)
	}
	if c.Device.MTU != 0 && (c.Device.MTU < 1280 || c.Device.MTU > 65521) {
		f.Add("device.mtu", "%d: want 1280 to 65521", c.Device.MTU)
	}
	if c.Device.Queues < 0 || c.Device.Queues > 256 {
		f.Add("device.queues", "%d: want 1 to 256", c.Device.Queues)
	}
	c.BGP.check(f)
	c.Damping.check(f)
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		if c.Farms[name] != nil {
			c.Farms[name].check(f, "farms."+name, c.Source)
		}
	}
	c.checkVIPs(f)
	if f.Err() != nil {
		return
	}
	// The library's own judgement of what is left: families, metrics, whatever else.
	if _, err := c.compile(newPools(nil)); err != nil {
		f.Add("vips", "%v", err)
	}
}

func (b *bgpSpeaker) check(f *conf.File) {
	if b.RouterID.IsValid() && (!b.RouterID.Is4() || b.RouterID.IsUnspecified()) {
		f.Add("bgp.router-id", "%v: want an IPv4 address, not 0.0.0.0", b.RouterID)
	}
	if h := or(b.HoldTime, 3*time.Second); h < 3*time.Second || h > 65535*time.Second || h%time.Second != 0 {
		f.Add("bgp.hold-time", "%v: want whole seconds, 3s to 65535s", h)
	}
	var has [len(familyNames)]bool
	for i, h := range b.NextHops {
		if h.IsValid() && has[familyOf(h)] {
			f.Add(fmt.Sprintf("bgp.next-hops[%d]", i), "%v: want one address of a family", h)
		}
		has[familyOf(h)] = true
	}
	if len(b.Peers) == 0 {
		f.Add("bgp.peers", "empty: want at least one router")
	}
	seen := map[netip.Addr]int{}
	for i, p := range b.Peers {
		if p == nil {
			continue
		}
		at := fmt.Sprintf("bgp.peers[%d]", i)
		if j, ok := seen[p.Address]; ok && p.Address.IsValid() {
			f.Add(at+".address", "%v is the address of peers[%d] too", p.Address, j)
		}
		seen[p.Address] = i
		p.check(f, at, b)
	}
}

func (p *peer) check(f *conf.File, at string, b *bgpSpeaker) {
	if !p.Address.IsValid() {
		return
	}
	if p.Address.IsUnspecified() || p.Address.IsMulticast() || p.Address.Is4In6() {
		f.Add(at+".address", "%v: want the address of a router", p.Address)
	}
	if p.Local.IsValid() && familyOf(p.Local) != familyOf(p.Address) {
		f.Add(at+".local", "%v: the router's address, %v, is of the other family", p.Local, p.Address)
	}
	for i, fam := range p.families() {
		if fam != familyOf(p.Address) && !b.nextHop(fam).IsValid() {
			f.Add(fmt.Sprintf("%s.families[%d]", at, i), "%v over a session of the other family: want an address of it in bgp.next-hops", fam)
		}
	}
	if p.Passive && b.ListenPort == 0 {
		f.Add(at+".passive", "true, but bgp.listen-port is 0: nobody would connect")
	}
	if p.Hops > 1 && p.AS == b.AS {
		f.Add(at+".hops", "%d: routers of the same AS may be anywhere", p.Hops)
	}
}

// nextHop is the configured one of a family, or the zero Addr.
func (b *bgpSpeaker) nextHop(fam family) netip.Addr {
	for _, h := range b.NextHops {
		if h.IsValid() && familyOf(h) == fam {
			return h
		}
	}
	return netip.Addr{}
}

// families are those that the session carries.
func (p *peer) families() []family {
	if len(p.Families) > 0 {
		return p.Families
	}
	return []family{familyOf(p.Address)}
}

func (d *damping) check(f *conf.File) {
	for _, x := range []struct {
		path string
		d    *time.Duration
	}{{"announce-after", d.AnnounceAfter}, {"withdraw-after", d.WithdrawAfter}} {
		if or(x.d, 0) < 0 {
			f.Add("damping."+x.path, "%v: want 0s or more", *x.d)
		}
	}
	for _, x := range []struct {
		path string
		d    *time.Duration
	}{{"half-life", d.HalfLife}, {"longest", d.Longest}} {
		if or(x.d, time.Second) <= 0 {
			f.Add("damping."+x.path, "%v: want more than 0s", *x.d)
		}
	}
	r := d.rules()
	if r.reuse <= 0 {
		f.Add("damping.reuse", "%v: want 1 or more", r.reuse)
	}
	if r.suppress <= r.reuse {
		f.Add("damping.suppress", "%v: want more than reuse, %v", r.suppress, r.reuse)
	}
	if r.suppress >= r.ceiling() {
		f.Add("damping.longest", "%v: with this half-life no address would reach the penalty %v: want at least %v", r.longest, r.suppress, r.halfLives(r.suppress))
	}
}

func (fm *farm) check(f *conf.File, path string, source []netip.Addr) {
	if len(fm.Nodes) == 0 {
		f.Add(path+".nodes", "empty: want at least one node")
	}
	if n := or(fm.MinNodes, 1); n < 0 || n > len(fm.Nodes) && len(fm.Nodes) > 0 {
		f.Add(path+".min-nodes", "%d: want 0 to %d, as many as there are nodes", n, len(fm.Nodes))
	}
	switch fm.forward() {
	case dataplane.NAT, dataplane.FullNAT:
	case dataplane.Tunnelled:
		if len(fm.Nodes) > 0 && fm.Nodes[0] != nil && fm.Nodes[0].Address.IsValid() {
			to := fm.Nodes[0].Address.Addr()
			if !slices.ContainsFunc(source, func(a netip.Addr) bool { return familyOf(a) == familyOf(to) }) {
				f.Add(path+".forward", "tunnel: want an %v address of the balancer in source", familyOf(to))
			}
		}
	default:
		f.Add(path+".forward", "%v does not go with a TUN interface: want nat, fullnat or tunnel", fm.forward())
	}
	names := map[string]int{}
	var first *node
	for i, n := range fm.Nodes {
		if n == nil {
			continue
		}
		at := fmt.Sprintf("%s.nodes[%d]", path, i)
		if j, ok := names[n.Name]; ok {
			f.Add(at+".name", "%q is the name of nodes[%d] too", n.Name, j)
		}
		names[n.Name] = i
		if or(n.Weight, 0) < 0 {
			f.Add(at+".weight", "%d: want 0 or more", *n.Weight)
		}
		if first == nil {
			first = n
		} else if n.Address.IsValid() && first.Address.IsValid() && familyOf(n.Address.Addr()) != familyOf(first.Address.Addr()) {
			f.Add(at+".address", "%v: the farm's first node, %v, is of the other address family", n.Address, first.Address)
		}
		if fm.Check != nil && n.Address.Port() == 0 && fm.Check.Port == 0 && fm.Check.Method != healthcheck.ICMP {
			f.Add(at+".address", "%v has no port, so %s.check needs one", n.Address.Addr(), path)
		}
	}
	if fm.Check != nil {
		if _, err := fm.Check.prober(); err != nil {
			f.Add(path+".check", "%v", err)
		}
		probe := healthcheck.Check{ID: "x", Target: netip.MustParseAddrPort("192.0.2.1:1")}
		fm.Check.fill(&probe)
		if err := probe.Validate(); err != nil {
			f.Add(path+".check", "%v", err)
		}
	}
}

func (c *config) checkVIPs(f *conf.File) {
	if len(c.VIPs) == 0 {
		f.Add("vips", "empty: want at least one")
	}
	vips, services := map[netip.Prefix]int{}, map[string]string{}
	for i, v := range c.VIPs {
		if v == nil {
			continue
		}
		at := fmt.Sprintf("vips[%d]", i)
		if j, ok := vips[v.Address.Prefix]; ok && v.Address.IsValid() {
			f.Add(at+".address", "%v is that of vips[%d] too", v.Address, j)
		}
		vips[v.Address.Prefix] = i
		if v.Address.IsValid() && !c.routed(v.Address.Prefix) {
			f.Add(at+".address", "%v is in none of device.networks", v.Address)
		}
		if len(v.Services) == 0 {
			f.Add(at+".services", "empty: want at least one")
		}
		for j, s := range v.Services {
			if s == nil {
				continue
			}
			at := fmt.Sprintf("%s.services[%d]", at, j)
			if other, ok := services[s.Name]; ok {
				f.Add(at+".name", "%q is the name of %s too", s.Name, other)
			}
			services[s.Name] = at
			if _, ok := c.Farms[s.Farm]; !ok && s.Farm != "" {
				f.Add(at+".farm", "%q: want one of %v", s.Farm, slices.Sorted(maps.Keys(c.Farms)))
			}
		}
	}
}

// routed reports whether packets to all of p come to the device.
func (c *config) routed(p netip.Prefix) bool {
	return len(c.Device.Networks) == 0 || slices.ContainsFunc(c.Device.Networks, func(n conf.Prefix) bool {
		return n.Bits() <= p.Bits() && n.Contains(p.Addr())
	})
}

// notes are what is allowed, but seldom meant.
func (c *config) notes() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Farms)) {
		fm := c.Farms[name]
		if m := fm.metric(); m != steering.Maglev && m != steering.Capacity && m != steering.MinMisses {
			notes = append(notes, fmt.Sprintf("farm %s: with the metric %v another balancer chooses other nodes, so no connection can be taken over", name, m))
		} else if fm.forward() != dataplane.Tunnelled {
			notes = append(notes, fmt.Sprintf("farm %s: with %v nodes answer through this balancer, so no connection can be taken over", name, fm.forward()))
		}
		if fm.Check == nil {
			notes = append(notes, fmt.Sprintf("farm %s: without a check nothing ever withdraws its addresses", name))
		}
	}
	return notes
}
