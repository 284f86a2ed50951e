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

// lookupBatch goes step by step with all packets, so that the reads of a step are in flight
// together: hash, ask for the slots, match.
func (t *Table[V]) lookupBatch(ps []Packet, vs []V, ok []bool) {
	var heads [batchSize]*slotHead
	for i := range ps {
		live := &t.live[0]
		if ps[i].FromProxy {
			live = &t.live[1]
		}
		if x, f := split(ps[i].Dst.Addr()); f != noFamily {
			heads[i] = live[f-1].guess(f, x)
		}
	}
	touch(heads[:len(ps)])
	for i := range ps {
		vs[i], ok[i] = t.Lookup(ps[i])
	}
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

// guess returns the slot where the longest VIP prefix of x may be, without reading it, or nil.
func (v *vips[V]) guess(fam family, x u128) *slotHead {
	if len(v.lens) == 0 {
		return nil
	}
	l := &v.lens[0]
	h := hashVIP(fam, u128{x.hi & l.mask.hi, x.lo & l.mask.lo}, l.bits, v.seed)
	d := &v.shards[h>>(v.shift&63)]
	return &d.slots[d.place(h, v.shift)].head
}
