package steering

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// A Rendezvous orders nodes by rendezvous hashing as the rows of a GLB director's forwarding
// table have them: the first of a row is its primary, the second the one asked when the primary
// does not know a flow. When a node is lost only the rows it stood in change, and those below
// it move up. Balancers with one key and the same nodes agree, GLB directors too. The zero
// Rendezvous has no nodes; one is not changed by its methods, and safe for concurrent use.
type Rendezvous struct {
	k0, k1 uint64
	nodes  [][]byte
}

// NewRendezvous returns the order of nodes, known by their addresses, under a key. IPv4-mapped
// addresses count as IPv4. Nodes with one address stand in the order given.
func NewRendezvous(key [16]byte, nodes ...netip.Addr) *Rendezvous {
	r := &Rendezvous{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:]), make([][]byte, len(nodes))}
	for i, n := range nodes {
		r.nodes[i] = n.Unmap().AsSlice()
	}
	return r
}

// Row returns the nodes of a row of the table, best first, as indices of those given to
// NewRendezvous.
func (r *Rendezvous) Row(row uint32) []int {
	var seed [8]byte
	binary.LittleEndian.PutUint64(seed[:], siphash(r.k0, r.k1, binary.BigEndian.AppendUint32(nil, row)))
	scores := make([]uint64, len(r.nodes))
	order := make([]int, len(r.nodes))
	for i, n := range r.nodes {
		order[i] = i
		// The digest is compared as the bytes it is sent in.
		scores[i] = bits.ReverseBytes64(siphash(r.k0, r.k1, append(seed[:len(seed):len(seed)], n...)))
	}
	slices.SortStableFunc(order, func(i, j int) int {
		switch {
		case scores[i] < scores[j]:
			return -1
		case scores[i] > scores[j]:
			return 1
		}
		return 0
	})
	return order
}

// siphash is SipHash-2-4 (Aumasson and Bernstein, 2012).
func siphash(k0, k1 uint64, b []byte) uint64 {
	v0, v1 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d
	v2, v3 := k0^0x6c7967656e657261, k1^0x7465646279746573
	rounds := func(n int) {
		for range n {
			v0 += v1
			v1 = bits.RotateLeft64(v1, 13) ^ v0
			v0 = bits.RotateLeft64(v0, 32)
			v2 += v3
			v3 = bits.RotateLeft64(v3, 16) ^ v2
			v0 += v3
			v3 = bits.RotateLeft64(v3, 21) ^ v0
			v2 += v1
			v1 = bits.RotateLeft64(v1, 17) ^ v2
			v2 = bits.RotateLeft64(v2, 32)
		}
	}
	last := uint64(len(b)) << 56
	for ; len(b) >= 8; b = b[8:] {
		m := binary.LittleEndian.Uint64(b)
		v3 ^= m
		rounds(2)
		v0 ^= m
	}
	for i, x := range b {
		last |= uint64(x) << (8 * i)
	}
	v3 ^= last
	rounds(2)
	v0 ^= last
	v2 ^= 0xff
	rounds(4)
	return v0 ^ v1 ^ v2 ^ v3
}
