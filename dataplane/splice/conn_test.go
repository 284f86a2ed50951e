package splice

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rig is a Conn with hand-made peers. The client's stream begins at isn+1.
type rig struct {
	t       *testing.T
	c       *Conn
	now     time.Time
	isn     uint32
	ours    uint32 // the balancer's first byte
	sis     uint32 // the server's ISN
	options Options
	out     [2][]Segment
}

const rigISN = math.MaxUint32 - 20 // wraps early

func newRig(t *testing.T, options Options, offer *Offer, limits Limits) *rig {
	cookies, err := NewCookies([]byte("0123456789abcdef"), offer)
	require.NoError(t, err)
	r := &rig{t: t, now: epoch, isn: rigISN, sis: math.MaxUint32 - 7, options: options}
	a := cookies.Answer(r.now, tuple, &Segment{Seq: r.isn, Flags: SYN, Options: options})
	r.ours = a.Seq + 1
	ack := Segment{Seq: r.isn + 1, Ack: r.ours, Flags: ACK, Window: 0xffff, Options: Options{Timestamps: a.Options.Timestamps, TSVal: options.TSVal, TSEcr: a.Options.TSVal}}
	start, ok := cookies.Check(r.now, tuple, &ack)
	require.True(t, ok)
	r.c = start.Conn(r.now, limits)
	r.client(ack)
	r.out = [2][]Segment{}
	return r
}

func (r *rig) emit(to Side, s *Segment) {
	cp := *s
	cp.Payload = bytes.Clone(s.Payload)
	r.out[to] = append(r.out[to], cp)
	require.Less(r.t, len(r.out[to]), 100_000, "endless")
}

// took returns what was sent to a side since.
func (r *rig) took(side Side) []Segment {
	out := r.out[side]
	r.out[side] = nil
	return out
}

func (r *rig) client(s Segment) (Event, bool) { return r.c.FromClient(r.now, &s, r.emit) }

// say is a segment of the client's at an offset of its stream.
func (r *rig) say(at int, flags uint8, text string) (Event, bool) {
	return r.client(Segment{Seq: r.isn + 1 + uint32(at), Ack: r.ours, Flags: flags | ACK, Window: 0xffff, Payload: []byte(text)})
}

// server is a segment of the server's that acknowledges up to an offset of the client's stream.
func (r *rig) server(flags uint8, at, acked int, window uint16, text string) (Event, bool) {
	return r.c.FromServer(r.now, &Segment{Seq: r.sis + 1 + uint32(at), Ack: r.isn + 1 + uint32(acked), Flags: flags | ACK, Window: window, Payload: []byte(text)}, r.emit)
}

// established connects to a server.
func (r *rig) established(mss, window uint16) {
	r.c.Connect(r.now, r.emit)
	r.took(Server)
	ev, forward := r.c.FromServer(r.now, &Segment{Seq: r.sis, Ack: r.isn + 1, Flags: SYN | ACK, Window: window, Options: Options{MSS: mss}}, r.emit)
	require.Equal(r.t, Established, ev)
	require.False(r.t, forward)
}

// tick lets time pass until the next deadline.
func (r *rig) tick() Event {
	if d := r.c.Deadline(); d.After(r.now) {
		r.now = d
	}
	return r.c.Tick(r.now, r.emit)
}

func TestAnythingMayBeClaimed(t *testing.T) {
	for _, at := range []uint32{0, 1, 1 << 31, 1<<31 - 1, 1<<31 + 1, math.MaxUint32, math.MaxUint32 - 3584, 3583, 3584, 3585} {
		for _, flags := range []uint8{ACK, ACK | FIN} {
			for _, n := range []int{0, 1, 1460, 65000} {
				r := newRig(t, Options{}, nil, Limits{})
				r.client(Segment{Seq: r.isn + 1 + at, Ack: r.ours, Flags: flags, Payload: make([]byte, n)})
				require.LessOrEqual(t, len(r.c.Data()), 3584)
			}
		}
	}
}

