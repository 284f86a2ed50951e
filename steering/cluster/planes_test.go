package cluster_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster"
)

// sum16 is the Internet checksum (RFC 1071).
func sum16(bs ...[]byte) uint16 {
	var s uint32
	for _, b := range bs {
		for i := 0; i+1 < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		if len(b)%2 == 1 {
			s += uint32(b[len(b)-1]) << 8
		}
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// segment is a TCP segment of 20 bytes in an IP packet of either family.
func segment(src, dst netip.AddrPort, flags byte) []byte {
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, src.Port())
	binary.BigEndian.PutUint16(tcp[2:], dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], 1000)
	binary.BigEndian.PutUint32(tcp[8:], 2000)
	tcp[12], tcp[13], tcp[14] = 5<<4, flags, 0x40
	pseudo := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, 6, 0, 20)
	binary.BigEndian.PutUint16(tcp[16:], sum16(pseudo, tcp))
	if src.Addr().Is4() {
		ip := []byte{0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0}
		ip = append(append(ip, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
		binary.BigEndian.PutUint16(ip[10:], sum16(ip))
		return append(ip, tcp...)
	}
	ip := []byte{0x60, 0, 0, 0, 0, 20, 6, 64}
	ip = append(append(ip, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	return append(ip, tcp...)
}

// ofPacket returns the ends of a TCP packet.
func ofPacket(b []byte) (src, dst netip.AddrPort) {
	at, n, head := 12, 4, 20
	if b[0]>>4 == 6 {
		at, n, head = 8, 16, 40
	}
	s, _ := netip.AddrFromSlice(b[at : at+n])
	d, _ := netip.AddrFromSlice(b[at+n : at+2*n])
	return netip.AddrPortFrom(s, binary.BigEndian.Uint16(b[head:])), netip.AddrPortFrom(d, binary.BigEndian.Uint16(b[head+2:]))
}

// plane is a balancer with a data plane, a member of a real cluster.
type plane struct {
	*dataplane.Plane
	c     *cluster.Cluster
	crash func()
}

func newPlane(t *testing.T, name string, forward dataplane.Forward, join ...netip.AddrPort) *plane {
	t.Helper()
	c, err := cluster.New(&cluster.Config{Name: "planes", Node: name, Bind: netip.MustParseAddrPort("127.0.0.1:0"), Join: join, Keys: [][]byte{[]byte("a key for tests, not for use")}})
	require.NoError(t, err)
	ids := new(steering.IDs)
	var rules []policy.Rule[*dataplane.Service]
	for _, fam := range []struct{ vip, name, prefix, local string }{{"192.0.2.80", "web4", "10.0.0.1", "10.0.0.1"}, {"2001:db8::80", "web6", "fd00::1", "fd00::1"}} {
		var nodes []steering.Node
		for _, last := range []string{"1", "2", "3"} {
			nodes = append(nodes, steering.Node{Name: "n" + last, Addr: netip.AddrPortFrom(netip.MustParseAddr(fam.prefix+last), 8080)})
		}
		pool, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin, IDs: ids}, nodes...)
		require.NoError(t, err)
		svc := &dataplane.Service{Name: fam.name, Pool: pool, Forward: forward}
		if forward == dataplane.FullNAT {
			svc.Locals = []netip.Addr{netip.MustParseAddr(fam.local)}
		}
		vip := netip.MustParseAddr(fam.vip)
		rules = append(rules, policy.Rule[*dataplane.Service]{Name: fam.name, Value: svc,
			Match: policy.Match{Dst: netip.PrefixFrom(vip, vip.BitLen()), Protocol: policy.TCP, DstPort: policy.Port(80)}})
	}
	table, err := policy.Compile(nil, rules...)
	require.NoError(t, err)
	p, err := dataplane.New(&dataplane.Config{Policies: table, Peers: c})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(ctx) })
	crash := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(func() { crash(); p.Close() })
	return &plane{p, c, crash}
}

