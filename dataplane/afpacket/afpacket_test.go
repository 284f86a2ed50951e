package afpacket

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

func TestConfigFaultsAllAtOnce(t *testing.T) {
	_, err := (&Config{Interfaces: []string{"eth0", "eth0", "a-name-that-is-too-long"}, BatchSize: 5000, ReceiveBuffer: -1}).withDefaults()
	require.ErrorContains(t, err, `Interfaces[1]: "eth0": named twice`)
	require.ErrorContains(t, err, `Interfaces[2]: "a-name-that-is-too-long": want 1 to 15 characters`)
	require.ErrorContains(t, err, `BatchSize: 5000: want 1 to 1024`)
	require.ErrorContains(t, err, `ReceiveBuffer: -1`)
	_, err = (*Config)(nil).withDefaults()
	require.ErrorContains(t, err, "Interfaces: empty")
	c, err := (&Config{Interfaces: []string{"eth0"}}).withDefaults()
	require.NoError(t, err)
	require.Equal(t, 64, c.BatchSize)
}

var (
	mac    = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	client = net.HardwareAddr{2, 0, 0, 0, 0, 9}
	vip4   = netip.MustParseAddr("192.0.2.80")
	vip6   = netip.MustParseAddr("2001:db8::80")
)

func vips(t *testing.T) *vipSet {
	t.Helper()
	s, err := newVIPSet([]netip.Addr{vip4, vip6})
	require.NoError(t, err)
	return s
}

func serialize(t *testing.T, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...))
	return b.Bytes()
}

func arpRequest(t *testing.T, target netip.Addr, vlan uint16) []byte {
	eth := &layers.Ethernet{SrcMAC: client, DstMAC: net.HardwareAddr{255, 255, 255, 255, 255, 255}, EthernetType: layers.EthernetTypeARP}
	arp := &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
		SourceHwAddress: client, SourceProtAddress: []byte{192, 0, 2, 9}, DstHwAddress: make([]byte, 6), DstProtAddress: target.AsSlice()}
	if vlan != 0 {
		eth.EthernetType = layers.EthernetTypeDot1Q
		return serialize(t, eth, &layers.Dot1Q{VLANIdentifier: vlan, Type: layers.EthernetTypeARP}, arp)
	}
	return serialize(t, eth, arp)
}

func TestARPAnswer(t *testing.T) {
	s := vips(t)
	for _, vlan := range []uint16{0, 10} {
		b, ok := s.reply(nil, arpRequest(t, vip4, vlan), mac)
		require.True(t, ok)
		p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
		require.Nil(t, p.ErrorLayer())
		eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		require.Equal(t, client, eth.DstMAC)
		require.Equal(t, mac, eth.SrcMAC)
		if vlan != 0 {
			require.Equal(t, vlan, p.Layer(layers.LayerTypeDot1Q).(*layers.Dot1Q).VLANIdentifier)
		}
		arp := p.Layer(layers.LayerTypeARP).(*layers.ARP)
		require.Equal(t, uint16(layers.ARPReply), arp.Operation)
		require.Equal(t, []byte(mac), arp.SourceHwAddress)
		require.Equal(t, vip4.AsSlice(), arp.SourceProtAddress)
		require.Equal(t, []byte(client), arp.DstHwAddress)
	}
	_, ok := s.reply(nil, arpRequest(t, netip.MustParseAddr("192.0.2.81"), 0), mac)
	require.False(t, ok, "another's address")
	reply := arpRequest(t, vip4, 0)
	reply[21] = 2
	_, ok = s.reply(nil, reply, mac)
	require.False(t, ok, "an ARP reply")
}

func solicitation(t *testing.T, src, target netip.Addr) []byte {
	ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolICMPv6, HopLimit: 255, SrcIP: src.AsSlice(), DstIP: net.ParseIP("ff02::1:ff00:80")}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0)}
	require.NoError(t, icmp.SetNetworkLayerForChecksum(ip))
	return serialize(t, &layers.Ethernet{SrcMAC: client, DstMAC: net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 0x80}, EthernetType: layers.EthernetTypeIPv6}, ip, icmp,
		&layers.ICMPv6NeighborSolicitation{TargetAddress: target.AsSlice()})
}

