package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

const reloadFile = `version: 1
seed: 1
source: [10.0.0.9, "fd00::9"]
device: {networks: [192.0.2.0/24, "2001:db8::/32"]}
damping: {announce-after: 0s}
bgp:
  as: 64512
  router-id: 10.0.0.9
  peers: [{address: 127.0.0.2, as: 64500, passive: true}, {address: 127.0.0.3, as: 64500, passive: true}]
  listen-port: 40179
farms:
  dns: {check: {method: dns, interval: 1h}, nodes: [{name: a, address: "10.0.0.1:53"}, {name: b, address: "10.0.0.2:53", weight: 3}]}
  web: {nodes: [{name: a, address: 10.0.0.3}]}
vips:
  - {address: 192.0.2.53, services: [{name: dns, protocol: udp, port: 53, farm: dns}]}
  - {address: 192.0.2.80, services: [{name: web, protocol: tcp, port: 80, farm: web}]}
`

// otherFile changes everything that can change: routers, nodes, metrics, checks, a farm's address family, and virtual addresses.
const otherFile = `version: 1
seed: 1
source: [10.0.0.9, "fd00::9"]
device: {networks: [192.0.2.0/24, "2001:db8::/32"]}
damping: {announce-after: 0s}
bgp:
  as: 64512
  router-id: 10.0.0.9
  peers: [{address: 127.0.0.2, as: 64501, passive: true}, {address: 127.0.0.4, as: 64500, passive: true}]
  listen-port: 40179
farms:
  dns: {metric: leastconns, nodes: [{name: b, address: "10.0.0.2:53"}, {name: c, address: "10.0.0.7:53"}]}
  web: {check: {method: tcp, port: 80, interval: 1h}, nodes: [{name: a, address: "fd00::3"}]}
  more: {nodes: [{name: a, address: 10.0.0.4}]}
vips:
  - {address: 192.0.2.53, communities: ["64512:1"], services: [{name: dns, protocol: udp, port: 53, farm: dns}]}
  - {address: "2001:db8::80", services: [{name: web, protocol: tcp, port: 80, farm: web}]}
  - {address: 192.0.2.90, services: [{name: more, farm: more}]}
`

// inProcess is an instance without a device, whose BGP speaker has nobody to speak with.
func inProcess(t *testing.T, text string) *instance {
	t.Helper()
	c, err := decode([]byte(text))
	require.NoError(t, err)
	in := &instance{
		file: "x", log: slog.New(slog.DiscardHandler), conf: c, pools: newPools(nil), networks: c.networks(), poke: make(chan struct{}, 1),
		routes: map[netip.Prefix]*route{}, told: map[netip.Prefix]string{}, why: map[netip.Prefix]string{},
	}
	in.table, err = c.compile(in.pools)
	require.NoError(t, err)
	in.plane, err = dataplane.New(&dataplane.Config{Policies: in.table, Addrs: c.Source, Seed: c.Seed, MaxSessions: 1024, MaxAssociations: 1024})
	require.NoError(t, err)
	t.Cleanup(func() { in.plane.Close() })
	in.monitor, err = healthcheck.NewMonitor(nil)
	require.NoError(t, err)
	require.NoError(t, in.monitor.Set(c.checks()...))
	quiet := c.BGP
	quiet.ListenPort = 0
	in.speaker, err = startSpeaker(&quiet, in.log)
	require.NoError(t, err)
	t.Cleanup(in.speaker.close)
	require.NoError(t, in.speaker.setPeers(c.BGP.Peers))
	in.setUp(dns(in), nil) // as checks would find
	in.announce(time.Now())
	return in
}

func dns(in *instance) []steering.Node { return in.conf.Farms["dns"].nodes("dns") }

