package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/healthcheck"
)

// synTalk is a started half-open probe. Its place in the pool's map says that it has
// not ended, and is guarded by the pool's lock.
type synTalk struct {
	attempt
	pool   *synPool
	to     netip.AddrPort // target, without mapping and zone
	sa     unix.Sockaddr
	port   uint16
	seq    uint32
	resend time.Duration
	wait   wait
	done   func(healthcheck.Result)
}

// Start implements [healthcheck.Starter], on Linux: all probes of one family and Socket
// share a raw socket.
func (p TCPHalfOpen) Start(s *healthcheck.Scope, target netip.AddrPort, deadline time.Time, done func(healthcheck.Result)) (stop func()) {
	if err := p.Validate(); err != nil {
		done(invalid("tcp half-open", target, err))
		return func() {}
	}
	t := &synTalk{
		attempt: attempt{ctx: context.Background(), start: time.Now(), deadline: deadline, proto: "tcp half-open", step: "connect", target: target, dialer: p.Socket},
		resend:  p.Resend, done: done,
	}
	if t.resend == 0 {
		t.resend = time.Second
	}
	t.wait.owner = t
	err := t.begin(s, p.Socket)
	if errors.Is(err, errNoRaw) {
		return nil
	}
	if err != nil {
		done(t.result(err))
		return func() {}
	}
	return func() { t.pool.e.stop(&t.wait) }
}

// begin returns an error only where t has no place in the pool: errNoRaw, where this
// probe is to be made by itself.
func (t *synTalk) begin(scope *healthcheck.Scope, socket Socket) error {
	addr := t.target.Addr().Unmap()
	if err := socket.check(addr); err != nil {
		return err
	}
	t.step = "socket"
	e, err := loadEngine(scope)
	if err != nil {
		return localError{err}
	}
	if socket.Interface != "" || addr.IsLinkLocalUnicast() {
		return errNoRaw // a socket is bound to the interface there is now
	}
	t.to = netip.AddrPortFrom(addr, t.target.Port())
	t.sa = sockaddr(netip.AddrPortFrom(addr, 0))
	for {
		if t.pool, err = e.synPool(sockKind{socket, addr.Is6()}); err != nil {
			return err
		}
		if t.pool.mu.Lock(); !t.pool.aged {
			break
		}
		t.pool.mu.Unlock() // a moment ago, and it is out of the engine's sight
	}
	p := t.pool
	defer p.unlock()
	if err := p.enter(t); err != nil {
		return err
	}
	var r [4]byte
	_, _ = rand.Read(r[:]) // never fails
	t.seq = binary.BigEndian.Uint32(r[:])
	t.step = "SYN"
	t.sendSYN()
	// The answer of a target on this machine is there when the SYN has been sent.
	p.receiveAll(t)
	if p.talks[t.key()] == t {
		t.await(time.Now())
	}
	return nil
}

// enter gives t a port, and with that a place. errNoRaw: there is none free.
func (p *synPool) enter(t *synTalk) error {
	if p.closed {
		return localError{healthcheck.ErrScopeClosed}
	}
	p.unused = false
	for range p.ports {
		t.port = p.ports[p.next]
		p.next = (p.next + 1) % len(p.ports)
		if p.talks[t.key()] == nil {
			p.talks[t.key()] = t
			return nil
		}
	}
	return errNoRaw
}

func (t *synTalk) key() synKey { return synKey{t.to, t.port} }

func (t *synTalk) sendSYN() {
	const maximumSegmentSize = 1460
	if err := t.pool.send(t, t.seq, tcpSYN, 2, 4, maximumSegmentSize>>8, maximumSegmentSize&0xff); err != nil {
		t.pool.end(t, err)
	}
}

// await waits for the answer, or the time to ask again.
func (t *synTalk) await(now time.Time) {
	until := now.Add(t.resend)
	t.resend *= 2
	if until.After(t.deadline) {
		until = t.deadline
	}
	ok, err := t.pool.e.enter(&t.wait, until, nil)
	if !ok {
		t.cancel(err)
		return
	}
	t.pool.arm()
}

func (t *synTalk) cancel(err error) {
	t.ctx = cancelledContext()
	t.pool.end(t, err)
}

func (t *synTalk) expired(now time.Time) {
	p := t.pool
	p.mu.Lock()
	defer p.unlock()
	switch {
	case p.talks[t.key()] != t:
	case !now.Before(t.deadline):
		p.end(t, os.ErrDeadlineExceeded)
	default:
		if t.sendSYN(); p.talks[t.key()] == t {
			t.await(now)
		}
	}
}

func (t *synTalk) cancelled() {
	t.pool.mu.Lock()
	defer t.pool.unlock()
	if t.pool.talks[t.key()] == t {
		t.cancel(context.Canceled)
	}
}

// ready is not called: the pool reads for all.
func (t *synTalk) ready() {}
