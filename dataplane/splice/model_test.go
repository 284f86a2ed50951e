package splice

import (
	"bytes"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// world is a simulation of a client, the balancer and servers, joined by links that lose, delay, reorder and duplicate.
type world struct {
	t      testing.TB
	rng    *rand.Rand
	text   *rand.Rand // of what the hosts say
	now    time.Time
	events queue
	seq    int
	loss   float64
	dup    float64
	jitter time.Duration

	client  *host
	servers []*host
	chosen  int                       // server
	fault   func(b []byte, from Side) // done to what the splice forwards
	lb      *balancer
	trace   []string
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

type queue []event

func (e queue) Len() int { return len(e) }
func (e queue) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e queue) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *queue) Push(x any)   { *e = append(*e, x.(event)) }
func (e *queue) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{w.now.Add(d), w.seq, do})
}

// send puts a segment on a link.
func (w *world) send(what string, b []byte, arrive func([]byte)) {
	b = bytes.Clone(b)
	if len(w.trace) < 4000 {
		var s Segment
		Parse(b, &s)
		w.trace = append(w.trace, fmt.Sprintf("%8v %s flags %02x seq %d ack %d win %d len %d ts %d/%d", w.now.Sub(epoch), what, s.Flags, s.Seq, s.Ack, s.Window, len(s.Payload), s.Options.TSVal, s.Options.TSEcr))
	}
	times := 1
	if w.rng.Float64() < w.dup {
		times = 2
	}
	for range times {
		if w.rng.Float64() < w.loss {
			continue
		}
		d := 5 * time.Millisecond
		if w.jitter > 0 {
			d += time.Duration(w.rng.Int64N(int64(w.jitter)))
		}
		w.after(d, func() { arrive(bytes.Clone(b)) }) // translated in place: each copy is one of its own
	}
}

var epoch = time.Unix(1_800_000_000, 0)

