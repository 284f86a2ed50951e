package wire

import (
	"encoding/binary"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
)

// slow is what the obvious parser, which re-slices at every step, finds in a packet.
type slow struct {
	version, proto byte
	src, dst       string
	frag, later    bool
	off, end       int
	sport, dport   uint16
	ports          bool
}

// slowParse knows no status: ok is false for whatever it does not understand.
func slowParse(b []byte) (s slow, ok bool) {
	if len(b) < 20 {
		return s, false
	}
	s.version = b[0] >> 4
	var rest []byte
	more := false
	switch s.version {
	case 4:
		h, n := int(b[0]&15)*4, int(b[2])<<8|int(b[3])
		if h < 20 || n < h || n > len(b) {
			return s, false
		}
		s.src, s.dst, s.proto, s.end = string(b[12:16]), string(b[16:20]), b[9], n
		rest = b[h:n]
		more = b[6]&0x20 != 0
		s.off = (int(b[6]&0x1f)<<8 | int(b[7])) * 8
	case 6:
		if len(b) < 40 || len(b) < 40+(int(b[4])<<8|int(b[5])) {
			return s, false
		}
		s.end = 40 + (int(b[4])<<8 | int(b[5]))
		s.src, s.dst, s.proto = string(b[8:24]), string(b[24:40]), b[6]
		rest = b[40:s.end]
		seen, hops := false, 0
	walk:
		for {
			n := 8
			switch s.proto {
			case 0, 43, 60:
				if s.proto == 0 && hops > 0 || len(rest) < 8 {
					return s, false
				}
				n = 8 + int(rest[1])*8
			case 51:
				if len(rest) < 8 {
					return s, false
				}
				n = 8 + int(rest[1])*4
			case 44:
				if seen || len(rest) < 8 {
					return s, false
				}
				seen = true
			default:
				break walk
			}
			if hops++; len(rest) < n || hops > maxExt {
				return s, false
			}
			this := s.proto
			s.proto = rest[0]
			if this == 44 {
				more = rest[3]&1 != 0
				s.off = int(rest[2])<<8 | int(rest[3]&0xf8)
			}
			rest = rest[n:]
			if s.off > 0 {
				break
			}
		}
	default:
		return s, false
	}
	s.frag, s.later = more || s.off > 0, s.off > 0
	if s.frag && (more && len(rest)%8 != 0 || s.off+len(rest) > 65535 || len(rest) == 0) {
		return s, false
	}
	if s.later {
		return s, true
	}
	least := map[byte]int{6: 20, 17: 8, 132: 12}[s.proto]
	if s.proto == 1 && s.version == 4 || s.proto == 58 && s.version == 6 {
		least = 4
	}
	if len(rest) < least {
		return s, false
	}
	if least >= 8 {
		s.ports = true
		s.sport, s.dport = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	}
	return s, true
}

func FuzzParse(f *testing.F) {
	f.Add(build(f, ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolUDP), gopacket.Payload("\x00\x35\x00\x36\x00\x0c\x00\x00data")))
	f.Add(build(f, ip6("::1", "::2", layers.IPProtocolIPv6HopByHop), gopacket.Payload("\x2c\x00\x01\x04\x00\x00\x00\x00\x11\x00\x00\x00\x00\x00\x00\x01\x00\x35\x00\x36\x00\x0c\x00\x01data")))
	f.Add(build(f, ip6("::1", "::2", layers.IPProtocolIPv6Destination), gopacket.Payload("\x2b\x02\xc9\x10aaaaaaaaaaaaaaaa\x01\x02\x00\x00\x11\x02\x00\x01\x00\x00\x00\x00bbbbbbbbbbbbbbbb\x00\x35\x00\x36\x00\x0c\x00\x01data")))
	f.Add(build(f, ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)},
		gopacket.Payload(build(f, ip4("10.0.0.2", "10.0.0.1", layers.IPProtocolTCP), gopacket.Payload("\x00\x35\x00\x36\x00\x0c\x00\x00")))))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:len(b):len(b)]
		var v View
		got := Parse(b, &v)
		s, ok := slowParse(b)
		if got == OK && !ok {
			t.Fatalf("taken, and should not: %+v", v)
		}
		if got != OK && ok {
			// The slow one does not look into routing headers and transport headers.
			if got != BadTransport && got != BadExt && got != TinyFragment {
				t.Fatalf("refused: %v", got)
			}
		}
		if got == OK {
			g := slow{version: v.Version, proto: v.Proto, src: string(v.Src(b)), dst: string(v.Dst(b)), frag: v.Has(Fragment), later: v.Has(LaterFrag),
				off: int(v.FragOff), end: int(v.End), ports: v.Has(Ports)}
			if g.ports {
				g.sport, g.dport = v.SrcPort, v.DstPort
			}
			if g != s {
				t.Fatalf("got  %+v\nwant %+v", g, s)
			}
			exercise(t, b[:v.End:v.End], v)
		}
		if ParseQuoted(b, &v) == OK {
			v.SetSrc(b, &End{Port: 1}, false)
			v.SetDst(b, &End{Port: 2}, false)
		}
		f, s2 := ParseEthernet(b)
		if s2 == OK && f.L3 > len(b) {
			t.Fatal("beyond the frame")
		}
	})
}

