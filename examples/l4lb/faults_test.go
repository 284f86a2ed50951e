package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goodFile is what the wrong files of the tests are made from.
const goodFile = `version: 1
device: {type: tun}
farms:
  web:
    nodes:
      - {name: a, address: "10.0.0.1:80"}
services:
  - {name: web, vip: 192.0.2.80, protocol: tcp, port: 80, farm: web}
`

// wrongFiles are all kinds of faults: what is put into goodFile in place of what, and all that is said of it.
func wrongFiles() []wrongFile {
	return []wrongFile{
		{"version: 1", "version: 2", []string{"1:10: version: 2: this program knows version 1"}},
		{"{type: tun}", "{type: xdp}", []string{`2:16: device.type: "xdp": want tun or afpacket`}},
		{"{type: tun}", "{type: afpacket}", []string{"2:9: device.interfaces: empty: afpacket needs the interfaces to clients and servers"}},
		{"{type: tun}", "{mtu: 600}", []string{"2:15: device.mtu: 600: want 1280 to 65521"}},
		{"name: a, ", "", []string{"6:9: farms.web.nodes[0]: name is missing; it says: Identity of the node in its farm, over any change."}},
		{"10.0.0.1:80", "10.0.0.1:port", []string{`6:28: farms.web.nodes[0].address: "10.0.0.1:port": want an address such as 10.0.0.1:80, [2001:db8::1]:80 or 10.0.0.1`}},
		{"farm: web}", "farm: wab}", []string{`8:65: services[0].farm: "wab": want one of web; did you mean web?`}},
		{"vip: 192.0.2.80, ", "", []string{"8:5: services[0]: vip is missing: want an address or a network"}},
		{"protocol: tcp", "protocol: tpc", []string{`8:44: services[0].protocol: protocol "tpc": want any, other, a name like tcp, or a number from 0 to 255`}},
		{"port: 80,", "port: 90-80,", []string{`8:55: services[0].port: ports "90-80": want any, a port like 80, or a range like 8000-8080, from 0 to 65535`}},
		{"protocol: tcp, ", "protocol: icmp, ", []string{"8:56: services[0].port: ports 80: protocol icmp has none; want tcp, udp, udplite, dccp, sctp or any"}},
		{"nodes:", "check: {method: htpt}\n    nodes:", []string{`5:21: farms.web.check.method: method "htpt": want one of none, icmp, tcp, udp, ftp, smtp, nntp, pop3, imap4, telnet, http, ssl, ssl-complete, ldap, rtsp, mms, pnm, dns, radius, tftp, grpc, redis, mysql, postgresql, script, command, agent`}},
		{"nodes:", "check: {method: tcp, path: /x}\n    nodes:", []string{"5:32: farms.web.check.path: does not go with method tcp, but with http, ssl-complete, command"}},
		{"nodes:", "check: {interval: 1ms}\n    nodes:", []string{"5:23: farms.web.check.interval: 1ms: want 10ms to 24h"}},
		{"nodes:", "check: {method: radius}\n    nodes:", []string{"5:12: farms.web.check.secret: none: want the secret shared with the server"}},
		{"nodes:", "metric: best\n    nodes:", []string{`5:13: farms.web.metric: metric "best": want one of leastconns, roundrobin, cyclic, weightedcyclic, smoothcyclic, bandwidth, response, hash, minmisses, phash, maglev, capacity, randomtwo`}},
		{`"10.0.0.1:80"}`, `"10.0.0.1:80", weight: -1}`, []string{"6:51: farms.web.nodes[0].weight: -1: want 0 to 1000000"}},
		{`"10.0.0.1:80"}`, "\"10.0.0.1:80\"}\n      - {name: a, address: \"[2001:db8::1]:80\"}", []string{
			`7:16: farms.web.nodes[1].name: "a" is the name of nodes[0] too`,
			"7:28: farms.web.nodes[1].address: [2001:db8::1]:80: the farm's first node, 10.0.0.1:80, is of the other address family",
		}},
		{`"10.0.0.1:80"}`, "\"10.0.0.1:80\"}\n      - {name: b, address: \"[2001:db8::1]:80\"}", []string{"7:28: farms.web.nodes[1].address: [2001:db8::1]:80: the farm's first node, 10.0.0.1:80, is of the other address family"}},
		{"services:\n", "services:\n  - {name: web, vip: 192.0.2.81, farm: web}\n", []string{`9:12: services[1].name: "web" is the name of services[0] too`}},
		{"services:\n", "services:\n  - {name: w2, vip: 192.0.2.80, protocol: tcp, port: 80, farm: web}\n", []string{`9:5: services[1]: it is for the same packets as services[0], "w2", such as tcp 0.0.0.0:40000 > 192.0.2.80:80: want one service for them`}},
		{"{type: tun}", "{type: afpacket, interfaces: [a, a]}", []string{`2:42: device.interfaces[1]: "a": want the name of an interface, once`}},
		{"{type: tun}", "{addresses: [192.0.2.1, 192.0.2.2]}", []string{"2:33: device.addresses[1]: 192.0.2.2: want one address of each family"}},
		{"{type: tun}", "{queues: 300}", []string{"2:18: device.queues: 300: want 1 to 256"}},
		{"{type: tun}", "{name: a-name-of-sixteen}", []string{`2:16: device.name: "a-name-of-sixteen": want 15 characters at most`}},
		{"device:", "sessions: -1\ndevice:", []string{"2:11: sessions: -1: want 1 to 268435456"}},
		{"device:", "state: {every: 1ms}\ndevice:", []string{"2:16: state.every: 1ms: want 1s or more"}},
		{"device:", "admin: {socket: here}\ndevice:", []string{`2:17: admin.socket: "here": want an absolute path of up to 100 characters, or none`}},
		{"device:", "admin: {listen: '0.0.0.0:9443'}\ndevice:", []string{
			"2:8: admin.certificate: missing: over TCP the interface needs TLS and a token",
			"2:8: admin.key: missing: over TCP the interface needs TLS and a token",
			"2:8: admin.token-file: missing: over TCP the interface needs TLS and a token",
		}},
		{"device:", "admin: {token-file: /t}\ndevice:", []string{"2:21: admin.token-file: want admin.listen too: the Unix socket needs none"}},
		{"device:", "admin: {listen: 9443}\ndevice:", []string{`2:17: admin.listen: "9443": want an address and port such as 192.0.2.1:443 or [2001:db8::1]:443`}},
		{"device:", "elements: {db: {method: tcp}}\ndevice:", []string{"2:16: elements.db: target is missing; it says: Address and port to check."}},
		{"device:", "elements: {db: {target: 192.0.2.1}}\ndevice:", []string{"2:25: elements.db.target: 192.0.2.1: want a port too"}},
		{"device:", "elements: {self: {target: '192.0.2.1:1'}}\ndevice:", []string{"2:12: elements.self: self is the name of a node's own check: want another"}},
		{"device:", "elements: {'a b': {target: '192.0.2.1:1'}}\ndevice:", []string{`2:12: elements.a b: "a b": want letters, digits, _, -, . and :`}},
		{"device:", "policies: {p: 'x AND'}\ndevice:", []string{`2:15: policies.p: expression "x AND": byte 5: got the end, want a name, NOT or "("`}},
		{"device:", "policies: {p: q, q: p}\ndevice:", []string{"2:15: policies.p: it leads to itself: p → q → p"}},
		{"nodes:", "policy: db1\n    nodes:", []string{`5:13: farms.web.policy: "db1": want names of elements and policies; there are none`}},
		{"nodes:", "policy: self\n    nodes:", []string{"5:13: farms.web.policy: self: the farm has no check"}},
		{"name: a,", "name: a/b,", []string{`6:16: farms.web.nodes[0].name: "a/b": want letters, digits, _, -, . and :`}},
		{"nodes:", "forward: fullnat\n    nodes:", []string{"5:5: farms.web.locals: empty: fullnat needs addresses to take the place of clients'"}},
		{"nodes:", "forward: fullnat\n    locals: ['2001:db8::1']\n    nodes:", []string{"6:14: farms.web.locals[0]: 2001:db8::1: want an address of the nodes' family"}},
		{"nodes:", "locals: [192.0.2.1]\n    nodes:", []string{"5:13: farms.web.locals: want none with forward nat"}},
		{"nodes:", "forward: dsr\n    nodes:", []string{"5:14: farms.web.forward: dsr sends Ethernet frames: it needs device type afpacket; tunnel does the same through routers"}},
		{"nodes:", "forward: tunnel\n    nodes:", []string{"5:14: farms.web.forward: tunnel needs an address of the nodes' family in device.addresses, as the source of the outer packets"}},
		{"nodes:", "forward: route\n    nodes:", []string{"5:14: farms.web.forward: route goes to no node: leave the service out, foreign packets pass"}},
		{"nodes:", "tunnel: {kind: gre}\n    nodes:", []string{"5:13: farms.web.tunnel: want none with forward nat"}},
		{"nodes:", "panic-percent: 101\n    nodes:", []string{"5:20: farms.web.panic-percent: 101: want 0 to 100"}},
		{"nodes:", "check: {method: http, status: [600]}\n    nodes:", []string{`5:36: farms.web.check.status[0]: "600": want a status code from 200 to 599, or a range such as 200-299`}},
		{"nodes:", "check: {method: http, status: [ok]}\n    nodes:", []string{`5:36: farms.web.check.status[0]: "ok": want a status code from 200 to 599, or a range such as 200-299`}},
		{"nodes:", "check: {method: command}\n    nodes:", []string{"5:12: farms.web.check.path: none: want the program to run"}},
		{"nodes:", "check: {method: dns, dn: x}\n    nodes:", []string{"5:30: farms.web.check.dn: does not go with method dns, but with ldap"}},
		{"nodes:", "metric: capacity\n    nodes:\n      - {name: b, address: \"10.0.0.2:80\", capacity: 5}", []string{"8:9: farms.web.nodes[1].capacity: missing: want one for all nodes of the farm or none"}},
		{"farm: web}", "farm: web, delay: {read: tls, rules: [{when: host, is: x, farm: web}]}}", []string{"8:104: services[0].delay.rules[0].when: host: with read tls there is none to look at"}},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: host, is: x, farm: web, and: {when: alpn, is: h2}}]}}", []string{"8:141: services[0].delay.rules[0].and.when: alpn: with read http there is none to look at"}},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: host, is: x, farm: web, and: {is: h2}}]}}", []string{"8:134: services[0].delay.rules[0].and: when is missing; it says: What is looked at."}},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: regexp, is: '(', farm: web}]}}", []string{"8:117: services[0].delay.rules[0].is: \"(\": error parsing regexp: missing closing ): `(`"}},
		{"farm: web}", "farm: web, delay: {rules: [{when: always, farm: web}]}}", []string{"8:93: services[0].delay.rules[0].when: always: with read nothing the service's own farm serves"}},
		{"nodes:", "agent: {interval: 1s}\n    nodes:", []string{"5:12: farms.web.agent: port is missing; it says: TCP port of the agent."}},
		{"nodes:", "agent: {port: 9, interval: 1ms}\n    nodes:", []string{"5:32: farms.web.agent.interval: 1ms: want 10ms to 24h"}},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: host, is: x}]}}", []string{"8:98: services[0].delay.rules[0]: want either farm, redirect or reply"}},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: host, is: x, farm: y}]}}", []string{`8:124: services[0].delay.rules[0].farm: "y": want one of web`}},
		{"farm: web}", "farm: web, delay: {read: http, tls-persistence: {}}}", []string{
			"8:77: services[0].delay.rules: none: want rules, to read http for",
			"8:107: services[0].delay.tls-persistence: want read tls",
		}},
		{"protocol: tcp, port: 80", "protocol: udp, port: 80, delay: {}", []string{"8:66: services[0].delay: only TCP connections have a beginning to read: want protocol tcp"}},
		{"farm: web}", "farm: web, export-flows: true}", []string{"8:84: services[0].export-flows: to whom? flow-export is missing"}},
		{"device:", "flow-export: {version: ipfix}\ndevice:", []string{"2:14: flow-export: collector is missing; it says: Address and UDP port of the collector."}},
		{"device:", "flow-export: {collector: '192.0.2.1:0', sample: -1}\ndevice:", []string{
			"2:26: flow-export.collector: 192.0.2.1:0: want a port from 1 to 65535",
			"2:49: flow-export.sample: -1: want 1 to 1073741824",
		}},
		{"device:", "flow-export: {collector: '192.0.2.1:1', version: 5}\ndevice:", []string{`2:50: flow-export.version: version "5": want ipfix or netflow9`}},
		{"services:\n", "services:\n  - {name: w2, match: \"192.0.2.81 tcp/80\", port: 80, farm: web}\n", []string{"8:23: services[0].match: want either match or vip, protocol, port and clients"}},
		{"version: 1", "version: 0", []string{"1:10: version: 0: this program knows version 1"}},
		{"version: 1\n", "", []string{"1:1: version is missing; it says: Version of the format: 1."}},
		{"version: 1", "version: one", []string{`1:10: version: "one": want a whole number`}},
		{"{type: tun}", "{typ: tun}", []string{"2:10: device.typ: unknown key; did you mean type?"}},
		{"{type: tun}", "{type: [tun]}", []string{"2:16: device.type: a list: want a value"}},
		{"{type: tun}", "[]", []string{"2:9: device: a list: want keys and values"}},
		{"{type: tun}", "{addresses: ['fe80::1%eth0', 0.0.0.0]}", []string{
			"2:22: device.addresses[0]: fe80::1%eth0: want an address of a host",
			"2:38: device.addresses[1]: 0.0.0.0: want an address of a host",
		}},
		{"{type: tun}", "{addresses: [10.0.0.300]}", []string{`2:22: device.addresses[0]: "10.0.0.300": want an address such as 192.0.2.1 or 2001:db8::1`}},
		{"{type: tun}", "{mtu: big, queues: 1.5}", []string{
			`2:15: device.mtu: "big": want a whole number`,
			`2:28: device.queues: "1.5": want a whole number`,
		}},
		{"device:", "foreign: drip\ndevice:", []string{`2:10: foreign: foreign action "drip": want one of pass, drop`}},
		{"device:", "ping-nodes: x\ndevice:", []string{`2:13: ping-nodes: "x": want a whole number`}},
		{"device:", "associations: 999999999\ndevice:", []string{"2:15: associations: 999999999: want 1 to 268435456"}},
		{"device:", "admin: {listen: '0.0.0.0:9443', certificate: /c, key: /k, token-file: /t, names: lb}\ndevice:", []string{`2:82: admin.names: "lb": want a list`}},
		{"device:", "state: {every: 5}\ndevice:", []string{`2:16: state.every: "5": want a duration such as 5s or 1m30s`}},
		{"device:", "elements: {db: {target: '192.0.2.1:1', method: http, user: x}}\ndevice:", []string{"2:60: elements.db.user: does not go with method http, but with radius, redis, mysql, postgresql"}},
		{"device:", "elements: {db: {target: '192.0.2.1:1', timeout: 0.1ms, rise: -1, fall: -1, hold-down: -1s}}\ndevice:", []string{
			"2:49: elements.db.timeout: 100µs: want 1ms to 24h",
			"2:62: elements.db.rise: -1: want 1 to 1048576",
			"2:72: elements.db.fall: -1: want 1 to 1048576",
			"2:87: elements.db.hold-down: -1s: want 0 or up to 366 days",
		}},
		{"device:", "policies: {'a b': x}\ndevice:", []string{
			`2:12: policies.a b: "a b": want letters, digits, _, -, . and :`,
			`2:19: policies.a b: "x": want names of elements and policies; known are a b`,
		}},
		{"device:", "elements: {db: {target: '192.0.2.1:1'}}\npolicies: {db: db, self: db}\ndevice:", []string{
			`3:12: policies.db: "db" is the name of an element too: want another`,
			"3:20: policies.self: self is the name of a node's own check: want another",
		}},
		{"device:", "elements: {db1: {target: '192.0.2.1:1'}}\npolicies: {p: db AND self}\ndevice:", []string{
			`3:15: policies.p: "db": want names of elements and policies; did you mean db1?`,
			"3:15: policies.p: self: only the policy of a farm has it",
		}},
		{"nodes:", "policy: (self OR\n    nodes:", []string{`5:13: farms.web.policy: expression "(self OR": byte 8: got the end, want a name, NOT or "("`}},
		{"nodes:", "check: {method: script, steps: [{send: a}, {}, {not: true, send: x}]}\n    nodes:", []string{
			"5:48: farms.web.check.steps[1]: want send, expect or both",
			"5:58: farms.web.check.steps[2].not: want expect too: not is about the answer",
		}},
		{"nodes:", "check: {method: http, path: x, host: 'a b', body: ''}\n    nodes:", []string{
			`5:33: farms.web.check.path: "x": want a path that begins with "/" and has no blanks or control characters`,
			`5:42: farms.web.check.host: "a b": want a name without blanks or control characters`,
		}},
		{"nodes:", "check: {method: http, status: [200, 201, 202, 203, 204]}\n    nodes:", []string{"5:35: farms.web.check.status: 5 ranges: want at most 4"}},
		{"nodes:", "check: {method: ssl, server-name: 'a.'}\n    nodes:", []string{`5:39: farms.web.check.server-name: "a.": want a host name of at most 255 bytes without a final dot`}},
		{"nodes:", "check: {method: ssl-complete, min-validity: -1h}\n    nodes:", []string{"5:49: farms.web.check.min-validity: -1h0m0s: want 0 or more"}},
		{"nodes:", "check: {method: tftp}\n    nodes:", []string{"5:12: farms.web.check.file: none: want the name of a file to ask for"}},
		{"nodes:", "check: {method: ldap, password: p}\n    nodes:", []string{"5:12: farms.web.check.dn: none with a password: want the name that the password is of"}},
		{"nodes:", "check: {method: redis, user: u}\n    nodes:", []string{"5:12: farms.web.check.password: none with a user: want the user's password"}},
		{"nodes:", "check: {method: dns, query: 'a..b'}\n    nodes:", []string{`5:33: farms.web.check.query: "a..b" with an empty label: want labels of 1 to 63 bytes`}},
		{"nodes:", "check: {method: postgresql, user: \"a\\0b\"}\n    nodes:", []string{`5:39: farms.web.check.user: "a\x00b": want at most 256 bytes without NUL`}},
		{"nodes:", "check: {method: mysql, user: \"a\\0b\"}\n    nodes:", []string{`5:34: farms.web.check.user: "a\x00b": want at most 128 bytes without NUL`}},
		{"nodes:", "check: []\n    nodes:", []string{"5:12: farms.web.check: a list: want keys and values"}},
		{"nodes:", "check:\n    nodes:", []string{"5:11: farms.web.check: nothing: want keys and values"}},
		{"nodes:", "pressure: {}\n    nodes:", []string{"5:15: farms.web.pressure: want sessions, response or both"}},
		{"nodes:", "pressure: {sessions: {}}\n    nodes:", []string{"5:26: farms.web.pressure.sessions: want high, severe or both"}},
		{"nodes:", "pressure: {sessions: {high: 1.5, severe: -1}}\n    nodes:", []string{
			"5:33: farms.web.pressure.sessions.high: 1.5: want a part from 0 to 1",
			"5:46: farms.web.pressure.sessions.severe: -1: want a part from 0 to 1",
		}},
		{"nodes:", "pressure: {response: {high: 1s}}\n    nodes:", []string{"5:26: farms.web.pressure.response: the farm has no check, by whose times it goes"}},
		{"nodes:", "pressure: {response: {high: 2s, severe: 1s}}\n    nodes:", []string{"5:45: farms.web.pressure.response.severe: want high or more"}},
		{"nodes:", "agent: {port: 0}\n    nodes:", []string{"5:19: farms.web.agent.port: 0: want 1 to 65535"}},
		{"nodes:", "agent: {port: 70000}\n    nodes:", []string{`5:19: farms.web.agent.port: "70000": want a whole number from 0 to 65535`}},
		{"nodes:", "slow-start: -1s\n    recovery: -1s\n    hash-client-bits: 16\n    nodes:", []string{
			"5:17: farms.web.slow-start: -1s: want 0 or more",
			"6:15: farms.web.recovery: -1s: want 0 or more",
			"7:23: farms.web.hash-client-bits: 16: want 24 or 32",
		}},
		{"nodes:", "clients: {bits4: 33, bits6: -2}\n    nodes:", []string{
			"5:22: farms.web.clients.bits4: 33: want 1 to 32, or -1",
			"5:33: farms.web.clients.bits6: -2: want 1 to 128, or -1",
		}},
		{"nodes:", "ageing: {idle: -1s, syn: 500h, linger: x}\n    nodes:", []string{
			"5:20: farms.web.ageing.idle: -1s: must be positive and at most 76354h58m26.944s, or 0 for 1m0s",
			`5:44: farms.web.ageing.linger: "x": want a duration such as 5s or 1m30s`,
		}},
		{"nodes:", "path-mtu: 100\n    nodes:", []string{"5:15: farms.web.path-mtu: 100: want 576 to 65535"}},
		{"nodes:", "mode: forever\n    backup-when: never\n    nodes:", []string{
			`5:11: farms.web.mode: session mode "forever": want one of entry-per-session, regular, server-per-session, remove-on-end-entry-per-session, remove-on-end-server-per-session`,
			`6:18: farms.web.backup-when: backup rule "never": want one of down-or-full, down`,
		}},
		{"nodes:", "forward: fullnat\n    locals: [0.0.0.0, x]\n    nodes:", []string{
			"6:14: farms.web.locals[0]: 0.0.0.0: want an address of a host",
			`6:23: farms.web.locals[1]: "x": want an address such as 192.0.2.1 or 2001:db8::1`,
		}},
		{"nodes:\n      - {name: a, address: \"10.0.0.1:80\"}", "nodes: []", []string{"5:12: farms.web.nodes: empty: want at least one node"}},
		{"nodes:\n      - {name: a, address: \"10.0.0.1:80\"}", "metric: maglev", []string{"5:5: farms.web: nodes is missing; it says: The servers."}},
		{"nodes:\n      - {name: a, address: \"10.0.0.1:80\"}", "nodes: [~, 3, {name: [], address: {}}]", []string{
			"5:13: farms.web.nodes[0]: nothing: want keys and values",
			`5:16: farms.web.nodes[1]: "3": want keys and values`,
			"5:26: farms.web.nodes[2].name: a list: want a text",
			"5:39: farms.web.nodes[2].address: keys and values: want a value",
		}},
		{"name: a,", "name: a, weight: 257, max-sessions: -1, capacity: -1, admin: asleep, backup: perhaps,", []string{
			"6:46: farms.web.nodes[0].max-sessions: -1: want 0 or more",
			"6:60: farms.web.nodes[0].capacity: -1: want 0 to 1000000000",
			`6:71: farms.web.nodes[0].admin: admin state "asleep": want one of enabled, draining, sessions-shutdown, disabled`,
			`6:87: farms.web.nodes[0].backup: "perhaps": want true or false`,
		}},
		{"10.0.0.1:80", "224.0.0.1:80", []string{"6:28: farms.web.nodes[0].address: 224.0.0.1: want an address of a host"}},
		{"farm: web}", "farm: web, clients: '2001:db8::/32'}", []string{"8:79: services[0].clients: clients 2001:db8::/32: are IPv6, the VIP 192.0.2.80/32 is IPv4"}},
		{"farm: web}", "farm: web, clients: 10.0.0.9-10.0.0.5}", []string{"8:79: services[0].clients: clients 10.0.0.9-10.0.0.5: the first address is after the last; want a range like 10.0.0.1-10.0.0.9"}},
		{"port: 80, farm", "port: 99999, farm", []string{`8:55: services[0].port: ports "99999": want any, a port like 80, or a range like 8000-8080, from 0 to 65535`}},
		{"vip: 192.0.2.80, protocol: tcp, port: 80", "match: \"192.0.2.80 icmp/80\"", []string{"8:24: services[0].match: ports 80: protocol icmp has none; want tcp, udp, udplite, dccp, sctp or any"}},
		{"vip: 192.0.2.80, protocol: tcp, port: 80", "match: nonsense", []string{`8:24: services[0].match: VIP "nonsense": ParseAddr("nonsense"): unable to parse IP; want an address or a prefix like 192.0.2.0/28`}},
		{"vip: 192.0.2.80", "vip: '2001:db8::80'", []string{`8:69: services[0].farm: "web": its nodes are of another address family than 2001:db8::80: only forward tunnel reaches them`}},
		{"vip: 192.0.2.80", "vip: 192.0.2.0/33", []string{`8:22: services[0].vip: "192.0.2.0/33": want an address or a network such as 192.0.2.80, 2001:db8::80 or 192.0.2.0/24`}},
		{"farm: web}", "farm: web, min-nodes: -1}", []string{"8:81: services[0].min-nodes: -1: want 1 to 32767"}},
		{"farm: web}", "farm: web, lost-session: keep}", []string{`8:84: services[0].lost-session: mid-stream action "keep": want one of reset, silent, reselect`}},
		{"farm: web}", "farm: web, lost-session: reselect, delay: {}}", []string{"8:84: services[0].lost-session: reselect: want reset or silent with delay, which no unknown connection can go on without"}},
		{"farm: web}", "farm: web, delay: {budget: 70000, time: -1s}}", []string{
			"8:86: services[0].delay.budget: 70000: want 1 to 65535 bytes, or 0 for 3584",
			"8:99: services[0].delay.time: -1s: want a positive duration, or 0 for 5s",
		}},
		{"farm: web}", "farm: web, delay: {read: http}}", []string{"8:77: services[0].delay.rules: none: want rules, to read http for"}},
		{"farm: web}", "farm: web, delay: {read: http, rules: [{when: host, is: 'a b', farm: web}, {when: path, is: x, reply: 700}, {when: header, is: x, redirect: 'a b'}, {when: always, is: x, farm: web, and: {when: cookie, is: y}}]}}", []string{
			`8:115: services[0].delay.rules[0].is: "a b": want a name or address as in a Host field: ASCII (xn--…), without port, IPv6 in brackets`,
			`8:151: services[0].delay.rules[1].is: "x": want a path that begins with a slash`,
			`8:161: services[0].delay.rules[1].reply: "700": want a status code from 200 to 599`,
			`8:167: services[0].delay.rules[2].key: "": want a name with header and cookie, and none otherwise`,
			`8:199: services[0].delay.rules[2].redirect: "a b": must not have spaces or control characters`,
			`8:226: services[0].delay.rules[3].is: "x": want one, except with always`,
			`8:245: services[0].delay.rules[3].and.key: "": want a name with header and cookie, and none otherwise`,
		}},
		{"farm: web}", "farm: web, delay: {read: tls, rules: [{when: server-name, is: x, reply: 404}]}}", []string{"8:131: services[0].delay.rules[0].reply: a TLS client understands no answer in the clear: want farm"}},
		{"farm: web}", "farm: web, delay: {read: tls, tls-persistence: {sessions: -1, idle: -1s}}}", []string{
			"8:117: services[0].delay.tls-persistence.sessions: -1: want 1 to 67108864, or 0 for 1048576",
			"8:127: services[0].delay.tls-persistence.idle: -1s: want more than 0, or 0 for 10m0s",
		}},
		{"farm: web}", "farm: web, delay: {read: ftp}}", []string{`8:84: services[0].delay.read: reading "ftp": want one of nothing, tls, http`}},
		{"farms:\n", "farms:\n  dsr: {forward: tunnel, nodes: [{name: x, address: 10.0.0.9}]}\n", []string{"4:18: farms.dsr.forward: tunnel needs an address of the nodes' family in device.addresses, as the source of the outer packets"}},
		{"{type: tun}", "{type: tun, addresses: [10.0.0.254]}\nfarms2: 1", []string{"3:1: farms2: unknown key; did you mean farms?"}},
		{"device:", "flow-export: {collector: x, active: -1s, inactive: -1s, domain: -1}\ndevice:", []string{
			`2:26: flow-export.collector: "x": want an address and port such as 192.0.2.1:443 or [2001:db8::1]:443`,
			"2:37: flow-export.active: -1s: want a positive duration",
			"2:52: flow-export.inactive: -1s: want a positive duration",
			`2:65: flow-export.domain: "-1": want a whole number from 0 to 4294967295`,
		}},
		{"services:\n", "services:\n  - {name: r1, vip: 192.0.2.81, clients: 10.0.0.0-10.0.0.9, farm: web}\n  - {name: r2, vip: 192.0.2.81, clients: 10.0.0.5-10.0.0.20, farm: web}\n", []string{`9:5: services[1]: neither it nor services[0], "r1", is the more specific for packets such as tcp 10.0.0.5:40000 > 192.0.2.81:0: want clients or ports that do not overlap, or one within the other`}},
		{"services:\n", "services:\n  - {vip: 192.0.2.82}\n", []string{
			"8:5: services[0]: name is missing; it says: Identity of the service, over any change.",
			"8:5: services[0]: farm is missing; it says: Name of the farm that serves.",
		}},
		{"services:\n", "services:\n  - 5\n", []string{`8:5: services[0]: "5": want keys and values`}},
		{"services:", "servces:", []string{
			"1:1: services is missing; it says: What clients address. The most specific match wins; the order does not matter.",
			"7:1: servces: unknown key; did you mean services?",
		}},
		{"farms:", "farm:", []string{
			"1:1: farms is missing; it says: Servers that do the same work, by name.",
			"3:1: farm: unknown key; did you mean farms?",
		}},
	}
}

