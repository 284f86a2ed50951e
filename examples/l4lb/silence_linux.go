package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// silence keeps the kernel from answering for virtual addresses that it has no route to: it would tell IPv6 clients that they cannot be
// reached, although it forwards nothing, and they would give up before the node's answer comes. (For IPv4 it is silent.)
type silence struct{ routes []netip.Prefix } // those that it made

// set has blackhole routes for these destinations, and for no others. A route that is there already is the administrator's, and stays.
func (s *silence) set(routed []netip.Prefix) error {
	var want []netip.Prefix
	for _, p := range routed {
		if p.Addr().Is6() {
			want = append(want, p.Masked())
		}
	}
	var errs []error
	old := s.routes
	for _, p := range difference(want, old) {
		switch err := blackhole(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, p); {
		case err == nil:
			s.routes = append(s.routes, p)
		case !errors.Is(err, unix.EEXIST):
			errs = append(errs, fmt.Errorf("ip -6 route add blackhole %v: %w", p, err))
		}
	}
	for _, p := range difference(old, want) {
		if err := blackhole(unix.RTM_DELROUTE, 0, p); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("ip -6 route del blackhole %v: %w", p, err))
			continue
		}
		s.routes = difference(s.routes, []netip.Prefix{p})
	}
	return errors.Join(errs...)
}

// Close implements io.Closer.
func (s *silence) Close() error { return s.set(nil) }

// blackhole asks the kernel by rtnetlink(7):
//
//	nlmsghdr: length 4 | type 2 | flags 2 | sequence 4 | port 4
//	rtmsg:    family 1 | bits of dst 1 | of src 1 | tos 1 | table 1 | protocol 1 | scope 1 | type 1 | flags 4
//	RTA_DST:  length 2 | type 2 | address 16
func blackhole(kind, flags int, p netip.Prefix) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	const length = 16 + 12 + 20
	b := make([]byte, 0, length)
	b = binary.NativeEndian.AppendUint32(b, length)
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags))
	b = append(b, 1, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, unix.AF_INET6, byte(p.Bits()), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_BLACKHOLE, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, 20)
	b = binary.NativeEndian.AppendUint16(b, unix.RTA_DST)
	b = append(b, p.Addr().AsSlice()...)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	if n < 20 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel's answer is not understood")
	}
	if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
