package dataplane

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
)

// directory is the plainest cluster there can be: all members share one map.
type directory struct {
	mu     sync.Mutex
	m      map[clienttable.Flow][2]string
	finds  int
	silent bool
	deaf   bool // nobody was told of anything yet
	later  []func()
	wait   bool
}

func plainFlow(proto uint8, a, b netip.AddrPort) clienttable.Flow {
	if a.Compare(b) > 0 {
		a, b = b, a
	}
	return clienttable.MakeFlow(proto, a, b)
}

func (d *directory) Announce(proto uint8, a, b netip.AddrPort, node, note string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.m == nil {
		d.m = map[clienttable.Flow][2]string{}
	}
	d.m[plainFlow(proto, a, b)] = [2]string{node, note}
}

func (d *directory) Withdraw(proto uint8, a, b netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.m, plainFlow(proto, a, b))
}

// Lookup implements Peers: everybody was told of everything.
func (d *directory) Lookup(proto uint8, a, b netip.AddrPort) (node, note string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := d.m[plainFlow(proto, a, b)]
	return v[0], v[1], ok && !d.deaf
}

func (d *directory) Find(proto uint8, a, b netip.AddrPort, done func(node, note string, ok bool)) {
	d.mu.Lock()
	d.finds++
	v, ok := d.m[plainFlow(proto, a, b)]
	silent, wait := d.silent, d.wait
	if wait {
		d.later = append(d.later, func() { done(v[0], v[1], ok) })
	}
	d.mu.Unlock()
	if !silent && !wait {
		done(v[0], v[1], ok)
	}
}

// two returns two Planes of one cluster.
func two(t *testing.T, fam family, change ...func(*Config, *Service)) (a, b *testPlane, d *directory) {
	d = new(directory)
	change = append(change, func(c *Config, _ *Service) { c.Peers = d })
	return newPlane(t, fam, change...), newPlane(t, fam, change...), d
}

func TestPeers(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, mode := range []Forward{NAT, FullNAT} {
			t.Run(mode.String(), func(t *testing.T) {
				a, b, d := two(t, fam, func(_ *Config, s *Service) {
					if s.Forward = mode; mode == FullNAT {
						s.Locals = append(s.Locals, fam.router)
					}
				})
				client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
				v, out := a.send(tcp(client, vip, "S", 100, 0, ""))
				require.Equal(t, Forwarded, v)
				f, _ := parseFlow(out)
				local, node := f.Src, f.Dst
				require.Zero(t, d.finds, "a SYN does not ask")
				// The answer comes by the other balancer, and what follows as well.
				v, _ = b.send(tcp(node, local, "SA", 500, 101, ""))
				require.Equal(t, Held, v)
				_, out2 := b.sendAll()
				require.Len(t, out2, 1)
				b.wellFormed(out2[0], vip, client)
				b.forwarded(tcp(client, vip, "A", 101, 501, ""), local, node)
				require.Equal(t, 1, d.finds)
				require.Equal(t, uint64(1), b.Stats().Adopted)
				total := int64(0)
				for _, st := range b.pool.All() {
					total += st.Sessions
				}
				require.EqualValues(t, 1, total, "the other balancer counts it, too")
				// A third one learns from the client's packets.
				c := newPlane(t, fam, func(c *Config, s *Service) { c.Peers, *s = d, *b.svc; s.Pool = mustPool(t, nil, 0, nodesOf(fam)...) })
				v, _ = c.send(tcp(client, vip, "A", 101, 501, "x"))
				require.Equal(t, Held, v)
				_, out2 = c.sendAll()
				require.Len(t, out2, 1)
				c.wellFormed(out2[0], local, node)
				// Whoever forgets a flow takes it back.
				for s := range a.Sessions() {
					require.True(t, a.KillSession(s))
				}
				require.Empty(t, d.m)
			})
		}
	})
}

// inBubbles is both, where no time passes but what a test waits for: questions do not end before it looks.
func inBubbles(t *testing.T, f func(t *testing.T, fam family)) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) { f(t, fam) })
	})
}

