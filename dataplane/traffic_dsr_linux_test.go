package dataplane_test

import (
	"context"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/afpacket"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/rtnl"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// newSegment is a world on one link: the client 2, the balancer 1 and the servers 3 and 4 are joined by a bridge. The Plane is on
// AF_PACKET and answers for the virtual address, which the servers have, too, and say nothing of.
func newSegment(t *testing.T, h how) *world {
	t.Helper()
	testenv.NeedNetns(t)
	w := &world{how: h, nodes: map[bool][]steering.Node{}, pools: map[bool]*steering.Pool{}, ids: &steering.IDs{}}
	var bridge *netns.Namespace
	for _, n := range []**netns.Namespace{&w.client, &w.balancer, &w.servers[0], &w.servers[1], &bridge} {
		ns, err := netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { ns.Close() })
		*n = ns
	}
	must(t, bridge, "ip", "link", "add", "br0", "type", "bridge")
	must(t, bridge, "ip", "link", "set", "br0", "up")
	for i, host := range []*netns.Namespace{w.balancer, w.client, w.servers[0], w.servers[1]} {
		port := "p" + strconv.Itoa(i)
		for _, s := range [][2]string{{"net.ipv4.conf.all.arp_ignore", "1"}, {"net.ipv4.conf.all.arp_announce", "2"}} {
			require.NoError(t, host.Sysctl(s[0], s[1]))
		}
		require.NoError(t, netns.Join(
			netns.End{NS: bridge, Name: port, NoOffload: h.noOffload},
			netns.End{NS: host, Name: "eth0", Addrs: onLink(0, byte(1+i)), NoOffload: h.noOffload}))
		must(t, bridge, "ip", "link", "set", port, "master", "br0")
	}
	onLink := func(host *netns.Namespace, what string) {
		require.NoError(t, host.Do(func() error {
			i, err := rtnl.Index(what)
			for _, v6 := range []bool{false, true} {
				one := netip.PrefixFrom(wvip(v6), wvip(v6).BitLen())
				if err == nil && what == "lo" {
					err = rtnl.AddAddr(i, one)
				} else if err == nil {
					err = rtnl.ReplaceRoute(rtnl.Route{Dst: one, Index: i})
				}
			}
			return err
		}))
	}
	onLink(w.client, "eth0")
	must(t, w.balancer, "ip", "-6", "route", "add", "blackhole", wvip(true).String()) // or the kernel answers for want of a route
	require.NoError(t, w.balancer.Do(func() error { return afpacket.Preflight([]string{"eth0"}, []netip.Addr{wvip(false), wvip(true)}) }))
	onLink(w.servers[0], "lo")
	onLink(w.servers[1], "lo")

	var rules []policy.Rule[*dataplane.Service]
	for _, v6 := range []bool{false, true} {
		for i := range w.servers {
			w.nodes[v6] = append(w.nodes[v6], steering.Node{Name: "server" + strconv.Itoa(i) + map[bool]string{true: "-6"}[v6], Addr: netip.AddrPortFrom(waddr(v6, 0, byte(3+i)), 0)})
		}
		pool, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin, IDs: w.ids}, w.nodes[v6]...)
		require.NoError(t, err)
		w.pools[v6] = pool
		name := "all" + map[bool]string{true: "-6"}[v6]
		rules = append(rules, policy.Rule[*dataplane.Service]{Name: name, Match: policy.Match{Dst: netip.PrefixFrom(wvip(v6), wvip(v6).BitLen())},
			Value: &dataplane.Service{Name: name, Pool: pool, Mode: clienttable.ServerPerSession, Forward: dataplane.DSR}})
	}
	table, err := policy.Compile(nil, rules...)
	require.NoError(t, err)
	var dev *afpacket.Device
	var hops *afpacket.Hops
	require.NoError(t, w.balancer.Do(func() (err error) {
		if dev, err = afpacket.Open(&afpacket.Config{Interfaces: []string{"eth0"}}); err == nil {
			hops, err = afpacket.NewHops()
		}
		return err
	}))
	t.Cleanup(func() { dev.Close() })
	require.NoError(t, dev.SetVIPs(wvip(false), wvip(true)))
	w.plane, err = dataplane.New(&dataplane.Config{
		Policies: table, Devices: []dataplane.Device{dev}, MaxSessions: 1 << 14,
		NextHop: func(a netip.Addr) (dataplane.Hop, bool) {
			hop, ok := hops.Lookup(a)
			return dataplane.Hop(hop), ok
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- hops.Run(ctx) }()
	go func() { done <- w.plane.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			select {
			case <-done:
			case <-time.After(10 * time.Second):
				t.Error("Run does not end")
			}
		}
		require.NoError(t, w.plane.Close())
		if t.Failed() {
			for reason, n := range w.plane.Drops() {
				t.Logf("dropped: %s %d", reason, n)
			}
			t.Logf("device: %+v", dev.Stats())
		}
	})
	// The servers' MACs are asked for by the first packets to them.
	require.Eventually(t, func() bool {
		for _, v6 := range []bool{false, true} {
			for _, n := range w.nodes[v6] {
				if _, ok := hops.Lookup(n.Addr.Addr()); !ok {
					return false
				}
			}
		}
		return true
	}, 20*time.Second, 10*time.Millisecond)
	return w
}

// TestNetnsDSR has servers on the balancer's link answer past it.
func TestNetnsDSR(t *testing.T) {
	ping := testenv.NeedServers(t, "ping")[0]
	for name, h := range map[string]how{"super-packets": {}, "verified checksums": {noOffload: true}} {
		t.Run(name, func(t *testing.T) {
			w := newSegment(t, h)
			for _, v6 := range []bool{false, true} {
				for i := range w.servers {
					w.serveAt(t, i, wvip(v6), 5030)
					w.echoAt(t, i, wvip(v6), 5031)
				}
				errs := make(chan error)
				const connections = 20
				for range connections {
					go func() { errs <- w.bulk(v6, 5030, 100_000) }()
				}
				for range connections {
					require.NoError(t, <-errs, "IPv6 %v", v6)
				}
				seen := map[string]int{}
				for s := range w.plane.Sessions() {
					require.True(t, s.Direct())
					require.Zero(t, s.Out.Packets)
					seen[s.NodeName]++
				}
				for _, n := range w.nodes[v6] {
					require.Equal(t, connections/2, seen[n.Name], seen)
				}
				for _, size := range []int{10, 1400, 5000, 30000} {
					require.NoError(t, w.askOnce(v6, 5031, size), "IPv6 %v, %d bytes", v6, size)
				}
				family := map[bool]string{false: "-4", true: "-6"}[v6]
				for _, size := range []int{56, 1452, 5000} {
					out := must(t, w.client, ping, family, "-n", "-c", "1", "-W", "20", "-M", "dont", "-s", strconv.Itoa(size), wvip(v6).String())
					require.Contains(t, out, " 1 received", size)
				}
			}
		})
	}
}
