package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
)

// bufferSize holds the largest super-packet, with an Ethernet header and tags.
const bufferSize = ReadOffset + 65535 + 64

// Run forwards packets between the devices of Config until ctx is done or a device fails. It has one reader
// for each device, which handles what it reads or hands it to a worker (Config.Workers), and runs the pools in force (steering.Pool.Run), so that nobody else should. It closes the devices before it returns: nil after
// ctx is done, else the first device's error. It must not be called twice.
func (p *Plane) Run(ctx context.Context) error {
	if len(p.cfg.Devices) == 0 {
		return fmt.Errorf("%w: Config.Devices: none, want at least one to Run", ErrInvalid)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	queues := p.newQueues()
	first := queues[0]
	p.startTeam()
	for i, q := range queues {
		wg.Go(func() {
			if err := q.run(); err != nil && !errors.Is(err, os.ErrClosed) {
				cancel(fmt.Errorf("dataplane: device %d: %w", i, err))
				return
			}
			cancel(nil)
		})
	}
	wg.Go(func() { p.maintain(ctx, first) })
	wg.Go(p.sessions().Prefault)
	wg.Go(func() { p.reclaimAll(ctx) })
	p.slab.prepare()
	wg.Go(func() { p.exportFlows(ctx) })
	<-ctx.Done()
	for _, d := range p.cfg.Devices {
		d.Close()
	}
	wg.Wait()
	p.stopTeam()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// maintain calls Step once a second, and more often while there is much to do, and sends by one of the queues what the
// Plane has to say unasked.
func (p *Plane) maintain(ctx context.Context, q *queue) {
	const pause = time.Second
	var c clocks
	defer c.stop()
	c.follow(ctx, p)
	t := time.NewTimer(pause)
	defer t.Stop()
	held := time.NewTicker(holdTick)
	defer held.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-held.C:
			if p.holding() {
				if err := q.flush(); err != nil {
					return // the queue's own reader reports it
				}
			}
			continue
		case <-p.slab.low:
			p.slab.prepare()
			continue
		case <-p.slab.crowded:
			p.slab.recycle(p.quiesce)
			continue
		case <-p.pending.wake:
			if err := q.flush(); err != nil {
				return // the queue's own reader reports it
			}
			continue
		case <-t.C:
		}
		next := pause
		c.follow(ctx, p)
		if p.Step(time.Now()) {
			next = time.Millisecond
		}
		t.Reset(next)
	}
}

// exportFlows reports flows, beside maintain, so that a slow collector or a look at millions of sessions holds nothing up.
func (p *Plane) exportFlows(ctx context.Context) { everySecond(ctx, p.StepFlows) }

// everySecond calls f until ctx is done.
func everySecond(ctx context.Context, f func(now time.Time)) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			f(now)
		}
	}
}

// queue is a device with its worker. Reading and handling is one goroutine's, writing may be another's now
// and then.
type queue struct {
	p     *Plane
	d     Device
	w     *Worker
	write sync.Mutex // from the start of a batch until its packets are written

	batch int
	peers []*queue     // all queues of the same interface, this one included
	back  chan *parcel // those that workers have done with
	lent  int          // buffers beyond those of one batch
}

// newQueues makes a queue of each device.
func (p *Plane) newQueues() (qs []*queue) {
	for i, d := range p.cfg.Devices {
		w := p.newWorker(linkOf(d), fmt.Sprint("queue ", i))
		qs = append(qs, &queue{
			p: p, d: d, w: w, batch: max(d.BatchSize(), 1), back: make(chan *parcel, maxParcels(maxWorkers)),
		})
	}
	for _, q := range qs {
		for _, o := range qs {
			if o == q || sameInterface(o.d, q.d) {
				q.peers = append(q.peers, o)
			}
		}
	}
	return qs
}

// sameInterface reports whether two devices are queues of one interface.
func sameInterface(a, b Device) bool {
	x, ok := a.(Indexed)
	y, ok2 := b.(Indexed)
	return ok && ok2 && x.Index() != 0 && x.Index() == y.Index()
}

func (q *queue) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	bufs, sizes := make([][]byte, q.batch), make([]int, q.batch)
	for i := range bufs {
		bufs[i] = make([]byte, bufferSize)
	}
	s := sorter{q: q}
	defer s.quit()
	for {
		n, err := q.d.Read(bufs, sizes, ReadOffset)
		if err != nil && n == 0 {
			return err
		}
		if t := s.follow(q.p); t != nil {
			s.hand(q.p, t, bufs[:n], sizes)
			if err != nil {
				return err
			}
			continue
		}
		if werr := q.handle(bufs[:n], sizes); werr != nil {
			return werr
		}
		if err != nil {
			return err
		}
	}
}

func (q *queue) handle(bufs [][]byte, sizes []int) error {
	q.write.Lock()
	defer q.write.Unlock()
	return q.w.write(q.d, q.w.Process(time.Now(), bufs, sizes, ReadOffset, nil))
}

// flush sends what waits, without packets from the device.
func (q *queue) flush() error { return q.handle(nil, nil) }

// write sends packets, and counts those that the device does not take.
func (w *Worker) write(d Device, out [][]byte) error {
	for len(out) > 0 {
		n, err := d.Write(out, Headroom)
		out = out[min(n, len(out)):]
		if err == nil {
			if n == 0 {
				return errNoProgress
			}
			continue
		}
		if errors.Is(err, os.ErrClosed) {
			return err
		}
		if len(out) == 0 {
			return nil
		}
		w.mu.Lock()
		w.stats.drops[WriteFailed]++
		w.mu.Unlock()
		out = out[1:]
	}
	return nil
}

var errNoProgress = errors.New("write took no packet and gave no error")
