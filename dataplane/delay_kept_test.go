package dataplane

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/steering"
)

// keptPlane is a Plane whose rules send /a to n1 and /b to n2, redirect /old and drop /no, with a client in the middle of it.
type keptPlane struct {
	*testPlane
	client, vip netip.AddrPort
	seq, ack    uint32              // of the client
	nodes       map[string]*keptEnd // by path
	toClient    string              // what the client got
	toldEnd     bool                // a FIN or a reset
}

// keptEnd is a node's end of a connection.
type keptEnd struct {
	at       netip.AddrPort
	seq, ack uint32
	got      string
	opened   int
	over     bool // reset
}

func newKeptPlane(t *testing.T, fam family, mode l7.Mode, change ...func(*Config, *Service)) *keptPlane {
	rules, err := l7.Compile(&l7.Config{Mode: mode, Default: l7.Action{Do: l7.Drop}},
		l7.Rule{Index: 1, First: l7.Method{Kind: l7.PathPrefix, Value: "/a"}, Action: l7.Action{Do: l7.Farm, Farm: "a"}},
		l7.Rule{Index: 2, First: l7.Method{Kind: l7.PathPrefix, Value: "/b"}, Action: l7.Action{Do: l7.Farm, Farm: "b"}},
		l7.Rule{Index: 3, First: l7.Method{Kind: l7.PathExact, Value: "/old"}, Action: l7.Action{Do: l7.Redirect, Location: "/a"}})
	require.NoError(t, err)
	k := &keptPlane{client: ap(fam.client, 4000), vip: ap(fam.vip, 80), seq: 1000, nodes: map[string]*keptEnd{}}
	change = append([]func(*Config, *Service){func(_ *Config, s *Service) {
		ids := new(steering.IDs)
		s.Pool = mustPool(t, ids, steering.RoundRobin, nodesOf(fam)...)
		one := func(a netip.Addr) *steering.Pool {
			return mustPool(t, ids, steering.RoundRobin, steering.Node{Name: "only-" + a.String(), Addr: ap(a, 8080)})
		}
		s.Delay = &Delay{Read: ReadHTTP, Rules: rules, Farms: map[string]*steering.Pool{"a": one(fam.n1), "b": one(fam.n2)}}
	}}, change...)
	k.testPlane = newPlane(t, fam, change...)
	k.nodes["/a"], k.nodes["/b"] = &keptEnd{at: ap(fam.n1, 8080)}, &keptEnd{at: ap(fam.n2, 8080)}
	k.ack = k.hello(k.client, k.seq) + 1
	k.seq++
	return k
}

// run sends packets, has the ends answer what they get, and so on until there is nothing more to answer.
func (k *keptPlane) run(packets ...[]byte) {
	k.t.Helper()
	for len(packets) > 0 {
		_, out := k.sendAll(packets...)
		packets = nil
		for _, b := range out {
			f, _ := parseFlow(b)
			s := numbers(b)
			if f.Dst == k.client {
				k.wellFormed(b, k.vip, k.client)
				packets = append(packets, k.atClient(&s)...)
				continue
			}
			for _, n := range k.nodes {
				if n.at == f.Dst {
					k.wellFormed(b, k.client, n.at)
					packets = append(packets, k.atNode(n, &s)...)
				}
			}
		}
	}
}

func (k *keptPlane) atClient(s *splice.Segment) (out [][]byte) {
	if s.Flags&splice.RST != 0 {
		require.Equal(k.t, k.ack, s.Seq, "a reset that the client believes")
		k.toldEnd = true
		return nil
	}
	if s.Seq != k.ack || len(s.Payload) == 0 && s.Flags&splice.FIN == 0 {
		return nil
	}
	k.toClient += string(s.Payload)
	k.ack += uint32(len(s.Payload))
	if s.Flags&splice.FIN != 0 {
		k.ack++
		k.toldEnd = true
	}
	return [][]byte{tcp(k.client, k.vip, "A", k.seq, k.ack, "")}
}

