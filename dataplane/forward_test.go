package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

func own() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("172.31.0.1"), netip.MustParseAddr("2001:db8:ff::1")}
}

// tunnelPlane forwards everything for fam.vip by a tunnel to one node of family outer.
func tunnelPlane(t *testing.T, fam, outer family, tun Tunnel) *testPlane {
	ids := new(steering.IDs)
	pool := mustPool(t, ids, steering.Maglev, steering.Node{Name: "n1", Addr: ap(outer.n1, 0)})
	return newPlane(t, fam, func(c *Config, s *Service) {
		s.Forward, s.Tunnel, s.Pool = Tunnelled, tun, pool
		c.Addrs = own()
		c.Policies = table(t, rule("all", fam.vip.String(), s))
	})
}

// decapsulate checks the outer headers by a decoder of another make and returns the inner packet.
func decapsulate(t *testing.T, b []byte, tun Tunnel, outer, inner family) []byte {
	t.Helper()
	_, v := parseFlow(b)
	require.True(t, v.HeaderSumOK(b) && v.SumOK(b))
	src := own()[0]
	if !outer.n1.Is4() {
		src = own()[1]
	}
	require.Equal(t, src, addrOf(v.Src(b)))
	require.Equal(t, outer.n1, addrOf(v.Dst(b)))
	first := layers.LayerTypeIPv4
	if v.Version == 6 {
		first = layers.LayerTypeIPv6
	}
	p := gopacket.NewPacket(b, first, gopacket.Default)
	ip := layers.LayerTypeIPv4
	if !inner.vip.Is4() {
		ip = layers.LayerTypeIPv6
	}
	over := tun.wire()
	off := over.Overhead(v.Version == 6)
	switch tun.Kind {
	case GRE:
		g := p.Layer(layers.LayerTypeGRE).(*layers.GRE)
		require.Equal(t, tun.Key != 0, g.KeyPresent)
		require.Equal(t, tun.Key, g.Key)
	case VXLAN:
		x := p.Layer(layers.LayerTypeVXLAN).(*layers.VXLAN)
		require.Equal(t, tun.Key, x.VNI)
		require.True(t, x.ValidIDFlag)
		eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		require.Equal(t, "02:00:00:00:00:01", eth.SrcMAC.String())
	case GUE:
		require.Equal(t, []byte{0, map[bool]byte{true: 4, false: 41}[inner.vip.Is4()], 0, 0}, b[off-4:off])
		require.EqualValues(t, 6080, v.DstPort)
		return b[off:]
	}
	var innermost gopacket.Layer
	n := 0
	for _, l := range p.Layers() {
		if l.LayerType() == ip {
			innermost = l
			n++
		}
	}
	require.NotNil(t, innermost)
	if outer.n1.Is4() == inner.vip.Is4() {
		require.Equal(t, 2, n)
	}
	require.Equal(t, append(append([]byte{}, innermost.LayerContents()...), innermost.LayerPayload()...), b[off:])
	return b[off:]
}

func TestTunnels(t *testing.T) {
	for _, tun := range []Tunnel{{}, {Kind: GRE}, {Kind: GRE, Key: 77}, {Kind: GUE}, {Kind: VXLAN, Key: 4711}} {
		for _, fam := range families2() {
			for _, outer := range families2() {
				t.Run(fmt.Sprintf("%v/%s in %s", tun, fam.name, outer.name), func(t *testing.T) {
					p := tunnelPlane(t, fam, outer, tun)
					client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
					tunIn := tun
					_ = (&tunIn).resolve("x")
					for _, in := range [][]byte{
						tcp(client, vip, "A", 5, 5, "data"), udp(client, vip, "data"), echo(fam.client, fam.vip, false, 3, 4, "data"),
					} {
						if v, _ := wireFlags(in); v == wire.ProtoTCP {
							// A connection begins with a SYN, whose MSS is lowered.
							v, out := p.send(tcp(client, vip, "S", 4, 0, ""))
							require.Equal(t, Forwarded, v, p.drops())
							b := decapsulate(t, out, tunIn, outer, fam)
							_, w := parseFlow(b)
							mss, ok := w.MSS(b)
							require.True(t, ok)
							tw := tunIn.wire()
							want := 1500 - tw.Overhead(!outer.n1.Is4()) - 40
							if !fam.vip.Is4() {
								want -= 20
							}
							require.EqualValues(t, min(want, 1460), mss)
							require.True(t, w.SumOK(b))
						}
						v, out := p.send(in)
						require.Equal(t, Forwarded, v, p.drops())
						require.Equal(t, in, decapsulate(t, out, tunIn, outer, fam), "the inner packet is untouched")
					}
					require.Equal(t, 3, p.Stats().Sessions)
					// An error about what the node answered directly goes to the node, as it is.
					e := unreachable(fam.router, fam.vip, tcp(vip, client, "A", 5, 5, "data"), 8)
					v, out := p.send(e)
					require.Equal(t, Forwarded, v)
					require.Equal(t, e, decapsulate(t, out, tunIn, outer, fam))
				})
			}
		}
	}
}

