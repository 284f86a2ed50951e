package dataplane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/steering"
)

func TestTCPThroughNAT(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		require.Contains(t, []any{ap(fam.n1, 8080), ap(fam.n2, 8080)}, any(node))
		p.forwarded(tcp(client, vip, "AP", 101, 501, "GET / HTTP/1.0\r\n\r\n"), client, node)
		out := p.forwarded(tcp(node, client, "AP", 501, 119, "HTTP/1.0 200 OK\r\n\r\n"), vip, client)
		require.Equal(t, "HTTP/1.0 200 OK\r\n\r\n", string(out[len(out)-19:]))
		require.Equal(t, 1, p.Stats().Sessions)
		sum := Count{}
		for _, n := range p.Nodes() {
			sum.merge(n.In)
		}
		require.EqualValues(t, 3, sum.Packets)
		require.Empty(t, p.drops())
	})
}

func TestUDPAndPing(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		_, out := p.send(udp(client, vip, "hello"))
		f, _ := parseFlow(out)
		p.wellFormed(out, client, f.Dst)
		p.forwarded(udp(f.Dst, client, "world"), vip, client)
		// No policy matches a ping: answered here, while a node is usable.
		v, out := p.send(echo(fam.client, fam.vip, false, 7, 1, "ping"))
		require.Equal(t, Answered, v)
		p.wellFormed(out, ap(fam.vip, 0), ap(fam.client, 0))
		require.Equal(t, "ping", string(out[len(out)-4:]))
		require.Equal(t, 2, p.SetUp("n1", false)+p.SetUp("n2", false))
		v, _ = p.send(echo(fam.client, fam.vip, false, 7, 2, "ping"))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[Unanswered])
	})
}

func TestPingByPolicy(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		require.NoError(t, p.Apply(table(t, rule("all", fam.vip.String(), p.svc))))
		v, out := p.send(echo(fam.client, fam.vip, false, 77, 1, "ping"))
		require.Equal(t, Forwarded, v)
		f, _ := parseFlow(out)
		p.wellFormed(out, ap(fam.client, 77), ap(f.Dst.Addr(), 0))
		p.forwarded(echo(f.Dst.Addr(), fam.client, true, 77, 1, "ping"), ap(fam.vip, 0), ap(fam.client, 77))
		// Another identifier is another session.
		v, _ = p.send(echo(fam.client, fam.vip, false, 78, 1, "ping"))
		require.Equal(t, Forwarded, v)
		require.Equal(t, 2, p.Stats().Sessions)
	})
}

func TestICMPErrors(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		request := tcp(client, node, "A", 101, 501, "data from the client")
		answer := tcp(vip, client, "A", 501, 101, "data from the node")
		for _, n := range []int{8, 20, 100} {
			// A router on the way to the node reports to the client about client > node.
			v, out := p.send(unreachable(fam.router, fam.client, request, n))
			require.Equal(t, Forwarded, v)
			p.wellFormed(out, ap(fam.router, 0), ap(fam.client, 0))
			checkQuote(t, out, client, vip)
			// A router on the way to the client reports to the VIP about VIP > client.
			v, out = p.send(unreachable(fam.router, fam.vip, answer, n))
			require.Equal(t, Forwarded, v)
			p.wellFormed(out, ap(fam.router, 0), ap(node.Addr(), 0))
			checkQuote(t, out, node, client)
			// The node itself reports: it must not show.
			v, out = p.send(unreachable(node.Addr(), fam.client, request, n))
			require.Equal(t, Forwarded, v)
			p.wellFormed(out, ap(fam.vip, 0), ap(fam.client, 0))
			checkQuote(t, out, client, vip)
			// So does the client.
			v, out = p.send(unreachable(fam.client, fam.vip, answer, n))
			require.Equal(t, Forwarded, v)
			p.wellFormed(out, ap(fam.client, 0), ap(node.Addr(), 0))
		}
		// Of no session: to a VIP dropped, else passed.
		v, _ := p.send(unreachable(fam.router, fam.vip, tcp(vip, ap(fam.client2, 1), "A", 1, 1, ""), 20))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[NoSession])
		v, out := p.send(unreachable(fam.router, fam.elsewhere, tcp(ap(fam.elsewhere, 5), ap(fam.client2, 1), "A", 1, 1, ""), 20))
		require.Equal(t, Passed, v)
		require.NotNil(t, out)
	})
}

func checkQuote(t testing.TB, out []byte, src, dst any) {
	t.Helper()
	_, v := parseFlow(out)
	q := v.Quote(out)
	var w = v
	require.Zero(t, parseQuoted(q, &w))
	k := flowOf(q, &w)
	require.Equal(t, src, any(k.Src()))
	require.Equal(t, dst, any(k.Dst()))
	require.True(t, w.HeaderSumOK(q))
}

