package dataplane

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
)

// tagStacks are the VLAN tags of frames: priorities and both protocols among them.
var tagStacks = []struct {
	name   string
	tags   string // as they stand in a frame
	unsaid bool   // too many to be kept with a session
}{
	{"none", "", false},
	{"one", "\x81\x00\x60\x2a", false},
	{"two", "\x88\xa8\x00\x2a\x81\x00\x0f\xfe", false},
	{"old and new", "\x91\x00\x00\x07\x81\x00\x00\x01", false},
	{"three", "\x81\x00\x00\x01\x81\x00\x00\x02\x81\x00\x00\x03", true},
}

// tagged puts an Ethernet header with these tags before b.
func tagged(b []byte, tags string) []byte {
	f := frame(b)
	return append(append(append([]byte(nil), f[:12]...), tags...), f[12:]...)
}

// under sends packets in frames with tags, and wants all that comes out to have the same. It returns the packets.
func (p *testPlane) under(tags string, bs ...[]byte) (outs [][]byte) {
	p.t.Helper()
	for i, b := range bs {
		bs[i] = tagged(b, tags)
	}
	_, frames := p.sendAll(bs...)
	for _, f := range frames {
		outs = append(outs, p.untag(f, tags))
	}
	return outs
}

// untag wants a frame to have tags, and returns its packet.
func (p *testPlane) untag(f []byte, tags string) []byte {
	p.t.Helper()
	require.Equal(p.t, tags, string(f[12:12+len(tags)]), "% x", f[:min(len(f), 40)])
	e, s := wire.ParseEthernet(f)
	require.Equal(p.t, wire.OK, s)
	require.Equal(p.t, 14+len(tags), e.L3)
	return f[e.L3:]
}

// plainTags is tags without priorities.
func plainTags(tags string) string {
	b := []byte(tags)
	for i := 2; i < len(b); i += 4 {
		b[i] &= 0x0f
	}
	return string(b)
}

func stacks(t *testing.T, f func(t *testing.T, fam family, tags string, unsaid bool)) {
	for _, c := range tagStacks {
		t.Run(c.name, func(t *testing.T) {
			both(t, func(t *testing.T, fam family) { f(t, fam, c.tags, c.unsaid) })
		})
	}
}

func onFrames(c *Config, _ *Service) { c.Link, c.NextHop = Link{Ethernet: true, Ports: true}, hopTo }

// TestTagsOfAnswers: what the balancer answers a packet with goes into the VLAN that it came from.
func TestTagsOfAnswers(t *testing.T) {
	stacks(t, func(t *testing.T, fam family, tags string, _ bool) {
		p := newPlane(t, fam, onFrames)
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		one := func(b []byte) (out []byte, v wire.View) {
			t.Helper()
			outs := p.under(tags, b)
			require.Len(t, outs, 1, "drops %v", p.drops())
			require.Equal(t, wire.OK, wire.Parse(outs[0], &v))
			return outs[0], v
		}
		out, v := one(tcp(client, vip, "A", 1, 2, ""))
		require.EqualValues(t, wire.RST, v.TCPFlags)
		p.wellFormed(out, vip, client)
		_, v = one(echo(fam.client, fam.vip, false, 7, 1, "x"))
		require.True(t, v.Has(wire.EchoAnswer))
		b := tcp(client, vip, "S", 1, 0, "")
		_, v = parseFlow(b)
		v.SetTTL(b, 1)
		_, v = one(b)
		require.True(t, v.Has(wire.ICMPError))
	})
}

// TestTagsOfDelayedBinding: the balancer's own segments, towards either end and when nothing has just come, too, go where those go that are
// forwarded.
func TestTagsOfDelayedBinding(t *testing.T) {
	stacks(t, func(t *testing.T, fam family, tags string, _ bool) {
		p := newPlane(t, fam, onFrames, delayed(Delay{}))
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		out := p.under(tags, tcp(client, vip, "S", 1000, 0, ""))
		require.Len(t, out, 1)
		ours := numbers(out[0]).Seq
		out = p.under(tags, tcp(client, vip, "A", 1001, ours+1, ""))
		require.Len(t, out, 1)
		f, _ := parseFlow(out[0])
		node := f.Dst
		p.wellFormed(out[0], client, node)
		require.EqualValues(t, splice.SYN, numbers(out[0]).Flags)
		out = p.under(tags, tcp(client, vip, "PA", 1001, ours+1, "hello"))
		require.Len(t, out, 1)
		p.wellFormed(out[0], vip, client)
		require.EqualValues(t, 1006, numbers(out[0]).Ack)
		// Once more, as nobody answers.
		for deadline := p.now.Add(10 * time.Second); ; p.now = p.now.Add(100 * time.Millisecond) {
			require.True(t, p.now.Before(deadline))
			if out = p.under(tags); len(out) > 0 {
				break
			}
		}
		p.wellFormed(out[0], client, node)
		out = p.under(tags, tcp(node, client, "SA", 77, 1001, ""))
		require.Len(t, out, 1)
		p.wellFormed(out[0], client, node)
		require.Equal(t, "hello", string(numbers(out[0]).Payload))
		// A node that refuses, and so does the other: the client is reset.
		client = ap(fam.client, 4001)
		out = p.under(tags, tcp(client, vip, "S", 1000, 0, ""))
		ours = numbers(out[0]).Seq
		out = p.under(tags, tcp(client, vip, "PA", 1001, ours+1, "hello"))
		for i := 0; numbers(out[0]).Flags&splice.RST == 0; i++ {
			require.Less(t, i, 4)
			var syn []byte
			for _, b := range out {
				if numbers(b).Flags == splice.SYN {
					syn = b
				}
			}
			require.NotNil(t, syn)
			f, _ = parseFlow(syn)
			out = p.under(tags, tcp(f.Dst, f.Src, "RA", 0, 1001, ""))
			require.Len(t, out, 1, "drops %v", p.drops())
		}
		p.wellFormed(out[0], vip, client)
	})
}

