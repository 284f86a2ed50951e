package dataplane

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// TestIdentificationsOfDifferentSenders: two clients behind one address of the balancer's, and two nodes behind a virtual address, use
// one identification at a time. Whoever puts the fragments together must get what was sent.
func TestIdentificationsOfDifferentSenders(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) {
			s.Forward, s.Locals = FullNAT, []netip.Addr{fam.elsewhere}
			s.Pool = mustPool(t, new(steering.IDs), steering.RoundRobin, steering.Node{Name: "n1", Addr: ap(fam.n1, 8080)})
		})
		vip := ap(fam.vip, 80)
		a, b := strings.Repeat("a", 3000), strings.Repeat("b", 3000)
		together := func(first, second [][]byte) {
			t.Helper()
			var out [][]byte
			for _, f := range [][]byte{first[0], second[2], second[1], first[1], second[0], first[2]} {
				_, o := p.sendAll(f)
				out = append(out, o...)
			}
			require.Len(t, out, 6, p.drops())
			byID := map[uint32][][]byte{}
			for _, o := range out {
				_, v := parseFlow(o)
				byID[v.FragID] = append(byID[v.FragID], o)
			}
			require.Len(t, byID, 2)
			require.Len(t, byID[5], 3, "the first one keeps its own")
			for _, fs := range byID {
				whole := join(t, fs)
				_, v := parseFlow(whole)
				require.True(t, v.SumOK(whole))
				got := string(whole[v.Payload:])
				require.True(t, got == a || got == b)
			}
		}
		for range 2 { // and with the same again, as hosts do that count to 65,535 in a moment
			together(split(udp(ap(fam.client, 40000), vip, a), 1400, 5), split(udp(ap(fam.client2, 40000), vip, b), 1400, 5))
		}
	})
}

// TestIdentificationsOfNodes is the same of two nodes that answer one client from behind one virtual address.
func TestIdentificationsOfNodes(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = clienttable.ServerPerSession })
		var answers [2][][]byte
		for i := range answers {
			client := ap(fam.client, uint16(40000+i))
			_, out := p.send(udp(client, ap(fam.vip, 80), "ask"))
			f, _ := parseFlow(out)
			require.Equal(t, []netip.Addr{fam.n1, fam.n2}[i], f.Dst.Addr())
			answers[i] = split(udp(f.Dst, client, strings.Repeat(string(rune('a'+i)), 3000)), 1400, 99)
		}
		var ids []uint32
		for _, fs := range answers {
			_, out := p.sendAll(fs...)
			require.Len(t, out, 3, p.drops())
			for _, o := range out {
				_, v := parseFlow(o)
				ids = append(ids, v.FragID)
			}
		}
		require.Equal(t, []uint32{99, 99, 99, 100, 100, 100}, ids)
	})
}

// TestIdentificationsAreBounded: however many fragments come, what is remembered of them is bounded, and forgotten in time.
func TestIdentificationsAreBounded(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		var x identifications
		now := time.Unix(1000, 0)
		var v wire.View
		b := split(udp(ap(fam.client, 1), ap(fam.vip, 80), strings.Repeat("x", 3000)), 1400, 7)[0]
		require.Equal(t, wire.OK, wire.Parse(b, &v))
		in, other := fragmentKey(b, &v), flowOf(b, &v)
		to := endOf(ap(fam.n1, 0))
		out := sentAs(b, &v, nil, &to)
		v6 := fam.vip.Is6()
		require.EqualValues(t, 7, x.choose(now, in, out, v6))
		require.EqualValues(t, 7, x.choose(now, in, out, v6))
		require.EqualValues(t, 8, x.choose(now, other, out, v6))
		require.EqualValues(t, 8, x.choose(now.Add(fragmentLife), other, out, v6), "still remembered")
		require.EqualValues(t, 7, x.choose(now.Add(3*fragmentLife), other, out, v6))
		for i := range uint32(5 * maxDatagrams) {
			v.FragID = i
			x.choose(now, in, sentAs(b, &v, nil, &to), v6)
		}
		require.LessOrEqual(t, len(x.new)+len(x.old), 2*maxDatagrams)
		// The last one is followed by the first.
		v.FragID = 0xffff
		if v6 {
			v.FragID = 0xffffffff
		}
		out = sentAs(b, &v, nil, &to)
		x = identifications{}
		x.choose(now, in, out, v6)
		require.Zero(t, x.choose(now, other, out, v6))
	})
}
