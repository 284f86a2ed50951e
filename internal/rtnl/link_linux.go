package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNoLink says that no interface has the name asked for.
var ErrNoLink = errors.New("no such interface")

// infoPeer is VETH_INFO_PEER of linux/veth.h, which x/sys lacks.
const infoPeer = 1

// ifinfomsg: family(1) pad(1) type(2) index(4) flags(4) change(4).
func ifinfo(index int, flags, change uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], change)
	return b
}

// Gone reports whether there is no interface of that number.
func Gone(index int) (bool, error) {
	_, err := newMessage(unix.RTM_GETLINK, 0, ifinfo(index, 0, 0)...).do()
	if errors.Is(err, unix.ENODEV) {
		return true, nil
	}
	return false, err
}

// Index returns the number of the interface of that name.
func Index(name string) (int, error) {
	answers, err := newMessage(unix.RTM_GETLINK, 0, ifinfo(0, 0, 0)...).string(unix.IFLA_IFNAME, name).do()
	if errors.Is(err, unix.ENODEV) {
		err = ErrNoLink
	}
	if err == nil && (len(answers) == 0 || len(answers[0]) < unix.SizeofIfInfomsg) {
		err = errors.New("no answer")
	}
	if err != nil {
		return 0, fmt.Errorf("interface %q: %w", name, err)
	}
	return int(int32(binary.NativeEndian.Uint32(answers[0][4:]))), nil
}

// Veth describes a pair of virtual Ethernet interfaces: one in the caller's network namespace, its peer in
// the one of the open file PeerNS. Index numbers are chosen by the kernel where 0.
//
// Give different numbers: where they are the same, the kernel takes the peer for the interface itself
// (linkwatch_urgent_event), and both may stay dead for up to a second after they are taken up.
type Veth struct {
	Name, Peer       string
	Index, PeerIndex int
	PeerNS           int
}

// AddVeth makes a pair of virtual Ethernet interfaces.
func AddVeth(v Veth) error {
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifinfo(v.Index, 0, 0)...)
	m.string(unix.IFLA_IFNAME, v.Name)
	m.nest(unix.IFLA_LINKINFO, func() {
		m.attr(unix.IFLA_INFO_KIND, []byte("veth"))
		m.nest(unix.IFLA_INFO_DATA, func() {
			m.nest(infoPeer, func() {
				m.b = append(m.b, ifinfo(v.PeerIndex, 0, 0)...)
				m.string(unix.IFLA_IFNAME, v.Peer)
				m.uint32(unix.IFLA_NET_NS_FD, uint32(v.PeerNS))
			})
		})
	})
	if _, err := m.do(); err != nil {
		return fmt.Errorf("add veth pair %s and %s: %w", v.Name, v.Peer, err)
	}
	return nil
}

// SetUp takes an interface up or down.
func SetUp(index int, up bool) error {
	var flags uint32
	if up {
		flags = unix.IFF_UP
	}
	if _, err := newMessage(unix.RTM_NEWLINK, 0, ifinfo(index, flags, unix.IFF_UP)...).do(); err != nil {
		return fmt.Errorf("take interface %d up or down: %w", index, err)
	}
	return nil
}

// SetMTU sets the largest packet an interface carries.
func SetMTU(index, mtu int) error {
	if _, err := newMessage(unix.RTM_NEWLINK, 0, ifinfo(index, 0, 0)...).uint32(unix.IFLA_MTU, uint32(mtu)).do(); err != nil {
		return fmt.Errorf("set MTU of interface %d to %d: %w", index, mtu, err)
	}
	return nil
}

// SetQueueLen sets how many packets wait before an interface.
func SetQueueLen(index, packets int) error {
	if _, err := newMessage(unix.RTM_NEWLINK, 0, ifinfo(index, 0, 0)...).uint32(unix.IFLA_TXQLEN, uint32(packets)).do(); err != nil {
		return fmt.Errorf("set queue length of interface %d to %d: %w", index, packets, err)
	}
	return nil
}

// Delete removes an interface.
func Delete(index int) error {
	if _, err := newMessage(unix.RTM_DELLINK, 0, ifinfo(index, 0, 0)...).do(); err != nil {
		return fmt.Errorf("delete interface %d: %w", index, err)
	}
	return nil
}
