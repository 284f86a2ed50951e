package dataplane

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// followedPlane is a Plane whose associations others follow. Clients of its services, which share a pool, are remembered by farm.
func followedPlane(t *testing.T, fam family, services ...string) *testPlane {
	return newPlane(t, fam, func(c *Config, s *Service) {
		c.AssociationChanges = 256
		var rules []policy.Rule[*Service]
		for i, name := range services {
			svc := &Service{Name: name, Pool: s.Pool, Mode: clienttable.EntryPerSession}
			rules = append(rules, rule(name, netip.AddrPortFrom(fam.vip, uint16(80+i)).Addr().String()+" tcp/"+[]string{"80", "81", "82", "83", "84", "85"}[i], svc))
		}
		c.Policies = table(t, rules...)
	})
}

// tellOf gives what one Plane has new to another, and returns how far it has come.
func tellOf(t *testing.T, from, to *testPlane, after uint64) uint64 {
	t.Helper()
	b, last, err := from.Replicas()["associations"].AppendChanges(nil, after, 1<<20)
	require.NoError(t, err)
	require.NoError(t, to.Replicas()["associations"].Apply(b))
	return last
}

// boundTo returns the node of a client of the shared pool.
func (p *testPlane) boundTo(client netip.Addr) string {
	b, ok := p.assocs().Peek(clienttable.FarmKey(p.snap.Load().services[0].pool.no, client, clienttable.Grouping{}))
	if !ok {
		return ""
	}
	return p.snap.Load().byID[steering.NodeID(b.node)].name
}

func (p *testPlane) connect(from netip.AddrPort) {
	p.t.Helper()
	v, _ := p.send(tcp(from, ap(p.fam.vip, 80), "S", 100, 0, ""))
	require.Equal(p.t, Forwarded, v)
}

// Two balancers that bind a client at once come to the one who did it last, whoever hears of the other one first; at the same moment, too.
func TestReplicasAgree(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, apart := range []time.Duration{-time.Second, 0, time.Second} {
			for _, snapshot := range []bool{false, true} {
				a, b := followedPlane(t, fam, "web"), followedPlane(t, fam, "web")
				b.now = a.now.Add(apart)
				b.connect(ap(fam.client2, 1)) // another node's turn then
				a.connect(ap(fam.client, 1))
				b.connect(ap(fam.client, 1))
				require.NotEqual(t, a.boundTo(fam.client), b.boundTo(fam.client))
				want := map[bool]string{true: a.boundTo(fam.client), false: b.boundTo(fam.client)}[apart < 0]
				if apart == 0 {
					want = max(a.boundTo(fam.client), b.boundTo(fam.client))
				}
				ra, rb := a.Replicas()["associations"], b.Replicas()["associations"]
				var atA, atB uint64
				if snapshot {
					var sa, sb bytes.Buffer
					atA, atB = ra.LastSeq(), rb.LastSeq()
					require.NoError(t, ra.Snapshot(&sa))
					require.NoError(t, rb.Snapshot(&sb))
					require.NoError(t, rb.Restore(&sa))
					require.NoError(t, ra.Restore(&sb))
				} else {
					atA = tellOf(t, a, b, 0)
					atB = tellOf(t, b, a, 0)
				}
				for range 3 {
					atA, atB = tellOf(t, a, b, atA), tellOf(t, b, a, atB)
				}
				require.Equal(t, want, a.boundTo(fam.client), "apart %v, snapshot %v", apart, snapshot)
				require.Equal(t, want, b.boundTo(fam.client))
				rest, _, err := ra.AppendChanges(nil, atA, 1<<20)
				require.NoError(t, err)
				require.Empty(t, rest, "they are at rest")
			}
		}
	})
}

