package dataplane

import (
	"encoding/binary"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// Inputs on which other systems have failed.

// A wrong checksum in the quoted header does not matter, unless asked for.
func TestQuoteWithWrongChecksum(t *testing.T) {
	fam := families2()[0]
	for _, strict := range []bool{false, true} {
		p := newPlane(t, fam, func(c *Config, _ *Service) { c.CheckQuotes = strict })
		client := ap(fam.client, 40000)
		node := p.open(client)
		quoted := tcp(client, node, "A", 101, 501, "data")
		quoted[10] ^= 0x55
		v, out := p.send(unreachable(fam.router, fam.client, quoted, 8))
		if strict {
			require.Equal(t, Passed, v, "not for a virtual address: nothing of ours")
			v, _ = p.send(unreachable(fam.router, fam.vip, func() []byte {
				b := tcp(ap(fam.vip, 80), client, "A", 1, 1, "data")
				b[10] ^= 0x55
				return b
			}(), 8))
			require.Equal(t, Dropped, v)
			require.EqualValues(t, 1, p.drops()[BadQuote])
			continue
		}
		require.Equal(t, Forwarded, v)
		_, w := parseFlow(out)
		require.True(t, w.SumOK(out))
		var q wire.View
		require.Equal(t, wire.OK, wire.ParseQuoted(w.Quote(out), &q))
		require.Equal(t, fam.vip, addrOf(q.Dst(w.Quote(out))))
		require.False(t, q.HeaderSumOK(w.Quote(out)), "what was wrong stays wrong")
	}
}

func TestIPv4OptionsAndTCPOffsets(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
	ip := ipLayer(fam.client, fam.vip, layers.IPProtocolTCP).(*layers.IPv4)
	ip.Options = []layers.IPv4Option{{OptionType: 7, OptionLength: 11, OptionData: make([]byte, 9)}, {OptionType: 0, OptionLength: 1}}
	l := &layers.TCP{SrcPort: 40000, DstPort: 80, SYN: true, Options: []layers.TCPOption{
		{OptionType: 8, OptionLength: 10, OptionData: make([]byte, 8)}, {OptionType: 99, OptionLength: 6, OptionData: []byte{1, 2, 3, 4}}}}
	require.NoError(t, l.SetNetworkLayerForChecksum(ip))
	b := serialize(ip, l, gopacket.Payload("early data"))
	v, out := p.send(b)
	require.Equal(t, Forwarded, v)
	f, w := parseFlow(out)
	p.wellFormed(out, client, f.Dst)
	require.Equal(t, b[20:w.L4], out[20:w.L4], "options stay")
	require.Equal(t, "early data", string(out[w.Payload:]))
	_ = vip
}

// A tunnel's packet to a virtual address is a packet like any other: it is not opened.
func TestTunnelToAVIPIsNotOpened(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	inner := tcp(ap(fam.client, 1), ap(fam.vip, 80), "S", 1, 0, "")
	b := make([]byte, 20+len(inner))
	copy(b[20:], inner)
	wire.PutHeader(b, fam.client.AsSlice(), fam.vip.AsSlice(), wire.ProtoIPv4, 64, 0, len(b))
	v, _ := p.send(b)
	require.Equal(t, Dropped, v)
	require.EqualValues(t, 1, p.drops()[NoPolicy])
}

func TestEstablishedSurviveAFlood(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.MaxSessions = 100
			s.Mode = clienttable.ServerPerSession
		})
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		for i := range uint16(1000) {
			p.send(tcp(ap(fam.client2, 1+i), vip, "S", 1, 0, ""))
			if i%20 == 0 {
				p.Step(p.now)
			}
		}
		p.forwarded(tcp(client, vip, "A", 101, 501, "still here"), client, node)
		require.LessOrEqual(t, p.Stats().Sessions, 100)
	})
}

func TestFragmentsInParallelWithClose(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	payload := strings.Repeat("0123456789abcdef", 200)
	var wg sync.WaitGroup
	for i := range 3 {
		w := p.NewWorker(Link{})
		wg.Go(func() {
			for id := range uint32(300) {
				for _, f := range split(udp(ap(fam.client, uint16(1+i)), ap(fam.vip, 80), payload), 1400, id) {
					buf := append(make([]byte, ReadOffset), f...)
					w.Process(p.now, [][]byte{buf}, []int{len(f)}, ReadOffset, nil)
				}
			}
		})
	}
	wg.Go(func() {
		p.Step(p.now.Add(fragmentLife))
		p.Close()
	})
	wg.Wait()
}

