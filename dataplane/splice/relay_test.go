package splice

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// keptRequest is a request of a kept connection, in the model: its head is judged as a whole, its body may pass by.
type keptRequest struct {
	bytes []byte
	head  int
	to    int // server
	reply []byte
}

// kept is what a data plane does with a Relay: it moves the connection to the server that each request is for.
type kept struct {
	w        *world
	park     bool
	requests []keptRequest

	conn  *Conn
	relay *Relay
	next  int // request that is judged next, or begins
	left  int // of the body of the one before
	begun bool
	base  uint32 // where its reply begins

	hosts   []*host // every connection to a server, in order
	at      *host
	atNo    int
	parked  map[int]*parkedHost
	serves  map[*host]*serving
	moves   int
	resumes int
	lost    int

	cookies  *Cookies // of the process after a restart
	restarts int
}

type parkedHost struct {
	h *host
	p Parked
}

// serving is what a server is to get and to answer.
type serving struct {
	want  []byte
	ends  []int // of requests
	reply [][]byte
	done  int
}

func (k *kept) emit(to Side, s *Segment) {
	b := s.Append(nil, 1, 2)
	if to == Client {
		k.w.send("lb>client", b, k.w.client.receive)
		return
	}
	h := k.at
	k.w.send("lb>"+h.name, b, h.receive)
}

// server makes another connection's server.
func (k *kept) server(no int) *host {
	w := k.w
	h := &host{w: w, name: fmt.Sprintf("server%d/%d", no, len(k.hosts)), passive: true, window: 1 << (12 + w.rng.IntN(6)), tsOffset: w.rng.Uint32()}
	h.opt = Options{MSS: uint16(200 + w.rng.IntN(1300)), Scale: uint8(w.rng.IntN(9)), HasScale: true, SACKPermitted: true, Timestamps: true}
	h.emit = func(b []byte) { w.send(h.name+">lb", b, func(b []byte) { k.fromServer(h, b) }) }
	sv := &serving{}
	k.serves[h] = sv
	h.onData = func() {
		for sv.done < len(sv.ends) && len(h.in) >= sv.ends[sv.done] {
			sv.done++
			h.write(sv.reply[sv.done-1], false)
		}
		if h.peerFIN && !h.fin {
			h.write(nil, true)
		}
	}
	k.hosts = append(k.hosts, h)
	return h
}

// begin says that request i goes to the server now.
func (k *kept) begin(i int) {
	sv, r := k.serves[k.at], &k.requests[i]
	sv.want = append(sv.want, r.bytes...)
	sv.ends = append(sv.ends, len(sv.want))
	sv.reply = append(sv.reply, r.reply)
	k.base = k.relay.ours
	k.begun = true
}

func (k *kept) fromClient(b []byte) {
	var s Segment
	if !Parse(b, &s) {
		k.w.fail("malformed from client")
	}
	now := k.w.now
	if k.relay == nil && k.conn == nil {
		if s.Flags&(SYN|ACK) == SYN {
			a := k.w.lb.cookies.Answer(now, tuple, &s)
			k.emit(Client, &a)
			return
		}
		start, ok := k.w.lb.cookies.Check(now, tuple, &s)
		if !ok {
			return
		}
		k.conn = start.Conn(now, k.w.lb.limits)
		k.conn.Follow()
		k.tick()
	}
	if k.relay != nil {
		r := k.relay
		ev, forward := r.FromClient(now, &s, k.emit)
		k.act(ev)
		if forward && k.relay == r {
			tr := r.Translation()
			tr.ToServer(b, noChange{})
			ShiftClient(b, Server, r.Client(), noChange{})
			h := k.at
			k.w.send("client>"+h.name, b, h.receive)
		}
		return
	}
	ev, _ := k.conn.FromClient(now, &s, k.emit)
	k.act(ev)
}

func (k *kept) fromServer(h *host, b []byte) {
	var s Segment
	if !Parse(b, &s) {
		k.w.fail("malformed from server")
	}
	if h != k.at {
		for no, p := range k.parked {
			if p.h != h {
				continue
			}
			a, send, live := p.p.FromServer(&s)
			if send {
				out := a.Append(nil, 1, 2)
				k.w.send("lb>"+h.name, out, h.receive)
			}
			if !live {
				delete(k.parked, no)
			}
		}
		return
	}
	now := k.w.now
	if k.relay == nil {
		ev, _ := k.conn.FromServer(now, &s, k.emit)
		k.act(ev)
		return
	}
	r := k.relay
	ev, forward := r.FromServer(now, &s, k.emit)
	if forward {
		tr := r.Translation()
		tr.ToClient(b, noChange{})
		LimitWindow(b, r.Window(s.Ack), noChange{})
		ShiftClient(b, Client, r.Client(), noChange{})
		k.w.send(h.name+">client", b, k.w.client.receive)
	}
	k.act(ev)
}

