package probe

import (
	"container/heap"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/healthcheck"
)

// An engine has the probes under way that a [healthcheck.Scope] is shared by. Its one
// goroutine waits for all of them in a poller of its own, which lies in the runtime's.
//
// It saves what a goroutine per probe would cost, and the making and closing of
// sockets: connect(2) with AF_UNSPEC ends a connection with a reset, as a close without
// lingering does, and leaves a socket that can be connected again. A TCP check is three
// system calls, of which none makes or frees a file.
type engine struct {
	file *os.File // the poller
	raw  syscall.RawConn
	ep   int
	done chan struct{} // closed when the goroutine ended

	mu     sync.Mutex
	closed bool
	socks  []*sock // by place
	spare  []int32 // places that are free
	idle   map[sockKind][]*sock
	pools  map[sockKind]*synPool // nil: there can be none
	waits  waitHeap
	armed  time.Time // when the goroutine wakes by itself; zero: never

	idleTime time.Duration
	sweepAt  time.Time // when to look for what nobody has used; zero: there is nothing
}

// maxIdle is how many sockets of a kind are kept, and idleTime for how long at least, and
// twice as long at most: a check that is made seldom, or is gone, holds no descriptor.
const (
	maxIdle  = 64
	idleTime = time.Minute
)

type engineKey struct{}

func loadEngine(s *healthcheck.Scope) (*engine, error) {
	c, err := s.Load(engineKey{}, newEngine)
	if err != nil {
		return nil, err
	}
	e, _ := c.(*engine)
	return e, nil
}

func newEngine() (io.Closer, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, localError{os.NewSyscallError("epoll_create1", err)}
	}
	if err := unix.SetNonblock(ep, true); err != nil { // so that os.NewFile has it polled
		_ = unix.Close(ep)
		return nil, localError{os.NewSyscallError("fcntl", err)}
	}
	e := &engine{file: os.NewFile(uintptr(ep), "epoll"), ep: ep, done: make(chan struct{}), idle: map[sockKind][]*sock{}, pools: map[sockKind]*synPool{}, idleTime: idleTime}
	if e.raw, err = e.file.SyscallConn(); err != nil {
		_ = e.file.Close()
		return nil, localError{err}
	}
	go e.run()
	return e, nil
}

// Close ends all probes.
func (e *engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	err := e.file.Close()
	<-e.done
	for {
		e.mu.Lock()
		if len(e.waits) == 0 {
			break
		}
		w := e.waits[0]
		e.unwait(w)
		e.mu.Unlock()
		w.owner.cancelled()
	}
	for _, idle := range e.idle {
		for _, s := range idle {
			e.drop(s)
		}
	}
	e.idle = nil
	e.mu.Unlock()
	for _, p := range e.pools {
		if p != nil {
			p.mu.Lock() // whoever has it still is to end first
			p.close()
			p.mu.Unlock()
		}
	}
	return err
}

// run is the goroutine.
func (e *engine) run() {
	defer close(e.done)
	var events [128]unix.EpollEvent
	for {
		n := 0
		err := e.raw.Read(func(uintptr) bool {
			n = e.poll(events[:])
			return n > 0
		})
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // closed
		}
		for i := range events[:n] {
			e.ready(&events[i])
		}
		now := time.Now()
		e.sweep(now)
		e.expire(now)
	}
}

func (e *engine) poll(events []unix.EpollEvent) int {
	for {
		n, err := unix.EpollWait(e.ep, events, 0)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0)
		}
	}
}

// sweepLater sees to it that what is idle now is looked at. The lock is held.
func (e *engine) sweepLater() {
	if e.sweepAt.IsZero() {
		e.sweepAt = time.Now().Add(e.idleTime)
		e.arm(e.sweepAt)
	}
}

