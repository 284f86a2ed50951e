package gso

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
)

// super is a super-packet of n payload bytes and its header.
func super(t testing.TB, v6, tcp, tagged bool, n, size int) (header, frame []byte) {
	var ls []gopacket.SerializableLayer
	header = make([]byte, HeaderLen)
	header[0] = 1
	binary.NativeEndian.PutUint16(header[4:], uint16(size))
	etherType, proto := layers.EthernetTypeIPv4, layers.IPProtocolUDP
	header[1] = typeUDP
	if tcp {
		proto, header[1] = layers.IPProtocolTCP, typeTCPv4
	}
	if v6 {
		etherType = layers.EthernetTypeIPv6
		if tcp {
			header[1] = typeTCPv6
		}
	}
	if tagged {
		ls = append(ls, &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeDot1Q},
			&layers.Dot1Q{VLANIdentifier: 7, Type: etherType})
	}
	var ip gopacket.NetworkLayer
	if v6 {
		l := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: net.ParseIP("2001:db8::1"), DstIP: net.ParseIP("2001:db8::2")}
		ls, ip = append(ls, l), l
	} else {
		l := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Id: 100, Protocol: proto, SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{192, 0, 2, 2}}
		ls, ip = append(ls, l), l
	}
	if tcp {
		l := &layers.TCP{SrcPort: 1, DstPort: 2, Seq: 1000, ACK: true, PSH: true}
		require.NoError(t, l.SetNetworkLayerForChecksum(ip))
		ls = append(ls, l)
	} else {
		l := &layers.UDP{SrcPort: 1, DstPort: 2}
		require.NoError(t, l.SetNetworkLayerForChecksum(ip))
		ls = append(ls, l)
	}
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	b := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(ls, gopacket.Payload(payload))...))
	return header, b.Bytes()
}

func TestSplit(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tcp := range []bool{false, true} {
			for _, tagged := range []bool{false, true} {
				header, frame := super(t, v6, tcp, tagged, 3001, 1000)
				var s Splitter
				n := s.Begin(header, frame, tagged)
				require.Equal(t, 4, n)
				var payload []byte
				for i := range n {
					dst := make([]byte, s.Room())
					b := dst[:s.Put(dst, i)]
					first := layers.LayerTypeIPv4
					if tagged {
						first = layers.LayerTypeEthernet
					} else if v6 {
						first = layers.LayerTypeIPv6
					}
					p := gopacket.NewPacket(b, first, gopacket.Default)
					require.Nil(t, p.ErrorLayer())
					// Computed anew, the checksums are the same.
					require.NoError(t, p.TransportLayer().(interface {
						SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
					}).SetNetworkLayerForChecksum(p.NetworkLayer()))
					again := gopacket.NewSerializeBuffer()
					require.NoError(t, gopacket.SerializePacket(again, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, p))
					require.Equal(t, again.Bytes()[:len(b)], b, "but for Ethernet's padding")
					payload = append(payload, p.TransportLayer().LayerPayload()...)
					if tagged {
						require.Equal(t, uint16(7), p.Layer(layers.LayerTypeDot1Q).(*layers.Dot1Q).VLANIdentifier)
					}
				}
				require.True(t, bytes.HasSuffix(frame, payload))
				require.Len(t, payload, 3001)
			}
		}
	}
}

func TestWhatCannotBeSplit(t *testing.T) {
	header, frame := super(t, false, true, false, 3000, 1000)
	var s Splitter
	for name, change := range map[string]func(h, f []byte){
		"no super-packet": func(h, _ []byte) { h[1] = 0 },
		"size 0":          func(h, _ []byte) { h[4], h[5] = 0, 0 },
		"other protocol":  func(h, _ []byte) { h[1] = typeUDP },
		"other family":    func(h, _ []byte) { h[1] = typeTCPv6 },
		"unknown type":    func(h, _ []byte) { h[1] = 0x7f },
		"fragment":        func(_, f []byte) { f[6] = 0x20 },
		"malformed":       func(_, f []byte) { f[0] = 0x42 },
	} {
		h, f := bytes.Clone(header), bytes.Clone(frame)
		change(h, f)
		require.Zero(t, s.Begin(h, f, false), name)
	}
	require.Zero(t, s.Begin(header, frame[:10], false))
	require.Zero(t, s.Begin(header, frame[:10], true))
}

// FuzzSplit: whatever a super-packet claims to be, nothing is read or written beyond its end.
func FuzzSplit(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		header, frame := super(f, v6, !v6, v6, 200, 64)
		f.Add(header, frame, v6)
	}
	f.Fuzz(func(t *testing.T, header, frame []byte, ethernet bool) {
		if len(header) < HeaderLen {
			return
		}
		var s Splitter
		n := s.Begin(header, frame, ethernet)
		for i := range min(n, 100) {
			dst := make([]byte, s.Room())
			if got := s.Put(dst, i); got > len(dst) {
				t.Fatal(got, len(dst))
			}
		}
	})
}
