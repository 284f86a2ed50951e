package dataplane

import (
	"encoding/binary"
	"net/netip"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// endOf returns an endpoint in the form in which it is written into packets.
func endOf(a netip.AddrPort) wire.End {
	return wire.End{Addr: a.Addr().As16(), Port: a.Port()}
}

// addrPort returns an end as an address with port.
func addrPort(e *wire.End) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(e.Addr).Unmap(), e.Port)
}

// addrOf returns an address as it stands in a packet.
func addrOf(b []byte) netip.Addr {
	if len(b) == 4 {
		return netip.AddrFrom4([4]byte(b))
	}
	return netip.AddrFrom16([16]byte(b))
}

// flowOf returns the key of a packet.
func flowOf(b []byte, v *wire.View) (k clienttable.Flow) {
	putFlow(&k, b, v)
	return k
}

// putFlow makes k the key of a packet.
func putFlow(k *clienttable.Flow, b []byte, v *wire.View) {
	ports := uint32(v.SrcPort)<<16 | uint32(v.DstPort)
	if v.Version == 4 {
		addrs := binary.BigEndian.Uint64(b[12:20])
		k.Set4(v.Proto, uint32(addrs>>32), uint32(addrs), ports)
		return
	}
	k.Set6(v.Proto, (*[32]byte)(b[8:40]), ports)
}
