package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
)

// What no node's health depends on is never checked, and l4lb says so.
func TestIdleElements(t *testing.T) {
	const head = `version: 1
elements:
  db: {target: 10.0.0.20:5432, method: tcp}
  used: {target: 10.0.0.21:80, method: tcp}
  spare: {target: 10.0.0.22:80, method: tcp}
policies: {p: used OR NOT used, unused: spare}
farms:
  web:
    check: {method: tcp}
    policy: POLICY
    nodes: [{name: a, address: "10.0.0.1:80"}]
services: [{name: web, vip: 192.0.2.80, protocol: tcp, port: 80, farm: web}]
`
	c, err := decode([]byte(strings.Replace(head, "POLICY", "self AND p", 1)))
	require.NoError(t, err)
	require.Equal(t, []string{"db", "spare"}, c.idle())
	_, err = decode([]byte(strings.Replace(head, "POLICY", "db AND p", 1)))
	require.EqualError(t, err, "9:12: farms.web.check: the farm's policy has no self, so that it would never be made: want self in the policy, or no check")
	c, err = decode([]byte(strings.NewReplacer("POLICY", "db AND p", "    check: {method: tcp}\n", "").Replace(head)))
	require.NoError(t, err)
	require.Equal(t, []string{"spare"}, c.idle())
	require.Equal(t, -1, c.Farms["web"].unanswered(), "its check would not ask the node")
}

// A farm that a rule of delayed binding leads to serves streams, whatever else it does.
func TestTransportOfRules(t *testing.T) {
	c, err := decode([]byte(`version: 1
farms:
  both: {check: {}, nodes: [{name: a, address: "10.0.0.1:8443"}]}
  udp: {check: {}, nodes: [{name: a, address: "10.0.0.2:8443"}]}
services:
  - {name: u, vip: 192.0.2.80, protocol: udp, port: 8443, farm: both}
  - {name: v, vip: 192.0.2.81, protocol: udp, port: 8443, farm: udp}
  - {name: t, vip: 192.0.2.80, protocol: tcp, port: 8443, farm: udp, delay: {read: http, rules: [{when: always, farm: both}]}}
`))
	require.NoError(t, err)
	require.Equal(t, healthcheck.OverTCP, c.transport("both"))
	require.Equal(t, healthcheck.OverTCP, c.transport("udp"))
	c.Services = c.Services[:2]
	require.Equal(t, healthcheck.OverUDP, c.transport("both"))
}