// send gives a packet to the plane and returns what comes of it, however long that is held.
func (p *plane) send(t *testing.T, b []byte) []byte {
	t.Helper()
	const offset = dataplane.Headroom + 16
	buf := make([]byte, offset+2048)
	copy(buf[offset:], b)
	out := p.Process(time.Now(), [][]byte{buf}, []int{len(b)}, offset, make([]dataplane.Verdict, 1))
	var got []byte
	require.Eventually(t, func() bool {
		if len(out) > 0 {
			got = append([]byte(nil), out[0][dataplane.Headroom:]...)
			return true
		}
		out = p.Process(time.Now(), nil, nil, offset, nil)
		return false
	}, 30*time.Second, time.Millisecond, "nothing came out")
	return got
}

// TestPlanes: three balancers with data planes; each direction of a connection by way of another one; then the one
// that began all connections crashes and they go on, at the same node and with the same addresses.
func TestPlanes(t *testing.T) {
	for _, forward := range []dataplane.Forward{dataplane.NAT, dataplane.FullNAT} {
		t.Run(forward.String(), func(t *testing.T) {
			a := newPlane(t, "lb1", forward)
			b := newPlane(t, "lb2", forward, a.c.Addr())
			c := newPlane(t, "lb3", forward, a.c.Addr())
			three := func() bool { return len(a.c.Members()) == 3 && len(b.c.Members()) == 3 && len(c.c.Members()) == 3 }
			require.Eventually(t, three, time.Minute, 5*time.Millisecond)
			type conn struct{ client, vip, local, node netip.AddrPort }
			var conns []conn
			for i := range 60 {
				k := conn{client: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), uint16(20000+i)), vip: netip.MustParseAddrPort("192.0.2.80:80")}
				if i%2 == 1 {
					k = conn{client: netip.AddrPortFrom(netip.MustParseAddr("2001:db8:9::7"), uint16(20000+i)), vip: netip.MustParseAddrPort("[2001:db8::80]:80")}
				}
				k.local, k.node = ofPacket(a.send(t, segment(k.client, k.vip, 0x02)))
				conns = append(conns, k)
			}
			// A connection has two flows at the Planes: as clients and as nodes know it.
			known := func(p *plane) func() bool {
				return func() bool { return p.c.Stats().Flows.Flows == 2*len(conns) }
			}
			require.Eventually(t, known(b), time.Minute, 5*time.Millisecond)
			require.Eventually(t, known(c), time.Minute, 5*time.Millisecond)
			for _, k := range conns {
				src, dst := ofPacket(b.send(t, segment(k.client, k.vip, 0x02)))
				require.Equal(t, k.node, dst, "a SYN that is sent again, by way of another balancer")
				require.Equal(t, k.local, src)
			}
			require.Zero(t, b.Stats().Asked, "it was told")
			for _, k := range conns {
				src, dst := ofPacket(b.send(t, segment(k.node, k.local, 0x12)))
				require.Equal(t, k.vip, src, "the answer by way of another balancer")
				require.Equal(t, k.client, dst)
			}
			a.crash()
			for _, k := range conns {
				src, dst := ofPacket(c.send(t, segment(k.client, k.vip, 0x10)))
				require.Equal(t, k.node, dst, "the same node")
				require.Equal(t, k.local, src)
			}
			require.EqualValues(t, len(conns), c.Stats().Adopted)
			require.Zero(t, c.Stats().Resets)
			// Those who took them over answer for them, and take them back at the end.
			require.Eventually(t, func() bool { return b.c.Stats().Flows.Own+c.c.Stats().Flows.Own >= 2*len(conns) }, time.Minute, 20*time.Millisecond, "the flows have new origins")
			require.Equal(t, 2*len(conns), b.c.Stats().Flows.Flows)
			require.Equal(t, len(conns), b.KillSessions(func(dataplane.Session) bool { return true }))
			require.Eventually(t, func() bool {
				return c.c.Stats().Flows.Own >= 2*len(conns) && c.c.Stats().Flows.Flows == 2*len(conns) && b.c.Stats().Flows.Flows == 2*len(conns)
			}, time.Minute, 20*time.Millisecond, "one forwards them still")
			require.Equal(t, len(conns), c.KillSessions(func(dataplane.Session) bool { return true }))
			require.Eventually(t, func() bool { return b.c.Stats().Flows.Flows == 0 && c.c.Stats().Flows.Flows == 0 }, time.Minute, 20*time.Millisecond, "all are forgotten")
		})
	}
}