func TestFINInEveryOrder(t *testing.T) {
	parts := []struct {
		at    int
		flags uint8
		text  string
	}{{0, 0, "GET"}, {3, 0, " / "}, {6, FIN, "xyz"}, {9, FIN, ""}, {5, FIN, " xyz"}}
	var order func(done []int)
	order = func(done []int) {
		if len(done) == len(parts) {
			r := newRig(t, Options{}, nil, Limits{})
			for _, i := range done {
				r.say(parts[i].at, parts[i].flags, parts[i].text)
			}
			require.Equal(t, "GET / xyz", string(r.c.Data()))
			require.True(t, r.c.EndOfStream(), "%v", done)
			sent := r.took(Client)
			require.Equal(t, r.isn+1+10, sent[len(sent)-1].Ack)
			return
		}
		for i := range parts {
			used := false
			for _, d := range done {
				used = used || d == i
			}
			if !used {
				order(append(done[:len(done):len(done)], i))
			}
		}
	}
	order(nil)
}

func TestFalseFINs(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.say(-50, FIN, "old")
	r.say(100_000, FIN, "")
	r.say(20, 0, "later")
	r.say(22, FIN, "") // before what has arrived already
	r.say(0, 0, "01234567890123456789")
	require.Equal(t, "01234567890123456789later", string(r.c.Data()))
	require.False(t, r.c.EndOfStream())
	r.say(25, FIN, "")
	require.True(t, r.c.EndOfStream())
	r.took(Client)
	r.say(25, 0, "behind the end")
	require.Len(t, r.c.Data(), 25, "nothing is behind a FIN")
	require.True(t, r.c.EndOfStream())
	require.Equal(t, r.isn+1+26, r.took(Client)[0].Ack)
	r.say(26, 0, "")
	require.Empty(t, r.took(Client), "the acknowledgement of a client that has closed needs none itself")
}

func TestResetsInEveryState(t *testing.T) {
	rst := func(r *rig, at int) (Event, bool) {
		return r.client(Segment{Seq: r.isn + 1 + uint32(at), Flags: RST})
	}
	for _, fin := range []uint8{0, FIN} {
		next := 3 + int(fin)
		for name, in := range map[string]func(r *rig){
			"collecting":    func(*rig) {},
			"connecting":    func(r *rig) { r.c.Connect(r.now, r.emit) },
			"server silent": func(r *rig) { r.c.Connect(r.now, r.emit); r.tick(); r.tick() },
			"replying":      func(r *rig) { r.c.Reply(r.now, []byte("no"), r.emit) },
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, Options{}, nil, Limits{})
				r.say(0, fin, "GET")
				in(r)
				r.took(Client)
				r.took(Server)
				ev, forward := rst(r, next+5)
				require.Equal(t, None, ev)
				require.False(t, forward)
				challenge := r.took(Client)
				require.Len(t, challenge, 1)
				require.Equal(t, r.isn+1+uint32(next), challenge[0].Ack)
				require.Empty(t, r.took(Server))
				ev, _ = rst(r, next)
				require.Equal(t, Gone, ev)
				require.Equal(t, Closed, r.c.State())
				require.Empty(t, r.took(Client))
				if name == "connecting" {
					require.Equal(t, []Segment{{Seq: r.isn + 1, Flags: RST}}, r.took(Server))
				}
				ev, forward = r.say(3, 0, "more")
				require.Equal(t, None, ev)
				require.False(t, forward)
			})
		}
	}
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET")
	r.established(1460, 0xffff)
	_, forward := rst(r, 3)
	require.True(t, forward, "the server judges")
}

// Whom the balancer resets, it resets with the number that is expected: any other is but a question (RFC 5961).
func TestAbortUsesTheNumbersExpected(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET")
	r.c.Connect(r.now, r.emit)
	r.took(Client)
	r.took(Server)
	r.c.Abort(r.now, r.emit)
	require.Equal(t, r.isn+1, r.took(Server)[0].Seq)
	require.Equal(t, r.ours, r.took(Client)[0].Seq)

	r = newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET / and more")
	r.established(1460, 0xffff)
	_, forward := r.server(0, 0, 5, 0xffff, "an early answer") // and five bytes acknowledged
	require.True(t, forward)
	r.took(Client)
	r.took(Server)
	r.c.Abort(r.now, r.emit)
	require.Equal(t, r.isn+1+5, r.took(Server)[0].Seq)
	require.Equal(t, r.ours+15, r.took(Client)[0].Seq)

	r = newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET")
	r.c.Reply(r.now, make([]byte, 5000), r.emit)
	r.client(Segment{Seq: r.isn + 4, Ack: r.ours + 1000, Flags: ACK})
	r.took(Client)
	r.c.Abort(r.now, r.emit)
	require.Equal(t, r.ours+1000, r.took(Client)[0].Seq)
}

