package dataplane

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// TestForwardingChanges has sessions go on in the way they began when their service changes to another one.
func TestForwardingChanges(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.Addrs = []netip.Addr{fam.elsewhere}
			s.Forward, s.Tunnel = Tunnelled, Tunnel{Kind: GRE, Key: 7}
		})
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		_, old := p.send(tcp(client, vip, "S", 1, 0, ""))
		require.NotEmpty(t, old)
		for _, f := range []Service{{Forward: NAT}, {Forward: Tunnelled}, {Forward: FullNAT, Locals: []netip.Addr{fam.elsewhere}}} {
			f.Name, f.Pool = p.svc.Name, p.svc.Pool
			require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", &f))))
			v, out := p.send(tcp(client, vip, "A", 2, 9, "data"))
			require.Equal(t, Forwarded, v, p.drops())
			var w, x wire.View
			require.Equal(t, wire.OK, wire.Parse(out, &w))
			require.Equal(t, wire.OK, wire.Parse(old, &x))
			require.EqualValues(t, wire.ProtoGRE, w.Proto)
			require.Equal(t, x.Dst(old), w.Dst(out))
			require.Equal(t, uint8(0x20), out[w.L4], "the key stays")
			// A new session takes the new way.
			next := ap(fam.client2, uint16(41000+int(f.Forward)))
			v, out = p.send(tcp(next, vip, "S", 1, 0, ""))
			require.Equal(t, Forwarded, v)
			require.Equal(t, wire.OK, wire.Parse(out, &w))
			if f.Forward == Tunnelled {
				require.Contains(t, []uint8{wire.ProtoIPv4, wire.ProtoIPv6}, w.Proto)
			} else {
				require.EqualValues(t, wire.ProtoTCP, w.Proto)
			}
		}
	})
}

// TestRefusedTableChangesNothing applies a table that only the look at all pools together finds wrong.
func TestRefusedTableChangesNothing(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
	node := p.open(client)
	stranger := mustPool(t, new(steering.IDs), steering.RoundRobin, steering.Node{Name: "x", Addr: ap(fam.n3, 1)}) // with ids of its own
	svc := &Service{Name: "other", Pool: stranger}
	rules := func(s *Service) *policy.Table[*Service] { return table(t, rule("b", fam.vip2.String()+" tcp/80", s)) }
	bad, err := policy.Compile(nil, rule("tcp", fam.vip.String()+" tcp/80", p.svc), rule("b", fam.vip2.String()+" tcp/80", svc))
	require.NoError(t, err)
	require.ErrorIs(t, p.Apply(bad), ErrInvalid)
	require.ErrorIs(t, p.Apply(rules(svc)), ErrInvalid)
	p.Step(p.now)
	p.forwarded(tcp(client, vip, "A", 101, 501, "x"), client, node)
	p.open(ap(fam.client, 40001))
	good := &Service{Name: "other", Pool: mustPool(t, p.ids, steering.RoundRobin, steering.Node{Name: "y", Addr: ap(fam.n3, 8080)})}
	require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", p.svc), rule("b", fam.vip2.String()+" tcp/80", good))))
	v, _ := p.send(tcp(client, ap(fam.vip2, 80), "S", 1, 0, ""))
	require.Equal(t, Forwarded, v, p.drops())
	p.forwarded(tcp(client, vip, "A", 101, 501, "x"), client, node)
}

// TestPortReusedWithinABatch has a client use its port again, and send more at once: all of it belongs to the new
// session.
func TestPortReusedWithinABatch(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = 4 })
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		p.forwarded(tcp(client, vip, "FA", 101, 501, ""), client, node)
		p.forwarded(tcp(node, client, "FA", 501, 102, ""), vip, client)
		p.forwarded(tcp(client, vip, "A", 102, 502, ""), client, node)
		syn := tcp(client, vip, "S", 90000, 0, "")
		_, out := p.sendAll(syn, syn, tcp(client, vip, "A", 90001, 1, ""), tcp(client, vip, "PA", 90001, 1, "x"))
		require.Len(t, out, 4)
		first, _ := parseFlow(out[0])
		for _, o := range out[1:] {
			f, _ := parseFlow(o)
			require.Equal(t, first.Dst, f.Dst)
		}
		require.Equal(t, 1, p.Stats().Sessions)
		total := int64(0)
		for _, st := range p.pool.All() {
			require.GreaterOrEqual(t, st.Sessions, int64(0))
			total += st.Sessions
		}
		require.EqualValues(t, 1, total)
	})
}

// TestRestoreIntoAnotherForwarding: a session of a tunnel is none for a service that translates, and the other way round.
func TestRestoreIntoAnotherForwarding(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		plane := func(f Forward) *testPlane {
			return newPlane(t, fam, func(c *Config, s *Service) {
				c.Addrs = []netip.Addr{fam.elsewhere}
				s.Forward = f
			})
		}
		for _, f := range []Forward{NAT, Tunnelled} {
			from, to := plane(f), plane(Tunnelled-f)
			v, _ := from.send(tcp(ap(fam.client, 40000), ap(fam.vip, 80), "S", 1, 0, ""))
			require.Equal(t, Forwarded, v)
			var saved bytes.Buffer
			_, err := from.WriteTo(&saved)
			require.NoError(t, err)
			res, err := to.Restore(&saved)
			require.NoError(t, err)
			require.Equal(t, Restored{Associations: 1, Unknown: 1}, res)
			require.Zero(t, to.Stats().Sessions)
		}
	})
}
