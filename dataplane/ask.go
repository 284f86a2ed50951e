package dataplane

import (
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// Bounds of the questions to peers that are under way. What finds no room is dealt with as if the peers knew nothing.
const (
	maxAsks       = 1 << 12
	maxAskPackets = 16 // of one flow
	maxAskBytes   = 8 << 20
)

// asks holds the packets that wait for an answer of the peers. The zero asks is ready for use.
type asks struct {
	some  atomic.Bool // there are packets to take
	mu    sync.Mutex
	open  map[clienttable.Flow]*ask
	bytes int
	ready []waiter
	loose []loose

	asked, adopted uint64
}

type ask struct {
	flow    clienttable.Flow
	packets []waiter
	timer   *time.Timer
}

// waiter is a packet as it came, from Headroom before it on.
type waiter struct {
	buf  []byte
	link Link
	to   netip.Addr // the balancer that it is to be sent to
}

// ask has a packet wait for what the peers know of its flow, and reports whether it does.
func (w *Worker) ask(pk *packet, k clienttable.Flow) bool {
	p := w.p
	if p.cfg.Peers == nil || w.asked {
		return false
	}
	if w.tr != nil {
		w.tr.step("cluster", "the peers are asked for %v", k)
	}
	if w.dry {
		w.tr.step("cluster", "this is what happens if they do not know it")
		return false
	}
	q := &p.asks
	q.mu.Lock()
	a := q.open[k]
	fresh := a == nil
	if fresh && len(q.open) >= maxAsks || !fresh && len(a.packets) >= maxAskPackets || q.bytes+len(pk.buf) > maxAskBytes {
		q.mu.Unlock()
		return false
	}
	if fresh {
		if q.open == nil {
			q.open = make(map[clienttable.Flow]*ask)
		}
		a = &ask{flow: k}
		q.open[k] = a
		q.asked++
		a.timer = time.AfterFunc(AskTimeout, func() { p.answered(a, "", "", false) })
	}
	a.packets = append(a.packets, waiter{buf: slices.Clone(pk.buf), link: w.link})
	q.bytes += len(pk.buf)
	q.mu.Unlock()
	pk.verdict = Held
	if fresh {
		p.cfg.Peers.Find(k.Protocol(), k.Src(), k.Dst(), func(node, note string, ok bool) { p.answered(a, node, note, ok) })
	}
	return true
}

// answered deals with an answer, or with the lack of one.
func (p *Plane) answered(a *ask, node, note string, ok bool) {
	q := &p.asks
	q.mu.Lock()
	if q.open[a.flow] != a {
		q.mu.Unlock()
		return
	}
	delete(q.open, a.flow)
	a.timer.Stop()
	q.mu.Unlock()
	to, owned := netip.Addr{}, false
	if ok {
		to, owned = p.owner(node, note)
		ok = !owned
	}
	if ok {
		err := p.adoptSafely(a.flow, node, note)
		if err != nil {
			p.cfg.Logger.Debug("a flow of the cluster", "flow", a.flow, "node", node, "err", err)
		}
		ok = err == nil
	}
	q.mu.Lock()
	if ok {
		q.adopted++
	}
	for i := range a.packets {
		a.packets[i].to = to
	}
	q.ready = append(q.ready, a.packets...)
	q.some.Store(true)
	q.mu.Unlock()
	p.pending.rouse()
}

func (p *Plane) adoptSafely(k clienttable.Flow, node, note string) error {
	defer p.readers.leave(p.readers.enter())
	if p.closed.Load() {
		return os.ErrClosed
	}
	return p.adopt(time.Now(), k, node, note, wire.ACK)
}

// take returns the packets of a link that have waited long enough.
func (q *asks) take(link Link) (out []waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ready = slices.DeleteFunc(q.ready, func(h waiter) bool {
		if h.link == link {
			out = append(out, h)
			q.bytes -= len(h.buf)
		}
		return h.link == link
	})
	q.some.Store(len(q.ready)+len(q.loose) > 0)
	return out
}

// takeAsked deals with the packets that have waited for the peers, ahead of the batch.
func (w *Worker) takeAsked() {
	if w.dry || !w.p.asks.some.Load() {
		return
	}
	w.asked = true
	for _, h := range w.p.asks.take(w.link) {
		w.again(h)
	}
	w.asked = false
	for _, l := range w.p.asks.takeLoose(w.link) {
		w.release(l.waiting, l.course)
	}
}

// again deals with a packet that was held, as it came: it was counted then.
func (w *Worker) again(h waiter) {
	var pk packet
	pk.buf = w.arena.take(len(h.buf))
	copy(pk.buf, h.buf)
	in := w.stats.in
	r := w.parse(&pk)
	w.stats.in = in
	if r != NotDropped || pk.ip == nil {
		return
	}
	pk.key = flowOf(pk.ip, &pk.v)
	if h.to.IsValid() {
		w.relayTo(&pk, h.to)
		return
	}
	w.fresh = true // the answer may have made a session
	w.miss(&pk)
}