func TestPeersKnowNothing(t *testing.T) {
	inBubbles(t, func(t *testing.T, fam family) {
		a, _, d := two(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		v, _ := a.send(tcp(client, vip, "A", 1, 7, "x"))
		require.Equal(t, Held, v)
		_, out := a.sendAll()
		require.Len(t, out, 1)
		_, view := parseFlow(out[0])
		require.NotZero(t, view.TCPFlags&wire.RST)
		require.Equal(t, uint64(1), a.Stats().Resets)

		// Nobody answers: the packet waits for AskTimeout, and others of its flow with it.
		d.silent = true
		for range 2 {
			v, _ = a.send(tcp(client, vip, "A", 1, 7, "x"))
			require.Equal(t, Held, v)
		}
		require.Equal(t, 2, d.finds)
		time.Sleep(AskTimeout - time.Millisecond)
		synctest.Wait()
		require.False(t, a.asks.some.Load())
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.True(t, a.asks.some.Load())
		_, out = a.sendAll()
		require.Len(t, out, 2)
		require.Zero(t, a.asks.bytes)

		// Datagrams and what only explains do not ask.
		v, _ = a.send(udp(client, vip, "x"))
		require.Equal(t, Forwarded, v)
		a.Explain(tcp(client, vip, "A", 1, 7, "x"))
		require.Equal(t, 2, d.finds)

		// There is an end to what may wait.
		for i := range maxAskPackets {
			v, _ = a.send(tcp(client, vip, "A", uint32(i), 7, "x"))
			require.Equal(t, Held, v)
		}
		v, _ = a.send(tcp(client, vip, "A", 1, 7, "x"))
		require.Equal(t, Answered, v)
	})
}

func TestPeersLateOrWrong(t *testing.T) {
	inBubbles(t, func(t *testing.T, fam family) {
		a, b, d := two(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := a.open(client)
		d.wait = true
		v, _ := b.send(tcp(client, vip, "A", 101, 501, "x"))
		require.Equal(t, Held, v)
		d.later[0]()
		d.later[0]() // twice does no harm
		_, out := b.sendAll()
		require.Len(t, out, 1)
		b.wellFormed(out[0], client, node)

		d.wait = false
		for i, wrong := range [][2]string{
			{"n1", "no such service"}, {"n9", "web"}, {"n1", "web\x00"}, {"n1", "web\x00x\x00\x00"}, {"n1", "web\x00" + vip.String() + "\x00\x00"}, {"", ""},
			{"n1", "web\x00\x00\x00[2001:db8::1]:5"}, {"n1", "web\x00\x00\x00192.0.2.1:5"},
		} {
			from := ap(fam.client, uint16(50000+i))
			d.Announce(wire.ProtoTCP, from, vip, wrong[0], wrong[1])
			v, _ = b.send(tcp(from, vip, "A", 1, 7, "x"))
			require.Equal(t, Held, v)
			_, out = b.sendAll()
			require.Len(t, out, 1)
			f, _ := parseFlow(out[0])
			if f.Dst != from { // one of the last two is of the right family
				require.Equal(t, uint16(8080), f.Dst.Port())
			}
		}
	})
}

func TestPeersICMPErrors(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		a, b, _ := two(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := a.open(client)
		// About the node's answer, from near the client: the node shall know.
		answer := tcp(vip, client, "A", 501, 101, "data")
		v, _ := b.send(unreachable(fam.router, fam.vip, answer, 8))
		require.Equal(t, Held, v)
		_, out := b.sendAll()
		require.Len(t, out, 1)
		_, view := parseFlow(out[0])
		require.Equal(t, node.Addr(), addrOf(view.Dst(out[0])))
		// Others are none of the cluster's business.
		foreign := tcp(ap(fam.elsewhere, 1), ap(fam.client2, 2), "A", 1, 1, "")
		v, _ = b.send(unreachable(fam.router, fam.elsewhere, foreign, 8))
		require.Equal(t, Passed, v)
	})
}

// A session whose node answers by way of another balancer is not taken for a half-open one for ever.
func TestPeersOneSided(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		a, b, _ := two(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		v, _ := a.send(tcp(client, vip, "S", 100, 0, ""))
		require.Equal(t, Forwarded, v)
		a.now = a.now.Add(time.Second)
		v, _ = a.send(tcp(client, vip, "A", 101, 501, "x"))
		require.Equal(t, Forwarded, v)
		a.now = a.now.Add(30 * time.Second) // more than a handshake may take
		a.Step(a.now)
		v, _ = a.send(tcp(client, vip, "A", 102, 501, "y"))
		require.Equal(t, Forwarded, v)
		require.Zero(t, a.Stats().Asked)
		// Without a word of the client's it is gone as ever.
		v, _ = b.send(tcp(ap(fam.client2, 40000), vip, "S", 100, 0, ""))
		require.Equal(t, Forwarded, v)
		b.now = b.now.Add(30 * time.Second)
		b.Step(b.now)
		require.Zero(t, b.Stats().Sessions)
	})
}

