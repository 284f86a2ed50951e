package probe

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// sockKind is what a socket was prepared for.
type sockKind struct {
	socket Socket
	v6     bool
}

// sock is a TCP socket that makes one connection after the other.
type sock struct {
	fd     int
	kind   sockKind
	place  int32    // in the engine
	life   int32    // counts the sockets of a place
	polled bool     // the poller has it
	unused bool     // nobody has taken it since the last sweep
	stale  bool     // the error of the last connection's end is still to be fetched
	wait   *wait    // of the probe that has it; guarded by the engine's lock
	pool   *synPool // that has it; it is a raw socket then
	// What a probe needs again and again.
	request []byte
	head    headScan
}

// take returns a socket.
func (e *engine) take(kind sockKind) (*sock, error) {
	e.mu.Lock()
	if idle := e.idle[kind]; len(idle) > 0 {
		s := idle[len(idle)-1]
		e.idle[kind], s.unused = idle[:len(idle)-1], false
		e.mu.Unlock()
		return s, nil
	}
	e.mu.Unlock()
	family := unix.AF_INET
	if kind.v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return nil, localError{os.NewSyscallError("socket", err)}
	}
	if err := kind.socket.prepareTCP(fd, kind.v6, false); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	// The ACK that would complete the handshake goes with what is said, or is never sent
	// if a reset comes first. Unlike TCP_QUICKACK this stays with the socket.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	s := &sock{fd: fd, kind: kind}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.place(s)
	return s, nil
}

// place gives s a place.
func (e *engine) place(s *sock) {
	if n := len(e.spare); n > 0 {
		s.place, e.spare = e.spare[n-1], e.spare[:n-1]
		s.life = e.socks[s.place].life + 1
		e.socks[s.place] = s
	} else {
		s.place = int32(len(e.socks))
		e.socks = append(e.socks, s)
	}
}

// give takes a socket back. It is kept if its connection went well and it is not bound to
// what may go and come again by the same name.
func (e *engine) give(s *sock, keep bool) {
	keep = keep && s.kind.socket.Interface == "" && disconnect(s.fd) == nil
	s.stale = true
	e.mu.Lock()
	defer e.mu.Unlock()
	s.wait = nil
	if keep && !e.closed && len(e.idle[s.kind]) < maxIdle {
		e.idle[s.kind] = append(e.idle[s.kind], s)
		e.sweepLater()
		return
	}
	e.drop(s)
}

func (e *engine) drop(s *sock) {
	_ = unix.Close(s.fd)
	s.fd = -1
	e.spare = append(e.spare, s.place)
}

// settle fetches the error that the end of the last connection left, ECONNRESET. Another
// is that of the connection which has begun since, to which a reset says ECONNREFUSED.
func (s *sock) settle() error {
	if !s.stale {
		return nil
	}
	s.stale = false
	errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && errno != 0 && syscall.Errno(errno) != unix.ECONNRESET {
		err = syscall.Errno(errno)
	}
	return err
}

// await has w wait for s. It is called with the engine's lock held.
func (e *engine) await(s *sock, w *wait, events uint32) error {
	ev := unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: s.place, Pad: s.life}
	op := unix.EPOLL_CTL_MOD
	if !s.polled {
		op = unix.EPOLL_CTL_ADD
	}
	if err := unix.EpollCtl(e.ep, op, s.fd, &ev); err != nil {
		return localError{os.NewSyscallError("epoll_ctl", err)}
	}
	s.polled, s.wait = true, w
	return nil
}

// awaitRaw has the poller tell of a raw socket.
func (e *engine) awaitRaw(s *sock) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return os.ErrClosed
	}
	return e.await(s, nil, unix.EPOLLIN)
}