// TestRegularSkipsThePolicies: a second connection finds its service and node by the client alone.
func TestRegularSkipsThePolicies(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) {
			s.Mode = clienttable.Regular
			s.ClientBits4, s.ClientBits6 = 24, 64
		})
		node := p.open(ap(fam.client, 40000))
		e, err := p.ExplainFlow(wire.ProtoTCP, ap(fam.client2, 1), ap(fam.vip, 80))
		require.NoError(t, err)
		require.Nil(t, e.Policy, "a neighbour counts as the same client, and no policy is searched")
		require.Equal(t, node, e.Out.Dst())
		// An entry wins over a policy that has changed, until it ages.
		other := &Service{Name: "other", Pool: mustPool(t, p.ids, steering.Maglev, steering.Node{Name: "new", Addr: ap(fam.n3, 9090)})}
		require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", other), rule("rest", fam.vip.String(), p.svc))))
		require.Equal(t, node, p.open(ap(fam.client, 40001)))
		p.now = p.now.Add(24 * time.Hour)
		p.Step(p.now)
		require.Equal(t, ap(fam.n3, 9090), p.open(ap(fam.client, 40002)), "it has aged")
	})
}

// The most specific policy stands although its farm is empty, and a broader one has nodes.
func TestEmptyFarmIsNoMiss(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		empty := &Service{Name: "empty", Pool: mustPool(t, p.ids, steering.RoundRobin, steering.Node{Name: "off", Addr: ap(fam.n3, 9090), Admin: steering.Disabled})}
		require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", empty), rule("rest", fam.vip.String(), p.svc))))
		v, _ := p.send(tcp(ap(fam.client, 1), ap(fam.vip, 80), "S", 1, 0, ""))
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[NoNode])
		v, _ = p.send(tcp(ap(fam.client, 1), ap(fam.vip, 81), "S", 1, 0, ""))
		require.Equal(t, Forwarded, v)
	})
}

func TestNoNegativeResultIsKept(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		p.SetUp("n1", false)
		p.SetUp("n2", false)
		syn := tcp(ap(fam.client, 1), ap(fam.vip, 80), "S", 1, 0, "")
		v, _ := p.send(syn)
		require.Equal(t, Dropped, v)
		require.EqualValues(t, 1, p.drops()[NoNode])
		p.SetUp("n1", true)
		v, _ = p.send(syn)
		require.Equal(t, Forwarded, v)
	})
}

func TestSeveralPacketsOfANewSessionInOneBatch(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = clienttable.ServerPerSession })
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		v, out := p.sendAll(udp(client, vip, "1"), udp(client, vip, "2"), udp(client, vip, "3"), tcp(client, vip, "S", 1, 0, ""), tcp(client, vip, "A", 2, 1, ""))
		require.Equal(t, []Verdict{Forwarded, Forwarded, Forwarded, Forwarded, Forwarded}, v)
		a, _ := parseFlow(out[0])
		for _, o := range out[1:3] {
			b, _ := parseFlow(o)
			require.Equal(t, a, b)
		}
		require.Equal(t, 2, p.Stats().Sessions)
		n := 0
		for s := range p.Sessions() {
			require.Equal(t, client, s.Client)
			require.Equal(t, vip, s.VIP)
			require.Equal(t, "web", s.Service)
			require.False(t, s.Direct())
			n++
		}
		require.Equal(t, 2, n)
	})
}

func TestWrongChecksumsStayWrong(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		b := udp(ap(fam.client, 1), ap(fam.vip, 80), "x")
		at := len(b) - 3
		binary.BigEndian.PutUint16(b[at:], binary.BigEndian.Uint16(b[at:])+1)
		v, out := p.send(b)
		require.Equal(t, Forwarded, v)
		_, w := parseFlow(out)
		require.False(t, w.SumOK(out), "the receiver must notice")
	})
}
