package dataplane

import (
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
func flowOf(b []byte, v *wire.View) clienttable.Flow {
	if v.Version == 4 {
		return clienttable.MakeFlow4(v.Proto, [4]byte(b[12:16]), [4]byte(b[16:20]), v.SrcPort, v.DstPort)
	}
	return clienttable.MakeFlow6(v.Proto, [16]byte(b[8:24]), [16]byte(b[24:40]), v.SrcPort, v.DstPort)
}
