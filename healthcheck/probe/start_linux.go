package probe

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/healthcheck"
)

// talk is a started probe over TCP: connected, and for HTTP asked and answered.
type talk struct {
	attempt
	e    *engine
	s    *sock
	addr rawAddr
	http *HTTP // nil: a connection is enough
	send []byte
	up   bool // connected
	wait wait
	done func(healthcheck.Result)
}

// Start implements [healthcheck.Starter], on Linux with the system's choices or a
// [Socket].
func (p TCP) Start(s *healthcheck.Scope, target netip.AddrPort, deadline time.Time, done func(healthcheck.Result)) (stop func()) {
	return startTCP(s, "tcp", p.Dialer, target, deadline, nil, done)
}

// Start implements [healthcheck.Starter], on Linux with the system's choices or a
// [Socket], and without Content.
func (p HTTP) Start(s *healthcheck.Scope, target netip.AddrPort, deadline time.Time, done func(healthcheck.Result)) (stop func()) {
	if p.Content != nil {
		return nil
	}
	if err := p.Validate(); err != nil {
		done(invalid("http", target, err))
		return func() {}
	}
	return startTCP(s, "http", p.Dialer, target, deadline, &p, done)
}

func startTCP(scope *healthcheck.Scope, proto string, d Dialer, target netip.AddrPort, deadline time.Time, http *HTTP, done func(healthcheck.Result)) (stop func()) {
	socket, ok := own(d)
	if !ok {
		return nil
	}
	t := &talk{
		attempt: attempt{ctx: context.Background(), start: time.Now(), deadline: deadline, proto: proto, step: "connect", target: target, dialer: d},
		http:    http, done: done,
	}
	t.wait.owner = t
	if err := t.begin(scope, socket); err != nil {
		done(t.result(err))
		return func() {}
	}
	return func() { t.e.stop(&t.wait) }
}

// begin returns an error only where nothing has been taken yet.
func (t *talk) begin(scope *healthcheck.Scope, socket Socket) (err error) {
	if err = socket.check(t.target.Addr()); err != nil {
		return err
	}
	if t.e, err = loadEngine(scope); err != nil {
		return localError{err}
	}
	to := netip.AddrPortFrom(t.target.Addr().Unmap(), t.target.Port())
	t.addr = newRawAddr(to)
	if t.s, err = t.e.take(sockKind{socket, to.Addr().Is6()}); err != nil {
		return err
	}
	if t.http != nil {
		_ = t.s.settle() // nothing has begun yet
		t.s.head.reset(t.http.limit())
		t.s.request = t.http.appendRequest(t.s.request[:0], t.target)
		t.send = t.s.request
	}
	if t.up, err = t.s.connect(&t.addr, true); err == nil && !t.up {
		// A target on this machine has answered by the time connect returned: a second
		// call tells, or what is to be said anyhow.
		if t.http != nil {
			err = t.say()
		} else {
			t.up, err = t.s.connect(&t.addr, false)
		}
	}
	t.connected(err)
	return nil
}

// connected goes on after an attempt to connect.
func (t *talk) connected(err error) {
	switch {
	case err == nil && t.up && reachedItself(t.s.fd, t.peer()):
		t.end(unix.ECONNREFUSED)
	case err != nil || t.up && t.http == nil:
		t.end(err)
	case !t.up:
		t.await(unix.EPOLLOUT)
	case len(t.send) > 0:
		t.step = "request"
		t.said(t.say())
	default:
		t.said(nil)
	}
}

func (t *talk) peer() netip.AddrPort {
	return netip.AddrPortFrom(t.target.Addr().Unmap(), t.target.Port())
}

// say sends what it can of the request.
func (t *talk) say() error {
	n, err := rawWrite(t.s.fd, t.send)
	switch {
	case err == nil:
		t.up, t.send = true, t.send[n:]
	case errors.Is(err, unix.EAGAIN):
		return nil
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		t.step = "request" // there was a connection
	}
	return err
}

func (t *talk) said(err error) {
	switch {
	case err != nil:
		t.end(err)
	case len(t.send) > 0:
		t.step = "request"
		t.await(unix.EPOLLOUT)
	default:
		t.step = "reply"
		t.await(unix.EPOLLIN | unix.EPOLLRDHUP)
	}
}

// ready goes on when there is something to go on with.
func (t *talk) ready() {
	if now := time.Now(); !now.Before(t.deadline) {
		t.expired(now)
		return
	}
	switch {
	case !t.up:
		var err error
		t.up, err = t.s.connect(&t.addr, false)
		t.connected(err)
	case len(t.send) > 0:
		t.said(t.say())
	default:
		t.hear()
	}
}

// hear reads the reply.
func (t *talk) hear() {
	var buf [2048]byte
	for {
		n, err := rawRead(t.s.fd, buf[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			t.await(unix.EPOLLIN | unix.EPOLLRDHUP)
			return
		case err != nil:
			t.end(t.s.head.cut(err))
			return
		case n == 0:
			t.end(t.s.head.cut(io.EOF))
			return
		}
		done, err := t.s.head.feed(buf[:n])
		switch {
		case done && err == nil:
			t.end(t.judge())
			return
		case err != nil:
			t.end(err)
			return
		case n < len(buf):
			t.await(unix.EPOLLIN | unix.EPOLLRDHUP)
			return
		}
	}
}

func (t *talk) judge() error {
	if h := &t.s.head; !t.http.accepts(h.code) {
		t.final = t.http.FailFast
		return healthcheck.Mismatch(h.status, t.http.want())
	}
	return nil
}

// await waits. Another goroutine goes on with t from there.
func (t *talk) await(events uint32) {
	t.sent = true
	ok, err := t.e.enter(&t.wait, t.deadline, func() error {
		if !t.up {
			// Left there, it would be taken for this connection's.
			if err := t.s.settle(); err != nil {
				return err
			}
		}
		return t.e.await(t.s, &t.wait, events)
	})
	switch {
	case ok: // from here t is another's
	case errors.Is(err, context.Canceled):
		t.cancelled()
	default:
		t.end(err)
	}
}

// expired ends t at its deadline.
func (t *talk) expired(time.Time) {
	if t.step == "reply" {
		t.end(t.s.head.cut(os.ErrDeadlineExceeded))
		return
	}
	t.end(os.ErrDeadlineExceeded)
}

func (t *talk) cancelled() {
	t.ctx = cancelledContext()
	t.end(context.Canceled)
}

// end tells the result. The connection is reset before.
func (t *talk) end(err error) {
	t.decide()
	// A link-local address binds the socket to its interface.
	t.e.give(t.s, err == nil && !t.target.Addr().IsLinkLocalUnicast())
	t.done(t.result(err))
}
