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
)

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
		r, ok := k.p().sessions().Peek(clienttable.MakeFlow(wire.ProtoTCP, k.client, k.vip))
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
	for key, r := range k.p().sessions().All() {
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