func TestResets(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		reset := func(b []byte, seq, ack uint32, hasAck bool) {
			t.Helper()
			v, out := p.send(b)
			require.Equal(t, Answered, v)
			p.wellFormed(out, vip, client)
			_, view := parseFlow(out)
			s, a := view.Seq(out)
			require.Equal(t, []uint32{seq, ack}, []uint32{s, a})
			require.Equal(t, hasAck, view.TCPFlags&0x10 != 0)
			require.NotZero(t, view.TCPFlags&4)
		}
		reset(tcp(client, vip, "A", 1000, 2000, "x"), 2000, 0, false)
		reset(tcp(client, vip, "F", 1000, 0, ""), 0, 1001, true)
		v, _ := p.send(tcp(client, vip, "R", 1000, 0, ""))
		require.Equal(t, Dropped, v, "no reset for a reset")
		// A lost server.
		node := p.open(client)
		name := "n1"
		if node.Addr() == fam.n2 {
			name = "n2"
		}
		p.SetUp(name, false)
		reset(tcp(client, vip, "AP", 101, 501, "more"), 501, 0, false)
		v, _ = p.send(tcp(node, client, "A", 501, 105, "late"))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[NodeAlone])
		// A new connection goes to the other node.
		v, out := p.send(tcp(client, vip, "S", 9000, 0, ""))
		require.Equal(t, Forwarded, v)
		f, _ := parseFlow(out)
		require.NotEqual(t, node, f.Dst)
		for p.Step(p.now) {
		}
		require.Equal(t, 1, p.Stats().Sessions)
		for _, st := range p.pool.All() {
			if st.Node.Name == name {
				require.Zero(t, st.Sessions)
			} else {
				require.EqualValues(t, 1, st.Sessions)
			}
		}
	})
}

func TestForeign(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		b := tcp(ap(fam.client, 1), ap(fam.elsewhere, 80), "A", 1, 1, "x")
		v, out := p.send(b)
		require.Equal(t, Passed, v)
		require.Equal(t, b, out)
		// A node's own connection passes, an answer of no session does not.
		v, _ = p.send(tcp(ap(fam.n1, 5555), ap(fam.elsewhere, 80), "S", 1, 0, ""))
		require.Equal(t, Passed, v)
		v, _ = p.send(tcp(ap(fam.n1, 8080), ap(fam.elsewhere, 80), "SA", 1, 1, ""))
		require.Equal(t, Dropped, v)
		v, _ = p.send(udp(ap(fam.n1, 8080), ap(fam.elsewhere, 80), ""))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 2, p.drops()[NodeAlone])
		q := newPlane(t, fam, func(c *Config, _ *Service) { c.Foreign = Drop })
		v, _ = q.send(b)
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, q.drops()[ForeignPacket])
		v, _ = p.send(tcp(ap(fam.client, 1), ap(fam.vip, 81), "S", 1, 0, ""))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[NoPolicy])
	})
}

func TestModes(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for mode, same := range map[clienttable.Mode]bool{
			clienttable.EntryPerSession: true, clienttable.Regular: true, clienttable.ServerPerSession: false,
			clienttable.RemoveOnEndEntryPerSession: true, clienttable.RemoveOnEndServerPerSession: false,
		} {
			p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = mode })
			first := p.open(ap(fam.client, 40000))
			nodes := map[any]bool{first: true}
			for port := range uint16(5) {
				nodes[p.open(ap(fam.client, 40001+port))] = true
			}
			require.Equal(t, same, len(nodes) == 1, "%v", mode)
			// Draining: connections shutdown keeps what there is and gets nothing new.
			if same {
				var ns []steering.Node
				for _, st := range p.pool.All() {
					if st.Node.Addr == first {
						st.Node.Admin = steering.Draining
					}
					ns = append(ns, st.Node)
				}
				require.NoError(t, p.SetNodes(p.pool, ns...))
				require.NotEqual(t, first, p.open(ap(fam.client, 50000)))
				p.forwarded(tcp(ap(fam.client, 40000), ap(fam.vip, 80), "A", 101, 501, "still"), ap(fam.client, 40000), first)
			}
		}
	})
}

