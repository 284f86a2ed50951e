package policy

import (
	"cmp"
	"math/bits"
	"slices"
)

// shard is a part of a hash table in which every VIP is at the one place where it is looked
// for, so that a look-up has neither to try nor to guess: the VIPs of a shard fall into
// buckets by some bits of their hashes, and each bucket has a number that moves its VIPs to
// places that are free. Numbers are found by trying, buckets with most VIPs first.
type shard[V any] struct {
	slots    []slot[V]
	services []*service[V] // of the slots; nil where a slot is free
	moves    [buckets]uint8
}

const buckets = 1 << bucketBits

const bucketBits = 7

// slotsFor returns how many slots n VIPs get. With more, buckets find places sooner; with
// fewer, more of the table is in the processor's caches.
func slotsFor(n int) int {
	if n == 0 {
		return 1 // which is free, so that a look-up need not ask
	}
	return n + n/4 + 1
}

// place returns where the VIP with hash h is, if it is there. The upper bits of the hash have
// told the shard and tell the bucket, the lower ones, multiplied by the bucket's number, the
// place.
func (d *shard[V]) place(h uint64, shift uint8) uint32 {
	return placeOf(h, d.moves[bucket(h, shift)], uint32(len(d.slots)))
}

func bucket(h uint64, shift uint8) uint64 { return h >> ((shift - bucketBits) & 63) & (buckets - 1) }

func placeOf(h uint64, move uint8, size uint32) uint32 {
	x := bits.RotateLeft64(h, 32) * (2*uint64(move) + 1)
	return uint32(x >> 32 * uint64(size) >> 32)
}

// placing is a member on its way to its place.
type placing struct {
	hash   uint64
	member int32
}

// fill puts members into the slots, which must be free, or into slots of its own if there are
// none or there is no arrangement. It reports false if it has found none at all.
func (d *shard[V]) fill(members []member[V], order []placing, shift uint8) bool {
	slices.SortFunc(order, func(a, b placing) int { return cmp.Compare(a.hash, b.hash) })
	var ends [buckets + 1]int
	for _, p := range order {
		ends[bucket(p.hash, shift)+1]++
	}
	var byCount [buckets]uint8
	for i := range byCount {
		byCount[i] = uint8(i)
		ends[i+1] += ends[i]
	}
	slices.SortFunc(byCount[:], func(a, b uint8) int {
		return cmp.Or(ends[b+1]-ends[b]-(ends[a+1]-ends[a]), cmp.Compare(a, b))
	})
	for n := len(order); ; n += n/4 + 1 {
		if d.slots == nil {
			d.slots, d.services = make([]slot[V], slotsFor(n)), make([]*service[V], slotsFor(n))
		}
		if !slices.ContainsFunc(byCount[:], func(b uint8) bool {
			return !d.fillBucket(members, order[ends[b]:ends[b+1]], &d.moves[b])
		}) {
			return true
		}
		*d = shard[V]{}
		if n > 4*len(order)+64 {
			return false // as if the hashes were the same
		}
	}
}

func (d *shard[V]) fillBucket(members []member[V], order []placing, move *uint8) bool {
	for {
		n := 0
		for ; n < len(order); n++ {
			p := order[n]
			i := placeOf(p.hash, *move, uint32(len(d.slots)))
			if d.services[i] != nil {
				break
			}
			d.services[i] = members[p.member].svc
		}
		if n == len(order) {
			break
		}
		for _, p := range order[:n] {
			d.services[placeOf(p.hash, *move, uint32(len(d.slots)))] = nil
		}
		if *move++; *move == 0 {
			return false // all have been tried
		}
	}
	for _, p := range order {
		d.slots[placeOf(p.hash, *move, uint32(len(d.slots)))] = members[p.member].slot
	}
	return true
}

// match4 returns the rank of the rule of the VIP in slot i that holds a packet, plus one, or zero.
// For visit see [service.resolve].
func (d *shard[V]) match4(i uint32, src uint32, p *Packet, visit func(rows []uint32)) uint32 {
	s := &d.slots[i].head
	if s.large() {
		return d.services[i].resolve(p, u128{0, uint64(src)}, visit)
	}
	class, port := classify(p.Protocol, p.Dst.Port())
	hits := s.match4(class, port, src)
	if visit != nil || s.strict() {
		hits = s.narrow(s.rows(v4, class, port), hits, visit)
	}
	return rank(hits)
}

// match6 is match4 for IPv6.
func (d *shard[V]) match6(i uint32, src u128, p *Packet, visit func(rows []uint32)) uint32 {
	s := &d.slots[i].head
	if s.large() {
		return d.services[i].resolve(p, src, visit)
	}
	class, port := classify(p.Protocol, p.Dst.Port())
	hits := s.match6(class, port, src.hi)
	if visit != nil || s.strict() {
		hits = s.narrow(s.rows(v6, class, port), hits, visit)
	}
	return rank(hits)
}

// value returns the value of a rule.
func (d *shard[V]) value(i, rank uint32) V {
	if s := &d.slots[i]; !s.head.large() {
		return s.values[rank]
	}
	return d.services[i].values[rank]
}

func (d *shard[V]) appendMembers(members []member[V]) []member[V] {
	for i, s := range d.services {
		if s != nil {
			members = append(members, member[V]{d.slots[i], s})
		}
	}
	return members
}
