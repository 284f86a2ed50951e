package main

import (
	"fmt"
	"net/netip"
)

// network is the addresses of a family.
type network struct {
	name    string // as -families has it
	vip     string
	servers [2]string
	hosts   [3][2]netip.Prefix // of the client and the servers: theirs, and the balancer's on the same link
}

// networks are both families. They are not changed.
var networks = []*network{
	{"4", "10.90.100.1", [2]string{"10.90.1.2", "10.90.2.2"}, [3][2]netip.Prefix{
		{netip.MustParsePrefix("10.90.0.2/24"), netip.MustParsePrefix("10.90.0.1/24")},
		{netip.MustParsePrefix("10.90.1.2/24"), netip.MustParsePrefix("10.90.1.1/24")},
		{netip.MustParsePrefix("10.90.2.2/24"), netip.MustParsePrefix("10.90.2.1/24")},
	}},
	{"6", "fd90:0:0:100::1", [2]string{"fd90:0:0:1::2", "fd90:0:0:2::2"}, [3][2]netip.Prefix{
		{netip.MustParsePrefix("fd90::2/64"), netip.MustParsePrefix("fd90::1/64")},
		{netip.MustParsePrefix("fd90:0:0:1::2/64"), netip.MustParsePrefix("fd90:0:0:1::1/64")},
		{netip.MustParsePrefix("fd90:0:0:2::2/64"), netip.MustParsePrefix("fd90:0:0:2::1/64")},
	}},
}

func networkByName(name string) *network {
	for _, n := range networks {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (n *network) v6() bool { return n.name == "6" }

// alone is the virtual address as a prefix.
func (n *network) alone() string {
	if n.v6() {
		return n.vip + "/128"
	}
	return n.vip + "/32"
}

// holder is the client's further address number i.
func (n *network) holder(i int) netip.Prefix {
	p := n.hosts[0][0]
	b := p.Addr().AsSlice()
	b[len(b)-1] = byte(100 + i)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits())
}

// row is a mode with a family: a line of the table.
type row struct {
	mode *mode
	net  *network
}

func (r row) String() string { return label(r.mode.name, r.net) }

func label(mode string, n *network) string {
	if n.v6() {
		return fmt.Sprint(mode, " IPv6")
	}
	return mode
}

// inURL is an address as URLs have it, and configurations before a port.
func inURL(addr string) string {
	if a, err := netip.ParseAddr(addr); err == nil && a.Is6() {
		return "[" + addr + "]"
	}
	return addr
}