func TestAgeing(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = clienttable.RemoveOnEndServerPerSession })
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		known := func(want bool, b []byte) {
			t.Helper()
			v, _ := p.send(b)
			require.Equal(t, want, v == Forwarded)
		}
		// A SYN alone is remembered for 5 s.
		p.send(tcp(client, vip, "S", 100, 0, ""))
		p.now = p.now.Add(4900 * time.Millisecond)
		require.True(t, p.Step(p.now) || p.Stats().Sessions == 1)
		p.now = p.now.Add(100 * time.Millisecond)
		known(false, tcp(client, vip, "A", 101, 501, "x"))
		p.Step(p.now)
		require.Zero(t, p.Stats().Sessions)
		// An open one for a minute since its last packet, of either direction.
		node := p.open(client)
		for range 10 {
			p.now = p.now.Add(50 * time.Second)
			p.Step(p.now)
			known(true, tcp(node, client, "A", 501, 101, "only the node talks"))
		}
		known(true, tcp(client, vip, "A", 101, 501, "x"))
		p.now = p.now.Add(59900 * time.Millisecond)
		known(true, tcp(client, vip, "A", 101, 501, "x"))
		p.now = p.now.Add(time.Minute)
		known(false, tcp(client, vip, "A", 101, 501, "x"))
		// Half-closed lives on; closed lingers for 5 s.
		node = p.open(client)
		known(true, tcp(client, vip, "FA", 101, 501, ""))
		p.now = p.now.Add(30 * time.Second)
		known(true, tcp(node, client, "A", 501, 102, "the rest"))
		known(true, tcp(node, client, "FA", 509, 102, ""))
		known(true, tcp(client, vip, "A", 102, 510, ""))
		p.now = p.now.Add(4900 * time.Millisecond)
		known(true, tcp(client, vip, "A", 102, 510, ""))
		p.now = p.now.Add(100 * time.Millisecond)
		known(false, tcp(client, vip, "A", 102, 510, ""))
		for p.Step(p.now) {
		}
		require.Zero(t, p.Stats().Sessions)
		for _, st := range p.pool.All() {
			require.Zero(t, st.Sessions)
		}
	})
}

func TestReset(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = clienttable.RemoveOnEndServerPerSession })
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		p.forwarded(tcp(node, client, "R", 99999, 0, ""), vip, client)
		p.now = p.now.Add(10 * time.Second)
		p.forwarded(tcp(client, vip, "A", 101, 501, ""), client, node)
		p.forwarded(tcp(node, client, "R", 501, 0, ""), vip, client)
		p.now = p.now.Add(5 * time.Second)
		v, _ := p.send(tcp(client, vip, "A", 101, 501, ""))
		require.Equal(t, Answered, v)
	})
}

func TestSameClientPortByTwoVIPs(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		pool := mustPool(t, p.ids, steering.RoundRobin, steering.Node{Name: "only", Addr: ap(fam.n3, 8080)})
		svc := &Service{Name: "only", Pool: pool}
		require.NoError(t, p.Apply(table(t, rule("a", fam.vip.String()+" any", svc), rule("b", fam.vip2.String()+" tcp/80", svc))))
		client, node := ap(fam.client, 40000), ap(fam.n3, 8080)
		p.forwarded(tcp(client, ap(fam.vip, 80), "S", 1, 0, ""), client, node)
		v, out := p.send(tcp(client, ap(fam.vip2, 80), "S", 2, 0, ""))
		require.Equal(t, Forwarded, v)
		f, _ := parseFlow(out)
		require.Equal(t, fam.client, f.Src.Addr())
		require.NotEqual(t, client, f.Src)
		p.wellFormed(out, f.Src, node)
		p.forwarded(tcp(node, f.Src, "SA", 7, 3, ""), ap(fam.vip2, 80), client)
		p.forwarded(tcp(node, client, "SA", 7, 2, ""), ap(fam.vip, 80), client)
		require.EqualValues(t, 1, p.Stats().Translated)
		// Errors find their way, too.
		v, out = p.send(unreachable(fam.router, fam.client, tcp(f.Src, node, "A", 3, 8, "data"), 8))
		require.Equal(t, Forwarded, v)
		checkQuote(t, out, client, ap(fam.vip2, 80))
		require.EqualValues(t, 2, p.Stats().Sessions)
	})
}

// TestAssociationLivesAsLongAsItsSessions keeps a session going in both directions, or one, for longer than
// the idle time.
func TestAssociationLivesAsLongAsItsSessions(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for name, oneWay := range map[string]bool{"both directions": false, "one": true} {
			t.Run(name, func(t *testing.T) {
				p := newPlane(t, fam)
				client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
				node := p.open(client)
				for range 20 {
					p.now = p.now.Add(20 * time.Second)
					p.forwarded(tcp(node, client, "A", 501, 101, "x"), vip, client)
					if !oneWay {
						p.forwarded(tcp(client, vip, "A", 101, 501, "x"), client, node)
					}
					p.Step(p.now)
				}
				p.forwarded(tcp(client, vip, "A", 101, 501, "x"), client, node)
				for port := range uint16(4) {
					require.Equal(t, node, p.open(ap(fam.client, 41000+port)))
				}
			})
		}
	})
}
