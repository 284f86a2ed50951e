package dataplane

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/devtest"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// row is a packet that goes in, and what must come out for it: byte for byte, but for the time to live where a host lies
// between. The rows of a table follow each other.
type row struct {
	name string
	node bool // it comes from the nodes' side
	in   []byte
	out  [][]byte // with their times to live as they leave the Plane
	own  bool     // out is the Plane's own, which the host before the device has not had
	at   int      // not 0: there begins in out what the host before the device has had, and the one behind it does not see
}

// tabled is what the table is for: the service of a test, and for other ports one that reaches its node in a tunnel.
func tabled(t *testing.T, fam family) func(*Config, *Service) {
	return func(c *Config, s *Service) {
		ids := new(steering.IDs)
		s.Pool = mustPool(t, ids, steering.RoundRobin, nodesOf(fam)...)
		far := &Service{Name: "far", Forward: Tunnelled, Tunnel: Tunnel{Kind: GRE, Key: 77}, Pool: mustPool(t, ids, steering.RoundRobin, steering.Node{Name: "n3", Addr: ap(fam.n3, 0)})}
		c.Addrs = own()
		vip := fam.vip.String()
		c.Policies = table(t, rule("tcp", vip+" tcp/80", s), rule("udp", vip+" udp/80", s), rule("sctp", vip+" sctp/80", s), rule("far", vip+" tcp/90", far), rule("far too", vip+" udp/90", far))
	}
}

