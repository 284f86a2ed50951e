package clienttable

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// seg is a segment, and what it must mean. Flags are written as tcpdump does: S, F,
// R, P, and a dot for ACK.
type seg struct {
	dir   Dir
	flags string
	seq   uint32
	ack   uint32
	n     int
	event TCPEvent
	phase TCPPhase
}

func tcpFlags(s string) (f uint8) {
	for _, c := range s {
		f |= map[rune]uint8{'S': TCPSyn, 'F': TCPFin, 'R': TCPRst, '.': TCPAck, 'P': 8}[c]
	}
	return
}

const c2s, s2c = FromClient, FromServer

// The beginning of many a session: client at 1000, server at 5000.
var handshake = []seg{
	{c2s, "S", 1000, 0, 0, TCPStarted, TCPSynSent},
	{s2c, "S.", 5000, 1001, 0, TCPSame, TCPSynReceived},
	{c2s, ".", 1001, 5001, 0, TCPOpened, TCPEstablished},
}

var request = []seg{
	{c2s, "P.", 1001, 5001, 2000, TCPSame, TCPEstablished},
	{s2c, "P.", 5001, 3001, 500, TCPSame, TCPEstablished},
	{c2s, ".", 3001, 5501, 0, TCPSame, TCPEstablished},
}

// again is a segment of no consequence.
func (g seg) again() seg {
	g.event = TCPSame
	return g
}

func join(parts ...[]seg) (all []seg) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return
}