func wireFlags(b []byte) (proto, flags uint8) {
	_, v := parseFlow(b)
	return v.Proto, v.TCPFlags
}

func TestSizeChain(t *testing.T) {
	for _, c := range []struct {
		fam, outer family
		tun        Tunnel
		mtu        uint32
	}{
		{families2()[0], families2()[0], Tunnel{}, 1480},
		{families2()[1], families2()[1], Tunnel{}, 1460},
		{families2()[0], families2()[1], Tunnel{Kind: GRE, Key: 5}, 1452},
		{families2()[1], families2()[0], Tunnel{Kind: VXLAN, Key: 5}, 1450},
	} {
		t.Run(fmt.Sprintf("%v/%s in %s", c.tun, c.fam.name, c.outer.name), func(t *testing.T) {
			fam := c.fam
			p := tunnelPlane(t, fam, c.outer, c.tun)
			client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
			head := 28
			if !fam.vip.Is4() {
				head = 48
			}
			in := udp(client, vip, strings.Repeat("x", 1500-head))
			if fam.vip.Is4() {
				in[6] |= 0x40
				binary.BigEndian.PutUint16(in[10:], 0)
				binary.BigEndian.PutUint16(in[10:], wire.Checksum(in[:20]))
			}
			v, out := p.sendAll(in)
			require.Equal(t, Forwarded, v[0])
			require.Len(t, out, 3, "an error and two fragments")
			p.wellFormed(out[0], ap(own()[map[bool]int{true: 0, false: 1}[fam.vip.Is4()]], 0), ap(fam.client, 0))
			_, w := parseFlow(out[0])
			require.EqualValues(t, c.mtu, w.MTU(out[0]))
			for _, f := range out[1:] {
				require.LessOrEqual(t, len(f), 1500)
			}
			whole := join(t, out[1:])
			tw := c.tun
			_ = (&tw).resolve("x")
			require.Equal(t, in, decapsulate(t, whole, tw, c.outer, fam))
			// At most one error a second for a sender.
			_, out = p.sendAll(in)
			require.Len(t, out, 2)
			p.now = p.now.Add(time.Second)
			_, out = p.sendAll(in)
			require.Len(t, out, 3)
			// What may be fragmented brings no error; what fits no fragments.
			if fam.vip.Is4() {
				in[6] &^= 0x40
				binary.BigEndian.PutUint16(in[10:], 0)
				binary.BigEndian.PutUint16(in[10:], wire.Checksum(in[:20]))
				p.now = p.now.Add(time.Second)
				_, out = p.sendAll(in)
				require.Len(t, out, 2)
			}
			_, out = p.sendAll(udp(client, vip, strings.Repeat("x", int(c.mtu)-head)))
			require.Len(t, out, 1)
			require.Len(t, out[0], 1500)
		})
	}
	t.Run("never below 1280", func(t *testing.T) {
		fam := families2()[1]
		p := tunnelPlane(t, fam, fam, Tunnel{})
		svc := *p.svc
		svc.MTU = 1300
		require.NoError(t, p.Apply(table(t, rule("all", fam.vip.String(), &svc))))
		_, out := p.sendAll(udp(ap(fam.client, 1), ap(fam.vip, 80), strings.Repeat("x", 1280-48)))
		require.Len(t, out, 2, "no error, fragments of the outer packet")
		_, out = p.sendAll(udp(ap(fam.client, 1), ap(fam.vip, 80), strings.Repeat("x", 1281-48)))
		require.Len(t, out, 3)
		_, w := parseFlow(out[0])
		require.EqualValues(t, 1280, w.MTU(out[0]))
	})
}

