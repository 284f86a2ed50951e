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
		dst, src u128
		fam      family
		vips     *vips[V]
		svc      *service[V]
		value    uint32
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
		w.dst, w.src, w.fam, w.vips = dst, src, f, &live[f-1]
		w.svc = w.vips.guess(f, dst)
	}
	for i := range ps {
		if w := &work[i]; w.vips != nil {
			w.svc = w.vips.confirm(w.svc, w.fam, w.dst)
		}
	}
	for i := range ps {
		if w := &work[i]; w.svc != nil {
			w.value = w.svc.program().key32(0, portKey(ps[i].Protocol, ps[i].Dst.Port()))
		}
	}
	for i := range ps {
		w := &work[i]
		var hit uint32
		if w.value != 0 {
			hit = w.svc.resolve(w.svc.program(), w.value, w.src, nil)
		}
		if ok[i] = hit != 0; ok[i] {
			vs[i] = w.svc.value(hit - 1)
		} else {
			var none V
			vs[i] = none
		}
	}
}

// guess returns the service in the first place where that of the longest VIP prefix of x may be,
// without reading the service.
func (v *vips[V]) guess(fam family, x u128) *service[V] {
	if len(v.lens) == 0 {
		return nil
	}
	n := v.lens[0].bits
	h := hashVIP(fam, fam.mask(x, int(n)), n)
	slots := v.shards[h>>v.shift].slots
	if len(slots) == 0 {
		return nil
	}
	return slots[h&(uint64(len(slots))-1)].svc
}

// confirm returns the service that owns x, which is s if the guess was right.
func (v *vips[V]) confirm(s *service[V], fam family, x u128) *service[V] {
	if s != nil && s.bits == v.lens[0].bits && s.vip == fam.mask(x, int(s.bits)) {
		return s
	}
	return v.owner(fam, x)
}
