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

// lookupBatch goes step by step with all packets, so that each step's reads, which depend on
// those of the step before, are in flight together.
func (t *Table[V]) lookupBatch(ps []Packet, vs []V, ok []bool) {
	var work [batchSize]struct {
		src u128
		dst u128
		v   *vips[V]
		d   *shard[V]
		i   uint32
		fam family
	}
	for i := range ps {
		p, w := &ps[i], &work[i]
		dst, f := split(p.Dst.Addr())
		src, g := split(p.Src.Addr())
		if f != g || f == noFamily {
			continue
		}
		live := &t.live[0]
		if p.FromProxy {
			live = &t.live[1]
		}
		w.dst, w.src, w.fam, w.v = dst, src, f, &live[f-1]
		w.d, w.i = w.v.guess(f, dst)
	}
	var touched uint32
	for i := range ps {
		if w := &work[i]; w.d != nil {
			touched += w.d.slots[w.i].touch()
		}
	}
	work[0].i |= touched & 0
	for i := range ps {
		w := &work[i]
		var hit uint32
		if w.d != nil {
			if !w.d.slots[w.i].is(w.fam, w.fam.mask(w.dst, int(w.v.lens[0].bits)), w.v.lens[0].bits) {
				w.d, w.i = w.v.owner(w.fam, w.dst)
			}
			if w.d != nil {
				hit = w.d.resolve(w.i, ps[i].Protocol, ps[i].Dst.Port(), w.fam, w.src, nil)
			}
		}
		if ok[i] = hit != 0; ok[i] {
			vs[i] = w.d.value(w.i, hit-1)
		} else {
			var none V
			vs[i] = none
		}
	}
}

// guess returns the place where the slot of the longest VIP prefix of x may be, without reading
// it.
func (v *vips[V]) guess(fam family, x u128) (d *shard[V], i uint32) {
	if len(v.lens) == 0 {
		return nil, 0
	}
	n := v.lens[0].bits
	h := hashVIP(fam, fam.mask(x, int(n)), n, v.seed)
	d = &v.shards[h>>v.shift]
	return d, d.place(h, v.shift)
}
