package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
)

// cut is what a network card does to a super-packet: the packets that leave it, made with nothing of what the Plane uses.
func cut(b []byte, size int) (out [][]byte) {
	ip, proto := 20, b[9]
	if b[0]>>4 == 6 {
		ip, proto = 40, b[6]
	}
	head := ip + 8
	if proto == 6 {
		head = ip + int(b[ip+12]>>4)*4
	}
	data := b[head:]
	for i, off := 0, 0; i == 0 || off < len(data); i, off = i+1, off+size {
		end := min(off+size, len(data))
		p := append(bytes.Clone(b[:head]), data[off:end]...)
		if ip == 20 {
			binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
			binary.BigEndian.PutUint16(p[4:], binary.BigEndian.Uint16(b[4:])+uint16(i))
			binary.BigEndian.PutUint16(p[10:], 0)
			binary.BigEndian.PutUint16(p[10:], ^onesSum(p[:20]))
		} else {
			binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
		}
		at := ip + 6
		if proto == 6 {
			at = ip + 16
			binary.BigEndian.PutUint32(p[ip+4:], binary.BigEndian.Uint32(b[ip+4:])+uint32(off))
			if end < len(data) {
				p[ip+13] &^= 0x01 | 0x08 // FIN, PSH: only at the end
			}
			if i > 0 {
				p[ip+13] &^= 0x80 // CWR: only at the beginning
			}
		} else {
			binary.BigEndian.PutUint16(p[ip+4:], uint16(len(p)-ip))
		}
		binary.BigEndian.PutUint16(p[at:], 0)
		pseudo := append(bytes.Clone(p[ip-map[int]int{20: 8, 40: 32}[ip]:ip]), 0, 0, 0, 0, 0, 0, 0, proto)
		binary.BigEndian.PutUint32(pseudo[len(pseudo)-8:], uint32(len(p)-ip))
		sum := ^onesSum(append(pseudo, p[ip:]...))
		if sum == 0 && proto == 17 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(p[at:], sum)
		out = append(out, p)
	}
	return out
}