// An association in use is told again before it ages at the followers; one that is bound anew is newer than what was heard, whatever the clock says.
func TestReplicasAreRetold(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		a, b := followedPlane(t, fam, "web"), followedPlane(t, fam, "web")
		ttl := clienttable.DefaultTTL
		a.connect(ap(fam.client, 1))
		at := tellOf(t, a, b, 0)
		port := uint16(2)
		again := func(after time.Duration) {
			a.now = a.now.Add(after)
			a.connect(ap(fam.client, port))
			port++
		}
		again(ttl / 4)
		require.Equal(t, at, a.Replicas()["associations"].LastSeq(), "not each time")
		again(ttl / 4)
		require.Greater(t, a.Replicas()["associations"].LastSeq(), at, "after half of the idle time")
		at = tellOf(t, a, b, at)
		// A connection that only goes on tells of its client, too.
		key := tcp(ap(fam.client, port-1), ap(fam.vip, 80), "A", 101, 501, "x")
		for range 20 {
			a.now = a.now.Add(ttl / 20)
			v, _ := a.send(key)
			require.Equal(t, Forwarded, v)
		}
		require.Greater(t, a.Replicas()["associations"].LastSeq(), at)
		tellOf(t, a, b, at)

		// What another balancer with a fast clock has said is no reason never to be believed again.
		b.now = b.now.Add(time.Hour)
		key2 := clienttable.FarmKey(b.snap.Load().services[0].pool.no, fam.client, clienttable.Grouping{})
		was, ok := b.assocs().Peek(key2)
		require.True(t, ok)
		b.w.now = b.now
		b.w.bind(b.snap.Load().services[0], key2, was)
		tellOf(t, b, a, 0)
		heard, _ := a.assocs().Peek(key2)
		a.w.now = a.now
		a.w.bind(a.snap.Load().services[0], key2, heard)
		mine, _ := a.assocs().Peek(key2)
		require.Greater(t, mine.at, heard.at)
	})
}

// Balancers are upgraded one after the other: a service that one of them has already, and that shares a pool, does not keep them from knowing the
// pool's clients.
func TestReplicasWhileServicesAreAdded(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		old, upgraded := followedPlane(t, fam, "web"), followedPlane(t, fam, "web", "api", "admin")
		old.connect(ap(fam.client, 1))
		upgraded.connect(ap(fam.client2, 1))
		tellOf(t, old, upgraded, 0)
		tellOf(t, upgraded, old, 0)
		for _, c := range []netip.Addr{fam.client, fam.client2} {
			require.NotEmpty(t, old.boundTo(c))
			require.Equal(t, old.boundTo(c), upgraded.boundTo(c))
		}
		// Likewise where the service that bound a client is not known.
		v, _ := upgraded.send(tcp(ap(fam.router, 1), ap(fam.vip, 81), "S", 100, 0, ""))
		require.Equal(t, Forwarded, v)
		tellOf(t, upgraded, old, 0)
		require.Equal(t, upgraded.boundTo(fam.router), old.boundTo(fam.router))
	})
}

func TestLabels(t *testing.T) {
	for _, text := range []string{"", "a", "a\x00b", "a\x00b\x00c\x00d"} {
		_, _, ok := parseLabels(text, 1)
		require.False(t, ok, "%q", text)
	}
	labels := []farmLabel{{"api", ""}, {"web", "f"}}
	back, names, ok := parseLabels(labelText(labels, "n1", "x"), 2)
	require.True(t, ok)
	require.Equal(t, labels, back)
	require.Equal(t, []string{"n1", "x"}, names)
	p := followedPlane(t, families2()[0], "a", "b", "c", "d", "e", "f")
	all := p.snap.Load().labels()
	require.Equal(t, []farmLabel{{"a", ""}, {"b", ""}, {"c", ""}, {"d", ""}}, all[p.snap.Load().services[0].pool.no], "a few are enough")
	for id := range p.pool.All() {
		got, ok := p.byName(p.nameOf(id))
		require.True(t, ok)
		require.Equal(t, id, got)
	}
	_, ok = p.byName("nobody\x00\x00n1")
	require.False(t, ok)
}

// All tables of TLS persistence can be followed, by the farm's own name or that of a service.
func TestReplicasOfTLS(t *testing.T) {
	for name, want := range map[string]string{"shop": "shop", "": "web"} {
		farm, err := sslpersist.NewFarm(&sslpersist.Settings[steering.NodeID]{Feed: 16, Tickets: true, ClientAddr: true, Name: name})
		require.NoError(t, err)
		p := newPlane(t, families2()[0], delayed(Delay{Read: ReadTLS, Sessions: farm}))
		all := p.Replicas()
		require.Len(t, all, 3)
		for _, table := range []string{"tls-ids ", "tls-keys ", "tls-addrs "} {
			require.NotNil(t, all[table+want], "%s%s", table, want)
		}
	}
}
