package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lbprim/lbprim/dataplane/splice"
)

// settings are what the way of a packet depends on beside services and nodes: as Config has them, or a setter since. They are a
// snapshot's, so that all packets of a batch meet the same ones.
type settings struct {
	foreign         Foreign
	pingNodes       int
	checkQuotes     bool
	accelerateAfter uint64
	proxies         map[netip.Addr]bool
	addrs           []netip.Addr
}

func (c *Config) settings() settings {
	return settings{
		foreign: c.Foreign, pingNodes: c.PingNodes, checkQuotes: c.CheckQuotes, accelerateAfter: uint64(c.AccelerateAfter), proxies: setOf(c.Proxies), addrs: c.Addrs,
	}
}

// addr returns the balancer's own address of a family.
func (s *settings) addr(v6 bool) (netip.Addr, bool) { return addrIn(s.addrs, v6) }

func addrIn(addrs []netip.Addr, v6 bool) (netip.Addr, bool) {
	for _, a := range addrs {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// ownAddrs is hosts for the balancer's own addresses.
func ownAddrs(field string, addrs []netip.Addr) (plain []netip.Addr, errs []error) {
	plain, errs = hosts(field, addrs)
	for i, a := range plain {
		if _, two := addrIn(plain[:i], a.Is6()); two {
			errs = append(errs, invalid(fmt.Sprintf("%s[%d]", field, i), addrs[i], "one address of each family"))
		}
	}
	return plain, errs
}

// limit returns the value of a field that bounds something: n, or the default for 0.
func limit(field string, n, fallback int) (int, error) {
	switch {
	case n == 0:
		return fallback, nil
	case n < 0 || n > mostEntries:
		return 0, invalid(field, n, fmt.Sprintf("1 to %d, or 0 for %d", mostEntries, fallback))
	}
	return n, nil
}

// hosts returns addresses without the form of IPv6 that holds one of IPv4, and what is wrong with them.
func hosts(field string, addrs []netip.Addr) (plain []netip.Addr, errs []error) {
	for i, a := range addrs {
		if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			errs = append(errs, invalid(fmt.Sprintf("%s[%d]", field, i), a, "an address of a host"))
		}
		plain = append(plain, a.Unmap())
	}
	return plain, errs
}

func setOf(addrs []netip.Addr) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		set[a] = true
	}
	return set
}

// SetCheckQuotes changes whether ICMP errors are dropped that quote a packet with a wrong checksum, see Config.CheckQuotes.
func (p *Plane) SetCheckQuotes(on bool) { p.alter(func(s *snapshot) { s.checkQuotes = on }) }

// SetAccelerateAfter changes how many packets of one direction a session must have had before the Accelerator is asked for it, see
// Config.AccelerateAfter; 0 is the default. What the Accelerator has stays there.
func (p *Plane) SetAccelerateAfter(n int) error {
	n, err := limit("AccelerateAfter", n, DefaultAccelerateAfter)
	if err == nil {
		p.alter(func(s *snapshot) { s.accelerateAfter = uint64(n) })
	}
	return err
}

// SetProxies replaces the proxies, see Config.Proxies. Sessions stay what they are, those of a proxy's with a service behind it, too.
func (p *Plane) SetProxies(addrs ...netip.Addr) error {
	plain, errs := hosts("Proxies", addrs)
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	p.alter(func(s *snapshot) { s.proxies = setOf(plain) })
	return nil
}

// SetMaxHeld changes how many connections with delayed binding may be without a node, see Config.MaxHeld; 0 is the default. No connection ends for
// it: where there are more than n, a new one finds room once there are fewer.
func (p *Plane) SetMaxHeld(n int) error {
	n, err := limit("MaxHeld", n, DefaultMaxHeld)
	if err == nil {
		p.holds.most.Store(int64(n))
	}
	return err
}

// SetSYNAlarm changes how many half-open handshakes are logged as an attack, see Config.SYNAlarm; 0 is the default. Step judges by it the next time that
// it counts them.
func (p *Plane) SetSYNAlarm(n int) error {
	n, err := limit("SYNAlarm", n, DefaultSYNAlarm)
	if err != nil {
		return err
	}
	p.synMu.Lock()
	defer p.synMu.Unlock()
	p.synAlarm = n
	return nil
}

// SetCookieSecrets replaces the secret of SYN cookies, see Config.CookieSecret: handshakes begin with the first one, and those that have begun with any of the one to
// three go on. A balancer by itself changes to a new secret with (new, old), and leaves the old one out after three minutes or at
// the next change. Balancers that share one all learn the new one first: (old, new), then (new, old), then (new). On an error nothing is
// changed.
func (p *Plane) SetCookieSecrets(secrets ...[]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	probe, err := splice.NewCookies(p.secret, nil)
	if err == nil {
		err = probe.SetSecrets(secrets...)
	}
	if err != nil {
		return fmt.Errorf("%w: CookieSecrets: %w", ErrInvalid, err)
	}
	p.secrets = nil
	for _, s := range secrets {
		p.secrets = append(p.secrets, slices.Clone(s))
	}
	for svc := range p.snap.Load().named() {
		if svc.delay != nil {
			_ = svc.delay.cookies.SetSecrets(p.secrets...) // as probe has
		}
	}
	return nil
}

// SetAddrs replaces the balancer's own addresses, see Config.Addrs: packets in tunnels, those of sessions, too, come from them from then on, and ICMP errors. Nodes
// that take packets from certain addresses only are told of the new ones before. It either does so or, with an error, changes nothing.
//
// The address of a family can be replaced and added; it can be left out where no node of its family may have sessions through a tunnel. With Config.Intercept, addresses can
// only be added, as nodes send what they have to those that they know; and with Config.Relay, Relay.Addr stays.
func (p *Plane) SetAddrs(addrs ...netip.Addr) error {
	plain, errs := ownAddrs("Addrs", addrs)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.snap.Load()
	missing := func(a netip.Addr, why string) {
		errs = append(errs, invalid("Addrs", plain, fmt.Sprintf("%v among them, %s", a, why)))
	}
	if p.relay != nil && !slices.Contains(plain, p.relay.conf.Addr) {
		missing(p.relay.conf.Addr, "where other balancers reach this one (Relay.Addr)")
	}
	tunnels := slices.ContainsFunc(s.ways, func(y *way) bool { return y != nil && y.forward == Tunnelled })
	for _, a := range s.addrs {
		if _, ok := addrIn(plain, a.Is6()); p.inter != nil && !slices.Contains(plain, a) {
			missing(a, "which nodes of Config.Intercept send to")
		} else if i := slices.IndexFunc(s.nodes, func(n *node) bool { return !n.gone && n.addr.Addr().Is6() == a.Is6() }); tunnels && !ok && i >= 0 {
			missing(a, fmt.Sprintf("or another one of the family of node %q, since there are tunnels", s.nodes[i].name))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	p.cfg.Addrs = plain
	next := *s
	next.addrs = plain
	p.snap.Store(&next)
	p.reinstall()
	return nil
}
