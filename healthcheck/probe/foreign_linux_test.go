package probe_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// packetOf builds an IP packet with right checksums.
func packetOf(src, dst netip.Addr, l gopacket.SerializableLayer, payload []byte) []byte {
	var ip gopacket.NetworkLayer
	proto := map[gopacket.LayerType]layers.IPProtocol{
		layers.LayerTypeUDP: layers.IPProtocolUDP, layers.LayerTypeTCP: layers.IPProtocolTCP, layers.LayerTypeICMPv4: layers.IPProtocolICMPv4, layers.LayerTypeICMPv6: layers.IPProtocolICMPv6,
	}[l.LayerType()]
	if src.Is4() {
		ip = &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	} else {
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	}
	switch l := l.(type) {
	case *layers.UDP:
		_ = l.SetNetworkLayerForChecksum(ip)
	case *layers.TCP:
		_ = l.SetNetworkLayerForChecksum(ip)
	case *layers.ICMPv6:
		_ = l.SetNetworkLayerForChecksum(ip)
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip.(gopacket.SerializableLayer), l, gopacket.Payload(payload)); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// udpFrom answers a datagram from an address and port.
func udpFrom(from netip.AddrPort, x tapped, payload []byte) []byte {
	return packetOf(from.Addr(), x.src.Addr(), &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(x.src.Port())}, payload)
}

// echoFrom answers an echo request from an address.
func echoFrom(from netip.Addr, x tapped) []byte {
	id, seq := binary.BigEndian.Uint16(x.payload[4:]), binary.BigEndian.Uint16(x.payload[6:])
	if from.Is4() {
		return packetOf(from, x.src.Addr(), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(0, 0), Id: id, Seq: seq}, x.payload[8:])
	}
	return packetOf(from, x.src.Addr(), &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(129, 0)}, x.payload[4:])
}

// synFrom answers a SYN from an address and port: with SYN and ACK, or with a reset.
func synFrom(from netip.AddrPort, x tapped, open bool) []byte {
	return packetOf(from.Addr(), x.src.Addr(), &layers.TCP{
		SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(x.src.Port()), Seq: 7, Ack: binary.BigEndian.Uint32(x.payload[4:]) + 1, Window: 100, SYN: open, RST: !open, ACK: true,
	}, nil)
}

