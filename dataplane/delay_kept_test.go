package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
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

// pastSwitch wants a connection with /a that has switched to another protocol to be translated like any, without a hand of the balancer's in it, also where
// the client's numbers are others than the node's; to be saved; to be taken over; and to be ended by resets that both ends believe.
func (k *keptPlane) pastSwitch(resumed bool) {
	k.t.Helper()
	t, a := k.t, k.nodes["/a"]
	bare := func() {
		t.Helper()
		require.Zero(t, k.p().holds.all.Load())
		require.Zero(t, k.p().holds.nParked.Load())
		st := k.Stats()
		require.Zero(t, st.Delay.Kept)
		require.Zero(t, st.Delay.Held)
		r, ok := k.p().sessions.Peek(clienttable.MakeFlow(wire.ProtoTCP, k.client, k.vip))
		require.True(t, ok)
		rec := &k.p().slab.recs[r.record()]
		require.EqualValues(t, spliced, rec.seam.stage.Load())
		require.Equal(t, resumed, rec.shift() != 0)
	}
	talk := func(there, back string) {
		t.Helper()
		k.took("/a")
		k.ask(there)
		require.Equal(t, there, k.took("/a"))
		k.answer("/a", back)
		require.True(t, strings.HasSuffix(k.toClient, back), k.toClient)
	}
	bare()
	talk("frame one", "and its echo")
	bufs := [][]byte{append(make([]byte, ReadOffset), tcp(k.client, k.vip, "A", k.seq, k.ack, "")...)}
	one := slices.Clone(bufs[0])
	sizes := []int{len(one) - ReadOffset}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		copy(bufs[0], one)
		k.w.Process(k.now, bufs, sizes, ReadOffset, nil)
	}))
	// An error about a packet that the node has seen quotes it with the node's own numbers.
	if !resumed {
		require.Equal(t, a.ack, k.seq)
	} else {
		require.NotEqual(t, a.ack, k.seq)
	}
	v, out := k.send(unreachable(k.fam.router, k.fam.vip, tcp(k.vip, k.client, "A", k.ack, k.seq, "x"), 8))
	require.Equal(t, Forwarded, v)
	checkQuote(t, out, a.at, k.client)
	_, view := parseFlow(out)
	quote := view.Quote(out)
	var q wire.View
	require.Zero(t, parseQuoted(quote, &q))
	require.Equal(t, a.seq, binary.BigEndian.Uint32(quote[q.L4+4:]))
	v, out = k.send(unreachable(k.fam.router, k.client.Addr(), tcp(k.client, a.at, "A", a.ack, a.seq, "x"), 8))
	require.Equal(t, Forwarded, v)
	checkQuote(t, out, k.client, k.vip)
	_, view = parseFlow(out)
	quote = view.Quote(out)
	require.Zero(t, parseQuoted(quote, &q))
	require.Equal(t, k.seq, binary.BigEndian.Uint32(quote[q.L4+4:]))

	// Over a restart.
	var saved bytes.Buffer
	_, err := k.WriteTo(&saved)
	require.NoError(t, err)
	next := newPlane(t, k.fam, func(c *Config, s *Service) { *s = *k.svc })
	res, err := next.Restore(&saved)
	require.NoError(t, err)
	require.Equal(t, Restored{Sessions: 1, Associations: res.Associations}, res)
	k.testPlane = next
	bare()
	talk("after a restart", "as before")

	// At another balancer.
	d := new(directory)
	var flows [][2]netip.AddrPort
	for key, r := range k.p().sessions.All() {
		flows = append(flows, [2]netip.AddrPort{key.Src(), key.Dst()})
		if r.dir() == toNode {
			k.cfg.Peers = d
			f, _ := k.p().snap.Load().find("web", [2]string{"web", "only-" + k.fam.n1.String()})
			k.p().announce(key, &k.p().slab.recs[r.record()], f.svc, f.node)
			k.cfg.Peers = nil
		}
	}
	require.Len(t, flows, 2)
	require.Len(t, d.m, 2)
	other := newPlane(t, k.fam, func(c *Config, s *Service) { *s, c.Peers = *k.svc, d })
	k.testPlane = other
	k.took("/a")
	b := tcp(k.client, k.vip, "PA", k.seq, k.ack, "elsewhere")
	k.seq += uint32(len("elsewhere"))
	v, _ = k.send(b)
	require.Equal(t, Held, v)
	_, outs := k.sendAll()
	require.Len(t, outs, 1)
	k.run(tcp(k.client, k.vip, "PA", k.seq-uint32(len("elsewhere")), k.ack, "elsewhere"))
	require.Equal(t, "elsewhere", k.took("/a"))
	bare()
	k.answer("/a", "heard")
	require.True(t, strings.HasSuffix(k.toClient, "heard"))

	// Ended by the balancer: atClient and atNode want resets that they believe.
	k.testPlane = next
	// What the other one has moved this one has not seen; it learns by the next packets.
	talk("back again", "at the first")
	require.Equal(t, 1, k.KillSessions(func(Session) bool { return true }))
	k.run(tcp(k.client, k.vip, "A", k.seq, k.ack, ""))
	require.True(t, k.toldEnd)
	require.True(t, a.over)
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

