package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// message builds one netlink request. Integers are in native byte order, addresses in
// network order; attributes are padded to four bytes.
//
//	nlmsghdr: len(4) type(2) flags(2) seq(4) pid(4), then a family's fixed
//	header, then attributes: len(2) type(2) value …
type message struct{ b []byte }

const headerLen = unix.SizeofNlMsghdr

func newMessage(typ, flags uint16, fixed ...byte) *message {
	m := &message{b: make([]byte, headerLen, 256)}
	binary.NativeEndian.PutUint16(m.b[4:], typ)
	binary.NativeEndian.PutUint16(m.b[6:], flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m.b = append(m.b, fixed...)
	return m.pad()
}

func (m *message) pad() *message {
	for len(m.b)%4 != 0 {
		m.b = append(m.b, 0)
	}
	return m
}

func (m *message) attr(typ uint16, value []byte) *message {
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(4+len(value)))
	m.b = binary.NativeEndian.AppendUint16(m.b, typ)
	m.b = append(m.b, value...)
	return m.pad()
}

func (m *message) uint32(typ uint16, v uint32) *message {
	return m.attr(typ, binary.NativeEndian.AppendUint32(nil, v))
}

func (m *message) string(typ uint16, s string) *message {
	return m.attr(typ, append([]byte(s), 0))
}

// nest adds an attribute whose value is what f adds.
func (m *message) nest(typ uint16, f func()) *message {
	start := len(m.b)
	m.attr(typ|unix.NLA_F_NESTED, nil)
	f()
	binary.NativeEndian.PutUint16(m.b[start:], uint16(len(m.b)-start))
	return m
}

// do sends m and returns the bodies of the answers that came before the acknowledgement.
func (m *message) do() (answers [][]byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("netlink socket", err)
	}
	defer unix.Close(fd)
	// Explanations of errors in words; a kernel without them works as well.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	timeout := unix.Timeval{Sec: 5}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, os.NewSyscallError("netlink timeout", err)
	}
	binary.NativeEndian.PutUint32(m.b, uint32(len(m.b)))
	binary.NativeEndian.PutUint32(m.b[8:], 1)
	if err := unix.Sendto(fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("netlink send", err)
	}
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("netlink receive", err)
		}
		for b := buf[:n]; len(b) >= headerLen; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < headerLen || size > len(b) {
				return nil, errors.New("netlink: malformed answer")
			}
			body := b[headerLen:size]
			switch binary.NativeEndian.Uint16(b[4:]) {
			case unix.NLMSG_ERROR:
				return answers, acknowledged(body, binary.NativeEndian.Uint16(b[6:]))
			case unix.NLMSG_DONE:
				return answers, nil
			case unix.NLMSG_NOOP:
			default:
				answers = append(answers, append([]byte(nil), body...))
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

// acknowledged reads nlmsgerr: error(4), the request's header (and, unless capped,
// its body), then attributes of which one may explain the error.
func acknowledged(body []byte, flags uint16) error {
	if len(body) < 4+headerLen {
		return errors.New("netlink: malformed acknowledgement")
	}
	code := int32(binary.NativeEndian.Uint32(body))
	if code == 0 {
		return nil
	}
	err := unix.Errno(-code)
	if flags&unix.NLM_F_ACK_TLVS == 0 {
		return err
	}
	rest := body[4+headerLen:]
	if flags&unix.NLM_F_CAPPED == 0 {
		request := (int(binary.NativeEndian.Uint32(body[4:])) + 3) &^ 3
		if request < headerLen || request-headerLen > len(rest) {
			return err
		}
		rest = rest[request-headerLen:]
	}
	if text, ok := find(rest, unix.NLMSGERR_ATTR_MSG); ok && len(text) > 1 {
		return fmt.Errorf("%w (%s)", err, text[:len(text)-1])
	}
	return err
}

// find returns the value of the first attribute of a type.
func find(b []byte, typ uint16) (value []byte, ok bool) {
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return nil, false
		}
		if binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == typ {
			return b[4:size], true
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return nil, false
}