// run lets the world go on until done, and fails after a simulated while.
func (w *world) run(done func() bool) {
	for !done() {
		if len(w.events) == 0 || w.now.Sub(epoch) > 5*time.Minute {
			w.fail("stuck")
		}
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.trace[max(0, len(w.trace)-60):] {
		w.t.Log(line)
	}
	w.t.Fatalf("%v: "+format, append([]any{w.now.Sub(epoch)}, args...)...)
}

// balancer is what a data plane does with the package.
type balancer struct {
	w       *world
	cookies *Cookies
	limits  Limits
	conn    *Conn
	tr      *Translation
	decide  func(c *Conn, ev Event) bool // true: connect
	reply   []byte
	events  []Event
	patient bool // acknowledgements wait, where the client is taken to wait for an answer
}

var tuple = Tuple{netip.MustParseAddrPort("192.0.2.9:40000"), netip.MustParseAddrPort("192.0.2.80:80")}

func (l *balancer) emit(to Side, s *Segment) {
	b := s.Append(nil, 1, 2)
	if to == Client {
		l.w.send("lb>client", b, l.w.client.receive)
	} else {
		l.w.send("lb>server", b, l.w.servers[l.w.chosen].receive)
	}
}

type noChange struct{}

func (noChange) Long(_, _ uint32)    {}
func (noChange) LongOdd(_, _ uint32) {}
func (noChange) Word(_, _ uint16)    {}

func (l *balancer) act(ev Event) {
	if l.patient {
		defer func() { l.conn.Settle(l.w.now, l.w.rng.IntN(4) > 0, l.emit) }()
	}
	if ev == None {
		return
	}
	l.events = append(l.events, ev)
	switch ev {
	case MoreData, Full:
		if l.conn.State() == Collecting && l.decide(l.conn, ev) {
			if l.reply != nil {
				l.conn.Reply(l.w.now, l.reply, l.emit)
			} else {
				l.conn.Connect(l.w.now, l.emit)
			}
		}
	case ServerLost:
		if l.w.chosen+1 == len(l.w.servers) {
			l.conn.Abort(l.w.now, l.emit)
			return
		}
		l.w.chosen++
		l.conn.Connect(l.w.now, l.emit)
	case Established:
		tr := l.conn.Translation()
		l.tr = &tr
	}
}

func (l *balancer) tick() {
	if l.conn == nil || l.conn.State() >= Spliced && l.conn.State() != Replying {
		return
	}
	l.act(l.conn.Tick(l.w.now, l.emit))
	l.w.after(20*time.Millisecond, l.tick)
}

// gone answers what comes for a connection that has ended.
func (l *balancer) gone(side Side, s *Segment) bool {
	if l.conn == nil || l.conn.State() != Closed {
		return false
	}
	if s.Flags&(RST|ACK) == ACK {
		l.emit(side, &Segment{Seq: s.Ack, Flags: RST})
	}
	return true
}

func (l *balancer) fromClient(b []byte) {
	var s Segment
	if !Parse(b, &s) {
		l.w.fail("malformed from client")
	}
	if l.gone(Client, &s) {
		return
	}
	if l.conn == nil {
		if s.Flags&(SYN|ACK) == SYN {
			a := l.cookies.Answer(l.w.now, tuple, &s)
			l.emit(Client, &a)
			return
		}
		start, ok := l.cookies.Check(l.w.now, tuple, &s)
		if !ok {
			if !l.cookies.Recent(l.w.now, &s) {
				l.w.fail("a cookie was not recognised")
			}
			return
		}
		l.conn = start.Conn(l.w.now, l.limits)
		if l.patient = l.w.rng.IntN(2) == 0; l.patient {
			l.conn.Patient()
		}
		l.w.after(20*time.Millisecond, l.tick)
	}
	forward := true
	if l.conn.State() != Spliced {
		var ev Event
		ev, forward = l.conn.FromClient(l.w.now, &s, l.emit)
		l.act(ev)
	}
	if forward {
		l.tr.ToServer(b, noChange{})
		if l.w.fault != nil {
			l.w.fault(b, Client)
		}
		l.w.send("client>server", b, l.w.servers[l.w.chosen].receive)
	}
}

func (l *balancer) fromServer(from int) func([]byte) {
	return func(b []byte) {
		if l.conn == nil || from != l.w.chosen {
			return
		}
		var s Segment
		if !Parse(b, &s) {
			l.w.fail("malformed from server")
		}
		if l.gone(Server, &s) {
			return
		}
		forward := true
		if l.conn.State() != Spliced {
			var ev Event
			ev, forward = l.conn.FromServer(l.w.now, &s, l.emit)
			l.act(ev)
		}
		if forward {
			l.tr.ToClient(b, noChange{})
			if l.w.fault != nil {
				l.w.fault(b, Server)
			}
			l.w.send("server>client", b, l.w.client.receive)
		}
	}
}

// newWorld makes a world with n servers.
func newWorld(t testing.TB, seed uint64, offer *Offer, limits Limits, n int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: epoch}
	w.text = w.rng
	cookies, err := NewCookies(nil, offer)
	require.NoError(t, err)
	limits, err = limits.WithDefaults()
	require.NoError(t, err)
	w.lb = &balancer{w: w, cookies: cookies, limits: limits}
	opts := Options{MSS: 1460, Scale: 7, HasScale: true, SACKPermitted: true, Timestamps: true}
	w.client = &host{w: w, name: "client", opt: opts, window: 60000, tsOffset: w.rng.Uint32()}
	w.client.emit = func(b []byte) { w.send("client>lb", b, w.lb.fromClient) }
	for i := range n {
		s := &host{w: w, name: fmt.Sprint("server", i), passive: true, opt: opts, window: 60000, tsOffset: w.rng.Uint32()}
		s.emit = func(b []byte) { w.send("server>lb", b, w.lb.fromServer(i)) }
		w.servers = append(w.servers, s)
	}
	w.lb.decide = func(c *Conn, ev Event) bool {
		return ev == Full || bytes.Contains(c.Data(), []byte("\r\n\r\n")) || c.EndOfStream()
	}
	return w
}
