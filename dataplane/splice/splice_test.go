package splice

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func request(rng *rand.Rand, n int) []byte {
	b := []byte("GET / HTTP/1.1\r\nHost: a\r\nX: ")
	for len(b) < n {
		b = append(b, 'a'+byte(rng.IntN(26)))
	}
	return append(b, "\r\n\r\n"...)
}

// exchange sends a request of n bytes and more behind it, has the server answer, and checks both streams. who closes first: 0 the client with its
// request, 1 the client after the answer, 2 the server with the answer.
func exchange(w *world, head, body, answer, closes int) {
	req := request(w.text, head)
	for range body {
		req = append(req, byte(w.text.Uint32()))
	}
	resp := make([]byte, answer)
	for i := range resp {
		resp[i] = byte(w.text.Uint32())
	}
	for _, s := range w.servers {
		answered := false
		s.onData = func() {
			if !answered && len(s.in) == len(req) && (closes != 0 || s.peerFIN) {
				answered = true
				s.write(resp, closes == 2)
			}
			if closes != 2 && s.peerFIN && answered {
				s.write(nil, true)
			}
		}
	}
	closed := false
	w.client.onData = func() {
		if !closed && closes != 0 && len(w.client.in) == len(resp) && (closes == 1 || w.client.peerFIN) {
			closed = true
			w.client.write(nil, true)
		}
	}
	w.client.connect()
	w.client.write(req, closes == 0)
	server := func() *host { return w.servers[w.chosen] }
	w.run(func() bool {
		return w.client.reset || w.client.peerFIN && server().peerFIN && len(w.client.in) == len(resp) && len(server().in) == len(req)
	})
	if w.client.reset {
		w.fail("the client was reset")
	}
	if !bytes.Equal(req, server().in) {
		at := 0
		for server().in[at] == req[at] {
			at++
		}
		w.fail("the request was changed at byte %d of %d (got %d)", at, len(req), w.lb.conn.got)
	}
	if !bytes.Equal(resp, w.client.in) {
		w.fail("the answer was changed")
	}
}

func TestQuietNetwork(t *testing.T) {
	for closes := range 3 {
		for _, n := range []int{30, 1460, 3000, 5000} {
			t.Run(fmt.Sprintf("head %d, close %d", n, closes), func(t *testing.T) {
				w := newWorld(t, 1, nil, Limits{}, 1)
				exchange(w, n, 0, 10000, closes)
				require.Contains(t, w.lb.events, Done)
				if n > 3584 {
					require.Contains(t, w.lb.events, Full)
				}
				require.Less(t, w.now.Sub(epoch), 500*time.Millisecond, "nothing waited for a timer")
			})
		}
	}
}

// Every mixture of options on the three sides, over a bad network.
func TestBadNetwork(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		bad(t, seed)
	}
}

func bad(t testing.TB, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	offer := &Offer{Scale: uint8(rng.IntN(15)), NoSACK: rng.IntN(8) == 0, NoScale: rng.IntN(8) == 0, NoTimestamps: rng.IntN(8) == 0}
	w := newWorld(t, seed, offer, Limits{Time: time.Minute, ServerTime: time.Minute, ReplayTime: 2 * time.Minute}, 1)
	w.loss, w.dup, w.jitter = rng.Float64()*0.3, rng.Float64()*0.2, time.Duration(1+rng.IntN(30))*time.Millisecond
	c := &w.client.opt
	c.Timestamps, c.SACKPermitted, c.HasScale = rng.IntN(4) > 0, rng.IntN(4) > 0, rng.IntN(4) > 0
	c.Scale = uint8(rng.IntN(11))
	if rng.IntN(4) == 0 {
		c.MSS = uint16(rng.IntN(1300) + 88)
	}
	w.servers[0].opt.Scale = uint8(rng.IntN(11))
	if rng.IntN(4) == 0 {
		w.servers[0].opt.MSS = uint16(rng.IntN(1300) + 88)
	}
	for _, h := range []*host{w.client, w.servers[0]} {
		h.window = 1 << (12 + rng.IntN(6))
	}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d: loss %.2f, duplicates %.2f, offer %+v, client %+v, server %+v", seed, w.loss, w.dup, *offer, *c, w.servers[0].opt)
		}
	}()
	exchange(w, 30+rng.IntN(5000), rng.IntN(2)*rng.IntN(20000), rng.IntN(30000), rng.IntN(3))
}

func TestServersThatRefuseOrAreSilentOrLackAnOption(t *testing.T) {
	w := newWorld(t, 3, nil, Limits{ServerTime: time.Second}, 4)
	w.servers[0].refuse = true
	w.servers[1].mute = true
	w.servers[2].opt.Timestamps = false
	exchange(w, 500, 0, 500, 1)
	require.Equal(t, 3, w.chosen)
	require.Len(t, w.servers[3].in, len(w.servers[3].in))
	lost := 0
	for _, ev := range w.lb.events {
		if ev == ServerLost {
			lost++
		}
	}
	require.Equal(t, 3, lost)
	require.True(t, w.servers[2].reset, "a server that was passed over is told")

	w = newWorld(t, 4, nil, Limits{}, 1)
	w.servers[0].refuse = true
	w.client.connect()
	w.client.write(request(w.rng, 100), false)
	w.run(func() bool { return w.client.reset })
	require.Equal(t, Closed, w.lb.conn.State())
}

func TestSlowClientRunsOutOfTime(t *testing.T) {
	w := newWorld(t, 5, nil, Limits{}, 1)
	w.client.connect()
	w.client.write([]byte("GET / HT"), false)
	w.run(func() bool { return w.client.reset })
	require.InDelta(t, 5, w.now.Sub(epoch).Seconds(), 0.2)
	require.Contains(t, w.lb.events, TimeUp)
}

