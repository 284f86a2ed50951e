package dataplane

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// What a Plane sends, read by Wireshark's dissector: it verifies every checksum, opens every tunnel and puts all fragments together.

// sharkFields are what is asked of each packet. Where headers lie within each other, a field has several values, the outermost first.
var sharkFields = []string{
	"frame.protocols", "ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "gre.key", "gre.proto", "vxlan.vni", "vxlan.flags", "eth.dst", "tcp.dstport", "udp.dstport", "sctp.dstport",
	"tcp.payload", "udp.payload", "tcp.options.mss_val", "icmp.type", "icmp.mtu", "icmpv6.type", "icmpv6.mtu", "ip.dsfield", "ipv6.tclass",
	"ip.checksum.status", "tcp.checksum.status", "udp.checksum.status", "sctp.checksum.status", "icmp.checksum.status", "icmpv6.checksum.status",
	"ip.reassembled.length", "ipv6.reassembled.length", "_ws.malformed", "_ws.expert.message",
}

// shark collects packets, and what the dissector is to say of them.
type shark struct {
	file   bytes.Buffer
	w      *pcapgo.Writer
	n      int
	checks map[int]sharkCheck // by the number of the packet
	broken map[int]string     // the field that says so
}

type sharkCheck struct {
	what string
	want map[string]string
}

// add adds the packets of one case; want is what is found in the last one, with which those before it are complete.
func (s *shark) add(t *testing.T, what string, want map[string]string, packets ...[]byte) {
	t.Helper()
	require.NotEmpty(t, packets, what)
	for _, b := range packets {
		require.NoError(t, s.w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1_800_000_000, int64(s.n)*1000), CaptureLength: len(b), Length: len(b)}, b))
		s.n++
	}
	s.checks[s.n] = sharkCheck{what, want}
}

// addBroken adds a packet with one bit changed, which a field must tell: else the others prove nothing.
func (s *shark) addBroken(t *testing.T, field string, b []byte, at int) {
	t.Helper()
	b = bytes.Clone(b)
	b[at] ^= 4
	s.add(t, "broken", nil, b)
	s.broken[s.n] = field
}

