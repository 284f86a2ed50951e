package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// setupTable is the routing table of the printed commands. (The table of run's own setup has another number.)
const setupTable = 7026

// setupCommands are what an administrator does in place of run, or to undo that. A device made this way outlives the balancer, so that
// packets wait for a restart, or are lost, but are never answered or forwarded by the kernel meanwhile.
func (c *config) setupCommands(undo bool) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	var v4, v6 bool
	for _, p := range c.routed() {
		v4, v6 = v4 || p.Addr().Is4(), v6 || p.Addr().Is6()
	}
	if c.Device.Type == afpacketDevice {
		// Without a route, the kernel would tell IPv6 clients that a virtual address cannot be reached.
		b.WriteString(blackholeCommands(map[bool]string{true: "del", false: "replace"}[undo], c.routed()))
		if undo {
			line("# Beside this, nothing was set up but that the kernel forwards no packets.")
			return b.String()
		}
		for _, name := range c.Device.Interfaces {
			line("sysctl -w net/ipv4/conf/%s/forwarding=0", name)
		}
		if v6 {
			line("sysctl -w net/ipv6/conf/all/forwarding=0")
		}
		return b.String()
	}
	name := c.Device.name()
	families := []string{"ip"}
	if v6 {
		families = append(families, "ip -6")
	}
	if undo {
		for range c.Device.Interfaces {
			for _, ip := range families {
				line("%s rule del lookup %d", ip, setupTable)
			}
		}
		line("ip tuntap del dev %s mode tun%s", name, c.multi())
		return b.String()
	}
	line("ip tuntap add dev %s mode tun%s vnet_hdr", name, c.multi())
	line("ip link set %s mtu %d up", name, max(c.Device.MTU, 1500*truthInt(c.Device.MTU == 0)))
	b.WriteString(routeCommands("replace", c.routed(), name, ""))
	for _, from := range c.Device.Interfaces {
		for _, ip := range families {
			line("%s rule add iif %s lookup %d priority 30000", ip, from, setupTable)
		}
	}
	if len(c.Device.Interfaces) > 0 {
		all := []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
		if v6 {
			all = append(all, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		}
		b.WriteString(routeCommands("replace", all, name, fmt.Sprintf(" table %d", setupTable)))
	}
	if v4 {
		line("sysctl -w net.ipv4.ip_forward=1")
	}
	if v6 {
		line("sysctl -w net.ipv6.conf.all.forwarding=1")
	}
	return b.String()
}

func (c *config) multi() string {
	if c.Device.Queues > 1 {
		return " multi_queue"
	}
	return ""
}

func truthInt(b bool) int { return int(truth(b)) }

// blackholeCommands keep the kernel from answering for the IPv6 addresses among these.
func blackholeCommands(verb string, dst []netip.Prefix) string {
	var b strings.Builder
	for _, p := range dst {
		if p.Addr().Is6() {
			fmt.Fprintf(&b, "ip -6 route %s blackhole %v\n", verb, p)
		}
	}
	return b.String()
}

func routeCommands(verb string, dst []netip.Prefix, device, table string) string {
	var b strings.Builder
	for _, p := range dst {
		ip := "ip"
		if p.Addr().Is6() {
			ip = "ip -6"
		}
		fmt.Fprintf(&b, "%s route %s %v dev %s%s\n", ip, verb, p, device, table)
	}
	return b.String()
}
