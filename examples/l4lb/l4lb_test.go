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

	"github.com/lbprim/lbprim/examples/internal/cli"
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "l4lb.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func invoke(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	status = program().Run(context.Background(), args, cli.IO{Out: &o, Err: &e})
	return status, o.String(), e.String()
}

func TestExampleFilesAreRight(t *testing.T) {
	_, names, _ := invoke(t, "example", "-names")
	require.Equal(t, "dsr\nfirst\ntls\n", names)
	for _, c := range []struct{ name, counts, dst, want string }{
		{"first", "1 services, 1 farms, 2 nodes", "10.77.0.80:80", "web/web"},
		{"tls", "1 services, 2 farms, 4 nodes", "192.0.2.80:443", "tcp"},
		{"dsr", "4 services, 2 farms, 5 nodes", "192.0.2.80:443", "web/web"},
	} {
		status, text, _ := invoke(t, "example", c.name)
		require.Zero(t, status)
		name := write(t, text)
		status, out, errs := invoke(t, "check", name)
		require.Zerof(t, status, "%s", errs)
		require.Contains(t, out, "right: "+c.counts)
		status, out, errs = invoke(t, "explain", name, "-src", "198.51.100.7:4000", "-dst", c.dst)
		require.Zerof(t, status, "%s", errs)
		require.Contains(t, out, c.want)
		_, out, _ = invoke(t, "explain", "-src", "198.51.100.7:4000", "-dst", strings.Split(c.dst, ":")[0]+":8", name)
		require.Contains(t, out, "no-policy")
		status, out, _ = invoke(t, "diff", name, name)
		require.Zero(t, status)
		require.Equal(t, "nothing changes\n", out)
	}
	status, text, _ := invoke(t, "example")
	require.Zero(t, status)
	first, err := exampleFile("first")
	require.NoError(t, err)
	require.Equal(t, first, text)
	status, _, errs := invoke(t, "example", "best")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "want one of dsr, first, tls")
}

func TestWrongUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "Usage:"},
		{[]string{"dance"}, `"dance": want diff, drain, disable, run, check`},
		{[]string{"check"}, "want FILE"},
		{[]string{"check", "a", "b"}, `"b": want FILE only`},
		{[]string{"explain", "x", "-src", "1.2.3.4", "-dst", "1.2.3.4:5"}, `-src "1.2.3.4": want an address and port`},
		{[]string{"explain", "x", "-src", "1.2.3.4:1", "-dst", "1.2.3.4:5", "-proto", "any"}, `-proto "any": want tcp`},
		{[]string{"run", "-bogus", "x"}, "bogus"},
	} {
		status, _, errs := invoke(t, c.args...)
		require.Equal(t, 2, status, c.args)
		require.Contains(t, errs, c.want)
	}
	status, _, errs := invoke(t, "check", "/no/such/file")
	require.Equal(t, 1, status)
	require.Contains(t, errs, "/no/such/file")
	status, out, _ := invoke(t, "-h")
	require.Zero(t, status)
	require.Contains(t, out, "l4lb explain")
}