func (k *keptPlane) atNode(n *keptEnd, s *splice.Segment) (out [][]byte) {
	switch {
	case s.Flags&splice.RST != 0:
		if !n.over {
			require.Equal(k.t, n.ack, s.Seq, "a reset that the node believes")
		}
		n.over = true
	case s.Flags&splice.SYN != 0:
		*n = keptEnd{at: n.at, seq: uint32(7777 * (n.opened + 1)), ack: s.Seq + 1, opened: n.opened + 1}
		n.seq++
		return [][]byte{tcp(n.at, k.client, "SA", n.seq-1, n.ack, "")}
	case n.over:
		return [][]byte{tcp(n.at, k.client, "R", s.Ack, 0, "")}
	case s.Seq == n.ack && len(s.Payload) > 0:
		n.got += string(s.Payload)
		n.ack += uint32(len(s.Payload))
		return [][]byte{tcp(n.at, k.client, "A", n.seq, n.ack, "")}
	}
	return nil
}

// ask has the client send.
func (k *keptPlane) ask(data string) {
	k.t.Helper()
	b := tcp(k.client, k.vip, "PA", k.seq, k.ack, data)
	k.seq += uint32(len(data))
	k.run(b)
}

// answer has a node send.
func (k *keptPlane) answer(path, data string) {
	k.t.Helper()
	n := k.nodes[path]
	b := tcp(n.at, k.client, "PA", n.seq, n.ack, data)
	n.seq += uint32(len(data))
	k.run(b)
}

// took returns what a node has got since it was asked last.
func (k *keptPlane) took(path string) string {
	n := k.nodes[path]
	got := n.got
	n.got = ""
	return got
}

func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n" }

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func bothModes(t *testing.T, f func(t *testing.T, k *keptPlane, mode l7.Mode), change ...func(*Config, *Service)) {
	both(t, func(t *testing.T, fam family) {
		for _, mode := range []l7.Mode{l7.Overwrite, l7.Maintain} {
			t.Run(mode.String(), func(t *testing.T) { f(t, newKeptPlane(t, fam, mode, change...), mode) })
		}
	})
}

func TestKeptMoves(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, mode l7.Mode) {
		a, b := k.nodes["/a"], k.nodes["/b"]
		for i := range 6 {
			path := []string{"/a", "/b"}[i/2%2]
			k.ask(get(path))
			require.Equal(t, get(path), k.took(path))
			k.answer(path, ok)
			require.Equal(t, strings.Repeat(ok, i+1), k.toClient)
		}
		st := k.Stats()
		require.EqualValues(t, 2, st.Delay.Moved)
		require.Equal(t, 1, st.Delay.Kept)
		require.Equal(t, 1, st.Sessions)
		require.Zero(t, st.Delay.Held, "nothing waits")
		if mode == l7.Overwrite {
			require.Equal(t, []int{2, 1}, []int{a.opened, b.opened})
			require.True(t, b.over, "the former connection is closed")
		} else {
			require.Equal(t, []int{1, 1}, []int{a.opened, b.opened})
			require.EqualValues(t, 1, st.Delay.Resumed)
			require.False(t, b.over)
		}
		// The client ends; so does everything else.
		k.run(tcp(k.client, k.vip, "RA", k.seq, k.ack, ""))
		require.True(t, a.over)
		require.True(t, b.over)
		st = k.Stats()
		require.Zero(t, st.Delay.Kept)
		require.Zero(t, k.p().holds.all.Load())
		require.Zero(t, k.p().holds.nParked.Load())
		for _, q := range k.p().pools {
			for id := range q.All() {
				n, _ := q.Sessions(id)
				require.Zero(t, n, "every session was given back")
			}
		}
	})
}

func (k *keptPlane) p() *Plane { return k.Plane }

