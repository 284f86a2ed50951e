package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/examples/internal/lab"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
	"github.com/lbprim/lbprim/steering/path"
)

// Hosts of the site, by number: four balancers, two nodes, two gateways, the LAN's hosts and those behind the WAN.
const (
	balancers = 4
	nodes     = 2
	gateways  = 2
	hostNode  = balancers
	hostGate  = hostNode + nodes
	hostLAN   = hostGate + gateways
	hostWAN   = hostLAN + 1
	hosts     = hostWAN + 1
)

// Ports on which hosts take packets from each other. All of them travel in UDP between the hosts, as the cables do in a real site.
const (
	portLAN     = 7001 // of a balancer: from the LAN side of its link
	portWAN     = 7002 // from the WAN side
	portBack    = 7003 // from a node that has done with a packet: the side it leaves by, and the packet
	portChannel = 4754 // GRE in UDP (RFC 8086): from a node, for a channel
	portCluster = 7946
	portNode    = 7100
	portGate    = 7200
	portEnd     = 7300
)

var uplinks = [gateways]string{"mpls", "internet"}

var links = [balancers / 2]string{"east", "west"}

func balancerName(i int) string { return fmt.Sprintf("b%d", i+1) }
func nodeName(i int) string     { return fmt.Sprintf("n%d", i+1) }

// site is everything that the program simulates around the balancers, and what the hosts have seen.
type site struct {
	hosts   []lab.StarHost
	members [balancers]*member
	up      [gateways]atomic.Bool // whether a gateway forwards
	ledger  *ledger
	wg      sync.WaitGroup

	probeTimeout time.Duration
}

// rules is the configuration of interception that all members share.
func rules(s *site) *intercept.Config {
	c := &intercept.Config{
		Seed: 4711, AllowFailure: true,
		InPath: []intercept.InPathRule{
			{Name: "no telnet", Match: intercept.Match{DstPort: intercept.Port(23)}, Action: intercept.Deny},
			{Name: "ssh", Match: intercept.Match{DstPort: intercept.Port(22)}, Action: intercept.PassThrough},
		},
		Rules: []intercept.Rule{{Name: "web", Match: intercept.Match{DstPort: intercept.Port(80)}, Targets: []string{"n1", "n2"}}},
		Services: []intercept.Row{
			{Name: "ssh", B: intercept.Endpoint{Ports: intercept.Port(22)}, Protocol: protoTCP, PassThrough: true},
			{Name: "dns", B: intercept.Endpoint{Ports: intercept.Port(53)}, Protocol: protoUDP},
		},
	}
	for i := range nodes {
		c.Nodes = append(c.Nodes, intercept.Node{Node: steering.Node{Name: nodeName(i), Addr: netip.AddrPortFrom(s.hosts[hostNode+i].Addr, portNode)}})
	}
	return c
}

// paths is the configuration of path selection that all members share: web and name service leave by mpls, else by the internet, else as they came.
func paths(s *site) *path.Config {
	c := &path.Config{
		Local:   "here",
		Sites:   []path.Site{{Name: "here"}, {Name: "there", Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:2::/48")}}},
		Rules:   []path.Rule{{Name: "there", Match: path.Match{DstSite: "there"}, Uplinks: uplinks[:]}},
		Probing: path.Probing{Interval: probeEvery, Idle: probeEvery, Timeout: s.probeTimeout, Losses: 3},
	}
	for i := range gateways {
		c.Sites[0].Uplinks = append(c.Sites[0].Uplinks, path.Uplink{Name: uplinks[i], Gateway: s.hosts[hostGate+i].Addr})
	}
	for i := range balancers {
		c.Balancers = append(c.Balancers, path.Balancer{Name: balancerName(i), Interfaces: []path.Interface{{Name: "inpath", Prefix: netip.PrefixFrom(s.hosts[i].Addr, 16)}}})
	}
	return c
}

// receive hands every packet that comes to a port of a host to take, until ctx is done; wg waits for the end.
func (s *site) receive(ctx context.Context, wg *sync.WaitGroup, host, port int, take func(from netip.Addr, b []byte)) error {
	c, err := s.hosts[host].ListenPacket(ctx, "udp", netip.AddrPortFrom(s.hosts[host].Addr, uint16(port)).String())
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	wg.Go(func() {
		defer stop()
		b := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				continue
			}
			if u, ok := from.(*net.UDPAddr); ok {
				take(u.AddrPort().Addr().Unmap(), b[:n])
			}
		}
	})
	return nil
}

// outlet sends packets from a host.
type outlet struct{ net.PacketConn }

func (s *site) outlet(ctx context.Context, host int) (outlet, error) {
	c, err := s.hosts[host].ListenPacket(ctx, "udp", netip.AddrPortFrom(s.hosts[host].Addr, 0).String())
	return outlet{c}, err
}

// send loses a packet that cannot be sent, as networks do.
func (o outlet) send(to netip.Addr, port int, b []byte) {
	_, _ = o.WriteTo(b, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, uint16(port))))
}

// onLink is the balancer that packets on a link meet: the first of the pair that is up. A balancer that is down is a cable, and so is the whole
// link if both are.
func (s *site) onLink(link int) (m *member) {
	for i := range balancers / 2 {
		if m := s.members[2*link+i]; m.alive.Load() {
			return m
		}
	}
	return nil
}

// cross sends a packet onto a link from one of its sides.
func (s *site) cross(o outlet, link int, from intercept.Side, b []byte) {
	m := s.onLink(link)
	switch {
	case m == nil && from == intercept.LAN:
		o.send(s.hosts[hostWAN].Addr, portEnd, b)
	case m == nil:
		o.send(s.hosts[hostLAN].Addr, portEnd, b)
	case from == intercept.LAN:
		o.send(m.host.Addr, portLAN, b)
	default:
		o.send(m.host.Addr, portWAN, b)
	}
}