// sweep closes what nobody has used since the last sweep.
func (e *engine) sweep(now time.Time) {
	e.mu.Lock()
	if e.sweepAt.IsZero() || now.Before(e.sweepAt) {
		e.mu.Unlock()
		return
	}
	e.sweepAt = time.Time{}
	left := false
	for kind, idle := range e.idle {
		kept := idle[:0]
		for _, s := range idle {
			if s.unused {
				e.drop(s)
				continue
			}
			s.unused = true
			kept = append(kept, s)
		}
		clear(idle[len(kept):])
		if e.idle[kind] = kept; len(kept) == 0 {
			delete(e.idle, kind)
		}
		left = left || len(kept) > 0
	}
	pools := slices.Collect(maps.Values(e.pools))
	e.mu.Unlock()
	for _, p := range pools {
		if p != nil {
			left = !p.age() || left
		}
	}
	if left {
		e.mu.Lock()
		e.sweepLater()
		e.mu.Unlock()
	}
}

// ready has what waits for an event go on.
func (e *engine) ready(ev *unix.EpollEvent) {
	e.mu.Lock()
	s := e.socks[ev.Fd]
	if s.pool != nil {
		e.mu.Unlock()
		s.pool.ready()
		return
	}
	w := s.wait
	if s.life != ev.Pad || w == nil || w.at == 0 {
		e.mu.Unlock()
		return
	}
	e.unwait(w)
	e.mu.Unlock()
	w.owner.ready()
}

// expire ends what has waited long enough.
func (e *engine) expire(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.waits) > 0 && !now.Before(e.waits[0].until) {
		w := e.waits[0]
		e.unwait(w)
		e.mu.Unlock()
		w.owner.expired(now)
		e.mu.Lock()
	}
	// Most probes end before their time, and later ones end later, so that the timer
	// is seldom moved.
	if !e.armed.IsZero() && !now.Before(e.armed) {
		e.armed = time.Time{}
		if len(e.waits) == 0 && e.sweepAt.IsZero() {
			_ = e.file.SetReadDeadline(time.Time{})
		}
		if len(e.waits) > 0 {
			e.arm(e.waits[0].until)
		}
		if !e.sweepAt.IsZero() {
			e.arm(e.sweepAt)
		}
	}
}

// arm has the goroutine wake at a time, or before.
func (e *engine) arm(at time.Time) {
	if e.armed.IsZero() || at.Before(e.armed) {
		e.armed = at
		_ = e.file.SetReadDeadline(at)
	}
}

// A waiter is a probe that waits. Whoever calls one of its methods has taken it out of
// the waiting ones, and calls no other.
type waiter interface {
	ready()
	expired(now time.Time)
	cancelled()
}

func cancelledContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// wait is a waiter's place among those that wait. All but the owner is guarded by the
// engine's lock.
type wait struct {
	owner   waiter
	until   time.Time
	at      int // in the heap, from 1; 0: does not wait
	stopped bool
}

// enter has w wait, and reports whether it may. prepare, if not nil, is called with the
// lock held.
func (e *engine) enter(w *wait, until time.Time, prepare func() error) (ok bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || w.stopped {
		return false, context.Canceled
	}
	if prepare != nil {
		if err := prepare(); err != nil {
			return false, err
		}
	}
	w.until = until
	heap.Push(&e.waits, w)
	e.arm(until)
	return true, nil
}

// leave ends the waiting of w, if it waits.
func (e *engine) leave(w *wait) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unwait(w)
}

func (e *engine) unwait(w *wait) {
	if w.at != 0 {
		heap.Remove(&e.waits, w.at-1)
	}
}

// stop ends the waiting of w, and that it would wait later.
func (e *engine) stop(w *wait) {
	e.mu.Lock()
	w.stopped = true
	waits := w.at != 0
	e.unwait(w)
	e.mu.Unlock()
	if waits {
		w.owner.cancelled()
	}
}

// waitHeap is a heap of what waits, by time.
type waitHeap []*wait

func (h waitHeap) Len() int           { return len(h) }
func (h waitHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h waitHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i+1, j+1
}

func (h *waitHeap) Push(x any) {
	w, _ := x.(*wait)
	*h = append(*h, w)
	w.at = len(*h)
}

func (h *waitHeap) Pop() any {
	n := len(*h) - 1
	w := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	w.at = 0
	return w
}