// state is all of the configuration in force that can be seen: routers, routes, nodes with their health, checks, and what becomes of packets.
func (in *instance) state(t *testing.T) string {
	t.Helper()
	in.announce(time.Now())
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, p := range in.speaker.status() {
		add("router %s %d", p.Address, p.AS)
	}
	for _, fam := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		require.NoError(t, in.speaker.server.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: fam}, func(prefix bgp.NLRI, paths []*apiutil.Path) {
			for _, p := range paths {
				add("route %v %v", prefix, p.Attrs)
			}
		}))
	}
	for _, name := range slices.Sorted(maps.Keys(in.conf.Farms)) {
		for _, n := range in.pools.byFarm[name].All() {
			add("node %s %v weight %d up %v %v", n.Node.Name, n.Node.Addr, n.Node.Weight, n.Up, n.State)
		}
		add("farm %s %v", name, in.conf.Farms[name].metric())
	}
	for id := range in.monitor.All() {
		k, _ := in.monitor.Check(id)
		add("check %s %v", id, k.Target)
	}
	for _, dst := range []string{"192.0.2.53:53", "192.0.2.80:80", "192.0.2.90:1", "[2001:db8::80]:80"} {
		from := netip.MustParseAddrPort("198.51.100.7:1")
		if strings.HasPrefix(dst, "[") {
			from = netip.MustParseAddrPort("[2001:db8::99]:1")
		}
		for _, number := range []uint8{6, 17} {
			e, err := in.plane.ExplainFlow(number, from, netip.MustParseAddrPort(dst))
			require.NoError(t, err)
			add("packet %d %s %v %v %s", number, dst, e.Verdict, e.Reason, e.Service)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestReloadIsWholeOrNothing: whatever step fails, and however late, everything is as before.
func TestReloadIsWholeOrNothing(t *testing.T) {
	other, err := decode([]byte(otherFile))
	require.NoError(t, err)
	in := inProcess(t, reloadFile)
	before := in.state(t)
	require.Contains(t, before, "route 192.0.2.80/32")
	require.Contains(t, before, "node dns/b 10.0.0.2:53 weight 3 up true available")
	steps, _, err := in.steps(other)
	require.NoError(t, err)
	var names []string
	for _, s := range steps {
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"the routers", "the withdrawals", "the policies", "farm dns", "the checks"}, names)
	late := errors.New("too late")
	for i := range steps {
		for _, done := range []bool{false, true} { // the step fails before, or after it has had its effect
			t.Run(fmt.Sprint(names[i], ", done ", done), func(t *testing.T) {
				steps, _, err := in.steps(other)
				require.NoError(t, err)
				do := steps[i].Do
				steps[i].Do = func() error {
					if done {
						return errors.Join(do(), late)
					}
					return late
				}
				require.ErrorIs(t, conf.Transact(steps), late)
				require.Equal(t, before, in.state(t))
			})
		}
	}
	// The real thing: a file of which one router cannot be had, since its address is taken twice in the speaker's eyes.
	require.NoError(t, in.speaker.server.AddPeer(t.Context(), &api.AddPeerRequest{Peer: in.speaker.peer(other.BGP.Peers[1])}))
	in.file = write(t, otherFile)
	require.ErrorContains(t, in.reload(), "bgp: router 127.0.0.4")
	require.NoError(t, in.speaker.server.DeletePeer(t.Context(), &api.DeletePeerRequest{Address: "127.0.0.4"}))
	require.Equal(t, before, in.state(t))
	// Once nothing fails, all of it is in force; and back again.
	require.NoError(t, in.reload())
	after := in.state(t)
	for _, want := range []string{"router 127.0.0.2 64501", "router 127.0.0.4 64500", "route 192.0.2.90/32", "node dns/c 10.0.0.7:53 weight 0 up true available", "farm dns leastconns", "check web/a [fd00::3]:80", "node web/a [fd00::3]:0 weight 0 up false"} {
		require.Contains(t, after, want)
	}
	for _, gone := range []string{"127.0.0.3", "route 192.0.2.80", "route 2001:db8::80", "dns/a", "check dns"} {
		require.NotContains(t, after, gone)
	}
	require.NoError(t, os.WriteFile(in.file, []byte(reloadFile), 0o600))
	require.NoError(t, in.reload())
	in.setUp(dns(in), nil)
	require.Equal(t, before, in.state(t))
}

// A node that its check had found down is up once there is no check for it any more.
func TestCheckGoes(t *testing.T) {
	in := inProcess(t, reloadFile)
	in.setUp(dns(in), map[string]bool{})
	require.Contains(t, in.state(t), "node dns/a 10.0.0.1:53 weight 0 up false")
	in.file = write(t, strings.Replace(reloadFile, "check: {method: dns, interval: 1h}, ", "", 1))
	require.NoError(t, in.reload())
	require.Contains(t, in.state(t), "node dns/a 10.0.0.1:53 weight 0 up true")
}

// The balancer's addresses and room for sessions change while packets flow, or not at all.
func TestSessionsAndSource(t *testing.T) {
	in := inProcess(t, reloadFile+"sessions: 1024\n")
	before := in.state(t)
	for _, c := range []struct {
		source   string
		sessions int
	}{{`10.0.0.8, "fd00::8"`, 2000}, {"10.0.0.7", 500}, {`"fd00::7", 10.0.0.6`, 3000}} {
		file := strings.Replace(reloadFile, `10.0.0.9, "fd00::9"`, c.source, 1) + fmt.Sprintf("sessions: %d\n", c.sessions)
		was := in.plane.MaxSessions()
		next, err := decode([]byte(file))
		require.NoError(t, err)
		steps, _, err := in.steps(next)
		require.NoError(t, err)
		late := errors.New("too late")
		require.ErrorIs(t, conf.Transact(append(steps, conf.Step{Do: func() error { return late }, Undo: func() error { return nil }})), late)
		require.Equal(t, was, in.plane.MaxSessions())
		in.file = write(t, file)
		require.NoError(t, in.reload())
		require.Equal(t, in.conf.sessions(), in.plane.MaxSessions())
		require.Equal(t, before, in.state(t))
	}
	in.file = write(t, strings.Replace(reloadFile, `10.0.0.9, "fd00::9"`, `"fd00::9"`, 1))
	require.ErrorContains(t, in.reload(), "source")
}

// What cannot change while running is refused, and named.
func TestReloadRefuses(t *testing.T) {
	in := inProcess(t, reloadFile)
	before := in.state(t)
	for old, next := range map[string]string{"seed: 1": "seed: 2", "as: 64512": "as: 64513", "192.0.2.0/24": "192.0.2.0/25, 192.0.2.128/25"} {
		in.file = write(t, strings.Replace(reloadFile, old, next, 1))
		require.ErrorContains(t, in.reload(), "cannot change while running")
	}
	in.file = write(t, "version: 1\n")
	require.ErrorContains(t, in.reload(), "vips is missing")
	require.Equal(t, before, in.state(t))
}