type wrongFile struct {
	old, new string
	want     []string
}

func (w wrongFile) text() string { return strings.Replace(goodFile, w.old, w.new, 1) }

// Every fault is told with its line and column, the key of the file, what it has and what would be right; and nothing else is told.
func TestFaultsNameTheirPlace(t *testing.T) {
	_, err := decode([]byte(goodFile))
	require.NoError(t, err)
	// The words of the file are told, not those of the packages that found the fault.
	foreign := regexp.MustCompile(`\b(Interval|Timeout|Rise|Fall|HoldDown|Key|Path|Budget|Pool|Config|Node\[|Max[A-Z]\w+|TTL|Locals|MTU|Addr\b)|[: ](healthcheck|probe|steering|dataplane|clienttable|sslpersist|splice|l7|policy): `)
	for _, c := range wrongFiles() {
		bad := c.text()
		require.NotEqual(t, goodFile, bad, c.new)
		_, err := decode([]byte(bad))
		require.EqualError(t, err, strings.Join(c.want, "\n"), bad)
		require.NotRegexp(t, foreign, err.Error())
	}
}

// Shape, meaning and references are all looked at, whatever else is wrong, and what is wrong only because something else is, is not told.
func TestAllFaultsOfBothStagesAtOnce(t *testing.T) {
	_, err := decode([]byte(`version: 1
devise: {type: tun}
device: {addresses: [10.0.0.1x]}
elements:
  db: {target: 10.0.0.20, method: postgresql}
policies:
  p: q
  q: p AND dbx
farms:
  web:
    check: {method: http, interval: 1ms}
    policy: self AND db
    nodes:
      - {name: a, address: "10.0.0.1:80", wieght: 3}
  api:
    panic-percent: 200
    policy: dbb
    nodes: [{name: a, address: "10.0.0.2:80"}]
  tunnel:
    forward: tunnel
    tunnel: {kind: ipip, key: 5}
    nodes: [{name: a, address: "10.0.0.3"}]
  good:
    nodes: [{name: a, address: "10.0.0.4:80"}]
  gre:
    path-mtu: 400
    nodes: [{name: a, address: "10.0.0.5"}]
services:
  - {name: web, vip: 192.0.2.80, protocol: tcp, port: 80, farm: web}
  - {name: api, vip: 192.0.2.80, protocol: tcp, port: 80, farm: api}
  - {name: one, vip: 192.0.2.81, protocol: tcp, port: 80, farm: good}
  - {name: two, vip: 192.0.2.81, protocol: tcp, port: 80, farm: good}
  - {name: six, vip: "2001:db8::1", farm: good, min-nodes: -1}
  - {name: lost, vip: 192.0.2.82, farm: goood}
`))
	require.EqualError(t, err, strings.Join([]string{
		"2:1: devise: unknown key; did you mean device?",
		`3:22: device.addresses[0]: "10.0.0.1x": want an address such as 192.0.2.1 or 2001:db8::1`,
		"5:16: elements.db.target: 10.0.0.20: want a port too",
		"7:6: policies.p: it leads to itself: p → q → p",
		`8:6: policies.q: "dbx": want names of elements and policies; did you mean db?`,
		"11:37: farms.web.check.interval: 1ms: want 10ms to 24h",
		"14:43: farms.web.nodes[0].wieght: unknown key; did you mean weight?",
		"16:20: farms.api.panic-percent: 200: want 0 to 100",
		`17:13: farms.api.policy: "dbb": want names of elements and policies; did you mean db?`,
		"21:31: farms.tunnel.tunnel.key: 5: want 0, since the tunnel has no key",
		"26:15: farms.gre.path-mtu: 400: want 576 to 65535",
		`32:5: services[3]: it is for the same packets as services[2], "one", such as tcp 0.0.0.0:40000 > 192.0.2.81:80: want one service for them`,
		`33:43: services[4].farm: "good": its nodes are of another address family than 2001:db8::1: only forward tunnel reaches them`,
		"33:60: services[4].min-nodes: -1: want 1 to 32767",
		`34:41: services[5].farm: "goood": want one of api, good, gre, tunnel, web; did you mean good?`,
	}, "\n"))
}
