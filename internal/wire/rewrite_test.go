package wire

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// corpus returns every IP packet of every capture.
func corpus(t testing.TB) (out [][]byte) {
	dir := testenv.Shared(t)
	for _, pattern := range []string{"packets/*.pcap", "packets/copyleft/*.pcap", "flows/*.pcap"} {
		files, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		for _, f := range files {
			if strings.Contains(f, "bigtcp") {
				continue // nanosecond magic of a length that the reader refuses
			}
			link, fs := frames(t, f)
			for _, b := range fs {
				if p, ok := packet(link, b); ok {
					out = append(out, p)
				}
			}
		}
	}
	return out
}

func randEnd(r *rand.Rand) *End {
	e := &End{Port: uint16(r.Uint32())}
	for i := range e.Addr {
		e.Addr[i] = byte(r.Uint32())
	}
	return e
}

// TestRewriteKeepsChecksums rewrites both ends of every captured packet: what was right
// stays right, what was wrong stays wrong, and rewriting back restores every byte.
func TestRewriteKeepsChecksums(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	n := 0
	for _, orig := range corpus(t) {
		var v View
		if Parse(orig, &v) != OK || v.Has(Routed) {
			continue
		}
		n++
		b := bytes.Clone(orig)
		sum, header := v.SumOK(b), v.HeaderSumOK(b)
		var src, dst End
		copy(src.Addr[16-v.addrLen:], v.Src(b))
		copy(dst.Addr[16-v.addrLen:], v.Dst(b))
		src.Port, dst.Port = v.SrcPort, v.DstPort
		w := v
		w.SetSrc(b, randEnd(r), false)
		w.SetDst(b, randEnd(r), false)
		if !v.IsPing() || slowSum(orig[v.L4:v.End]) != 0 { // of nothing but zeros, any other identifier is right
			require.Equal(t, sum, w.SumOK(b), "% x", orig[:min(len(orig), 80)])
		}
		require.Equal(t, header, w.HeaderSumOK(b), "% x", orig)
		w.SetTTL(b, w.TTL(b)-1)
		w.SetTOS(b, w.TOS(b)^0xfc)
		require.Equal(t, header, w.HeaderSumOK(b), "% x", orig)
		w.SetTTL(b, v.TTL(orig))
		w.SetTOS(b, v.TOS(orig))
		w.SetSrc(b, &src, false)
		w.SetDst(b, &dst, false)
		{
			require.True(t, equalButZeros(orig, b, &v), "% x\n% x", orig, b)
		}
	}
	require.Greater(t, n, 4000)
}

// equalButZeros compares packets; checksums compare as sums.
func equalButZeros(a, b []byte, v *View) bool {
	a, b = bytes.Clone(a), bytes.Clone(b)
	for _, at := range []uint32{v.SumOff, 10} {
		if at == 0 || at == 10 && v.Version == 6 {
			continue
		}
		if !same(binary.BigEndian.Uint16(a[at:]), binary.BigEndian.Uint16(b[at:])) {
			return false
		}
		copy(a[at:at+2], b[at:])
	}
	return bytes.Equal(a, b)
}

func TestRewritePartial(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	n := 0
	for _, b := range corpus(t) {
		b = bytes.Clone(b)
		var v View
		if Parse(b, &v) != OK || v.Has(Routed) || v.Proto != ProtoTCP && v.Proto != ProtoUDP || v.Has(Fragment) || v.Has(NoSum) {
			continue
		}
		n++
		if v.Proto == ProtoUDP {
			v.End = v.L4 + uint32(binary.BigEndian.Uint16(b[v.L4+4:]))
		}
		t4 := b[v.L4:v.End]
		binary.BigEndian.PutUint16(b[v.SumOff:], PseudoSum(v.Src(b), v.Dst(b), v.Proto, len(t4)).Fold())
		v.SetSrc(b, randEnd(r), true)
		v.SetDst(b, randEnd(r), true)
		if v.ClampMSS(b, 900, true) == MSSLowered {
			mss, ok := v.MSS(b)
			require.True(t, ok)
			require.EqualValues(t, 900, mss)
		}
		// What the hardware does: sum from the transport header on, the field included.
		sum := ^Sum(0).AddBytes(t4).Fold()
		if v.Proto == ProtoUDP && sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(b[v.SumOff:], sum)
		require.True(t, v.SumOK(b))
	}
	require.Greater(t, n, 2000)
}

