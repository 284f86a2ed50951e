package clienttable

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Association is a key that all sessions of a client, or of a group of clients,
// have in common: of one service ([RegularKey]) or of one farm ([FarmKey]). Like
// [Flow] it is comparable and packed into 40 bytes without pointers or padding.
//
// The zero Association is the key of nothing. An Association may be copied.
type Association struct {
	clientHi, clientLo, vipHi, vipLo, rest uint64
}

const (
	assocRegular = 1 << 48
	assocFarm    = 2 << 48
)

// RegularKey returns the key of the sessions of client, or its group, with the
// service at vip: source address, VIP, destination port and protocol.
func RegularKey(proto uint8, client netip.Addr, vip netip.AddrPort, g Grouping) Association {
	a := Association{rest: assocRegular | uint64(proto)<<32 | uint64(vip.Port())}
	a.clientHi, a.clientLo = g.mask(client)
	d := vip.Addr().As16()
	a.vipHi, a.vipLo = binary.BigEndian.Uint64(d[:8]), binary.BigEndian.Uint64(d[8:])
	return a
}

// RegularKeyOf is [RegularKey] for the flow of a packet from client to VIP.
func RegularKeyOf(f Flow, g Grouping) Association {
	a := Association{f.srcHi, f.srcLo, f.dstHi, f.dstLo, assocRegular | f.ends&(0xff<<32) | f.ends&0xffff}
	a.clientHi, a.clientLo = g.maskWords(a.clientHi, a.clientLo)
	return a
}

// FarmKey returns the key of the sessions of client, or its group, with a farm.
func FarmKey(farm uint32, client netip.Addr, g Grouping) Association {
	a := Association{rest: assocFarm | uint64(farm)}
	a.clientHi, a.clientLo = g.mask(client)
	return a
}

// Client returns the client's address, with the bits that its group has in common.
func (a Association) Client() netip.Addr {
	return wordsAddr(a.clientHi, a.clientLo, a.rest != 0)
}

// Farm returns the farm of a key made by [FarmKey].
func (a Association) Farm() (farm uint32, ok bool) {
	return uint32(a.rest), a.rest&assocFarm != 0
}

// Service returns protocol and VIP of a key made by [RegularKey].
func (a Association) Service() (proto uint8, vip netip.AddrPort, ok bool) {
	if a.rest&assocRegular == 0 {
		return 0, netip.AddrPort{}, false
	}
	return uint8(a.rest >> 32), netip.AddrPortFrom(wordsAddr(a.vipHi, a.vipLo, true), uint16(a.rest)), true
}

// String returns a form such as "192.0.2.0 > tcp 198.51.100.7:80" or
// "192.0.2.0 > farm 3".
func (a Association) String() string {
	if farm, ok := a.Farm(); ok {
		return fmt.Sprintf("%v > farm %d", a.Client(), farm)
	}
	proto, vip, ok := a.Service()
	if !ok {
		return "-"
	}
	switch proto {
	case 6:
		return fmt.Sprintf("%v > tcp %v", a.Client(), vip)
	case 17:
		return fmt.Sprintf("%v > udp %v", a.Client(), vip)
	}
	return fmt.Sprintf("%v > proto-%d %v", a.Client(), proto, vip)
}

// Grouping says which clients count as one: those whose addresses agree in a
// number of leading bits. The zero Grouping tells all clients apart. A Grouping may
// be copied and compared.
type Grouping struct {
	host4, host6 uint8 // trailing bits that are ignored
}

// NewGrouping returns the grouping by the first bits4 bits of IPv4 addresses (0 to
// 32) and the first bits6 of IPv6 addresses (0 to 128). 32 and 128 tell all clients
// apart, 0 makes them one.
func NewGrouping(bits4, bits6 int) (Grouping, error) {
	if bits4 < 0 || bits4 > 32 {
		return Grouping{}, fmt.Errorf("%w: client grouping of IPv4 by %d bits: must be 0 to 32", ErrInvalid, bits4)
	}
	if bits6 < 0 || bits6 > 128 {
		return Grouping{}, fmt.Errorf("%w: client grouping of IPv6 by %d bits: must be 0 to 128", ErrInvalid, bits6)
	}
	return Grouping{uint8(32 - bits4), uint8(128 - bits6)}, nil
}

// Bits returns the numbers of leading bits that count.
func (g Grouping) Bits() (bits4, bits6 int) { return 32 - int(g.host4), 128 - int(g.host6) }

// Mask returns addr with the bits that do not count set to zero.
func (g Grouping) Mask(addr netip.Addr) netip.Addr {
	if !addr.IsValid() {
		return addr
	}
	hi, lo := g.mask(addr)
	return wordsAddr(hi, lo, true)
}

func (g Grouping) mask(addr netip.Addr) (hi, lo uint64) {
	b := addr.As16()
	return g.maskWords(binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]))
}

func (g Grouping) maskWords(hi, lo uint64) (uint64, uint64) {
	if hi == 0 && lo>>32 == 0xffff { // IPv4
		return 0, lo &^ (1<<g.host4 - 1)
	}
	if g.host6 >= 64 {
		return hi &^ (1<<(g.host6-64) - 1), 0
	}
	return hi, lo &^ (1<<g.host6 - 1)
}
