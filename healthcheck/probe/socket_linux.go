package probe

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

func (s Socket) setOptions(fd uintptr, v6 bool) error {
	if s.Interface != "" {
		if err := unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, s.Interface); err != nil {
			return fmt.Errorf("interface %q: %w", s.Interface, err)
		}
	}
	if s.Mark != 0 {
		// The option is an int; the kernel takes its 32 bits as unsigned.
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(int32(s.Mark))); err != nil {
			return fmt.Errorf("mark %d: %w", s.Mark, err)
		}
	}
	return s.setDSCP(int(fd), v6)
}

// recvErr has a UDP socket report every ICMP error, which otherwise only connected ones
// do, and of port unreachable only (ip(7), IP_RECVERR).
func recvErr(network string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = setRecvErr(int(fd), network == "udp6") }); e != nil {
		return e
	}
	return err
}

func setRecvErr(fd int, v6 bool) error {
	if v6 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
}