// TestTagsOfUnaskedResets: they go into the VLAN that the session began in, without a priority. One that had more tags than are kept
// gets none, rather than one that somebody else could get.
func TestTagsOfUnaskedResets(t *testing.T) {
	stacks(t, func(t *testing.T, fam family, tags string, unsaid bool) {
		for _, d := range []*Delay{nil, {}} {
			p := newPlane(t, fam, onFrames, func(_ *Config, s *Service) {
				s.Delay, s.Mode = d, clienttable.ServerPerSession
				s.Ageing.CloseAtAgeing = clienttable.CloseBoth
			})
			client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
			begin := func() (node Session) {
				out := p.under(tags, tcp(client, vip, "S", 1000, 0, ""))
				require.Len(t, out, 1)
				if d != nil {
					ours := numbers(out[0]).Seq
					out = p.under(tags, tcp(client, vip, "A", 1001, ours+1, ""))
					f, _ := parseFlow(out[0])
					p.under(tags, tcp(f.Dst, f.Src, "SA", 77, 1001, ""))
					p.under(tags, tcp(f.Dst, f.Src, "A", 78, 1001, ""))
				} else {
					f, _ := parseFlow(out[0])
					p.under(tags, tcp(f.Dst, f.Src, "SA", 77, 1001, ""))
					p.under(tags, tcp(client, vip, "A", 1001, 78, ""))
				}
				s, ok := p.Session(wire.ProtoTCP, client, vip)
				require.True(t, ok)
				return s
			}
			resets := func() {
				t.Helper()
				out := p.under(plainTags(tags))
				if unsaid {
					require.Empty(t, out)
					return
				}
				require.Len(t, out, 2)
				for _, b := range out {
					require.NotZero(t, numbers(b).Flags&splice.RST)
				}
			}
			require.True(t, p.KillSession(begin()))
			resets()
			begin()
			p.now = p.now.Add(time.Hour)
			for p.Step(p.now) {
			}
			resets()
		}
	})
}

// TestOwnSegmentsFitTheWayToNodes: what the balancer repeats to a node of a client's segments is no larger than the link to it takes.
func TestOwnSegmentsFitTheWayToNodes(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for name, change := range map[string]func(*Config, *Service){
			"link":    func(c *Config, s *Service) { onFrames(c, s); c.NextHop = narrowHop },
			"service": func(c *Config, s *Service) { onFrames(c, s); s.MTU = 700 },
		} {
			p := newPlane(t, fam, delayed(Delay{}), change)
			client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
			out := p.under("", tcp(client, vip, "S", 1000, 0, ""))
			ours := numbers(out[0]).Seq
			data := strings.Repeat("0123456789", 120)
			out = p.under("", tcp(client, vip, "PA", 1001, ours+1, data))
			var syn []byte
			for _, b := range out {
				if numbers(b).Flags == splice.SYN {
					syn = b
				}
			}
			f, _ := parseFlow(syn)
			got := ""
			out = p.under("", tcp(f.Dst, f.Src, "SA", 77, 1001, ""))
			for i := 0; len(got) < len(data); i++ {
				require.Less(t, i, 10, name)
				require.NotEmpty(t, out, "%s, drops %v", name, p.drops())
				for _, b := range out {
					if g, _ := parseFlow(b); g.Dst == f.Dst {
						require.LessOrEqual(t, len(b), 700, name)
						got += string(numbers(b).Payload)
					}
				}
				out = p.under("", tcp(f.Dst, f.Src, "A", 78, 1001+uint32(len(got)), ""))
			}
			require.Equal(t, data, got, name)
		}
	})
}

// narrowHop is hopTo with less room.
func narrowHop(a netip.Addr) (Hop, bool) {
	h, ok := hopTo(a)
	h.MTU = 700
	return h, ok
}
