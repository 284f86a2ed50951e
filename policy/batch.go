package policy

// batchSize is how many packets are looked up side by side; 8 gained less with 100,000 rules,
// and 32 no more.
const batchSize = 16

// LookupBatch looks up all packets as [Table.Lookup] does: vs[i] and ok[i] are the answer for
// ps[i]. Both must be as long as ps at least; what is behind is left alone. Where the
// table is larger than the processor's caches, waiting for the memory of one packet overlaps with
// that of the others.
func (t *Table[V]) LookupBatch(ps []Packet, vs []V, ok []bool) {
	vs, ok = vs[:len(ps)], ok[:len(ps)]
	if t == nil {
		clear(vs)
		clear(ok)
		return
	}
	for len(ps) > 0 {
		n := min(len(ps), batchSize)
		t.lookupBatch(ps[:n], vs[:n], ok[:n])
		ps, vs, ok = ps[n:], vs[n:], ok[n:]
	}
}

// place is where a VIP is expected, and what it is expected of.
type place[V any] struct {
	d        *shard[V] // nil if nowhere
	i        uint32
	fam      family
	live     *[2]vips[V]
	dst, src u128
}

// lookupBatch goes step by step with all packets, so that the reads of a step are in flight
// together: find the places, ask for the slots, match.
func (t *Table[V]) lookupBatch(ps []Packet, vs []V, ok []bool) {
	var places [batchSize]place[V]
	var heads [batchSize]*slotHead
	for i := range ps {
		p, w := &ps[i], &places[i]
		w.live = &t.live[0]
		if p.FromProxy {
			w.live = &t.live[1]
		}
		if dst, src := p.Dst.Addr(), p.Src.Addr(); dst.Is4() && src.Is4() {
			w.fam, w.dst.lo, w.src.lo = v4, uint64(as4(dst)), uint64(as4(src))
		} else {
			var f family
			w.dst, w.fam = split(dst)
			w.src, f = split(src)
			if f != w.fam || f == noFamily {
				continue
			}
		}
		if w.d, w.i = w.live[w.fam-1].guess(w.fam, w.dst); w.d != nil {
			heads[i] = &w.d.slots[w.i].head
		}
	}
	touch(heads[:len(ps)])
	for i := range ps {
		w := &places[i]
		var hit uint32
		if w.d != nil {
			hit = w.match(&ps[i])
		}
		if ok[i] = hit != 0; ok[i] {
			vs[i] = w.d.value(w.i, hit-1)
		} else {
			var none V
			vs[i] = none
		}
	}
}

// match is the rest of [Table.find]. The place is the right one, or there is none, unless VIPs are of
// more than one length.
func (w *place[V]) match(p *Packet) uint32 {
	v := &w.live[w.fam-1]
	l := &v.lens[0]
	s := &w.d.slots[w.i].head
	if w.fam == v4 {
		if !s.is4(uint32(w.dst.lo&l.mask.lo), tag(l.bits)) {
			if w.d, w.i = v.find4(uint32(w.dst.lo)); w.d == nil {
				return 0
			}
		}
		return w.d.match4(w.i, uint32(w.src.lo), p, nil)
	}
	if !s.is6(u128{w.dst.hi & l.mask.hi, w.dst.lo & l.mask.lo}, tag(l.bits)) {
		if w.d, w.i = v.find6(w.dst); w.d == nil {
			return 0
		}
	}
	return w.d.match6(w.i, w.src, p, nil)
}

// touch asks for both cache lines of slots. It is not inlined, so that it is not left out.
//
//go:noinline
func touch(heads []*slotHead) (x uint32) {
	for _, h := range heads {
		if h != nil {
			x |= h[0] | h[19]
		}
	}
	return x
}

// guess returns where the slot of the longest VIP prefix of x may be, without reading it, or no
// shard.
func (v *vips[V]) guess(fam family, x u128) (d *shard[V], i uint32) {
	if len(v.lens) == 0 {
		return nil, 0
	}
	l := &v.lens[0]
	h := hashVIP(fam, u128{x.hi & l.mask.hi, x.lo & l.mask.lo}, l.bits, v.seed)
	d = &v.shards[h>>(v.shift&63)]
	return d, d.place(h, v.shift)
}