func rowsOf(fam family) (rows []row) {
	client, vip, n1, n2 := ap(fam.client, 40000), ap(fam.vip, 80), ap(fam.n1, 8080), ap(fam.n2, 8080)
	add := func(name string, node bool, in []byte, out ...[]byte) {
		rows = append(rows, row{name: name, node: node, in: in, out: out})
	}
	answer := func(name string, in, out []byte) {
		rows = append(rows, row{name: name, in: in, out: [][]byte{out}, own: true})
	}
	edit := func(b []byte, f func(b []byte)) []byte {
		f(b)
		return b
	}
	// A connection.
	add("SYN", false, tcp(client, vip, "S", 100, 0, ""), tcp(client, n1, "S", 100, 0, ""))
	add("SYN-ACK", true, tcp(n1, client, "SA", 500, 101, ""), tcp(vip, client, "SA", 500, 101, ""))
	add("request", false, tcp(client, vip, "AP", 101, 501, "GET / HTTP/1.0\r\n\r\n"), tcp(client, n1, "AP", 101, 501, "GET / HTTP/1.0\r\n\r\n"))
	add("answer", true, tcp(n1, client, "AP", 501, 119, "HTTP/1.0 200 OK\r\n\r\n!"), tcp(vip, client, "AP", 501, 119, "HTTP/1.0 200 OK\r\n\r\n!"))
	// Datagrams, by the next node; one whose checksum comes out as zero, which is sent as 0xffff.
	from := ap(fam.client2, 5000)
	add("datagram", false, udp(from, vip, "ask"), udp(from, n2, "ask"))
	add("its answer", true, udp(n2, from, "answer"), udp(vip, from, "answer"))
	at := 20
	if fam.vip.Is6() {
		at = 40
	}
	zero := func(b []byte) []byte { // makes the checksum of a datagram with four bytes of data 0xffff
		b[at+8], b[at+9] = 0, 0
		b[at+6], b[at+7] = 0, 0
		var v wire.View
		_ = wire.Parse(b, &v)
		sum, _ := v.TransportSum(b)
		binary.BigEndian.PutUint16(b[at+8:], sum)
		binary.BigEndian.PutUint16(b[at+6:], 0xffff)
		return b
	}
	to := zero(udp(from, n2, "0000"))
	in := udp(from, vip, string(to[at+8:]))
	add("checksum that becomes zero", false, in, to)
	if fam.vip.Is4() {
		none := func(b []byte) []byte { return edit(b, func(b []byte) { b[26], b[27] = 0, 0 }) }
		add("no checksum", false, none(udp(from, vip, "ask")), none(udp(from, n2, "ask")))
		add("none back", true, none(udp(n2, from, "answer")), none(udp(vip, from, "answer")))
	} else {
		add("no checksum", false, edit(udp(from, vip, "ask"), func(b []byte) { b[46], b[47] = 0, 0 }))
	}
	// Fragments, in order and not.
	long := strings.Repeat("0123456789abcdef", 150)
	for id, order := range [][]int{{0, 1}, {1, 0}} {
		i, o := split(udp(from, vip, long), 1400, uint32(70+id)), split(udp(from, n2, long), 1400, uint32(70+id))
		if order[0] == 0 {
			add("first fragment", false, i[0], o[0])
			add("second fragment", false, i[1], o[1])
		} else {
			add("second fragment first", false, i[1])
			add("first fragment second", false, i[0], o[0], o[1])
		}
	}
	// Options.
	if fam.vip.Is4() {
		with := func(src, dst netip.AddrPort) []byte {
			ip := ipLayer(src.Addr(), dst.Addr(), layers.IPProtocolUDP).(*layers.IPv4)
			ip.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
			l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
			_ = l.SetNetworkLayerForChecksum(ip)
			return serialize(ip, l)
		}
		add("IPv4 options", false, with(from, vip), with(from, n2))
	} else {
		with := func(b []byte) []byte {
			out := append(append(bytes.Clone(b[:40]), 17, 0, 1, 4, 0, 0, 0, 0), b[40:]...)
			out[6] = wire.ProtoDestOpts
			binary.BigEndian.PutUint16(out[4:], uint16(len(out)-40))
			return out
		}
		add("destination options", false, with(udp(from, vip, "x")), with(udp(from, n2, "x")))
	}
	// Errors of routers, on the way to the node and on the way to the client.
	add("error about a request", true, unreachable(fam.n3, fam.client, tcp(client, n1, "A", 101, 501, "data"), 8), unreachable(fam.n3, fam.client, tcp(client, vip, "A", 101, 501, "data"), 8))
	add("error about an answer", false, unreachable(fam.router, fam.vip, tcp(vip, client, "A", 501, 101, "data"), 28), unreachable(fam.router, fam.n1, tcp(n1, client, "A", 501, 101, "data"), 28))
	add("error of the node", true, unreachable(fam.n1, fam.client, tcp(client, n1, "A", 101, 501, "data"), 28), unreachable(fam.vip, fam.client, tcp(client, vip, "A", 101, 501, "data"), 28))
	// Other protocols.
	sctp := func(src, dst netip.AddrPort) []byte {
		b := wire.BuildProbe(wire.ProtoSCTP, endOf(src), endOf(dst), fam.vip.Is4())
		var v wire.View
		_ = wire.Parse(b, &v)
		v.FixSCTP(b, castagnoli)
		return b
	}
	add("SCTP", false, sctp(client, vip), sctp(client, n1))
	// Tunnels: what is in them is as it came, but for the largest segment.
	y := wire.Tunnel{Kind: wire.GRE, HasKey: true, Key: 77}
	over, id := y.Overhead(fam.vip.Is6()), uint16(0)
	tunnelled := func(name string, in, inner []byte) {
		b := make([]byte, over+len(inner))
		copy(b[over:], inner)
		src := own()[0]
		if fam.vip.Is6() {
			src = own()[1]
		}
		id++
		y.Put(b, src.AsSlice(), fam.n3.AsSlice(), fam.vip.Is6(), 0, 0, false, id)
		rows = append(rows, row{name: name, in: in, out: [][]byte{b}, own: true, at: over})
	}
	far := ap(fam.vip, 90)
	lowered := tcp(from, far, "S", 1, 0, "")
	var syn wire.View
	_ = wire.Parse(lowered, &syn)
	syn.ClampMSS(lowered, uint16(1500-over-int(syn.L4)-20), false)
	tunnelled("SYN into a tunnel", tcp(from, far, "S", 1, 0, ""), lowered)
	tunnelled("ACK into a tunnel", tcp(from, far, "A", 2, 9, ""), tcp(from, far, "A", 2, 9, ""))
	tunnelled("datagram into a tunnel", udp(from, far, "ask"), udp(from, far, "ask"))
	for i, b := range split(udp(from, far, long), 1400, 75) {
		tunnelled([]string{"first fragment into a tunnel", "second fragment into a tunnel"}[i], b, b)
	}
	about := unreachable(fam.router, fam.vip, udp(far, from, "an answer"), 8)
	tunnelled("error about an answer past the balancer", about, about)
	// The Plane's own.
	ping, pong := echo(fam.client, fam.vip, false, 7, 1, "ping"), echo(fam.vip, fam.client, true, 7, 1, "ping")
	reset := tcp(vip, ap(fam.client2, 9), "R", 2000, 0, "")
	var v wire.View
	_ = wire.Parse(reset, &v)
	binary.BigEndian.PutUint16(reset[v.L4+14:], 0) // no window
	sum, _ := v.TransportSum(reset)
	binary.BigEndian.PutUint16(reset[v.SumOff:], sum)
	answer("ping", ping, setDF(pong, true))
	answer("of no connection", tcp(ap(fam.client2, 9), vip, "A", 1000, 2000, "x"), setDF(reset, true))
	// Nobody's, and refused.
	other := tcp(ap(fam.n1, 5555), ap(fam.elsewhere, 443), "S", 1, 0, "")
	add("a node's own connection", true, other, other)
	add("no policy", false, udp(client, ap(fam.vip, 81), "x"))
	add("answer of no session", true, udp(n1, ap(fam.client, 9), "x"))
	// The end.
	add("FIN", false, tcp(client, vip, "FA", 119, 521, ""), tcp(client, n1, "FA", 119, 521, ""))
	add("FIN back", true, tcp(n1, client, "FA", 521, 120, ""), tcp(vip, client, "FA", 521, 120, ""))
	add("last ACK", false, tcp(client, vip, "A", 120, 522, ""), tcp(client, n1, "A", 120, 522, ""))
	return rows
}