func (k *kept) act(ev Event) {
	now := k.w.now
	switch ev {
	case Established:
		k.relay, k.conn = k.conn.Relay(now), nil
	case ServerLost:
		if k.relay == nil {
			k.w.fail("a server was lost")
		}
		k.lost++
		sv := k.serves[k.at] // it got nothing of the last request
		n := len(sv.ends) - 1
		sv.ends, sv.reply = sv.ends[:n], sv.reply[:n]
		k.next--
		sv.want = sv.want[:len(sv.want)-len(k.requests[k.next].bytes)]
		k.left, k.begun, k.atNo = 0, false, -1
		k.conn, k.relay = k.relay.Leave(now, false, k.emit), nil
	case TimeUp, Gone:
		k.w.fail("%v", ev)
	}
	k.advance()
}

func (k *kept) advance() {
	now := k.w.now
	for {
		if k.relay == nil {
			if k.conn == nil || k.conn.State() != Collecting || k.next == len(k.requests) || len(k.conn.Data()) < k.requests[k.next].head {
				return
			}
			k.connect(k.requests[k.next].to)
			return
		}
		r := k.relay
		if k.left > 0 {
			n := min(k.left, len(r.Data()))
			if n > 0 {
				r.Release(now, n)
				k.left -= n
				continue
			}
			if k.w.rng.IntN(2) == 0 && r.Pass(uint32(k.left)) {
				k.left = 0
				continue
			}
		}
		if k.left > 0 {
			break
		}
		if k.next == len(k.requests) {
			if !r.open && !r.ended {
				r.Open(now)
			}
			break
		}
		q := &k.requests[k.next]
		if len(r.Data()) < q.head {
			r.Wait(now, false)
			break
		}
		if k.begun && r.ours-k.base < uint32(len(k.requests[k.next-1].reply)) {
			r.Wait(now, true)
			break
		}
		if q.to != k.atNo {
			if !r.Quiet() {
				r.Wait(now, true)
				break
			}
			k.move(q.to)
			if k.relay == nil {
				return
			}
			r = k.relay
		}
		r.Wait(now, false)
		k.begin(k.next)
		r.Release(now, q.head)
		k.left = len(q.bytes) - q.head
		k.next++
	}
	k.relay.Flush(now, k.emit)
	if k.next < len(k.requests) && (!k.begun || k.relay.ours-k.base == uint32(len(k.requests[k.next-1].reply))) && k.w.rng.IntN(4) == 0 {
		k.restart()
	}
}

// restart has another process go on with the connection, as far as it can be: one with another secret, and so another clock.
func (k *kept) restart() {
	saved, ok := k.relay.Save()
	if !ok {
		return
	}
	if k.cookies == nil {
		secret := make([]byte, 16)
		secret[0] = byte(k.w.rng.Uint32())
		k.cookies, _ = NewCookies(secret, &Offer{Scale: 3})
	}
	proven := k.relay.proven
	k.relay = saved.Relay(k.w.now, k.w.lb.limits, k.cookies)
	k.relay.proven = proven // the model of servers that forget wants to know
	k.restarts++
}

func (k *kept) connect(no int) {
	k.at, k.atNo = k.server(no), no
	k.conn.Connect(k.w.now, k.emit)
}

func (k *kept) move(no int) {
	k.moves++
	now := k.w.now
	if k.park {
		p := &parkedHost{k.at, k.relay.Park(k.emit)}
		k.parked[k.atNo] = p
		kind := k.w.rng.IntN(4)
		k.w.after(time.Duration(20+k.w.rng.IntN(200))*time.Millisecond, func() {
			// What a server does that ends its side at the moment that it is asked again, its client must bear, as without a balancer; that it has
			// forgotten the connection, and the balancer hears nothing of it, not.
			if k.at != p.h && kind == 0 {
				p.h.dead, p.h.reset = true, true
			}
		})
	}
	k.conn, k.relay = k.relay.Leave(now, !k.park, k.emit), nil
	if p := k.parked[no]; p != nil {
		delete(k.parked, no)
		k.resumes++
		k.at, k.atNo = p.h, no
		k.relay, k.conn = k.conn.Resume(now, p.p), nil
		return
	}
	k.connect(no)
}

func (k *kept) tick() {
	now := k.w.now
	switch {
	case k.relay != nil:
		if d := k.relay.Deadline(); !d.IsZero() && !now.Before(d) {
			k.act(k.relay.Tick(now, k.emit))
		}
	case k.conn != nil:
		k.act(k.conn.Tick(now, k.emit))
	}
	k.w.after(20*time.Millisecond, k.tick)
}

