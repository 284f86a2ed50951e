package dataplane

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

// A connection goes to the proxy; the proxy's own comes back to the same virtual address, meets an internal rule, and is balanced.
func TestProxyRedirection(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		ids := new(steering.IDs)
		proxies := mustPool(t, ids, steering.RoundRobin, steering.Node{Name: "proxy", Addr: ap(fam.elsewhere, 8443)})
		nodes := mustPool(t, ids, steering.RoundRobin, steering.Node{Name: "n1", Addr: ap(fam.n1, 8080)})
		front, behind := &Service{Name: "front", Pool: proxies}, &Service{Name: "behind", Pool: nodes}
		in := rule("behind", fam.vip.String()+" tcp/80", behind)
		in.Internal = true
		p := newPlane(t, fam, func(c *Config, _ *Service) {
			c.Policies, c.Proxies = table(t, rule("front", fam.vip.String()+" tcp/443", front), in), []netip.Addr{fam.elsewhere}
		})
		client, proxy, node := ap(fam.client, 4000), ap(fam.elsewhere, 8443), ap(fam.n1, 8080)
		p.forwarded(tcp(client, ap(fam.vip, 443), "S", 1, 0, ""), client, proxy)
		p.forwarded(tcp(proxy, client, "SA", 1, 2, ""), ap(fam.vip, 443), client)
		own := ap(fam.elsewhere, 50000)
		p.forwarded(tcp(own, ap(fam.vip, 80), "S", 1, 0, ""), own, node)
		p.forwarded(tcp(node, own, "SA", 1, 2, ""), ap(fam.vip, 80), own)

		// Nobody else meets the internal rule, nor the proxy any other.
		v, _ := p.send(tcp(client, ap(fam.vip, 80), "S", 1, 0, ""))
		require.Equal(t, Dropped, v)
		v, _ = p.send(tcp(own, ap(fam.vip, 443), "S", 1, 0, ""))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 2, p.drops()[NoPolicy])
	})
	_, err := New(&Config{Proxies: []netip.Addr{{}}})
	require.ErrorContains(t, err, "Proxies[0]")
}
