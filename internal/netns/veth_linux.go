package netns

import (
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/internal/rtnl"
)

// End is one end of a virtual Ethernet cable.
type End struct {
	NS    *Namespace
	Name  string // of the interface, at most 15 bytes
	Addrs []netip.Prefix
	MTU   int // 0: 1500

	// NoOffload has every packet that leaves here carry its own checksum and fit the MTU, and those that
	// arrive verified. Set it on both ends of a cable.
	NoOffload bool
}

// Join puts a cable between two namespaces, gives its ends their addresses and takes them up.
func Join(a, b End) error {
	v := rtnl.Veth{Name: a.Name, Peer: b.Name, Index: a.NS.next(0), PeerIndex: b.NS.next(1)}
	err := b.NS.use(func(fd int) error {
		v.PeerNS = fd
		return a.NS.Do(func() error { return rtnl.AddVeth(v) })
	})
	if err != nil {
		return fmt.Errorf("netns: %w", err)
	}
	for _, e := range []End{a, b} {
		if err := e.NS.Do(e.configure); err != nil {
			return fmt.Errorf("netns: %s: %w", e.Name, err)
		}
	}
	return nil
}

// next returns an interface number nobody in n has yet, even or odd.
func (n *Namespace) next(odd int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cables++
	return 1000 + 2*n.cables + odd
}

func (e End) configure() error {
	index, err := rtnl.Index(e.Name)
	if err != nil {
		return err
	}
	if e.NoOffload {
		if err := noOffload(e.Name); err != nil {
			return err
		}
	}
	if e.MTU != 0 {
		if err := rtnl.SetMTU(index, e.MTU); err != nil {
			return err
		}
	}
	if err := rtnl.SetUp(index, true); err != nil {
		return err
	}
	for _, p := range e.Addrs {
		if err := rtnl.AddAddr(index, p); err != nil {
			return err
		}
	}
	return nil
}

// DefaultVia sends all that is not local to the gateways, one per address family.
func (n *Namespace) DefaultVia(gateways ...netip.Addr) error {
	return n.Do(func() error {
		for _, g := range gateways {
			if err := rtnl.ReplaceRoute(rtnl.Route{Dst: Everywhere(g), Gateway: g}); err != nil {
				return fmt.Errorf("netns: %w", err)
			}
		}
		return nil
	})
}

// Everywhere is the default route's destination in the family of a.
func Everywhere(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// Router lets the kernel forward packets of both families between the namespace's
// interfaces, from whichever source they claim to come.
func (n *Namespace) Router() error {
	for _, s := range [][2]string{
		{"net.ipv4.ip_forward", "1"},
		// The stricter of "all" and the interface's own value counts.
		{"net.ipv4.conf.all.rp_filter", "0"},
		{"net.ipv4.conf.default.rp_filter", "0"},
		{"net.ipv6.conf.all.forwarding", "1"},
	} {
		if err := n.Sysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}