func build(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...))
	return bytes.Clone(buf.Bytes())
}

func ip4(src, dst string, proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: netip.MustParseAddr(src).AsSlice(), DstIP: netip.MustParseAddr(dst).AsSlice()}
}

func ip6(src, dst string, proto layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: netip.MustParseAddr(src).AsSlice(), DstIP: netip.MustParseAddr(dst).AsSlice()}
}

func end(s string) *End {
	ap := netip.MustParseAddrPort(s)
	return &End{Addr: ap.Addr().As16(), Port: ap.Port()}
}

func TestUDPZeroChecksum(t *testing.T) {
	ip := ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolUDP)
	udp := &layers.UDP{SrcPort: 1000, DstPort: 53}
	require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
	b := build(t, ip, udp, gopacket.Payload("x"))
	binary.BigEndian.PutUint16(b[26:], 0)
	var v View
	require.Equal(t, OK, Parse(b, &v))
	require.True(t, v.Has(NoSum))
	v.SetDst(b, end("192.168.1.1:5353"), false)
	require.Zero(t, binary.BigEndian.Uint16(b[26:]), "none stays none")
	require.EqualValues(t, 5353, binary.BigEndian.Uint16(b[22:]))

	// A port for which the computed sum is zero: it is sent as ffff.
	b = build(t, ip, udp, gopacket.Payload("x"))
	require.Equal(t, OK, Parse(b, &v))
	for port := range 65536 {
		v.SetDst(b, &End{Addr: end("10.0.0.2:0").Addr, Port: uint16(port)}, false)
		require.NotZero(t, binary.BigEndian.Uint16(b[26:]))
	}
	require.True(t, v.SumOK(b))
}

func TestClampMSS(t *testing.T) {
	syn := func(opts string) []byte {
		ip := ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolTCP)
		tcp := &layers.TCP{SrcPort: 1000, DstPort: 80, SYN: true, DataOffset: uint8(5 + (len(opts)+3)/4)}
		require.NoError(t, tcp.SetNetworkLayerForChecksum(ip))
		for len(opts)%4 != 0 {
			opts += "\x00"
		}
		// Options go in raw, as the payload, with the data offset set by hand.
		b := build(t, ip, tcp, gopacket.Payload(opts))
		b[32] = byte(5+len(opts)/4) << 4
		var v View
		require.Equal(t, OK, Parse(b, &v))
		sum, _ := v.TransportSum(b)
		binary.BigEndian.PutUint16(b[v.SumOff:], sum)
		return b
	}
	for _, c := range []struct {
		name, opts string
		limit      uint16
		want       MSSResult
		out        string
	}{
		{"lowered", "\x02\x04\x05\xb4", 1380, MSSLowered, "\x02\x04\x05\x64"},
		{"never raised", "\x02\x04\x04\xb0", 1380, MSSKept, ""},
		{"equal", "\x02\x04\x05\x64", 1380, MSSKept, ""},
		{"absent", "\x01\x01\x01\x01", 1380, MSSAbsent, ""},
		{"no options", "", 1380, MSSAbsent, ""},
		{"odd place", "\x01\x02\x04\x05\xb4\x01\x01\x01", 1380, MSSLowered, "\x01\x02\x04\x05\x64\x01\x01\x01"},
		{"two", "\x02\x04\x05\xb4\x02\x04\x23\x00", 1380, MSSLowered, "\x02\x04\x05\x64\x02\x04\x05\x64"},
		{"zero", "\x02\x04\x00\x00", 1380, MSSLowered, "\x02\x04\x02\x18"},
		{"zero, low limit", "\x02\x04\x00\x00", 500, MSSLowered, "\x02\x04\x01\xf4"},
		{"after end of list", "\x00\x02\x04\x05\xb4", 1380, MSSAbsent, ""},
		{"length 0", "\x02\x00\x05\xb4", 1380, MSSMalformed, ""},
		{"length 1", "\x03\x01\x05\xb4", 1380, MSSMalformed, ""},
		{"kind at the end", "\x01\x01\x01\x02", 1380, MSSMalformed, ""},
		{"length beyond", "\x02\x06\x05\xb4", 1380, MSSMalformed, ""},
		{"length 6", "\x02\x06\x05\xb4\x00\x00", 1380, MSSMalformed, ""},
		{"kind, length, end", "\x01\x01\x02\x04", 1380, MSSMalformed, ""},
		{"broken behind the MSS", "\x02\x04\x05\xb4\x03\x00\x00\x00", 1380, MSSMalformed, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := syn(c.opts)
			before := bytes.Clone(b)
			var v View
			require.Equal(t, OK, Parse(b, &v))
			require.Equal(t, c.want, v.ClampMSS(b, c.limit, false))
			require.True(t, v.SumOK(b))
			if c.out == "" {
				require.Equal(t, before, b)
			} else {
				require.Equal(t, c.out, string(b[40:40+len(c.out)]))
			}
		})
	}
}

