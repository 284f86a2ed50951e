package dataplane

import (
	"bytes"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// shortcut is an Accelerator in memory: what a kernel or a network adapter would be. Packets pass it before they
// reach the Plane.
type shortcut struct {
	room  int
	now   *time.Time
	flows map[clienttable.Flow]*shortcutFlow
}

type shortcutFlow struct {
	Translation
	Usage
}

func (s *shortcut) Install(t Translation) bool {
	if t.Forward != NAT && t.Forward != FullNAT || len(s.flows) >= s.room {
		return false
	}
	s.flows[t.Flow] = &shortcutFlow{Translation: t}
	return true
}

func (s *shortcut) Usage(f clienttable.Flow) (Usage, bool) {
	x := s.flows[f]
	if x == nil {
		return Usage{}, false
	}
	return x.Usage, true
}

func (s *shortcut) Remove(f clienttable.Flow) Usage {
	x := s.flows[f]
	if x == nil {
		return Usage{}
	}
	delete(s.flows, f)
	return x.Usage
}

// pass forwards a packet, if it can.
func (s *shortcut) pass(b []byte) (out []byte, ok bool) {
	var v wire.View
	if wire.Parse(b, &v) != wire.OK || v.Mark != wire.Ports || v.TCPFlags&(wire.SYN|wire.FIN|wire.RST) != 0 {
		return nil, false
	}
	x := s.flows[flowOf(b, &v)]
	if x == nil {
		return nil, false
	}
	out = bytes.Clone(b)
	if x.Dst.IsValid() {
		e := endOf(x.Dst)
		v.SetDst(out, &e, false)
	}
	if x.Src.IsValid() {
		e := endOf(x.Src)
		v.SetSrc(out, &e, false)
	}
	x.Packets++
	x.Octets += uint64(len(b))
	x.Last = *s.now
	return out, true
}

// accelerating is a Plane behind a shortcut.
type accelerating struct {
	*testPlane
	s *shortcut
}

func newAccelerating(t *testing.T, fam family, change ...func(*Config, *Service)) *accelerating {
	s := &shortcut{room: 100, flows: map[clienttable.Flow]*shortcutFlow{}}
	p := &accelerating{s: s}
	p.testPlane = newPlane(t, fam, append(change, func(c *Config, _ *Service) { c.Accelerator, c.AccelerateAfter = s, 4 })...)
	s.now = &p.now
	return p
}

// put sends a packet, and says whether the shortcut has forwarded it.
func (p *accelerating) put(b []byte) (v Verdict, out []byte, short bool) {
	if out, ok := p.s.pass(b); ok {
		return Forwarded, out, true
	}
	v, out = p.send(b)
	return v, out, false
}

// warm has a session taken over, and returns what its packets become.
func (p *accelerating) warm(ask, answer func() []byte) (asked, answered []byte) {
	p.t.Helper()
	for range 8 {
		var short bool
		_, asked, short = p.put(ask())
		require.False(p.t, short)
		_, answered, short = p.put(answer())
		require.False(p.t, short)
	}
	p.Step(p.now)
	require.Len(p.t, p.s.flows, 2)
	return asked, answered
}

func TestAccelerator(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for name, change := range map[string]func(*Config, *Service){
			"NAT":      func(*Config, *Service) {},
			"full NAT": func(_ *Config, s *Service) { s.Forward, s.Locals = FullNAT, []netip.Addr{fam.elsewhere} },
		} {
			t.Run(name, func(t *testing.T) {
				p := newAccelerating(t, fam, change)
				client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
				_, first := p.send(tcp(client, vip, "S", 100, 0, ""))
				f, _ := parseFlow(first)
				p.send(tcp(f.Dst, f.Src, "SA", 500, 101, ""))
				p.send(tcp(client, vip, "A", 101, 501, ""))
				ask := func() []byte { return tcp(client, vip, "A", 101, 501, "ask") }
				answer := func() []byte { return tcp(f.Dst, f.Src, "A", 501, 104, "answer") }
				asked, answered := p.warm(ask, answer)

				// The same packets become the same, and count, and keep the session alive.
				before, _ := p.Session(wire.ProtoTCP, client, vip)
				service := maps.Collect(p.Services())["web"]
				for range 100 {
					_, out, short := p.put(ask())
					require.True(t, short)
					require.Equal(t, asked, out)
					p.now = p.now.Add(3 * time.Second)
					p.Step(p.now)
				}
				_, out, short := p.put(answer())
				require.True(t, short)
				require.Equal(t, answered, out)
				p.Step(p.now)
				s, ok := p.Session(wire.ProtoTCP, client, vip)
				require.True(t, ok)
				size := uint64(len(ask()))
				require.Equal(t, Count{before.In.Packets + 100, before.In.Octets + 100*size}, s.In)
				require.Equal(t, before.Out.Packets+1, s.Out.Packets)
				require.WithinDuration(t, p.now, s.Last, time.Second)
				require.Equal(t, service.In.Packets+100, maps.Collect(p.Services())["web"].In.Packets)
				require.Len(t, p.s.flows, 2)

				// The end is the Plane's to see, numbers unknown to it and all.
				_, _, short = p.put(tcp(client, vip, "FA", 90101, 70501, ""))
				require.False(t, short)
				require.Empty(t, p.s.flows)
				p.put(tcp(f.Dst, f.Src, "FA", 70501, 90102, ""))
				p.put(tcp(client, vip, "A", 90102, 70502, ""))
				s, _ = p.Session(wire.ProtoTCP, client, vip)
				require.Equal(t, clienttable.TCPClosed, s.Phase)
			})
		}
	})
}

