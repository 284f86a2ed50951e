package path

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// HeaderLen is the length of the encapsulation header.
const HeaderLen = 8

// Protocols carried, as EtherTypes.
const (
	EtherIPv4 = 0x0800
	EtherIPv6 = 0x86DD
)

// ErrHeader is returned for bytes that are no encapsulation header.
var ErrHeader = errors.New("path: not an encapsulation header")

// AppendHeader appends the header that directs a packet to a channel: GRE with a key
// (RFC 2784, RFC 2890 section 2).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|0| |1|0|       Reserved0       |0 0 0|      Protocol Type      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Key: the channel's id                     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
func AppendHeader(b []byte, id ChannelID, etherType uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, 0x2000)
	b = binary.BigEndian.AppendUint16(b, etherType)
	return binary.BigEndian.AppendUint32(b, uint32(id))
}

// ParseHeader reads the header at the start of b and returns the channel, the EtherType
// of what follows, and the rest. It wraps ErrHeader for anything else.
func ParseHeader(b []byte) (id ChannelID, etherType uint16, payload []byte, err error) {
	if len(b) < HeaderLen {
		return 0, 0, nil, fmt.Errorf("%w: %d bytes, want %d", ErrHeader, len(b), HeaderLen)
	}
	if flags := binary.BigEndian.Uint16(b); flags != 0x2000 {
		return 0, 0, nil, fmt.Errorf("%w: flags %#04x, want a key alone, 0x2000", ErrHeader, flags)
	}
	etherType = binary.BigEndian.Uint16(b[2:])
	if etherType != EtherIPv4 && etherType != EtherIPv6 {
		return 0, 0, nil, fmt.Errorf("%w: protocol %#04x, want IPv4 or IPv6", ErrHeader, etherType)
	}
	id = ChannelID(binary.BigEndian.Uint32(b[4:]))
	if id == 0 {
		return 0, 0, nil, fmt.Errorf("%w: key 0, want a channel", ErrHeader)
	}
	return id, etherType, b[HeaderLen:], nil
}