// Requests that are sent ahead wait for the reply to the one before, whoever they are for.
func TestKeptPipelined(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, _ l7.Mode) {
		k.ask(get("/a/1") + get("/b/1") + get("/b/2")[:5])
		require.Equal(t, get("/a/1"), k.took("/a"))
		require.Zero(t, k.nodes["/b"].opened)
		k.ask(get("/b/2")[5:])
		k.answer("/a", ok[:len(ok)-1])
		require.Zero(t, k.nodes["/b"].opened, "a byte of the reply is missing")
		k.answer("/a", ok[len(ok)-1:])
		require.Equal(t, get("/b/1"), k.took("/b"))
		k.answer("/b", "HTTP/1.1 100 Continue\r\n\r\n")
		require.Empty(t, k.took("/b"))
		k.answer("/b", ok)
		require.Equal(t, get("/b/2"), k.took("/b"))
		require.Empty(t, k.took("/a"))
	})
}

// A head may come in any pieces; the node gets it as a whole, and what the client then sends in its place changes nothing.
func TestKeptPieces(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, _ l7.Mode) {
		k.ask(get("/a"))
		k.answer("/a", ok)
		k.took("/a")
		text := get("/b")
		from := k.seq
		for i := range text {
			require.Empty(t, k.took("/b"))
			k.ask(text[i : i+1])
		}
		require.Equal(t, text, k.took("/b"))
		require.Empty(t, k.took("/a"))
		k.run(tcp(k.client, k.vip, "PA", from, k.ack, strings.ToUpper(text)))
		require.Empty(t, k.took("/b"))
		k.answer("/b", ok)
		require.Equal(t, ok+ok, k.toClient)
		require.Zero(t, k.Stats().Delay.Held)
	})
}

func TestKeptBodies(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, _ l7.Mode) {
		head := "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
		k.ask(head + "012")
		k.ask("34567")
		require.Equal(t, head+"01234567", k.took("/a"))
		k.ask("89" + get("/b")) // the end of the one and the beginning of the next
		require.Equal(t, "89", k.took("/a"))
		k.answer("/a", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
		require.Equal(t, get("/b"), k.took("/b"))
		k.answer("/b", "HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n")
		chunked := "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\n\r\n"
		k.ask(chunked + get("/b"))
		require.Equal(t, chunked, k.took("/a"))
		k.answer("/a", ok)
		require.Equal(t, get("/b"), k.took("/b"))
	})
}

// The balancer answers a later request itself, once the reply to the former one is through.
func TestKeptRepliesAndDrops(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, mode l7.Mode) {
		k.ask(get("/a") + get("/old"))
		require.Empty(t, k.toClient)
		k.answer("/a", ok)
		require.True(t, strings.HasPrefix(k.toClient, ok+"HTTP/1.1 302 Found\r\nLocation: /a\r\n"), k.toClient)
		require.True(t, k.nodes["/a"].over)
		require.True(t, k.toldEnd)
		k.run(tcp(k.client, k.vip, "FA", k.seq, k.ack, ""))
		require.Zero(t, k.p().holds.all.Load())
		require.EqualValues(t, 1, k.Stats().Delay.Replied)

		k = newKeptPlane(t, k.fam, mode)
		k.ask(get("/a"))
		k.answer("/a", ok)
		k.ask(get("/no"))
		require.True(t, k.toldEnd, "dropped")
		require.True(t, k.nodes["/a"].over)
		require.NotZero(t, k.drops()[Refused])

		k = newKeptPlane(t, k.fam, mode)
		k.ask(get("/a"))
		k.answer("/a", ok)
		k.ask("GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
		require.True(t, k.toldEnd, "ambiguous")
		require.Equal(t, get("/a"), k.took("/a"))
	})
}