// The balancer answers by itself and closes, whatever the network does.
func TestReply(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld(t, seed, nil, Limits{ReplayTime: 2 * time.Minute}, 1)
		if seed > 0 {
			w.loss, w.dup, w.jitter = 0.2, 0.1, 10*time.Millisecond
		}
		w.lb.limits.Time = time.Minute
		w.client.window = 1 << (10 + seed%7)
		w.lb.reply = bytes.Repeat([]byte("HTTP/1.1 302 Found\r\n"), 1+int(seed)*10)
		w.client.onData = func() {
			if w.client.peerFIN && !w.client.fin {
				w.client.write(nil, true)
			}
		}
		w.client.connect()
		w.client.write(request(w.rng, 100+int(seed)*20), false)
		w.run(func() bool { return w.client.reset || w.client.peerFIN && w.lb.conn.State() == Closed })
		require.False(t, w.client.reset)
		require.Equal(t, w.lb.reply, w.client.in)
		require.Empty(t, w.servers[0].in)
		require.Contains(t, w.lb.events, Gone)
	}
}

func TestClientResets(t *testing.T) {
	w := newWorld(t, 6, nil, Limits{}, 1)
	w.client.connect()
	w.client.write([]byte("GET"), false)
	w.run(func() bool { return w.lb.conn != nil && len(w.lb.conn.Data()) == 3 })
	none := func(Side, *Segment) { t.Fatal("a reset was answered") }
	for _, seq := range []uint32{w.client.nxt - 1, w.client.nxt + 1<<31, w.client.nxt + 4000} {
		ev, _ := w.lb.conn.FromClient(w.now, &Segment{Seq: seq, Flags: RST}, none)
		require.Equal(t, None, ev, "a blind reset ended the connection")
	}
	asked := 0
	ev, _ := w.lb.conn.FromClient(w.now, &Segment{Seq: w.client.nxt + 1000, Flags: RST}, func(to Side, s *Segment) {
		asked++
		require.Equal(t, ACK, int(s.Flags))
		require.Equal(t, w.client.nxt, s.Ack)
	})
	require.Equal(t, None, ev)
	require.Equal(t, 1, asked, "a reset in the window is asked about")
	ev, _ = w.lb.conn.FromClient(w.now, &Segment{Seq: w.client.nxt, Flags: RST}, none)
	require.Equal(t, Gone, ev)
	require.Equal(t, Closed, w.lb.conn.State())
}

// What was judged is what the server gets: a second copy of a byte changes nothing.
func TestFirstCopyOfAByteStays(t *testing.T) {
	cookies, err := NewCookies(nil, nil)
	require.NoError(t, err)
	limits, err := Limits{}.WithDefaults()
	require.NoError(t, err)
	syn := Segment{Seq: 999, Flags: SYN}
	a := cookies.Answer(epoch, tuple, &syn)
	first := Segment{Seq: 1000, Ack: a.Seq + 1, Flags: ACK}
	start, ok := cookies.Check(epoch, tuple, &first)
	require.True(t, ok)
	c := start.Conn(epoch, limits)
	none := func(Side, *Segment) {}
	put := func(at uint32, text string) Event {
		ev, _ := c.FromClient(epoch, &Segment{Seq: 1000 + at, Ack: a.Seq + 1, Flags: ACK, Payload: []byte(text)}, none)
		return ev
	}
	require.Equal(t, None, put(4, "EFGH"))
	require.Equal(t, None, put(2, "xxxxxxxxIJ"))
	require.Equal(t, MoreData, put(0, "ABCD"))
	require.Equal(t, "ABxxEFGHxxIJ"[:2], string(c.Data()[:2]))
	require.Equal(t, "EFGH", string(c.Data()[4:8]))
	require.Len(t, c.Data(), 12)
	require.Equal(t, None, put(0, "zzzzzzzzzzzz"))
	require.Equal(t, "AB", string(c.Data()[:2]))
	require.Equal(t, MoreData, put(8, "????more"))
	require.Equal(t, "IJmore", string(c.Data()[10:]))
}

// The buffer is rebuilt from pieces in any order, like a plain map of bytes.
func TestPiecesInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		text := request(rng, rng.IntN(3000))
		c := new(inbox)
		for c.got < len(text) {
			from := rng.IntN(len(text))
			to := min(len(text), from+1+rng.IntN(400))
			c.place(from, text[from:to], 3584)
			require.LessOrEqual(t, len(c.gaps), mostGaps)
			require.Equal(t, text[:c.got], c.data[:c.got])
		}
	}
}

func FuzzNetwork(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		bad(t, seed)
		adverse(t, seed)
	})
}

func FuzzParse(f *testing.F) {
	s := Segment{Flags: SYN, Options: Options{MSS: 1460, HasScale: true, Scale: 7, SACKPermitted: true, Timestamps: true}}
	f.Add(s.Append(nil, 1, 2))
	f.Add(append(make([]byte, 12), 0xf0, ACK, 0, 0, 0, 0, 0, 0, 5, 10, 1, 2, 3, 4))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Segment
		if !Parse(b, &s) {
			return
		}
		head := int(b[12]>>4) * 4
		tr := Translation{Seq: 12345, TS: 678, Timestamps: true, Shift: -3}
		old := bytes.Clone(b)
		tr.ToClient(b, noChange{})
		tr.ToServer(b, noChange{})
		require.Equal(t, old[head:], b[head:], "the payload was touched")
		require.Equal(t, old[:4], b[:4])
	})
}
