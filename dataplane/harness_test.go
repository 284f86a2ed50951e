package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// family has the addresses of a test in IPv4 or IPv6.
type family struct {
	name                             string
	client, client2, router          netip.Addr
	vip, vip2, n1, n2, n3, elsewhere netip.Addr
}

func families2() []family {
	a := netip.MustParseAddr
	return []family{
		{"IPv4", a("192.0.2.7"), a("192.0.2.8"), a("172.16.0.1"), a("203.0.113.1"), a("203.0.113.2"), a("10.0.0.1"), a("10.0.0.2"), a("10.0.0.3"), a("198.51.100.9")},
		{"IPv6", a("2001:db8:c::7"), a("2001:db8:c::8"), a("2001:db8:e::1"), a("2001:db8:f::1"), a("2001:db8:f::2"), a("2001:db8:a::1"), a("2001:db8:a::2"), a("2001:db8:a::3"), a("2001:db8:9::9")},
	}
}

func both(t *testing.T, f func(t *testing.T, fam family)) {
	for _, fam := range families2() {
		t.Run(fam.name, func(t *testing.T) { f(t, fam) })
	}
}

func ap(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// testPlane is a Plane with a clock that the test moves.
type testPlane struct {
	*Plane
	t    testing.TB
	fam  family
	pool *steering.Pool
	svc  *Service
	ids  *steering.IDs
	now  time.Time
	w    *Worker
}

func mustPool(t testing.TB, ids *steering.IDs, m steering.Metric, nodes ...steering.Node) *steering.Pool {
	p, err := steering.NewPool(&steering.Config{Metric: m, IDs: ids}, nodes...)
	require.NoError(t, err)
	return p
}

func rule(name, match string, s *Service) policy.Rule[*Service] {
	var m policy.Match
	if err := m.UnmarshalText([]byte(match)); err != nil {
		panic(err)
	}
	return policy.Rule[*Service]{Name: name, Match: m, Value: s}
}

func table(t testing.TB, rules ...policy.Rule[*Service]) *policy.Table[*Service] {
	tab, err := policy.Compile(nil, rules...)
	require.NoError(t, err)
	return tab
}

// newPlane has one service, TCP and UDP port 80 of fam.vip, and two nodes with port 8080.
func newPlane(t testing.TB, fam family, change ...func(*Config, *Service)) *testPlane {
	ids := new(steering.IDs)
	pool := mustPool(t, ids, steering.RoundRobin, steering.Node{Name: "n1", Addr: ap(fam.n1, 8080)}, steering.Node{Name: "n2", Addr: ap(fam.n2, 8080)})
	svc := &Service{Name: "web", Pool: pool}
	cfg := &Config{MaxSessions: 1000, MaxAssociations: 1000}
	for _, f := range change {
		f(cfg, svc)
	}
	if cfg.Policies == nil {
		cfg.Policies = table(t, rule("tcp", fam.vip.String()+" tcp/80", svc), rule("udp", fam.vip.String()+" udp/80", svc), rule("sctp", fam.vip.String()+" sctp/80", svc))
	}
	p, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return &testPlane{Plane: p, t: t, fam: fam, pool: pool, svc: svc, ids: ids, now: time.Now(), w: p.own}
}

// send gives one packet to the plane. Whatever comes out must be well formed.
func (p *testPlane) send(b []byte) (Verdict, []byte) {
	p.t.Helper()
	v, out := p.sendAll(b)
	require.LessOrEqual(p.t, len(out), 1)
	if len(out) == 0 {
		return v[0], nil
	}
	return v[0], out[0]
}

func (p *testPlane) sendAll(bs ...[]byte) ([]Verdict, [][]byte) {
	p.t.Helper()
	bufs, sizes := make([][]byte, len(bs)), make([]int, len(bs))
	for i, b := range bs {
		bufs[i] = append(make([]byte, ReadOffset), b...)
		sizes[i] = len(b)
	}
	v := make([]Verdict, len(bs))
	var out [][]byte
	for _, o := range p.w.Process(p.now, bufs, sizes, ReadOffset, v) {
		out = append(out, bytes.Clone(o[Headroom:]))
	}
	return v, out
}

func (p *testPlane) drops() map[Reason]uint64 {
	m := map[Reason]uint64{}
	for r, n := range p.Drops() {
		m[r] = n
	}
	return m
}

// forwarded sends b and wants it forwarded from src to dst, with right checksums.
func (p *testPlane) forwarded(b []byte, src, dst netip.AddrPort) []byte {
	p.t.Helper()
	v, out := p.send(b)
	require.Equal(p.t, Forwarded, v, "drops %v", p.drops())
	p.wellFormed(out, src, dst)
	return out
}

func (p *testPlane) wellFormed(out []byte, src, dst netip.AddrPort) {
	p.t.Helper()
	var view wire.View
	require.Equal(p.t, wire.OK, wire.Parse(out, &view))
	require.True(p.t, view.SumOK(out), "transport checksum")
	require.True(p.t, view.HeaderSumOK(out), "header checksum")
	f := flowOf(out, &view)
	if view.IsPing() || view.Has(wire.ICMPError) {
		src, dst = ap(src.Addr(), f.Src().Port()), ap(dst.Addr(), f.Dst().Port())
	}
	require.Equal(p.t, src, f.Src(), "source")
	require.Equal(p.t, dst, f.Dst(), "destination")
}

func ipLayer(src, dst netip.Addr, proto layers.IPProtocol) gopacket.NetworkLayer {
	if src.Is4() {
		return &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	}
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

func serialize(ls ...gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		panic(err)
	}
	return bytes.Clone(buf.Bytes())
}

// tcp builds a segment; flags as in "SA".
func tcp(src, dst netip.AddrPort, flags string, seq, ack uint32, payload string) []byte {
	ip := ipLayer(src.Addr(), dst.Addr(), layers.IPProtocolTCP)
	l := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Seq: seq, Ack: ack, Window: 1000}
	for _, f := range flags {
		switch f {
		case 'S':
			l.SYN = true
			l.Options = []layers.TCPOption{{OptionType: 2, OptionLength: 4, OptionData: []byte{5, 180}}}
		case 'A':
			l.ACK = true
		case 'F':
			l.FIN = true
		case 'R':
			l.RST = true
		case 'P':
			l.PSH = true
		}
	}
	_ = l.SetNetworkLayerForChecksum(ip)
	return serialize(ip.(gopacket.SerializableLayer), l, gopacket.Payload(payload))
}

