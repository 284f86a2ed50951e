package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// TestErrorsQuoteWhatWasSent has the balancer, as a router, refuse packets of sessions: whoever sent one must
// recognise it in the error.
func TestErrorsQuoteWhatWasSent(t *testing.T) {
	for _, mode := range []Forward{NAT, FullNAT} {
		both(t, func(t *testing.T, fam family) {
			local := fam.elsewhere
			p := newPlane(t, fam, func(c *Config, s *Service) {
				c.Link = Link{Ethernet: true, Ports: true}
				c.NextHop = hopTo
				if s.Forward = mode; mode == FullNAT {
					s.Locals = []netip.Addr{local}
				}
			})
			client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
			send := func(b []byte) []byte {
				_, outs := p.sendAll(frame(b))
				require.Len(t, outs, 1)
				return outs[0][14:]
			}
			f, _ := parseFlow(send(tcp(client, vip, "S", 1, 0, "")))
			node, peer := f.Dst, f.Src
			long := strings.Repeat("x", 2000)
			for _, c := range []struct {
				src, dst netip.AddrPort
				ttl      uint8
				payload  string
			}{{client, vip, 1, ""}, {node, peer, 1, ""}, {client, vip, 64, long}, {node, peer, 64, long}} {
				p.now = p.now.Add(2 * time.Second)
				b := tcp(c.src, c.dst, "A", 2, 2, c.payload)
				_, w := parseFlow(b)
				w.SetTTL(b, c.ttl)
				if fam.vip.Is4() {
					b[6] |= 0x40
					binary.BigEndian.PutUint16(b[10:], 0)
					binary.BigEndian.PutUint16(b[10:], wire.Checksum(b[:20]))
				}
				out := send(b)
				g, w := parseFlow(out)
				require.True(t, w.Has(wire.ICMPError))
				require.True(t, w.SumOK(out))
				require.Equal(t, c.src.Addr(), g.Dst.Addr())
				require.Equal(t, c.dst.Addr(), g.Src.Addr())
				quote := w.Quote(out)
				require.Equal(t, b[:len(quote)], quote)
			}
			require.EqualValues(t, 2, p.drops()[TTLExpired])
			require.EqualValues(t, 2, p.drops()[TooBig])
		})
	}
}

// TestFragmentIdentificationsAreReused sends many datagrams with one identification, as hosts that draw
// them at random do.
func TestFragmentIdentificationsAreReused(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		for i := range 5 {
			fs := split(udp(ap(fam.client, 40000), ap(fam.vip, 80), strings.Repeat("x", 3000)), 1400, 5)
			if i%2 == 1 {
				fs[0], fs[2] = fs[2], fs[0]
			}
			_, out := p.sendAll(fs...)
			require.Len(t, out, 3, p.drops())
			require.Empty(t, p.fragments.m)
		}
		st := p.Stats()
		require.EqualValues(t, 15, st.Read.Packets)
		for name, s := range p.Services() {
			require.EqualValues(t, 15, s.In.Packets, name)
		}
	})
}

// TestFragmentBehindDestinationOptions has the first fragment carry an extension header of the packet: its bytes count.
func TestFragmentBehindDestinationOptions(t *testing.T) {
	fam := families2()[1]
	p := newPlane(t, fam)
	u := udp(ap(fam.client, 40000), ap(fam.vip, 80), strings.Repeat("x", 16))
	part := append([]byte{wire.ProtoUDP, 0, 1, 4, 0, 0, 0, 0}, u[40:]...) // destination options with padding, then UDP
	cut := func(from, to int) []byte {
		b := append([]byte{}, u[:40]...)
		b[6] = wire.ProtoFragment
		ff := uint16(from)
		if to < len(part) {
			ff |= 1
		}
		b = append(b, wire.ProtoDestOpts, 0, byte(ff>>8), byte(ff), 0, 0, 0, 9)
		b = append(b, part[from:to]...)
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
		return b
	}
	v, out := p.sendAll(cut(0, 24), cut(24, 32))
	require.Equal(t, []Verdict{Forwarded, Forwarded}, v, p.drops())
	require.Len(t, out, 2)
	require.Empty(t, p.fragments.m)
	// The last eight bytes of the first fragment again, as another one.
	v, _ = p.sendAll(cut(0, 24), cut(16, 24))
	require.Equal(t, []Verdict{Forwarded, Dropped}, v)
}

