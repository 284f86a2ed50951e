package dataplane

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/steering"
)

// farEnd is an end of a TCP connection that sends what it is told, again and again until it is acknowledged.
type farEnd struct {
	at, peer netip.AddrPort
	base     uint32 // the number of out[0]
	out, in  []byte
	una      int
	rcv      uint32
	over     bool
}

func (e *farEnd) piece(from, n int) []byte {
	from = min(from, len(e.out))
	to := min(from+n, len(e.out))
	return tcp(e.at, e.peer, "A", e.base+uint32(from), e.rcv, string(e.out[from:to]))
}

// take takes a segment, and returns the acknowledgement of one with data.
func (e *farEnd) take(s *splice.Segment) [][]byte {
	if s.Flags&splice.RST != 0 {
		e.over = e.over || s.Seq == e.rcv
		return nil
	}
	if a := int(int32(s.Ack - e.base)); a > e.una && a <= len(e.out) {
		e.una = a
	}
	if len(s.Payload) == 0 {
		return nil
	}
	if skip := int32(e.rcv - s.Seq); skip >= 0 && int(skip) < len(s.Payload) {
		e.in = append(e.in, s.Payload[skip:]...)
		e.rcv += uint32(len(s.Payload)) - uint32(skip)
	}
	return [][]byte{e.piece(len(e.out), 0)}
}

// wired is a Plane between a client that has requests for two nodes, and these.
type wired struct {
	*keptPlane
	c        farEnd
	ends     map[netip.AddrPort][]*farEnd // of a node, the last one is open
	loseNext int
}

func (x *wired) deliver(packets ...[]byte) {
	for len(packets) > 0 {
		_, out := x.sendAll(packets...)
		packets = nil
		for _, b := range out {
			if x.loseNext > 0 {
				x.loseNext--
				continue
			}
			f, _ := parseFlow(b)
			s := numbers(b)
			if f.Dst == x.client {
				packets = append(packets, x.c.take(&s)...)
				continue
			}
			packets = append(packets, x.atEnd(f.Dst, &s)...)
		}
	}
}

func (x *wired) atEnd(at netip.AddrPort, s *splice.Segment) [][]byte {
	list := x.ends[at]
	if s.Flags&(splice.SYN|splice.RST) == splice.SYN {
		n := len(list)
		if n > 0 && !list[n-1].over && (list[n-1].rcv != s.Seq+1 || len(list[n-1].in) > 0) {
			return [][]byte{list[n-1].piece(len(list[n-1].out), 0)} // RFC 5961, 4
		}
		if n == 0 || list[n-1].over {
			list = append(list, &farEnd{at: at, peer: x.client, base: 5000 * uint32(len(list)+1), rcv: s.Seq + 1})
			x.ends[at] = list
		}
		e := list[len(list)-1]
		return [][]byte{tcp(at, x.client, "SA", e.base-1, e.rcv, "")}
	}
	if len(list) == 0 {
		return nil
	}
	e := list[len(list)-1]
	if e.over {
		return nil
	}
	had := strings.Count(string(e.in), "\r\n\r\n")
	out := e.take(s)
	for range strings.Count(string(e.in), "\r\n\r\n") - had {
		e.out = append(e.out, ok...)
	}
	return out
}