func TestSuperPacketsAreSplitForTunnels(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := tunnelPlane(t, fam, fam, Tunnel{Kind: GUE})
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		p.send(tcp(client, vip, "S", 100, 0, ""))
		p.w = p.NewWorker(Link{Virtio: true})
		var data strings.Builder
		for i := range 10000 {
			fmt.Fprintf(&data, "%05d", i)
		}
		for proto, in := range map[string][]byte{"tcp": tcp(client, vip, "APF", 101, 501, data.String()), "udp": udp(client, vip, data.String())} {
			gso := uint8(gsoTCPv4)
			if proto == "udp" {
				gso = gsoUDPL4
			}
			_, out := p.sendOffload(in, gso, 1200)
			require.Len(t, out, (data.Len()+1199)/1200)
			var got strings.Builder
			for i, o := range out {
				require.Equal(t, make([]byte, virtioLen), o[Headroom-virtioLen:Headroom])
				b := decapsulate(t, o[Headroom:], Tunnel{Kind: GUE, Port: 6080}, fam, fam)
				f, w := parseFlow(b)
				require.True(t, w.SumOK(b) && w.HeaderSumOK(b))
				require.Equal(t, vip, f.Dst)
				if proto == "tcp" {
					seq, _ := w.Seq(b)
					require.EqualValues(t, 101+i*1200, seq)
					require.Equal(t, i == len(out)-1, w.TCPFlags&(wire.FIN|wire.PSH) != 0)
				}
				got.Write(b[w.Payload:])
			}
			require.Equal(t, data.String(), got.String())
		}
		// A partial checksum is completed.
		_, out := p.sendOffload(udp(client, vip, "hello"), gsoNone, 0)
		b := decapsulate(t, out[0][Headroom:], Tunnel{Kind: GUE, Port: 6080}, fam, fam)
		require.Equal(t, udp(client, vip, "hello"), b)
	})
}

func TestFullNAT(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		local := netip.MustParseAddr("10.9.9.9")
		if !fam.vip.Is4() {
			local = netip.MustParseAddr("2001:db8:99::9")
		}
		p := newPlane(t, fam, func(c *Config, s *Service) {
			s.Forward, s.Locals = FullNAT, []netip.Addr{local}
			c.Policies = table(t, rule("all", fam.vip.String(), s))
		})
		vip := ap(fam.vip, 80)
		seen := map[netip.AddrPort]bool{}
		for _, a := range []netip.Addr{fam.client, fam.client2} {
			client := ap(a, 40000)
			v, out := p.send(tcp(client, vip, "S", 1, 0, ""))
			require.Equal(t, Forwarded, v)
			f, _ := parseFlow(out)
			require.Equal(t, local, f.Src.Addr())
			require.GreaterOrEqual(t, f.Src.Port(), uint16(firstLocal))
			require.False(t, seen[f.Src], "two clients with one source port get two ports")
			seen[f.Src] = true
			p.wellFormed(out, f.Src, f.Dst)
			p.forwarded(tcp(f.Dst, f.Src, "SA", 9, 2, ""), vip, client)
			p.forwarded(tcp(client, vip, "A", 2, 10, "data"), f.Src, f.Dst)
			// Errors, both ways.
			v, out = p.send(unreachable(fam.router, local, tcp(f.Src, f.Dst, "A", 2, 10, "data"), 20))
			require.Equal(t, Forwarded, v)
			p.wellFormed(out, ap(fam.router, 0), ap(a, 0))
			checkQuote(t, out, client, vip)
			v, out = p.send(unreachable(a, fam.vip, tcp(vip, client, "A", 10, 2, "data"), 20))
			require.Equal(t, Forwarded, v)
			p.wellFormed(out, ap(local, 0), ap(f.Dst.Addr(), 0))
			checkQuote(t, out, f.Dst, f.Src)
			// Echo: two clients with one identifier.
			v, out = p.send(echo(a, fam.vip, false, 5, 1, "ping"))
			require.Equal(t, Forwarded, v)
			g, w := parseFlow(out)
			require.False(t, seen[g.Src])
			seen[g.Src] = true
			require.True(t, w.SumOK(out))
			v, out = p.send(echo(g.Dst.Addr(), local, true, g.Src.Port(), 1, "ping"))
			require.Equal(t, Forwarded, v)
			g, w = parseFlow(out)
			require.True(t, w.SumOK(out))
			require.Equal(t, ap(a, 5), g.Dst)
			require.Equal(t, fam.vip, g.Src.Addr())
		}
		// A hairpin: a node is a client of the virtual address.
		v, out := p.send(tcp(ap(fam.n1, 7777), vip, "S", 1, 0, ""))
		require.Equal(t, Forwarded, v)
		f, _ := parseFlow(out)
		p.forwarded(tcp(f.Dst, f.Src, "SA", 9, 2, ""), vip, ap(fam.n1, 7777))
		// An answer of no session.
		v, _ = p.send(tcp(ap(fam.n1, 8080), ap(local, 999), "A", 1, 1, ""))
		require.Equal(t, Dropped, v)
	})
}

