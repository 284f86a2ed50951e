package probe

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of started probes never wait, as their sockets do not. So the
// scheduler is not told of them: where one takes longer than 20 µs, it would hand the
// processor to another thread.

// rawAddr is a socket address as the kernel has it.
type rawAddr struct {
	sa   unix.RawSockaddrInet6
	size uintptr
}

func newRawAddr(a netip.AddrPort) (r rawAddr) {
	if a.Addr().Is4() {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.sa))
		v4.Family, v4.Addr, r.size = unix.AF_INET, a.Addr().As4(), unix.SizeofSockaddrInet4
	} else {
		r.sa.Family, r.sa.Addr, r.size = unix.AF_INET6, a.Addr().As16(), unix.SizeofSockaddrInet6
		if v6, ok := sockaddr(a).(*unix.SockaddrInet6); ok && a.Addr().Zone() != "" {
			r.sa.Scope_id = v6.ZoneId
		}
	}
	// The port is at the same place in both.
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&r.sa.Port))[:], a.Port())
	return r
}

// Pointers become numbers only in the arguments of the call itself: in between, the
// stack they point into could move.

func rawConnect(fd int, a *rawAddr) error {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&a.sa)), a.size)
		if errno != unix.EINTR {
			return orNil(errno)
		}
	}
}

// disconnect ends a connection with a reset (connect(2), AF_UNSPEC).
func disconnect(fd int) error {
	sa := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unix.SizeofSockaddrInet4)
		if errno != unix.EINTR {
			return orNil(errno)
		}
	}
}

func rawRead(fd int, b []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

func rawWrite(fd int, b []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

func orNil(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// sockName returns the address of a socket, without a zone. That of x/sys makes two
// system calls.
func sockName(fd int) (netip.AddrPort, error) {
	var sa unix.RawSockaddrAny
	n := uint32(unsafe.Sizeof(sa))
	if _, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&n))); errno != 0 {
		return netip.AddrPort{}, errno
	}
	return rawAddrPort(&sa), nil
}

// receiveFrom reads a datagram, and where it is from.
func receiveFrom(fd int, b []byte) (n int, from netip.Addr, err error) {
	var sa unix.RawSockaddrAny
	size := uint32(unsafe.Sizeof(sa))
	got, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0,
		uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0, netip.Addr{}, errno
	}
	return int(got), rawAddrPort(&sa).Addr(), nil
}

func rawAddrPort(sa *unix.RawSockaddrAny) netip.AddrPort {
	port := func(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }
	switch sa.Addr.Family {
	case unix.AF_INET:
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), port(&v4.Port))
	case unix.AF_INET6:
		v6 := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom16(v6.Addr), port(&v6.Port))
	}
	return netip.AddrPort{}
}

// connect begins a connection, or asks how far it is; done: there is one.
func (s *sock) connect(a *rawAddr, first bool) (done bool, err error) {
	for range 3 {
		err = rawConnect(s.fd, a)
		// Linux is known to find no port now and then although there are some.
		if !first || !errors.Is(err, unix.EADDRNOTAVAIL) {
			break
		}
	}
	if connecting(err) {
		return false, nil
	}
	err = connected(err)
	return err == nil, err
}