func TestFaultsNameTheirPlace(t *testing.T) {
	good := `version: 1
device: {type: tun}
farms:
  web:
    nodes:
      - {name: a, address: "10.0.0.1:80"}
services:
  - {name: web, vip: 192.0.2.80, protocol: tcp, port: 80, farm: web}
`
	_, err := decode([]byte(good))
	require.NoError(t, err)
	for _, c := range []struct{ old, new, want string }{
		{"version: 1", "version: 2", "1:10: version: 2: this program knows version 1"},
		{"{type: tun}", "{type: xdp}", `2:16: device.type: "xdp": want tun or afpacket`},
		{"{type: tun}", "{type: afpacket}", "device.interfaces: empty"},
		{"{type: tun}", "{mtu: 600}", "2:15: device.mtu: 600: want 1280 to 65521"},
		{"name: a, ", "", "6:9: farms.web.nodes[0]: name is missing"},
		{"10.0.0.1:80", "10.0.0.1:port", `want an address such as 10.0.0.1:80`},
		{"farm: web}", "farm: wab}", `services[0].farm: "wab": want one of [web]`},
		{"vip: 192.0.2.80, ", "", "8:5: services[0]: vip is missing"},
		{"protocol: tcp", "protocol: tpc", "services[0].protocol"},
		{"port: 80,", "port: 90-80,", "services[0].port"},
		{"protocol: tcp, ", "protocol: icmp, ", "port"},
		{"nodes:", "check: {method: htpt}\n    nodes:", "farms.web.check.method"},
		{"nodes:", "check: {method: tcp, path: /x}\n    nodes:", "farms.web.check: path does not go with method tcp"},
		{"nodes:", "check: {interval: 1ms}\n    nodes:", "farms.web.check"},
		{"nodes:", "check: {method: radius}\n    nodes:", "Key"},
		{"nodes:", "metric: best\n    nodes:", "farms.web.metric"},
		{`"10.0.0.1:80"}`, `"10.0.0.1:80", weight: -1}`, "farms.web.nodes[0].weight: -1"},
		{`"10.0.0.1:80"}`, "\"10.0.0.1:80\"}\n      - {name: a, address: \"[2001:db8::1]:80\"}", `nodes[1].name: "a" is the name of nodes[0] too`},
		{`"10.0.0.1:80"}`, "\"10.0.0.1:80\"}\n      - {name: b, address: \"[2001:db8::1]:80\"}", "is of the other address family"},
		{"services:\n", "services:\n  - {name: web, vip: 192.0.2.81, farm: web}\n", `services[1].name: "web" is the name of services[0] too`},
		{"services:\n", "services:\n  - {name: w2, vip: 192.0.2.80, protocol: tcp, port: 80, farm: web}\n", "duplicate"},
		{"{type: tun}", "{type: afpacket, interfaces: [a, a]}", `device.interfaces[1]: "a": want the name of an interface, once`},
		{"{type: tun}", "{addresses: [192.0.2.1, 192.0.2.2]}", "device.addresses[1]: 192.0.2.2: want one address of each family"},
		{"{type: tun}", "{queues: 300}", "device.queues: 300: want 1 to 256"},
		{"{type: tun}", "{name: a-name-of-sixteen}", "want 15 characters at most"},
		{"device:", "sessions: -1\ndevice:", "sessions: -1: want 1 to"},
		{"device:", "state: {every: 1ms}\ndevice:", "state.every: 1ms: want 1s or more"},
		{"device:", "admin: {socket: here}\ndevice:", `admin.socket: "here": want an absolute path`},
		{"device:", "admin: {listen: '0.0.0.0:9443'}\ndevice:", "admin: token-file is missing: over TCP the interface needs TLS and a token"},
		{"device:", "admin: {token-file: /t}\ndevice:", "admin.token-file: want admin.listen too"},
		{"device:", "admin: {listen: 9443}\ndevice:", "admin.listen"},
		{"device:", "elements: {db: {method: tcp}}\ndevice:", "elements.db: target is missing"},
		{"device:", "elements: {db: {target: 192.0.2.1}}\ndevice:", "elements.db.target: 192.0.2.1: want a port too"},
		{"device:", "elements: {self: {target: '192.0.2.1:1'}}\ndevice:", "self is the name of a node's own check"},
		{"device:", "elements: {'a b': {target: '192.0.2.1:1'}}\ndevice:", `"a b": want letters, digits`},
		{"device:", "policies: {p: 'x AND'}\ndevice:", "policies.p"},
		{"device:", "policies: {p: q, q: p}\ndevice:", "cycle"},
		{"nodes:", "policy: db1\n    nodes:", "db1"},
		{"nodes:", "policy: self\n    nodes:", "farms.web.policy: self: the farm has no check"},
		{"name: a,", "name: a/b,", `"a/b": want letters, digits`},
		{"nodes:", "forward: fullnat\n    nodes:", "farms.web.locals: empty: fullnat needs addresses"},
		{"nodes:", "forward: fullnat\n    locals: ['2001:db8::1']\n    nodes:", "locals[0]: 2001:db8::1: want an address of the nodes' family"},
		{"nodes:", "locals: [192.0.2.1]\n    nodes:", "farms.web.locals: want none with forward nat"},
		{"nodes:", "forward: dsr\n    nodes:", "farms.web.forward: dsr sends Ethernet frames"},
		{"nodes:", "forward: tunnel\n    nodes:", "needs an address of the nodes' family in device.addresses"},
		{"nodes:", "forward: route\n    nodes:", "leave the service out"},
		{"nodes:", "tunnel: {kind: gre}\n    nodes:", "farms.web.tunnel: want none with forward nat"},
		{"nodes:", "panic-percent: 101\n    nodes:", "farms.web"},
		{"nodes:", "check: {method: http, status: [600]}\n    nodes:", "farms.web.check"},
		{"nodes:", "check: {method: http, status: [ok]}\n    nodes:", `"ok": want a status code or a range`},
		{"nodes:", "check: {method: command}\n    nodes:", "Path"},
		{"nodes:", "check: {method: dns, dn: x}\n    nodes:", "dn does not go with method dns, but with ldap"},
		{"nodes:", "metric: capacity\n    nodes:\n      - {name: b, address: \"10.0.0.2:80\", capacity: 5}", "apacity"},
		{"farm: web}", "farm: web, delay: {read: tls, rules: [{when: host, is: x, farm: web}]}}", "services[0].delay: rule 0: when host: with read tls there is none"},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: host, is: x, farm: web, and: {when: alpn, is: h2}}]}}", "services[0].delay: rule 0: when alpn: with read http there is none"},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: host, is: x, farm: web, and: {is: h2}}]}}", "services[0].delay.rules[0].and: when is missing"},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: regexp, is: '(', farm: web}]}}", "services[0].delay"},
		{"farm: web}", "farm: web, delay: {rules: [{when: always, farm: web}]}}", "services[0].delay: rule 0: when always: with read nothing"},
		{"nodes:", "agent: {interval: 1s}\n    nodes:", "farms.web.agent: port is missing"},
		{"nodes:", "agent: {port: 9, interval: 1ms}\n    nodes:", "farms.web.agent"},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: host, is: x}]}}", "rule 0: want one of farm, redirect and reply"},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: host, is: x, farm: y}]}}", `there is no farm "y"`},
		{"farm: web}", "farm: web, delay: {read: http, tls-persistence: {}}}", "services"},
		{"protocol: tcp, port: 80", "protocol: udp, port: 80, delay: {}", "services[0].delay: only TCP"},
		{"farm: web}", "farm: web, export-flows: true}", "services[0].export-flows: to whom? flow-export is missing"},
		{"device:", "flow-export: {version: ipfix}\ndevice:", "flow-export: collector is missing"},
		{"device:", "flow-export: {collector: '192.0.2.1:0', sample: -1}\ndevice:", "flow-export.sample: -1: want 1 or more"},
		{"device:", "flow-export: {collector: '192.0.2.1:1', version: 5}\ndevice:", "flow-export.version"},
		{"services:\n", "services:\n  - {name: w2, match: \"192.0.2.81 tcp/80\", port: 80, farm: web}\n", "want either match or vip"},
	} {
		bad := strings.Replace(good, c.old, c.new, 1)
		require.NotEqual(t, good, bad, c.new)
		_, err := decode([]byte(bad))
		require.Error(t, err, bad)
		require.Contains(t, err.Error(), c.want)
	}
}

func TestSchemaIsJSON(t *testing.T) {
	_, out, _ := invoke(t, "schema")
	var s map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	require.Contains(t, s["properties"], "services")
	_, out, _ = invoke(t, "reference")
	require.Contains(t, out, "max-sessions:")
}
