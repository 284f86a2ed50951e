package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// talk holds a port by a TCP socket that is bound and nothing else, sends the SYN from
// it by a raw socket, and waits for the answer. The kernel, which knows of no
// connection, answers the server's SYN with RST by itself; the probe does so as well,
// in case a packet filter keeps the kernel's from leaving.
func (p TCPHalfOpen) talk(a *attempt) error {
	a.step = "socket"
	dst := netip.AddrPortFrom(a.target.Addr().Unmap(), a.target.Port())
	raw, err := p.Socket.openRawTCP(dst)
	if err != nil {
		return err
	}
	defer raw.Close()
	src, hold, err := p.Socket.holdPort(a.ctx, raw)
	if err != nil {
		return err
	}
	defer hold.Close()
	if err := raw.filter(src.Port(), dst); err != nil {
		return localError{err}
	}
	stop := context.AfterFunc(a.ctx, func() { _ = raw.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	var r [4]byte
	_, _ = rand.Read(r[:]) // never fails
	seq := binary.BigEndian.Uint32(r[:])
	syn := appendSegment(nil, src, dst, seq, tcpSYN, 2, 4, 1460>>8, 1460&0xff)
	a.step = "SYN"
	for resend := p.Resend; ; resend *= 2 {
		at := time.Now().Add(resend)
		if at.After(a.deadline) {
			at = a.deadline
		}
		err := raw.try(a.ctx, syn, src, dst, seq, at)
		switch {
		case err == nil:
			_ = raw.send(appendSegment(nil, src, dst, seq+1, tcpRST))
			return nil
		case !isTimeout(err) || a.ctx.Err() != nil || !time.Now().Before(a.deadline):
			return err
		}
	}
}

// rawTCP is a connected raw socket.
type rawTCP struct{ *echoFile }

func (s Socket) openRawTCP(dst netip.AddrPort) (*rawTCP, error) {
	family := unix.AF_INET
	if dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("%w: %w", errNoRaw, err)
	}
	if err != nil {
		return nil, localError{os.NewSyscallError("socket", err)}
	}
	// Until the port is known nothing is wanted.
	err = setFilter(fd, []bpf.Instruction{bpf.RetConstant{Val: 0}})
	if err == nil {
		err = s.connectRaw(fd, dst.Addr())
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "tcp")
	conn, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &rawTCP{&echoFile{File: f, rawConn: conn, v4: dst.Addr().Is4()}}, nil
}

// holdPort has the kernel reserve a port of the address raw sends from.
func (s Socket) holdPort(ctx context.Context, raw *rawTCP) (netip.AddrPort, *os.File, error) {
	var local netip.Addr
	var err error
	if e := raw.Control(func(fd uintptr) { local, err = localAddr(int(fd)) }); e != nil {
		err = e
	}
	if err != nil {
		return netip.AddrPort{}, nil, localError{err}
	}
	family := unix.AF_INET
	if local.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return netip.AddrPort{}, nil, localError{os.NewSyscallError("socket", err)}
	}
	if err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(local, 0))); err == nil {
		var sa unix.Sockaddr
		if sa, err = unix.Getsockname(fd); err == nil {
			return netip.AddrPortFrom(local, sockPort(sa)), os.NewFile(uintptr(fd), "port"), nil
		}
	}
	_ = unix.Close(fd)
	return netip.AddrPort{}, nil, localError{os.NewSyscallError("bind", err)}
}

func localAddr(fd int) (netip.Addr, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, os.NewSyscallError("getsockname", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr), nil
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(sa.Addr)
		if sa.ZoneId != 0 {
			if i, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				a = a.WithZone(i.Name)
			}
		}
		return a, nil
	}
	return netip.Addr{}, syscall.EAFNOSUPPORT
}

func sockPort(sa unix.Sockaddr) uint16 {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return uint16(sa.Port)
	case *unix.SockaddrInet6:
		return uint16(sa.Port)
	}
	return 0
}

// filter has the kernel drop everything but segments from dst to the port src. A raw
// IPv4 socket sees the IP header, an IPv6 one does not.
func (c *rawTCP) filter(src uint16, dst netip.AddrPort) error {
	prog := []bpf.Instruction{
		bpf.LoadIndirect{Off: 0, Size: 4}, // both ports
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(dst.Port())<<16 | uint32(src), SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	}
	first := bpf.Instruction(bpf.LoadConstant{Dst: bpf.RegX, Val: 0})
	if c.v4 {
		first = bpf.LoadMemShift{Off: 0} // X = length of the IP header
	}
	var err error
	if e := c.Control(func(fd uintptr) { err = setFilter(int(fd), append([]bpf.Instruction{first}, prog...)) }); e != nil {
		return e
	}
	return err
}

func setFilter(fd int, prog []bpf.Instruction) error {
	raw, err := bpf.Assemble(prog)
	if err != nil {
		return err
	}
	f := make([]unix.SockFilter, len(raw))
	for i, ins := range raw {
		f[i] = unix.SockFilter{Code: ins.Op, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}))
}

// try sends a SYN and waits for the answer.
func (c *rawTCP) try(ctx context.Context, syn []byte, src, dst netip.AddrPort, seq uint32, at time.Time) error {
	if err := c.SetReadDeadline(at); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := c.send(syn); err != nil {
		return err
	}
	buf := make([]byte, 256)
	for {
		n, err := c.read(buf)
		if err != nil {
			return err
		}
		switch open, refused := judgeSegment(buf[:n], src, dst, seq); {
		case refused:
			return syscall.ECONNREFUSED
		case open:
			return nil
		}
	}
}

// Control gives access to the descriptor.
func (c *rawTCP) Control(f func(fd uintptr)) error {
	conn, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Control(f)
}