// A restart between two requests: the connection goes on, is judged as before, and goes back to the node where one is parked.
func TestKeptOutlivesARestart(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, mode l7.Mode) {
		for i, path := range []string{"/a", "/b", "/a"} { // the last one, in Maintain, by other numbers than the node's
			k.ask(get(path))
			k.answer(path, ok)
			require.Equal(t, strings.Repeat(ok, i+1), k.toClient)
		}
		k.took("/a")
		k.took("/b")
		a, b := k.nodes["/a"], k.nodes["/b"]
		opened := []int{a.opened, b.opened}
		restart := func(again *Service) Restored {
			t.Helper()
			var saved bytes.Buffer
			_, err := k.WriteTo(&saved)
			require.NoError(t, err)
			next := newPlane(t, k.fam, func(_ *Config, s *Service) { *s = *again })
			res, err := next.Restore(&saved)
			require.NoError(t, err)
			next.now = k.now
			k.testPlane = next
			return res
		}
		require.Equal(t, 1, restart(k.svc).Sessions)
		st := k.Stats()
		require.Equal(t, []int{1, 0, 1}, []int{st.Delay.Kept, st.Delay.Held, st.Sessions})
		k.ask(get("/a"))
		require.Equal(t, get("/a"), k.took("/a"), "the same node, the same connection")
		k.answer("/a", ok)
		k.ask(get("/b"))
		require.Equal(t, get("/b"), k.took("/b"))
		k.answer("/b", ok)
		require.Equal(t, strings.Repeat(ok, 5), k.toClient)
		if mode == l7.Maintain {
			require.Equal(t, opened, []int{a.opened, b.opened}, "what is parked is known still")
			require.EqualValues(t, 1, k.Stats().Delay.Resumed)
		} else {
			require.Equal(t, opened[1]+1, b.opened)
		}

		// Within a request it is not saved: the client's next packet is reset, so that it asks again.
		k.ask(get("/b"))
		was := k.testPlane
		require.Zero(t, restart(k.svc).Sessions)
		require.Zero(t, k.Stats().Delay.Kept)
		v, out := k.send(tcp(k.client, k.vip, "A", k.seq, k.ack, ""))
		if v == Answered { // else its acknowledgement looks like a cookie's, and it is reset with a later one
			require.Equal(t, k.ack, numbers(out).Seq)
			require.NotZero(t, numbers(out).Flags&splice.RST)
		}
		k.testPlane = was
		k.took("/b")
		k.answer("/b", ok)
		require.Equal(t, strings.Repeat(ok, 6), k.toClient)

		// Where requests are not judged any more the connection stays where it is, with its numbers.
		plain := *k.svc
		plain.Delay = &Delay{}
		plain.Pool = k.svc.Delay.Farms["b"]
		require.Equal(t, 1, restart(&plain).Sessions)
		require.Zero(t, k.p().holds.all.Load())
		k.took("/b")
		k.ask(get("/no"))
		require.Equal(t, get("/no"), k.took("/b"))
		k.answer("/b", ok)
		require.Equal(t, strings.Repeat(ok, 7), k.toClient)
	})
}

// What comes back is bounded like what begins here, and leaves nothing behind when it ends.
func TestKeptRestoredIsBounded(t *testing.T) {
	bothModes(t, func(t *testing.T, k *keptPlane, _ l7.Mode) {
		k.ask(get("/a"))
		k.answer("/a", ok)
		k.ask(get("/b"))
		k.answer("/b", ok)
		var saved bytes.Buffer
		_, err := k.WriteTo(&saved)
		require.NoError(t, err)
		next := newPlane(t, k.fam, func(c *Config, s *Service) { *s, c.MaxHeld = *k.svc, 1 })
		require.NoError(t, k.Close())
		k.testPlane = next
		another := ap(k.client.Addr(), 4001)
		k.send(tcp(another, k.vip, "A", 5001, k.hello(another, 5000)+1, ""))
		require.Equal(t, 1, k.Stats().Delay.Held)
		res, err := next.Restore(bytes.NewReader(saved.Bytes()))
		require.NoError(t, err)
		require.Equal(t, Restored{Associations: 2, Refused: 1}, res)
		k.send(tcp(another, k.vip, "RA", 5001, 0, ""))
		k.now = k.now.Add(10 * time.Second)
		k.sendAll()
		require.Zero(t, k.Stats().Delay.Held)
		res, err = next.Restore(bytes.NewReader(saved.Bytes()))
		require.NoError(t, err)
		require.Equal(t, 1, res.Sessions)
		k.run(tcp(k.client, k.vip, "RA", k.seq, k.ack, ""))
		require.Zero(t, k.p().holds.all.Load())
		require.Zero(t, k.p().holds.nParked.Load())
		require.Zero(t, k.Stats().Delay.Kept)
		require.True(t, k.nodes["/a"].over)
		require.True(t, k.nodes["/b"].over)
		for k.Step(k.now) {
		}
		require.Zero(t, k.Stats().Sessions)
		for _, q := range k.p().pools {
			for id := range q.All() {
				n, _ := q.Sessions(id)
				require.Zero(t, n, "every session was given back")
			}
		}
	})
}