func TestNeighbourAnswer(t *testing.T) {
	s := vips(t)
	src := netip.MustParseAddr("2001:db8::9")
	b, ok := s.reply(nil, solicitation(t, src, vip6), mac)
	require.True(t, ok)
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	require.Nil(t, p.ErrorLayer())
	ip := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	require.Equal(t, src.AsSlice(), []byte(ip.DstIP))
	require.Equal(t, vip6.AsSlice(), []byte(ip.SrcIP))
	require.Equal(t, uint8(255), ip.HopLimit)
	na := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
	require.True(t, na.Solicited())
	require.True(t, na.Override())
	require.Equal(t, vip6.AsSlice(), []byte(na.TargetAddress))
	require.Equal(t, []byte(mac), na.Options[0].Data)
	require.Zero(t, icmp6Checksum(b[22:54], b[54:]))

	// Duplicate address detection is answered to all nodes.
	b, ok = s.reply(nil, solicitation(t, netip.IPv6Unspecified(), vip6), mac)
	require.True(t, ok)
	require.Equal(t, []byte{0x33, 0x33, 0, 0, 0, 1}, b[:6])
	require.Equal(t, net.ParseIP("ff02::1"), net.IP(b[38:54]))

	bad := solicitation(t, src, vip6)
	bad[len(bad)-1]++
	_, ok = s.reply(nil, bad, mac)
	require.False(t, ok, "a wrong checksum or another's address")
	routed := solicitation(t, src, vip6)
	routed[21] = 64
	_, ok = s.reply(nil, routed, mac)
	require.False(t, ok, "hop limit not 255: it came through a router")
}

// TestVectorsLwaftr: of the pairs of an AFTR's inputs and outputs those with solicitations: one for its address is answered, one for another is not. The AFTR says that it is a
// router; this device, that the address may have moved here (RFC 4861, 4.4).
func TestVectorsLwaftr(t *testing.T) {
	f, err := os.Open(testenv.SharedFile(t, "packets/snabb_lwaftr_pairs.jsonl"))
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for i := 0; lines.Scan(); i++ {
		if i != 3 && i != 4 {
			continue
		}
		var pair struct {
			In  []string `json:"in_v6_hex"`
			Out []string `json:"out_v6_hex"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &pair))
		in, err := hex.DecodeString(pair.In[0])
		require.NoError(t, err)
		own := netip.MustParseAddr("8:9:a:b:c:d:e:f")
		s, err := newVIPSet([]netip.Addr{own})
		require.NoError(t, err)
		got, ok := s.reply(nil, in, []byte{0x22, 0x22, 0x22, 0x22, 0x22, 0x22})
		require.Equal(t, i == 3, ok)
		if !ok {
			require.Empty(t, pair.Out)
			continue
		}
		want, err := hex.DecodeString(pair.Out[0])
		require.NoError(t, err)
		require.EqualValues(t, 0xc0, want[58])
		require.EqualValues(t, 0x60, got[58])
		require.Zero(t, icmp6Checksum(got[22:54], got[54:]))
		for _, b := range [][]byte{want, got} {
			b[56], b[57], b[58] = 0, 0, 0
		}
		require.Equal(t, want, got)
	}
	require.NoError(t, lines.Err())
}

func TestAnnouncements(t *testing.T) {
	frames := vips(t).announcements(mac)
	require.Len(t, frames, 2)
	for _, f := range frames {
		p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
		require.Nil(t, p.ErrorLayer())
	}
	// Only what is new is announced again.
	more, err := newVIPSet([]netip.Addr{vip4, vip6, netip.MustParseAddr("192.0.2.81")})
	require.NoError(t, err)
	require.Len(t, more.without(vips(t)).announcements(mac), 1)
	require.Empty(t, vips(t).without(more).announcements(mac))
	require.Len(t, more.without(nil).announcements(mac), 3)
	_, err = newVIPSet([]netip.Addr{{}, netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("::1")})
	require.ErrorContains(t, err, "want a unicast address")
}

func TestInsertTag(t *testing.T) {
	b := make([]byte, 10+14+20+tagLen)
	b[0], b[1] = 1, 1
	binary.NativeEndian.PutUint16(b[2:], 54)
	binary.NativeEndian.PutUint16(b[6:], 34)
	for i := range 34 {
		b[10+i] = byte(i)
	}
	insertTag(b, 0x88a8, 0x2005)
	require.Equal(t, uint16(38), binary.NativeEndian.Uint16(b[6:]), "csum_start")
	require.Equal(t, uint16(58), binary.NativeEndian.Uint16(b[2:]), "hdr_len")
	f := b[10:]
	require.Equal(t, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x88, 0xa8, 0x20, 0x05, 12, 13, 14}, f[:19])
	require.Equal(t, byte(33), f[37])
}

func FuzzReply(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(make([]byte, 12), 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1))
	f.Add(append(make([]byte, 12), 0x81, 0x00, 0, 5, 0x86, 0xdd, 0x60))
	s, err := newVIPSet([]netip.Addr{vip4, vip6})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, frame []byte) {
		b, ok := s.reply(nil, frame, mac)
		if ok && gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default).ErrorLayer() != nil {
			t.Fatalf("malformed answer % x to % x", b, frame)
		}
	})
}