func TestSCTP(t *testing.T) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	b := build(t, ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolSCTP), &layers.SCTP{SrcPort: 5000, DstPort: 36412, VerificationTag: 7}, gopacket.Payload("some chunk of data  "))
	var v View
	require.Equal(t, OK, Parse(b, &v))
	before := bytes.Clone(b)
	v.FixSCTP(b, castagnoli)
	require.Equal(t, before, b, "as gopacket computes it")
	v.SetDst(b, end("10.9.9.9:1234"), false)
	v.FixSCTP(b, castagnoli)
	p := gopacket.NewPacket(b, layers.LayerTypeIPv4, gopacket.Default)
	sctp := p.Layer(layers.LayerTypeSCTP).(*layers.SCTP)
	require.EqualValues(t, 1234, sctp.DstPort)
	sum := sctp.Checksum
	v.FixSCTP(b, castagnoli)
	require.Equal(t, sum, binary.BigEndian.Uint32(b[v.L4+8:v.L4+12]), "fixed point")
}

func TestQuoted(t *testing.T) {
	for _, c := range []struct {
		name             string
		outer            gopacket.SerializableLayer
		icmp             gopacket.SerializableLayer
		inner            gopacket.NetworkLayer
		client, vip, srv string
	}{
		{name: "IPv4", outer: ip4("172.16.0.1", "10.0.0.9", layers.IPProtocolICMPv4), icmp: &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)},
			inner: ip4("192.0.2.7", "10.0.0.2", layers.IPProtocolTCP), vip: "203.0.113.1:80"},
		{name: "IPv6", outer: ip6("2001:db8::1", "2001:db8::9", layers.IPProtocolICMPv6), icmp: &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(1, 3)},
			inner: ip6("2001:db8:c::7", "2001:db8:5::2", layers.IPProtocolTCP), vip: "[2001:db8:f::1]:80"},
	} {
		for _, quoted := range []int{8, 18, 20, 40} {
			tcp := &layers.TCP{SrcPort: 40000, DstPort: 8080, ACK: true, Seq: 77}
			require.NoError(t, tcp.SetNetworkLayerForChecksum(c.inner))
			in := build(t, c.inner.(gopacket.SerializableLayer), tcp, gopacket.Payload(strings.Repeat("p", 100)))
			hlen := 20
			if c.name == "IPv6" {
				hlen = 40
				require.NoError(t, c.icmp.(*layers.ICMPv6).SetNetworkLayerForChecksum(c.outer.(*layers.IPv6)))
			}
			var rest gopacket.Payload
			if c.name == "IPv6" {
				rest = append(rest, 0, 0, 0, 0)
			}
			b := build(t, c.outer, c.icmp, append(rest, in[:hlen+quoted]...))
			var v, w View
			require.Equal(t, OK, Parse(b, &v))
			require.True(t, v.Has(ICMPError))
			require.True(t, v.SumOK(b))
			require.Equal(t, OK, ParseQuoted(v.Quote(b), &w))
			require.EqualValues(t, 8080, w.DstPort)
			v.SetQuoted(b, &w, nil, end(c.vip), false)
			v.SetDst(b, end(strings.Replace(c.vip, ":80", ":9", 1)), false)
			require.True(t, v.SumOK(b), "%s %d", c.name, quoted)
			require.True(t, v.HeaderSumOK(b))
			require.Equal(t, OK, ParseQuoted(v.Quote(b), &w))
			require.EqualValues(t, 80, w.DstPort)
			if c.name == "IPv4" {
				require.True(t, w.HeaderSumOK(v.Quote(b)))
			}
			if quoted >= 20 {
				// The quoted checksum fits the whole original packet with its new destination.
				whole := bytes.Clone(in)
				var x View
				require.Equal(t, OK, Parse(whole, &x))
				x.SetDst(whole, end(c.vip), false)
				require.Equal(t, whole[:hlen+quoted], v.Quote(b))
			}
		}
	}
}