func TestTCP(t *testing.T) {
	require.EqualValues(t, 24, unsafe.Sizeof(TCPState{}))
	require.Empty(t, whyNotPacked[Flow, TCPState]())
	closing := join(handshake, request, []seg{
		{c2s, "F.", 3001, 5501, 0, TCPHalfClosed, TCPFinClient},
		{s2c, "F.", 5501, 3002, 0, TCPSame, TCPClosing},
		{c2s, ".", 3002, 5502, 0, TCPEnded, TCPClosed},
	})
	for _, c := range []struct {
		name  string
		start TCPState
		segs  []seg
	}{
		{"handshake and data", TCPState{}, join(handshake, request)},
		{"SYN sent again", TCPState{}, join(handshake[:1], []seg{{c2s, "S", 1000, 0, 0, TCPSame, TCPSynSent}}, handshake[1:])},
		{"SYN+ACK sent again", TCPState{}, join(handshake[:2], []seg{{s2c, "S.", 5000, 1001, 0, TCPSame, TCPSynReceived}}, handshake[2:])},
		{"SYN+ACK sent again after the handshake", TCPState{}, join(handshake, []seg{{s2c, "S.", 5000, 1001, 0, TCPSame, TCPEstablished}}, request)},
		{"SYN with another number in place of the first", TCPState{}, []seg{
			handshake[0],
			{c2s, "S", 7000, 0, 0, TCPRestarted, TCPSynSent},
			{s2c, "S.", 5000, 1001, 0, TCPSame, TCPSynSent},
			{s2c, "S.", 5000, 7001, 0, TCPSame, TCPSynReceived},
			{c2s, ".", 7001, 5001, 0, TCPOpened, TCPEstablished},
		}},
		{"data on the last segment of the handshake", TCPState{}, join(handshake[:2], []seg{{c2s, "P.", 1001, 5001, 100, TCPOpened, TCPEstablished}})},
		{"FIN on the last segment of the handshake", TCPState{}, join(handshake[:2], []seg{{c2s, "F.", 1001, 5001, 0, TCPOpened, TCPFinClient}})},
		{"data on the SYN, accepted", TCPState{}, []seg{
			{c2s, "S", 1000, 0, 100, TCPStarted, TCPSynSent},
			{s2c, "S.", 5000, 1101, 0, TCPSame, TCPSynReceived},
			{s2c, "P.", 5001, 1101, 50, TCPSame, TCPSynReceived},
			{c2s, ".", 1101, 5051, 0, TCPOpened, TCPEstablished},
			{c2s, "R", 1101, 0, 0, TCPEnded, TCPReset},
		}},
		{"data on the SYN, not accepted", TCPState{}, []seg{
			{c2s, "S", 1000, 0, 100, TCPStarted, TCPSynSent},
			{s2c, "S.", 5000, 1001, 0, TCPSame, TCPSynReceived},
			{c2s, "P.", 1001, 5001, 100, TCPOpened, TCPEstablished},
		}},
		{"data on the SYN, sent again without", TCPState{}, []seg{
			{c2s, "S", 1000, 0, 100, TCPStarted, TCPSynSent},
			handshake[0].again(), handshake[1], handshake[2],
		}},
		{"data on the SYN, refused", TCPState{}, []seg{
			{c2s, "S", 1000, 0, 100, TCPStarted, TCPSynSent},
			{s2c, "R.", 0, 1101, 0, TCPEnded, TCPReset},
		}},
		{"SYN+ACK sent again with another number", TCPState{}, join(handshake[:2], []seg{
			{c2s, "S", 1000, 0, 0, TCPSame, TCPSynReceived},
			{s2c, "S.", 95000, 1001, 0, TCPSame, TCPSynReceived},
			{c2s, ".", 1001, 95001, 0, TCPOpened, TCPEstablished},
			{s2c, "F.", 95001, 1001, 0, TCPHalfClosed, TCPFinServer},
		})},
		{"a blind ACK does not complete a handshake", TCPState{}, []seg{
			handshake[0],
			{c2s, ".", 1001, 77, 0, TCPSame, TCPSynSent},
			handshake[1],
			{c2s, ".", 1001, 77, 0, TCPSame, TCPSynReceived},
			{c2s, "", 1001, 0, 10, TCPSame, TCPSynReceived},
			handshake[2],
		}},
		{"simultaneous open", TCPState{}, []seg{
			handshake[0],
			{s2c, "S", 5000, 0, 0, TCPSame, TCPSynReceived},
			{c2s, "S.", 1000, 5001, 0, TCPSame, TCPSynReceived},
			{s2c, "S.", 5000, 1001, 0, TCPSame, TCPSynReceived},
			{c2s, ".", 1001, 5001, 0, TCPOpened, TCPEstablished},
		}},
		{"refused", TCPState{}, []seg{
			handshake[0],
			{s2c, "R.", 0, 77, 0, TCPIgnored, TCPSynSent},
			{s2c, "R", 0, 0, 0, TCPIgnored, TCPSynSent},
			{s2c, "R.", 0, 1001, 0, TCPEnded, TCPReset},
			{c2s, "S", 9000, 0, 0, TCPRestarted, TCPSynSent},
		}},
		{"given up by the client", TCPState{}, []seg{
			handshake[0],
			{c2s, "R", 1000, 0, 0, TCPIgnored, TCPSynSent},
			{c2s, "R", 1001, 0, 0, TCPEnded, TCPReset},
		}},
		{"given up by the server", TCPState{}, join(handshake[:2], []seg{
			{s2c, "R", 5000, 0, 0, TCPIgnored, TCPSynReceived},
			{s2c, "R", 5001, 0, 0, TCPEnded, TCPReset},
			{s2c, "R", 5001, 0, 0, TCPSame, TCPReset},
		})},
		{"close by the client", TCPState{}, closing},
		{"close by the server", TCPState{}, join(handshake, request, []seg{
			{s2c, "F.", 5501, 3001, 0, TCPHalfClosed, TCPFinServer},
			{c2s, ".", 3001, 5502, 0, TCPSame, TCPFinServer},
			{c2s, "P.", 3001, 5502, 10, TCPSame, TCPFinServer},
			{s2c, ".", 5502, 3011, 0, TCPSame, TCPFinServer},
			{c2s, "F.", 3011, 5502, 0, TCPSame, TCPClosing},
			{s2c, ".", 5502, 3012, 0, TCPEnded, TCPClosed},
		})},
		{"simultaneous close", TCPState{}, join(handshake, []seg{
			{c2s, "F.", 1001, 5001, 0, TCPHalfClosed, TCPFinClient},
			{s2c, "F.", 5001, 1001, 0, TCPSame, TCPClosing},
			{c2s, ".", 1002, 5002, 0, TCPSame, TCPClosing},
			{s2c, ".", 5002, 1002, 0, TCPEnded, TCPClosed},
		})},
		{"half-closed: the answer is still delivered", TCPState{}, join(handshake, []seg{
			{c2s, "F.", 1001, 5001, 100, TCPHalfClosed, TCPFinClient},
			{s2c, ".", 5001, 1102, 1000, TCPSame, TCPFinClient},
			{c2s, ".", 1102, 6001, 0, TCPSame, TCPFinClient},
			{c2s, "F.", 1001, 6001, 100, TCPSame, TCPFinClient}, // sent again
			{s2c, ".", 6001, 1102, 1000, TCPSame, TCPFinClient},
		})},
		// The acknowledgement of the handshake was lost, or never was a packet of its own: the session is open all the same, and lives as long.
		{"half-closed by the packet that opens it", TCPState{}, join(handshake[:2], []seg{
			{c2s, "F.", 1001, 5001, 100, TCPOpened, TCPFinClient},
			{s2c, ".", 5001, 1102, 1000, TCPSame, TCPFinClient},
			{c2s, ".", 1102, 6001, 0, TCPSame, TCPFinClient},
			{s2c, "F.", 6001, 1102, 0, TCPSame, TCPClosing},
			{c2s, ".", 1102, 6002, 0, TCPEnded, TCPClosed},
		})},
		{"FIN before data that was lost", TCPState{}, join(handshake, []seg{
			{c2s, "F.", 1101, 5001, 100, TCPHalfClosed, TCPFinClient},
			{s2c, ".", 5001, 1001, 0, TCPSame, TCPFinClient},
			{s2c, "F.", 5001, 1001, 0, TCPSame, TCPClosing},
			{c2s, ".", 1202, 5002, 0, TCPSame, TCPClosing},
			{c2s, ".", 1001, 5002, 100, TCPSame, TCPClosing},
			{s2c, ".", 5002, 1202, 0, TCPEnded, TCPClosed},
		})},
		{"late segments after the end", TCPState{}, join(closing, []seg{
			{c2s, ".", 3002, 5502, 0, TCPSame, TCPClosed},
			{s2c, "F.", 5501, 3002, 0, TCPSame, TCPClosed},
			{c2s, "R", 3002, 0, 0, TCPSame, TCPClosed},
			{s2c, "S.", 5000, 1001, 0, TCPSame, TCPClosed},
		})},
		{"numbers that wrap", TCPState{}, []seg{
			{c2s, "S", 0xffffff00, 0, 0, TCPStarted, TCPSynSent},
			{s2c, "S.", 0xfffffffe, 0xffffff01, 0, TCPSame, TCPSynReceived},
			{c2s, ".", 0xffffff01, 0xffffffff, 0, TCPOpened, TCPEstablished},
			{c2s, "P.", 0xffffff01, 0xffffffff, 1000, TCPSame, TCPEstablished},
			{s2c, "P.", 0xffffffff, 0x2e9, 3, TCPSame, TCPEstablished},
			{s2c, "R", 0xffffffff, 0, 0, TCPSame + TCPEnded, TCPReset},
		}},
		// L16: a SYN on a session in TIME_WAIT begins another at once.
		{"TIME_WAIT reuse", TCPState{}, join(closing, []seg{
			{c2s, "S", 90000, 0, 0, TCPRestarted, TCPSynSent},
			{s2c, "S.", 70000, 90001, 0, TCPSame, TCPSynReceived},
			{c2s, ".", 90001, 70001, 0, TCPOpened, TCPEstablished},
		})},
		{"TIME_WAIT reuse with a smaller number", TCPState{}, join(closing, []seg{{c2s, "S", 5, 0, 0, TCPRestarted, TCPSynSent}})},
		// L19: the server holds an older session and objects to the SYN.
		{"challenge ACK", TCPState{}, []seg{
			{c2s, "S", 1000, 0, 0, TCPStarted, TCPSynSent},
			{s2c, ".", 800000, 600000, 0, TCPSame, TCPSynSent},
			{c2s, "R", 600000, 0, 0, TCPSame, TCPSynSent},
			{c2s, "S", 1000, 0, 0, TCPSame, TCPSynSent},
			{s2c, "S.", 5000, 1001, 0, TCPSame, TCPSynReceived},
			{c2s, ".", 1001, 5001, 0, TCPOpened, TCPEstablished},
		}},
		{"port reuse within a session: the server objects, the client resets", TCPState{}, join(handshake, request, []seg{
			{c2s, "S", 90000, 0, 0, TCPSame, TCPEstablished},
			{s2c, ".", 5501, 3001, 0, TCPSame, TCPEstablished},
			{c2s, "R", 3001, 0, 0, TCPEnded, TCPReset},
			{c2s, "S", 90000, 0, 0, TCPRestarted, TCPSynSent},
		})},
		{"port reuse within a session: the server answers", TCPState{}, join(handshake, request, []seg{
			{c2s, "S", 90000, 0, 0, TCPSame, TCPEstablished},
			{s2c, "S.", 70000, 90001, 0, TCPRestarted, TCPSynReceived},
			{c2s, ".", 90001, 70001, 0, TCPOpened, TCPEstablished},
		})},
		{"a SYN within a session changes nothing by itself", TCPState{}, join(handshake, request, []seg{
			{c2s, "S", 90000, 0, 0, TCPSame, TCPEstablished},
			{c2s, "R", 90001, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, ".", 3001, 5501, 10, TCPSame, TCPEstablished},
		})},
		// L20.
		{"RST must fit", TCPState{}, join(handshake, request, []seg{
			{c2s, "R", 0, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, "R", 1000000, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, "R", 42, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, "R", 3000, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, "R", 3001, 0, 0, TCPEnded, TCPReset},
		})},
		{"RST of the server must fit", TCPState{}, join(handshake, request, []seg{
			{s2c, "R", 5500, 0, 0, TCPIgnored, TCPEstablished},
			{s2c, "R", 5502, 0, 0, TCPIgnored, TCPEstablished},
			{s2c, "R.", 5501, 3001, 0, TCPEnded, TCPReset},
		})},
		{"RST between acknowledged and sent", TCPState{}, join(handshake, []seg{
			{c2s, ".", 1001, 5001, 1000, TCPSame, TCPEstablished},
			{c2s, ".", 2001, 5001, 1000, TCPSame, TCPEstablished},
			{s2c, ".", 5001, 2001, 0, TCPSame, TCPEstablished},
			{c2s, "R", 2000, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, "R", 3002, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, "R", 2500, 0, 0, TCPEnded, TCPReset},
		})},
		{"a blind FIN does not end anything", TCPState{}, join(handshake, request, []seg{
			{s2c, "F.", 5501 + 3<<29, 3001, 0, TCPSame, TCPEstablished},
			{c2s, ".", 3001, 5501, 10, TCPSame, TCPEstablished},
		})},
		{"seen from the middle", TCPState{}, []seg{
			{c2s, "P.", 3001, 5501, 10, TCPStarted, TCPEstablished},
			{s2c, ".", 5501, 3011, 100, TCPSame, TCPEstablished},
			{c2s, "R", 2, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, "F.", 3011, 5601, 0, TCPHalfClosed, TCPFinClient},
			{s2c, "F.", 5601, 3012, 0, TCPSame, TCPClosing},
			{c2s, ".", 3012, 5602, 0, TCPEnded, TCPClosed},
		}},
		{"seen from the server's answer on", TCPState{}, join([]seg{{s2c, "S.", 5000, 1001, 0, TCPStarted, TCPSynReceived}}, handshake[2:], request)},
		{"begins with an RST", TCPState{}, []seg{{c2s, "R", 1, 0, 0, TCPIgnored, TCPNone}}},
		{"one way", OneWayTCP(), []seg{
			{c2s, "S", 1000, 0, 0, TCPStarted, TCPSynSent},
			{c2s, ".", 1001, 5001, 0, TCPOpened, TCPEstablished},
			{c2s, "P.", 1001, 5001, 100, TCPSame, TCPEstablished},
			{c2s, "R", 0, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, "R", 1100, 0, 0, TCPIgnored, TCPEstablished},
			{c2s, "F.", 1101, 9001, 0, TCPEnded, TCPClosed},
			{c2s, ".", 1102, 9999, 0, TCPSame, TCPClosed},
			// L15: the port is used again.
			{c2s, "S", 5, 0, 0, TCPRestarted, TCPSynSent},
			{c2s, ".", 6, 5001, 0, TCPOpened, TCPEstablished},
			{c2s, "R", 6, 0, 0, TCPEnded, TCPReset},
		}},
		{"one way, the end was not seen", OneWayTCP(), []seg{
			{c2s, "S", 1000, 0, 0, TCPStarted, TCPSynSent},
			{c2s, ".", 1001, 5001, 0, TCPOpened, TCPEstablished},
			{c2s, "S", 1000, 0, 0, TCPSame, TCPEstablished}, // old
			{c2s, "S", 90000, 0, 0, TCPRestarted, TCPSynSent},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.start
			for i, g := range c.segs {
				e := s.Update(g.dir, tcpFlags(g.flags), g.seq, g.ack, g.n)
				at := fmt.Sprintf("segment %d: %v %s %d ack %d len %d", i, g.dir, g.flags, g.seq, g.ack, g.n)
				require.Equal(t, g.event.String(), e.String(), at)
				require.Equal(t, g.phase.String(), s.Phase().String(), at)
				require.Equal(t, c.start.OneWay(), s.OneWay())
			}
		})
	}
}

