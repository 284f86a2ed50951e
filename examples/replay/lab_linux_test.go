package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// labFile has a service for each metric and family.
const labFile = `version: 1
device: {type: tun, interfaces: [e1, e2, e3]}
admin: {socket: none}
`

// labMetrics are chosen by in the lab, each on a port of its own from 80 on.
var labMetrics = []string{"hash", "maglev", "roundrobin", "leastconns"}

// labClients are how many addresses the client has.
const labClients = 12

const patience = 40 * time.Second

// replayLab is a client, l4lb and three servers that say who they are, each a namespace of its own.
type replayLab struct {
	client, balancer *netns.Namespace
	servers          [3]*netns.Namespace
	conf, dir        string
	served           map[string]string // what each flow of the client's got, by protocol and both ends
}

func newLab(t *testing.T) *replayLab {
	testenv.NeedNetns(t)
	x := &replayLab{dir: t.TempDir(), served: map[string]string{}}
	rig.Hosts(t, &x.client, &x.balancer, &x.servers[0], &x.servers[1], &x.servers[2])
	cable := func(ns *netns.Namespace, name string, number int) {
		rig.Cable{Hub: x.balancer, Host: ns, Name: name, V4: "10.9.%d.%d/24", V6: "fd09:%d::%d/64", Number: number}.Plug(t)
	}
	cable(x.client, "c0", 0)
	for i := range labClients {
		rig.Shell(t, x.client, fmt.Sprintf("ip addr add 10.9.0.%d/24 dev eth0; ip addr add fd09:0::%d/64 dev eth0 nodad", 10+i, 10+i))
	}
	require.NoError(t, x.balancer.Router())
	for i, s := range x.servers {
		cable(s, fmt.Sprintf("e%d", i+1), i+1)
		l, err := s.Listen(t.Context(), "tcp", ":8080")
		require.NoError(t, err)
		testenv.Accept(t, l, func(c net.Conn) {
			_ = c.(*net.TCPConn).SetKeepAlive(false) // or packets would come at any time
			fmt.Fprintf(c, "s%d\n", i+1)
			_, _ = io.Copy(io.Discard, c) // until the client has enough
		})
		u, err := s.ListenPacket(t.Context(), "udp", ":8080")
		require.NoError(t, err)
		t.Cleanup(func() { u.Close() })
		go func() {
			b := make([]byte, 1500)
			for {
				_, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = u.WriteTo(fmt.Appendf(nil, "s%d\n", i+1), from)
			}
		}()
	}
	text := labFile + "farms:\n"
	services := "services:\n"
	for i, m := range labMetrics {
		for _, v := range []struct{ name, node, vip string }{{"v4", "10.9.%d.2:8080", "10.9.100.1"}, {"v6", "[fd09:%d::2]:8080", "fd09:100::1"}} {
			text += fmt.Sprintf("  %s-%s:\n    metric: %s\n    mode: server-per-session\n    seed: 7\n    nodes:\n", m, v.name, m)
			for n := range x.servers {
				text += fmt.Sprintf("      - {name: s%d, address: %q, weight: %d}\n", n+1, fmt.Sprintf(v.node, n+1), n+1)
			}
			for _, protocol := range []string{"tcp", "udp"} {
				services += fmt.Sprintf("  - {name: %s-%s-%s, vip: %q, protocol: %s, port: %d, farm: %s-%s}\n", m, v.name, protocol, v.vip, protocol, 80+i, m, v.name)
			}
		}
	}
	x.conf = write(t, "l4lb.yaml", text+services)
	return x
}

// start starts a program on the balancer and waits until it says so.
func (x *replayLab) start(t *testing.T, says, name string, args ...string) *rig.Process {
	t.Helper()
	p := rig.Start(t, x.balancer, nil, name, args...)
	t.Cleanup(func() {
		p.End()
		if t.Failed() {
			t.Logf("%s:\n%v", name, p.Log)
		}
	})
	require.Eventuallyf(t, func() bool { return strings.Contains(p.Log.String(), says) }, patience, 20*time.Millisecond, "%s does not say %q:\n%v", name, says, p.Log)
	return p
}