func onesSum(b []byte) uint16 {
	s := uint32(0)
	for i, c := range b {
		if i%2 == 0 {
			s += uint32(c) << 8
		} else {
			s += uint32(c)
		}
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

type superWay struct {
	forward Forward
	tunnel  Tunnel
	cross   bool // the nodes are of the other family
}

// superWays are the ways of forwarding, and for tunnels those of wrapping and the families.
func superWays() (ways []superWay) {
	add := func(f Forward, t Tunnel, cross bool) { ways = append(ways, superWay{f, t, cross}) }
	add(NAT, Tunnel{}, false)
	add(FullNAT, Tunnel{}, false)
	add(DSR, Tunnel{}, false)
	add(Route, Tunnel{}, false)
	for _, t := range []Tunnel{{}, {Kind: GRE}, {Kind: GRE, Key: 5}, {Kind: GUE}, {Kind: VXLAN, Key: 9}} {
		add(Tunnelled, t, false)
		add(Tunnelled, t, true)
	}
	return ways
}

// superCase is one super-packet.
type superCase struct {
	way             int
	v6, udp, answer bool
	flags, tos      uint8
	size            uint16
	payload         []byte
}

// testSuper gives a super-packet to one Plane and the packets into which it falls to another one. What comes out must be the same,
// once the first one's has fallen apart.
func testSuper(t *testing.T, c superCase) {
	ways := superWays()
	way := ways[c.way%len(ways)]
	fams := families2()
	fam, outer := fams[0], fams[0]
	if c.v6 {
		fam, outer = fams[1], fams[1]
	}
	if way.cross {
		outer = fams[0]
		if !c.v6 {
			outer = fams[1]
		}
	}
	size := max(48, int(c.size)%1500)
	payload := c.payload[:min(len(c.payload), 60000, 1000*size)]
	ether := way.forward == DSR
	var planes [2]*testPlane
	for i := range planes {
		planes[i] = newPlane(t, fam, func(cfg *Config, s *Service) {
			cfg.Addrs = own()
			s.Forward, s.Tunnel = way.forward, way.tunnel
			switch way.forward {
			case FullNAT:
				s.Locals = []netip.Addr{fam.elsewhere}
			case Tunnelled:
				s.Pool = mustPool(t, nil, 0, nodesOf(outer)...)
			}
			if ether {
				cfg.Link, cfg.NextHop = Link{Ethernet: true}, hopTo
			}
		})
		planes[i].w = planes[i].NewWorker(Link{Virtio: true, Ethernet: ether})
	}
	client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
	send := func(p *testPlane, b []byte, gsoType uint8) [][]byte {
		at := 0
		if ether {
			at = 14
		}
		buf := make([]byte, ReadOffset, ReadOffset+at+len(b))
		if ether {
			buf = append(buf, frame(b)...)
		} else {
			buf = append(buf, b...)
		}
		if gsoType != gsoNone {
			var v wire.View
			require.Equal(t, wire.OK, wire.Parse(b, &v))
			o := offload{virtioNeedsCsum, gsoType, uint16(at) + uint16(v.Payload), uint16(size), uint16(at) + uint16(v.L4), uint16(v.SumOff - v.L4)}
			o.write(buf[ReadOffset-virtioLen:])
			sum := wire.PseudoSum(v.Src(b), v.Dst(b), v.Proto, int(v.End-v.L4)).Fold()
			binary.BigEndian.PutUint16(buf[ReadOffset+at+int(v.SumOff):], sum)
		}
		var out [][]byte
		for _, x := range p.w.Process(p.now, [][]byte{buf}, []int{at + len(b)}, ReadOffset, nil) {
			o := readOffload(x[Headroom-virtioLen:])
			packet := bytes.Clone(x[Headroom+at:])
			switch {
			case o.gsoType != gsoNone:
				require.Equal(t, gsoType, o.gsoType)
				require.EqualValues(t, size, o.gsoSize)
				out = append(out, cut(packet, size)...)
			case o.flags&virtioNeedsCsum != 0:
				t.Fatal("a packet without a checksum")
			default:
				out = append(out, packet)
			}
		}
		return out
	}
	src, dst := client, vip
	for _, p := range planes {
		first := tcp(client, vip, "S", 100, 0, "")
		if c.udp {
			first = udp(client, vip, "first")
		}
		out := send(p, first, gsoNone)
		require.Len(t, out, 1, "%v", p.drops())
		if c.answer && (way.forward == NAT || way.forward == FullNAT) {
			f, _ := parseFlow(out[0])
			src, dst = f.Dst, f.Src
			if !c.udp {
				send(p, tcp(src, dst, "SA", 500, 101, ""), gsoNone)
			}
		}
	}
	b := udp(src, dst, string(payload))
	gso := uint8(gsoUDPL4)
	if !c.udp {
		gso = gsoTCPv4
		if c.v6 {
			gso = gsoTCPv6
		}
		seq := uint32(101)
		if src != client {
			seq = 501
		}
		b = tcp(src, dst, "A", seq, 1, string(payload))
		at := 20 + 13
		if c.v6 {
			at = 40 + 13
		}
		b[at] |= c.flags & (wire.FIN | wire.PSH | wire.CWR | 0x40 | wire.URG)
		if b[at]&wire.CWR != 0 {
			gso |= gsoECN
		}
	}
	var v wire.View
	require.Equal(t, wire.OK, wire.Parse(b, &v))
	v.SetTOS(b, c.tos)
	whole := send(planes[0], b, gso)
	var parts [][]byte
	for _, x := range cut(b, size) {
		parts = append(parts, send(planes[1], x, gsoNone)...)
	}
	require.NotEmpty(t, parts, "%v", planes[1].drops())
	require.Equal(t, len(parts), len(whole), "%v %v", planes[0].drops(), planes[1].drops())
	for i := range parts {
		require.True(t, bytes.Equal(parts[i], whole[i]), "packet %d of %d:\n%x\n%x", i, len(parts), parts[i][:min(len(parts[i]), 120)], whole[i][:min(len(whole[i]), 120)])
	}
}

// TestSuperPacketsEqualPackets: see testSuper; of every way and both families.
func TestSuperPacketsEqualPackets(t *testing.T) {
	payload := make([]byte, 5000)
	for i := range payload {
		payload[i] = byte(i * i >> 3)
	}
	for i, way := range superWays() {
		for _, v6 := range []bool{false, true} {
			for _, isUDP := range []bool{false, true} {
				for _, answer := range []bool{false, true} {
					t.Run(fmt.Sprintf("%v %v %v, IPv6 %v, UDP %v, answer %v", way.forward, way.tunnel, way.cross, v6, isUDP, answer), func(t *testing.T) {
						for _, n := range []int{1, 700, 1400, 1401, 2800, 5000} {
							testSuper(t, superCase{i, v6, isUDP, answer, 0xff, 0xb9, 1400, payload[:n]})
						}
					})
				}
			}
		}
	}
}

func FuzzSuperPackets(f *testing.F) {
	for i := range superWays() {
		f.Add(uint8(i), uint8(i), uint8(0xff), uint8(3), uint16(100), bytes.Repeat([]byte{byte(i)}, 1000))
	}
	f.Fuzz(func(t *testing.T, way, bits, flags, tos uint8, size uint16, payload []byte) {
		testSuper(t, superCase{int(way), bits&1 != 0, bits&2 != 0, bits&4 != 0, flags, tos, size, payload})
	})
}
