package steering

import (
	"encoding/binary"
	"net/netip"
)

// A Toeplitz is the receive-side-scaling hash of network cards with a key: packets that
// a card spread over its queues by RSS can be spread over nodes or workers alike. It is
// safe for concurrent use; use [NewToeplitz].
type Toeplitz struct {
	// table[i][b] is the hash of a byte b at position i.
	table [36][256]uint32
}

// NewToeplitz returns the hash with a key of 40 bytes. A key that repeats two bytes, as
// 6d5a, makes both directions of a flow agree.
func NewToeplitz(key [40]byte) *Toeplitz {
	t := new(Toeplitz)
	window := uint64(binary.BigEndian.Uint32(key[:]))<<8 | uint64(key[4])
	for i := range t.table {
		for b := range 256 {
			var h uint32
			for bit := range 8 {
				if b>>(7-bit)&1 != 0 {
					h ^= uint32(window >> (8 - bit))
				}
			}
			t.table[i][b] = h
		}
		if i+5 < len(key) {
			window = window<<8 | uint64(key[i+5])
		}
	}
	return t
}

// Sum hashes the addresses of a packet and, if ports is set, its ports. The addresses
// must be of one family; IPv4-mapped ones count as IPv4.
func (t *Toeplitz) Sum(src, dst netip.AddrPort, ports bool) uint32 {
	var buf [36]byte
	in := buf[:0]
	if s, d := src.Addr().Unmap(), dst.Addr().Unmap(); s.Is4() && d.Is4() {
		a, b := s.As4(), d.As4()
		in = append(append(in, a[:]...), b[:]...)
	} else {
		a, b := s.As16(), d.As16()
		in = append(append(in, a[:]...), b[:]...)
	}
	if ports {
		in = binary.BigEndian.AppendUint16(in, src.Port())
		in = binary.BigEndian.AppendUint16(in, dst.Port())
	}
	var h uint32
	for i, b := range in {
		h ^= t.table[i][b]
	}
	return h
}