func TestSYNOfAClientThatForgot(t *testing.T) {
	for _, reply := range []bool{false, true} {
		r := newRig(t, Options{}, nil, Limits{})
		r.say(0, FIN, "GET")
		if reply {
			r.c.Reply(r.now, []byte("no"), r.emit)
		}
		r.took(Client)
		r.client(Segment{Seq: 4711, Flags: SYN})
		s := r.took(Client)
		require.Len(t, s, 1)
		ev, _ := r.client(Segment{Seq: s[0].Ack, Flags: RST}) // what a host in SYN-SENT says to that
		require.Equal(t, Gone, ev)
	}
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET")
	r.established(1460, 0xffff)
	_, forward := r.server(0, 0, 0, 0xffff, "some")
	require.True(t, forward)
	r.took(Client)
	_, forward = r.client(Segment{Seq: 4711, Flags: SYN})
	require.False(t, forward, "the server would start over")
	s := r.took(Client)
	require.Equal(t, r.isn+4, s[0].Ack)
	require.Equal(t, r.ours+4, s[0].Seq)
	require.NotZero(t, s[0].Window)
	_, forward = r.client(Segment{Seq: s[0].Ack, Flags: RST})
	require.True(t, forward)
	r = newRig(t, Options{}, nil, Limits{})
	r.client(Segment{Seq: r.isn + 1})
	r.client(Segment{Seq: r.isn + 1, Flags: FIN})
	require.Empty(t, r.took(Client), "what lacks an ACK is dropped (RFC 9293, 3.10.7.4)")
}

func TestServersWithOddSegmentSizes(t *testing.T) {
	for _, mss := range []uint16{0, 1, 5, 12, 13, 48, 100, 1460, 8960, 65535} {
		for _, ts := range []bool{false, true} {
			r := newRig(t, Options{Timestamps: ts, TSVal: 5}, nil, Limits{})
			text := bytes.Repeat([]byte("x"), 3000)
			r.client(Segment{Seq: r.isn + 1, Ack: r.ours, Flags: ACK, Payload: text, Window: 1000, Options: Options{Timestamps: ts, TSVal: 5}})
			r.c.Connect(r.now, r.emit)
			r.took(Server)
			r.c.FromServer(r.now, &Segment{Seq: r.sis, Ack: r.isn + 1, Flags: SYN | ACK, Window: 0xffff, Options: Options{MSS: mss, Timestamps: ts}}, r.emit)
			var got []byte
			for _, s := range r.took(Server) {
				require.LessOrEqual(t, len(s.Payload), 1460, "no more than the way carries")
				if mss >= 48 {
					require.LessOrEqual(t, len(s.Payload), int(mss))
				}
				got = append(got, s.Payload...)
			}
			require.Equal(t, text, got)
		}
	}
}

// A closed window is probed by a timer, not in answer to each answer.
func TestProbesOfAClosedWindowDoNotEcho(t *testing.T) {
	for _, fin := range []int{0, 1} {
		for _, acked := range []int{0, 14} {
			if fin+14 > acked {
				probes(t, fin, acked)
			}
		}
	}
}

func probes(t *testing.T, fin, acked int) {
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, uint8(fin)*FIN, "GET / HTTP/1.1")
	r.established(1460, uint16(acked))
	sent := 0
	for r.c.State() == Replaying && r.now.Sub(epoch) < 10*time.Second {
		probes := r.took(Server)
		if sent += len(probes); len(probes) == 0 {
			r.tick()
			continue
		}
		for range probes {
			r.server(0, 0, acked, 0, "") // what a host says to what is beyond its window
		}
	}
	require.LessOrEqual(t, sent, 10)
	r.took(Server)
	r.server(0, 0, acked, 1000, "")
	s := r.took(Server)
	require.Len(t, s, 1)
	require.Equal(t, "GET / HTTP/1.1"[acked:], string(s[0].Payload), "the window opens")
	require.Equal(t, uint8(fin), s[0].Flags&FIN)
	ev, forward := r.server(0, 0, 14+fin, 1000, "")
	require.Equal(t, Done, ev)
	require.True(t, forward)
}

