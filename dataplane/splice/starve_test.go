package splice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scaled are the options of a client that scales its window.
var scaled = Options{MSS: 1460, HasScale: true, Scale: 7, SACKPermitted: true, Timestamps: true, TSVal: 5}

// scaledSay is a segment of such a client's at an offset of its stream.
func (r *rig) scaledSay(at, n int) (Event, bool) {
	return r.client(Segment{Seq: r.isn + 1 + uint32(at), Ack: r.ours, Flags: ACK, Window: 500, Payload: make([]byte, n), Options: Options{Timestamps: true, TSVal: 5}})
}

// scaledAnswer is the server's SYN-ACK to such a client.
func (r *rig) scaledAnswer() Event {
	ev, _ := r.c.FromServer(r.now, &Segment{Seq: r.sis, Ack: r.isn + 1, Flags: SYN | ACK, Window: 60000, Options: Options{MSS: 1460, HasScale: true, Scale: 7, SACKPermitted: true, Timestamps: true, TSVal: 9}}, r.emit)
	return ev
}

// scaledAck is the server's acknowledgement up to an offset of the client's stream.
func (r *rig) scaledAck(at int) (Event, bool) {
	return r.c.FromServer(r.now, &Segment{Seq: r.sis + 1, Ack: r.isn + 1 + uint32(at), Flags: ACK, Window: 400, Options: Options{Timestamps: true, TSVal: 9}}, r.emit)
}

// A client is let send no less than a unit of its window's scale. What it then sends is taken: it would count what is dropped as lost, and send
// it again after a time that doubles for as long as the servers are silent.
func TestAllThatIsPromisedIsTaken(t *testing.T) {
	for _, offer := range []uint8{1, 7, 14} {
		r := newRig(t, scaled, &Offer{Scale: offer}, Limits{})
		unit := 1 << offer
		sent, full := 0, 0
		for sent < 3584 {
			room := 3584 - sent
			if got := r.took(Client); len(got) > 0 {
				room = int(got[len(got)-1].Window) << offer
				require.NotZero(t, room, "a window that is open does not look closed")
			}
			n := min(room, 1099)
			ev, _ := r.scaledSay(sent, n)
			if sent += n; ev == Full {
				full++
			}
			require.Equal(t, sent, len(r.c.Data()), "all that the client was let send")
		}
		require.Equal(t, 1, full)
		require.Less(t, sent, 3584+unit)
		last := r.took(Client)
		require.Zero(t, last[len(last)-1].Window)
		require.Equal(t, r.isn+1+uint32(sent), last[len(last)-1].Ack)
		r.scaledSay(3584+unit, 1)
		require.Equal(t, sent, len(r.c.Data()))
		require.Empty(t, r.c.gaps, "and no more")
		r.c.Connect(r.now, r.emit)
		r.took(Server)
		require.Equal(t, Established, r.scaledAnswer())
		n := 0
		for _, s := range r.took(Server) {
			n += len(s.Payload)
		}
		require.Equal(t, sent, n, "the server gets it")
		ev, _ := r.scaledAck(sent)
		require.NotEqual(t, Gone, ev)
	}
}

// starved is a connection whose client has sent all that it may, waits to send more, and has a server at last.
func starved(t *testing.T) *rig {
	r := newRig(t, scaled, nil, Limits{ServerTime: 20 * time.Second})
	for at := 0; at < 3584; at += 896 {
		r.scaledSay(at, 896)
	}
	r.c.Connect(r.now, r.emit)
	r.took(Client)
	for range 3 { // SYNs are lost; the client probes
		r.tick()
		ev, _ := r.scaledSay(3583, 0)
		require.Equal(t, None, ev)
		probed := r.took(Client)
		require.Len(t, probed, 1)
		require.Zero(t, probed[0].Window)
	}
	r.took(Server)
	require.Equal(t, Established, r.scaledAnswer())
	require.Len(t, r.took(Server), 3)
	return r
}

// A client that waits to send learns that it may, although what tells it is lost: its own timer may be doubled many times by then.
func TestClientsThatWaitAreToldAgain(t *testing.T) {
	r := starved(t)
	told := r.took(Client)
	require.Len(t, told, 1, "at once")
	require.EqualValues(t, (60000-3584)>>7, told[0].Window, "what the server takes, less what it is going to get")
	ev, forward := r.scaledAck(3584)
	require.Equal(t, None, ev, "not done before the client knows")
	require.True(t, forward)
	begin, reminders := r.now, 0
	for ev = None; ev == None; ev = r.tick() {
		if told = r.took(Client); len(told) > 0 {
			require.Len(t, told, 1)
			require.NotZero(t, told[0].Window)
			require.Equal(t, r.isn+1+3584, told[0].Ack)
			reminders++
			require.LessOrEqual(t, r.now.Sub(begin), 200*time.Millisecond<<reminders)
		}
	}
	require.Equal(t, mostReminders, reminders, "not for ever")
	require.Equal(t, Done, ev)
	require.Zero(t, len(r.took(Server)), "the server has it all")
	require.Less(t, r.now.Sub(begin), 10*time.Second)
}

