package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
)

const reloadFile = `version: 1
device: {addresses: [10.0.0.254, "2001:db8::fe"]}
flow-export: {collector: "127.0.0.1:4739"}
farms:
  dns:
    metric: roundrobin
    mode: server-per-session
    nodes: [{name: a, address: "10.0.0.1:53"}, {name: b, address: "10.0.0.2:53", weight: 3}]
  web:
    check: {method: tcp, interval: 1h}
    nodes: [{name: a, address: "10.0.0.3:80"}]
services:
  - {name: dns, vip: 192.0.2.53, protocol: udp, port: 53, farm: dns, export-flows: true}
  - {name: web, vip: 192.0.2.80, protocol: tcp, port: 80, farm: web}
`

// otherFile changes everything that can change: nodes come, go and move to the other family, farms get another metric and other checks, virtual
// addresses and the collector are others.
const otherFile = `version: 1
device: {addresses: [10.0.0.254, "2001:db8::fe"]}
flow-export: {collector: "127.0.0.1:9995"}
farms:
  dns:
    metric: leastconns
    mode: server-per-session
    check: {method: dns, query: a.example, interval: 1h}
    nodes: [{name: b, address: "10.0.0.2:53"}, {name: c, address: "10.0.0.9:53"}]
  web:
    nodes: [{name: a, address: "[2001:db8::3]:80"}]
  more:
    forward: tunnel
    nodes: [{name: a, address: "10.0.0.4"}]
services:
  - {name: dns, vip: 192.0.2.54, protocol: udp, port: 53, farm: dns, export-flows: true}
  - {name: web, vip: "2001:db8::80", protocol: tcp, port: 80, farm: web}
  - {name: more, vip: 192.0.2.90, farm: more}
`

// inProcess is an instance without a device: what the device is told of virtual addresses is noted.
type inProcess struct {
	*instance
	routed []netip.Prefix
	refuse error // of the device
}

func newInProcess(t *testing.T, text string) *inProcess {
	t.Helper()
	c, err := decode([]byte(text))
	require.NoError(t, err)
	x := &inProcess{instance: &instance{
		file: "x", log: slog.New(slog.DiscardHandler), conf: c, pools: newPools(nil), wishes: wishes{}, admin: &adminServer{}, started: time.Now(),
	}, routed: c.routed()}
	x.follow = func(routed []netip.Prefix) error {
		x.routed = routed
		return x.refuse
	}
	x.table, err = c.compile(x.pools, nil, nil)
	require.NoError(t, err)
	x.plane, err = dataplane.New(&dataplane.Config{Policies: x.table, Addrs: c.Device.Addresses, MaxSessions: cmp.Or(c.Sessions, 4096), MaxAssociations: cmp.Or(c.Associations, 4096)})
	require.NoError(t, err)
	t.Cleanup(func() { x.plane.Close() })
	require.NoError(t, x.newRoster(healthcheck.Config{}))
	require.NoError(t, x.roster.Set(c.setup()))
	x.exporting, err = c.Flows.open()
	require.NoError(t, err)
	t.Cleanup(func() { x.exporting.close() })
	require.NoError(t, x.plane.SetFlowExport(x.exporting.config()))
	return x
}

// ask sends a client's question to the virtual address, and returns where it goes.
func (x *inProcess) ask(t *testing.T, vip string, port int) string {
	t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4(198, 51, 100, 7), DstIP: net.ParseIP(vip)}
	udp := &layers.UDP{SrcPort: layers.UDPPort(port), DstPort: 53} //nolint:gosec // a test's port
	require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
	b := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload("question")))
	buf := append(make([]byte, dataplane.ReadOffset), b.Bytes()...)
	verdict := make([]dataplane.Verdict, 1)
	out := x.plane.Process(time.Now(), [][]byte{buf}, []int{len(b.Bytes())}, dataplane.ReadOffset, verdict)
	if verdict[0] != dataplane.Forwarded {
		return verdict[0].String()
	}
	require.Len(t, out, 1)
	p := gopacket.NewPacket(out[0][dataplane.Headroom:], layers.LayerTypeIPv4, gopacket.Default)
	return p.NetworkLayer().NetworkFlow().Dst().String()
}

// state is all of the configuration in force that can be seen, and none of the counters.
func (x *inProcess) state(t *testing.T) string {
	t.Helper()
	s := x.status()
	s.Now, s.Totals, s.Flows, s.Drops, s.Config = time.Time{}, totalsReply{}, flowsReply{}, nil, configReply{}
	for i := range s.Services {
		s.Services[i].Traffic = trafficReply{}
	}
	for _, f := range s.Farms {
		for i := range f.Nodes {
			f.Nodes[i].Traffic, f.Nodes[i].Got, f.Nodes[i].Health.Since = trafficReply{}, 0, time.Time{}
			f.Nodes[i].Sessions = 0
		}
	}
	b, err := json.MarshalIndent(s, "", " ")
	require.NoError(t, err)
	text := string(b) + fmt.Sprintln("\n", x.routed, x.exporting.conn.RemoteAddr())
	for _, dst := range []string{"192.0.2.53:53", "192.0.2.54:53", "192.0.2.80:80", "192.0.2.90:1", "[2001:db8::80]:80"} {
		from := netip.MustParseAddrPort("198.51.100.7:1")
		if strings.HasPrefix(dst, "[") {
			from = netip.MustParseAddrPort("[2001:db8::99]:1")
		}
		for _, number := range []uint8{6, 17} {
			e, err := x.plane.ExplainFlow(number, from, netip.MustParseAddrPort(dst))
			require.NoError(t, err)
			text += fmt.Sprintln(number, dst, e.Verdict, e.Reason, e.Service)
		}
	}
	return text
}