func TestPartialAcknowledgements(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	text := bytes.Repeat([]byte("0123456789"), 300)
	r.say(0, 0, string(text))
	r.established(536, 0xffff)
	require.Len(t, r.took(Server), 6)
	// Everything is lost three times: the timer slows down.
	for range 3 {
		r.tick()
		require.Len(t, r.took(Server), 1)
	}
	slow := r.c.rto
	r.server(0, 0, 536, 0xffff, "")
	require.Less(t, r.c.rto, slow, "there is progress")
	again := r.took(Server)
	require.Len(t, again, 5, "what was behind the loss comes again at once")
	require.Equal(t, r.isn+1+536, again[0].Seq)
	ev, _ := r.server(0, 0, 1000, 0xffff, "") // in the middle of a segment
	require.Equal(t, None, ev)
	require.Empty(t, r.took(Server))
	r.tick()
	again = r.took(Server)
	require.Equal(t, r.isn+1+1000, again[0].Seq)
	require.Len(t, again[0].Payload, 536)
	ev, _ = r.server(0, 0, 3000, 0xffff, "")
	require.Equal(t, Done, ev)
	require.Equal(t, text, r.c.Data(), "stays valid")
}

// What was judged is what the server gets: a client must not overtake the replay with other bytes.
func TestReplayIsNotOvertaken(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET /public ")
	r.established(1460, 4)
	_, forward := r.say(0, 0, "GET /secret ")
	require.False(t, forward)
	_, forward = r.say(5, 0, "secret and more")
	require.False(t, forward)
	_, forward = r.say(12, 0, "HTTP/1.1")
	require.True(t, forward)
	_, forward = r.say(12, 0, "")
	require.True(t, forward)
	_, forward = r.say(11, 0, "")
	require.True(t, forward, "a keep-alive probe")
	ev, _ := r.server(0, 0, 12, 100, "")
	require.Equal(t, Done, ev)
}

// The server answers before it has the whole request. Replayed segments acknowledge what the client has, as servers ignore those that lag too far
// behind (RFC 5961, 5.2).
func TestAnswerBeforeTheRequestIsReplayed(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET / HTTP/1.1")
	r.established(1460, 4)
	at := 0
	for range 100 {
		_, forward := r.server(0, at, 4, 0, string(make([]byte, 1460)))
		require.True(t, forward)
		at += 1460
		_, forward = r.client(Segment{Seq: r.isn + 1 + 14, Ack: r.ours + uint32(at), Flags: ACK, Window: 0xffff})
		require.True(t, forward)
	}
	r.took(Server)
	r.tick()
	require.Equal(t, r.sis+1+uint32(at), r.took(Server)[0].Ack)
	// What acknowledges more than the server sent is forged.
	_, forward := r.client(Segment{Seq: r.isn + 1 + 1<<30, Ack: r.ours + uint32(at) + 1, Flags: ACK, Window: 0xffff})
	require.False(t, forward)
	ev, _ := r.server(0, at, 15, 0, "")
	require.Equal(t, None, ev, "nor does it widen what the server may acknowledge")
	r.tick()
	require.Equal(t, r.sis+1+uint32(at), r.took(Server)[0].Ack)
}

func TestForgedSegmentsOfTheServerDoNotEndTheReplay(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET / HTTP/1.1")
	r.established(1460, 4)
	for _, acked := range []int{-1, 15, 1 << 30} {
		ev, forward := r.server(0, 0, acked, 100, "")
		require.Equal(t, None, ev, "acknowledges what was never sent")
		require.False(t, forward)
	}
	for _, at := range []int{-1, 1 << 30, 77} {
		ev, _ := r.server(RST, at, 4, 0, "")
		require.Equal(t, None, ev)
		require.Equal(t, Replaying, r.c.State())
	}
	ev, forward := r.server(RST, 0, 4, 0, "")
	require.Equal(t, Done, ev)
	require.True(t, forward)
}

func TestDoubledAndLostAnswersOfTheServer(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{ServerTime: 10 * time.Second})
	r.say(0, 0, "GET / HTTP/1.1")
	r.c.Connect(r.now, r.emit)
	r.took(Server)
	r.tick()
	require.Equal(t, SYN, int(r.took(Server)[0].Flags), "no answer: again")
	syn := Segment{Seq: r.sis, Ack: r.isn + 1, Flags: SYN | ACK, Window: 500, Options: Options{MSS: 1460}}
	ev, _ := r.c.FromServer(r.now, &syn, r.emit)
	require.Equal(t, Established, ev)
	r.took(Server)
	for range 2 {
		ev, forward := r.c.FromServer(r.now, &syn, r.emit)
		require.Equal(t, None, ev)
		require.False(t, forward)
	}
	acks := r.took(Server)
	require.Len(t, acks, 2)
	require.Equal(t, r.sis+1, acks[0].Ack)
	require.Empty(t, acks[0].Payload)
}