// A request takes a share of MaxHeld until the node has it; a body that passes by takes none, and needs none.
func TestKeptShares(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, _ l7.Mode) {
		a := k.nodes["/a"]
		k.ask(get("/a"))
		k.answer("/a", ok)
		require.Zero(t, k.Stats().Delay.Held)
		head := "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
		k.sendAll(tcp(k.client, k.vip, "PA", k.seq, k.ack, head))
		k.seq += uint32(len(head))
		require.Equal(t, 1, k.Stats().Delay.Held, "the node may lack it")
		a.ack += uint32(len(head))
		k.run(tcp(a.at, k.client, "A", a.seq, a.ack, ""))
		require.Zero(t, k.Stats().Delay.Held)

		another := ap(k.client.Addr(), 4001)
		k.send(tcp(another, k.vip, "A", 5001, k.hello(another, 5000)+1, ""))
		require.Equal(t, 1, k.Stats().Delay.Held)
		k.took("/a")
		k.ask("0123456789")
		require.Equal(t, "0123456789", k.took("/a"))
		require.Zero(t, k.drops()[HoldsFull])
		k.answer("/a", ok)
		k.ask(get("/a"))
		require.Empty(t, k.took("/a"))
		require.EqualValues(t, 1, k.drops()[HoldsFull])
	}, func(c *Config, _ *Service) { c.MaxHeld = 1 })
}

func TestKeptUpgrade(t *testing.T) {
	ask := "GET /a HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
	bothModes(t, func(t *testing.T, k *keptPlane, mode l7.Mode) {
		k.ask(ask + get("/b"))
		require.Equal(t, ask, k.took("/a"), "what follows waits for the answer")
		k.answer("/a", ok)
		require.Equal(t, get("/b"), k.took("/b"), "declined: the next request")
		k.answer("/b", ok)
		k.ask(ask)
		require.Equal(t, ask, k.took("/a"))
		k.answer("/a", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nhello")
		k.ask(get("/b"))
		require.Equal(t, get("/b"), k.took("/a"), "no HTTP any more")
		k.answer("/a", "whatever")
		require.True(t, strings.HasSuffix(k.toClient, "hellowhatever"))
		k.pastSwitch(mode == l7.Maintain)
		k.run(tcp(k.client, k.vip, "FA", k.seq, k.ack, ""))
	})
}

// "Connection: close" ends the balancer's part.
func TestKeptClose(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, _ l7.Mode) {
		last := "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
		k.ask(last)
		require.Equal(t, last, k.took("/a"))
		require.Zero(t, k.p().holds.all.Load())
		k.answer("/a", ok)
		require.Equal(t, ok, k.toClient)
	})
}

func TestKeptSlowHeads(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, _ l7.Mode) {
		k.ask(get("/a"))
		k.answer("/a", ok)
		// However long a client takes between two requests is its own affair; within one it is not.
		k.now = k.now.Add(20 * time.Second)
		k.sendAll()
		require.False(t, k.toldEnd)
		k.ask(get("/b")[:7])
		require.Equal(t, 1, k.Stats().Delay.Held)
		k.now = k.now.Add(6 * time.Second)
		_, out := k.sendAll()
		require.Len(t, out, 2, "both are reset")
		require.Zero(t, k.p().holds.all.Load())
		require.EqualValues(t, 1, k.drops()[TooSlow])
	})
}

// A node closes a parked connection, or has forgotten it: the client gets another one and notices nothing.
func TestKeptParkedIsLost(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, told := range []bool{true, false} {
			k := newKeptPlane(t, fam, l7.Maintain)
			k.ask(get("/a"))
			k.answer("/a", ok)
			k.ask(get("/b"))
			k.answer("/b", ok)
			a := k.nodes["/a"]
			if told {
				k.run(tcp(a.at, k.client, "FA", a.seq, a.ack, ""))
				require.True(t, a.over, "the balancer takes leave")
				require.Zero(t, k.p().holds.nParked.Load())
			} else {
				// A probe is answered, so that the node keeps it.
				_, out := k.send(tcp(a.at, k.client, "A", a.seq-1, a.ack, ""))
				require.Equal(t, a.seq, numbers(out).Ack)
				a.over = true
			}
			k.took("/a")
			k.ask(get("/a"))
			require.Equal(t, get("/a"), k.took("/a"))
			require.Equal(t, 2, a.opened)
			k.answer("/a", ok)
			require.Equal(t, ok+ok+ok, k.toClient)
		}
	})
}

