package dataplane

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// TestStatic binds clients to nodes in every session mode, while sessions go on.
func TestStatic(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for mode := clienttable.Mode(0); mode <= clienttable.RemoveOnEndServerPerSession; mode++ {
			p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = mode })
			n1, n2 := ap(fam.n1, 8080), ap(fam.n2, 8080)
			vip, port := ap(fam.vip, 80), uint16(40000)
			open := func(a netip.Addr) netip.AddrPort {
				port++
				return p.open(ap(a, port))
			}
			first := open(fam.client)
			other := "n1"
			if first == n1 {
				other = "n2"
			}
			bind := func(s ...Static) {
				t.Helper()
				svc := *p.svc
				svc.Static = s
				require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", &svc))))
			}
			// What was remembered of the client counts no more, but its session stays.
			some := netip.PrefixFrom(fam.client, fam.client.BitLen()-8).Masked()
			bind(Static{some, "n1"}, Static{netip.PrefixFrom(fam.client, fam.client.BitLen()), other})
			want := map[string]netip.AddrPort{"n1": n1, "n2": n2}[other]
			for range 3 {
				require.Equal(t, want, open(fam.client), "the longest prefix")
				require.Equal(t, n1, open(fam.client2))
			}
			p.forwarded(tcp(ap(fam.client, 40001), vip, "A", 101, 501, "x"), ap(fam.client, 40001), first)
			e, err := p.ExplainFlow(wire.ProtoTCP, ap(fam.client, 9), vip)
			require.NoError(t, err)
			require.Equal(t, want, e.Out.Dst())
			require.Contains(t, e.String(), "static")
			// A node that may have no session, or is not there, binds nobody.
			p.SetUp(other, false)
			require.Equal(t, first, open(fam.client))
			p.SetUp(other, true)
			require.Equal(t, want, open(fam.client))
			bind(Static{some, "n3"})
			open(fam.client2)
			bind()
			open(fam.client2)
			for p.KillSessions(func(Session) bool { return true }) > 0 {
			}
			for p.Step(p.now) { // those of the node that was down
			}
			for _, st := range p.pool.All() {
				require.Zero(t, st.Sessions)
			}
		}
	})
	_, err := New(&Config{Policies: table(t, rule("a", "192.0.2.1", &Service{Name: "x", Pool: newPlane(t, families2()[0]).pool, Static: []Static{
		{}, {netip.MustParsePrefix("192.0.2.1/24"), "n"}, {netip.MustParsePrefix("10.0.0.0/8"), ""}, {netip.MustParsePrefix("10.0.0.0/8"), "b"}}}))})
	for _, want := range []string{"Static[0].Clients", "Static[1].Clients", "Static[2].Node", "Static[3].Clients"} {
		require.ErrorContains(t, err, want)
	}
}
