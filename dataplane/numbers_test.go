package dataplane

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// Nodes that come and go for years take no more than those that there are: their numbers are used again, and nothing of a former one is taken for a
// later one's.
func TestNodesComeAndGo(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = clienttable.ServerPerSession })
		stays := steering.Node{Name: "n1", Addr: ap(fam.n1, 8080)}
		require.NoError(t, p.SetNodes(p.pool, stays))
		vip := ap(fam.vip, 80)
		long := ap(fam.client, 40000)
		node := p.open(long)
		most := 0
		for i := range 400 {
			comes := steering.Node{Name: fmt.Sprint("node ", i), Addr: ap(fam.n2, uint16(10000+i))}
			require.NoError(t, p.SetNodes(p.pool, stays, comes))
			for j := range uint16(2) { // round robin: one each
				client := ap(fam.client2, uint16(2*i)+j)
				v, out := p.send(udp(client, vip, "x"))
				require.Equal(t, Forwarded, v)
				f, _ := parseFlow(out)
				s, ok := p.Session(wire.ProtoUDP, client, vip)
				require.True(t, ok)
				require.Equal(t, f.Dst, s.Node)
				if f.Dst == comes.Addr {
					require.Equal(t, comes.Name, s.NodeName)
				} else {
					require.Equal(t, "n1", s.NodeName)
				}
			}
			sessions := map[string]uint64{}
			for _, st := range p.Nodes() {
				sessions[st.Name] = st.Sessions
			}
			require.Len(t, sessions, 2)
			require.EqualValues(t, 1, sessions[comes.Name])
			p.now = p.now.Add(5 * time.Second)
			p.forwarded(tcp(long, vip, "A", 101, 501, "x"), long, node)
			for p.Step(p.now) {
			}
			most = max(most, len(p.snap.Load().nodes))
			require.LessOrEqual(t, len(p.snap.Load().byID), len(p.snap.Load().nodes))
		}
		require.Less(t, most, 4*leastGone)
		p.forwarded(tcp(long, vip, "A", 101, 501, "x"), long, node)

		// All of that is as it should be in a saved state.
		var state bytes.Buffer
		_, err := p.WriteTo(&state)
		require.NoError(t, err)
		q := newPlane(t, fam, func(_ *Config, s *Service) { s.Pool = mustPool(t, new(steering.IDs), 0, stays) })
		res, err := q.Restore(&state)
		require.NoError(t, err)
		require.Positive(t, res.Sessions)
		q.forwarded(tcp(long, vip, "A", 101, 501, "x"), long, node)
	})
}

// A number is not given away while a session has it, nor that of a node that comes back.
func TestNumbersInUse(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = clienttable.ServerPerSession })
	var nodes []steering.Node
	for i := range 2 * leastGone {
		nodes = append(nodes, steering.Node{Name: fmt.Sprint("g", i), Addr: ap(fam.n2, uint16(20000+i))})
	}
	other := mustPool(t, p.ids, steering.RoundRobin, nodes...)
	second := &Service{Name: "second", Pool: other, Mode: clienttable.ServerPerSession}
	web := rule("web", fam.vip.String()+" udp/80", p.svc)
	require.NoError(t, p.Apply(table(t, web, rule("second", fam.vip2.String(), second))))
	_, out := p.send(udp(ap(fam.client, 1), ap(fam.vip2, 80), "x"))
	f, _ := parseFlow(out)
	s, ok := p.Session(wire.ProtoUDP, ap(fam.client, 1), ap(fam.vip2, 80))
	require.True(t, ok)
	step := func() {
		p.now = p.now.Add(lookPause)
		p.forwarded(udp(ap(fam.client, 1), ap(fam.vip2, 80), "x"), ap(fam.client, 1), f.Dst)
		for p.Step(p.now) {
		}
	}
	// No service has the pool any more; its one session goes on, and keeps it.
	require.NoError(t, p.Apply(table(t, web)))
	step()
	require.Empty(t, p.snap.Load().spare.nodes)
	require.NoError(t, p.Apply(table(t, web, rule("second", fam.vip2.String(), second))))
	step()
	// Its nodes go but for that with the session.
	for _, n := range nodes {
		if n.Name == s.NodeName {
			require.NoError(t, p.SetNodes(other, n))
		}
	}
	step()
	require.Len(t, p.snap.Load().spare.nodes, 2*leastGone-1)
	s, ok = p.Session(wire.ProtoUDP, ap(fam.client, 1), ap(fam.vip2, 80))
	require.True(t, ok)
	require.Equal(t, f.Dst, s.Node)
	// They come back, under the same names and others.
	require.NoError(t, p.SetNodes(other, nodes...))
	require.Empty(t, p.snap.Load().spare.nodes)
	require.Len(t, p.snap.Load().nodes, 2+2*leastGone)
	step()
	for i := range uint16(4 * leastGone) {
		client := ap(fam.client2, 1+i)
		v, out := p.send(udp(client, ap(fam.vip2, 80), "x"))
		require.Equal(t, Forwarded, v)
		f, _ := parseFlow(out)
		s, ok := p.Session(wire.ProtoUDP, client, ap(fam.vip2, 80))
		require.True(t, ok)
		require.Equal(t, f.Dst, s.Node)
		require.Equal(t, fmt.Sprint("g", f.Dst.Port()-20000), s.NodeName)
	}
}

// A session that a batch begins with a node which is removed meanwhile does not outlive that.
func TestSessionBegunWhileItsNodeGoes(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 1), ap(fam.vip, 80)
		b := udp(client, vip, "x")
		w := p.NewWorker(Link{})
		was := p.snap.Load()
		w.snap, w.now, w.tick = was, p.now, p.tick(p.now)
		w.stats.fit(was)
		pk := packet{buf: append(make([]byte, Headroom), b...), l3: Headroom}
		pk.ip = pk.buf[Headroom:]
		require.Equal(t, wire.OK, wire.Parse(pk.ip, &pk.v))
		pk.key = flowOf(pk.ip, &pk.v)
		id, err := p.pool.Pick(steering.Key{Client: fam.client})
		require.NoError(t, err)
		n := w.node(id)
		require.NoError(t, p.SetNodes(p.pool, steering.Node{Name: "other", Addr: ap(fam.n3, 8080)}))
		to := endOf(n.addr)
		_, reason := w.store(&pk, was.services[0], n, &to)
		require.Equal(t, NotDropped, reason)
		p.Step(p.now)
		p.forwarded(b, client, ap(fam.n3, 8080))
	})
}
