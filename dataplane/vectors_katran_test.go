package dataplane

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

type katranVector struct {
	Suite, Vector, Description, Verdict, Relation string
	Index                                         int
	Input                                         string `json:"input_hex"`
	Expected                                      string `json:"expected_hex"`
	Note                                          string
}

// katranLeft lists what does not apply, by a part of suite and description.
var katranLeft = []struct{ suite, description, reason string }{
	{"XdpDecap", "", "a server's half: a Plane opens no tunnel"},
	{"", "inline decap", "a Plane opens no tunnel"},
	{"", "dst is not decap VIP", "a Plane opens no tunnel"},
	{"", "arp packet", "no IP packet: for the device"},
	{"", "w/ options", "a Plane forwards IPv4 options"},
	{"", "drop of IPv4 fragmented", "a Plane forwards fragments"},
	{"", "trigger PACKET TOOBIG", "a Plane sends what it may fragment in fragments"},
	{"", "no fwmark", "marks of the host's sockets are not seen"},
	{"", "LOCAL_DELIVERY", "a Plane has no server on its own host"},
}

func katranPlane(t *testing.T, tun Tunnel) *testPlane {
	a := netip.MustParseAddr
	ids := new(steering.IDs)
	v4 := mustPool(t, ids, steering.Maglev, steering.Node{Name: "r1", Addr: ap(a("10.0.0.1"), 0)}, steering.Node{Name: "r2", Addr: ap(a("10.0.0.2"), 0)}, steering.Node{Name: "r3", Addr: ap(a("10.0.0.3"), 0)})
	v6 := mustPool(t, ids, steering.Maglev, steering.Node{Name: "s1", Addr: ap(a("fc00::1"), 0)}, steering.Node{Name: "s2", Addr: ap(a("fc00::2"), 0)}, steering.Node{Name: "s3", Addr: ap(a("fc00::3"), 0)})
	none := mustPool(t, ids, steering.Maglev)
	svc := func(name string, pool *steering.Pool) *Service {
		return &Service{Name: name, Pool: pool, Forward: Tunnelled, Tunnel: tun, MidStream: Reselect}
	}
	s4, s6, empty := svc("v4", v4), svc("v6", v6), svc("empty", none)
	return newPlane(t, families2()[0], func(c *Config, _ *Service) {
		c.Addrs = own()
		c.Policies = table(t,
			rule("1u", "10.200.1.1 udp/80", s4), rule("1t", "10.200.1.1 tcp/80", s4), rule("2", "10.200.1.2 tcp", s4), rule("3", "10.200.1.3 tcp/80", s6),
			rule("4", "10.200.1.4 tcp", s4), rule("5", "10.200.1.5 udp/443", s4), rule("6", "10.200.1.6 udp", s4),
			rule("99", "10.200.1.99 tcp/80", empty), rule("61", "fc00:1::1 tcp/80", s6), rule("62", "fc00:1::2 udp/443", s6), rule("611", "fc00:1::11 udp/80", empty))
	})
}

