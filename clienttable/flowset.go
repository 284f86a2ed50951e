package clienttable

import "encoding/binary"

// Set4 makes f what [MakeFlow4] returns, in place; src and dst are addresses as big-endian numbers, and ports
// has the source port in its upper half. Where keys are made for every packet that counts: a Flow that was
// just put together word by word is costly to copy, since wider reads have to wait for the narrower writes.
func (f *Flow) Set4(proto uint8, src, dst, ports uint32) {
	f.srcHi, f.dstHi = 0, 0
	f.srcLo, f.dstLo = 0xffff<<32|uint64(src), 0xffff<<32|uint64(dst)
	f.ends = flowSrcValid | flowDstValid | uint64(proto)<<32 | uint64(ports)
}

// Set6 is Set4 for IPv6: addrs has source and destination behind each other, as a header has.
func (f *Flow) Set6(proto uint8, addrs *[32]byte, ports uint32) {
	f.srcHi, f.srcLo = binary.BigEndian.Uint64(addrs[:8]), binary.BigEndian.Uint64(addrs[8:16])
	f.dstHi, f.dstLo = binary.BigEndian.Uint64(addrs[16:24]), binary.BigEndian.Uint64(addrs[24:])
	f.ends = flowSrcValid | flowDstValid | uint64(proto)<<32 | uint64(ports)
}