func TestAcceleratorFallsBack(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		begin := func(t *testing.T) (p *accelerating, client, vip netip.AddrPort, ask, answer func() []byte) {
			p = newAccelerating(t, fam)
			client, vip = ap(fam.client, 40000), ap(fam.vip, 80)
			_, out := p.send(udp(client, vip, "ask"))
			f, _ := parseFlow(out)
			ask = func() []byte { return udp(client, vip, "ask") }
			answer = func() []byte { return udp(f.Dst, client, "answer") }
			p.warm(ask, answer)
			return p, client, vip, ask, answer
		}
		t.Run("forgotten by the accelerator", func(t *testing.T) {
			p, client, vip, ask, _ := begin(t)
			clear(p.s.flows)
			p.Step(p.now)
			v, _, short := p.put(ask())
			require.False(t, short)
			require.Equal(t, Forwarded, v)
			s, _ := p.Session(wire.ProtoUDP, client, vip)
			require.EqualValues(t, 10, s.In.Packets)
			for range 24 { // and taken over once more
				p.put(ask())
			}
			p.Step(p.now)
			require.Len(t, p.s.flows, 2)
		})
		t.Run("its node is lost", func(t *testing.T) {
			p, client, vip, ask, _ := begin(t)
			s, _ := p.Session(wire.ProtoUDP, client, vip)
			p.put(ask())
			require.Positive(t, p.SetUp(s.NodeName, false))
			require.Empty(t, p.s.flows)
			_, out, short := p.put(ask())
			require.False(t, short)
			f, _ := parseFlow(out)
			require.NotEqual(t, s.Node, f.Dst)
		})
		t.Run("its session is ended", func(t *testing.T) {
			p, client, vip, ask, _ := begin(t)
			p.put(ask())
			s, _ := p.Session(wire.ProtoUDP, client, vip)
			require.True(t, p.KillSession(s))
			require.Empty(t, p.s.flows)
			require.EqualValues(t, 10, maps.Collect(p.Services())["web"].In.Packets)
		})
		t.Run("its session has aged", func(t *testing.T) {
			p, _, _, _, _ := begin(t)
			p.now = p.now.Add(10 * time.Minute)
			p.Step(p.now)
			require.Empty(t, p.s.flows)
			require.Zero(t, p.Stats().Sessions)
		})
		t.Run("no room", func(t *testing.T) {
			p := newAccelerating(t, fam)
			p.s.room = 0
			for range 40 {
				v, _, short := p.put(udp(ap(fam.client, 1), ap(fam.vip, 80), "x"))
				require.False(t, short)
				require.Equal(t, Forwarded, v)
				p.Step(p.now)
			}
		})
		t.Run("the Plane is closed", func(t *testing.T) {
			p, _, _, _, _ := begin(t)
			require.NoError(t, p.Close())
			require.Empty(t, p.s.flows)
		})
		t.Run("half-open", func(t *testing.T) {
			p := newAccelerating(t, fam)
			for range 40 {
				p.put(tcp(ap(fam.client, 1), ap(fam.vip, 80), "S", 1, 0, ""))
				p.Step(p.now)
			}
			require.Empty(t, p.s.flows)
		})
	})
}

// TestTranslations tells what an accelerator learns of the ways it may refuse.
func TestTranslations(t *testing.T) {
	fam := families2()[0]
	var got []Translation
	p := newPlane(t, fam, func(c *Config, s *Service) {
		c.Accelerator, c.AccelerateAfter = refuser{&got}, 1
		s.Forward, s.Tunnel, c.Addrs = Tunnelled, Tunnel{Kind: GRE, Key: 7}, []netip.Addr{fam.elsewhere}
	})
	client, vip := ap(fam.client, 1), ap(fam.vip, 80)
	p.send(udp(client, vip, "x"))
	p.Step(p.now)
	s, _ := p.Session(wire.ProtoUDP, client, vip)
	require.Equal(t, []Translation{{
		Flow: clienttable.MakeFlow(wire.ProtoUDP, client, vip), Forward: Tunnelled, Node: s.Node.Addr(), Outer: fam.elsewhere, Tunnel: Tunnel{Kind: GRE, Key: 7}, MTU: 1500,
	}}, got)
}

type refuser struct{ got *[]Translation }

func (r refuser) Install(t Translation) bool              { *r.got = append(*r.got, t); return false }
func (refuser) Usage(clienttable.Flow) (u Usage, ok bool) { return u, false }
func (refuser) Remove(clienttable.Flow) (u Usage)         { return u }
