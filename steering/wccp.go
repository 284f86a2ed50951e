package steering

import "net/netip"

// WCCPFields are the header fields the WCCP hash looks at, with the bits of the service
// flags of WCCP version 2 (draft-wilson-wrec-wccp-v2-01, section 5.6.2).
type WCCPFields uint8

// The fields. Source and destination together make the hash symmetric.
const (
	WCCPSrcAddr WCCPFields = 1 << iota
	WCCPDstAddr
	WCCPSrcPort
	WCCPDstPort
)

// HashWCCP returns the bucket, one of 256, of a packet by the primary hash of WCCP
// version 2: the exclusive or of the chosen fields as 32-bit numbers, folded to 16 and
// then to 8 bits. Of IPv6 addresses the four 32-bit words are combined first.
func HashWCCP(f WCCPFields, src, dst netip.AddrPort) uint8 {
	var key uint32
	if f&WCCPSrcAddr != 0 {
		key ^= word(src.Addr())
	}
	if f&WCCPDstAddr != 0 {
		key ^= word(dst.Addr())
	}
	if f&WCCPSrcPort != 0 {
		key ^= uint32(src.Port())
	}
	if f&WCCPDstPort != 0 {
		key ^= uint32(dst.Port())
	}
	key ^= key >> 16
	key ^= key >> 8
	return uint8(key)
}

func word(a netip.Addr) uint32 {
	hi, lo := halves(a)
	if a.Unmap().Is4() {
		return uint32(lo)
	}
	x := hi ^ lo
	return uint32(x>>32) ^ uint32(x)
}