// same wants the state to be as it was.
func (x *inProcess) same(t *testing.T, before string) {
	t.Helper()
	if now := x.state(t); now != before {
		was := strings.Split(before, "\n")
		for i, line := range strings.Split(now, "\n") {
			require.Equal(t, was[i], line)
		}
	}
}

// TestReloadIsWholeOrNothing: whatever step fails, and however late, everything is as before, and sessions go on.
func TestReloadIsWholeOrNothing(t *testing.T) {
	other, err := decode([]byte(otherFile))
	require.NoError(t, err)
	x := newInProcess(t, reloadFile)
	defer func() { x.exporting.close() }()
	nodes := map[int]string{}
	for port := range 20 {
		nodes[port] = x.ask(t, "192.0.2.53", 40000+port)
	}
	before := x.state(t)
	steps, _, err := x.steps(other)
	require.NoError(t, err)
	var names []string
	for _, s := range steps {
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"the flow export", "the routes", "the policies", "farm dns", "the checks"}, names)
	late := errors.New("too late")
	for i := range steps {
		for _, done := range []bool{false, true} { // the step fails before, or after it has had its effect
			t.Run(fmt.Sprint(steps[i].Name, ", done ", done), func(t *testing.T) {
				steps, _, err := x.steps(other)
				require.NoError(t, err)
				do := steps[i].Do
				steps[i].Do = func() error {
					if done {
						return errors.Join(do(), late)
					}
					return late
				}
				require.ErrorIs(t, conf.Transact(steps), late)
				x.same(t, before)
				for port, node := range nodes {
					if node != "10.0.0.1" || i < slices.Index(names, "farm dns") { // the sessions of a node that is taken away are gone
						require.Equal(t, node, x.ask(t, "192.0.2.53", 40000+port))
					}
				}
			})
		}
	}
	// The real thing: a device that refuses.
	x.refuse = errors.New("no buffer space available")
	require.ErrorIs(t, x.apply(other), x.refuse)
	x.refuse = nil
	require.NoError(t, x.follow(x.conf.routed()))
	x.same(t, before)
	// A step that cannot be taken back says so.
	err = conf.Transact([]conf.Step{
		{Name: "one", Do: func() error { return nil }, Undo: func() error { return errors.New("stuck") }},
		{Name: "two", Do: func() error { return late }, Undo: func() error { return nil }},
	})
	require.EqualError(t, err, "too late\nand then, taking one back: stuck")
	// And once nothing fails, all of it is in force; and back again.
	require.NoError(t, x.apply(other))
	require.False(t, before == x.state(t), "nothing has changed")
	require.Equal(t, other.routed(), x.routed)
	require.Equal(t, "127.0.0.1:9995", x.exporting.conn.RemoteAddr().String())
	old, err := decode([]byte(reloadFile))
	require.NoError(t, err)
	require.NoError(t, x.apply(old))
	require.Equal(t, old.routed(), x.routed)
	require.Contains(t, []string{"10.0.0.1", "10.0.0.2"}, x.ask(t, "192.0.2.53", 50000))
}

// Hundreds of reloads leave nothing behind: no farm, no route, and no session is lost.
func TestManyReloads(t *testing.T) {
	first, err := decode([]byte(reloadFile))
	require.NoError(t, err)
	second, err := decode([]byte(strings.Replace(otherFile, "[{name: b", `[{name: a, address: "10.0.0.1:53"}, {name: b`, 1)))
	require.NoError(t, err)
	second.Services[0].VIP, second.Flows = first.Services[0].VIP, first.Flows
	x := newInProcess(t, reloadFile)
	nodes := map[int]string{}
	for port := range 20 {
		nodes[port] = x.ask(t, "192.0.2.53", 40000+port)
	}
	for i := range 300 {
		require.NoError(t, x.apply([]*config{second, first}[i%2]))
		x.plane.Step(time.Now()) // as Run does every second
		port := i % 20
		require.Equal(t, nodes[port], x.ask(t, "192.0.2.53", 40000+port), "after %d", i)
	}
	require.Equal(t, 20, x.plane.Stats().Sessions)
	known := 0
	for range x.plane.Nodes() {
		known++
	}
	require.LessOrEqual(t, known, 20, "nodes of farms that are gone")
}

// BenchmarkDecode is what reading a file costs, all its checks included.
func BenchmarkDecode(b *testing.B) {
	for b.Loop() {
		if _, err := decode([]byte(reloadFile)); err != nil {
			b.Fatal(err)
		}
	}
}
