package afpacket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// netlinkSocket hears of changes of links, routes and neighbours, and asks for them.
type netlinkSocket struct {
	fd      int
	seq     uint32
	buf     []byte
	changed bool
	state   *kernelState
}

type applyFunc func(typ uint16, body []byte) bool

func (s *netlinkSocket) open() (err error) {
	s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("netlink socket", err)
	}
	s.buf = make([]byte, 1<<16)
	buffer(s.fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, 1<<20)
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_NEIGH | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE
	if err = unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		s.close()
		return os.NewSyscallError("netlink bind", err)
	}
	return nil
}

func (s *netlinkSocket) close() { unix.Close(s.fd) }

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
	for {
		done, err := s.receive(apply)
		if err != nil || done {
			return err
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

// wait applies what is announced within d.
func (s *netlinkSocket) wait(d time.Duration, apply applyFunc) error {
	p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, int(d.Milliseconds()))
	if errors.Is(err, unix.EINTR) || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("poll", err)
	}
	_, err = s.receive(apply)
	return err
}

// receive reads one datagram and reports whether it ends a dump.
func (s *netlinkSocket) receive(apply applyFunc) (done bool, err error) {
	n, _, err := unix.Recvfrom(s.fd, s.buf, 0)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("netlink receive", err)
	}
	for b := s.buf[:n]; len(b) >= unix.NLMSG_HDRLEN; {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			break
		}
		body := b[unix.NLMSG_HDRLEN:size]
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
			if apply(typ, body) {
				s.changed = true
			}
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return done, nil
}
