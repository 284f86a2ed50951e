package dataplane

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
)

// seedPackets are packets of every kind for a service and its nodes.
func seedPackets(fam family, local netip.Addr) (out [][]byte) {
	client, vip, node := ap(fam.client, 40000), ap(fam.vip, 80), ap(fam.n1, 8080)
	out = [][]byte{
		tcp(client, vip, "S", 1, 0, ""), tcp(client, vip, "A", 2, 7, "data"), tcp(client, vip, "FA", 6, 7, ""), tcp(client, vip, "R", 6, 7, ""),
		tcp(node, client, "SA", 6, 2, ""), tcp(node, ap(local, 2000), "SA", 6, 2, ""), tcp(client, vip, "A", 2, 7, strings.Repeat("y", 3000)),
		udp(client, vip, "question"), udp(node, client, "answer"), udp(client, ap(fam.elsewhere, 53), "x"),
		echo(fam.client, fam.vip, false, 1, 2, "ping"), echo(fam.n1, fam.client, true, 1, 2, "ping"),
		unreachable(fam.router, fam.vip, tcp(vip, client, "A", 1, 1, "abc"), 8), unreachable(fam.router, fam.client, tcp(client, node, "A", 1, 1, "abc"), 8),
	}
	for i, b := range split(udp(client, vip, strings.Repeat("z", 3000)), 1400, 9) {
		if i != 1 {
			out = append(out, b)
		}
	}
	return out
}

// TestMutationsEveryWay gives damaged packets to every forwarding over every kind of link. Nothing may panic or hang, and what comes
// out must be well formed.
func TestMutationsEveryWay(t *testing.T) {
	for mode := NAT; mode <= Route; mode++ {
		for kind := IPIP; kind <= VXLAN; kind++ {
			if mode != Tunnelled && kind != IPIP {
				continue
			}
			t.Run(fmt.Sprint(mode, "-", kind), func(t *testing.T) {
				both(t, func(t *testing.T, fam family) { mutate(t, fam, mode, kind) })
			})
		}
	}
}

func mutate(t *testing.T, fam family, mode Forward, kind TunnelKind) {
	r := rand.New(rand.NewPCG(uint64(mode), uint64(kind)))
	local := fam.elsewhere
	p := newPlane(t, fam, func(c *Config, s *Service) {
		c.Link = Link{Ethernet: true} // for DSR to be allowed
		c.NextHop = hopTo
		c.Addrs = []netip.Addr{local}
		s.MidStream = MidStream(r.IntN(3))
		s.Forward = mode
		switch mode {
		case FullNAT:
			s.Locals = []netip.Addr{local}
		case Tunnelled:
			s.Tunnel.Kind = kind
		}
	})
	var workers [8]*Worker
	for i := range workers {
		workers[i] = p.NewWorker(Link{Virtio: i&1 != 0, Ethernet: i&2 != 0, Ports: i&4 != 0})
	}
	seeds := seedPackets(fam, local)
	sent := 0
	for i := range 3000 {
		w := workers[r.IntN(len(workers))]
		var bufs [][]byte
		var sizes []int
		for range 1 + r.IntN(4) {
			b := append([]byte{}, seeds[r.IntN(len(seeds))]...)
			if w.link.Ethernet {
				b = frame(b, make([]uint16, r.IntN(3))...)
			}
			for range r.IntN(4) {
				b[r.IntN(min(len(b), 100))] = byte(r.Uint32())
			}
			if r.IntN(4) == 0 {
				b = b[:r.IntN(len(b)+1)]
			}
			buf := append(make([]byte, ReadOffset), b...)
			if h := buf[ReadOffset-virtioLen:]; r.IntN(2) == 0 {
				h[0], h[1] = byte(r.IntN(2)), []byte{gsoNone, gsoTCPv4, gsoUDP, gsoTCPv6, gsoUDPL4, gsoTCPv4 | gsoECN, 77}[r.IntN(7)]
				binary.NativeEndian.PutUint16(h[4:], uint16(r.IntN(1500)))
				binary.NativeEndian.PutUint16(h[6:], uint16(r.IntN(80)))
				binary.NativeEndian.PutUint16(h[8:], uint16([]int{6, 16, r.IntN(100)}[r.IntN(3)]))
			}
			bufs, sizes = append(bufs, buf), append(sizes, len(b))
		}
		for _, o := range w.Process(p.now, bufs, sizes, ReadOffset, nil) {
			sent++
			ip := o[Headroom:]
			if w.link.Ethernet {
				f, s := wire.ParseEthernet(ip)
				require.Equal(t, wire.OK, s)
				ip = ip[f.L3:]
			}
			var v wire.View
			require.Equal(t, wire.OK, wire.Parse(ip, &v), "%x", ip)
			require.Len(t, ip, int(v.End))
		}
		if i%100 == 0 {
			p.now = p.now.Add(time.Second)
			p.Step(p.now)
		}
	}
	require.Positive(t, sent)
	p.now = p.now.Add(time.Hour)
	p.Step(p.now)
	p.Step(p.now)
	require.Zero(t, p.Stats().Sessions)
	for _, st := range p.pool.All() {
		require.Zero(t, st.Sessions)
	}
}
