package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "anycast.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func cli(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	status = command(context.Background(), nil, args, &o, &e)
	return status, o.String(), e.String()
}

func TestExampleFileIsRight(t *testing.T) {
	status, text, _ := cli(t, "example")
	require.Zero(t, status)
	name := write(t, text)
	status, out, errs := cli(t, "check", name)
	require.Zerof(t, status, "%s", errs)
	require.Contains(t, out, "right: 2 virtual addresses, 2 farms, 6 nodes, 2 routers\n")
	require.NotContains(t, out, "note:")

	status, out, errs = cli(t, "bird", name)
	require.Zerof(t, status, "%s", errs)
	for _, want := range []string{
		"protocol bgp anycast_10_1_1_2_1 {\n  local 10.1.1.1 as 64500;\n  neighbor 10.1.1.2 as 64512;\n  passive;\n  hold time 9;\n  error wait time 1, 10;  # a balancer that was given up and is back is used again soon\n  ipv4 {\n    import where net ~ [ 192.0.2.80/32 ];",
		"  ipv6 {\n    import where net ~ [ 2001:db8::80/128 ];",
	} {
		require.Contains(t, out, want)
	}
}

// Balancers that differ in all but the seed and the nodes choose the same node for a connection.
func TestBalancersAgree(t *testing.T) {
	_, text, _ := cli(t, "example")
	node := func(text, src string) string {
		t.Helper()
		status, out, errs := cli(t, "explain", write(t, text), "-src", src, "-dst", "192.0.2.80:80")
		require.Zerof(t, status, "%s", errs)
		_, rest, ok := strings.Cut(out, "maglev: node ")
		require.Truef(t, ok, "%s", out)
		name, _, _ := strings.Cut(rest, "\n")
		return name
	}
	other := strings.NewReplacer("10.1.1.2", "10.9.9.2", "10.1.1.1", "10.9.9.1", "fd00:1:1::", "fd00:9:9::", "status:", "#").Replace(text)
	seeded := strings.Replace(text, "20071", "20072", 1)
	seen, moved := map[string]bool{}, 0
	for _, src := range []string{"198.51.100.7:4000", "198.51.100.7:4001", "198.51.100.8:4000", "203.0.113.1:1", "203.0.113.77:65535", "192.0.2.1:33333"} {
		n := node(text, src)
		require.Equal(t, n, node(other, src), src)
		seen[n] = true
		if node(seeded, src) != n {
			moved++
		}
	}
	require.Greater(t, len(seen), 1)
	require.NotZero(t, moved, "the seed matters")
}

func TestWrongUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "Usage:"},
		{[]string{"dance"}, `"dance": want run, check`},
		{[]string{"check"}, "want a file"},
		{[]string{"bird", "a", "b"}, `"b": want one file only`},
		{[]string{"explain", "x", "-src", "1.2.3.4", "-dst", "1.2.3.4:5"}, `-src "1.2.3.4": want an address and port`},
		{[]string{"explain", "x", "-src", "1.2.3.4:1", "-dst", "1.2.3.4:5", "-proto", "any"}, `-proto "any": want tcp`},
		{[]string{"run", "-bogus", "x"}, "bogus"},
	} {
		status, _, errs := cli(t, c.args...)
		require.Equal(t, 2, status, c.args)
		require.Contains(t, errs, c.want)
	}
	status, _, errs := cli(t, "run", "/no/such/file")
	require.Equal(t, 1, status)
	require.Contains(t, errs, "/no/such/file")
	for _, args := range [][]string{{"-h"}, {"run", "-h"}} {
		status, out, _ := cli(t, args...)
		require.Zero(t, status)
		require.Contains(t, out, "How it works:")
	}
}