// keptConnection is a kept connection with requests for several servers.
func keptConnection(t testing.TB, seed uint64) *kept {
	rng := rand.New(rand.NewPCG(seed, 5))
	offer := &Offer{Scale: uint8(rng.IntN(15)), NoSACK: rng.IntN(8) == 0, NoScale: rng.IntN(8) == 0, NoTimestamps: rng.IntN(8) == 0}
	w := newWorld(t, seed, offer, Limits{Budget: relayRoom - 1, Time: time.Minute, ServerTime: time.Minute, ReplayTime: 2 * time.Minute}, 0)
	if rng.IntN(4) > 0 {
		w.loss, w.dup, w.jitter = rng.Float64()*0.2, rng.Float64()*0.2, time.Duration(1+rng.IntN(20))*time.Millisecond
	}
	k := &kept{w: w, park: rng.IntN(2) == 0, parked: map[int]*parkedHost{}, serves: map[*host]*serving{}, atNo: -1}
	w.client.emit = func(b []byte) { w.send("client>lb", b, k.fromClient) }
	w.client.opt.Timestamps, w.client.opt.SACKPermitted, w.client.opt.HasScale = rng.IntN(4) > 0, rng.IntN(4) > 0, rng.IntN(4) > 0
	w.client.opt.Scale = uint8(rng.IntN(9))
	w.client.window = 1 << (12 + rng.IntN(6))
	if rng.IntN(3) == 0 {
		w.client.opt.MSS = uint16(rng.IntN(1300) + 88)
	}
	some := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(w.rng.Uint32())
		}
		return b
	}
	var replies []byte
	for range 1 + rng.IntN(8) {
		q := keptRequest{head: 1 + rng.IntN(2500), to: rng.IntN(3)}
		q.bytes = some(q.head + rng.IntN(3)/2*rng.IntN(40000))
		q.reply = some(1 + rng.IntN(3)*rng.IntN(8000))
		k.requests = append(k.requests, q)
		replies = append(replies, q.reply...)
	}
	pipelined := rng.IntN(3) == 0
	sent, got := 0, 0
	ask := func() {
		for sent < len(k.requests) && (pipelined || len(w.client.in) >= got) {
			if sent > 0 && !pipelined && len(w.client.in) < got {
				return
			}
			got += len(k.requests[sent].reply)
			w.client.write(k.requests[sent].bytes, sent == len(k.requests)-1 && rng.IntN(2) == 0)
			sent++
		}
		if len(w.client.in) == len(replies) && !w.client.fin {
			w.client.write(nil, true)
		}
	}
	w.client.onData = ask
	for _, h := range []*host{w.client} {
		if rng.IntN(3) == 0 {
			w.after(time.Duration(rng.IntN(300))*time.Millisecond, func() { h.paused = true })
			w.after(time.Duration(300+rng.IntN(3000))*time.Millisecond, h.resume)
		}
	}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d: loss %.2f, duplicates %.2f, offer %+v, client %+v, park %v, pipelined %v, request %d of %d, relay %+v", seed, w.loss, w.dup, *offer, w.client.opt, k.park, pipelined, k.next, len(k.requests), k.relay != nil)
		}
	}()
	w.client.connect()
	ask()
	w.run(func() bool {
		if w.client.reset {
			w.fail("the client was reset")
		}
		return len(w.client.in) == len(replies) && w.client.peerFIN && k.at != nil && k.at.peerFIN
	})
	if !bytes.Equal(replies, w.client.in) {
		w.fail("the replies were changed")
	}
	for h, sv := range k.serves {
		if !bytes.Equal(sv.want, h.in) {
			w.fail("%s got %d bytes, want %d, or others", h.name, len(h.in), len(sv.want))
		}
	}
	if w.seq > 100_000 {
		w.fail("a storm: %d events", w.seq)
	}
	return k
}

func TestKeptConnections(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	moves, resumes, lost, restarts := 0, 0, 0, 0
	for seed := range seeds {
		k := keptConnection(t, seed)
		moves, resumes, lost, restarts = moves+k.moves, resumes+k.resumes, lost+k.lost, restarts+k.restarts
	}
	require.Greater(t, moves, int(seeds)/3)
	require.Greater(t, resumes, int(seeds)/15)
	require.NotZero(t, lost)
	require.Greater(t, restarts, int(seeds)/10)
}

func TestParkedTakesTheWindow(t *testing.T) {
	p := Parked{seq: 100, ack: 200, scale: 2}
	_, send, live := p.FromServer(&Segment{Seq: 199, Ack: 100, Flags: ACK, Window: 50}) // a probe
	require.Equal(t, []bool{true, true}, []bool{send, live})
	require.Zero(t, p.win)
	_, send, live = p.FromServer(&Segment{Seq: 200, Ack: 100, Flags: ACK, Window: 50})
	require.Equal(t, []bool{false, true}, []bool{send, live})
	require.EqualValues(t, 200, p.win)
	p.FromServer(&Segment{Seq: 200, Ack: 90, Flags: ACK, Window: 1}) // an older one, that was overtaken
	require.EqualValues(t, 200, p.win)
}

func FuzzKept(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { keptConnection(t, seed) })
}
