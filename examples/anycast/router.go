package main

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// writeBird writes the routers' side of the sessions, for BIRD 2: a protocol for each peer, to be put into the configuration of the router
// that has its address.
func (c *config) writeBird(w io.Writer) error {
	name := strings.ReplaceAll(c.BGP.RouterID.String(), ".", "_")
	var b strings.Builder
	fmt.Fprintf(&b, `# BIRD 2, for the routers of the balancer %v. A router takes the protocols whose "local" address is its own,
# and needs this once, to use all balancers at the same time:
#
#   protocol device { }
#   protocol kernel { ipv4 { export all; }; merge paths on; }
#   protocol kernel { ipv6 { export all; }; merge paths on; }
#
# and Linux to choose by address and port, so that a connection keeps its balancer:
#
#   sysctl -w net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1
`, c.BGP.RouterID)
	for i, p := range c.BGP.Peers {
		at := p.Local
		if !at.IsValid() && familyOf(p.Address) == ipv4 {
			at = c.BGP.RouterID // as good a guess as any
		}
		if !at.IsValid() {
			return fmt.Errorf("bgp.peers[%d]: want local, this end of the session: a router must know it", i)
		}
		fmt.Fprintf(&b, "\nprotocol bgp anycast_%s_%d {\n  local %v%s as %d;\n  neighbor %v%s as %d;\n", name, i+1, p.Address, port(p.Port), p.AS, at, port(c.BGP.ListenPort), c.BGP.AS)
		if c.BGP.ListenPort == 0 {
			b.WriteString("  passive;\n")
		}
		if p.Hops > 1 {
			fmt.Fprintf(&b, "  multihop %d;  # it needs routes to the next hops, such as those of: protocol direct { ipv4; ipv6; }\n", p.Hops)
		}
		if p.Password.text != "" {
			b.WriteString("  password \"…\";  # the one of the balancer's file\n")
		}
		fmt.Fprintf(&b, "  hold time %d;\n", or(c.BGP.HoldTime, 9*time.Second)/time.Second)
		b.WriteString("  error wait time 1, 10;  # a balancer that was given up and is back is used again soon\n")
		for _, fam := range p.families() {
			var mine []string
			for _, n := range c.networks() {
				if familyOf(n.Addr()) == fam {
					// A network has room for the addresses in it.
					mine = append(mine, n.String()+map[bool]string{false: "+"}[n.IsSingleIP()])
				}
			}
			if len(mine) == 0 {
				mine = []string{netip.PrefixFrom(map[family]netip.Addr{ipv4: netip.IPv4Unspecified(), ipv6: netip.IPv6Unspecified()}[fam], 0).String()}
			}
			slices.Sort(mine)
			fmt.Fprintf(&b, "  %v {\n    import where net ~ [ %s ];\n    export none;\n  };\n", fam, strings.Join(mine, ", "))
		}
		b.WriteString("}\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func port(n uint16) string {
	if n == 0 || n == 179 {
		return ""
	}
	return fmt.Sprintf(" port %d", n)
}
