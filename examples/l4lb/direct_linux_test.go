package main

import (
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
)

// answersDirectly takes the balancer out of the way back: servers reach the client over cables of their own, and have the virtual addresses.
func (h *labHosts) answersDirectly(t *testing.T) {
	t.Helper()
	rig.Shell(t, h.client, "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	for i, s := range h.servers {
		net := 21 + i
		rig.Direct(t, s, h.client, fmt.Sprintf("d%d", i), fmt.Sprintf("10.9.%d.", net), fmt.Sprintf("fd09:%d::", net))
		rig.Shell(t, s, `
ip addr add 10.9.100.1/32 dev lo
ip -6 addr add fd09:100::1/128 dev lo
sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0
`+fmt.Sprintf("ip route add 10.9.0.0/24 via 10.9.%d.2\nip -6 route add fd09:0::/64 via fd09:%d::2\n", net, net))
	}
}

// direct checks that both servers answer in both families, that a connection goes on, and that no answer came through the balancer.
func (p *process) direct(t *testing.T) {
	t.Helper()
	p.ready()
	for _, vip := range []string{"10.9.100.1", "fd09:100::1"} {
		seen := map[string]int{}
		for range 10 {
			body, err := p.h.getPort(vip, "8080")
			require.NoError(t, err, "%s\n%v", vip, p.log)
			seen[body]++
		}
		require.Equal(t, map[string]int{"server 1": 5, "server 2": 5}, seen, "in turn")
		stream := p.h.stream(t, net.JoinHostPort(vip, "8080"))
		stream.tick(t)
		p.must("reload")
		for range 10 {
			stream.tick(t)
		}
	}
	for _, s := range p.status().Services {
		require.Positive(t, s.Traffic.In.Packets, s.Name)
		require.Zero(t, s.Traffic.Out.Packets, "%s: answers go directly", s.Name)
	}
	out := p.must("sessions")
	require.Contains(t, out, "10.9.100.1:8080")
	require.Contains(t, p.must("explain", "-src", "10.9.0.2:4000", "-dst", "10.9.100.1:8080"), "/s")
}

const directFile = `version: 1
device: {%s, addresses: [10.9.0.1, "fd09:0::1"]}
admin: {socket: SOCKET}
farms:
  v4:
    metric: roundrobin
    mode: server-per-session
    forward: %s
    check: {method: http, port: 8080, interval: 200ms, timeout: 10s}
    nodes: [{name: s1, address: 10.9.1.2}, {name: s2, address: 10.9.2.2}]
  v6:
    metric: roundrobin
    mode: server-per-session
    forward: %s
    nodes: [{name: s1, address: "fd09:1::2"}, {name: s2, address: "fd09:2::2"}]
services:
  - {name: web4, vip: 10.9.100.1, protocol: tcp, port: 8080, farm: v4}
  - {name: web6, vip: "fd09:100::1", protocol: tcp, port: 8080, farm: v6}
`

// TestDirectServerReturn: frames go to the servers' own MACs, and answers past the balancer.
func TestDirectServerReturn(t *testing.T) {
	h := newHosts(t)
	h.answersDirectly(t)
	p := h.start(t, fmt.Sprintf(directFile, "type: afpacket, interfaces: [c0, e1, e2], queues: 2", "dsr", "dsr"))
	p.direct(t)
}

// TestTunnels: each kind of outer packet that the kernel takes apart, over both devices.
func TestTunnels(t *testing.T) {
	for _, c := range []struct{ kind, server4, server6 string }{
		{"ipip", "ip link add t4 type ipip local %[1]s remote 10.9.0.1", "ip link add t6 type ip6tnl mode ip6ip6 local %[2]s remote fd09:0::1 encaplimit none"},
		{"gre, key: 5", "ip link add t4 type gre local %[1]s remote 10.9.0.1 key 5", "ip link add t6 type ip6gre local %[2]s remote fd09:0::1 key 5 encaplimit none"},
		{"vxlan, key: 7, node-mac: '02:00:00:00:00:0a'", "ip link add t4 address 02:00:00:00:00:0a type vxlan id 7 dstport 4789 local %[1]s", "ip link add t6 address 02:00:00:00:00:0a type vxlan id 7 dstport 4789 local %[2]s udp6zerocsumrx"},
		{
			"gue", "ip fou add port 6080 gue\nip link add t4 type ipip local %[1]s remote 10.9.0.1 encap gue encap-sport auto encap-dport 6080",
			"ip -6 fou add port 6080 gue\nip link add t6 type ip6tnl mode ip6ip6 local %[2]s remote fd09:0::1 encaplimit none encap gue encap-sport auto encap-dport 6080",
		},
	} {
		for _, device := range []string{"type: tun", "type: afpacket, interfaces: [c0, e1, e2]"} {
			t.Run(strings.Trim(strings.Fields(c.kind)[0], ",")+" "+strings.Trim(strings.Fields(device)[1], ","), func(t *testing.T) {
				h := newHosts(t)
				if device == "type: tun" {
					require.NoError(t, h.balancer.Router())
				}
				h.answersDirectly(t)
				for i, s := range h.servers {
					if i == 0 && !strings.HasPrefix(c.kind, "vxlan") {
						kind := strings.Fields(c.server4)
						if err := s.Do(exec.Command("sh", "-ec", fmt.Sprintf(c.server4+"\n"+c.server6+"\nip link del t4; ip link del t6", "10.9.1.2", "fd09:1::2")).Run); err != nil {
							t.Skipf("this kernel has no end for it: ip link add … type %s and the like fail", kind[slices.Index(kind, "type")+1])
						}
					}
					rig.Shell(t, s, fmt.Sprintf(c.server4+"\n"+c.server6+`
for t in t4 t6; do ip link set $t up; sysctl -qw net.ipv4.conf.$t.rp_filter=0; done
`, fmt.Sprintf("10.9.%d.2", i+1), fmt.Sprintf("fd09:%d::2", i+1)))
				}
				tunnel := "tunnel\n    tunnel: {kind: " + c.kind + "}"
				p := h.start(t, fmt.Sprintf(directFile, device, tunnel, tunnel))
				p.direct(t)
			})
		}
	}
}
