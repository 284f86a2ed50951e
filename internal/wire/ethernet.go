package wire

import "encoding/binary"

// EtherTypes.
const (
	EtherIPv4 = 0x0800
	EtherARP  = 0x0806
	EtherIPv6 = 0x86dd
	EtherVLAN = 0x8100
	EtherQinQ = 0x88a8
)

// maxTags bounds the VLAN tags of a frame.
const maxTags = 4

// Frame is what an Ethernet header says. The zero Frame is no frame.
type Frame struct {
	Type  uint16 // EtherType behind the tags
	L3    int    // where the packet begins
	Tags  int    // number of VLAN tags
	VLAN  uint16 // identifier of the outer tag; 0 if there is none
	Inner uint16 // identifier of the second tag; 0 if there is none
}

// ParseEthernet reads an Ethernet header and up to four VLAN tags (IEEE 802.1Q, 802.1ad).
func ParseEthernet(b []byte) (f Frame, s Status) {
	if len(b) < 14 {
		return f, Short
	}
	f.Type, f.L3 = binary.BigEndian.Uint16(b[12:]), 14
	for f.Type == EtherVLAN || f.Type == EtherQinQ || f.Type == 0x9100 {
		if f.Tags == maxTags {
			return f, BadHeader
		}
		if len(b) < f.L3+4 {
			return f, Short
		}
		id := binary.BigEndian.Uint16(b[f.L3:]) & 0xfff
		switch f.Tags {
		case 0:
			f.VLAN = id
		case 1:
			f.Inner = id
		}
		f.Tags++
		f.Type = binary.BigEndian.Uint16(b[f.L3+2:])
		f.L3 += 4
	}
	return f, OK
}
