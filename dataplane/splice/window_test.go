package splice

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An acknowledgement that was overtaken by a later one says nothing of the window any more.
func TestOvertakenWindows(t *testing.T) {
	n, win := newest{}, 0
	for _, c := range []struct {
		text                string
		seq, ack, win, want uint32
	}{
		{"the first", 10, 100, 500, 500},
		{"an update, with nothing new", 10, 100, 800, 800},
		{"an older acknowledgement with a small window", 10, 99, 1, 800},
		{"of an older segment, too", 9, 99, 1, 800},
		{"told once more: nothing is taken back", 10, 100, 500, 800},
		{"another acknowledgement", 10, 200, 700, 700},
		{"data", 20, 200, 600, 600},
		{"older data, sent again", 10, 200, 900, 600},
		{"the window closes", 21, 200, 0, 0},
		{"and opens", 21, 200, 70, 70},
		{"later", 0xfffffff0, 0x70000000, 5, 5},
		{"across the wrap", 3, 0x70000000, 6, 6},
		{"overtaken by that", 3, 0x6fffffff, 1, 6},
	} {
		if n.window(&Segment{Seq: c.seq, Ack: c.ack}, win, int(c.win)) {
			win = int(c.win)
		}
		require.EqualValues(t, c.want, win, c.text)
	}
}

// A reply goes on as fast as the client's latest window lets, although an older acknowledgement with next to none comes late.
func TestReplyPastAnOvertakenAcknowledgement(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, PSH, "GET")
	r.took(Client)
	r.c.Reply(r.now, make([]byte, 40000), r.emit)
	acked := 0
	for range 3 {
		for _, s := range r.took(Client) {
			acked += len(s.Payload)
		}
		r.client(Segment{Seq: r.isn + 4, Ack: r.ours + uint32(acked), Flags: ACK, Window: 0xffff})
	}
	require.NotEmpty(t, r.took(Client))
	r.client(Segment{Seq: r.isn + 4, Ack: r.ours + 1, Flags: ACK, Window: 1})
	require.EqualValues(t, 0xffff, r.c.clientWin)
}

// A server that scales its window although no scale was offered to it is not believed, before the splice and after it.
func TestScaleThatWasNotOffered(t *testing.T) {
	for _, follow := range []bool{false, true} {
		r := newRig(t, Options{}, nil, Limits{})
		if follow {
			r.c.Follow()
		}
		r.say(0, PSH, "GET")
		r.c.Connect(r.now, r.emit)
		ev, _ := r.c.FromServer(r.now, &Segment{Seq: r.sis, Ack: r.isn + 1, Flags: SYN | ACK, Window: 10, Options: Options{HasScale: true, Scale: 7}}, r.emit)
		require.Equal(t, Established, ev)
		tr := r.c.Translation()
		require.Zero(t, tr.Shift)
		s := Segment{Seq: r.sis + 1, Ack: r.isn + 1, Flags: ACK, Window: 20}
		if !follow {
			r.c.FromServer(r.now, &s, r.emit)
			require.EqualValues(t, 20, r.c.serverWin)
			continue
		}
		relay := r.c.Relay(r.now)
		relay.FromServer(r.now, &s, r.emit)
		require.Equal(t, 20, relay.serverWin)
		require.Zero(t, relay.Park(r.emit).scale)
	}
}