// ask makes a flow from one of the client's addresses, and notes who served it.
func (x *replayLab) ask(t *testing.T, client int, protocol, vip string, port int) net.Conn {
	t.Helper()
	from := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("10.9.0.%d", 10+client)), 0)
	if strings.Contains(vip, ":") {
		from = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd09::%d", 10+client)), 0)
	}
	d := &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), KeepAlive: -1}
	if protocol == "udp" {
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	c, err := x.client.DialWith(t.Context(), d, protocol, net.JoinHostPort(vip, fmt.Sprint(port)))
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, "hello\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	require.NoErrorf(t, err, "%s %s %d", protocol, vip, port)
	x.served[fmt.Sprint(protocol, " ", c.LocalAddr(), " ", c.RemoteAddr())] = strings.TrimSpace(line)
	return c
}

// Real traffic passes through l4lb, and a capture of what came from the client, replayed, says of every flow what l4lb did with it, and of
// every packet what it sent to the servers.
func TestReplaySaysWhatHappened(t *testing.T) {
	tcpdump := testenv.NeedServers(t, "tcpdump")[0]
	x := newLab(t)
	l4lb, err := rig.BuildOf("../l4lb", x.dir, "l4lb")
	require.NoError(t, err)
	balancer := x.start(t, "balancing", l4lb, "run", x.conf)
	hosts := append([]*netns.Namespace{x.client}, x.servers[:]...)
	var dumps []*rig.Process
	var files []string
	for i, name := range []string{"c0", "e1", "e2", "e3"} {
		files = append(files, filepath.Join(x.dir, name+".pcap"))
		dumps = append(dumps, x.start(t, "listening on", tcpdump, "-Z", "root", "-i", name, "-s", "0", "-B", "8192", "--immediate-mode", "-U", "-w", files[i], "tcp or udp"))
	}
	for round := range labClients {
		for i := range labMetrics {
			for _, vip := range []string{"10.9.100.1", "fd09:100::1"} {
				for _, protocol := range []string{"tcp", "udp"} {
					c := x.ask(t, round, protocol, vip, 80+i)
					if round%3 == 0 { // the others stay open, and count for leastconns
						c.Close()
					} else {
						t.Cleanup(func() { c.Close() })
					}
				}
			}
		}
	}
	// Acknowledgements may be late: the captures have the same packets once there are no more.
	sizes := func() (text string) {
		for _, name := range files {
			st, err := os.Stat(name)
			require.NoError(t, err)
			text += fmt.Sprint(st.Size(), " ")
		}
		return text
	}
	last := ""
	require.Eventually(t, func() bool {
		now := sizes()
		same := now == last
		last = now
		return same
	}, patience, time.Second, "packets without an end")
	for i, p := range dumps {
		// What came before the end is in the file once the end is.
		c, err := hosts[i].DialContext(t.Context(), "udp", fmt.Sprintf("10.9.%d.1:9", i))
		require.NoError(t, err)
		defer c.Close()
		require.Eventually(t, func() bool {
			_, _ = io.WriteString(c, "the end")
			text, err := os.ReadFile(files[i])
			require.NoError(t, err)
			return bytes.Contains(text, []byte("the end"))
		}, patience, 50*time.Millisecond)
		require.NoError(t, p.Signal(os.Interrupt))
		<-p.Done
		require.Contains(t, p.Log.String(), "\n0 packets dropped by kernel", "what was lost cannot be compared")
	}
	require.NoError(t, balancer.Stop(patience))

	// By the program itself, from standard input.
	replay, err := rig.Build(x.dir, "replay")
	require.NoError(t, err)
	f, err := os.Open(files[0])
	require.NoError(t, err)
	defer f.Close()
	out := filepath.Join(x.dir, "out.pcapng")
	cmd := exec.Command(replay, "run", "-json", "-out", out, x.conf, "-")
	cmd.Stdin, cmd.Stderr = f, os.Stderr
	b, err := cmd.Output()
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(b, &r))
	servers := map[string]int{}
	for _, f := range r.Flows {
		key := fmt.Sprint(f.Protocol, " ", f.Client, " ", f.VIP)
		real, ok := x.served[key]
		require.Truef(t, ok, "%s: nobody made this flow", key)
		require.Equalf(t, f.Service[:strings.LastIndex(f.Service, "-")]+"/"+real, f.Node, "%s", key)
		require.NotZero(t, f.Answers)
		servers[real]++
		delete(x.served, key)
	}
	require.Empty(t, x.served, "every flow was found in the capture")
	require.Len(t, servers, 3)

	// Packet by packet.
	real := map[string]int{}
	for _, name := range files[1:] {
		for _, p := range packets(t, name) {
			if strings.HasSuffix(p[0], ":8080") {
				real[strings.Join(p, " ")]++
			}
		}
	}
	replayed := map[string]int{}
	for _, p := range packets(t, out) {
		if strings.HasSuffix(p[0], ":8080") {
			replayed[strings.Join(p, " ")]++
		}
	}
	require.Greater(t, len(real), labClients*2*2*len(labMetrics), "several packets of every flow")
	require.Equal(t, real, replayed)

	// Without a server, what it had moves, and nothing else does.
	text, err := os.ReadFile(x.conf)
	require.NoError(t, err)
	next := write(t, "next.yaml", strings.ReplaceAll(string(text), "weight: 2}", "weight: 2, admin: disabled}"))
	b, err = exec.Command(replay, "diff", "-json", "-flows", "-1", x.conf, next, files[0]).Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 3, exit.ExitCode())
	var c comparison
	require.NoError(t, json.Unmarshal(b, &c))
	from := map[string]int{}
	for _, m := range c.Flows {
		if strings.HasSuffix(m.From, "/s2") {
			from["s2"]++
		} else if strings.HasPrefix(m.From, "maglev") {
			from["maglev"]++
		} else {
			require.NotContains(t, m.From, "hash-", "%v: rendezvous hashing moves only what must", m)
		}
		require.NotContains(t, m.To, "/s2")
	}
	require.Equal(t, servers["s2"], from["s2"])
	require.Less(t, from["maglev"], labClients, "Maglev moves little more than what must")
}