// A server may be chosen before the client has said anything, and neither may say anything for long.
func TestNothingToReplay(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.established(1460, 1000)
	acks := r.took(Server)
	require.Equal(t, ACK, int(acks[len(acks)-1].Flags))
	require.Equal(t, Done, r.tick())
	require.Equal(t, Spliced, r.c.State())
	require.Empty(t, r.took(Client))
	// Only a FIN.
	r = newRig(t, Options{}, nil, Limits{})
	r.say(0, FIN, "")
	r.established(1460, 0)
	sent := r.took(Server)
	require.Equal(t, FIN|ACK, int(sent[len(sent)-1].Flags))
	r.tick()
	sent = r.took(Server)
	require.Equal(t, FIN|ACK, int(sent[len(sent)-1].Flags))
	ev, _ := r.server(0, 0, 1, 0, "")
	require.Equal(t, Done, ev)
}

func TestReplySendsNothingTwiceWithoutNeed(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET")
	r.took(Client)
	reply := bytes.Repeat([]byte("0123456789"), 5000)
	r.c.Reply(r.now, reply, r.emit)
	acked, sent := 0, []byte(nil)
	for acked < len(reply)+1 {
		burst := r.took(Client)
		require.NotEmpty(t, burst)
		require.LessOrEqual(t, len(burst), replyFlight)
		for _, s := range burst {
			sent = append(sent, s.Payload...)
			require.LessOrEqual(t, len(s.Payload), 536, "the client named no size")
			acked = int(s.end() - r.ours)
			ev, _ := r.client(Segment{Seq: r.isn + 4, Ack: r.ours + uint32(acked), Flags: ACK, Window: 0xffff})
			require.Equal(t, None, ev)
		}
	}
	require.Equal(t, reply, sent)
	// An acknowledgement that says nothing new is not answered.
	for range 10 {
		r.client(Segment{Seq: r.isn + 4, Ack: r.ours + uint32(acked), Flags: ACK, Window: 0xffff})
	}
	require.Empty(t, r.took(Client))
	ev, _ := r.client(Segment{Seq: r.isn + 4, Ack: r.ours + uint32(acked), Flags: ACK | FIN, Window: 0xffff})
	require.Equal(t, Gone, ev)
	require.Equal(t, r.isn+5, r.took(Client)[0].Ack)
}

func TestReplyToAClosedWindow(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.client(Segment{Seq: r.isn + 1, Ack: r.ours, Flags: ACK, Payload: []byte("GET")})
	r.took(Client)
	r.c.Reply(r.now, []byte("no entry"), r.emit)
	require.Empty(t, r.took(Client))
	sent := 0
	for range 3 {
		r.tick()
		for _, s := range r.took(Client) {
			sent++
			require.Len(t, s.Payload, 1, "a probe")
			r.client(Segment{Seq: r.isn + 4, Ack: r.ours, Flags: ACK})
		}
	}
	require.LessOrEqual(t, sent, 3)
	r.client(Segment{Seq: r.isn + 4, Ack: r.ours, Flags: ACK, Window: 0xffff})
	s := r.took(Client)
	require.Len(t, s, 1, "the window opens")
	require.Equal(t, "no entry", string(s[0].Payload), "the probe may have been dropped")
	require.NotZero(t, s[0].Window, "a client must be able to send its rest, or it could not close")
	// Both close at once; the rest of the request crosses the reply, in pieces that overlap.
	r.client(Segment{Seq: r.isn + 4, Ack: r.ours, Flags: ACK, Window: 0xffff, Payload: []byte(" / ")})
	r.client(Segment{Seq: r.isn + 4, Ack: r.ours, Flags: ACK | FIN, Window: 0xffff, Payload: []byte(" / HTTP")})
	sacks := r.took(Client)
	require.Equal(t, r.isn+4+8, sacks[len(sacks)-1].Ack)
	ev, _ := r.client(Segment{Seq: r.isn + 4 + 8, Ack: r.ours + 9, Flags: ACK, Window: 0xffff})
	require.Equal(t, Gone, ev)
	require.Equal(t, Closed, r.c.State())
}