// A node closes a parked connection just as that is asked again: the client gets another one and notices nothing.
func TestKeptParkedCloses(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		k := newKeptPlane(t, fam, l7.Maintain)
		k.ask(get("/a"))
		k.answer("/a", ok)
		k.ask(get("/b"))
		k.answer("/b", ok)
		a := k.nodes["/a"]
		k.took("/a")
		k.sendAll(tcp(k.client, k.vip, "PA", k.seq, k.ack, get("/a")))
		k.seq += uint32(len(get("/a")))
		k.run(tcp(a.at, k.client, "FA", a.seq, a.ack, "")) // it has not seen the request
		require.False(t, k.toldEnd)
		require.Equal(t, 2, a.opened)
		require.Equal(t, get("/a"), k.took("/a"))
		k.answer("/a", ok)
		require.Equal(t, ok+ok+ok, k.toClient)

		// One that ends behind what it was asked is believed.
		k.ask(get("/b"))
		b := k.nodes["/b"]
		k.run(tcp(b.at, k.client, "FA", b.seq, b.ack, ""))
		require.Equal(t, 1, b.opened)
		require.True(t, k.toldEnd)
	})
}

// A server that is in two farms has one connection with a client: it goes on with that for either.
func TestKeptServerOfTwoFarms(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, mode l7.Mode) {
		a := k.nodes["/a"]
		delete(k.nodes, "/b")
		for i, path := range []string{"/a", "/b", "/b", "/a"} {
			k.ask(get(path))
			require.Equal(t, get(path), k.took("/a"))
			k.answer("/a", ok)
			require.Equal(t, strings.Repeat(ok, i+1), k.toClient)
		}
		st := k.Stats()
		require.EqualValues(t, 2, st.Delay.Moved)
		require.Equal(t, 1, st.Sessions)
		if mode == l7.Maintain {
			require.Equal(t, 1, a.opened)
			require.EqualValues(t, 2, st.Delay.Resumed)
			require.Zero(t, k.p().holds.nParked.Load())
		} else {
			require.Equal(t, 3, a.opened)
		}
		k.run(tcp(k.client, k.vip, "RA", k.seq, k.ack, ""))
		require.True(t, a.over)
		require.Zero(t, k.p().holds.all.Load())
		for _, q := range k.p().pools {
			for id := range q.All() {
				n, _ := q.Sessions(id)
				require.Zero(t, n, "every session was given back")
			}
		}
	}, func(_ *Config, s *Service) {
		ids, only := new(steering.IDs), steering.Node{Name: "only"}
		for _, st := range s.Delay.Farms["a"].All() {
			only.Addr = st.Node.Addr
		}
		s.Pool = mustPool(t, ids, steering.RoundRobin, only)
		s.Delay.Farms = map[string]*steering.Pool{"a": mustPool(t, ids, steering.RoundRobin, only), "b": mustPool(t, ids, steering.RoundRobin, only)}
	})
}

// The node goes down: the client is told with its next packet, and nothing is left.
func TestKeptNodeLost(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, _ l7.Mode) {
		k.ask(get("/a"))
		k.answer("/a", ok)
		k.SetUp("only-"+k.fam.n1.String(), false)
		k.ask(get("/b"))
		require.True(t, k.toldEnd)
		require.True(t, k.nodes["/a"].over, "the node too")
		k.now = k.now.Add(time.Second)
		k.Step(k.now)
		k.sendAll()
		require.Zero(t, k.p().holds.all.Load())
		require.Zero(t, k.Stats().Delay.Kept)
	})
}

func TestKeptFaults(t *testing.T) {
	fam := families2()[0]
	pool := mustPool(t, new(steering.IDs), steering.RoundRobin, steering.Node{Name: "a", Addr: ap(fam.n1, 1)})
	rules, err := l7.Compile(&l7.Config{Mode: l7.Overwrite, Default: l7.Action{Do: l7.Drop}})
	require.NoError(t, err)
	s := &Service{Name: "s", Pool: pool, Delay: &Delay{Read: ReadTLS, Rules: rules}}
	_, err = New(&Config{Policies: table(t, rule("r", fam.vip.String(), s))})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "first")
}
