package policy

import (
	"math/bits"
	"slices"
)

// vips finds the service that owns an address: a hash table over the VIPs of one
// family, asked once for each prefix length in use, longest first. It is persistent: the table is
// cut into shards, and a change copies one of them and the list of shards.
type vips[V any] struct {
	shards []shard[V]
	shift  uint8 // hash >> shift picks the shard
	count  int
	lens   []vipLen
}

// shard is a hash table with linear probing, a power of two in size and at most half full.
type shard[V any] struct {
	slots []slot[V]
	used  int
}

// slot is one place of the hash table; a service with the tag is the right one only if
// its VIP is.
type slot[V any] struct {
	tag uint64
	svc *service[V]
}

// vipLen is a prefix length in use, and by how many VIPs.
type vipLen struct {
	bits  uint8
	count int
}

const shardSlots = 256 // of a new shard

// newVIPs makes room for n VIPs.
func newVIPs[V any](n int) vips[V] {
	shards := 1
	for shards*shardSlots/3 < n {
		shards *= 2
	}
	v := vips[V]{shards: make([]shard[V], shards), shift: uint8(64 - bits.Len(uint(shards-1)))}
	return v
}

// hashVIP folds a prefix to 64 bits; for IPv4 no two prefixes have the same. The
// multipliers are random odd numbers.
func hashVIP(fam family, x u128, n uint8) uint64 {
	if fam == v4 {
		h := (x.lo<<8 | uint64(n)) * 0x9e3779b97f4a7c15
		return (h ^ h>>32) * 0xd6e8feb86659fd93
	}
	hi, lo := bits.Mul64(x.hi^0x9e3779b97f4a7c15^uint64(n), x.lo^0xd6e8feb86659fd93)
	return (hi ^ lo) * 0xa0761d6478bd642f
}

// owner returns the service of the longest prefix that holds x, or nil.
func (v *vips[V]) owner(fam family, x u128) *service[V] {
	for _, l := range v.lens {
		if s := v.find(fam, fam.mask(x, int(l.bits)), l.bits); s != nil {
			return s
		}
	}
	return nil
}

// find returns the service of exactly the prefix of n bits at x, or nil.
func (v *vips[V]) find(fam family, x u128, n uint8) *service[V] {
	if len(v.shards) == 0 {
		return nil
	}
	h := hashVIP(fam, x, n)
	slots := v.shards[h>>v.shift].slots
	mask := uint64(len(slots)) - 1
	for i := h; len(slots) > 0; i++ {
		s := &slots[i&mask]
		if s.tag == h && s.svc != nil && (fam == v4 || s.svc.vip == x && s.svc.bits == n) {
			return s.svc
		}
		if s.svc == nil {
			break
		}
	}
	return nil
}

// all calls yield for every service, in no particular order.
func (v *vips[V]) all(yield func(*service[V]) bool) bool {
	for _, shard := range v.shards {
		for _, s := range shard.slots {
			if s.svc != nil && !yield(s.svc) {
				return false
			}
		}
	}
	return true
}

// insert adds a service whose prefix is not there yet. The shard is changed in place:
// it must not be shared.
func (v *vips[V]) insert(s *service[V]) {
	h := hashVIP(s.fam, s.vip, s.bits)
	v.shards[h>>v.shift].insert(slot[V]{h, s})
	v.count++
	v.countLen(s.bits, 1)
}

func (d *shard[V]) insert(s slot[V]) {
	if 2*(d.used+1) > len(d.slots) {
		old := d.slots
		d.slots = make([]slot[V], max(4, 2*len(old)))
		for _, o := range old {
			if o.svc != nil {
				d.place(o)
			}
		}
	}
	d.place(s)
	d.used++
}

func (d *shard[V]) place(s slot[V]) {
	mask := uint64(len(d.slots)) - 1
	i := s.tag
	for d.slots[i&mask].svc != nil {
		i++
	}
	d.slots[i&mask] = s
}

// prepareChange makes the lists the caller's own, for add more VIPs. It cuts the table anew
// if it has outgrown its shards.
func (v *vips[V]) prepareChange(add int) {
	if size := v.count + add; size > 4*shardSlots/3*len(v.shards) {
		old := *v
		*v = newVIPs[V](size)
		old.all(func(s *service[V]) bool {
			v.insert(s)
			return true
		})
		return
	}
	v.shards = slices.Clone(v.shards)
	v.lens = slices.Clone(v.lens)
}

// replace adds s, in the place of the service that has its VIP if there is one. The lists
// must be the caller's own; the shard is copied.
func (v *vips[V]) replace(s *service[V]) {
	v.remove(s.fam, s.vip, s.bits)
	v.insert(s)
}

// remove takes out the service of a VIP, if there is one. The shard is copied in any
// case. Linear probing wants all others put in anew, since the place may be on the way to theirs.
func (v *vips[V]) remove(fam family, x u128, n uint8) {
	d := &v.shards[hashVIP(fam, x, n)>>v.shift]
	old := d.slots
	*d = shard[V]{slots: make([]slot[V], len(old))}
	for _, o := range old {
		switch {
		case o.svc == nil:
		case o.svc.vip == x && o.svc.bits == n:
			v.count--
			v.countLen(n, -1)
		default:
			d.place(o)
			d.used++
		}
	}
}

// countLen keeps the list of prefix lengths, longest first.
func (v *vips[V]) countLen(bits uint8, d int) {
	i, found := slices.BinarySearchFunc(v.lens, bits, func(l vipLen, bits uint8) int {
		return int(bits) - int(l.bits)
	})
	if !found {
		v.lens = slices.Insert(v.lens, i, vipLen{bits: bits})
	}
	if v.lens[i].count += d; v.lens[i].count == 0 {
		v.lens = slices.Delete(v.lens, i, i+1)
	}
}