func TestVectorsKatran(t *testing.T) {
	testenv.SharedFile(t, "packets/copyleft/katran_config.json")
	var y tally
	planes := map[string]*testPlane{}
	real := map[string]netip.Addr{}
	kinds := map[string]int{}
next:
	for _, v := range jsonLines[katranVector](t, "packets/copyleft/katran_vectors.jsonl") {
		for _, l := range katranLeft {
			if strings.Contains(v.Suite, l.suite) && strings.Contains(v.Description, l.description) {
				y.skip(l.reason)
				continue next
			}
		}
		y.ran++
		gue := strings.Contains(v.Suite, "Gue") || strings.Contains(v.Vector, "Gue")
		var tun Tunnel
		if gue {
			tun = Tunnel{Kind: GUE, Port: 9886}
		}
		p := planes[v.Suite+v.Vector]
		if p == nil {
			p = katranPlane(t, tun)
			planes[v.Suite+v.Vector] = p
		}
		in, want := packetOf(unhex(t, v.Input)), packetOf(unhex(t, v.Expected))
		name := v.Suite + " " + v.Vector + " " + v.Description
		if strings.Contains(v.Description, "dest-unreachabe") || strings.Contains(v.Description, "packet-too-big") {
			// The connection that the error is about: katran needs none, since it hashes what is quoted.
			p.quotedSession(in)
		}
		before := p.drops()
		verdict, out := p.sendAll(in)
		dropped := func(r Reason) {
			t.Helper()
			require.Equal(t, Dropped, verdict[0], name)
			require.Equal(t, before[r]+1, p.drops()[r], "%s: %v", name, p.drops())
		}
		switch {
		case v.Relation == "encapsulated":
			kinds["encapsulated"]++
			require.Equal(t, Forwarded, verdict[0], "%s: %v", name, p.drops())
			require.Len(t, out, 1, name)
			to := requireEncapsulated(t, name, in, out[0], want, tun)
			flow := v.Suite + v.Vector + string(in[:min(len(in), 24)][12:])
			if in[0]>>4 == 6 {
				flow = v.Suite + v.Vector + string(in[8:44])
			}
			if old, ok := real[flow]; ok {
				require.Equal(t, old, to, name)
			}
			if in[9] != wire.ProtoICMP && in[6] != wire.ProtoICMPv6 {
				real[flow] = to
			}
		case strings.Contains(v.Description, "echo-request"):
			kinds["echo"]++
			require.Equal(t, Answered, verdict[0], name)
			requireSameButTTL(t, name, want, out[0])
		case v.Relation == "icmp-reply-or-error":
			kinds["too big"]++
			requireTooBig(t, name, in, out, want, tun)
		case strings.Contains(v.Description, "drop of IPv6 frag"):
			kinds["later fragment"]++ // the TCP header, taken for a fragment header, says so: it waits for the first
			require.Equal(t, Held, verdict[0], name)
			require.Empty(t, out, name)
		case strings.Contains(v.Description, "not equal to any configured VIP"):
			kinds["no policy"]++
			dropped(NoPolicy) // the address is a VIP's, the port is none: katran leaves it to the host
		case strings.Contains(v.Description, "not initi"):
			kinds["no node"]++
			dropped(NoNode)
		default:
			kinds["passed"]++
			require.Equal(t, Passed, verdict[0], name)
			require.Equal(t, [][]byte{want}, out, name)
		}
	}
	require.Equal(t, 109, y.ran)
	require.Equal(t, map[string]int{"encapsulated": 83, "echo": 4, "too big": 8, "later fragment": 2, "no policy": 4, "no node": 2, "passed": 6}, kinds)
	require.Equal(t, map[string]int{
		"a server's half: a Plane opens no tunnel": 10, "a Plane opens no tunnel": 10, "no IP packet: for the device": 2, "a Plane forwards IPv4 options": 2,
		"a Plane forwards fragments": 2, "a Plane sends what it may fragment in fragments": 1, "marks of the host's sockets are not seen": 1,
		"a Plane has no server on its own host": 1,
	}, y.left)
}

// quotedSession begins the session of the packet that an ICMP error quotes.
func (p *testPlane) quotedSession(b []byte) {
	_, v := parseFlow(b)
	q := v.Quote(b)
	var w wire.View
	require.Equal(p.t, wire.OK, wire.ParseQuoted(q, &w))
	f := flowOf(q, &w)
	verdict, _ := p.send(tcp(f.Dst(), f.Src(), "S", 1, 0, ""))
	if w.Proto == wire.ProtoUDP {
		verdict, _ = p.send(udp(f.Dst(), f.Src(), ""))
	}
	require.Equal(p.t, Forwarded, verdict, p.drops())
}

