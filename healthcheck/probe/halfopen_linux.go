package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// talk holds a port by a TCP socket that is bound and nothing else, sends the SYN by a
// raw socket, and waits for the answer. The kernel, which knows of no connection, answers
// the server's SYN with RST by itself; the probe does so as well, in case a packet filter
// keeps the kernel's from leaving.
func (p TCPHalfOpen) talk(a *attempt) error {
	a.step = "socket"
	dst := netip.AddrPortFrom(a.target.Addr().Unmap(), a.target.Port())
	raw, local, err := p.Socket.openRawTCP(dst)
	if err != nil {
		return err
	}
	defer raw.close()
	src := netip.AddrPortFrom(local, raw.port)

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

// rawTCP is a connected raw socket, and one that holds a port. The answer of a target on
// this machine is there when the SYN has been sent, so that only others bring in the
// runtime's poller.
type rawTCP struct {
	fd, hold int
	port     uint16
	v4       bool
	waits    *echoFile // owns fd, once there was something to wait for
	stop     func() bool
}

func (s Socket) openRawTCP(dst netip.AddrPort) (_ *rawTCP, local netip.Addr, err error) {
	fd, err := openRaw(dst.Addr().Is6())
	if err != nil {
		return nil, local, err
	}
	c := &rawTCP{fd: fd, hold: -1, v4: dst.Addr().Is4()}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.hold, c.port, err = holdPort(dst.Addr().Is6()); err != nil {
		return nil, local, err
	}
	// Before it is connected, so that nothing else comes in.
	if err = c.filter(dst.Port()); err != nil {
		return nil, local, localError{err}
	}
	if err = s.connectRaw(fd, dst.Addr()); err != nil {
		return nil, local, err
	}
	if local, err = localAddr(fd); err != nil {
		return nil, local, localError{err}
	}
	return c, local, nil
}

func (c *rawTCP) close() {
	if c.stop != nil {
		c.stop()
	}
	if c.waits != nil {
		_ = c.waits.Close()
	} else {
		_ = unix.Close(c.fd)
	}
	if c.hold >= 0 {
		_ = unix.Close(c.hold)
	}
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

// filter has the kernel drop everything but segments from a port to the held one. A raw
// IPv4 socket sees the IP header, an IPv6 one does not.
func (c *rawTCP) filter(from uint16) error {
	first := bpf.Instruction(bpf.LoadConstant{Dst: bpf.RegX, Val: 0})
	if c.v4 {
		first = bpf.LoadMemShift{Off: 0} // X = length of the IP header
	}
	return setFilter(c.fd, []bpf.Instruction{
		first,
		bpf.LoadIndirect{Off: 0, Size: 4}, // both ports
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(from)<<16 | uint32(c.port), SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	})
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
	if c.waits != nil {
		if err := c.waits.SetReadDeadline(at); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil { // the deadline above must not undo that of a cancelled context
		return err
	}
	if err := c.send(syn); err != nil {
		return err
	}
	buf := make([]byte, 256)
	for {
		n, err := c.read(ctx, buf, at)
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

func (c *rawTCP) send(b []byte) error {
	if c.waits != nil {
		return c.waits.send(b)
	}
	return ignoringEINTR(func() error { return unix.Send(c.fd, b, 0) })
}

// read returns a segment. The first that is not there yet has the poller begin to wait,
// until at.
func (c *rawTCP) read(ctx context.Context, b []byte, at time.Time) (n int, err error) {
	if c.waits == nil {
		err = ignoringEINTR(func() (err error) {
			n, _, err = unix.Recvfrom(c.fd, b, 0)
			return err
		})
		if !errors.Is(err, unix.EAGAIN) {
			if err == nil && c.v4 {
				n = cutIPv4(b[:n])
			}
			return n, err
		}
		f := os.NewFile(uintptr(c.fd), "tcp")
		c.waits = &echoFile{File: f, v4: c.v4}
		if c.waits.rawConn, err = f.SyscallConn(); err != nil {
			return 0, localError{err}
		}
		if err = f.SetReadDeadline(at); err != nil {
			return 0, localError{err}
		}
		c.stop = context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	}
	return c.waits.read(b)
}
