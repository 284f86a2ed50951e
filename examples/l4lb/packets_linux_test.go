package main

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/testenv"
)

// packetsLab is a balancer with packet sockets, and a shell beside it.
func packetsLab(t *testing.T) (h *labHosts, text string, sh func(string) string) {
	t.Helper()
	testenv.NeedNetns(t)
	h = newHosts(t)
	require.NoError(t, h.balancer.Sysctl("net.ipv4.ip_forward", "0"))
	require.NoError(t, h.balancer.Sysctl("net.ipv6.conf.all.forwarding", "0"))
	text = strings.Replace(fmt.Sprintf(labFile, "afpacket", "c0, e1, e2"), "{socket: none}", "{socket: SOCKET}", 1)
	return h, text, func(script string) string { return rig.Shell(t, h.balancer, script) }
}

const blackholes = "ip -6 route show type blackhole"

// A second instance that is refused leaves the first one's routes alone.
func TestSecondInstanceOfPackets(t *testing.T) {
	h, text, sh := packetsLab(t)
	p := h.start(t, text)
	p.ready()
	require.Contains(t, sh(blackholes), "fd09:100::1")
	bin, err := built()
	require.NoError(t, err)
	var out []byte
	require.NoError(t, h.balancer.Do(func() error {
		out, err = exec.Command(bin, "run", p.file).CombinedOutput()
		return nil
	}))
	require.Error(t, err)
	require.Contains(t, string(out), "another instance listens")
	require.Contains(t, sh(blackholes), "fd09:100::1")
	p.stop()
	require.NotContains(t, sh(blackholes), "fd09:100::1")
}

// A route that was there before stays; others are made, and go at the end.
func TestSilenceLeavesRoutesOfOthers(t *testing.T) {
	h, _, sh := packetsLab(t)
	sh("ip -6 route add blackhole fd09:100::1")
	require.NoError(t, h.balancer.Do(func() error {
		var s silence
		routed := []netip.Prefix{netip.MustParsePrefix("fd09:100::1/128"), netip.MustParsePrefix("fd09:100::2/128"), netip.MustParsePrefix("10.9.100.1/32")}
		require.NoError(t, s.set(routed))
		require.Equal(t, routed[1:2], s.routes)
		require.NoError(t, s.set(routed), "again")
		require.Equal(t, routed[1:2], s.routes)
		require.NoError(t, s.set(routed[1:2]))
		return nil
	}))
	require.Contains(t, sh(blackholes), "fd09:100::1 ")
	require.Contains(t, sh(blackholes), "fd09:100::2 ")
	require.NoError(t, h.balancer.Do((&silence{routes: []netip.Prefix{netip.MustParsePrefix("fd09:100::2/128")}}).Close))
	require.Contains(t, sh(blackholes), "fd09:100::1 ")
	require.NotContains(t, sh(blackholes), "fd09:100::2 ")
}

// With -no-setup the commands are printed, and those for addresses that are new.
func TestNoSetupOfPackets(t *testing.T) {
	h, text, sh := packetsLab(t)
	sh("ip -6 route add blackhole fd09:100::/64")
	p := h.start(t, text, "-no-setup")
	p.ready()
	require.Contains(t, p.log.String(), "ip -6 route replace blackhole fd09:100::1/128")
	require.NotContains(t, sh(blackholes), "fd09:100::1")
	p.write(strings.Replace(text, "services:", `services:
  - {name: more, vip: "fd09:100::2", protocol: tcp, port: 80, farm: v6}`, 1))
	p.eventually("the new address is told", func() bool { return strings.Contains(p.log.String(), "ip -6 route replace blackhole fd09:100::2/128") })
}

// A balancer none of whose services has as many usable nodes as it wants is not ready.
func TestNotReadyBelowMinNodes(t *testing.T) {
	h, text, _ := packetsLab(t)
	p := h.start(t, strings.NewReplacer("farm: v4}", "farm: v4, min-nodes: 2}", "farm: v6}", "farm: v6, min-nodes: 2}").Replace(text))
	p.ready()
	p.must("drain", "v4/s1")
	require.True(t, p.status().Ready, "the other service serves")
	p.must("drain", "v6/s1")
	s := p.status()
	require.False(t, s.Ready)
	require.Contains(t, s.Warnings, "service web4 takes no new sessions: of its nodes, 1 can be used, and 2 must be")
	p.must("enable", "v4/s1")
	require.True(t, p.status().Ready)
}
