package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// openEcho opens a datagram socket if the system lets this process have one: the
// kernel then hands out only what belongs to it. Otherwise it opens a raw socket, which
// a filter keeps from waking for others' messages.
func (s Socket) openEcho(_ context.Context, target netip.Addr) (echoConn, string, error) {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if target.Is6() {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	dgram := true
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|flags, proto)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EPROTONOSUPPORT) {
		dgram = false
		fd, err = unix.Socket(family, unix.SOCK_RAW|flags, proto)
	}
	if err != nil {
		return nil, "", localError{os.NewSyscallError("socket", err)}
	}
	if !dgram {
		err = filterEcho(fd, target.Is6())
	}
	if err == nil {
		err = s.connectRaw(fd, target)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, "", err
	}
	f := os.NewFile(uintptr(fd), "icmp")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, "", err
	}
	c := &echoFile{File: f, dgram: dgram, v4: target.Is4(), target: target.WithZone("")}
	c.rawConn = raw
	note := "raw socket"
	if dgram {
		note = "datagram socket"
	}
	return c, note, nil
}

// connectRaw sets the options of s and connects, so that the kernel drops what comes
// from elsewhere and reports ICMP errors.
func (s Socket) connectRaw(fd int, target netip.Addr) error {
	if err := s.setOptions(uintptr(fd), target.Is6()); err != nil {
		return localError{err}
	}
	if err := setRecvErr(fd, target.Is6()); err != nil {
		return localError{err}
	}
	if s.Source.IsValid() {
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(s.Source.Unmap(), 0))); err != nil {
			return localError{os.NewSyscallError("bind", err)}
		}
	}
	return os.NewSyscallError("connect", unix.Connect(fd, sockaddr(netip.AddrPortFrom(target, 0))))
}

// filterEcho has the kernel drop everything but echo replies (icmp(7) and RFC 3542
// section 3.2: a set bit blocks a type; ICMPv6's filter is the other way round).
func filterEcho(fd int, v6 bool) error {
	if v6 {
		var f unix.ICMPv6Filter
		for i := range f.Data {
			f.Data[i] = ^uint32(0)
		}
		const echoReply = 129
		f.Data[echoReply>>5] &^= 1 << (echoReply & 31)
		return unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &f)
	}
	const icmpFilter, echoReply = 1, 0
	return unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, ^(1 << echoReply))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if z := a.Addr().Zone(); z != "" {
		if i, err := net.InterfaceByName(z); err == nil {
			sa.ZoneId = uint32(i.Index)
		} else if n, err := strconv.ParseUint(z, 10, 32); err == nil {
			sa.ZoneId = uint32(n) // as package net takes it
		}
	}
	return sa
}

// echoFile is a connected ICMP socket in the runtime's poller.
type echoFile struct {
	*os.File
	rawConn
	dgram, v4 bool
	target    netip.Addr // valid: what comes from elsewhere is passed over
}

// foreign reports whether a message is from elsewhere. The kernel looks at the source for
// raw sockets only: a datagram socket is given every reply to its identifier, connected
// or not.
func (c *echoFile) foreign(from unix.Sockaddr) bool {
	return c.target.IsValid() && sockIP(from) != c.target
}

func (c *echoFile) kernelID() bool { return c.dgram }

func (c *echoFile) send(b []byte) error {
	var err error
	e := c.rawConn.Write(func(fd uintptr) bool {
		err = ignoringEINTR(func() error { return unix.Send(int(fd), b, 0) })
		return !errors.Is(err, unix.EAGAIN)
	})
	return errors.Join(e, err)
}

func (c *echoFile) read(b []byte) (n int, err error) {
	e := c.rawConn.Read(func(fd uintptr) bool {
		var from unix.Sockaddr
		err = ignoringEINTR(func() (err error) {
			n, from, err = unix.Recvfrom(int(fd), b, 0)
			return err
		})
		if err == nil && c.foreign(from) {
			n = 0 // nobody's: the next read looks at the deadline first
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	if e != nil {
		return 0, e
	}
	if err != nil {
		return 0, err
	}
	if !c.dgram && c.v4 { // a raw IPv4 socket delivers the header, too
		n = cutIPv4(b[:n])
	}
	return n, nil
}

// cutIPv4 moves what follows an IPv4 header to the front and returns its length.
func cutIPv4(b []byte) int {
	if len(b) < 20 || int(b[0]&0xf)*4 > len(b) {
		return 0
	}
	return copy(b, b[int(b[0]&0xf)*4:])
}

func (c *echoFile) SetReadDeadline(t time.Time) error { return c.File.SetReadDeadline(t) }
func (c *echoFile) Close() error                      { return c.File.Close() }

// rawConn gives the methods of a syscall.RawConn other names than those of a file.
type rawConn interface {
	Read(f func(fd uintptr) (done bool)) error
	Write(f func(fd uintptr) (done bool)) error
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
