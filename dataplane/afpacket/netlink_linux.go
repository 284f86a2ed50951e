package afpacket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/sockbuf"
)

// netlinkSocket hears of changes of links, routes and neighbours, and asks for them.
type netlinkSocket struct {
	fd      int
	wake    int // an eventfd that ends wait
	life    sync.RWMutex
	gone    bool
	roused  atomic.Bool
	seq     uint32
	buf     []byte
	changed bool
	state   *kernelState
}

type applyFunc func(typ, flags uint16, body []byte) bool

// errLost says that not all was heard, so that everything must be asked for anew.
var errLost = errors.New("netlink: changes were lost")

func (s *netlinkSocket) open() (err error) {
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		unix.Close(s.wake)
		return os.NewSyscallError("netlink socket", err)
	}
	s.buf = make([]byte, 1<<16)
	sockbuf.SetReceive(s.fd, 1<<20)
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_NEIGH | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE
	if err = unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		s.close()
		return os.NewSyscallError("netlink bind", err)
	}
	return nil
}

func (s *netlinkSocket) close() {
	s.life.Lock()
	defer s.life.Unlock()
	s.gone = true
	unix.Close(s.fd)
	unix.Close(s.wake)
}

// rouse ends wait. It costs a system call only the first time since.
func (s *netlinkSocket) rouse() {
	if s.roused.Load() || s.roused.Swap(true) {
		return
	}
	s.life.RLock()
	defer s.life.RUnlock()
	if !s.gone {
		one := [8]byte{7: 1}
		_, _ = unix.Write(s.wake, one[:])
	}
}

// request sends one message: a netlink header and body.
func (s *netlinkSocket) request(typ, flags uint16, body []byte) error {
	s.seq++
	b := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
	binary.NativeEndian.PutUint32(b, uint32(unix.NLMSG_HDRLEN+len(body)))
	binary.NativeEndian.PutUint16(b[4:], typ)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(b[8:], s.seq)
	return os.NewSyscallError("netlink send", unix.Sendto(s.fd, append(b, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// dump asks for all objects of a kind and hands them to apply, with whatever else is announced meanwhile.
func (s *netlinkSocket) dump(typ uint16, apply applyFunc) error {
	size := map[uint16]int{unix.RTM_GETLINK: unix.SizeofIfInfomsg, unix.RTM_GETROUTE: unix.SizeofRtMsg, unix.RTM_GETNEIGH: unix.SizeofNdMsg}[typ]
	if err := s.request(typ, unix.NLM_F_DUMP, make([]byte, size)); err != nil {
		return err
	}
	var lost error
	for {
		done, err := s.receive(apply, 0)
		switch {
		case errors.Is(err, errLost): // the dump itself goes on, and must be heard to its end
			lost = err
			if !done {
				continue
			}
		case err != nil:
			return err
		}
		if done {
			return lost
		}
	}
}

// use has the kernel resolve a neighbour as if it had a packet for it.
func (s *netlinkSocket) use(n neighbour) {
	addr := n.addr.AsSlice()
	family := byte(unix.AF_INET)
	if n.addr.Is6() {
		family = unix.AF_INET6
	}
	b := make([]byte, unix.SizeofNdMsg, 64)
	b[0] = family
	binary.NativeEndian.PutUint32(b[4:], n.link)
	b[10] = unix.NTF_USE
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(addr)))
	b = binary.NativeEndian.AppendUint16(b, unix.NDA_DST)
	b = append(b, addr...)
	// A failure shows as packets that still find no neighbour.
	_ = s.request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE, b)
}

// wait applies what is announced within d, until rouse is called. Of many changes it takes what is there already, so that
// the table is not made anew for each.
func (s *netlinkSocket) wait(d time.Duration, apply applyFunc) error {
	p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(s.wake), Events: unix.POLLIN}}
	_, err := unix.Poll(p, int(max(d, 0).Milliseconds())+1)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("poll", err)
	}
	if s.roused.Load() {
		var b [8]byte
		_, _ = unix.Read(s.wake, b[:])
		s.roused.Store(false) // before the caller looks for what it was roused for
	}
	for range 256 {
		if _, err := s.receive(apply, unix.MSG_DONTWAIT); errors.Is(err, unix.EAGAIN) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// receive reads one datagram and reports whether it ends a dump.
func (s *netlinkSocket) receive(apply applyFunc, flags int) (done bool, err error) {
	n, _, err := unix.Recvfrom(s.fd, s.buf, flags)
	switch {
	case errors.Is(err, unix.EINTR):
		return false, nil
	case errors.Is(err, unix.ENOBUFS):
		return false, errLost
	case err != nil:
		return false, os.NewSyscallError("netlink receive", err)
	}
	for b := s.buf[:n]; len(b) >= unix.NLMSG_HDRLEN; {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			break
		}
		body := b[unix.NLMSG_HDRLEN:size]
		said := binary.NativeEndian.Uint16(b[6:])
		if said&unix.NLM_F_DUMP_INTR != 0 {
			err = errLost // the table changed while it was read
		}
		switch typ := binary.NativeEndian.Uint16(b[4:]); typ {
		case unix.NLMSG_DONE:
			done = true
		case unix.NLMSG_ERROR:
			// Answers to use carry the sequence number of no dump and are of no interest.
			if len(body) >= 4 && binary.NativeEndian.Uint32(b[8:]) == s.seq {
				if errno := int32(binary.NativeEndian.Uint32(body)); errno < 0 && len(body) >= 10 && binary.NativeEndian.Uint16(body[8:]) != unix.RTM_NEWNEIGH {
					return true, fmt.Errorf("netlink: %w", unix.Errno(-errno))
				}
			}
		default:
			if apply(typ, said, body) {
				s.changed = true
			}
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return done, err
}