// TestTable gives the table to the function that forwards, to a running Plane in memory, and to one on a TUN interface between the kernel's.
func TestTable(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		t.Run("function", func(t *testing.T) {
			p := newPlane(t, fam, tabled(t, fam))
			for _, r := range rowsOf(fam) {
				_, out := p.sendAll(r.in)
				require.Len(t, out, len(r.out), "%s: %v", r.name, p.drops())
				for i := range out {
					require.Equal(t, r.out[i], out[i], r.name)
				}
			}
		})
		t.Run("memory", func(t *testing.T) {
			a, b, err := devtest.Pair(&devtest.Config{Virtio: true})
			require.NoError(t, err)
			runTable(t, fam, a, [2]Device{b, b}, 0)
		})
		t.Run("TUN", func(t *testing.T) {
			testenv.NeedNetns(t)
			ns, err := netns.New()
			require.NoError(t, err)
			t.Cleanup(func() { ns.Close() })
			require.NoError(t, ns.Router())
			open := func(c *tun.Config) (d *tun.Device) {
				require.NoError(t, ns.Do(func() (err error) { d, err = tun.Open(c); return err }))
				t.Cleanup(func() { d.Close() })
				return d
			}
			pre := netip.MustParsePrefix
			// The world of the clients and that of the nodes are the test's; between them is the host, with the Plane on a third interface.
			clients := open(&tun.Config{Name: "clients", NoOffload: true, Routes: []netip.Prefix{pre("0.0.0.0/0"), pre("::/0")}})
			nodes := open(&tun.Config{Name: "nodes", NoOffload: true, Routes: []netip.Prefix{pre("10.0.0.0/24"), pre("2001:db8:a::/64")}})
			plane := open(&tun.Config{Name: "plane", Routes: []netip.Prefix{netip.PrefixFrom(fam.vip, fam.vip.BitLen())}, Divert: []string{"nodes"}})
			runTable(t, fam, plane, [2]Device{clients, nodes}, 1)
		})
	})
}

// runTable runs a Plane on a device. ends are where packets from clients and nodes go in and come out, with a number of hosts
// between each and the device.
func runTable(t *testing.T, fam family, dev Device, ends [2]Device, hosts uint8) {
	p := newPlane(t, fam, tabled(t, fam), func(c *Config, _ *Service) { c.Devices = []Device{dev} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	got := make(chan []byte, 100)
	read := func(d Device) {
		bufs, sizes := make([][]byte, d.BatchSize()), make([]int, d.BatchSize())
		for i := range bufs {
			bufs[i] = make([]byte, bufferSize)
		}
		for {
			n, err := d.Read(bufs, sizes, Headroom)
			if err != nil {
				return
			}
			for i := range n {
				b := bytes.Clone(bufs[i][Headroom : Headroom+sizes[i]])
				if b[0]>>4 == 6 && (b[24] == 0xff || b[8] == 0xfe) {
					continue // the kernel looks for routers and neighbours
				}
				got <- b
			}
		}
	}
	go read(ends[0])
	if ends[1] != ends[0] {
		go read(ends[1])
	}
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		ends[0].Close()
		ends[1].Close()
	})
	for _, r := range rowsOf(fam) {
		end := ends[0]
		if r.node {
			end = ends[1]
		}
		n, err := end.Write([][]byte{append(make([]byte, Headroom), r.in...)}, Headroom)
		require.NoError(t, err, r.name)
		require.Equal(t, 1, n, r.name)
		for _, want := range r.out {
			want = bytes.Clone(want)
			var v wire.View
			require.Equal(t, wire.OK, wire.Parse(want, &v))
			less := 2 * hosts
			if r.own {
				less = hosts
			}
			v.SetTTL(want, v.TTL(want)-less)
			if r.at > 0 {
				inner := want[r.at:]
				require.Equal(t, wire.OK, wire.Parse(inner, &v))
				v.SetTTL(inner, v.TTL(inner)-hosts)
			}
			select {
			case b := <-got:
				require.Equal(t, want, b, r.name)
			case <-time.After(30 * time.Second):
				require.Fail(t, "nothing comes out", "%s: %v", r.name, p.drops())
			}
		}
	}
	require.Empty(t, got)
}
