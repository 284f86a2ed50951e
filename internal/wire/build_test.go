package wire

import (
	"bytes"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
)

func first(b []byte) gopacket.LayerType {
	if b[0]>>4 == 6 {
		return layers.LayerTypeIPv6
	}
	return layers.LayerTypeIPv4
}

// checkBuilt parses b, checks its sums and shows it to gopacket.
func checkBuilt(t *testing.T, b []byte) gopacket.Packet {
	t.Helper()
	var v View
	require.Equal(t, OK, Parse(b, &v))
	require.EqualValues(t, len(b), v.End)
	require.True(t, v.SumOK(b))
	require.True(t, v.HeaderSumOK(b))
	p := gopacket.NewPacket(b, first(b), gopacket.Default)
	require.Nil(t, p.ErrorLayer())
	return p
}

func tcpPacket(t *testing.T, v6 bool, tcp layers.TCP, payload string) []byte {
	var ip gopacket.NetworkLayer = ip4("192.0.2.7", "203.0.113.1", layers.IPProtocolTCP)
	if v6 {
		ip = ip6("2001:db8::7", "2001:db8:f::1", layers.IPProtocolTCP)
	}
	tcp.SrcPort, tcp.DstPort = 40000, 80
	require.NoError(t, tcp.SetNetworkLayerForChecksum(ip))
	return build(t, ip.(gopacket.SerializableLayer), &tcp, gopacket.Payload(payload))
}

func TestBuildRST(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, c := range []struct {
			name     string
			in       layers.TCP
			payload  string
			seq, ack uint32
			hasAck   bool
			none     bool
		}{
			{name: "data", in: layers.TCP{ACK: true, Seq: 100, Ack: 777}, payload: "hello", seq: 777},
			{name: "SYN", in: layers.TCP{SYN: true, Seq: 100}, ack: 101, hasAck: true},
			{name: "FIN without ACK", in: layers.TCP{FIN: true, Seq: 100}, payload: "xy", ack: 103, hasAck: true},
			{name: "RST", in: layers.TCP{RST: true, Seq: 100}, none: true},
		} {
			b := tcpPacket(t, v6, c.in, c.payload)
			var v View
			require.Equal(t, OK, Parse(b, &v))
			out := make([]byte, MaxReply)
			n := BuildRST(out, b, &v)
			if c.none {
				require.Zero(t, n)
				continue
			}
			tcp := checkBuilt(t, out[:n]).Layer(layers.LayerTypeTCP).(*layers.TCP)
			require.True(t, tcp.RST, c.name)
			require.Equal(t, c.hasAck, tcp.ACK, c.name)
			require.Equal(t, c.seq, tcp.Seq, c.name)
			require.Equal(t, c.ack, tcp.Ack, c.name)
			require.EqualValues(t, 80, tcp.SrcPort)
			require.EqualValues(t, 40000, tcp.DstPort)
			var w View
			require.Equal(t, OK, Parse(out[:n], &w))
			require.Equal(t, v.Src(b), w.Dst(out))
			require.Equal(t, v.Dst(b), w.Src(out))
		}
	}
}

func TestBuildICMPError(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := tcpPacket(t, v6, layers.TCP{ACK: true}, string(make([]byte, 1400)))
		var v, w, q View
		require.Equal(t, OK, Parse(b, &v))
		require.True(t, v.MayAnswer(b))
		out := make([]byte, MaxReply)
		typ, code, limit := uint8(ICMPUnreachable), uint8(CodeFragNeeded), maxError4
		if v6 {
			typ, code, limit = ICMPv6TooBig, 0, maxError6
		}
		n := BuildICMPError(out, b, &v, v.Dst(b), typ, code, 1480)
		require.Equal(t, limit, n)
		checkBuilt(t, out[:n])
		require.Equal(t, OK, Parse(out[:n], &w))
		require.True(t, w.Has(ICMPError))
		require.False(t, w.MayAnswer(out), "no error about an error")
		require.EqualValues(t, 1480, w.MTU(out))
		require.Equal(t, OK, ParseQuoted(w.Quote(out[:n]), &q))
		require.Equal(t, v.SrcPort, q.SrcPort)
		w.SetMTU(out, 1400, false)
		require.EqualValues(t, 1400, w.MTU(out))
		require.True(t, w.SumOK(out[:n]))
	}
}

func TestEchoReply(t *testing.T) {
	opt := ip4("192.0.2.7", "203.0.113.1", layers.IPProtocolICMPv4)
	opt.Options = []layers.IPv4Option{{OptionType: 7, OptionLength: 7, OptionData: []byte{4, 0, 0, 0, 0}}}
	v6 := ip6("2001:db8::7", "2001:db8:f::1", layers.IPProtocolICMPv6)
	icmp6 := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
	require.NoError(t, icmp6.SetNetworkLayerForChecksum(v6))
	for name, b := range map[string][]byte{
		"IPv4":    build(t, ip4("192.0.2.7", "203.0.113.1", layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 7, Seq: 9}, gopacket.Payload("ping")),
		"options": build(t, opt, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 7, Seq: 9}, gopacket.Payload("ping")),
		"IPv6":    build(t, v6, icmp6, gopacket.Payload{0, 7, 0, 9, 'p', 'i', 'n', 'g'}),
	} {
		t.Run(name, func(t *testing.T) {
			var v, w View
			require.Equal(t, OK, Parse(b, &v))
			require.True(t, v.Has(EchoAsk))
			require.EqualValues(t, 7, v.SrcPort)
			src, dst := bytes.Clone(v.Src(b)), bytes.Clone(v.Dst(b))
			out := b[v.EchoReply(b, false):]
			checkBuilt(t, out)
			require.Equal(t, OK, Parse(out, &w))
			require.True(t, w.Has(EchoAnswer))
			require.EqualValues(t, 7, w.DstPort)
			require.Equal(t, src, w.Dst(out))
			require.Equal(t, dst, w.Src(out))
			require.Equal(t, "ping", string(out[w.Payload:]))
		})
	}
}
