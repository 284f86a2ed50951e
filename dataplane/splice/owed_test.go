package splice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patientRig has asked a server, and the client, which sent text, got no acknowledgement yet.
func patientRig(t *testing.T, text string) *rig {
	r := newRig(t, Options{}, nil, Limits{})
	r.c.Patient()
	ev, _ := r.say(0, 0, text)
	require.Equal(t, MoreData, ev)
	r.c.Connect(r.now, r.emit)
	r.c.Settle(r.now, true, r.emit)
	require.Empty(t, r.took(Client))
	require.Len(t, r.took(Server), 1)
	return r
}

func (r *rig) synAck() {
	ev, forward := r.c.FromServer(r.now, &Segment{Seq: r.sis, Ack: r.isn + 1, Flags: SYN | ACK, Window: 60000, Options: Options{MSS: 1460}}, r.emit)
	r.c.Settle(r.now, true, r.emit)
	require.Equal(r.t, Established, ev)
	require.False(r.t, forward)
	require.Len(r.t, r.took(Server), 1)
	require.Empty(r.t, r.took(Client))
}

func TestAcknowledgementRidesOnTheAnswer(t *testing.T) {
	r := patientRig(t, "hello")
	r.synAck()
	ev, forward := r.server(0, 0, 5, 60000, "")
	require.Equal(t, None, ev)
	require.False(t, forward, "the answer is about to come")
	ev, forward = r.server(PSH, 0, 5, 60000, "welcome")
	require.Equal(t, Done, ev)
	require.True(t, forward)
	r.c.Settle(r.now, true, r.emit)
	require.Empty(t, r.took(Client))
}

func TestAcknowledgementIsDueInTime(t *testing.T) {
	began := epoch
	t.Run("the server is silent", func(t *testing.T) {
		r := patientRig(t, "hello")
		require.Equal(t, None, r.tick())
		require.Equal(t, ackDelay, r.now.Sub(began))
		got := r.took(Client)
		require.Len(t, got, 1)
		require.Equal(t, r.isn+1+5, got[0].Ack)
		require.NotZero(t, got[0].Window)
		require.True(t, r.c.Deadline().After(r.now))
		r.synAck()
		ev, forward := r.server(0, 0, 5, 60000, "")
		require.Equal(t, Done, ev)
		require.True(t, forward, "its window is news")
	})
	t.Run("the server has acknowledged, and does not answer", func(t *testing.T) {
		r := patientRig(t, "hello")
		r.synAck()
		_, forward := r.server(0, 0, 5, 60000, "")
		require.False(t, forward)
		require.Equal(t, Done, r.tick())
		require.Equal(t, ackDelay, r.now.Sub(began))
		got := r.took(Client)
		require.Len(t, got, 1)
		require.Equal(t, Segment{Seq: r.ours, Ack: r.isn + 1 + 5, Flags: ACK, Window: 60000, Payload: got[0].Payload}, got[0])
		require.Equal(t, Spliced, r.c.State())
	})
	t.Run("the client asks again meanwhile", func(t *testing.T) {
		r := patientRig(t, "hello")
		r.synAck()
		_, forward := r.server(0, 0, 5, 60000, "")
		require.False(t, forward)
		_, forward = r.say(0, PSH, "hello")
		require.True(t, forward, "the server has it, and says so again")
		require.Equal(t, Done, r.tick())
		require.Len(t, r.took(Client), 1)
		require.LessOrEqual(t, r.now.Sub(began), ackDelay)
	})
	t.Run("the server is lost", func(t *testing.T) {
		r := patientRig(t, "hello")
		ev, _ := r.server(RST, -1, 0, 0, "")
		require.Equal(t, ServerLost, ev)
		require.Equal(t, None, r.tick())
		require.Len(t, r.took(Client), 1)
		require.True(t, r.c.Deadline().After(r.now))
		r.c.Connect(r.now, r.emit)
		r.c.Settle(r.now, true, r.emit)
		require.Len(t, r.took(Server), 1)
		require.Empty(t, r.took(Client))
	})
}

func TestAcknowledgementDoesNotWait(t *testing.T) {
	t.Run("for more of the question", func(t *testing.T) {
		r := newRig(t, Options{}, nil, Limits{})
		r.c.Patient()
		r.say(0, 0, "he")
		require.Empty(t, r.took(Client))
		r.c.Settle(r.now, false, r.emit)
		require.Len(t, r.took(Client), 1)
		r.c.Settle(r.now, false, r.emit)
		require.Empty(t, r.took(Client))
	})
	t.Run("for two segments", func(t *testing.T) {
		r := patientRig(t, "hello")
		r.say(5, 0, " world")
		got := r.took(Client)
		require.Len(t, got, 1)
		require.Equal(t, r.isn+1+11, got[0].Ack)
	})
	t.Run("out of order", func(t *testing.T) {
		r := newRig(t, Options{}, nil, Limits{})
		r.c.Patient()
		r.say(2, 0, "llo")
		require.Len(t, r.took(Client), 1)
		r.say(0, 0, "he")
		require.Len(t, r.took(Client), 1)
	})
	t.Run("behind the end of the stream", func(t *testing.T) {
		r := newRig(t, Options{}, nil, Limits{})
		r.c.Patient()
		r.say(0, FIN, "hello")
		require.Len(t, r.took(Client), 1)
	})
	t.Run("if the server has a smaller window", func(t *testing.T) {
		r := patientRig(t, "hello")
		r.synAck()
		_, forward := r.server(0, 0, 5, 3583, "")
		require.True(t, forward)
	})
	t.Run("if the client says more", func(t *testing.T) {
		r := patientRig(t, "hello")
		r.synAck()
		_, forward := r.say(5, PSH, "!")
		require.True(t, forward)
		_, forward = r.server(0, 0, 6, 60000, "")
		require.True(t, forward)
	})
	t.Run("if the balancer answers", func(t *testing.T) {
		r := newRig(t, Options{}, nil, Limits{})
		r.c.Patient()
		r.say(0, 0, "hello")
		r.c.Reply(r.now, []byte("no"), r.emit)
		r.c.Settle(r.now, true, r.emit)
		got := r.took(Client)
		require.Len(t, got, 1)
		require.Equal(t, r.isn+1+5, got[0].Ack)
	})
	t.Run("for those who do not ask for it", func(t *testing.T) {
		r := newRig(t, Options{}, nil, Limits{})
		r.say(0, 0, "hello")
		require.Len(t, r.took(Client), 1)
	})
	require.Less(t, ackDelay, 200*time.Millisecond, "the least time after which Linux sends again")
}