// TestFullNATSharesPorts has most of one address's ports in use at once, of one node.
func TestFullNATSharesPorts(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam, func(c *Config, s *Service) {
		c.MaxSessions = 70000
		s.Forward, s.Locals = FullNAT, []netip.Addr{netip.MustParseAddr("10.9.9.9")}
		s.Pool = mustPool(t, new(steering.IDs), steering.RoundRobin, steering.Node{Name: "n1", Addr: ap(fam.n1, 8080)})
	})
	const want = 50000
	template := udp(ap(fam.client, 1), ap(fam.vip, 80), "")
	bufs, sizes, v := make([][]byte, 50), make([]int, 50), make([]Verdict, 50)
	for i := range bufs {
		bufs[i], sizes[i] = make([]byte, ReadOffset+len(template)), len(template)
	}
	n := 0
	for i := range want / len(bufs) {
		for j := range bufs {
			copy(bufs[j][ReadOffset:], template)
			binary.BigEndian.PutUint16(bufs[j][ReadOffset+20:], uint16(1+i*len(bufs)+j))
		}
		p.Process(p.now, bufs, sizes, ReadOffset, v)
		for _, x := range v {
			if x == Forwarded {
				n++
			}
		}
	}
	require.Equal(t, want, n)
	require.Equal(t, want, p.Stats().Sessions)
}

// frame puts an Ethernet header with an optional VLAN tag before b.
func frame(b []byte, tags ...uint16) []byte {
	f := []byte{2, 0, 0, 0, 0, 0xaa, 2, 0, 0, 0, 0, 0xbb}
	for _, tag := range tags {
		f = append(f, 0x81, 0, byte(tag>>8), byte(tag))
	}
	typ := uint16(wire.EtherIPv4)
	if b[0]>>4 == 6 {
		typ = wire.EtherIPv6
	}
	return append(binary.BigEndian.AppendUint16(f, typ), b...)
}

func hopTo(a netip.Addr) (Hop, bool) {
	b := a.As16()
	return Hop{Port: 7, Src: [6]byte{2, 0, 0, 0, 0, 1}, Dst: [6]byte{2, 9, 9, 9, 9, b[15]}, MTU: 1500}, b[15] != 0xfe
}

func TestDSR(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.Link = Link{Ethernet: true, Ports: true}
			c.NextHop = hopTo
			s.Forward = DSR
		})
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		in := frame(tcp(client, vip, "S", 1, 0, ""), 42)
		v, out := p.send(in)
		require.Equal(t, Forwarded, v, p.drops())
		f, s := wire.ParseEthernet(out)
		require.Equal(t, wire.OK, s)
		require.EqualValues(t, 42, f.VLAN, "the tag stays")
		require.Contains(t, [][]byte{{2, 9, 9, 9, 9, 1}, {2, 9, 9, 9, 9, 2}}, out[:6])
		require.Equal(t, []byte{2, 0, 0, 0, 0, 1}, out[6:12])
		_, w := parseFlow(out[f.L3:])
		require.EqualValues(t, 63, w.TTL(out[f.L3:]))
		w.SetTTL(out[f.L3:], 64)
		require.Equal(t, in[f.L3:], out[f.L3:], "the packet is untouched but for its time to live")
		// The way back is not seen: a FIN from the client starts the linger.
		p.send(frame(tcp(client, vip, "A", 2, 9, ""), 42))
		p.send(frame(tcp(client, vip, "FA", 2, 9, ""), 42))
		v, _ = p.send(frame(tcp(client, vip, "A", 3, 10, ""), 42))
		require.Equal(t, Forwarded, v)
		require.Equal(t, 1, p.Stats().Sessions)
	})
	fam := families2()[0]
	_, err := New(&Config{Policies: table(t, rule("a", fam.vip.String(), &Service{Name: "x", Forward: DSR, Pool: newPlane(t, fam).pool}))})
	require.ErrorContains(t, err, "Forward")
}

