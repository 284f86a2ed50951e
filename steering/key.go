package steering

import "net/netip"

// A Key is what a metric may look at when it chooses a node. The zero Key is a
// pass-through session of nobody in particular.
type Key struct {
	// Client is the client's address: Hash, MinMisses and PHash go by it, and by the
	// field Hash where it is invalid.
	Client netip.Addr
	// Hash is a hash of whatever must keep together, of the flow for instance: Maglev
	// and Capacity go by it, and by Client where it is 0. See [HashFlow].
	Hash uint64
	// Optimized sessions reach nodes under pressure last, but are never refused for it.
	Optimized bool
}

// clientHash is the hash for metrics that go by the client's address.
func (k *Key) clientHash(seed uint64) uint64 {
	if k.Client.IsValid() {
		return HashAddr(k.Client, seed)
	}
	return mix(k.Hash + seed*k0)
}

// flowHash is the hash for metrics that go by the flow.
func (k *Key) flowHash(seed uint64) uint64 {
	if k.Hash == 0 && k.Client.IsValid() {
		return HashAddr(k.Client, seed)
	}
	return mix(k.Hash + seed*k0)
}

// scoreHash is the part of the client MinMisses scores.
func (k *Key) scoreHash(clientBits int, seed uint64) uint64 {
	if k.Client.IsValid() {
		hi, lo := clientMasked(k.Client, clientBits)
		return mix(hashHalves(hi, lo, seed))
	}
	return mix(k.Hash + seed*k0)
}
