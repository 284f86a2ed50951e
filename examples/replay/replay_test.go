package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/internal/testenv"
)

const file = `version: 1
device: {type: tun, interfaces: [eth1]}
farms:
  web:
    metric: %s
    check: {method: http}
    nodes:
      - {name: a, address: "10.0.0.1:8080"}
      - {name: b, address: "10.0.0.2:8080"%s}
services:
  - {name: web, vip: 192.0.2.80, protocol: tcp, port: 80, farm: web}
`

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func run(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	status = program().Run(t.Context(), args, cli.IO{Out: &o, Err: &e})
	return status, o.String(), e.String()
}

// capture is 8 connections to the virtual address with an answer each, one to another port, and one to another host.
func capture(t *testing.T, vlan bool) string {
	t.Helper()
	return captureOf(t, vlan, 8)
}

func captureOf(t *testing.T, vlan bool, clients int) string {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	require.NoError(t, w.WriteFileHeader(65536, layers.LinkTypeEthernet))
	at := time.Unix(1000, 0)
	put := func(src, dst string, sport, dport int, flags string) {
		ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst)}
		tcp := &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: 100, Ack: 7, Window: 1000, SYN: strings.Contains(flags, "S"), ACK: strings.Contains(flags, "A")}
		require.NoError(t, tcp.SetNetworkLayerForChecksum(ip))
		eth := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
		all := []gopacket.SerializableLayer{eth}
		if vlan {
			eth.EthernetType = layers.EthernetTypeDot1Q
			all = append(all, &layers.Dot1Q{VLANIdentifier: 7, Type: layers.EthernetTypeIPv4})
		}
		s := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializeLayers(s, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(all, ip, tcp, gopacket.Payload("hello"))...))
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(s.Bytes()), Length: len(s.Bytes())}, s.Bytes()))
		at = at.Add(time.Millisecond)
	}
	for i := range clients {
		client := fmt.Sprintf("198.51.%d.%d", 100+i/200, i%200+1)
		put(client, "192.0.2.80", 4000, 80, "S")
		put("192.0.2.80", client, 80, 4000, "SA")
		put(client, "192.0.2.80", 4000, 80, "A")
	}
	put("198.51.100.1", "192.0.2.80", 4001, 81, "S")
	put("198.51.100.1", "192.0.2.99", 4001, 80, "S")
	return write(t, "in.pcap", b.String())
}

func TestRun(t *testing.T) {
	conf := write(t, "l4lb.yaml", fmt.Sprintf(file, "roundrobin", ""))
	for _, vlan := range []bool{false, true} {
		status, out, errs := run(t, "run", conf, capture(t, vlan), "-flows", "1")
		require.Zerof(t, status, "%s", errs)
		require.Contains(t, out, "not looked at: device.interfaces, device.type, farms.NAME.check\n")
		require.Contains(t, out, "26 packets: 16 forwarded, 9 passed, 0 answered, 0 held, 1 dropped; 0 frames without IP\n")
		require.Regexp(t, `(?m)^web +web/a +4 +8 +360$`, out)
		require.Regexp(t, `(?m)^web +web/b +4 +8 +360$`, out)
		require.Regexp(t, `(?m)^ +no-policy +1 +1 +45$`, out)
		require.Contains(t, out, "dropped as no-policy: 1\n")
		require.Regexp(t, `(?m)^tcp +198\.51\.100\.1:4000 +192\.0\.2\.80:80 +web +web/a +2 +90 +1$`, out)
		require.Contains(t, out, "… and 8 more; -flows -1 shows all")
	}
	// A node that is down gets nothing.
	status, out, _ := run(t, "run", conf, capture(t, false), "-down", "web/a", "-json")
	require.Zero(t, status)
	var r report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Len(t, r.Flows, 9)
	for _, f := range r.Flows {
		require.NotEqual(t, "web/a", f.Node)
	}
	require.Equal(t, uint64(16), r.Counts.Forwarded)
}

// The packets that would be sent, with why.
func TestOut(t *testing.T) {
	conf := write(t, "l4lb.yaml", fmt.Sprintf(file, "roundrobin", ""))
	name := filepath.Join(t.TempDir(), "out.pcapng")
	status, _, errs := run(t, "run", conf, capture(t, false), "-out", name)
	require.Zerof(t, status, "%s", errs)
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	b, ci, err := r.ReadPacketData()
	require.NoError(t, err)
	require.Equal(t, time.Unix(1000, 0).UTC(), ci.Timestamp.UTC())
	p := gopacket.NewPacket(b, layers.LayerTypeIPv4, gopacket.Default)
	require.Equal(t, "10.0.0.1", p.NetworkLayer().NetworkFlow().Dst().String())
	require.Equal(t, "8080", p.TransportLayer().TransportFlow().Dst().String())
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Contains(t, string(raw), "forwarded; web; node web/a; ")
}

