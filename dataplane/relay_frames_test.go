package dataplane

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
)

// framed makes a Plane of one on frames.
func framed(c *Config, _ *Service) {
	c.Link, c.NextHop = Link{Ethernet: true, Ports: true}, hopTo
}

// sendFrame gives a frame to the plane, and returns those that come out with their ports.
func (p *testPlane) sendFrame(b []byte) (ports []uint32, frames [][]byte) {
	p.t.Helper()
	buf := append(make([]byte, ReadOffset), b...)
	binary.NativeEndian.PutUint32(buf[ReadOffset-Headroom:], 3) // where it came in
	for _, o := range p.w.Process(p.now, [][]byte{buf}, []int{len(b)}, ReadOffset, nil) {
		ports, frames = append(ports, binary.NativeEndian.Uint32(o)), append(frames, append([]byte(nil), o[Headroom:]...))
	}
	return ports, frames
}

// routedTo wants one frame that goes to an address by the hop for it, and returns the packet in it.
func (p *testPlane) routedTo(in []byte, a netip.Addr) []byte {
	p.t.Helper()
	ports, out := p.sendFrame(in)
	require.Len(p.t, out, 1, "drops %v", p.drops())
	hop, ok := hopTo(a)
	require.True(p.t, ok)
	require.Equal(p.t, hop.Port, ports[0], "the interface")
	require.Equal(p.t, hop.Dst[:], out[0][:6], "not back to who put it in the tunnel")
	require.Equal(p.t, hop.Src[:], out[0][6:12])
	b := out[0][14:]
	f, _ := parseFlow(b)
	require.Equal(p.t, a, f.Dst.Addr())
	return b
}

// What a balancer answers itself to a packet that another one has relayed goes to the client by its own way: the other balancer has no business with
// it, and might pass nothing on.
func TestRelayedAreAnsweredByRoute(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		ps, d := relays(t, fam, 2, delayed(Delay{}), framed)
		a, b := ps[0], ps[1]
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		wrap := func(inner []byte) []byte {
			y := wire.Tunnel{Kind: wire.GRE, HasKey: true, Key: relayKey}
			p := make([]byte, y.Overhead(fam.client.Is6())+len(inner))
			copy(p[len(p)-len(inner):], inner)
			y.Put(p, a.relay.conf.Addr.AsSlice(), b.relay.conf.Addr.AsSlice(), fam.client.Is6(), 0, 0, true, 0)
			return frame(p)
		}
		// A SYN is answered by one with a cookie, a segment of no connection by a reset.
		out := b.routedTo(wrap(tcp(client, vip, "S", 1000, 0, "")), fam.client)
		require.NotZero(t, numbers(out).Flags&splice.SYN)
		old := numbers(out).Seq + 1<<31
		out = b.routedTo(wrap(tcp(client, vip, "A", 1, old, "x")), fam.client)
		require.NotZero(t, numbers(out).Flags&splice.RST)
		require.EqualValues(t, 2, b.Stats().Received)
		// The whole way: the first balancer learns whose the flow is, and relays; the second one does not know it any more.
		d.Announce(wire.ProtoTCP, client, vip, itself, "web\x00@"+b.relay.conf.Addr.String())
		_, none := a.sendFrame(frame(tcp(client, vip, "A", 1, old, "x")))
		require.Empty(t, none)
		a.now = a.now.Add(AskTimeout)
		var tunnelled [][]byte
		for _, o := range a.w.Process(a.now, nil, nil, ReadOffset, nil) {
			tunnelled = append(tunnelled, append([]byte(nil), o[Headroom:]...))
		}
		require.Len(t, tunnelled, 1, "drops %v", a.drops())
		out = b.routedTo(tunnelled[0], fam.client)
		require.NotZero(t, numbers(out).Flags&splice.RST)
		// Without a way to the client nothing is sent.
		lost := fam.client.As16()
		lost[15] = 0xfe
		_, none = b.sendFrame(wrap(tcp(ap(netip.AddrFrom16(lost).Unmap(), 5), vip, "A", 1, old, "x")))
		require.Empty(t, none)
		require.EqualValues(t, 1, b.drops()[NoRoute])
		// What has come by no tunnel is answered to where it came from.
		_, frames := b.sendFrame(frame(tcp(ap(fam.client2, 1), vip, "S", 1, 0, "")))
		require.Equal(t, []byte{2, 0, 0, 0, 0, 0xbb, 2, 0, 0, 0, 0, 0xaa}, frames[0][:12])
	})
}

// An error about a packet that a node has sent in its tunnel goes to the packet's sender.
func TestErrorsAboutUnwrappedPackets(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p, _ := inPath(t, fam, func(c *Config) { c.Link, c.NextHop = Link{Ethernet: true, Ports: true}, hopTo })
		inner := tcp(ap(fam.client, 40000), ap(fam.elsewhere, 80), "A", 1, 1, "x")
		_, v := parseFlow(inner)
		v.SetTTL(inner, 1)
		y := wire.Tunnel{}
		b := make([]byte, y.Overhead(fam.client.Is6())+len(inner))
		copy(b[len(b)-len(inner):], inner)
		y.Put(b, fam.n1.AsSlice(), fam.router.AsSlice(), fam.client.Is6(), 0, 0, true, 0)
		out := p.routedTo(frame(b), fam.client)
		_, w := parseFlow(out)
		require.True(t, w.Has(wire.ICMPError))
		require.Equal(t, inner, w.Quote(out))
		require.EqualValues(t, 1, p.drops()[TTLExpired])
	})
}