// TestRepliesFromElsewhere has a host answer probes of one that is not there, from another address or port as well as from the right one. What
// comes from elsewhere, good or bad, is passed over.
func TestRepliesFromElsewhere(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	require.NoError(t, n.host.DefaultVia(netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("fd07::1")))
	ip(t, n.router, "route", "add", "blackhole", "10.9.9.0/24")
	ip(t, n.router, "-6", "route", "add", "blackhole", "fd09:9::/64")
	for _, name := range []string{"all", "eth0"} {
		require.NoError(t, n.host.Sysctl("net.ipv4.conf."+name+".rp_filter", "0"))
	}
	type answer func(from netip.AddrPort, x tapped, good bool) []byte
	dns := func(from netip.AddrPort, x tapped, good bool) []byte {
		return udpFrom(from, x, dnsAnswer(x.payload[8:], func(m *dnsmessage.Message) {
			if zoneServer(m); !good {
				m.RCode, m.Answers = dnsmessage.RCodeServerFailure, nil
			}
		}))
	}
	radius := func(from netip.AddrPort, x tapped, good bool) []byte {
		return udpFrom(from, x, radiusReply{code: map[bool]byte{true: 2, false: 3}[good], key: key}.answer(x.payload[8:]))
	}
	text := func(good, bad string) answer {
		return func(from netip.AddrPort, x tapped, ok bool) []byte {
			if ok {
				return udpFrom(from, x, []byte(good))
			}
			return udpFrom(from, x, []byte(bad))
		}
	}
	pinged := func(from netip.AddrPort, x tapped, good bool) []byte {
		if !good {
			return nil // there is no bad answer
		}
		return echoFrom(from.Addr(), x)
	}
	for name, row := range map[string]struct {
		p       healthcheck.Prober
		proto   byte
		answer  answer
		anyPort bool // the right address may answer from any
		setup   func() error
	}{
		"dns":       {probe.DNS{Name: "example.jp", Retries: -1}, unix.IPPROTO_UDP, dns, false, nil},
		"radius":    {probe.RADIUS{Key: key, RejectFails: true, Retries: -1}, unix.IPPROTO_UDP, radius, false, nil},
		"udp":       {probe.UDP{Payload: []byte("ping"), Expect: []byte("pong"), Datagrams: 1}, unix.IPPROTO_UDP, text("pong", "peng"), false, nil},
		"tftp":      {probe.TFTP{File: "x", Retries: -1}, unix.IPPROTO_UDP, text("\x00\x03\x00\x01data", "\x00\x09\x00\x01"), true, nil},
		"half-open": {probe.TCPHalfOpen{}, unix.IPPROTO_TCP, synFrom, false, nil},
		"ping by a datagram socket": {probe.ICMP{}, 0, pinged, true, func() error {
			return n.host.Sysctl("net.ipv4.ping_group_range", "0 2147483647")
		}},
		"ping by a raw socket": {probe.ICMP{}, 0, pinged, true, func() error {
			return n.host.Sysctl("net.ipv4.ping_group_range", "1 0")
		}},
	} {
		for _, a := range []string{"10.9.9.1", "fd09:9::1"} {
			t.Run(name+" "+a, func(t *testing.T) {
				if row.setup != nil {
					require.NoError(t, row.setup())
				}
				target := netip.AddrPortFrom(netip.MustParseAddr(a), 7000)
				proto := row.proto
				if proto == 0 {
					target = netip.AddrPortFrom(target.Addr(), 0)
					if proto = unix.IPPROTO_ICMP; target.Addr().Is6() {
						proto = unix.IPPROTO_ICMPV6
					}
				}
				other := netip.AddrPortFrom(target.Addr().Next(), target.Port())
				port := netip.AddrPortFrom(target.Addr(), 7001)
				elsewhere := []netip.AddrPort{other, netip.AddrPortFrom(other.Addr(), 7001)}
				if !row.anyPort {
					elsewhere = append(elsewhere, port)
				}
				mine := func(x tapped) bool {
					return x.proto == proto && x.dst == target && (proto != unix.IPPROTO_TCP || x.tcpFlags() == 2) &&
						(row.proto != 0 || x.payload[0] == 8 || x.payload[0] == 128)
				}
				probes := func(reply func(tapped) [][]byte, d time.Duration) (all []healthcheck.Result) {
					seen := newTap(t, n.router, func(x tapped) [][]byte {
						if !mine(x) {
							return nil
						}
						return reply(x)
					})
					defer seen.stop()
					for _, p := range both(t, row.p) {
						all = append(all, probeIn(t, n.host, p, target.String(), d))
					}
					require.Eventually(t, func() bool { return len(seen.to(proto, target)) > 0 }, 20*time.Second, time.Millisecond, "nobody asked")
					return all
				}
				decides := row.proto != 0 && name != "udp" // a bad answer ends the probe
				for _, good := range []bool{true, false} {
					// Nothing but what is not from the target.
					for _, res := range probes(func(x tapped) (out [][]byte) {
						for _, from := range elsewhere {
							if b := row.answer(from, x, good); b != nil {
								out = append(out, b)
							}
						}
						return out
					}, 400*time.Millisecond) {
						require.Equal(t, healthcheck.Fail, res.Verdict, fmt.Sprint(good))
						require.ErrorIs(t, res.Err, os.ErrDeadlineExceeded, fmt.Sprint(good))
					}
					// The same, and then the target's own answer, which is another one.
					for _, res := range probes(func(x tapped) (out [][]byte) {
						for _, from := range elsewhere {
							if b := row.answer(from, x, good); b != nil {
								out = append(out, b)
							}
						}
						if b := row.answer(target, x, !good); b != nil {
							out = append(out, b)
						}
						return out
					}, map[bool]time.Duration{true: 20 * time.Second, false: 400 * time.Millisecond}[decides || !good]) {
						want := healthcheck.Fail
						if !good {
							want = healthcheck.Pass
						}
						require.Equal(t, want, res.Verdict, "%v", res.Err)
						if want == healthcheck.Fail && decides {
							require.NotErrorIs(t, res.Err, os.ErrDeadlineExceeded, "the target has answered")
						}
					}
				}
			})
		}
	}
}
