package afpacket

import "encoding/binary"

const tagLen = 4

// insertTag puts a VLAN tag behind the MAC addresses of the frame at b[virtioLen:], whose last tagLen
// bytes are free, and moves the header's csum_start along (IEEE 802.1Q-2022, 9.3).
//
//	dst(6) src(6) | tpid(2) tci(2) | type …
func insertTag(b []byte, tpid, tci uint16) {
	const virtioLen = 10
	frame := b[virtioLen:]
	copy(frame[12+tagLen:], frame[12:len(frame)-tagLen])
	binary.BigEndian.PutUint16(frame[12:], tpid)
	binary.BigEndian.PutUint16(frame[14:], tci)
	if b[0]&1 != 0 { // VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(b[6:], binary.NativeEndian.Uint16(b[6:])+tagLen)
	}
	if b[1] != 0 && binary.NativeEndian.Uint16(b[2:]) != 0 { // a super-packet's hdr_len
		binary.NativeEndian.PutUint16(b[2:], binary.NativeEndian.Uint16(b[2:])+tagLen)
	}
}