func TestFragmentsBehindTheEnd(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		short := split(udp(ap(fam.client, 40000), ap(fam.vip, 80), strings.Repeat("x", 1592)), 800, 5)
		long := split(udp(ap(fam.client, 40000), ap(fam.vip, 80), strings.Repeat("x", 3200)), 1600, 5)
		v, _ := p.sendAll(short[1], long[1], short[0])
		require.Equal(t, []Verdict{Held, Dropped, Dropped}, v)
	})
}

// TestFragmentTableOverflows has more datagrams under way than are remembered: what is lost is counted, and never goes to
// a random node.
func TestFragmentTableOverflows(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) {
			s.Pool = mustPool(t, new(steering.IDs), steering.RoundRobin,
				steering.Node{Name: "n1", Addr: ap(fam.n1, 0)}, steering.Node{Name: "n2", Addr: ap(fam.n2, 0)})
		})
		const n = maxDatagrams + 5000
		want := map[uint32]netip.Addr{}
		var tails [][]byte
		for i := range uint32(n) {
			fs := split(udp(ap(fam.client, uint16(2000+i%500)), ap(fam.vip, 80), strings.Repeat("x", 40)), 24, i)
			_, out := p.send(fs[0])
			f, _ := parseFlow(out)
			want[i] = f.Dst.Addr()
			tails = append(tails, fs[1:]...)
		}
		lost := 0
		for _, b := range tails {
			v, out := p.send(b)
			if v != Forwarded {
				lost++
				continue
			}
			f, w := parseFlow(out)
			require.Equal(t, want[w.FragID], f.Dst.Addr())
		}
		require.Equal(t, n-maxDatagrams, lost)
		p.now = p.now.Add(fragmentLife)
		p.Step(p.now)
		d := p.drops()
		require.EqualValues(t, lost, d[FragmentLost]+d[FragmentsFull], d)
	})
}

// TestFragmentsOfOtherKinds: where there is no session to follow, fragments still find their way.
func TestFragmentsOfOtherKinds(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.Addrs = []netip.Addr{fam.elsewhere}
			s.Forward, s.Ageing.NoUDP = Tunnelled, true
		})
		require.NoError(t, p.Apply(table(t, rule("a", fam.vip.String()+" udp/80", p.svc), rule("b", fam.vip2.String(), &Service{Name: "r", Forward: Route}))))
		for i, vip := range []netip.Addr{fam.vip, fam.vip2} {
			fs := split(udp(ap(fam.client, 40000), ap(vip, 80), strings.Repeat("x", 3000)), 1400, uint32(i))
			_, out := p.sendAll(fs[2], fs[0], fs[1])
			require.Len(t, out, 3, p.drops())
		}
	})
}

func TestBadSources(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		many, none := netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("0.0.0.0")
		if fam.vip.Is6() {
			many, none = netip.MustParseAddr("ff02::1"), netip.IPv6Unspecified()
		}
		for _, src := range []netip.Addr{fam.vip, many, none} {
			for _, b := range [][]byte{tcp(ap(src, 80), ap(fam.vip, 80), "S", 1, 0, ""), tcp(ap(src, 80), ap(fam.vip, 80), "A", 1, 0, ""),
				udp(ap(src, 80), ap(fam.vip, 80), "x"), echo(src, fam.vip, false, 1, 1, "")} {
				v, _ := p.send(b)
				require.Equal(t, Dropped, v)
			}
		}
		require.EqualValues(t, 12, p.drops()[BadSource])
		require.Zero(t, p.Stats().Sessions)
	})
}

// TestNoResetForGarbage: a packet that was damaged on its way says nothing of its sender.
func TestNoResetForGarbage(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		b := tcp(ap(fam.client, 40000), ap(fam.vip, 80), "A", 1, 1, "data")
		b[len(b)-1] ^= 1
		v, _ := p.send(b)
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[BadChecksum])
		require.Zero(t, p.Stats().Resets)
	})
}

// TestZeroChecksumsOfOthers: tunnels may leave it out over IPv6 (RFC 6935), and it is no business of a router's.
func TestZeroChecksumsOfOthers(t *testing.T) {
	fam := families2()[1]
	p := newPlane(t, fam)
	b := udp(ap(fam.client, 40000), ap(fam.elsewhere, 4789), "x")
	b[46], b[47] = 0, 0
	v, out := p.send(b)
	require.Equal(t, Passed, v)
	require.Equal(t, b, out)
	first := split(udp(ap(fam.client, 40000), ap(fam.vip, 80), strings.Repeat("x", 3000)), 1400, 7)[0]
	first[54], first[55] = 0, 0
	v, _ = p.send(first)
	require.Equal(t, Dropped, v)
	require.EqualValues(t, 1, p.drops()[ZeroChecksum])
}

