package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
)

// setDF sets or clears the bit of an IPv4 packet that forbids fragments.
func setDF(b []byte, on bool) []byte {
	if b[0]>>4 == 4 {
		b[6] &^= 0x40
		if on {
			b[6] |= 0x40
		}
		binary.BigEndian.PutUint16(b[10:], 0)
		binary.BigEndian.PutUint16(b[10:], wire.Checksum(b[:int(b[0]&15)*4]))
	}
	return b
}

// TestNarrowWayToTheNodes: a service knows that the way to its nodes takes less than that of its clients. Where the device has a host
// behind it, that one could only tell senders of addresses which they do not know.
func TestNarrowWayToTheNodes(t *testing.T) {
	const mtu = 1300
	for _, mode := range []Forward{NAT, FullNAT} {
		both(t, func(t *testing.T, fam family) {
			p := newPlane(t, fam, func(c *Config, s *Service) {
				c.Addrs = own()
				if s.MTU, s.Forward = mtu, mode; mode == FullNAT {
					s.Locals = []netip.Addr{fam.elsewhere}
				}
			})
			client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
			_, out := p.send(udp(client, vip, "hello"))
			f, _ := parseFlow(out)
			node, peer := f.Dst, f.Src
			head := 28
			if fam.vip.Is6() {
				head = 48
			}
			// What must not be fragmented comes back as an error about what was sent.
			b := setDF(udp(client, vip, strings.Repeat("x", 1400-head)), true)
			v, out := p.send(b)
			require.Equal(t, Dropped, v)
			require.EqualValues(t, 1, p.drops()[TooBig])
			_, w := parseFlow(out)
			require.EqualValues(t, mtu, w.MTU(out))
			require.True(t, w.SumOK(out))
			quote := w.Quote(out)
			require.Equal(t, b[:len(quote)], quote)
			// What just fits goes, and so does any answer.
			p.forwarded(setDF(udp(client, vip, strings.Repeat("x", mtu-head)), true), peer, node)
			p.forwarded(setDF(udp(node, peer, strings.Repeat("x", 1500-head)), true), vip, client)
			if fam.vip.Is6() {
				return
			}
			// What may be fragmented is: packets, and fragments.
			whole := setDF(udp(client, vip, strings.Repeat("0123456789", 300)), false)
			_, out2 := p.sendAll(setDF(bytes.Clone(whole), false))
			require.Len(t, out2, 3)
			fs := split(whole, 1480, 77)
			_, out3 := p.sendAll(fs[2], fs[0], fs[1])
			require.Len(t, out3, 5)
			for _, outs := range [][][]byte{out2, out3} {
				for _, o := range outs {
					require.LessOrEqual(t, len(o), mtu)
				}
				got := join(t, outs)
				p.wellFormed(got, peer, node)
				require.Equal(t, whole[28:], got[28:])
			}
		})
	}
}

// TestSuperPacketsInFragments: TCP segments that a sender allows to be fragmented, of a super-packet on a narrow way.
func TestSuperPacketsInFragments(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam, func(_ *Config, s *Service) { s.MTU = 1000 })
	client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
	node := p.open(client)
	p.w = p.NewWorker(Link{Virtio: true})
	data := strings.Repeat("0123456789", 1000)
	v, out := p.sendOffload(setDF(tcp(client, vip, "AP", 101, 501, data), false), gsoTCPv4, 1448)
	require.Equal(t, Forwarded, v)
	byID := map[uint32][][]byte{}
	for _, o := range out {
		require.Equal(t, make([]byte, virtioLen), o[Headroom-virtioLen:Headroom])
		o = o[Headroom:]
		require.LessOrEqual(t, len(o), 1000)
		_, w := parseFlow(o)
		byID[w.FragID] = append(byID[w.FragID], o)
	}
	require.Len(t, byID, 7)
	got := make([]byte, len(data))
	for _, fs := range byID {
		whole := join(t, fs)
		p.wellFormed(whole, client, node)
		_, w := parseFlow(whole)
		seq, _ := w.Seq(whole)
		copy(got[seq-101:], whole[w.Payload:])
	}
	require.Equal(t, data, string(got))
	// What must not be fragmented: the sender is told once, of the size of a segment.
	p.now = p.now.Add(2 * time.Second)
	v, out = p.sendOffload(setDF(tcp(client, vip, "AP", 101, 501, data), true), gsoTCPv4, 1448)
	require.Equal(t, Dropped, v)
	require.Len(t, out, 1)
	_, w := parseFlow(out[0][Headroom:])
	require.EqualValues(t, 1000, w.MTU(out[0][Headroom:]))
}

// TestLastHopOfAPacket: on a device with a host behind it, that host takes one more off the time to live.
func TestLastHopOfAPacket(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(c *Config, _ *Service) { c.Addrs = own() })
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		for i, c := range [][2]netip.AddrPort{{client, vip}, {node, client}} {
			b := tcp(c[0], c[1], "A", 101, 501, "data")
			_, w := parseFlow(b)
			w.SetTTL(b, 1)
			v, out := p.send(b)
			require.Equal(t, Dropped, v)
			require.EqualValues(t, 1+i, p.drops()[TTLExpired])
			_, w = parseFlow(out)
			require.True(t, w.SumOK(out))
			require.Equal(t, b, w.Quote(out))
			require.Equal(t, []uint8{map[bool]uint8{false: 11, true: 3}[fam.vip.Is6()], 0}, []uint8{w.Type, w.Code})
		}
	})
}