// Every phase meets every kind of segment: whatever comes, an RST or FIN that does
// not fit never ends a session, and only an end ends one.
func TestTCPEveryPhase(t *testing.T) {
	type at struct {
		name string
		segs []seg
	}
	closing := join(handshake, request, []seg{{c2s, "F.", 3001, 5501, 0, 0, 0}, {s2c, "F.", 5501, 3001, 0, 0, 0}})
	phases := []at{
		{"none", nil}, {"syn-sent", handshake[:1]}, {"syn-received", handshake[:2]}, {"established", join(handshake, request)},
		{"fin-client", closing[:7]}, {"fin-server", join(handshake, request, []seg{{s2c, "F.", 5501, 3001, 0, 0, 0}})},
		{"closing", closing},
		{"closed", join(closing, []seg{{c2s, ".", 3002, 5502, 0, 0, 0}, {s2c, ".", 5502, 3002, 0, 0, 0}})},
		{"reset", join(handshake, request, []seg{{c2s, "R", 3001, 0, 0, 0, 0}})},
	}
	for _, p := range phases {
		var s TCPState
		for _, g := range p.segs {
			s.Update(g.dir, tcpFlags(g.flags), g.seq, g.ack, g.n)
		}
		require.Equal(t, p.name, s.Phase().String())
		for _, g := range []struct {
			name string
			seg  seg
			want map[string]TCPPhase // by phase; else it stays
		}{
			{"blind RST of the client", seg{dir: c2s, flags: "R", seq: 123456789}, nil},
			{"blind RST of the server", seg{dir: s2c, flags: "R", seq: 123456789}, nil},
			{"blind RST+ACK of the server", seg{dir: s2c, flags: "R.", seq: 123456789, ack: 987654321}, nil},
			{"SYN with another number", seg{dir: c2s, flags: "S", seq: 900000000}, map[string]TCPPhase{
				"none": TCPSynSent, "closed": TCPSynSent, "reset": TCPSynSent,
			}},
			{"SYN+ACK that fits nothing", seg{dir: s2c, flags: "S.", seq: 900000000, ack: 800000000}, map[string]TCPPhase{"none": TCPSynReceived}},
			{"SYN+ACK of the client", seg{dir: c2s, flags: "S.", seq: 900000000, ack: 800000000}, nil},
			{"no flags at all", seg{dir: c2s, seq: 3001, n: 1}, map[string]TCPPhase{"none": TCPEstablished}},
			{"FIN far off", seg{dir: c2s, flags: "F.", seq: 3001 + 3<<29, ack: 5501}, map[string]TCPPhase{"none": TCPFinClient}},
			{"SYN+FIN", seg{dir: c2s, flags: "SF", seq: 3001}, map[string]TCPPhase{"none": TCPSynSent, "closed": TCPSynSent, "reset": TCPSynSent}},
		} {
			t.Run(p.name+"/"+g.name, func(t *testing.T) {
				s := s
				want, ok := g.want[p.name]
				if !ok {
					want = s.Phase()
				}
				s.Update(g.seg.dir, tcpFlags(g.seg.flags), g.seg.seq, g.seg.ack, g.seg.n)
				require.Equal(t, want.String(), s.Phase().String())
			})
		}
	}
}

