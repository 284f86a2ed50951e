package dataplane

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

func TestSessionCounters(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		begun := p.now
		node := p.open(client)
		p.now = p.now.Add(30 * time.Second)
		ask, reply := tcp(client, vip, "PA", 101, 501, "GET"), tcp(node, client, "PA", 501, 104, "all of it")
		for range 3 {
			p.forwarded(ask, client, node)
		}
		p.forwarded(reply, vip, client)
		syn := len(tcp(client, vip, "S", 100, 0, ""))
		synAck, ack := len(tcp(node, client, "SA", 500, 101, "")), len(tcp(client, vip, "A", 101, 501, ""))
		s, ok := p.Session(wire.ProtoTCP, client, vip)
		require.True(t, ok)
		require.Equal(t, Count{5, uint64(syn + ack + 3*len(ask))}, s.In)
		require.Equal(t, Count{2, uint64(synAck + len(reply))}, s.Out)
		require.WithinDuration(t, begun, s.Begun, time.Second/8)
		require.WithinDuration(t, p.now, s.Last, time.Second/8)
		require.Equal(t, clienttable.TCPEstablished, s.Phase)
		require.Equal(t, "web", s.Service)

		// What is only explained is not counted.
		p.Explain(ask)
		again, _ := p.Session(wire.ProtoTCP, client, vip)
		require.Equal(t, s, again)

		// Counts and age outlive the process.
		var saved bytes.Buffer
		_, err := p.WriteTo(&saved)
		require.NoError(t, err)
		q := newPlane(t, fam)
		_, err = q.Restore(&saved)
		require.NoError(t, err)
		r, ok := q.Session(wire.ProtoTCP, client, vip)
		require.True(t, ok)
		require.Equal(t, s.In, r.In)
		require.Equal(t, s.Out, r.Out)
		require.WithinDuration(t, s.Begun, r.Begun, time.Second/8)

		// A record that is used again begins at nothing.
		require.True(t, p.KillSession(s))
		p.sendAll() // the resets
		p.Step(p.now)
		p.open(client)
		s, _ = p.Session(wire.ProtoTCP, client, vip)
		require.Equal(t, uint64(2), s.In.Packets)
		require.WithinDuration(t, p.now, s.Begun, time.Second/8)
		_, ok = p.Session(wire.ProtoTCP, vip, client)
		require.False(t, ok)
	})
}

func TestMeter(t *testing.T) {
	var rec record
	const n, size = 1<<spillPackets + 1000, 65000
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range n {
				rec.meter(toClient, size)
			}
		})
	}
	for range 100 { // never backwards, nor torn
		c := rec.counts()
		require.Equal(t, c[toClient].Packets*size, c[toClient].Octets)
	}
	wg.Wait()
	want := [2]Count{toClient: {2 * n, 2 * n * size}}
	require.Equal(t, want, rec.counts())
	require.NotZero(t, rec.spilt[toClient])
	var o record
	o.setCounts(7, want)
	require.Equal(t, want, o.counts())
	o.setCounts(7, [2]Count{})
	require.Zero(t, o.counts())
}

func TestKillSessions(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		vip := ap(fam.vip, 80)
		client, other := ap(fam.client, 40000), ap(fam.client2, 40001)
		node := p.open(client)
		stay := p.open(other)
		p.send(udp(ap(fam.client, 7), vip, "x"))
		killed := p.KillSessions(func(s Session) bool { return s.Client.Addr() == fam.client })
		require.Equal(t, 2, killed)
		_, out := p.sendAll()
		require.Len(t, out, 2, "one reset for either end, none for UDP")
		for _, b := range out {
			f, v := parseFlow(b)
			require.NotZero(t, v.TCPFlags&wire.RST)
			seq, _ := v.Seq(b)
			if f.Dst == client {
				require.Equal(t, vip, f.Src)
				require.Equal(t, uint32(501), seq)
			} else {
				require.Equal(t, [2]any{client, node}, [2]any{f.Src, f.Dst})
				require.Equal(t, uint32(101), seq)
			}
		}
		require.False(t, p.KillSession(Session{Protocol: wire.ProtoTCP, Client: client, VIP: vip}))
		require.Equal(t, 1, p.Stats().Sessions)
		p.forwarded(tcp(other, vip, "A", 101, 501, "on"), other, stay)
		v, _ := p.send(tcp(client, vip, "A", 101, 501, "on"))
		require.Equal(t, Answered, v, "what comes after is reset as of an unknown connection")
		total := int64(0)
		for _, st := range p.pool.All() {
			total += st.Sessions
		}
		require.EqualValues(t, 1, total, "the nodes' counts are given back")
	})
}

// Where the node answers past the balancer, what the client acknowledged tells what it will believe.
func TestKillOneWaySession(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.Addrs = append(c.Addrs, fam.router)
			s.Forward = Tunnelled
		})
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		p.send(tcp(client, vip, "S", 100, 0, ""))
		p.send(tcp(client, vip, "A", 101, 501, ""))
		s, ok := p.Session(wire.ProtoTCP, client, vip)
		require.True(t, ok)
		require.True(t, s.Direct())
		require.True(t, p.KillSession(s))
		_, out := p.sendAll()
		require.Len(t, out, 1)
		p.wellFormed(out[0], vip, client)
	})
}
