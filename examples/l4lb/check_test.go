package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

const portsFile = `version: 1
elements:
  db: {target: "10.0.0.20:5432"}
  mail: {target: "10.0.0.20:25"}
farms:
  mixed:
    check: {interval: 1s}
    nodes:
      - {name: web, address: "10.0.0.1:80"}
      - {name: mail, address: "10.0.0.1:25"}
      - {name: other, address: "10.0.0.1:8080"}
  based:
    check: {port: 443}
    nodes: [{name: a, address: "10.0.0.1:8080"}]
  named:
    check: {method: tcp}
    nodes: [{name: a, address: "10.0.0.1:80"}]
  names:
    check: {query: a.example}
    unanswered: 4000
    nodes: [{name: a, address: "10.0.0.1:53"}]
  games:
    check: {}
    unanswered: -1
    nodes: [{name: a, address: "10.0.0.1:27015"}]
  free:
    forward: tunnel
    nodes: [{name: a, address: "10.0.0.1:80"}]
  pinged:
    ping: {}
    nodes: [{name: a, address: "10.0.0.1:80"}]
device: {addresses: [10.0.0.254]}
services:
  - {name: web, vip: 192.0.2.1, protocol: tcp, port: 80, farm: mixed}
  - {name: udp, vip: 192.0.2.2, protocol: udp, port: 53, farm: names}
  - {name: games, vip: 192.0.2.3, protocol: udp, port: 27015, farm: games}
`

// TestCheckOfPort: a check without a method is that of the port.
func TestCheckOfPort(t *testing.T) {
	c, err := decode([]byte(portsFile))
	require.NoError(t, err)
	s := c.setup()
	probers := map[string]healthcheck.Check{}
	for _, e := range s.Elements {
		probers[e.ID] = e
	}
	for id, want := range map[string]healthcheck.Prober{
		"db": probe.TCP{}, "mail": probe.SMTP{}, "mixed/mail": probe.SMTP{}, "mixed/other": probe.TCP{}, "based/a": probe.TLSHello{}, "named/a": probe.TCP{},
		"names/a": probe.DNS{Name: "a.example"},
	} {
		require.Equal(t, want, probers[id].Prober, id)
	}
	require.IsType(t, probe.HTTP{}, probers["mixed/web"].Prober)
	require.EqualValues(t, 443, probers["based/a"].Target.Port())
	// A plain datagram brings a node up by two of them.
	games := probers["games/a"]
	require.Equal(t, 1, games.Prober.(probe.UDP).Datagrams)
	require.Equal(t, 2, games.Rise)
	require.True(t, games.BringUpLast)
	require.False(t, probers["mixed/web"].BringUpLast)

	ports := map[string]healthcheck.Port{}
	for _, v := range s.Servers {
		ports[v.Name] = v.Ports[0]
		require.Equal(t, v.Name == "pinged/a", v.Echo != nil, v.Name)
	}
	for name, reassign := range map[string]int{"mixed/web": 0, "names/a": 4000, "games/a": -1, "free/a": -1, "pinged/a": -1} {
		require.Equal(t, reassign, ports[name].Reassign, name)
	}
	require.True(t, ports["free/a"].DSR)
	require.False(t, ports["mixed/web"].DSR)
	require.True(t, c.Farms["pinged"].checked())
	require.Equal(t, time.Second, probers["mixed/web"].Interval)

	for old, fault := range map[string]string{
		"check: {interval: 1s}":    "interval: 1s, path: /x}\n:farms.mixed.check.path: does not go with method smtp, but with http, ssl-complete, command (port 25 is checked by smtp unless method says otherwise)",
		"check: {query: a.example": "interval: 1s, path: /x\n:farms.names.check.path: does not go with method dns",
		"unanswered: 4000":         "unanswered: 2000000\n:reassign threshold 2000000, want 1 to 1048576",
		"ping: {}":                 "ping: {interval: 1ms}\n:farms.pinged.ping.interval: 1ms: want 10ms to 24h",
	} {
		text, want, _ := strings.Cut(fault, "\n:")
		if strings.HasPrefix(old, "check") {
			text = "check: {" + text
		}
		require.Contains(t, portsFile, old)
		_, err := decode([]byte(strings.Replace(portsFile, old, text, 1)))
		require.ErrorContains(t, err, want, old)
	}
}
