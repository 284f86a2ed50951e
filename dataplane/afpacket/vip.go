package afpacket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// vipSet is the addresses a device answers for.
type vipSet struct {
	v4 map[[4]byte]struct{}
	v6 map[[16]byte]struct{}
}

func newVIPSet(vips []netip.Addr) (*vipSet, error) {
	s := &vipSet{v4: map[[4]byte]struct{}{}, v6: map[[16]byte]struct{}{}}
	var faults []error
	for _, a := range vips {
		a = a.Unmap()
		switch {
		case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
			faults = append(faults, fmt.Errorf("afpacket: set VIPs: %v: want a unicast address", a))
		case a.Is4():
			s.v4[a.As4()] = struct{}{}
		default:
			s.v6[a.As16()] = struct{}{}
		}
	}
	return s, errors.Join(faults...)
}

// without returns the addresses of s that are not in old.
func (s *vipSet) without(old *vipSet) *vipSet {
	if old == nil {
		return s
	}
	fresh := &vipSet{v4: map[[4]byte]struct{}{}, v6: map[[16]byte]struct{}{}}
	for a := range s.v4 {
		if _, ok := old.v4[a]; !ok {
			fresh.v4[a] = struct{}{}
		}
	}
	for a := range s.v6 {
		if _, ok := old.v6[a]; !ok {
			fresh.v6[a] = struct{}{}
		}
	}
	return fresh
}

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

// etherHeader returns the frame's protocol and what follows its addresses, tags included.
func etherHeader(frame []byte) (proto uint16, head, rest []byte) {
	at := 12
	for {
		if len(frame) < at+2 {
			return 0, nil, nil
		}
		proto = binary.BigEndian.Uint16(frame[at:])
		if proto != 0x8100 && proto != 0x88a8 && proto != 0x9100 {
			return proto, frame[:at+2], frame[at+2:]
		}
		if at += tagLen; at > 12+4*tagLen {
			return 0, nil, nil
		}
	}
}

// asked reports whether a frame may be a question for one of the addresses, by a cheap look.
func (s *vipSet) asked(frame []byte) bool {
	switch proto, _, rest := etherHeader(frame); proto {
	case etherARP:
		return len(s.v4) > 0
	case etherIPv6:
		return len(s.v6) > 0 && len(rest) > 40 && rest[6] == 58 && rest[40] == 135
	}
	return false
}

// reply returns the answer to an ARP request or neighbour solicitation for one of the addresses, in the
// same VLAN, or false where frame is something else. Room for it comes from buf.
func (s *vipSet) reply(buf, frame, mac []byte) ([]byte, bool) {
	if len(mac) != 6 {
		return nil, false
	}
	proto, head, rest := etherHeader(frame)
	switch proto {
	case etherARP:
		// RFC 826: htype(2) ptype(2) hlen(1) plen(1) op(2) sha(6) spa(4) tha(6) tpa(4)
		if len(rest) < 28 || binary.BigEndian.Uint64(rest)&^0xffff != 0x0001_0800_0604_0000 || binary.BigEndian.Uint16(rest[6:]) != 1 {
			return nil, false
		}
		if _, ok := s.v4[[4]byte(rest[24:28])]; !ok || len(s.v4) == 0 {
			return nil, false
		}
		if [4]byte(rest[14:18]) == [4]byte(rest[24:28]) {
			return nil, false // an announcement of somebody else, not a question
		}
		b := appendEther(buf, rest[8:14], mac, head)
		return appendARP(b, 2, mac, rest[24:28], rest[8:14], rest[14:18]), true
	case etherIPv6:
		// RFC 4861, 4.3: an ICMPv6 135 with hop limit 255, directly behind the IPv6 header.
		if len(rest) < 40+24 || rest[0]>>4 != 6 || rest[6] != 58 || rest[7] != 255 || rest[40] != 135 || rest[41] != 0 {
			return nil, false
		}
		n := int(binary.BigEndian.Uint16(rest[4:]))
		if n < 24 || 40+n > len(rest) {
			return nil, false
		}
		target := [16]byte(rest[48:64])
		if _, ok := s.v6[target]; !ok {
			return nil, false
		}
		if icmp6Checksum(rest[8:40], rest[40:40+n]) != 0 {
			return nil, false
		}
		src := [16]byte(rest[8:24])
		b := appendEther(buf, frame[6:12], mac, head)
		if src == [16]byte{} {
			// Duplicate address detection (RFC 4861, 7.2.4): the answer goes to all nodes.
			copy(b[len(b)-len(head):], []byte{0x33, 0x33, 0, 0, 0, 1})
			return appendAdvert(b, mac, target, allNodes(), false), true
		}
		return appendAdvert(b, mac, target, src, true), true
	}
	return nil, false
}

func allNodes() [16]byte { return [16]byte{0: 0xff, 1: 0x02, 15: 1} }

// appendEther appends an Ethernet header with the tags and protocol of head.
func appendEther(b, dst, src, head []byte) []byte {
	b = append(b, dst...)
	b = append(b, src...)
	return append(b, head[12:]...)
}

func appendARP(b []byte, op uint16, sha, spa, tha, tpa []byte) []byte {
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(b, sha...)
	b = append(b, spa...)
	b = append(b, tha...)
	return append(b, tpa...)
}

// appendAdvert appends an IPv6 neighbour advertisement for target (RFC 4861, 4.4) with
// the override flag, as a VIP may have moved here.
func appendAdvert(b, mac []byte, target, dst [16]byte, solicited bool) []byte {
	at := len(b)
	b = append(b, 0x60, 0, 0, 0, 0, 32, 58, 255)
	b = append(b, target[:]...)
	b = append(b, dst[:]...)
	flags := byte(0x20)
	if solicited {
		flags |= 0x40
	}
	b = append(b, 136, 0, 0, 0, flags, 0, 0, 0)
	b = append(b, target[:]...)
	b = append(b, 2, 1)
	b = append(b, mac...)
	binary.BigEndian.PutUint16(b[at+42:], icmp6Checksum(b[at+8:at+40], b[at+40:]))
	return b
}

// announcements returns the frames that tell the neighbours of the addresses: an ARP announcement
// (RFC 5227, 3) or an unsolicited neighbour advertisement (RFC 4861, 7.2.6) each.
func (s *vipSet) announcements(mac []byte) (frames [][]byte) {
	if len(mac) != 6 {
		return nil
	}
	broadcast := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for a := range s.v4 {
		b := append(append([]byte{}, broadcast...), mac...)
		b = binary.BigEndian.AppendUint16(b, etherARP)
		frames = append(frames, appendARP(b, 1, mac, a[:], make([]byte, 6), a[:]))
	}
	for a := range s.v6 {
		b := append([]byte{0x33, 0x33, 0, 0, 0, 1}, mac...)
		b = binary.BigEndian.AppendUint16(b, etherIPv6)
		frames = append(frames, appendAdvert(b, mac, a, allNodes(), false))
	}
	return frames
}

// icmp6Checksum is the Internet checksum of an ICMPv6 message with its pseudo header (RFC 8200, 8.1);
// over a message that has its checksum it is zero.
func icmp6Checksum(addrs, msg []byte) uint16 {
	sum := uint32(len(msg)) + 58
	for _, b := range [][]byte{addrs, msg} {
		for ; len(b) >= 2; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