func TestFaultsNameTheirPlace(t *testing.T) {
	good := `version: 1
seed: 1
source: [10.0.0.9]
bgp:
  as: 64512
  router-id: 10.0.0.9
  peers: [{address: 10.0.0.1, as: 64500}]
farms:
  web:
    nodes:
      - {name: a, address: 10.0.0.11}
vips:
  - {address: 192.0.2.80, services: [{name: web, protocol: tcp, port: 80, farm: web}]}
`
	_, err := decode([]byte(good))
	require.NoError(t, err)
	for _, c := range []struct{ old, new, want string }{
		{"version: 1", "version: 2", "1:10: version: 2: this program knows version 1"},
		{"version: 1", "version: 0", "1:10: version: 0: this program knows version 1"},
		{"seed: 1\n", "", "seed is missing"},
		{"seed: 1", "seed: 1\nlinger: -1s", "linger: -1s: want 0s or more"},
		{"seed: 1", "seed: 1\nsessions: -4", "sessions: -4"},
		{"seed: 1", "seed: 1\ndevice: {mtu: 600}", "device.mtu: 600: want 1280"},
		{"seed: 1", "seed: 1\ndevice: {queues: 300}", "device.queues: 300"},
		{"seed: 1", "seed: 1\ndevice: {networks: [198.51.100.0/24]}", "vips[0].address: 192.0.2.80/32 is in none of device.networks"},
		{"seed: 1", "seed: 1\ndamping: {half-life: 0s}", "damping.half-life: 0s: want more"},
		{"seed: 1", "seed: 1\ndamping: {announce-after: -1s}", "damping.announce-after"},
		{"seed: 1", "seed: 1\ndamping: {suppress: 700}", "damping.suppress: 700: want more than reuse, 750"},
		{"seed: 1", "seed: 1\ndamping: {longest: 1m}", "would reach the penalty 3000: want at least 2m"},
		{"source: [10.0.0.9]", "source: ['fd00::9']", "farms.web.forward: tunnel: want an ipv4 address of the balancer in source"},
		{"router-id: 10.0.0.9", "router-id: 'fd00::9'", "bgp.router-id: fd00::9: want an IPv4 address"},
		{"as: 64512", "as: -1", "bgp.as"},
		{"as: 64512", "as: 64512\n  hold-time: 2500ms", "bgp.hold-time: 2.5s: want whole seconds"},
		{"as: 64512", "as: 64512\n  next-hops: [10.0.0.9, 10.0.0.8]", "bgp.next-hops[1]: 10.0.0.8: want one address of a family"},
		{"peers: [{address: 10.0.0.1, as: 64500}]", "peers: []", "bgp.peers: empty"},
		{"address: 10.0.0.1,", "address: 0.0.0.0,", "bgp.peers[0].address: 0.0.0.0: want the address of a router"},
		{"as: 64500}", "as: 64500}, {address: 10.0.0.1, as: 7}", "bgp.peers[1].address: 10.0.0.1 is the address of peers[0] too"},
		{"as: 64500}", "as: 64500, local: 'fd00::9'}", "bgp.peers[0].local: fd00::9: the router's address, 10.0.0.1, is of the other family"},
		{"as: 64500}", "as: 64500, families: [ipv4, ipv6]}", "bgp.peers[0].families[1]: ipv6 over a session of the other family"},
		{"as: 64500}", "as: 64500, passive: true}", "bgp.peers[0].passive: true, but bgp.listen-port is 0"},
		{"as: 64500}", "as: 64500, password: '${NO_SUCH_VARIABLE}'}", "bgp.peers[0].password: the environment variable NO_SUCH_VARIABLE is not set"},
		{"name: a, ", "", "farms.web.nodes[0]: name is missing"},
		{"10.0.0.11", "10.0.0.11:port", "want an address such as 10.0.0.1"},
		{"nodes:", "forward: dsr\n    nodes:", "farms.web.forward: dsr does not go with a TUN interface"},
		{"nodes:", "min-nodes: 2\n    nodes:", "farms.web.min-nodes: 2: want 0 to 1"},
		{"nodes:", "check: {method: http}\n    nodes:", "10.0.0.11 has no port, so farms.web.check needs one"},
		{"nodes:", "check: {port: 80, path: /x}\n    nodes:", "farms.web.check: path and host do not go with method tcp"},
		{"nodes:", "tunnel: {mac: 02:00}\n    nodes:", "want a MAC such as"},
		{"10.0.0.11}", "10.0.0.11}\n      - {name: a, address: 'fd00::1'}", `nodes[1].name: "a" is the name of nodes[0] too`},
		{"10.0.0.11}", "10.0.0.11}\n      - {name: b, address: 'fd00::1'}", "is of the other address family"},
		{"farm: web}]}", "farm: wab}]}", `vips[0].services[0].farm: "wab": want one of [web]`},
		{"farm: web}]}", "farm: web}]}\n  - {address: 192.0.2.80, services: []}", "vips[1].services: empty"},
		{"farm: web}]}", "farm: web}], communities: ['1:2:3']}", "vips[0].communities[0]"},
		{"farm: web}]}", "farm: web}], withdraw: never}", "vips[0].withdraw: \"never\": want any or all"},
	} {
		bad := strings.Replace(good, c.old, c.new, 1)
		require.NotEqual(t, good, bad, c.new)
		_, err := decode([]byte(bad))
		require.Error(t, err, bad)
		require.Contains(t, err.Error(), c.want)
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	t.Setenv("BGP_PASSWORD", "quite secret")
	var s secret
	require.NoError(t, s.UnmarshalText([]byte("${BGP_PASSWORD}")))
	require.Equal(t, "quite secret", s.text)
	require.NotContains(t, s.String(), "secret")
}

func TestCommunities(t *testing.T) {
	for text, want := range map[string]community{"64512:80": 64512<<16 | 80, "no-export": 0xffffff01, "graceful-shutdown": 65535 << 16} {
		var c community
		require.NoError(t, c.UnmarshalText([]byte(text)))
		require.Equal(t, want, c, text)
	}
}

func TestSchemaIsJSON(t *testing.T) {
	_, out, _ := cli(t, "schema")
	var s map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	require.Contains(t, s["properties"], "vips")
	_, out, _ = cli(t, "reference")
	require.Contains(t, out, "min-nodes:")
}