// On a terminal there is a progress bar, which leaves nothing behind.
func TestProgressBar(t *testing.T) {
	tty := rig.NewTerminal(t, 80, 24)
	var out bytes.Buffer
	args := []string{"run", write(t, "l4lb.yaml", fmt.Sprintf(file, "roundrobin", "")), capture(t, false)}
	require.Zero(t, program().Run(t.Context(), args, cli.IO{Out: &out, Err: tty.TTY}))
	require.Zero(t, program().Run(t.Context(), append(args, "-no-progress"), cli.IO{Out: &out, Err: tty.TTY}))
	tty.Close()
	require.Regexp(t, `^\r█+ 100% \d+ packets \r\x1b\[K$`, tty.Text())
}

// packets are the TCP and UDP packets of a capture: destination, source, and what they say.
func packets(t *testing.T, name string) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	var src gopacket.PacketDataSource
	var first gopacket.Decoder = layers.LayerTypeEthernet
	if bytes.HasPrefix(text, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
		src, err = pcapgo.NewNgReader(bytes.NewReader(text), pcapgo.DefaultNgReaderOptions)
		first = layers.LayerTypeIPv4
	} else {
		src, err = pcapgo.NewReader(bytes.NewReader(text))
	}
	require.NoError(t, err)
	for {
		b, _, err := src.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		at := first
		if first != layers.LayerTypeEthernet && b[0]>>4 == 6 {
			at = layers.LayerTypeIPv6
		}
		p := gopacket.NewPacket(slices.Clone(b), at, gopacket.Default)
		ip := p.NetworkLayer().NetworkFlow()
		end := func(a gopacket.Endpoint, port gopacket.Endpoint) string {
			addr, _ := netip.AddrFromSlice(a.Raw())
			return net.JoinHostPort(addr.String(), port.String())
		}
		ports := p.TransportLayer().TransportFlow()
		says := fmt.Sprintf("udp %q", p.TransportLayer().LayerPayload())
		if tcp, ok := p.TransportLayer().(*layers.TCP); ok {
			says = fmt.Sprintf("tcp seq %d ack %d S%v F%v R%v P%v options %v %q", tcp.Seq, tcp.Ack, tcp.SYN, tcp.FIN, tcp.RST, tcp.PSH, tcp.Options, tcp.Payload)
		}
		all = append(all, []string{end(ip.Dst(), ports.Dst()), end(ip.Src(), ports.Src()), says})
	}
}
