package probe

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Package net's dialer spends most of what a probe costs: a dozen system calls, of which
// a connection that lives for one exchange needs half. What is here does without keep-alives
// and names of the ends, closes with a reset from the start, and asks the poller only
// where the answer is not there already.

// selfTries bounds how often a connection is made anew because it led to itself.
const selfTries = 8

// connectTCP connects for a conversation. Who speaks first may leave the ACK that ends the
// handshake to what is said.
func (s Socket) connectTCP(ctx context.Context, target netip.AddrPort, first bool) (net.Conn, error) {
	fd, f, err := s.openTCP(ctx, target, first)
	if err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		closeTCP(fd, f)
		return nil, localError{os.NewSyscallError("setsockopt", err)}
	}
	if f == nil {
		f = os.NewFile(uintptr(fd), "tcp")
	}
	return &tcpConn{f: f, remote: target}, nil
}

// touchTCP connects and resets.
func (s Socket) touchTCP(ctx context.Context, target netip.AddrPort) error {
	fd, f, err := s.openTCP(ctx, target, true)
	if err == nil {
		closeTCP(fd, f)
	}
	return err
}

// openTCP returns a connected socket, and the file that owns it if it had to be waited
// for.
func (s Socket) openTCP(ctx context.Context, target netip.AddrPort, first bool) (fd int, f *os.File, err error) {
	if err := s.check(target.Addr()); err != nil {
		return 0, nil, err
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	target = netip.AddrPortFrom(target.Addr().Unmap(), target.Port())
	sa := sockaddr(target)
	// A socket that reached itself is held until another has been found, so that it
	// is not given the same port again.
	var own [selfTries]func()
	for try := range own {
		fd, f, err = s.openOnce(ctx, target, sa, first)
		if err == nil && reachedItself(fd, target) {
			own[try] = func() { closeTCP(fd, f) }
			defer own[try]()
			continue
		}
		// Linux is known to find no port now and then although there are some.
		if !errors.Is(err, unix.EADDRNOTAVAIL) || try > 1 {
			return fd, f, err
		}
	}
	return 0, nil, os.NewSyscallError("connect", unix.ECONNREFUSED)
}

func (s Socket) openOnce(ctx context.Context, target netip.AddrPort, sa unix.Sockaddr, first bool) (fd int, f *os.File, err error) {
	family := unix.AF_INET
	if target.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return 0, nil, localError{os.NewSyscallError("socket", err)}
	}
	if err = s.prepareTCP(fd, target.Addr().Is6(), first); err == nil {
		f, err = connectFD(ctx, fd, sa)
	}
	if err != nil {
		closeTCP(fd, f)
		return 0, nil, err
	}
	return fd, f, nil
}

func (s Socket) prepareTCP(fd int, v6, first bool) error {
	// Whatever becomes of the connection, it ends with a reset.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return localError{os.NewSyscallError("setsockopt", err)}
	}
	if first {
		// The ACK goes with what is said, or is never sent if a reset comes first.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
	}
	if err := s.setOptions(uintptr(fd), v6); err != nil {
		return localError{err}
	}
	if s.Source.IsValid() {
		// The port is chosen when the target is known, of more ports than are free for all.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(s.Source.Unmap(), 0))); err != nil {
			return localError{os.NewSyscallError("bind", err)}
		}
	}
	return nil
}

// connectFD connects. A target on this machine has answered by the time connect returns,
// which a second call tells; others are waited for.
func connectFD(ctx context.Context, fd int, sa unix.Sockaddr) (*os.File, error) {
	err := unix.Connect(fd, sa)
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		err = unix.Connect(fd, sa)
	}
	if !connecting(err) {
		return nil, connected(err)
	}
	f := os.NewFile(uintptr(fd), "tcp")
	raw, e := f.SyscallConn()
	if e != nil {
		return f, localError{e}
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })
	e = raw.Write(func(uintptr) bool {
		err = unix.Connect(fd, sa)
		return !connecting(err)
	})
	if !stop() && e == nil && ctx.Err() != nil {
		return f, ctx.Err() // the deadline set there would end what follows
	}
	if e != nil {
		return f, e
	}
	return f, connected(err)
}

func connecting(err error) bool {
	return errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR)
}

func connected(err error) error {
	if err == nil || errors.Is(err, unix.EISCONN) {
		return nil
	}
	return os.NewSyscallError("connect", err)
}

// reachedItself: to a port of this machine that nobody has, the system may give the
// socket that very port, and two SYNs that cross make a connection.
func reachedItself(fd int, target netip.AddrPort) bool {
	local, err := sockName(fd)
	return err == nil && local.Port() == target.Port() && local.Addr() == target.Addr().WithZone("")
}

func closeTCP(fd int, f *os.File) {
	if f != nil {
		_ = f.Close()
		return
	}
	_ = unix.Close(fd)
}

// tcpConn is a connection whose close sends a reset.
type tcpConn struct {
	f      *os.File
	remote netip.AddrPort
}

func (c *tcpConn) Read(b []byte) (int, error) {
	n, err := c.f.Read(b)
	return n, bare(err)
}

func (c *tcpConn) Write(b []byte) (int, error) {
	n, err := c.f.Write(b)
	return n, bare(err)
}

// bare strips what a file puts around an error: there is no path.
func bare(err error) error {
	if e, ok := err.(*fs.PathError); ok { //nolint:errorlint // the outermost layer
		return e.Err
	}
	return err
}

func (c *tcpConn) Close() error                       { return bare(c.f.Close()) }
func (c *tcpConn) SetDeadline(t time.Time) error      { return bare(c.f.SetDeadline(t)) }
func (c *tcpConn) SetReadDeadline(t time.Time) error  { return bare(c.f.SetReadDeadline(t)) }
func (c *tcpConn) SetWriteDeadline(t time.Time) error { return bare(c.f.SetWriteDeadline(t)) }

// LocalAddr returns nil if the connection is closed.
func (c *tcpConn) LocalAddr() net.Addr {
	raw, err := c.f.SyscallConn()
	if err != nil {
		return nil
	}
	var local net.Addr
	_ = raw.Control(func(fd uintptr) {
		if sa, err := unix.Getsockname(int(fd)); err == nil {
			local = net.TCPAddrFromAddrPort(netip.AddrPortFrom(sockIP(sa), sockPort(sa)))
		}
	})
	return local
}

func (c *tcpConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

func sockIP(sa unix.Sockaddr) netip.Addr {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(sa.Addr)
	}
	return netip.Addr{}
}
