package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// defaultRetries is how often a datagram that was not answered is sent again.
const defaultRetries = 2

// refusedPause is how long a probe waits after an ICMP error before it tries again.
const refusedPause = 100 * time.Millisecond

// maxDatagram is enough for a reply without fragmentation of any protocol here.
const maxDatagram = 4096

// ignoredError says why datagrams were passed over; the wait goes on.
type ignoredError struct{ why string }

func (e *ignoredError) Error() string { return e.why }

func ignoref(format string, args ...any) error {
	return &ignoredError{fmt.Sprintf(format, args...)}
}

// overUDP connects a UDP socket and has talk decide.
func (a *attempt) overUDP(talk func(net.Conn) error) error {
	conn, err := dial(a.ctx, a.dialer, "udp", a.target, true)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(a.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	return talk(conn)
}

// exchange sends a request and has judge look at each datagram that arrives, until it
// returns something other than an *ignoredError. A request that silence or an ICMP
// error answers is sent again up to retries times, evenly spread over what is left of
// the time; the deadline of the whole stays. An ICMP error says more than the silence
// after it: routers send few of them (Linux one a second to a source).
func (a *attempt) exchange(conn net.Conn, request []byte, retries int, judge func([]byte) error) error {
	var ignored, icmp error
	buf := make([]byte, maxDatagram)
	for try := range retries + 1 {
		slot := time.Now().Add(time.Until(a.deadline) / time.Duration(retries+1-try))
		if try == retries {
			slot = a.deadline
		}
		err := a.try(conn, request, buf, slot, judge, &ignored)
		if err == nil || !isTimeout(err) && !isICMP(err) {
			return err
		}
		if a.ctx.Err() != nil {
			break
		}
		if isICMP(err) {
			icmp = err
			if try < retries {
				a.pause(min(time.Until(slot), refusedPause))
			}
		}
	}
	switch {
	case icmp != nil:
		return icmp
	case ignored != nil:
		return fmt.Errorf("timed out after ignoring a reply: %w", ignored)
	}
	return os.ErrDeadlineExceeded
}

// try sends once and waits until at.
func (a *attempt) try(conn net.Conn, request, buf []byte, at time.Time, judge func([]byte) error, ignored *error) error {
	if err := conn.SetDeadline(at); err != nil {
		return err
	}
	if a.ctx.Err() != nil { // the deadline above must not undo that of a cancelled context
		return a.ctx.Err()
	}
	if _, err := conn.Write(request); err != nil {
		if isTimeout(err) {
			err = unsentError{err}
		}
		return err
	}
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		err = judge(buf[:n])
		if _, ok := errors.AsType[*ignoredError](err); !ok {
			return err
		}
		*ignored = err
	}
}

// unsentError says that the time was over before a datagram was sent: what follows is no silence of the target.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// pause waits, but not longer than the context allows.
func (a *attempt) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-a.ctx.Done():
	}
}

// fatalICMP has an exchange end with the first ICMP error.
type fatalICMP struct{ net.Conn }

func (c fatalICMP) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.fatal(err)
}

func (c fatalICMP) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.fatal(err)
}

func (fatalICMP) fatal(err error) error {
	if isICMP(err) {
		return unreachableError{err}
	}
	return err
}

// unreachableError is an ICMP error that no repetition is to follow.
type unreachableError struct{ err error }

func (e unreachableError) Error() string { return cause(e.err).Error() }
func (e unreachableError) Unwrap() error { return e.err }

// isICMP reports whether err is what an ICMP error about a datagram becomes, and may be
// followed by another try.
func isICMP(err error) bool {
	if _, ok := errors.AsType[unreachableError](err); ok {
		return false
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	return ok && icmpErrno(errno)
}
