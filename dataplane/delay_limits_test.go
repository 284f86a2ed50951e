package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// clientHello and serverHello are hellos of TLS 1.2 in a record, with a session ID.
func clientHello(id string, pad int) string {
	ext := binary.BigEndian.AppendUint16([]byte{0, 21}, uint16(pad)) // padding (RFC 7685)
	ext = append(ext, make([]byte, pad)...)
	tail := append([]byte{0, 2, 0xc0, 0x2f, 1, 0}, binary.BigEndian.AppendUint16(nil, uint16(len(ext)))...)
	return hello(1, id, append(tail, ext...))
}

func serverHello(id string) string { return hello(2, id, []byte{0xc0, 0x2f, 0}) }

func hello(kind byte, id string, tail []byte) string {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(append(append(body, byte(len(id))), id...), tail...)
	msg := append([]byte{kind, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
	return string(append([]byte{22, 3, 1, byte(len(msg) >> 8), byte(len(msg))}, msg...))
}

// pieces sends a stream in the segments given, and returns all that comes out.
func (p *testPlane) pieces(client netip.AddrPort, seq, ack uint32, parts ...string) (out [][]byte) {
	for _, text := range parts {
		_, outs := p.sendAll(tcp(client, ap(p.fam.vip, 80), "PA", seq, ack, text))
		seq += uint32(len(text))
		out = append(out, outs...)
	}
	return out
}

// to returns the packets that do not go to the client.
func (p *testPlane) to(client netip.AddrPort, packets [][]byte) (nodes [][]byte) {
	for _, b := range packets {
		if f, _ := parseFlow(b); f.Dst != client {
			nodes = append(nodes, b)
		}
	}
	return nodes
}

// At the budget of 3,584 bytes an undecided request is dealt with by the default action, not before and not later.
func TestDelayedBudget(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		text := "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 5000)
		for _, do := range []l7.Action{{Do: l7.Farm, Farm: "a"}, {Do: l7.Reply, Code: 431}, {}} {
			rules, err := l7.Compile(&l7.Config{Default: do}, l7.Rule{Index: 1, First: l7.Method{Kind: l7.Header, Key: "Y", Value: "y"}, Action: l7.Action{Do: l7.Reply, Code: 404}})
			require.NoError(t, err)
			p := newPlane(t, fam, delayed(Delay{Read: ReadHTTP, Rules: rules}), func(_ *Config, s *Service) {
				s.Delay.Farms = map[string]*steering.Pool{"a": s.Pool}
			})
			client := ap(fam.client, 4000)
			ours := p.hello(client, 1000)
			out := p.pieces(client, 1001, ours+1, text[:1], text[1:1400], text[1400:2800], text[2800:3583])
			require.Len(t, out, 4, "acknowledgements only, one byte before the budget")
			require.EqualValues(t, 1, numbers(out[3]).Window)
			out = p.pieces(client, 1001+3583, ours+1, text[3583:3584])
			switch do.Do {
			case l7.Farm:
				require.Len(t, p.to(client, out), 1)
				require.EqualValues(t, splice.SYN, numbers(p.to(client, out)[0]).Flags)
			case l7.Reply:
				require.Empty(t, p.to(client, out))
				require.Contains(t, string(bytes.Join(out, nil)), "HTTP/1.1 431 ")
			default:
				require.Empty(t, p.to(client, out))
				require.NotZero(t, numbers(out[len(out)-1]).Flags&splice.RST)
				require.EqualValues(t, 1, p.drops()[Refused])
			}
		}
	})
}

// A hello longer than the budget, and what is none, go by the metric, or by the default action of the rules.
func TestDelayedHellosThatAreNotRead(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		long := clientHello("", 5000)
		rules, err := l7.Compile(&l7.Config{Default: l7.Action{Do: l7.Drop}}, l7.Rule{Index: 1, First: l7.Method{Kind: l7.ServerName, Value: "a"}, Action: l7.Action{Do: l7.Farm, Farm: "a"}})
		require.NoError(t, err)
		for _, ruled := range []bool{false, true} {
			for _, parts := range [][]string{{long[:1400], long[1400:2800], long[2800:3584]}, {"SSH-2.0-OpenSSH_9\r\n"}} {
				p := newPlane(t, fam, delayed(Delay{Read: ReadTLS}), func(_ *Config, s *Service) {
					if ruled {
						s.Delay.Rules, s.Delay.Farms = rules, map[string]*steering.Pool{"a": s.Pool}
						return
					}
					farm, err := sslpersist.NewFarm(&sslpersist.Settings[steering.NodeID]{Ports: []uint16{80}})
					require.NoError(t, err)
					s.Delay.Sessions = farm
				})
				client := ap(fam.client, 4000)
				out := p.pieces(client, 1001, p.hello(client, 1000)+1, parts...)
				if ruled {
					require.Empty(t, p.to(client, out))
					require.EqualValues(t, 1, p.drops()[Refused])
				} else {
					require.Len(t, p.to(client, out), 1)
				}
			}
		}
	})
}