// The capture is not written over.
func TestOutIsNotTheCapture(t *testing.T) {
	conf, in := write(t, "l4lb.yaml", fmt.Sprintf(file, "roundrobin", "")), capture(t, false)
	before, err := os.ReadFile(in)
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(in, link))
	for _, out := range []string{in, link} {
		status, _, errs := run(t, "run", conf, in, "-out", out)
		require.Equal(t, 2, status)
		require.Contains(t, errs, "that is the capture to read")
	}
	after, err := os.ReadFile(in)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestDiff(t *testing.T) {
	old := write(t, "old.yaml", fmt.Sprintf(file, "hash", ""))
	same := write(t, "same.yaml", fmt.Sprintf(file, "hash", ", weight: 1"))
	next := write(t, "new.yaml", fmt.Sprintf(file, "hash", ", weight: 0"))
	status, out, errs := run(t, "diff", old, same, capture(t, false))
	require.Zerof(t, status, "%s", errs)
	require.Equal(t, "9 flows stay, 0 move\n", out)
	status, out, _ = run(t, "diff", "-flows", "1", old, next, capture(t, false))
	require.Equal(t, 3, status)
	require.Regexp(t, `(?m)^tcp +198\.51\.100\.\d+:4000 +192\.0\.2\.80:80 +web/b +web/a$`, out)
	require.Regexp(t, `… and \d more; -flows -1 shows all`, out)
	status, out, _ = run(t, "diff", old, next, capture(t, false))
	require.Equal(t, 3, status)
	require.Regexp(t, `(?m)^web/b +web/a +\d+ +\d+ +tcp 198\.51\.100\.\d+:4000 > 192\.0\.2\.80:80$`, out)
	require.NotContains(t, out, "web/a  web/b", "only what must move moves")
	status, out, _ = run(t, "diff", "-json", old, next, capture(t, false))
	require.Equal(t, 3, status)
	var c comparison
	require.NoError(t, json.Unmarshal([]byte(out), &c))
	require.Len(t, c.Moves, 1)
	require.Len(t, c.Moves[0].Clients, c.Moved)
	require.Len(t, c.Flows, c.Moved)
	require.Equal(t, moved{"tcp", netip.MustParseAddrPort(c.Moves[0].Clients[0]), netip.MustParseAddrPort("192.0.2.80:80"), "web/b", "web/a"}, c.Flows[0])
	// Without the service, its flows are not balanced.
	none := write(t, "none.yaml", strings.Replace(fmt.Sprintf(file, "hash", ""), "192.0.2.80", "192.0.2.81", 1))
	_, out, _ = run(t, "diff", old, none, capture(t, false))
	require.Regexp(t, `(?m)^web/[ab] +not balanced +`, out)
	require.Contains(t, out, "0 flows stay, 9 move")
}

// What the explanation says is what happens, on real traffic.
func TestRealCapture(t *testing.T) {
	name := testenv.SharedFile(t, "flows/zeek_wikipedia.pcap")
	conf := write(t, "any.yaml", `version: 1
farms: {all: {nodes: [{name: a, address: 10.0.0.1}, {name: b, address: 10.0.0.2}]}}
services: [{name: all, vip: 0.0.0.0/0, protocol: tcp, farm: all, lost-session: reselect}]
`)
	status, out, errs := run(t, "run", conf, name, "-json")
	require.Zerof(t, status, "%s", errs)
	var r report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	c := r.Counts
	require.Equal(t, c.Packets, c.Forwarded+c.Passed+c.Answered+c.Held+c.Dropped)
	require.NotZero(t, c.Forwarded)
	for _, f := range r.Flows {
		require.Equal(t, f.Fate == "forwarded", f.Node != "", f)
	}
}

