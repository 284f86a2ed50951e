package dataplane

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
)

// halfClosedModes are the session modes, those that forget a session at its end among them.
var halfClosedModes = []clienttable.Mode{
	clienttable.EntryPerSession, clienttable.Regular, clienttable.ServerPerSession, clienttable.RemoveOnEndEntryPerSession, clienttable.RemoveOnEndServerPerSession,
}

// TestAnswerAfterTheClientsFIN: a client's FIN closes one direction. The server answers a moment later, at length, with pauses, and its answer arrives.
func TestAnswerAfterTheClientsFIN(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for name, change := range map[string]func(*Config, *Service){
			"NAT":             func(*Config, *Service) {},
			"full NAT":        func(_ *Config, s *Service) { s.Forward, s.Locals = FullNAT, []netip.Addr{fam.elsewhere} },
			"delayed binding": func(_ *Config, s *Service) { s.Delay = &Delay{} },
			"delayed binding and full NAT": func(_ *Config, s *Service) {
				s.Delay, s.Forward, s.Locals = &Delay{}, FullNAT, []netip.Addr{fam.elsewhere}
			},
		} {
			for _, mode := range halfClosedModes {
				t.Run(name+"/"+mode.String(), func(t *testing.T) {
					p := newPlane(t, fam, change, func(_ *Config, s *Service) { s.Mode = mode })
					client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
					const request = "GET / HTTP/1.0\r\n\r\n"
					// What the client and the node call each other's next byte: delayed binding translates them.
					var node, peer netip.AddrPort
					ours := uint32(500)
					if p.svc.Delay != nil {
						ours = p.hello(client, 100)
						_, outs := p.sendAll(tcp(client, vip, "PAF", 101, ours+1, request))
						for _, o := range outs {
							if f, v := parseFlow(o); v.TCPFlags&2 != 0 {
								node, peer = f.Dst, f.Src
							}
						}
						require.True(t, node.IsValid(), "drops %v", p.drops())
						_, outs = p.sendAll(tcp(node, peer, "SA", 500, 101, ""))
						got := ""
						fin := false
						for _, o := range outs {
							s := numbers(o)
							got, fin = got+string(s.Payload), fin || s.Flags&1 != 0
						}
						require.Equal(t, request, got)
						require.True(t, fin, "the client's FIN reaches the server")
					} else {
						_, out := p.send(tcp(client, vip, "S", 100, 0, ""))
						f, _ := parseFlow(out)
						node, peer = f.Dst, f.Src
						p.forwarded(tcp(node, peer, "SA", 500, 101, ""), vip, client)
						p.forwarded(tcp(client, vip, "PAF", 101, 501, request), peer, node)
					}
					theirs, at := uint32(501), ours+1
					next := uint32(101 + len(request) + 1)
					out := p.forwarded(tcp(node, peer, "A", theirs, next, ""), vip, client)
					require.Equal(t, next, numbers(out).Ack)
					for _, pause := range []time.Duration{300 * time.Millisecond, 50 * time.Second, 50 * time.Second} {
						p.now = p.now.Add(pause)
						for p.Step(p.now) {
						}
						out := p.forwarded(tcp(node, peer, "PA", theirs, next, "a part of the answer"), vip, client)
						s := numbers(out)
						require.Equal(t, "a part of the answer", string(s.Payload))
						require.Equal(t, at, s.Seq)
						theirs, at = theirs+20, at+20
						out = p.forwarded(tcp(client, vip, "A", next, at, ""), peer, node)
						require.Equal(t, theirs, numbers(out).Ack)
					}
					p.forwarded(tcp(node, peer, "FA", theirs, next, ""), vip, client)
					p.forwarded(tcp(client, vip, "A", next, at+1, ""), peer, node)
					p.now = p.now.Add(24 * time.Hour)
					for p.Step(p.now) {
					}
					require.Zero(t, p.Stats().Sessions)
				})
			}
		}
	})
}

// TestAnswerPastTheBalancer is the same where the server answers past the balancer: what is seen of the answer are the client's acknowledgements, which
// reach the server for as long as there are any.
func TestAnswerPastTheBalancer(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, mode := range halfClosedModes {
			t.Run(mode.String(), func(t *testing.T) {
				p := newPlane(t, fam, func(c *Config, s *Service) {
					c.Addrs = []netip.Addr{fam.router}
					s.Forward, s.Mode = Tunnelled, mode
				})
				client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
				send := func(flags string, seq, ack uint32, data string) netip.Addr {
					t.Helper()
					b := tcp(client, vip, flags, seq, ack, data)
					v, out := p.send(append([]byte(nil), b...))
					require.Equal(t, Forwarded, v, "drops %v", p.drops())
					if flags == "S" {
						_, w := parseFlow(out)
						return addrOf(w.Dst(out))
					}
					return p.inTunnel(out, b)
				}
				node := send("S", 100, 0, "")
				require.Equal(t, node, send("A", 101, 501, ""))
				require.Equal(t, node, send("PAF", 101, 501, "request"))
				for i, pause := range []time.Duration{300 * time.Millisecond, 4 * time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second} {
					p.now = p.now.Add(pause)
					for p.Step(p.now) {
					}
					require.Equal(t, node, send("A", 109, uint32(501+20*i), ""))
				}
				p.now = p.now.Add(24 * time.Hour)
				for p.Step(p.now) {
				}
				require.Zero(t, p.Stats().Sessions)
			})
		}
	})
}