func requireEncapsulated(t *testing.T, name string, in, out, want []byte, tun Tunnel) netip.Addr {
	t.Helper()
	v6 := out[0]>>4 == 6
	over := wire.IPv4Len
	var to netip.Addr
	proto, tos := out[9], out[1]
	if v6 {
		over, proto, to, tos = wire.IPv6Len, out[6], netip.AddrFrom16([16]byte(out[24:40])), out[0]<<4|out[1]>>4
	} else {
		to = netip.AddrFrom4([4]byte(out[16:20]))
		require.Equal(t, uint16(0xffff), wire.Sum(0).AddBytes(out[:20]).Fold(), name)
	}
	inTOS := in[1]
	if in[0]>>4 == 6 {
		inTOS = in[0]<<4 | in[1]>>4
	}
	require.Equal(t, inTOS, tos, name)
	if want[0]>>4 == out[0]>>4 {
		wantProto := want[9]
		if v6 {
			wantProto = want[6]
		}
		require.Equal(t, wantProto, proto, name)
	}
	if tun.Kind == GUE {
		require.EqualValues(t, wire.ProtoUDP, proto, name)
		require.Equal(t, tun.Port, binary.BigEndian.Uint16(out[over+2:]), name)
		require.EqualValues(t, len(out)-over, binary.BigEndian.Uint16(out[over+4:]), name)
		over += 12
	}
	require.Equal(t, in, out[over:], name)
	require.True(t, netip.MustParsePrefix("10.0.0.0/30").Contains(to) || netip.MustParsePrefix("fc00::/126").Contains(to), "%s: %v", name, to)
	return to
}

// requireSameButTTL wants b to be like want, but for the TTL, the identification and what they do to the header checksum.
func requireSameButTTL(t *testing.T, name string, want, b []byte) {
	t.Helper()
	require.Len(t, b, len(want), name)
	x, y := append([]byte{}, want...), append([]byte{}, b...)
	for _, z := range [][]byte{x, y} {
		if z[0]>>4 == 4 {
			clear(z[4:9]) // identification and flags, too: a reply may choose its own
			z[10], z[11] = 0, 0
		} else {
			z[7] = 0
		}
	}
	require.Equal(t, x, y, name)
}

// requireTooBig wants the sender told of an MTU with a quotation, where it forbids fragments, and the packet sent
// all the same, in fragments. Katran tells of an MTU without the room for its own header, and from the virtual address.
func requireTooBig(t *testing.T, name string, in []byte, out [][]byte, want []byte, tun Tunnel) {
	t.Helper()
	over := tun.wire()
	told, fragments := 0, 0
	for _, b := range out {
		_, v := parseFlow(b)
		require.True(t, v.HeaderSumOK(b), name)
		if !v.Has(wire.ICMPError) {
			require.LessOrEqual(t, len(b), 1500, name)
			fragments++
			continue
		}
		told++
		require.True(t, v.SumOK(b), name)
		_, wv := parseFlow(want)
		require.Equal(t, wv.Dst(want), v.Dst(b), name)
		require.Equal(t, want[wv.L4:wv.L4+2], b[v.L4:v.L4+2], "%s: type and code", name)
		require.EqualValues(t, max(minMTU6, 1500-over.Overhead(v.Version == 6)), v.MTU(b), name)
		n := min(len(v.Quote(b)), len(wv.Quote(want)))
		require.Greater(t, n, 28, name)
		require.Equal(t, wv.Quote(want)[:n], v.Quote(b)[:n], name)
	}
	require.Equal(t, 2, fragments, name)
	if in[0]>>4 == 6 || in[6]&0x40 != 0 {
		require.Equal(t, 1, told, name)
	} else {
		require.Zero(t, told, name)
	}
}

// TestEchoReplyOfZeros: the checksum of a message of nothing but zeros is 0xffff; 0 would be wrong.
func TestEchoReplyOfZeros(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	for _, payload := range []string{"", "\x00\x00\x00"} {
		v, out := p.send(echo(fam.client, fam.vip, false, 0, 0, payload))
		require.Equal(t, Answered, v)
		require.Equal(t, []byte{0, 0, 0xff, 0xff, 0, 0, 0, 0}, out[20:28])
	}
}