func TestFrames(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(c *Config, _ *Service) {
			c.Link = Link{Ethernet: true, Ports: true}
			c.NextHop = hopTo
			c.Addrs = own()
		})
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		for _, tags := range [][]uint16{nil, {42}, {42, 43}} {
			v, out := p.send(append(frame(tcp(client, vip, "S", 1, 0, ""), tags...), make([]byte, 10)...))
			require.Equal(t, Forwarded, v)
			f, _ := wire.ParseEthernet(out)
			require.Equal(t, len(tags), f.Tags)
			g, w := parseFlow(out[f.L3:])
			p.wellFormed(out[f.L3:], client, g.Dst)
			require.EqualValues(t, 63, w.TTL(out[f.L3:]))
			require.Len(t, out, f.L3+int(w.End), "padding is no payload")
			// An answer goes back to where the packet came from.
			v, out = p.send(frame(tcp(ap(fam.client2, 1), vip, "A", 1, 1, ""), tags...))
			require.Equal(t, Answered, v)
			require.Equal(t, []byte{2, 0, 0, 0, 0, 0xbb, 2, 0, 0, 0, 0, 0xaa}, out[:12])
			p.wellFormed(out[f.L3:], vip, ap(fam.client2, 1))
		}
		// Time to live used up: answered.
		b := tcp(client, vip, "A", 1, 1, "")
		_, w := parseFlow(b)
		w.SetTTL(b, 1)
		_, outs := p.sendAll(frame(b))
		require.Len(t, outs, 1)
		_, w = parseFlow(outs[0][14:])
		require.True(t, w.Has(wire.ICMPError))
		require.EqualValues(t, 1, p.drops()[TTLExpired])
		// Mere routing: too big is dropped and answered.
		_, outs = p.sendAll(frame(udp(ap(fam.client2, 7), ap(fam.elsewhere, 9), strings.Repeat("x", 1600))))
		if fam.vip.Is4() {
			require.Len(t, outs, 2, "fragments")
			whole := join(t, [][]byte{outs[0][14:], outs[1][14:]})
			p.wellFormed(whole, ap(fam.client2, 7), ap(fam.elsewhere, 9))
		} else {
			require.Len(t, outs, 1)
			require.EqualValues(t, 1, p.drops()[TooBig])
		}
		// No way to the next host; not IP at all.
		far := fam.elsewhere.As16()
		far[15] = 0xfe
		v, _ := p.send(frame(tcp(client, ap(netip.AddrFrom16(far).Unmap(), 5), "S", 1, 0, "")))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[NoRoute])
		arp := frame(tcp(client, vip, "S", 1, 0, ""))
		binary.BigEndian.PutUint16(arp[12:], wire.EtherARP)
		v, out := p.send(arp)
		require.Equal(t, Passed, v)
		require.Nil(t, out)
	})
}

func TestRoute(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		require.NoError(t, p.Apply(table(t, rule("web", fam.vip.String()+" tcp/80", p.svc), rule("rest", fam.vip.String(), &Service{Name: "rest", Forward: Route}))))
		b := udp(ap(fam.client, 1), ap(fam.vip, 99), "x")
		v, out := p.send(b)
		require.Equal(t, Forwarded, v)
		require.Equal(t, b, out)
		require.Zero(t, p.Stats().Sessions)

		// Errors about what the virtual address has sent are routed like the rest: else a server behind never learns of a narrow way to a client.
		for _, quoted := range [][]byte{udp(ap(fam.vip, 99), ap(fam.client, 1), "x"), echo(fam.vip, fam.client, true, 7, 1, "x"), tcp(ap(fam.vip, 98), ap(fam.client, 1), "A", 1, 1, "x")} {
			b = unreachable(fam.router, fam.vip, quoted, 8)
			v, out = p.send(b)
			require.Equal(t, Forwarded, v, "drops %v", p.drops())
			require.Equal(t, b, out)
		}
		// Not what is about a service that balances.
		v, _ = p.send(unreachable(fam.router, fam.vip, tcp(ap(fam.vip, 80), ap(fam.client, 1), "A", 1, 1, "x"), 8))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[NoSession])
	})
}