// The RST that closes a session at ageing is one that the state itself would take.
func TestTCPReset(t *testing.T) {
	var s TCPState
	_, _, ok := s.Reset(FromClient)
	require.False(t, ok, "nothing is known")
	play := func(segs []seg) {
		for _, g := range segs {
			s.Update(g.dir, tcpFlags(g.flags), g.seq, g.ack, g.n)
		}
	}
	play(handshake[:1])
	seq, ack, ok := s.Reset(FromClient)
	require.True(t, ok)
	require.Equal(t, []uint32{0, 1001}, []uint32{seq, ack}, "in answer to the SYN")
	play(handshake[1:])
	play(request)
	seq, ack, ok = s.Reset(FromClient)
	require.True(t, ok)
	require.Equal(t, []uint32{5501, 3001}, []uint32{seq, ack})
	c := s
	require.Equal(t, TCPEnded, c.Update(FromServer, TCPRst|TCPAck, seq, ack, 0))
	seq, ack, ok = s.Reset(FromServer)
	require.True(t, ok)
	require.Equal(t, []uint32{3001, 5001 + 500}, []uint32{seq, ack})
	c = s
	require.Equal(t, TCPEnded, c.Update(FromClient, TCPRst|TCPAck, seq, ack, 0))
	_, _, ok = c.Reset(FromClient)
	require.False(t, ok, "it has ended")
}