func TestFaults(t *testing.T) {
	good := write(t, "good.yaml", fmt.Sprintf(file, "hash", ""))
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{2, "want CONFIG CAPTURE", []string{"run", good}},
		{2, "want run, diff, help", []string{"play"}},
		{2, "-sessions -1: want 1 to", []string{"run", "-sessions", "-1", good, good}},
		{2, "-flows -2: want a number", []string{"diff", "-flows", "-2", good, good, good}},
		{1, "x.yaml:2:11: sessions: -4: want 1 to", []string{"run", write(t, "x.yaml", strings.Replace(fmt.Sprintf(file, "hash", ""), "device:", "sessions: -4\ndevice:", 1)), good}},
		{1, "x.yaml:1:10: version: 0: this program knows version 1", []string{"run", write(t, "x.yaml", strings.Replace(fmt.Sprintf(file, "hash", ""), "version: 1", "version: 0", 1)), good}},
		{1, "no such file", []string{"run", good, "/no/such"}},
		{1, good, []string{"run", good, good}},
		{1, "has no such node", []string{"run", "-down", "web/z", good, good}},
		{1, `farms.web.metric`, []string{"run", write(t, "x", fmt.Sprintf(file, "best", "")), good}},
		{1, `services[0].farm: "wab": want one of [web]`, []string{"run", write(t, "x", strings.Replace(fmt.Sprintf(file, "hash", ""), "farm: web", "farm: wab", 1)), good}},
	} {
		status, _, errs := run(t, c.args...)
		require.Equal(t, c.status, status, errs)
		require.Contains(t, errs, c.want)
	}
	status, out, _ := run(t, "-h")
	require.Zero(t, status)
	require.Contains(t, out, "replay diff OLD NEW CAPTURE")
	require.Equal(t, "███████████████░░░░░░░░░░░░░░░  50%", progress(1, 2))
}

// There is room for as many sessions as the file says, unless -sessions says otherwise.
func TestSessions(t *testing.T) {
	conf := write(t, "l4lb.yaml", "sessions: 3\n"+fmt.Sprintf(file, "roundrobin", ""))
	name := captureOf(t, false, 400)
	forwarded := func(args ...string) int {
		status, out, errs := run(t, append([]string{"run", "-json", conf, name}, args...)...)
		require.Zero(t, status, errs)
		var r report
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		n := 0
		for _, f := range r.Flows {
			if f.Fate == "forwarded" {
				n++
			}
		}
		return n
	}
	require.Less(t, forwarded(), 200, "some more than 3: the table has a smallest size")
	require.Equal(t, 400, forwarded("-sessions", "1000"))
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var o, e bytes.Buffer
	conf := write(t, "l4lb.yaml", fmt.Sprintf(file, "roundrobin", ""))
	require.Equal(t, 130, program().Run(ctx, []string{"run", conf, capture(t, false)}, cli.IO{Out: &o, Err: &e}))
	require.Equal(t, "replay: interrupted\n", e.String())
}

// Every file of l4lb is taken, its own examples and every key that it knows, and what is not looked at is said.
func TestFilesOfL4lb(t *testing.T) {
	trace := capture(t, false)
	names, err := filepath.Glob("../l4lb/examples/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		status, out, errs := run(t, "run", name, trace)
		require.Zerof(t, status, "%s: %s", name, errs)
		require.Contains(t, out, "packets: ")
	}
	all := write(t, "all.yaml", `version: 1
device: {type: tun, name: lb7, mtu: 1400, interfaces: [eth1], queues: 2, addresses: [198.51.100.1]}
sessions: 1000
associations: 1000
foreign: pass
ping-nodes: 2
state: {file: /tmp/x, every: 5s}
admin: {socket: none}
flow-export: {collector: "192.0.2.9:4739"}
elements: {db: {target: "192.0.2.7:5432", method: tcp}}
policies: {p: db}
farms:
  web:
    metric: minmisses
    mode: server-per-session
    backup-when: down-or-full
    no-preempt: true
    panic-percent: 10
    sticky-over-limit: true
    hash-client-bits: 32
    slow-start: 5s
    recovery: 1s
    agent: {port: 9999}
    check: {method: http}
    policy: self AND p
    nodes: [{name: a, address: "10.0.0.1:8080", max-sessions: 100, backup: true}, {name: b, address: "10.0.0.2:8080", weight: 3, admin: draining}, {name: c, address: "10.0.0.3:8080"}]
services:
  - name: web
    vip: 192.0.2.80
    protocol: tcp
    port: 80
    farm: web
    min-nodes: 1
    export-flows: true
    delay: {read: http, budget: 2000, rules: [{when: path, is: /x, reply: 410}]}
`)
	status, out, errs := run(t, "run", all, trace)
	require.Zerof(t, status, "%s", errs)
	require.Contains(t, out, "not looked at: admin, device.interfaces, device.mtu, device.name, device.queues, device.type, elements, farms.NAME.agent, farms.NAME.check, "+
		"farms.NAME.policy, farms.NAME.recovery, farms.NAME.slow-start, flow-export, policies, services[0].delay.budget, services[0].delay.rules, services[0].export-flows, state\n")
	require.Contains(t, out, "note: service web reads http before it chooses: its flows are shown with its own farm")
	require.Contains(t, out, "web/c")
	require.NotContains(t, out, "web/b", "it drains")
	_, out, _ = run(t, "run", "-json", all, trace)
	require.Contains(t, out, `"notes": [`)
}