func TestLimiterIsBounded(t *testing.T) {
	var l limiter
	now := time.Unix(1000, 0)
	allowed := 0
	at := func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i)) }
	for i := range 3 * limiterSize {
		if l.allow(now, at(i), 3, 1) {
			allowed++
		}
	}
	require.Equal(t, limiterSize, allowed)
	now = now.Add(999 * time.Millisecond)
	require.False(t, l.allow(now, at(1), 3, 1))
	now = now.Add(time.Millisecond)
	require.True(t, l.allow(now, at(1), 3, 1))
	now = now.Add(time.Second - 1)
	require.False(t, l.allow(now, at(1), 3, 1))
	require.LessOrEqual(t, len(l.new)+len(l.old), 2*limiterSize)
	for i := range 12 { // another type has a number of its own
		require.Equal(t, i < 10, l.allow(now, at(1), 11, 10))
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { l.allow(now, at(2).Next(), 3, 1) })-testing.AllocsPerRun(100, func() { _ = at(2).Next() }))
}

// TestNoLargerThanPossible: a packet that no tunnel has room for.
func TestNoLargerThanPossible(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam, func(c *Config, s *Service) {
		c.Addrs = []netip.Addr{fam.elsewhere}
		s.Forward = Tunnelled
	})
	_, out := p.sendAll(udp(ap(fam.client, 40000), ap(fam.vip, 80), strings.Repeat("x", 65515-28)))
	require.Len(t, out, 45, "65515 and 20 bytes in fragments of 1480")
	v, _ := p.sendAll(udp(ap(fam.client, 40000), ap(fam.vip, 80), strings.Repeat("x", 65515-27)))
	require.Equal(t, Dropped, v[0])
	require.EqualValues(t, 1, p.drops()[TooBig])
}

// TestOuterIdentifications: workers share the outer addresses.
func TestOuterIdentifications(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.Addrs = []netip.Addr{fam.elsewhere}
			s.Forward = Tunnelled
		})
		ids := map[uint32]int{}
		for i := range 4 {
			p.w = p.NewWorker(Link{})
			_, out := p.sendAll(udp(ap(fam.client, uint16(40000+i)), ap(fam.vip, 80), strings.Repeat("x", 1470)))
			for _, o := range out {
				_, w := parseFlow(o)
				if w.Has(wire.Fragment) {
					ids[w.FragID]++
				}
			}
		}
		require.Len(t, ids, 4)
	})
}

func TestTunnelsToNodesOfTheOtherFamily(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		four, six := families2()[0], families2()[1]
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.Addrs = []netip.Addr{four.elsewhere, six.elsewhere}
			s.Forward = Tunnelled
		})
		other := four
		if fam.vip.Is4() {
			other = six
		}
		require.NoError(t, p.SetNodes(p.pool, steering.Node{Name: "n1", Addr: ap(other.n1, 8080)}))
		v, out := p.send(tcp(ap(fam.client, 40000), ap(fam.vip, 80), "S", 1, 0, ""))
		require.Equal(t, Forwarded, v)
		f, w := parseFlow(out)
		require.Equal(t, other.n1, f.Dst.Addr())
		inner := out[w.L4:]
		var x wire.View
		require.Equal(t, wire.OK, wire.Parse(inner, &x))
		mss, _ := x.MSS(inner)
		require.EqualValues(t, 1500-int(w.L4)-int(x.L4)-20, mss)
	})
	p := newPlane(t, families2()[0])
	require.ErrorContains(t, p.SetNodes(p.pool, steering.Node{Name: "n1", Addr: ap(families2()[1].n1, 80)}), "family")
}

// TestBlindResets: a reset that does not fit ends no session.
func TestBlindResets(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = clienttable.RemoveOnEndServerPerSession })
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		phase := func() clienttable.TCPPhase {
			for s := range p.Sessions() {
				return s.Phase
			}
			return 0
		}
		before := phase()
		for _, seq := range []uint32{0, 5_000_000, 1 << 31} {
			p.send(tcp(client, vip, "R", seq, 0, ""))
			p.send(tcp(node, client, "RA", seq+77, 1, ""))
			require.Equal(t, before, phase())
		}
		p.send(tcp(client, vip, "R", 101, 0, ""))
		require.NotEqual(t, before, phase())
	})
}
