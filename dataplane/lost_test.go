package dataplane

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
)

// A connection whose node was lost and one that was never known are treated as the service says for each, before and after the session
// has been swept away, and however the nodes' answers travel.
func TestServerLostIsNotUnknown(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, mode := range []Forward{NAT, FullNAT, Tunnelled} {
			for _, do := range [][2]MidStream{{Reset, Silent}, {Silent, Reset}, {Reselect, Reset}, {Reset, Reselect}, {Silent, Reselect}, {Reset, Reset}, {Silent, Silent}} {
				t.Run(fmt.Sprint(mode, " lost ", do[0], " unknown ", do[1]), func(t *testing.T) { serverLost(t, fam, mode, do[0], do[1]) })
			}
		}
	})
}

func serverLost(t *testing.T, fam family, mode Forward, lost, unknown MidStream) {
	p := newPlane(t, fam, func(c *Config, s *Service) {
		s.Forward, s.ServerLost, s.MidStream = mode, lost, unknown
		c.Addrs = own()
		if mode == FullNAT {
			s.Locals = []netip.Addr{fam.router}
		}
	})
	vip := ap(fam.vip, 80)
	packet := func(port uint16) []byte { return tcp(ap(fam.client, port), vip, "AP", 101, 501, "more") }
	wants := func(port uint16, do MidStream, reason Reason) {
		t.Helper()
		x, err := p.ExplainFlow(wire.ProtoTCP, ap(fam.client, port), vip)
		require.NoError(t, err)
		require.NotEmpty(t, x.Node, "a new connection goes to the node that is left")
		before, resets := p.drops()[reason], p.Stats().Resets
		v, out := p.send(packet(port))
		switch do {
		case Reset:
			require.Equal(t, Answered, v)
			p.wellFormed(out, vip, ap(fam.client, port))
			seq, _ := numbersOf(out)
			require.EqualValues(t, 501, seq, "the client must believe it")
			require.Equal(t, resets+1, p.Stats().Resets)
		case Silent:
			require.Equal(t, Dropped, v)
			require.Equal(t, before+1, p.drops()[reason])
		case Reselect:
			require.Equal(t, Forwarded, v, "drops %v", p.drops())
		}
	}
	name := ""
	ports := []uint16{1, 2, 3, 4}
	for _, port := range ports { // the client's sessions all go to one node
		v, out := p.send(tcp(ap(fam.client, port), vip, "S", 100, 0, ""))
		require.Equal(t, Forwarded, v)
		s, ok := p.Session(wire.ProtoTCP, ap(fam.client, port), vip)
		require.True(t, ok)
		require.True(t, name == "" || s.NodeName == name)
		name = s.NodeName
		if mode != Tunnelled {
			f, _ := parseFlow(out)
			p.forwarded(tcp(f.Dst, f.Src, "SA", 500, 101, ""), vip, ap(fam.client, port))
		}
		v, _ = p.send(tcp(ap(fam.client, port), vip, "A", 101, 501, ""))
		require.Equal(t, Forwarded, v)
	}
	p.SetUp(name, false)
	wants(ports[0], lost, NodeLost)
	wants(9999, unknown, NoSession)
	for p.Step(p.now) { // the sessions are swept away, and known to have been all the same
	}
	if lost != unknown { // else it need not be known
		wants(ports[1], lost, NodeLost)
	}
	wants(9998, unknown, NoSession)
	// A new connection of the same ends is a new one, and once that is over nothing of the old one is left.
	v, _ := p.send(tcp(ap(fam.client, ports[2]), vip, "S", 9000, 0, ""))
	require.Equal(t, Forwarded, v)
	s, ok := p.Session(wire.ProtoTCP, ap(fam.client, ports[2]), vip)
	require.True(t, ok)
	require.NotEqual(t, name, s.NodeName)
	require.True(t, p.KillSession(s))
	p.sendAll() // resets to both sides
	if lost != unknown {
		wants(ports[2], unknown, NoSession)
	}
	// After its time a lost connection is unknown, like any.
	p.now = p.now.Add(2 * time.Hour)
	for p.Step(p.now) {
	}
	wants(ports[3], unknown, NoSession)
	require.False(t, p.lost.some.Load())
}

func numbersOf(b []byte) (seq, ack uint32) {
	_, v := parseFlow(b)
	return v.Seq(b)
}