// A connection with delayed binding is taken over as well, once it is spliced: with its numbers.
func TestPeersSpliced(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		a, b, d := two(t, fam, delayed(Delay{}))
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		ours := a.hello(client, 1000)
		_, node := a.request(client, 1000, ours, "abc")
		require.Empty(t, d.m, "not before it is spliced")
		a.send(tcp(node, client, "SA", 500, 1001, ""))
		a.forwarded(tcp(node, client, "A", 501, 1004, ""), vip, client)
		require.Len(t, d.m, 2)
		taken := func(p *testPlane, packet []byte) splice.Segment {
			v, _ := p.send(packet)
			require.Equal(t, Held, v)
			_, out := p.sendAll()
			require.Len(t, out, 1, "drops %v", p.drops())
			return numbers(out[0])
		}
		require.Equal(t, ours+1, taken(b, tcp(node, client, "PA", 501, 1004, "welcome")).Seq)
		require.EqualValues(t, 508, numbers(b.forwarded(tcp(client, vip, "A", 1004, ours+8, ""), client, node)).Ack)
		// A third one hears of it by the client's packets.
		c := newPlane(t, fam, delayed(Delay{}), func(c *Config, _ *Service) { c.Peers = d })
		require.EqualValues(t, 508, taken(c, tcp(client, vip, "A", 1004, ours+8, "")).Ack)
		// What nobody knows is refused as ever, and new connections begin without a question.
		asked := d.finds
		old := ours + 1<<31 // no cookie of these days, whenever this runs
		require.NotZero(t, taken(c, tcp(ap(fam.client, 40001), vip, "A", 1, old, "x")).Flags&splice.RST)
		require.Equal(t, asked+1, d.finds)
		c.spliceUp(ap(fam.client, 40002), 1, 2, "abc")
		require.Equal(t, asked+1, d.finds)
		for _, text := range []string{"web\x00\x00\x00\x00", "web\x00\x00\x00\x00x", "web\x00\x00\x00\x001 2 3 4\x00"} {
			_, err := parseNote(text)
			require.Error(t, err, "%q", text)
		}
	})
}

// In a cluster a balancer may see one direction of a connection alone: that keeps it alive, however short the idle time of its port is beside that of the
// service, and nobody is told that it has aged.
func TestPeersOneSidedOnPortWithItsOwnAge(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		a, _, _ := two(t, fam, func(_ *Config, s *Service) {
			s.Ageing = clienttable.Ageing{Idle: 8 * time.Hour, CloseAtAgeing: clienttable.CloseBoth, Ports: []clienttable.PortAge{{Port: 80, Age: 2 * time.Minute}}}
		})
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := a.open(client)
		for i := range uint32(20) {
			a.now = a.now.Add(20 * time.Second)
			for a.Step(a.now) {
			}
			a.forwarded(tcp(client, vip, "A", 101+i, 501, "x"), client, node)
		}
		require.Zero(t, a.Stats().Asked)
		require.Zero(t, a.Stats().Resets)
	})
}
