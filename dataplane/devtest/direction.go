package devtest

import (
	"container/heap"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// direction is one way through the cable.
type direction struct {
	cfg *Config

	mu     sync.Mutex
	rng    *rand.Rand
	queue  packets
	seq    uint64
	free   [][]byte
	stats  Stats
	closed bool

	// Each holds at most one token: the state has changed since somebody looked.
	arrived, room chan struct{}
	down          chan struct{} // closed by close
}

// packet is in flight until due. Its bytes are what stood before the packet, then the packet.
type packet struct {
	due time.Time
	seq uint64
	b   []byte
}

type packets []packet

func (q packets) Len() int { return len(q) }
func (q packets) Less(i, j int) bool {
	if !q[i].due.Equal(q[j].due) {
		return q[i].due.Before(q[j].due)
	}
	return q[i].seq < q[j].seq
}
func (q packets) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *packets) Push(x any)   { *q = append(*q, x.(packet)) }
func (q *packets) Pop() any {
	last := len(*q) - 1
	p := (*q)[last]
	(*q)[last] = packet{}
	*q = (*q)[:last]
	return p
}

func newDirection(cfg *Config, stream uint64) *direction {
	return &direction{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, stream)),
		arrived: make(chan struct{}, 1), room: make(chan struct{}, 1), down: make(chan struct{}),
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put takes one packet, b from start on, after waiting for room.
func (d *direction) put(b []byte, start int) error {
	d.mu.Lock()
	for !d.closed && len(d.queue) >= d.cfg.Queue {
		d.mu.Unlock()
		select {
		case <-d.room:
		case <-d.down:
		}
		d.mu.Lock()
	}
	defer d.mu.Unlock()
	if d.closed {
		return os.ErrClosed
	}
	d.stats.Written++
	c := d.cfg
	// Every packet draws the same number of times, so that one option does not move the others' faults.
	lost, twice, late := d.rng.Float64() < c.Loss, d.rng.Float64() < c.Duplicate, d.rng.Float64() < c.Reorder
	if lost {
		d.stats.Lost++
		return nil
	}
	var now time.Time
	if c.Delay != 0 || late || twice || c.Reorder > 0 || c.Duplicate > 0 {
		now = time.Now()
	}
	due := now.Add(c.Delay)
	if late {
		d.stats.Reordered++
		due = due.Add(c.Hold)
	}
	d.push(due, b[start:])
	if twice {
		d.stats.Duplicated++
		d.push(due.Add(c.Hold), b[start:])
	}
	signal(d.arrived)
	if len(d.queue) < c.Queue {
		signal(d.room) // for another writer
	}
	return nil
}

func (d *direction) push(due time.Time, b []byte) {
	var buf []byte
	if last := len(d.free) - 1; last >= 0 {
		buf, d.free = d.free[last], d.free[:last]
	}
	d.seq++
	heap.Push(&d.queue, packet{due: due, seq: d.seq, b: append(buf[:0], b...)})
}

// take fills bufs with the packets that are due, waiting for the first one. front is how many bytes stand
// before each packet.
func (d *direction) take(bufs [][]byte, sizes []int, offset, front int) (n int, err error) {
	for {
		d.mu.Lock()
		before := len(d.queue)
		var wait time.Duration
		for n < len(bufs) && len(d.queue) > 0 {
			if due := d.queue[0].due; !due.IsZero() {
				if wait = time.Until(due); wait > 0 {
					break
				}
			}
			p := heap.Pop(&d.queue).(packet)
			if size := len(p.b) - front; size <= len(bufs[n])-offset {
				copy(bufs[n][offset-front:], p.b)
				sizes[n] = size
				n++
			} else {
				d.stats.Oversized++
			}
			if len(d.free) < d.cfg.Queue {
				d.free = append(d.free, p.b)
			}
		}
		closed, waiting := d.closed, len(d.queue) > 0
		if len(d.queue) < before {
			signal(d.room) // even if nothing fitted the reader's buffers
		}
		if n > 0 && waiting {
			signal(d.arrived) // for another reader
		}
		d.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		if closed {
			return 0, os.ErrClosed
		}
		if !waiting {
			select {
			case <-d.arrived:
			case <-d.down:
			}
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-d.arrived:
		case <-d.down:
		}
		timer.Stop()
	}
}

func (d *direction) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		d.queue, d.free = nil, nil
		close(d.down)
	}
}
