package wire

import "encoding/binary"

// OpenTunnel finds the packet that another one carries by one of the kinds of [Tunnel]: where it begins in b, and the key of
// GRE or the VXLAN network identifier, 0 if there is none. port is the UDP port of GUE or VXLAN, by default those that are
// registered. ok is false if b is no tunnel that this package understands.
func OpenTunnel(b []byte, v *View, port uint16) (at int, key uint32, ok bool) {
	if v.Mark&LaterFrag != 0 {
		return 0, 0, false
	}
	at = int(v.L4)
	x := b[at:v.End]
	switch v.Proto {
	case ProtoIPv4, ProtoIPv6:
		return at, 0, carries(x, v.Proto)
	case ProtoGRE:
		if len(x) < 8 {
			return 0, 0, false
		}
		n := 4
		switch binary.BigEndian.Uint16(x) {
		case 0:
		case 0x2000:
			n, key = 8, binary.BigEndian.Uint32(x[4:])
		default:
			return 0, 0, false
		}
		proto := ofEther(binary.BigEndian.Uint16(x[2:]))
		return at + n, key, proto != 0 && carries(x[n:], proto)
	case ProtoUDP:
		x = b[v.Payload:v.End]
		switch {
		case len(x) > 4 && (v.DstPort == port || v.DstPort == 6080) && x[0] == 0 && (x[1] == ProtoIPv4 || x[1] == ProtoIPv6):
			return int(v.Payload) + 4, 0, carries(x[4:], x[1])
		case len(x) > 22 && (v.DstPort == port || v.DstPort == 4789) && x[0] == 8:
			proto := ofEther(binary.BigEndian.Uint16(x[20:]))
			return int(v.Payload) + 22, binary.BigEndian.Uint32(x[4:]) >> 8, proto != 0 && carries(x[22:], proto)
		}
	}
	return 0, 0, false
}

func ofEther(typ uint16) uint8 {
	switch typ {
	case EtherIPv4:
		return ProtoIPv4
	case EtherIPv6:
		return ProtoIPv6
	}
	return 0
}

// carries reports whether b begins like a packet of the version that a protocol number stands for.
func carries(b []byte, proto uint8) bool {
	return len(b) > 0 && (proto == ProtoIPv4 && b[0]>>4 == 4 || proto == ProtoIPv6 && b[0]>>4 == 6)
}