// Whatever shows that the client knows ends that.
func TestClientsThatWereToldEndTheReplay(t *testing.T) {
	for name, s := range map[string]Segment{
		"more data":                  {Seq: 3584, Flags: ACK, Payload: make([]byte, 100)},
		"the end":                    {Seq: 3584, Flags: ACK | FIN},
		"an answer of the server's":  {Seq: 3584, Ack: 50, Flags: ACK},
		"more, behind what was lost": {Seq: 5000, Flags: ACK, Payload: make([]byte, 1000)},
	} {
		for _, late := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := starved(t)
				r.took(Client)
				_, forward := r.c.FromServer(r.now, &Segment{Seq: r.sis + 1, Ack: r.isn + 1 + 3583, Flags: ACK, Window: 400, Payload: make([]byte, 50), Options: Options{Timestamps: true, TSVal: 9}}, r.emit)
				require.True(t, forward)
				if late {
					ev, _ := r.scaledAck(3584)
					require.Equal(t, None, ev)
				}
				probe, forward := r.scaledSay(3584, 1)
				require.Equal(t, None, probe, "a probe does not show it")
				require.True(t, forward)
				s := s
				s.Seq, s.Ack = s.Seq+r.isn+1, s.Ack+r.ours
				s.Options = Options{Timestamps: true, TSVal: 6}
				ev, forward := r.client(s)
				require.True(t, forward)
				if !late {
					require.Equal(t, None, ev)
					ev, _ = r.scaledAck(3584)
				}
				require.Equal(t, Done, ev)
			})
		}
	}
}

// A client that sends again what it has not seen acknowledged is told that it is there: the server's acknowledgements were lost, or are yet to come.
func TestReplayedBytesAreAcknowledgedAgain(t *testing.T) {
	r := newRig(t, scaled, nil, Limits{})
	r.scaledSay(0, 1000)
	r.c.Connect(r.now, r.emit)
	r.took(Client)
	require.Equal(t, Established, r.scaledAnswer())
	require.Empty(t, r.took(Client))
	_, forward := r.scaledSay(0, 1000)
	require.False(t, forward)
	told := r.took(Client)
	require.Len(t, told, 1)
	require.Equal(t, r.isn+1+1000, told[0].Ack)
	require.NotZero(t, told[0].Window)
	// Once the server has them, they go there: it acknowledges them itself.
	r = starved(t)
	ev, _ := r.scaledAck(3584)
	require.Equal(t, None, ev)
	r.took(Client)
	_, forward = r.scaledSay(3000, 100)
	require.True(t, forward)
	require.Empty(t, r.took(Client))
}

// That SYNs were lost makes no round trip long: the timer of all that follows would be.
func TestTimersAfterLostSYNs(t *testing.T) {
	for _, follow := range []bool{false, true} {
		for lost := range 4 {
			r := newRig(t, Options{}, nil, Limits{ServerTime: 20 * time.Second})
			if follow {
				r.c.Follow()
			}
			r.say(0, PSH, "GET / HTTP/1.1\r\n\r\n")
			r.c.Connect(r.now, r.emit)
			for range lost {
				r.tick()
			}
			r.now = r.now.Add(130 * time.Millisecond)
			r.c.FromServer(r.now, &Segment{Seq: r.sis, Ack: r.isn + 1, Flags: SYN | ACK, Window: 60000, Options: Options{MSS: 1460}}, r.emit)
			if !follow {
				require.Equal(t, 260*time.Millisecond, r.c.Deadline().Sub(r.now))
				continue
			}
			relay := r.c.Relay(r.now)
			relay.Release(r.now, len(relay.Data()))
			relay.Flush(r.now, r.emit)
			require.Equal(t, relayRTO, relay.Deadline().Sub(r.now))
		}
	}
}

// A Relay takes what it has let the client send, too.
func TestRelayTakesAllThatIsPromised(t *testing.T) {
	r := newRig(t, scaled, &Offer{Scale: 7}, Limits{})
	r.c.Follow()
	r.scaledSay(0, 1000)
	r.c.Connect(r.now, r.emit)
	require.Equal(t, Established, r.scaledAnswer())
	relay := r.c.Relay(r.now)
	sent, room := 1000, relayRoom
	for room > 0 {
		n := min(room, 1021)
		relay.FromClient(r.now, &Segment{Seq: r.isn + 1 + uint32(sent), Ack: r.ours, Flags: ACK, Window: 500, Payload: make([]byte, n), Options: Options{Timestamps: true, TSVal: 5}}, r.emit)
		sent += n
		require.Equal(t, sent, len(relay.Data()))
		r.took(Client)
		relay.Flush(r.now, r.emit)
		told := r.took(Client)
		require.NotEmpty(t, told)
		room = int(told[len(told)-1].Window) << 7
	}
	require.GreaterOrEqual(t, sent, relayRoom)
	require.Less(t, sent, relayRoom+1<<7)
}
