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

func TestCourseTexts(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		b := udp(ap(fam.client, 1), ap(fam.vip, 2), "")
		_, v := parseFlow(b)
		c := course{fate: follows, session: flowOf(b, &v), id: 0x1234abcd}
		got, err := parseCourse(courseText("a service", &c))
		require.NoError(t, err)
		require.Equal(t, c, got)
		require.Less(t, len(courseText("", &c)), 120)
	})
	for _, text := range []string{"", "x", "x\x00#", "x\x00#17 1.2.3.4:1 1.2.3.4:2", "x\x00#300 1.2.3.4:1 1.2.3.4:2 1", "x\x00#17 1.2.3.4:1 [::1]:2 1", "x\x00#17 1.2.3.4:1 1.2.3.4:2 123456789", "x\x00#17 [::ffff:1.2.3.4]:1 1.2.3.4:2 1", "x\x00#17 [fe80::1%e]:1 [fe80::2]:2 1"} {
		_, err := parseCourse(text)
		require.Error(t, err, "%q", text)
	}
}