// Clients that never finish their hello, however little it lacks, take no more than their share, for no longer than the time limit.
func TestSlowHellosAreBounded(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{Read: ReadTLS}), func(c *Config, s *Service) {
			c.MaxHeld = 50
			farm, err := sslpersist.NewFarm(&sslpersist.Settings[steering.NodeID]{Ports: []uint16{80}})
			require.NoError(t, err)
			s.Delay.Sessions = farm
		})
		text := clientHello("session", 200)
		for i := range 200 {
			c := ap(fam.client, uint16(1000+i))
			ours := p.hello(c, 7)
			require.Empty(t, p.to(c, p.pieces(c, 8, ours+1, text[:i+1])))
		}
		require.Equal(t, 50, p.Stats().Delay.Held)
		require.EqualValues(t, 150, p.drops()[HoldsFull])
		for range 40 { // a byte now and then buys no time
			p.now = p.now.Add(100 * time.Millisecond)
			p.sendAll(tcp(ap(fam.client, 1000), ap(fam.vip, 80), "PA", 9, 1, text[1:2]))
		}
		require.Equal(t, 50, p.Stats().Delay.Held)
		p.now = p.now.Add(1100 * time.Millisecond)
		_, out := p.sendAll()
		require.Len(t, out, 50)
		for _, b := range out {
			require.NotZero(t, numbers(b).Flags&splice.RST)
		}
		require.Zero(t, p.Stats().Delay.Held)
		require.EqualValues(t, 50, p.drops()[TooSlow])
		require.Zero(t, p.Stats().Sessions)
	})
}

// Only connections to ports that are watched are read, and wait for their client; another's server may speak first.
func TestDelayedWatchedPorts(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		farm, err := sslpersist.NewFarm(&sslpersist.Settings[steering.NodeID]{Ports: []uint16{80, 993}})
		require.NoError(t, err)
		p := newPlane(t, fam, func(c *Config, s *Service) {
			delayed(Delay{Read: ReadTLS, Sessions: farm})(c, s)
			c.Policies = table(t, rule("all", fam.vip.String()+" tcp", s))
		})
		for port, watched := range map[uint16]bool{80: true, 993: true, 25: false, 443: false} {
			client, vip := ap(fam.client, 4000+port), ap(fam.vip, port)
			_, out := p.send(tcp(client, vip, "S", 1000, 0, ""))
			_, outs := p.sendAll(tcp(client, vip, "A", 1001, numbers(out).Seq+1, ""))
			require.Equal(t, !watched, len(p.to(client, outs)) == 1, port)
		}
		require.Equal(t, 4, p.Stats().Delay.Held)
	})
}

// Whatever IDs a server issues on the way in the clear, in whichever segments, are found from another client afterwards, as are those before.
func TestDelayedIDsChangeMidStream(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		farm, err := sslpersist.NewFarm(&sslpersist.Settings[steering.NodeID]{Ports: []uint16{80}})
		require.NoError(t, err)
		p := newPlane(t, fam, delayed(Delay{Read: ReadTLS, Sessions: farm}))
		vip, port := ap(fam.vip, 80), uint16(4000)
		// connect presents an ID and has the node answer with others, each after another hello; it returns the node.
		connect := func(from netip.Addr, id string, issued ...string) netip.AddrPort {
			port++
			client := ap(from, port)
			first := clientHello(id, 10)
			node, ours := p.spliceUp(client, 1000, 500, first)
			cSeq, nSeq, shift := 1001+uint32(len(first)), uint32(501), ours-500
			for i, id := range issued {
				if i > 0 {
					again := clientHello("", 30)
					for _, part := range []string{again[:7], again[7:]} {
						p.forwarded(tcp(client, vip, "PA", cSeq, nSeq+shift, part), client, node)
						cSeq += uint32(len(part))
					}
				}
				answer := serverHello(id)
				// Out of order, and one part twice.
				head, rest := answer[:50], answer[50:]
				p.forwarded(tcp(node, client, "PA", nSeq+50, cSeq, rest), vip, client)
				for range 2 {
					p.forwarded(tcp(node, client, "PA", nSeq, cSeq, head), vip, client)
				}
				nSeq += uint32(len(answer))
			}
			return node
		}
		one, two, three := strings.Repeat("1", 32), strings.Repeat("2", 32), strings.Repeat("3", 7)
		node := connect(fam.client, "", one)
		connect(fam.client2, "") // the turn of the other node
		require.Equal(t, node, connect(fam.client2, one, two, three), "known, and changed on the way")
		for _, id := range []string{one, two, three, three, two, one} {
			require.Equal(t, node, connect(fam.client2, id), id)
			connect(fam.client, "")
		}
		require.Equal(t, 3, farm.IDs().Len())
	})
}

// Super-packets of a spliced connection stay whole both ways, and say what their parts would.
func TestSplicedSuperPacketsStayWhole(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{}))
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		node, ours := p.spliceUp(client, 1000, 500, "abc")
		plain := p.w
		gso := map[bool]uint8{true: gsoTCPv4, false: gsoTCPv6}[fam.vip.Is4()]
		big := strings.Repeat("0123456789", 6000)
		for _, b := range [][]byte{tcp(client, vip, "PA", 1004, ours+1, big), tcp(node, client, "PA", 501, 1004, big)} {
			p.w = p.NewWorker(Link{Virtio: true})
			v, out := p.sendOffload(b, gso, 1400)
			require.Equal(t, Forwarded, v)
			require.Len(t, out, 1, "whole")
			o := readOffload(out[0][Headroom-virtioLen:])
			require.EqualValues(t, 1400, o.gsoSize)
			require.NotZero(t, o.flags&virtioNeedsCsum)
			whole := complete(t, out[0])
			var view wire.View
			require.Equal(t, wire.OK, wire.Parse(whole, &view))
			p.w = plain
			parts := cut(whole, 1400)
			for i, part := range cut(b, 1400) {
				v, got := p.send(part)
				require.Equal(t, Forwarded, v)
				if fam.vip.Is4() { // each has an identification of its own
					for _, x := range [][]byte{got, parts[i]} {
						copy(x[4:], []byte{0, 0, 0, 0})
						copy(x[10:], []byte{0, 0})
					}
				}
				require.True(t, bytes.Equal(parts[i], got), "part %d", i)
			}
		}
	})
}