func FuzzTCPState(f *testing.F) {
	f.Add([]byte{0, TCPSyn, 1, 0, 1, TCPSyn | TCPAck, 1, 2, 0, TCPAck, 2, 2}, false)
	f.Fuzz(func(t *testing.T, b []byte, oneWay bool) {
		var s TCPState
		if oneWay {
			s = OneWayTCP()
		}
		timers, _ := NewTimers(nil)
		for ; len(b) >= 4; b = b[4:] {
			was := s.Phase()
			e := s.Update(Dir(b[0]), b[1], uint32(b[2])<<24|uint32(b[2]), uint32(b[3])<<24|uint32(b[3]), int(b[0]>>1))
			switch {
			case s.OneWay() != oneWay:
				t.Fatal("direction changed")
			case e == TCPIgnored && s.Phase() != was:
				t.Fatal("an ignored segment changed the phase")
			case (e == TCPEnded) != (s.Ended() && s.Phase() != was):
				t.Fatalf("%v: %v to %v", e, was, s.Phase())
			case s.Phase() < was && e != TCPRestarted:
				t.Fatalf("%v: back from %v to %v", e, was, s.Phase())
			}
			l := timers.TCP(s, 80, EntryPerSession)
			if l.TTL <= 0 || (l.Class == HalfOpen) != s.HalfOpen() || (l.Class == Lingering) != s.Ended() {
				t.Fatalf("%v in %v", l, s.Phase())
			}
			if seq, ack, ok := s.Reset(FromClient); ok {
				c := s
				c.Update(FromServer, TCPRst|TCPAck, seq, ack, 0)
			}
		}
	})
}