func udp(src, dst netip.AddrPort, payload string) []byte {
	ip := ipLayer(src.Addr(), dst.Addr(), layers.IPProtocolUDP)
	l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
	_ = l.SetNetworkLayerForChecksum(ip)
	return serialize(ip.(gopacket.SerializableLayer), l, gopacket.Payload(payload))
}

// icmp builds a message: rest is the second word, payload what follows.
func icmp(src, dst netip.Addr, typ, code uint8, rest uint32, payload string) []byte {
	body := binary.BigEndian.AppendUint32(nil, rest)
	if src.Is4() {
		return serialize(ipLayer(src, dst, layers.IPProtocolICMPv4).(gopacket.SerializableLayer),
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code), Id: uint16(rest >> 16), Seq: uint16(rest)}, gopacket.Payload(payload))
	}
	ip := ipLayer(src, dst, layers.IPProtocolICMPv6)
	l := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, code)}
	_ = l.SetNetworkLayerForChecksum(ip)
	return serialize(ip.(gopacket.SerializableLayer), l, gopacket.Payload(append(body, payload...)))
}

func echo(src, dst netip.Addr, reply bool, id, seq uint16, payload string) []byte {
	typ := uint8(8)
	switch {
	case src.Is4() && reply:
		typ = 0
	case !src.Is4() && !reply:
		typ = 128
	case !src.Is4():
		typ = 129
	}
	return icmp(src, dst, typ, 0, uint32(id)<<16|uint32(seq), payload)
}

// unreachable is an ICMP error port unreachable about b, quoting n bytes behind the IP header.
func unreachable(from, to netip.Addr, b []byte, n int) []byte {
	h, typ, code := 20, uint8(3), uint8(3)
	if !from.Is4() {
		h, typ, code = 40, 1, 4
	}
	return icmp(from, to, typ, code, 0, string(b[:min(len(b), h+n)]))
}

func parseFlow(b []byte) (f struct{ Src, Dst netip.AddrPort }, v wire.View) {
	if wire.Parse(b, &v) != wire.OK {
		panic("bad packet")
	}
	k := flowOf(b, &v)
	f.Src, f.Dst = k.Src(), k.Dst()
	return f, v
}

// open does a handshake of client with the VIP and returns the node's end.
func (p *testPlane) open(client netip.AddrPort) (node netip.AddrPort) {
	p.t.Helper()
	vip := ap(p.fam.vip, 80)
	v, out := p.send(tcp(client, vip, "S", 100, 0, ""))
	require.Equal(p.t, Forwarded, v, "drops %v", p.drops())
	f, _ := parseFlow(out)
	node = f.Dst
	p.wellFormed(out, client, node)
	p.forwarded(tcp(node, client, "SA", 500, 101, ""), vip, client)
	p.forwarded(tcp(client, vip, "A", 101, 501, ""), client, node)
	return node
}

func parseQuoted(b []byte, v *wire.View) wire.Status { return wire.ParseQuoted(b, v) }

func nodesOf(fam family) []steering.Node {
	return []steering.Node{{Name: "n1", Addr: ap(fam.n1, 8080)}, {Name: "n2", Addr: ap(fam.n2, 8080)}}
}