// TestFragmentedPing: an echo request in fragments, in any order, is answered in fragments, which together are its reply.
func TestFragmentedPing(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
			for _, payload := range []string{strings.Repeat("ping", 1000), strings.Repeat("\x00", 4000)} {
				for _, id := range []uint16{0, 77} {
					p := newPlane(t, fam)
					fs := split(echo(fam.client, fam.vip, false, id, 0, payload), 1400, 9)
					require.Len(t, fs, 3)
					var out [][]byte
					for _, i := range order {
						_, o := p.sendAll(fs[i])
						out = append(out, o...)
					}
					require.Len(t, out, 3, p.drops())
					whole := join(t, out)
					_, w := parseFlow(whole)
					require.True(t, w.SumOK(whole))
					require.Equal(t, fam.vip, addrOf(w.Src(whole)))
					require.Equal(t, fam.client, addrOf(w.Dst(whole)))
					require.NotZero(t, w.Mark&wire.EchoAnswer)
					require.Equal(t, id, w.DstPort)
					require.Equal(t, payload, string(whole[w.Payload:]))
					require.EqualValues(t, 1, p.Stats().Pings)
				}
			}
		}
	})
}

// TestAuthenticatedPackets: an authentication header covers the addresses. It reaches nodes that have the virtual address, and no others.
func TestAuthenticatedPackets(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		inner := udp(ap(fam.client, 40000), ap(fam.vip, 80), "data")
		h := 20
		if fam.vip.Is6() {
			h = 40
		}
		ah := append([]byte{wire.ProtoUDP, 4}, make([]byte, 22)...)
		b := make([]byte, 0, 100)
		b = append(append(append(b, inner[:h]...), ah...), inner[h:]...)
		wire.PutHeader(b, fam.client.AsSlice(), fam.vip.AsSlice(), wire.ProtoAH, 64, 0, len(b))
		for mode := NAT; mode <= Tunnelled; mode++ {
			if mode == DSR {
				continue // like tunnels
			}
			p := newPlane(t, fam, func(c *Config, s *Service) {
				c.Addrs = []netip.Addr{fam.router}
				if s.Forward = mode; mode == FullNAT {
					s.Locals = []netip.Addr{fam.elsewhere}
				}
				c.Policies = table(t, rule("all", fam.vip.String(), s))
			})
			v, out := p.send(bytes.Clone(b))
			if mode == Tunnelled {
				require.Equal(t, Forwarded, v)
				p.inTunnel(out, b)
				continue
			}
			require.Equal(t, Dropped, v, mode)
			require.EqualValues(t, 1, p.drops()[Authentic])
			v, _ = p.send(udp(ap(fam.client, 1), ap(fam.vip, 80), ""))
			require.Equal(t, Forwarded, v)
		}
	})
}

// TestManySmallDatagrams: a super-packet of more datagrams than a stream would have segments leaves as all its datagrams, in a tunnel and in fragments.
func TestManySmallDatagrams(t *testing.T) {
	data := make([]byte, 64800)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	const size = 45
	datagrams := func(t *testing.T, got [][]byte) {
		t.Helper()
		require.Len(t, got, len(data)/size)
		for i, b := range got {
			_, v := parseFlow(b)
			require.True(t, v.SumOK(b) && v.HeaderSumOK(b))
			require.Equal(t, data[i*size:(i+1)*size], b[v.Payload:])
		}
	}
	require.Greater(t, len(data)/size, maxSegments)
	both(t, func(t *testing.T, fam family) {
		p := tunnelPlane(t, fam, fam, Tunnel{Kind: GUE})
		p.w = p.NewWorker(Link{Virtio: true})
		v, out := p.sendOffload(udp(ap(fam.client, 40000), ap(fam.vip, 80), string(data)), gsoUDPL4, size)
		require.Equal(t, Forwarded, v)
		var got [][]byte
		for _, o := range out {
			got = append(got, decapsulate(t, o[Headroom:], Tunnel{Kind: GUE, Port: 6080}, fam, fam))
		}
		datagrams(t, got)
	})
	t.Run("in fragments", func(t *testing.T) {
		fam := families2()[0]
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.Link = Link{Virtio: true, Ethernet: true}
			c.NextHop = func(netip.Addr) (Hop, bool) { return Hop{MTU: 68}, true }
		})
		b := append(make([]byte, 14), setDF(udp(ap(fam.client, 40000), ap(fam.vip, 80), string(data)), false)...)
		b[12], b[13] = 8, 0
		buf := append(make([]byte, ReadOffset), b...)
		o := offload{flags: virtioNeedsCsum, gsoType: gsoUDPL4, gsoSize: size, csumStart: 34, csumAt: 6}
		o.write(buf[ReadOffset-virtioLen:])
		out := p.w.Process(p.now, [][]byte{buf}, []int{len(b)}, ReadOffset, nil)
		require.Len(t, out, 2*len(data)/size)
		var got [][]byte
		for i := 0; i < len(out); i += 2 {
			got = append(got, join(t, [][]byte{out[i][Headroom+14:], out[i+1][Headroom+14:]}))
		}
		datagrams(t, got)
	})
}