func TestTimers(t *testing.T) {
	d, err := NewTimers(nil)
	require.NoError(t, err)
	require.Equal(t, Life{TTL: time.Minute}, d.Life(17, 53))
	require.True(t, d.Tracks(17))
	syn := TCPState{phase: TCPSynSent}
	require.Equal(t, Life{TTL: 5 * time.Second, Class: HalfOpen}, d.TCP(syn, 80, Regular))
	no, err := NewTimers(&Ageing{NoSYN: true, NoUDP: true, CloseAtAgeing: CloseBoth})
	require.NoError(t, err)
	require.Equal(t, Life{TTL: time.Minute, Class: HalfOpen}, no.TCP(syn, 80, Regular))
	require.False(t, no.Tracks(17))
	require.True(t, no.Tracks(6))
	require.True(t, no.CloseAtAgeing().To(FromClient) && no.CloseAtAgeing().To(FromServer))
	require.True(t, CloseClient.To(FromClient) && !CloseClient.To(FromServer) && !CloseServer.To(FromClient) && CloseServer.To(FromServer))
	ports, err := NewTimers(&Ageing{Ports: []PortAge{{22, time.Hour, 20}, {23, 2 * time.Minute, 0}}})
	require.NoError(t, err)
	up := TCPState{phase: TCPEstablished}
	require.Equal(t, Life{TTL: 20 * time.Hour}, ports.TCP(up, 22, Regular))
	require.Equal(t, Life{TTL: 2 * time.Minute}, ports.TCP(up, 23, Regular))
	require.Equal(t, Life{TTL: time.Minute}, ports.TCP(up, 24, Regular))
	require.Equal(t, Life{TTL: time.Minute}, ports.Life(17, 22), "only TCP")
	end := TCPState{phase: TCPClosed}
	require.Equal(t, Life{TTL: time.Minute, Class: Lingering}, d.TCP(end, 80, EntryPerSession), "ages out")
	require.Equal(t, Life{TTL: 5 * time.Second, Class: Lingering, Fixed: true}, d.TCP(end, 80, RemoveOnEndServerPerSession))
	one := OneWayTCP()
	one.phase = TCPClosed
	require.Equal(t, Life{TTL: time.Minute, Class: Lingering}, d.TCP(one, 80, RemoveOnEndEntryPerSession))

	_, err = NewTimers(&Ageing{Idle: -1, SYN: 1, NoSYN: true, CloseAtAgeing: 9, Ports: []PortAge{{0, time.Minute, 1}, {1, time.Hour, 2}, {1, time.Hour, 21}}})
	for _, want := range []string{"Idle -1ns", "SYN 1ns", "CloseAtAgeing", "Ports[0].Port 0", "Ports[0].Age 1m0s: must be 2 to 60 minutes", "Ports[0].Multiplier 1", "Ports[2].Port 1", "Ports[2].Multiplier 21"} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorIs(t, err, ErrInvalid)
}
