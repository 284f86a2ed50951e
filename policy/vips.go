package policy

import (
	"cmp"
	"math/bits"
	"slices"
)

// vips finds the slot of the VIP that owns an address: a hash table over the VIPs of one
// family, asked once for each prefix length in use, longest first. It is persistent: the table
// is cut into shards, and a change makes one of them anew and copies the list of shards.
type vips[V any] struct {
	shards []shard[V]
	shift  uint8  // hash >> shift picks the shard, of two at least
	seed   uint64 // of the hash
	count  int
	lens   []vipLen
}

// vipLen is a prefix length in use, and by how many VIPs.
type vipLen struct {
	bits  uint8
	count int
	mask  u128 // the bits
}

// member is a VIP that is to go into a table.
type member[V any] struct {
	slot slot[V]
	svc  *service[V]
}

const shardVIPs = 512 // at most, of a new shard

// newVIPs returns a table of VIPs that are all different.
func newVIPs[V any](members []member[V]) vips[V] {
	var v vips[V]
	for i := range members {
		v.countLen(members[i].svc.fam, members[i].svc.bits, 1)
	}
	v.count = len(members)
	v.build(members)
	return v
}

// build puts down all members, with another seed of the hash if there is a shard for which
// no places can be found.
func (v *vips[V]) build(members []member[V]) {
	if len(members) == 0 {
		v.shards = nil
		return
	}
	shards := 2
	for shards*shardVIPs < len(members) {
		shards *= 2
	}
	v.shift = uint8(64 - bits.Len(uint(shards-1)))
	for !v.tryBuild(members, shards) {
		v.seed++
	}
}

func (v *vips[V]) tryBuild(members []member[V], shards int) bool {
	ends := make([]int, shards+1) // of the members of each shard, when they have been sorted
	hashes := make([]uint64, len(members))
	for i := range members {
		hashes[i] = v.hashOf(members[i].svc)
		ends[hashes[i]>>v.shift+1]++
	}
	size := 0
	for i := range shards {
		size += slotsFor(ends[i+1])
		ends[i+1] += ends[i]
	}
	order := make([]placing, len(members))
	for i, h := range hashes {
		at := &ends[h>>v.shift]
		order[*at] = placing{h, int32(i)}
		*at++
	}
	v.shards = make([]shard[V], shards)
	slots := make([]slot[V], size)
	hugePages(slots)
	services := make([]*service[V], size)
	start := 0
	for i := range v.shards {
		n := slotsFor(ends[i] - start)
		v.shards[i].slots, slots = slots[:n:n], slots[n:]
		v.shards[i].services, services = services[:n:n], services[n:]
		if !v.shards[i].fill(members, order[start:ends[i]], v.shift) {
			return false
		}
		start = ends[i]
	}
	return true
}

// find4 returns where the slot of the longest prefix that holds dst is, or no shard.
func (v *vips[V]) find4(dst uint32) (d *shard[V], i uint32) {
	for k := range v.lens {
		l := &v.lens[k]
		x := dst & uint32(l.mask.lo)
		h := hash4(x, l.bits, v.seed)
		d = &v.shards[h>>(v.shift&63)]
		i = d.place(h, v.shift)
		if d.slots[i].head.is4(x, tag(l.bits)) {
			return d, i
		}
	}
	return nil, 0
}

// find6 is find4 for IPv6.
func (v *vips[V]) find6(dst u128) (d *shard[V], i uint32) {
	for k := range v.lens {
		l := &v.lens[k]
		x := u128{dst.hi & l.mask.hi, dst.lo & l.mask.lo}
		h := hash6(x, l.bits, v.seed)
		d = &v.shards[h>>(v.shift&63)]
		i = d.place(h, v.shift)
		if d.slots[i].head.is6(x, tag(l.bits)) {
			return d, i
		}
	}
	return nil, 0
}

// owner returns the service of the longest prefix that holds x, or nil.
func (v *vips[V]) owner(fam family, x u128) *service[V] {
	for _, l := range v.lens {
		if s := v.service(fam, u128{x.hi & l.mask.hi, x.lo & l.mask.lo}, l.bits); s != nil {
			return s
		}
	}
	return nil
}

// service returns the service of exactly the prefix of n bits at x, or nil.
func (v *vips[V]) service(fam family, x u128, n uint8) *service[V] {
	if v.count == 0 {
		return nil
	}
	h := hashVIP(fam, x, n, v.seed)
	d := &v.shards[h>>v.shift]
	if s := d.services[d.place(h, v.shift)]; s != nil && s.vip == x && s.bits == n {
		return s
	}
	return nil
}