func TestErrorsOfUnknownSessionsReachTheRightNode(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, m := range []steering.Metric{steering.Maglev, steering.MinMisses, steering.PHash, steering.Hash} {
			var planes []*testPlane
			for range 2 {
				var nodes []steering.Node
				for i := range 5 {
					a := fam.n1.As16()
					a[15] = byte(i + 1)
					nodes = append(nodes, steering.Node{Name: fmt.Sprint("n", i), Addr: ap(netip.AddrFrom16(a).Unmap(), 8080)})
				}
				planes = append(planes, newPlane(t, fam, func(_ *Config, s *Service) { s.Pool = mustPool(t, new(steering.IDs), m, nodes...) }))
			}
			for port := range uint16(20) {
				client, vip := ap(fam.client, 1000+port), ap(fam.vip, 80)
				_, out := planes[0].send(tcp(client, vip, "S", 1, 0, ""))
				f, _ := parseFlow(out)
				if m == steering.Maglev && port > 0 {
					continue // the client is remembered, and goes where it went
				}
				v, out := planes[1].send(unreachable(fam.router, fam.vip, tcp(vip, client, "A", 1, 1, ""), 8))
				require.Equal(t, Forwarded, v)
				checkQuote(t, out, f.Dst, client)
				planes[1].wellFormed(out, ap(fam.router, 0), ap(f.Dst.Addr(), 0))
			}
			require.Zero(t, planes[1].Stats().Sessions)
		}
	})
}

func TestCloseAtAgeing(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Ageing.CloseAtAgeing = clienttable.CloseBoth })
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		p.now = p.now.Add(2 * time.Minute)
		p.Step(p.now)
		_, out := p.sendAll()
		require.Len(t, out, 2)
		for _, o := range out {
			f, w := parseFlow(o)
			require.NotZero(t, w.TCPFlags&wire.RST)
			seq, _ := w.Seq(o)
			switch f.Dst {
			case client:
				p.wellFormed(o, vip, client)
				require.EqualValues(t, 501, seq)
			default:
				p.wellFormed(o, client, node)
				require.EqualValues(t, 101, seq)
			}
		}
	})
}

// TestConfigurationChangesUnderSessions exchanges everything and loses nothing.
func TestConfigurationChangesUnderSessions(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		still := func() {
			t.Helper()
			p.forwarded(tcp(client, vip, "A", 101, 501, "x"), client, node)
			p.forwarded(tcp(node, client, "A", 501, 101, "y"), vip, client)
		}
		apply := func(rules ...policy.Rule[*Service]) {
			t.Helper()
			require.NoError(t, p.Apply(table(t, rules...)))
			p.Step(p.now)
			still()
		}
		all := fam.vip.String()
		apply(rule("tcp", all+" tcp/80", p.svc)) // the same
		changed := *p.svc
		changed.Mode = clienttable.ServerPerSession
		changed.Ageing.Idle = time.Hour
		apply(rule("other-name", all+" tcp/80", &changed))
		other := &Service{Name: "other", Pool: mustPool(t, p.ids, steering.Maglev, steering.Node{Name: "new", Addr: ap(fam.n3, 9090)})}
		apply(rule("x", all, other)) // another service, another pool
		apply(rule("x", fam.vip2.String(), other))
		apply() // no virtual address at all
		p.Drain(true)
		apply(rule("tcp", all+" tcp/80", p.svc))
		v, _ := p.send(tcp(ap(fam.client2, 5), vip, "S", 1, 0, ""))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[Draining])
		p.Drain(false)
		// Nodes added, weights changed; behind the plane's back, too.
		require.NoError(t, p.SetNodes(p.pool, steering.Node{Name: "n1", Addr: ap(fam.n1, 8080), Weight: 9}, steering.Node{Name: "n2", Addr: ap(fam.n2, 8080)},
			steering.Node{Name: "n3", Addr: ap(fam.n3, 8080)}))
		still()
		_, err := p.pool.Set(steering.Node{Name: "n4", Addr: ap(fam.n3, 8081)})
		require.NoError(t, err)
		p.open(ap(fam.client2, 6)) // finds the new node
		p.Step(p.now)
		v, _ = p.send(tcp(client, vip, "A", 101, 501, "x"))
		require.Equal(t, Answered, v, "its node was removed")
	})
}