// exercise calls everything that works on a parsed packet: nothing may panic, and
// checksums that were right must stay so.
func exercise(t *testing.T, b []byte, v View) {
	if v.L4 > v.Payload || v.Payload > v.End || int(v.End) > len(b) || v.SumOff != 0 && v.SumOff+2 > v.End {
		t.Fatalf("offsets %+v", v)
	}
	out := make([]byte, MaxReply)
	if n := BuildRST(out, b, &v); n > 0 {
		var w View
		if Parse(out[:n], &w) != OK || !w.SumOK(out) {
			t.Fatal("bad RST")
		}
	}
	if v.MayAnswer(b) {
		n := BuildICMPError(out, b, &v, v.Dst(b), 3, 4, 1400)
		var w View
		if Parse(out[:n], &w) != OK || !w.SumOK(out) {
			t.Fatal("bad error")
		}
	}
	sum, ok := v.TransportSum(b)
	if ok && !v.Has(Routed) {
		binary.BigEndian.PutUint16(b[v.SumOff:], sum)
		v.Mark &^= NoSum
	}
	check := func(what string) {
		if ok && !v.Has(Routed) && !v.SumOK(b) {
			t.Fatalf("checksum wrong after %s", what)
		}
	}
	if v.Has(ICMPError) {
		var w View
		if ParseQuoted(v.Quote(b), &w) == OK {
			v.SetQuoted(b, &w, &End{Addr: [16]byte{1, 15: 9}, Port: 7}, &End{Addr: [16]byte{3, 13: 9}, Port: 8}, false)
			check("SetQuoted")
		}
		v.SetMTU(b, 1300, false)
		check("SetMTU")
	}
	v.ClampMSS(b, 1000, false)
	check("ClampMSS")
	v.SetSrc(b, &End{Addr: [16]byte{1, 15: 1}, Port: 99}, false)
	v.SetDst(b, &End{Addr: [16]byte{2, 14: 1}, Port: 98}, false)
	check("SetSrc, SetDst")
	if v.Has(EchoAsk) {
		at := v.EchoReply(b, false)
		var w View
		if Parse(b[at:], &w) != OK || !v.Has(Fragment) && !v.Has(Routed) && !w.SumOK(b[at:]) {
			t.Fatal("bad echo reply")
		}
	}
}

// TestMutatedCaptures is the fuzz target's body on every capture, cut and flipped.
func TestTruncated(t *testing.T) {
	n := 0
	for i, p := range corpus(t) {
		if i%7 != 0 {
			continue
		}
		for l := 0; l <= min(len(p), 130); l++ {
			b := append([]byte(nil), p[:l]...)
			b = b[:l:l]
			var v View
			if Parse(b, &v) == OK && int(v.End) > l {
				t.Fatal("beyond the packet")
			}
			if ParseQuoted(b, &v) == OK {
				n++
				v.SetSrc(b, &End{Port: 1}, false)
				v.SetDst(b, &End{Port: 1}, false)
			}
		}
	}
	require.Greater(t, n, 1000)
}