// hash4 folds a prefix to 64 bits; no two prefixes have the same. The multipliers are random odd
// numbers.
func hash4(x uint32, n uint8, seed uint64) uint64 {
	h := (uint64(x)<<8 ^ uint64(n) ^ seed<<40) * 0x9e3779b97f4a7c15
	return (h ^ h>>32) * 0xd6e8feb86659fd93
}

// hash6 has the seed in both factors: whichever is zero for one seed, and makes all prefixes alike, is not for the next.
func hash6(x u128, n uint8, seed uint64) uint64 {
	hi, lo := bits.Mul64(x.hi^0x9e3779b97f4a7c15^uint64(n)^seed<<32, x.lo^0xd6e8feb86659fd93^seed<<32)
	return (hi ^ lo) * 0xa0761d6478bd642f
}

func hashVIP(fam family, x u128, n uint8, seed uint64) uint64 {
	if fam == v4 {
		return hash4(uint32(x.lo), n, seed)
	}
	return hash6(x, n, seed)
}

func (v *vips[V]) hashOf(s *service[V]) uint64 { return hashVIP(s.fam, s.vip, s.bits, v.seed) }

// all calls yield for every service, in no particular order.
func (v *vips[V]) all(yield func(*service[V]) bool) bool {
	for i := range v.shards {
		for _, s := range v.shards[i].services {
			if s != nil && !yield(s) {
				return false
			}
		}
	}
	return true
}

// vipEdit says what becomes of a VIP.
type vipEdit[V any] struct {
	fam    family
	bits   uint8
	vip    u128
	member *member[V] // nil if it goes
	hash   uint64
}

// apply makes changes; what v shares with others stays as it is. It cuts the table anew if it
// has outgrown its shards.
func (v *vips[V]) apply(edits []vipEdit[V]) {
	if len(edits) == 0 {
		return
	}
	v.lens = slices.Clone(v.lens)
	if v.count+len(edits) > 2*shardVIPs*len(v.shards) || len(v.shards) == 0 {
		members := make([]member[V], 0, v.count+len(edits))
		for i := range v.shards {
			members = v.shards[i].appendMembers(members)
		}
		v.build(v.edit(members, edits))
		return
	}
	v.shards = slices.Clone(v.shards)
	for i := range edits {
		e := &edits[i]
		e.hash = hashVIP(e.fam, e.vip, e.bits, v.seed)
	}
	slices.SortFunc(edits, func(a, b vipEdit[V]) int { return cmp.Compare(a.hash, b.hash) })
	for rest := edits; len(rest) > 0; {
		at := rest[0].hash >> v.shift
		n := 1
		for n < len(rest) && rest[n].hash>>v.shift == at {
			n++
		}
		d := &v.shards[at]
		members := v.edit(d.appendMembers(make([]member[V], 0, len(d.services)+n)), rest[:n])
		rest = rest[n:]
		order := make([]placing, len(members))
		for i := range members {
			order[i] = placing{v.hashOf(members[i].svc), int32(i)}
		}
		*d = shard[V]{}
		if !d.fill(members, order, v.shift) {
			for i := range v.shards {
				members = v.shards[i].appendMembers(members)
			}
			v.build(v.edit(members, rest))
			return
		}
	}
}

// edit returns the members after edits, and counts them.
func (v *vips[V]) edit(members []member[V], edits []vipEdit[V]) []member[V] {
	type key struct {
		vip  u128
		bits uint8
	}
	edited := make(map[key]bool, len(edits))
	for _, e := range edits {
		edited[key{e.vip, e.bits}] = true
	}
	members = slices.DeleteFunc(members, func(m member[V]) bool {
		gone := edited[key{m.svc.vip, m.svc.bits}]
		if gone {
			v.count--
			v.countLen(m.svc.fam, m.svc.bits, -1)
		}
		return gone
	})
	for _, e := range edits {
		if e.member != nil {
			v.count++
			v.countLen(e.fam, e.bits, 1)
			members = append(members, *e.member)
		}
	}
	return members
}

// countLen keeps the list of prefix lengths, longest first.
func (v *vips[V]) countLen(fam family, bits uint8, d int) {
	i, found := slices.BinarySearchFunc(v.lens, bits, func(l vipLen, bits uint8) int {
		return int(bits) - int(l.bits)
	})
	if !found {
		v.lens = slices.Insert(v.lens, i, vipLen{bits: bits, mask: fam.mask(fam.max(), int(bits))})
	}
	if v.lens[i].count += d; v.lens[i].count == 0 {
		v.lens = slices.Delete(v.lens, i, i+1)
	}
}
