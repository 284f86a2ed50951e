package dataplane

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The fragments of a packet come by two balancers: what the one without the first fragment has asks the peers, and follows to the same node, with the same
// identification, so that the node can put them together.
func TestFragmentsAcrossBalancers(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, mode := range []Forward{NAT, FullNAT} {
			t.Run(mode.String(), func(t *testing.T) {
				a, b, d := two(t, fam, func(_ *Config, s *Service) {
					if s.Forward = mode; mode == FullNAT {
						s.Locals = append(s.Locals, fam.router)
					}
				})
				client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
				parts := split(udp(client, vip, strings.Repeat("0123456789", 300)), 1000, 77)
				require.Len(t, parts, 4)
				v, first := a.send(parts[0])
				require.Equal(t, Forwarded, v)
				v, _ = b.send(parts[2])
				require.Equal(t, Held, v)
				require.Equal(t, 2, d.finds, "for the packet, and for its session")
				_, got := b.sendAll()
				require.Len(t, got, 1, "drops %v", b.drops())
				_, more := b.sendAll(parts[1], parts[3])
				require.Len(t, more, 2, "the others need not ask")
				require.Equal(t, 2, d.finds)
				require.EqualValues(t, 1, b.Stats().Adopted)
				whole := join(t, append(append([][]byte{first}, got...), more...))
				f, _ := parseFlow(whole)
				b.wellFormed(whole, f.Src, f.Dst)
				require.Equal(t, mode == NAT, f.Src == client)
				require.Contains(t, []any{fam.n1, fam.n2}, any(f.Dst.Addr()))
				// The other balancer has the session now, for answers, too.
				b.forwarded(udp(f.Dst, f.Src, "answer"), vip, client)

				// What nobody knows is asked for once, and waits for its first fragment.
				finds := d.finds
				parts = split(udp(client, vip, strings.Repeat("x", 3000)), 1000, 78)
				for _, i := range []int{1, 2} {
					v, _ = b.send(parts[i])
					require.Equal(t, Held, v)
				}
				require.Equal(t, finds+1, d.finds)
				_, got = b.sendAll(parts[0])
				require.Len(t, got, 3)

				// Announcements end with the packet.
				sessions := len(d.m)
				for _, p := range []*testPlane{a, b} {
					p.now = p.now.Add(fragmentLife)
					p.Step(p.now)
				}
				require.Less(t, len(d.m), sessions)
				for k := range d.m {
					require.NotZero(t, k.Src().Port())
					require.NotZero(t, k.Dst().Port())
				}
			})
		}
	})
}

// The same of packets that follow no session: those that a service routes on, echo requests that the balancer answers, and what passes it.
func TestFragmentsWithoutSessionAcrossBalancers(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		a, b, d := two(t, fam)
		for _, p := range []*testPlane{a, b} {
			more := &Service{Name: "on", Forward: Route}
			if p == b { // where its number is another one
				require.NoError(t, p.Apply(table(t, rule("first", fam.vip2.String()+" udp/1", &Service{Name: "first", Forward: Route}))))
			}
			require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", p.svc), rule("on", fam.vip2.String()+" udp/53", more))))
		}
		payload := strings.Repeat("0123456789", 300)
		for i, c := range []struct {
			name    string
			packet  []byte
			verdict Verdict
		}{
			{"routed", udp(ap(fam.client, 40000), ap(fam.vip2, 53), payload), Forwarded},
			{"passed", udp(ap(fam.n1, 40000), ap(fam.elsewhere, 53), payload), Passed},
			{"echoed", echo(fam.client, fam.vip, false, 7, 1, payload), Answered},
		} {
			finds, known := d.finds, len(d.m)
			parts := split(c.packet, 1000, uint32(77+i))
			require.Len(t, parts, 4, c.name)
			v, first := a.send(parts[0])
			require.Equal(t, c.verdict, v, c.name)
			v, _ = b.send(parts[2])
			require.Equal(t, Held, v, c.name)
			require.Equal(t, finds+1, d.finds, c.name)
			_, got := b.sendAll()
			require.Len(t, got, 1, "%s: drops %v", c.name, b.drops())
			_, more := b.sendAll(parts[1], parts[3])
			require.Len(t, more, 2, c.name)
			require.Equal(t, finds+1, d.finds, c.name)
			whole := join(t, append(append([][]byte{first}, got...), more...))
			if c.verdict == Answered {
				b.wellFormed(whole, ap(fam.vip, 0), ap(fam.client, 0))
			} else {
				require.Equal(t, join(t, parts), whole, c.name)
			}
			for _, p := range []*testPlane{a, b} {
				p.now = p.now.Add(fragmentLife)
				p.Step(p.now)
			}
			require.Len(t, d.m, known, "announcements end with the packet")
		}
		require.Zero(t, b.Stats().Adopted)
		// What the other balancer says of a service that is not here does not count.
		require.NoError(t, b.Apply(table(t, rule("on", fam.vip2.String()+" udp/53", &Service{Name: "another", Forward: Route}))))
		parts := split(udp(ap(fam.client, 40000), ap(fam.vip2, 53), payload), 1000, 99)
		a.send(parts[0])
		v, _ := b.send(parts[1])
		require.Equal(t, Held, v)
		_, got := b.sendAll()
		require.Empty(t, got)
	})
}

func TestCourseTexts(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		b := udp(ap(fam.client, 1), ap(fam.vip, 2), "")
		_, v := parseFlow(b)
		c := course{fate: follows, session: flowOf(b, &v), id: 0x1234abcd}
		service, got, err := parseCourse(courseText("a service", &c))
		require.NoError(t, err)
		require.Equal(t, c, got)
		require.Equal(t, "a service", service)
		for _, c := range []course{{fate: passes, id: 1, dscp: 64}, {fate: routes, id: 0xffffffff}, {fate: echoes}} {
			service, got, err = parseCourse(courseText("a service", &c))
			require.NoError(t, err)
			require.Equal(t, c, got)
			require.Equal(t, "a service", service)
		}
		require.Less(t, len(courseText("", &c)), 120)
	})
	for _, text := range []string{"", "x", "x\x00#", "x\x00#17 1.2.3.4:1 1.2.3.4:2", "x\x00#300 1.2.3.4:1 1.2.3.4:2 1", "x\x00#17 1.2.3.4:1 [::1]:2 1", "x\x00#17 1.2.3.4:1 1.2.3.4:2 123456789", "x\x00#17 [::ffff:1.2.3.4]:1 1.2.3.4:2 1", "x\x00#17 [fe80::1%e]:1 [fe80::2]:2 1",
		"x\x00#follows 1 0", "x\x00#passed 1 0", "x\x00#passes 1 65", "x\x00#passes 1", "x\x00#passes 100000000 0", "x\x00#routes x 0"} {
		_, _, err := parseCourse(text)
		require.Error(t, err, "%q", text)
	}
}
