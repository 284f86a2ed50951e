package tun_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
)

// Packets whose source is an address of the host itself, as the outer ones of tunnels, leave like others.
func TestFromOwnAddress(t *testing.T) {
	lb, host := namespace(t), namespace(t)
	require.NoError(t, lb.Router())
	require.NoError(t, netns.Join(
		netns.End{NS: lb, Name: "e0", Addrs: prefixes("10.82.0.1/24", "fd82::1/64")},
		netns.End{NS: host, Name: "e0", Addrs: prefixes("10.82.0.2/24", "fd82::2/64")}))
	d := open(t, lb, nil, 1)[0]
	for _, c := range []struct{ from, to string }{{"10.82.0.1", "10.82.0.2"}, {"fd82::1", "fd82::2"}} {
		t.Run(c.from, func(t *testing.T) {
			to := netip.MustParseAddr(c.to)
			server, err := host.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(to, 4789).String())
			require.NoError(t, err)
			defer server.Close()
			packet := datagram(t, net.ParseIP(c.from), net.ParseIP(c.to))
			got := make([]byte, 100)
			require.Eventually(t, func() bool { // the neighbour is not known at once
				n, err := d.Write([][]byte{append(make([]byte, headroom), packet...)}, headroom)
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.NoError(t, server.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
				k, from, err := server.ReadFrom(got)
				return err == nil && string(got[:k]) == "outer" && from.String() == net.JoinHostPort(c.from, "4000")
			}, 20*time.Second, time.Millisecond)
		})
	}
}

func datagram(t *testing.T, from, to net.IP) []byte {
	udp := &layers.UDP{SrcPort: 4000, DstPort: 4789}
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	} = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: from, DstIP: to}
	if from.To4() != nil {
		ip = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from, DstIP: to}
	}
	require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
	b := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload("outer")))
	return b.Bytes()
}
