package dataplane

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// held is a connection between its client's handshake and the splice. Its shard's lock guards it. Once it is removed, its worker uses it for another connection, from
// the next batch on.
type held struct {
	key   clienttable.Flow // client > VIP
	svc   *service         // as it was when the connection began
	conn  *splice.Conn
	probe []byte // a packet of the flow, for what wants one

	// What was read.
	fed     int  // bytes of the stream that were looked at
	asks    bool // the client waits for an answer before it says more
	stream  *l7.Stream
	hello   *sslpersist.Parser                // if nothing is to be remembered
	tls     *sslpersist.Conn[steering.NodeID] // otherwise
	pool    *pool                             // chosen, or nil
	ourISN  uint32
	isn     uint32 // of the client
	tried   []steering.NodeID
	first   binding  // the node that the client is bound to
	session ref      // with a node
	has     bool     // session is set
	near    wire.End // what the node takes for the client
	far     wire.End // the node
	node    *node

	kept *kept // every request is followed, or nil
	tags tags  // of the client's last packet

	due int64 // when it is to be looked at, in nanoseconds since the Plane's epoch
	at  int   // in the heap
}

// holds are the connections that are held, in shards by their keys.
type holds struct {
	n      atomic.Int64 // that wait for a client
	all    atomic.Int64
	kept   atomic.Int64 // whose requests are followed
	most   atomic.Int64 // of n
	shards [holdShards]holdShard

	mu      sync.Mutex
	readers map[uint32]*reader                    // by record
	parked  map[clienttable.Flow]clienttable.Flow // from a parked connection's packets to its client's
	ended   []clienttable.Flow                    // sessions of connections that are followed
	nParked atomic.Int64
	nEnded  atomic.Int64
}

const holdShards = 16

type holdShard struct {
	mu    sync.Mutex
	conns map[clienttable.Flow]*held
	queue dueQueue
	next  atomic.Int64 // when the first of queue is due; 0: never
	_     [64]byte
}

func newHolds(most int) *holds {
	h := &holds{readers: make(map[uint32]*reader), parked: make(map[clienttable.Flow]clienttable.Flow)}
	h.most.Store(int64(most))
	for i := range h.shards {
		h.shards[i].conns = make(map[clienttable.Flow]*held)
	}
	return h
}

func (h *holds) shard(k clienttable.Flow, seed uint64) *holdShard {
	return &h.shards[k.Hash(seed)%holdShards]
}

// add takes a connection in, unless there are too many.
func (h *holds) add(s *holdShard, c *held) bool {
	if h.n.Add(1) > h.most.Load() {
		h.n.Add(-1)
		return false
	}
	h.all.Add(1)
	s.conns[c.key] = c
	heap.Push(&s.queue, c)
	s.tell()
	return true
}

// remove forgets a connection, and reports whether it was there.
func (h *holds) remove(s *holdShard, c *held) bool {
	if s.conns[c.key] != c {
		return false
	}
	delete(s.conns, c.key)
	heap.Remove(&s.queue, c.at)
	s.tell()
	h.all.Add(-1)
	if c.kept == nil || !c.kept.idle {
		h.n.Add(-1)
	}
	return true
}

// each calls f with every connection, under its lock.
func (h *holds) each(f func(c *held)) {
	for i := range h.shards {
		s := &h.shards[i]
		s.mu.Lock()
		for _, c := range s.conns {
			f(c)
		}
		s.mu.Unlock()
	}
}

// mostSpare bounds how many of the connections that are done with a worker keeps for others.
const mostSpare = 64

// newHeld returns memory for a connection.
func (w *Worker) newHeld() *held {
	last := len(w.spare) - 1
	if last < 0 {
		return new(held)
	}
	c := w.spare[last]
	w.spare = w.spare[:last]
	*c = held{conn: c.conn, probe: c.probe[:0], tried: c.tried[:0]}
	return c
}

// spend takes note that a connection is not needed any more once the batch has ended.
func (w *Worker) spend(c *held) {
	if c.kept == nil {
		w.spent = append(w.spent, c)
	}
}

// reuse makes connections that are done with available.
func (w *Worker) reuse() {
	if n := min(len(w.spent), mostSpare-len(w.spare)); n > 0 {
		w.spare = append(w.spare, w.spent[:n]...)
	}
	clear(w.spent)
	w.spent = w.spent[:0]
}

// reschedule takes note of when a connection is due.
func (s *holdShard) reschedule(c *held, due int64) {
	if s.conns[c.key] == c && c.due != due {
		c.due = due
		heap.Fix(&s.queue, c.at)
		s.tell()
	}
}

func (s *holdShard) tell() {
	if len(s.queue) == 0 {
		s.next.Store(0)
		return
	}
	s.next.Store(max(s.queue[0].due, 1))
}

// dueQueue is a heap of connections by when they are due.
type dueQueue []*held

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].due < q[j].due }
func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}
func (q *dueQueue) Push(x any) {
	c := x.(*held)
	c.at = len(*q)
	*q = append(*q, c)
}
func (q *dueQueue) Pop() any {
	old := *q
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return c
}

// nanos is now since the Plane's epoch.
func (p *Plane) nanos(now time.Time) int64 { return int64(now.Sub(p.epoch)) }

// holding reports whether connections are held, or wait to be.
func (p *Plane) holding() bool { return p.holds.all.Load() > 0 }

// tickHeld does what is due for held connections.
func (w *Worker) tickHeld() {
	if w.dry || !w.p.holding() {
		return
	}
	w.endKept()
	now := w.p.nanos(w.now)
	for i := range w.p.holds.shards {
		s := &w.p.holds.shards[i]
		if next := s.next.Load(); next == 0 || next > now {
			continue
		}
		s.mu.Lock()
		// Bounded, should the clock of a connection stand still.
		for n := len(s.queue); n > 0 && len(s.queue) > 0 && s.queue[0].due <= now; n-- {
			c := s.queue[0]
			w.act(s, c, c.tick(w.now, w.emitter(c)))
		}
		s.mu.Unlock()
	}
}

// holdTick is how often what is due for held connections is looked for when no packets come.
const holdTick = 50 * time.Millisecond