func TestReplyIgnoresImpossibleAcknowledgements(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{})
	r.say(0, 0, "GET")
	r.c.Reply(r.now, []byte("no"), r.emit)
	r.took(Client)
	for _, ack := range []uint32{r.ours + 4, r.ours - 1, r.ours + 1<<31} {
		ev, _ := r.client(Segment{Seq: r.isn + 4, Ack: ack, Flags: ACK | FIN, Window: 0xffff})
		require.Equal(t, None, ev)
		require.False(t, r.c.EndOfStream())
	}
}

func TestKeepAliveAndWindowProbesOfTheClient(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{Budget: 4})
	ev, _ := r.say(0, 0, "GET /")
	require.Equal(t, Full, ev)
	s := r.took(Client)
	require.Equal(t, r.isn+1+4, s[0].Ack)
	require.Zero(t, s[0].Window)
	for _, probe := range []struct {
		at   int
		text string
	}{{3, ""}, {3, "x"}, {4, "/"}} {
		ev, forward := r.say(probe.at, 0, probe.text)
		require.Equal(t, None, ev)
		require.False(t, forward)
		s = r.took(Client)
		require.Len(t, s, 1)
		require.Equal(t, r.isn+1+4, s[0].Ack)
	}
	require.Equal(t, "GET ", string(r.c.Data()))
}

func TestOldTimestampsAreRefusedAcrossTheWrap(t *testing.T) {
	r := newRig(t, Options{Timestamps: true, TSVal: math.MaxUint32 - 5}, nil, Limits{})
	say := func(at int, val uint32, text string) Event {
		ev, _ := r.client(Segment{Seq: r.isn + 1 + uint32(at), Ack: r.ours, Flags: ACK, Window: 0xffff, Payload: []byte(text), Options: Options{Timestamps: true, TSVal: val}})
		return ev
	}
	require.Equal(t, MoreData, say(0, math.MaxUint32-1, "ab"))
	require.Equal(t, MoreData, say(2, 3, "cd"))
	require.Equal(t, None, say(4, math.MaxUint32, "??"), "old")
	require.Equal(t, None, say(6, 9, "gh"), "out of order")
	require.Equal(t, uint32(3), r.c.clientVal, "of segments in order only")
	require.Equal(t, MoreData, say(4, 8, "ef"))
	require.Equal(t, "abcdefgh", string(r.c.Data()))
	require.Equal(t, uint32(8), r.c.clientVal)
}

func TestAConnIsBounded(t *testing.T) {
	r := newRig(t, Options{}, nil, Limits{Budget: 1000})
	for i := range 5000 {
		r.say((i*7919)%4000+1, 0, "x")
		require.LessOrEqual(t, len(r.c.gaps), mostGaps)
		require.LessOrEqual(t, cap(r.c.gaps), mostGaps+2)
		require.Len(t, r.c.data, 1000)
	}
	require.Equal(t, TimeUp, r.tick(), "and it does not live long")
}

func TestForgedTimestampsDoNotReachTheServer(t *testing.T) {
	r := newRig(t, Options{Timestamps: true, TSVal: 5}, nil, Limits{})
	ts := Options{Timestamps: true, TSVal: 6}
	r.client(Segment{Seq: r.isn + 1, Ack: r.ours, Flags: ACK, Window: 0xffff, Payload: []byte("GET"), Options: ts})
	r.c.Connect(r.now, r.emit)
	r.c.FromServer(r.now, &Segment{Seq: r.sis, Ack: r.isn + 1, Flags: SYN | ACK, Window: 2, Options: Options{MSS: 1460, Timestamps: true, TSVal: 9}}, r.emit)
	r.took(Server)
	r.client(Segment{Seq: r.isn + 1, Ack: r.ours + 99, Flags: ACK, Window: 1, Options: Options{Timestamps: true, TSVal: 1 << 30}})
	r.client(Segment{Seq: r.isn - 1<<20, Ack: r.ours, Flags: ACK, Window: 0xffff, Options: Options{Timestamps: true, TSVal: 1 << 30}})
	r.tick()
	s := r.took(Server)[0]
	require.Equal(t, uint32(6), s.Options.TSVal)
	require.Equal(t, uint16(0xffff), s.Window)
}