// read has the dissector look at all of it, and checks what it says.
func (s *shark) read(t *testing.T) {
	t.Helper()
	args := []string{"-r", "-", "-T", "fields", "-E", "separator=|", "-E", "occurrence=a", "-E", "aggregator=,"}
	for _, o := range []string{
		"ip.check_checksum:TRUE", "tcp.check_checksum:TRUE", "udp.check_checksum:TRUE", "sctp.checksum:CRC-32c", "ip.defragment:TRUE", "ipv6.defragment:TRUE",
		"tcp.analyze_sequence_numbers:FALSE", "tcp.desegment_tcp_streams:FALSE",
	} {
		args = append(args, "-o", o)
	}
	for _, f := range sharkFields {
		args = append(args, "-e", f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, testenv.NeedServers(t, "tshark")[0], args...)
	c.Stdin = &s.file
	out, err := c.Output()
	require.NoError(t, err)
	rows := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	require.Len(t, rows, s.n)
	for i, row := range rows {
		got := map[string]string{}
		for k, v := range strings.Split(row, "|") {
			if v != "" {
				got[sharkFields[k]] = v
			}
		}
		if field := s.broken[i+1]; field != "" {
			require.Contains(t, strings.Split(got[field], ","), "0", "packet %d: %s: %v", i+1, field, got)
			continue
		}
		text := strings.ToLower(got["_ws.expert.message"])
		for _, bad := range []string{"malformed", "checksum", "overlap", "bogus", "too long", "too short", "mismatch", "exceeds"} {
			require.NotContains(t, text, bad, "packet %d: %v", i+1, got)
		}
		require.Empty(t, got["_ws.malformed"])
		for field, v := range got {
			if strings.HasSuffix(field, ".status") {
				require.NotContains(t, strings.Split(v, ","), "0", "packet %d: %s: %v", i+1, field, got)
			}
		}
		if c, ok := s.checks[i+1]; ok {
			// Of the layers, what counts are the protocols.
			var chain []string
			for _, p := range strings.Split(got["frame.protocols"], ":") {
				if !slices.Contains([]string{"raw", "data", "ethertype", "ipv6.fraghdr", "ipv6.hopopts", "ipv6.dstopts"}, p) {
					chain = append(chain, p)
				}
			}
			got["frame.protocols"] = strings.Join(chain, ":")
			for field, want := range c.want {
				require.Equal(t, want, got[field], "%s: packet %d: %s: %v", c.what, i+1, field, got)
			}
		}
	}
}

// sharkTunnels are all ways to put a packet into another.
func sharkTunnels() []Tunnel {
	return []Tunnel{{}, {Kind: GRE}, {Kind: GRE, Key: 0xdeadbeef}, {Kind: GUE, Port: 6080}, {Kind: VXLAN, Key: 0xabcdef, Port: 4789, NodeMAC: [6]byte{2, 0, 0, 0, 0, 9}}}
}

// number makes an address of a family's by its last byte.
func (f family) number(a netip.Addr, n byte) netip.Addr {
	b := a.As16()
	b[15] = n
	if f.client.Is4() {
		return netip.AddrFrom16(b).Unmap()
	}
	return netip.AddrFrom16(b)
}

func ipName(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ipv6"
}

// ends adds the addresses of headers within each other, from outside in.
func ends(want map[string]string, pairs ...[2]netip.Addr) map[string]string {
	for _, p := range pairs {
		for i, f := range []string{".src", ".dst"} {
			f = ipName(p[0]) + f
			want[f] = strings.TrimPrefix(want[f]+","+p[i].String(), ",")
		}
	}
	return want
}

// TestWiresharkAgrees has one Plane with every way of forwarding, of and to both families, deal with every kind of packet.
func TestWiresharkAgrees(t *testing.T) {
	testenv.NeedServers(t, "tshark")
	s := &shark{checks: map[int]sharkCheck{}, broken: map[int]string{}}
	s.w = pcapgo.NewWriter(&s.file)
	require.NoError(t, s.w.WriteFileHeader(65536, layers.LinkTypeRaw))
	type tunnelTo struct {
		Tunnel
		fam       family
		vip, node netip.Addr
	}
	var tunnels []tunnelTo
	locals := map[bool]netip.Addr{true: netip.MustParseAddr("10.9.9.9"), false: netip.MustParseAddr("2001:db8:99::9")}
	p := newPlane(t, families2()[0], func(c *Config, _ *Service) {
		c.Addrs, c.MaxSessions = own(), 10000
		var rules []policy.Rule[*Service]
		ids := new(steering.IDs)
		service := func(vip, node netip.Addr, s Service) {
			s.Name = vip.String()
			s.Pool = mustPool(t, ids, steering.Maglev, steering.Node{Name: "to " + s.Name, Addr: ap(node, 0)})
			rules = append(rules, rule(s.Name, s.Name, &s))
		}
		for _, fam := range families2() {
			service(fam.vip, fam.n1, Service{Forward: NAT, MTU: 1400})
			service(fam.vip2, fam.n2, Service{Forward: FullNAT, Locals: []netip.Addr{locals[fam.vip.Is4()]}})
			for i, tun := range sharkTunnels() {
				for k, outer := range families2() {
					n := byte(100 + 2*i + k)
					to := tunnelTo{tun, fam, fam.number(fam.vip, n), outer.number(outer.n1, n+100*byte(k))}
					tunnels = append(tunnels, to)
					service(to.vip, to.node, Service{Forward: Tunnelled, Tunnel: tun})
				}
			}
		}
		c.Policies = table(t, rules...)
	})
	plain, virtio := p.w, p.NewWorker(Link{Virtio: true})

	// Tunnels.
	for _, x := range tunnels {
		name := fmt.Sprintf("%v, %s in %s", x.Tunnel, ipName(x.vip), ipName(x.node))
		client, vip := ap(x.fam.client, 40000), ap(x.vip, 7777)
		outer := [2]netip.Addr{own()[0], x.node}
		if x.node.Is6() {
			outer[0] = own()[1]
		}
		tw := x.wire()
		over := tw.Overhead(x.node.Is6())
		add := func(what string, want map[string]string, out [][]byte) {
			t.Helper()
			what = name + ": " + what
			inner := want["frame.protocols"]
			ends(want, outer, [2]netip.Addr{x.fam.client, x.vip})
			switch x.Kind {
			case IPIP:
				want["frame.protocols"] = ipName(x.node) + ":" + ipName(x.vip) + ":" + inner
			case GRE:
				want["frame.protocols"] = ipName(x.node) + ":gre:" + ipName(x.vip) + ":" + inner
				want["gre.proto"] = map[string]string{"ip": "0x0800", "ipv6": "0x86dd"}[ipName(x.vip)]
				if want["gre.key"] = ""; x.Key != 0 {
					want["gre.key"] = "0xdeadbeef"
				}
			case VXLAN:
				want["frame.protocols"] = ipName(x.node) + ":udp:vxlan:eth:" + ipName(x.vip) + ":" + inner
				want["vxlan.vni"], want["vxlan.flags"], want["eth.dst"] = "11259375", "0x0800", "02:00:00:00:00:09"
				for _, f := range []string{"udp.dstport", "udp.payload"} {
					if v, ok := want[f]; ok && f == "udp.dstport" {
						want[f] = "4789," + v
					} else {
						delete(want, f) // the tunnel's holds everything
					}
				}
			case GUE:
				// Wireshark knows the header not: what it takes for the payload is that, and the inner packet, which it then sees by itself.
				whole := out[0]
				if len(out) > 1 {
					whole = join(t, slices.Clone(out))
				}
				require.Equal(t, []byte{0, map[bool]byte{true: wire.ProtoIPv4, false: wire.ProtoIPv6}[x.vip.Is4()], 0, 0}, whole[over-4:over], what)
				s.add(t, what+", outer", ends(map[string]string{"frame.protocols": ipName(x.node) + ":udp", "udp.dstport": "6080", "udp.payload": hex.EncodeToString(whole[over-4:])}, outer), out...)
				want["frame.protocols"] = ipName(x.vip) + ":" + inner
				for _, f := range []string{"ip.src", "ip.dst", "ipv6.src", "ipv6.dst"} {
					delete(want, f)
				}
				s.add(t, what+", inner", ends(want, [2]netip.Addr{x.fam.client, x.vip}), whole[over:])
				return
			}
			s.add(t, what, want, out...)
		}
		send := func(bs ...[]byte) (out [][]byte) {
			t.Helper()
			_, out = p.sendAll(bs...)
			require.NotEmpty(t, out, "%s: %v", name, p.drops())
			return out
		}
		mss := min(1460, 1500-over-map[bool]int{true: 40, false: 60}[x.vip.Is4()])
		add("SYN", map[string]string{"frame.protocols": "tcp", "tcp.dstport": "7777", "tcp.options.mss_val": fmt.Sprint(mss)}, send(tcp(client, vip, "S", 100, 0, "")))
		add("segment", map[string]string{"frame.protocols": "tcp", "tcp.payload": hex.EncodeToString([]byte("a segment"))}, send(tcp(client, vip, "AP", 101, 501, "a segment")))
		marked := udp(client, vip, "a datagram")
		_, v := parseFlow(marked)
		v.SetTOS(marked, 46<<2|1)
		want := map[string]string{"frame.protocols": "udp", "udp.dstport": "7777", "udp.payload": hex.EncodeToString([]byte("a datagram"))}
		tos := map[string]string{"ip": "0xb9", "ipv6": "0x000000b9"}
		if x.Kind == GUE {
			want[map[string]string{"ip": "ip.dsfield", "ipv6": "ipv6.tclass"}[ipName(x.vip)]] = tos[ipName(x.vip)]
		} else if ipName(x.vip) == ipName(x.node) {
			want[map[string]string{"ip": "ip.dsfield", "ipv6": "ipv6.tclass"}[ipName(x.vip)]] = tos[ipName(x.vip)] + "," + tos[ipName(x.vip)]
		} else {
			want["ip.dsfield"], want["ipv6.tclass"] = tos["ip"], tos["ipv6"]
		}
		add("datagram, type of service", want, send(marked))
		add("echo", map[string]string{"frame.protocols": map[bool]string{true: "icmp", false: "icmpv6"}[x.vip.Is4()]}, send(echo(x.fam.client, x.vip, false, 9, 1, "ping")))
		sctp := wire.BuildProbe(wire.ProtoSCTP, endOf(client), endOf(vip), x.vip.Is4())
		_, v = parseFlow(sctp)
		v.FixSCTP(sctp, castagnoli)
		add("SCTP", map[string]string{"frame.protocols": "sctp", "sctp.dstport": "7777", "sctp.checksum.status": "1"}, send(sctp))
		// Too large, and not to be fragmented: an error, and the datagram in fragments of the outer packet.
		head := map[bool]int{true: 28, false: 48}[x.vip.Is4()]
		text := strings.Repeat("0123456789", 150)[:1500-head]
		p.now = p.now.Add(2 * time.Second) // for the next error
		out := send(setDF(udp(client, vip, text), true))
		require.Len(t, out, 3, name)
		want = map[string]string{"icmp.type": "3", "icmp.mtu": fmt.Sprint(1500 - over)}
		if x.vip.Is6() {
			want = map[string]string{"icmpv6.type": "2", "icmpv6.mtu": fmt.Sprint(1500 - over)}
		}
		s.add(t, name+": error", want, out[0])
		want = map[string]string{"frame.protocols": "udp", "udp.dstport": "7777", "udp.payload": hex.EncodeToString([]byte(text))}
		whole := join(t, slices.Clone(out[1:]))
		want[ipName(x.node)+".reassembled.length"] = fmt.Sprint(len(whole) - map[bool]int{true: 20, false: 40}[x.node.Is4()])
		if x.Kind == GUE {
			delete(want, ipName(x.node)+".reassembled.length")
		}
		add("outer fragments", want, out[1:])
		// Fragments go in one by one, and come together behind the tunnel.
		if x.Kind != GUE {
			long := strings.Repeat("fragments ", 300)
			want = map[string]string{"frame.protocols": "udp", "udp.dstport": "7777", "udp.payload": hex.EncodeToString([]byte(long))}
			add("inner fragments", want, send(split(udp(client, vip, long), 1200, 0x777)...))
		}
		// Super-packets with checksums that are left to the device.
		p.w = virtio
		gso := map[bool]uint8{true: gsoTCPv4, false: gsoTCPv6}[x.vip.Is4()]
		for _, in := range []struct {
			proto string
			gso   uint8
			b     []byte
		}{{"tcp", gso, tcp(client, vip, "AP", 110, 501, strings.Repeat("0123456789", 300))}, {"udp", gsoUDPL4, udp(client, vip, strings.Repeat("9876543210", 300))}} {
			_, outs := p.sendOffload(in.b, in.gso, 1000)
			require.Len(t, outs, 3, name)
			for _, o := range outs {
				add("super-packet's "+in.proto, map[string]string{"frame.protocols": in.proto, in.proto + ".payload": hex.EncodeToString(o[len(o)-1000:])}, [][]byte{o[Headroom:]})
			}
		}
		p.w = plain
	}

	// Translation.
	for _, fam := range families2() {
		local := locals[fam.vip.Is4()]
		for name, x := range map[string]struct{ vip, src, node netip.Addr }{"NAT": {fam.vip, fam.client, fam.n1}, "full NAT": {fam.vip2, local, fam.n2}} {
			name += ", " + ipName(fam.vip)
			client, vip := ap(fam.client, 40000), ap(x.vip, 7777)
			there := [2]netip.Addr{x.src, x.node}
			back := [2]netip.Addr{x.vip, fam.client}
			add := func(what, protocols string, pair [2]netip.Addr, want map[string]string, in ...[]byte) [][]byte {
				t.Helper()
				_, out := p.sendAll(in...)
				require.Len(t, out, len(in), "%s: %s: %v", name, what, p.drops())
				want = maps.Clone(want)
				if want == nil {
					want = map[string]string{}
				}
				want["frame.protocols"] = ipName(fam.vip) + ":" + protocols
				s.add(t, name+": "+what, ends(want, pair), out...)
				return out
			}
			ping := map[bool]string{true: "icmp", false: "icmpv6"}[fam.vip.Is4()]
			f, _ := parseFlow(add("SYN", "tcp", there, map[string]string{"tcp.dstport": "7777", "tcp.checksum.status": "1"}, tcp(client, vip, "S", 100, 0, ""))[0])
			add("SYN-ACK", "tcp", back, map[string]string{"tcp.checksum.status": "1"}, tcp(f.Dst, f.Src, "SA", 500, 101, ""))
			add("segment", "tcp", there, map[string]string{"tcp.checksum.status": "1"}, tcp(client, vip, "AP", 101, 501, "a segment"))
			g, _ := parseFlow(add("datagram", "udp", there, map[string]string{"udp.checksum.status": "1", "udp.payload": hex.EncodeToString([]byte("there"))}, udp(client, vip, "there"))[0])
			add("its answer", "udp", back, map[string]string{"udp.checksum.status": "1"}, udp(g.Dst, g.Src, "back"))
			add("echo", ping, there, map[string]string{ping + ".checksum.status": "1"}, echo(fam.client, x.vip, false, 9, 1, "ping"))
			sctp := wire.BuildProbe(wire.ProtoSCTP, endOf(client), endOf(vip), fam.vip.Is4())
			_, v := parseFlow(sctp)
			v.FixSCTP(sctp, castagnoli)
			add("SCTP", "sctp", there, map[string]string{"sctp.checksum.status": "1", "sctp.dstport": "7777"}, sctp)
			long := strings.Repeat("fragments ", 300)
			want := map[string]string{"udp.checksum.status": "1", "udp.payload": hex.EncodeToString([]byte(long)), ipName(fam.vip) + ".reassembled.length": "3008"}
			fs := split(udp(client, vip, long), 1200, 0x1000)
			add("fragments", "udp", there, want, fs...)
			fs = split(udp(client, vip, long), 1200, 0x1001)
			p.sendAll(fs[2])
			p.sendAll(fs[1])
			_, out := p.sendAll(fs[0])
			require.Len(t, out, 3)
			s.add(t, name+": fragments that came the wrong way round", want, out...)
			add("fragments back", "udp", back, want, split(udp(g.Dst, g.Src, long), 1200, 0x1002)...)
			// Errors, there and back, with the quoted packets translated. A header checksum is the quoted one's, too.
			quoted := map[string]string{ping + ".checksum.status": "1"}
			if fam.vip.Is4() {
				quoted["ip.checksum.status"] = "1,1"
			}
			e := maps.Clone(quoted)
			_, out = p.sendAll(unreachable(fam.router, x.src, udp(g.Src, g.Dst, "there"), 100))
			s.add(t, name+": error to the client", ends(e, [2]netip.Addr{fam.router, fam.client}, [2]netip.Addr{fam.client, x.vip}), out...)
			e = maps.Clone(quoted)
			_, out = p.sendAll(unreachable(fam.router, x.vip, udp(vip, client, "back"), 100))
			s.add(t, name+": error to the node", ends(e, [2]netip.Addr{map[bool]netip.Addr{true: fam.router, false: fam.router}[fam.vip.Is4()], x.node}, [2]netip.Addr{x.node, x.src}), out...)
			// The balancer's own: a reset, an error, and fragments for a narrow way.
			_, out = p.sendAll(tcp(ap(fam.client2, 9), vip, "A", 1000, 2000, "x"))
			s.add(t, name+": reset", ends(map[string]string{"tcp.checksum.status": "1"}, [2]netip.Addr{x.vip, fam.client2}), out...)
			last := tcp(client, vip, "A", 110, 501, "x")
			_, v = parseFlow(last)
			v.SetTTL(last, 1)
			_, out = p.sendAll(last)
			s.add(t, name+": time exceeded", map[string]string{ping + ".type": map[bool]string{true: "11", false: "3"}[fam.vip.Is4()], ping + ".checksum.status": "1"}, out...)
			if x.vip == fam.vip {
				p.now = p.now.Add(2 * time.Second)
				_, out = p.sendAll(setDF(udp(client, vip, long[:1450]), true))
				s.add(t, name+": too big", map[string]string{ping + ".mtu": "1400", ping + ".checksum.status": "1"}, out...)
				if fam.vip.Is4() {
					_, out = p.sendAll(setDF(udp(client, vip, long), false))
					require.Len(t, out, 3)
					s.add(t, name+": fragmented", want, out...)
					none := udp(client, vip, "no checksum")
					none[26], none[27] = 0, 0
					add("no checksum", "udp", there, map[string]string{"udp.checksum.status": "3"}, none)
				}
			}
			// With checksums left to the device, which is to complete them.
			p.w = virtio
			for what, b := range map[string][]byte{"tcp": tcp(client, vip, "AP", 110, 501, "partial"), "udp": udp(client, vip, "partial")} {
				_, out := p.sendOffload(b, gsoNone, 0)
				s.add(t, name+": partial checksum", ends(map[string]string{what + ".checksum.status": "1"}, there), complete(t, out[0]))
			}
			p.w = plain
		}
	}
	// Echo requests that no policy is for, whole and in fragments.
	for _, fam := range families2() {
		q := newPlane(t, fam)
		ping := map[bool]string{true: "icmp", false: "icmpv6"}[fam.vip.Is4()]
		want := map[string]string{ping + ".checksum.status": "1", ping + ".type": map[bool]string{true: "0", false: "129"}[fam.vip.Is4()]}
		_, out := q.sendAll(echo(fam.client, fam.vip, false, 7, 7, "ping"))
		s.add(t, "ping answered", ends(maps.Clone(want), [2]netip.Addr{fam.vip, fam.client}), out...)
		_, out = q.sendAll(split(echo(fam.client, fam.vip, false, 7, 8, strings.Repeat("ping", 1000)), 1400, 0x2000)...)
		s.add(t, "fragmented ping answered", ends(maps.Clone(want), [2]netip.Addr{fam.vip, fam.client}), out...)
	}
	// What must be noticed.
	for _, fam := range families2() {
		q := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		for field, b := range map[string][]byte{"tcp.checksum.status": tcp(client, vip, "S", 1, 0, ""), "udp.checksum.status": udp(client, vip, "x")} {
			v, out := q.send(b)
			require.Equal(t, Forwarded, v)
			s.addBroken(t, field, out, len(out)-1)
			if fam.vip.Is4() {
				s.addBroken(t, "ip.checksum.status", out, 8)
			}
		}
		ping := map[bool]string{true: "icmp", false: "icmpv6"}[fam.vip.Is4()]
		_, out := q.send(echo(fam.client, fam.vip, false, 7, 7, "ping"))
		s.addBroken(t, ping+".checksum.status", out, len(out)-1)
		sctp := wire.BuildProbe(wire.ProtoSCTP, endOf(client), endOf(vip), fam.vip.Is4())
		_, v := parseFlow(sctp)
		v.FixSCTP(sctp, castagnoli)
		_, out = q.send(sctp)
		s.addBroken(t, "sctp.checksum.status", out, len(out)-1)
	}
	t.Logf("%d packets", s.n)
	s.read(t)
}
