package dataplane_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/afpacket"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/rtnl"
	"github.com/lbprim/lbprim/internal/testenv"
	view "github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
	"github.com/lbprim/lbprim/steering/path"
)

// arrival is a packet for the far host that a gateway got.
type arrival struct {
	gateway   int
	payload   string
	dscp, ttl uint8
}

// listenAt tells what arrives at a gateway for hosts behind it.
func listenAt(t *testing.T, gateway *netns.Namespace, i int, got chan<- arrival) {
	t.Helper()
	var fd int
	require.NoError(t, gateway.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		return err
	}))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		unix.Close(fd)
	})
	go func() {
		defer close(done)
		b := make([]byte, 2000)
		for ctx.Err() == nil {
			n, from, err := unix.Recvfrom(fd, b, 0)
			if ll, ok := from.(*unix.SockaddrLinklayer); err != nil || !ok || ll.Pkttype != unix.PACKET_HOST {
				continue
			}
			var v view.View
			if view.Parse(b[:n], &v) != view.OK || v.Proto != view.ProtoUDP || v.DstPort != 5080 || !v.SumOK(b[:n]) || !v.HeaderSumOK(b[:n]) {
				continue
			}
			select {
			case got <- arrival{i, string(b[v.Payload:v.End]), v.TOS(b) >> 2, v.TTL(b)}:
			case <-ctx.Done():
			}
		}
	}()
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// TestNetnsChannels: what a node sends with the key of a channel leaves by that channel's interface for its gateway, whatever the routes say, marked as the path
// rules want; without a key it goes as it is routed. Nobody else's goes anywhere.
//
//	                       ┌─ wan0 ── gateway 0
//	node ── lan0 balancer ─┤
//	                       └─ wan1 ── gateway 1, by which the routes lead
func TestNetnsChannels(t *testing.T) {
	testenv.NeedNetns(t)
	var host [4]*netns.Namespace
	for i := range host {
		ns, err := netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { ns.Close() })
		host[i] = ns
	}
	balancer, node, gateways := host[0], host[1], host[2:]
	for i, name := range []string{"lan0", "wan0", "wan1"} {
		require.NoError(t, netns.Join(netns.End{NS: balancer, Name: name, Addrs: onLink(byte(1+i), 1)}, netns.End{NS: host[1+i], Name: "eth0", Addrs: onLink(byte(1+i), 2)}))
	}
	far := map[bool]netip.Addr{false: netip.MustParseAddr("198.51.100.200"), true: netip.MustParseAddr("2001:db8:200::1")}
	stranger := map[bool]netip.Addr{false: waddr(false, 1, 9), true: waddr(true, 1, 9)}
	var uplinks []path.Uplink
	var interfaces []path.Interface
	var nodes []intercept.Node
	for _, v6 := range []bool{false, true} {
		bits := map[bool]int{false: 24, true: 64}[v6]
		for i := range gateways {
			cable := byte(2 + i)
			uplinks = append(uplinks, path.Uplink{Name: fmt.Sprint("uplink", i, " ", v6), Gateway: waddr(v6, cable, 2)})
			interfaces = append(interfaces, path.Interface{Name: fmt.Sprint("wan", i, " ", v6), Prefix: netip.PrefixFrom(waddr(v6, cable, 1), bits)})
		}
		nodes = append(nodes, intercept.Node{Node: steering.Node{Name: fmt.Sprint("node", v6), Addr: netip.AddrPortFrom(waddr(v6, 1, 2), 0)}})
		own := netip.PrefixFrom(wlocal(v6), wlocal(v6).BitLen())
		require.NoError(t, balancer.Do(func() error {
			return rtnl.ReplaceRoute(rtnl.Route{Dst: netip.PrefixFrom(far[v6], far[v6].BitLen()), Gateway: waddr(v6, 3, 2)})
		}))
		must(t, balancer, "ip", map[bool]string{false: "-4", true: "-6"}[v6], "route", "add", "blackhole", own.String()) // it is the Plane's, not the kernel's
		require.NoError(t, node.Do(func() error {
			i, err := rtnl.Index("eth0")
			if err == nil {
				err = rtnl.ReplaceRoute(rtnl.Route{Dst: own, Index: i})
			}
			return err
		}))
		must(t, node, "ip", "addr", "add", netip.PrefixFrom(stranger[v6], bits).String(), "dev", "eth0", map[bool]string{false: "noprefixroute", true: "nodad"}[v6])
	}
	paths, err := path.New(&path.Config{
		Local: "here", Sites: []path.Site{{Name: "here", Uplinks: uplinks}}, Balancers: []path.Balancer{{Name: "b1", Interfaces: interfaces}},
		Rules: []path.Rule{{Name: "voice", Match: path.Match{DstPort: path.Ports{First: 5080, Last: 5080}}, SetDSCP: path.CodePoint(46)}},
	}, 1, nil)
	require.NoError(t, err)
	engine, err := intercept.New(&intercept.Config{IDs: &steering.IDs{}, Nodes: nodes})
	require.NoError(t, err)

	var dev *afpacket.Device
	var hops *afpacket.Hops
	require.NoError(t, balancer.Do(func() (err error) {
		if dev, err = afpacket.Open(&afpacket.Config{Interfaces: []string{"lan0", "wan0", "wan1"}}); err == nil {
			hops, err = afpacket.NewHops()
		}
		return err
	}))
	t.Cleanup(func() { dev.Close() })
	require.NoError(t, dev.SetVIPs(wlocal(false), wlocal(true)))
	lookup := func(a netip.Addr) (dataplane.Hop, bool) {
		hop, ok := hops.Lookup(a)
		return dataplane.Hop(hop), ok
	}
	plane, err := dataplane.New(&dataplane.Config{
		Devices: []dataplane.Device{dev}, NextHop: lookup, Addrs: []netip.Addr{wlocal(false), wlocal(true)}, Foreign: dataplane.Drop,
		Intercept: &dataplane.Intercept{
			Engine: engine, Tunnel: dataplane.Tunnel{Kind: dataplane.GRE}, Paths: paths, Balancer: "b1",
			Channel: func(c path.Channel) (dataplane.Hop, bool) { return lookup(c.Gateway) },
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- hops.Run(ctx) }()
	go func() { done <- plane.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		<-done
		require.NoError(t, plane.Close())
	})
	got := make(chan arrival, 100)
	for i, g := range gateways {
		listenAt(t, g, i, got)
	}
	drops := func(why dataplane.Reason) uint64 {
		for r, n := range plane.Drops() {
			if r == why {
				return n
			}
		}
		return 0
	}
	channel := map[string]path.ChannelID{}
	for _, c := range paths.Channels() {
		channel[c.Uplink] = c.ID
	}
	require.Len(t, channel, 4)

	for _, v6 := range []bool{false, true} {
		raw := map[bool]string{false: "ip4:47", true: "ip6:47"}[v6]
		send := func(t *testing.T, from netip.Addr, id path.ChannelID, text string) func() {
			c, err := node.ListenPacket(context.Background(), raw, from.String())
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			var ip gopacket.NetworkLayer = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: waddr(v6, 50, 1).AsSlice(), DstIP: far[v6].AsSlice()}
			typ := uint16(view.EtherIPv4)
			if v6 {
				ip, typ = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: waddr(v6, 50, 1).AsSlice(), DstIP: far[v6].AsSlice()}, view.EtherIPv6
			}
			u := &layers.UDP{SrcPort: 1234, DstPort: 5080}
			require.NoError(t, u.SetNetworkLayerForChecksum(ip))
			buf := gopacket.NewSerializeBuffer()
			require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip.(gopacket.SerializableLayer), u, gopacket.Payload(text)))
			b := append(path.AppendHeader(nil, id, typ), buf.Bytes()...)
			require.True(t, text == "none" == (id == 0))
			if id == 0 {
				b = append([]byte{0, 0, byte(typ >> 8), byte(typ)}, buf.Bytes()...)
			}
			return func() {
				_, err := c.WriteTo(b, &net.IPAddr{IP: wlocal(v6).AsSlice()})
				require.NoError(t, err)
			}
		}
		for _, c := range []struct {
			name    string
			id      path.ChannelID
			gateway int
		}{
			{"channel 0", channel[fmt.Sprint("uplink0 ", v6)], 0}, {"channel 1", channel[fmt.Sprint("uplink1 ", v6)], 1}, {"none", 0, 1},
		} {
			t.Run(fmt.Sprintf("IPv6 %v, %s", v6, c.name), func(t *testing.T) {
				again := send(t, waddr(v6, 1, 2), c.id, c.name)
				for deadline := time.Now().Add(30 * time.Second); ; { // the first ones may be before a neighbour is known
					again()
					select {
					case a := <-got:
						if a.payload != c.name {
							continue // of the case before
						}
						require.Equal(t, arrival{c.gateway, c.name, 46, 63}, a)
						return
					case <-time.After(200 * time.Millisecond):
						require.True(t, time.Now().Before(deadline), "nothing arrives")
					}
				}
			})
		}
		for name, c := range map[string]struct {
			from netip.Addr
			id   path.ChannelID
			why  dataplane.Reason
		}{"no channel's key": {waddr(v6, 1, 2), 0xfffff, dataplane.UnknownChannel}, "no node": {stranger[v6], channel[fmt.Sprint("uplink0 ", v6)], dataplane.ForeignTunnel}} {
			t.Run(fmt.Sprintf("IPv6 %v, %s", v6, name), func(t *testing.T) {
				before := drops(c.why)
				again := send(t, c.from, c.id, name)
				require.Eventually(t, func() bool { again(); return drops(c.why) > before }, 30*time.Second, 50*time.Millisecond)
				for len(got) > 0 {
					require.NotEqual(t, name, (<-got).payload)
				}
			})
		}
	}
}