// TestGopacketAgrees compares with gopacket on every capture it decodes without error.
func TestGopacketAgrees(t *testing.T) {
	n := 0
	for _, b := range corpus(t) {
		var v View
		if Parse(b, &v) != OK || v.Has(Fragment) {
			continue
		}
		p := gopacket.NewPacket(b, first(b), gopacket.NoCopy)
		tl := p.TransportLayer()
		if tl == nil || p.ErrorLayer() != nil || len(p.Layers()) < 2 || v.Mark&Ports == 0 || v.Has(Options) && v.Version == 6 {
			continue
		}
		switch l := p.Layers()[1].(type) {
		case *layers.TCP:
			require.Equal(t, [2]layers.TCPPort{l.SrcPort, l.DstPort}, [2]layers.TCPPort{layers.TCPPort(v.SrcPort), layers.TCPPort(v.DstPort)})
			require.EqualValues(t, len(l.Payload), v.PayloadLen())
		case *layers.UDP:
			require.Equal(t, [2]layers.UDPPort{l.SrcPort, l.DstPort}, [2]layers.UDPPort{layers.UDPPort(v.SrcPort), layers.UDPPort(v.DstPort)})
		}
		n++
	}
	require.Greater(t, n, 1500)
}

func TestExtensionChainIsBounded(t *testing.T) {
	chain := make([]byte, 0, 800)
	for range 99 {
		chain = append(chain, 60, 0, 1, 4, 0, 0, 0, 0)
	}
	chain = append(chain, 6, 0, 1, 4, 0, 0, 0, 0)
	b := build(t, ip6("::1", "::2", layers.IPProtocolIPv6Destination), gopacket.Payload(append(chain, make([]byte, 20)...)))
	var v View
	require.Equal(t, BadExt, Parse(b, &v))
}

func TestNoAllocation(t *testing.T) {
	b := tcpPacket(t, true, layers.TCP{SYN: true, Options: []layers.TCPOption{{OptionType: 2, OptionLength: 4, OptionData: []byte{5, 180}}}}, "x")
	out := make([]byte, MaxReply)
	to := end("[2001:db8::99]:8080")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		var v View
		if Parse(b, &v) != OK {
			panic("bad")
		}
		v.SetDst(b, to, false)
		v.SetSrc(b, to, false)
		v.ClampMSS(b, 1000, false)
		BuildRST(out, b, &v)
		BuildICMPError(out, b, &v, v.Dst(b), 1, 1, 0)
	}))
}

func benchPackets(b testing.TB) map[string][]byte {
	u4, u6 := ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolUDP), ip6("2001:db8::1", "2001:db8::2", layers.IPProtocolUDP)
	t4, t6 := ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolTCP), ip6("2001:db8::1", "2001:db8::2", layers.IPProtocolTCP)
	udp, tcp := &layers.UDP{SrcPort: 1, DstPort: 2}, &layers.TCP{SrcPort: 1, DstPort: 2, ACK: true}
	require.NoError(b, udp.SetNetworkLayerForChecksum(u4))
	require.NoError(b, tcp.SetNetworkLayerForChecksum(t4))
	m := map[string][]byte{"IPv4-UDP": build(b, u4, udp, gopacket.Payload("x")), "IPv4-TCP": build(b, t4, tcp, gopacket.Payload("x"))}
	require.NoError(b, udp.SetNetworkLayerForChecksum(u6))
	require.NoError(b, tcp.SetNetworkLayerForChecksum(t6))
	m["IPv6-UDP"], m["IPv6-TCP"] = build(b, u6, udp, gopacket.Payload("x")), build(b, t6, tcp, gopacket.Payload("x"))
	return m
}

func BenchmarkParse(b *testing.B) {
	for name, p := range benchPackets(b) {
		b.Run(name, func(b *testing.B) {
			var v View
			for b.Loop() {
				if Parse(p, &v) != OK {
					b.Fatal("bad")
				}
			}
		})
		b.Run(name+"/gopacket", func(b *testing.B) {
			var i4 layers.IPv4
			var i6 layers.IPv6
			var tcp layers.TCP
			var udp layers.UDP
			var pay gopacket.Payload
			parser := gopacket.NewDecodingLayerParser(first(p), &i4, &i6, &tcp, &udp, &pay)
			got := make([]gopacket.LayerType, 0, 4)
			for b.Loop() {
				if err := parser.DecodeLayers(p, &got); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSetDst(b *testing.B) {
	for name, p := range benchPackets(b) {
		b.Run(name, func(b *testing.B) {
			var v View
			if Parse(p, &v) != OK {
				b.Fatal("bad")
			}
			to := [2]*End{end("10.7.7.7:80"), end("10.8.8.8:81")}
			for i := 0; b.Loop(); i++ {
				v.SetDst(p, to[i&1], false)
			}
		})
	}
}
