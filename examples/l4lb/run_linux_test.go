package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

func TestRun(t *testing.T) {
	for _, device := range []string{"tun", "afpacket"} {
		t.Run(device, func(t *testing.T) {
			h := newHosts(t)
			interfaces := "e1, e2"
			if device == "tun" {
				require.NoError(t, h.balancer.Router())
			} else {
				interfaces = "c0, e1, e2"
			}
			text := fmt.Sprintf(labFile, device, interfaces)
			p := h.start(t, text)
			for _, vip := range []string{"10.9.100.1", "fd09:100::1"} {
				p.eventually(vip, func() bool { _, err := h.get(vip); return err == nil })
				seen := map[string]int{}
				p.eventually("both nodes", func() bool { // the other node's check may take a while longer
					body, err := h.get(vip)
					seen[body]++
					return err == nil && len(seen) == 2
				})
				clear(seen)
				for range 20 {
					body, err := h.get(vip)
					require.NoErrorf(t, err, "%v", p.log)
					seen[body]++
				}
				require.InDelta(t, 10, seen["server 1"], 2, "in turn")
				require.InDelta(t, 10, seen["server 2"], 2, "in turn")
			}
			// A bad file changes nothing; a good one is in force within a moment.
			p.write(strings.Replace(text, "roundrobin", "roundorbin", 1))
			p.eventually("the bad file is refused", func() bool { return strings.Contains(p.log.String(), "the old configuration stays in force") })
			_, err := h.get("10.9.100.1")
			require.NoError(t, err)
			p.write(strings.Replace(text, `{name: s2, address: "10.9.2.2:8080"}`, `{name: s2, address: "10.9.2.2:8080", admin: draining}`, 1))
			p.eventually("the good file is taken", func() bool { return strings.Contains(p.log.String(), "configuration reloaded") })
			for range 10 {
				body, err := h.get("10.9.100.1")
				require.NoError(t, err)
				require.Equal(t, "server 1", body, "the other one drains")
			}
		})
	}
}

// What the kernel would do wrong is said before anything is opened, and how to mend it.
func TestRunSaysWhyItCannot(t *testing.T) {
	testenv.NeedNetns(t)
	bin, err := built()
	require.NoError(t, err)
	h := newHosts(t)
	require.NoError(t, h.balancer.Sysctl("net.ipv4.ip_forward", "0"))
	require.NoError(t, h.balancer.Sysctl("net.ipv6.conf.all.forwarding", "0"))
	require.NoError(t, h.balancer.Do(func() error { return exec.Command("ip", "-6", "route", "add", "blackhole", "fd09:100::1").Run() }))
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"forwarding", fmt.Sprintf(labFile, "tun", "e1, e2"), []string{"sysctl -w net.ipv4.ip_forward=1", "sysctl -w net.ipv6.conf.all.forwarding=1"}},
		{"interface of packets", fmt.Sprintf(labFile, "afpacket", "no-such-if"), []string{"no-such-if"}},
		{"interface of servers", fmt.Sprintf(labFile, "tun", "no-such-if"), []string{`interface "no-such-if"`, "ip link shows"}},
		{"address in use", strings.Replace(fmt.Sprintf(labFile, "tun", "e1"), "10.9.100.1", "10.9.1.1", 1), []string{"10.9.1.1 is an address of this host", "ip addr del 10.9.1.1/24 dev e1"}},
		{"token", strings.Replace(fmt.Sprintf(labFile, "afpacket", "c0"), "{socket: none}", "{socket: none, listen: '127.0.0.1:9', certificate: /no/c, key: /no/k, token-file: /no/t}", 1), []string{"/no/c"}},
		{"socket", strings.Replace(fmt.Sprintf(labFile, "afpacket", "c0"), "{socket: none}", "{socket: /proc/no/s}", 1), []string{"/proc/no", "fix: set admin.socket"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out []byte
			require.NoError(t, h.balancer.Do(func() error {
				out, err = exec.Command(bin, "run", write(t, c.text)).CombinedOutput()
				return nil
			}))
			require.Error(t, err)
			for _, want := range c.want {
				require.Contains(t, string(out), want)
			}
		})
	}
}