// runWired interprets script: pieces of requests in any order, again, lost, forged; and then lets everything settle.
func runWired(t testing.TB, fam family, mode l7.Mode, script []byte) {
	k := newKeptPlane(t.(*testing.T), fam, mode, func(_ *Config, s *Service) {
		s.Delay.Limits = splice.Limits{Time: time.Hour, ServerTime: time.Hour, ReplayTime: time.Hour}
	})
	x := &wired{keptPlane: k, ends: map[netip.AddrPort][]*farEnd{}}
	x.c = farEnd{at: k.client, peer: k.vip, base: k.seq, rcv: k.ack}
	want := map[netip.AddrPort]string{}
	requests := 0
	if len(script) > 0 {
		requests = 1 + int(script[0]%5)
		rng := rand.New(rand.NewPCG(uint64(script[0]), 1))
		for range requests {
			path := []string{"/a", "/b"}[rng.IntN(2)]
			text := get(path + strings.Repeat("x", rng.IntN(300)))
			x.c.out = append(x.c.out, text...)
			if mode == l7.First {
				path = string(x.c.out[4:6])
			}
			want[k.nodes[path].at] += text
		}
	}
	for ; len(script) >= 3; script = script[3:] {
		a, b := int(script[1]), int(script[2])
		switch script[0] % 8 {
		case 0, 1:
			x.deliver(x.c.piece(x.c.una+a, b))
		case 2:
			x.deliver(x.c.piece(x.c.una, 1+b))
		case 3:
			for _, list := range x.ends {
				e := list[len(list)-1]
				if !e.over {
					x.deliver(e.piece(e.una+a%8, b))
				}
			}
		case 4:
			k.now = k.now.Add(time.Duration(4*a) * time.Millisecond)
			x.deliver()
		case 5: // by who does not see the numbers
			seq := x.c.base + 1<<31 + uint32(a)<<16
			for _, flags := range []string{"A", "RA", "R", "S", "FA", "PA"}[b%6 : b%6+1] {
				x.deliver(tcp(k.client, k.vip, flags, seq, x.c.rcv^uint32(b)<<24, "GET /a HTTP/1.1\r\n"))
				for at := range x.ends {
					x.deliver(tcp(at, k.client, flags, seq, x.c.base, "HTTP/1.1 200 OK\r\n\r\n"))
				}
			}
		case 6:
			x.loseNext = a % 4
		case 7: // other bytes in the place of what has been judged
			if n := x.c.una; n > 0 {
				from := n - min(n, a)
				x.deliver(tcp(k.client, k.vip, "PA", x.c.base+uint32(from), x.c.rcv, strings.Repeat("#", n-from)))
			}
		}
	}
	x.loseNext = 0
	done := func() bool {
		return len(x.c.in) == requests*len(ok) && x.c.una == len(x.c.out)
	}
	for range 400 {
		if done() {
			break
		}
		k.now = k.now.Add(200 * time.Millisecond)
		x.deliver(x.c.piece(x.c.una, 700))
		for _, list := range x.ends {
			if e := list[len(list)-1]; !e.over {
				x.deliver(e.piece(e.una, 500))
			}
		}
	}
	if !done() || x.c.over {
		t.Logf("drops %v, %+v", x.drops(), x.Stats().Delay)
	}
	require.False(t, x.c.over, "the client was reset")
	require.Equal(t, strings.Repeat(ok, requests), string(x.c.in))
	for _, n := range k.nodes {
		got := ""
		for _, e := range x.ends[n.at] {
			got += string(e.in)
		}
		require.Equal(t, want[n.at], got)
	}
	require.LessOrEqual(t, k.p().holds.all.Load(), int64(1))
}

func FuzzDelayedPlane(f *testing.F) {
	f.Add([]byte{3, 0, 40, 2, 0, 255, 3, 0, 255}, uint8(1))
	f.Add([]byte{4, 0, 0, 6, 3, 0, 2, 0, 90, 4, 20, 20, 7, 30, 0, 2, 0, 255}, uint8(2))
	f.Fuzz(func(t *testing.T, script []byte, mode uint8) {
		if len(script) > 300 {
			return
		}
		runWired(t, families2()[mode/3%2], l7.Mode(mode%3), script)
	})
}

// The same by seeds.
func TestDelayedPlaneByChance(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 7))
		script := make([]byte, rng.IntN(150))
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		if !t.Run(string(binary.BigEndian.AppendUint64(nil, seed)[7:]), func(t *testing.T) { runWired(t, families2()[seed%2], l7.Mode(seed/2%3), script) }) {
			t.Fatalf("seed %d: %x", seed, script)
		}
	}
}

// Ends close in every order, with and without data on the FIN, before and after the answer; both get what the other has sent.
func TestDelayedClosingOrders(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for i, order := range []string{"cn", "nc", "cnx", "ncx", "Cn", "nC", "Nc", "cN", "CN", "NC"} {
			t.Run(order, func(t *testing.T) {
				p := newPlane(t, fam, delayed(Delay{}))
				client, vip := ap(fam.client, uint16(4000+i)), ap(fam.vip, 80)
				node, ours := p.spliceUp(client, 1000, 500, "abc")
				cSeq, nSeq := uint32(1004), uint32(501) // next of each
				crossed := strings.HasSuffix(order, "x")
				cAck, nAck := nSeq, cSeq // what each has got
				shift := ours + 1 - 501
				for _, who := range strings.TrimSuffix(order, "x") {
					data := map[bool]string{true: "last", false: ""}[who == 'C' || who == 'N']
					switch who {
					case 'c', 'C':
						got := p.forwarded(tcp(client, vip, "FA", cSeq, cAck+shift, data), client, node)
						s := numbers(got)
						require.Equal(t, cSeq, s.Seq)
						require.Equal(t, cAck, s.Ack)
						require.Equal(t, data, string(s.Payload))
						cSeq += uint32(len(data)) + 1
						if !crossed {
							nAck = cSeq
						}
					default:
						got := p.forwarded(tcp(node, client, "FA", nSeq, nAck, data), vip, client)
						s := numbers(got)
						require.Equal(t, nSeq+shift, s.Seq)
						require.Equal(t, nAck, s.Ack)
						require.Equal(t, data, string(s.Payload))
						nSeq += uint32(len(data)) + 1
						if !crossed {
							cAck = nSeq
						}
					}
				}
				// The last acknowledgements pass, too.
				require.Equal(t, nSeq, numbers(p.forwarded(tcp(client, vip, "A", cSeq, nSeq+shift, ""), client, node)).Ack)
				require.Equal(t, nSeq+shift, numbers(p.forwarded(tcp(node, client, "A", nSeq, cSeq, ""), vip, client)).Seq)
			})
		}
	})
}

