package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

const persistFile = `version: 1
farms:
  tls: {nodes: [{name: a, address: "10.0.0.1:443"}]}
services:
  - {name: tls, %s, farm: tls, delay: {read: tls, tls-persistence: {}}}
`

// TestPersistencePorts: TLS sessions are followed at every port of their service, however that is written, and at others once a reload says so.
func TestPersistencePorts(t *testing.T) {
	x := newInProcess(t, fmt.Sprintf(persistFile, `match: "192.0.2.80 tcp/443"`))
	for _, c := range []struct {
		match   string
		yes, no []uint16
	}{
		{`match: "192.0.2.80 tcp/443"`, []uint16{443}, []uint16{8443}},
		{`match: "192.0.2.80 tcp/8443"`, []uint16{8443}, []uint16{443}},
		{`vip: 192.0.2.80, protocol: tcp, port: 993-995`, []uint16{993, 994, 995}, []uint16{443, 992, 996}},
		{`vip: 192.0.2.80, protocol: tcp, port: 0-2`, []uint16{1, 2}, []uint16{3, 443}},
		{`vip: 192.0.2.80, protocol: tcp`, []uint16{1, 443, 65535}, nil},
		{`vip: 192.0.2.80, protocol: tcp, port: 65535`, []uint16{65535}, []uint16{1, 65534}},
	} {
		next, err := decode([]byte(fmt.Sprintf(persistFile, c.match)))
		require.NoError(t, err)
		before := x.pools.tls["tls"]
		require.NoError(t, x.apply(next))
		farm := x.pools.tls["tls"].farm
		for _, port := range c.yes {
			require.True(t, farm.Watches(port), "%s: %d", c.match, port)
		}
		for _, port := range c.no {
			require.False(t, farm.Watches(port), "%s: %d", c.match, port)
		}
		require.NoError(t, x.apply(next))
		require.Same(t, farm, x.pools.tls["tls"].farm, "what was learned outlives reloads")
		if c.match == `match: "192.0.2.80 tcp/443"` {
			require.Same(t, before, x.pools.tls["tls"])
		}
	}
}