// Windows that close, and probes of both kinds, while the balancer collects, replays and translates.
func TestDelayedWindowsAndProbes(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{Read: ReadHTTP, Rules: byHost(t, l7.Rule{Index: 1, First: l7.Method{Kind: l7.PathPrefix, Value: "/"}, Action: l7.Action{Do: l7.Farm, Farm: "all"}})}),
			func(_ *Config, s *Service) { s.Delay.Farms = map[string]*steering.Pool{"all": s.Pool} })
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		ours := p.hello(client, 1000)
		text := get("/")
		p.send(tcp(client, vip, "PA", 1001, ours+1, text[:9]))
		// A keep-alive probe, with a byte and without, while the head is collected.
		for _, data := range []string{"", text[8:9]} {
			_, out := p.send(tcp(client, vip, "A", 1009, ours+1, data))
			require.EqualValues(t, 1010, numbers(out).Ack, "it is told where the balancer is")
		}
		_, out := p.sendAll(tcp(client, vip, "PA", 1010, ours+1, text[9:]))
		var node netip.AddrPort
		for _, b := range out {
			if f, _ := parseFlow(b); f.Dst != client {
				node = f.Dst
			}
		}
		// The node's window is closed: nothing but a probe of a byte goes there, until it opens.
		_, none := p.sendAll(withWindow(tcp(node, client, "SA", 500, 1001, ""), 0))
		for _, b := range none {
			require.Empty(t, numbers(b).Payload)
		}
		probes := 0
		for range 30 {
			p.now = p.now.Add(200 * time.Millisecond)
			_, outs := p.sendAll()
			for _, b := range outs {
				require.LessOrEqual(t, len(numbers(b).Payload), 1)
				probes++
			}
			p.sendAll(withWindow(tcp(node, client, "A", 501, 1001, ""), 0))
		}
		require.NotZero(t, probes)
		_, outs := p.sendAll(withWindow(tcp(node, client, "A", 501, 1001, ""), 1000))
		got := ""
		for _, b := range outs {
			if f, _ := parseFlow(b); f.Dst == node {
				got += string(numbers(b).Payload)
			}
		}
		require.Equal(t, text, got)
		p.send(tcp(node, client, "A", 501, 1001+uint32(len(text)), ""))
		require.Zero(t, p.Stats().Delay.Held)
		// Behind the splice closed windows and probes pass as they are.
		end := 1001 + uint32(len(text))
		b := p.forwarded(withWindow(tcp(client, vip, "A", end, ours+1, ""), 0), client, node)
		require.Zero(t, numbers(b).Window)
		b = p.forwarded(tcp(node, client, "A", 500, end, ""), vip, client)
		require.Equal(t, ours, numbers(b).Seq)
		b = p.forwarded(tcp(client, vip, "A", end-1, ours+1, ""), client, node)
		require.Equal(t, end-1, numbers(b).Seq)
		require.EqualValues(t, 501, numbers(b).Ack)
	})
}

// withWindow returns a segment with another window.
func withWindow(b []byte, n uint16) []byte {
	_, v := parseFlow(b)
	at := int(v.L4) + 14
	old := binary.BigEndian.Uint16(b[at:])
	binary.BigEndian.PutUint16(b[at:], n)
	var s sums
	s.Word(old, n)
	binary.BigEndian.PutUint16(b[v.SumOff:], s.d.Apply(binary.BigEndian.Uint16(b[v.SumOff:])))
	return b
}
