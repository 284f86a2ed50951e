package flowshare

import (
	"cmp"
	"slices"
	"time"
)

// A view is the members as this balancer sees them.
type view struct {
	members []Member // by name
	place   *Placement
	full    bool // everyone holds everything
	digest  uint64
	self    int
}

func (l *Layer) newView(prev *view, members []Member) *view {
	v := &view{members: members, full: len(members) <= l.cfg.Threshold, digest: 1}
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Name
		v.digest = mix(v.digest^seedOf(m.Name), m.Epoch)
		if m == l.cfg.Self {
			v.self = i
		}
	}
	if !v.full {
		var before *Placement
		if prev != nil {
			before = prev.place
		}
		v.place = l.cfg.Place(before, names, l.cfg.Holders)
	}
	return v
}

// find returns the index of a member in this very life, or -1.
func (v *view) find(m Member) int32 {
	i, ok := slices.BinarySearchFunc(v.members, m.Name, func(x Member, name string) int { return cmp.Compare(x.Name, name) })
	if !ok || v.members[i] != m {
		return -1
	}
	return int32(i)
}

// holds says whether the member of an index holds the flows of a slot.
func (v *view) holds(slot, i int) bool {
	return v.full || slices.Contains(v.place.Holders(slot), uint16(i))
}

// SetMembers says who is there, this balancer included or not. Members with the name of this
// one are left out, and of others with one name the one with the highest epoch counts.
func (l *Layer) SetMembers(now time.Time, members []Member) {
	own := []Member{l.cfg.Self}
	for _, m := range members {
		if m.Name != l.cfg.Self.Name && m.Name != "" && len(m.Name) <= MaxName {
			own = append(own, m)
		}
	}
	slices.SortFunc(own, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(b.Epoch, a.Epoch))
	})
	own = slices.CompactFunc(own, func(a, b Member) bool { return a.Name == b.Name })
	l.lock()
	l.at(now)
	if slices.Equal(own, l.view.members) {
		l.unlock()
		return
	}
	old := l.view
	l.view = l.newView(old, own)
	l.settled = l.now.Add(settle)
	died := map[uint32]bool{}
	for no := range l.about {
		at := l.view.find(l.origins.things[no])
		if at < 0 && l.about[no].at >= 0 {
			l.about[no].gone = l.seconds()
			died[uint32(no)] = true
		}
		l.about[no].at = at
	}
	l.meet(old)
	l.unlock()
	l.resettle(old, died)
	l.rouse()
}

// settle is how long items stay that are none of this member's business any more.
const settle = 10 * time.Second

// meet brings the peers in line with the view. Who comes back compares, and all do where
// everything is everyone's, or was.
func (l *Layer) meet(old *view) {
	all := l.view.full || old.full
	soon := l.jitter(100 * time.Millisecond) // the same for all, who then share a walk
	peers := make(map[string]*peer, len(l.view.members))
	l.order = l.order[:0]
	for i, m := range l.view.members {
		if i == l.view.self {
			l.order = append(l.order, nil)
			continue
		}
		p := l.peers[m.Name]
		if p == nil || p.m != m {
			p = &peer{m: m}
		}
		p.at = i
		// A comparison serves both sides, so one begins it.
		_, back := l.origins.index[m] // after a partition: its entries here may be stale
		back = back && l.peers[m.Name] != p
		if all && l.view.self < i || back {
			l.soil(p, soon)
		}
		peers[m.Name] = p
		l.order = append(l.order, p)
	}
	for name, p := range l.peers {
		if peers[name] != p {
			p.reset()
			p.gone = true
		}
	}
	l.peers = peers
	l.giveUpOn()
}

// resettle tells the next holders where a holder is gone, or one has come that is a better one,
// adopts the flows of the dead that this balancer forwards, and has the holders of their other
// flows tell each other, as the origin may have died between two messages.
func (l *Layer) resettle(old *view, died map[uint32]bool) {
	l.walk(func(f Flow, it Item) {
		if it.Flags&Unsent != 0 {
			return
		}
		if it.Flags&Tombstone == 0 && !l.live(it.Origin) && l.values.things[it.Value].Node == Itself {
			l.stats.Orphaned++
			l.origins.use(it.Origin)
			l.put(f, Item{Version: it.Version, Origin: it.Origin, Flags: Tombstone})
			return
		}
		if it.Flags&(Claimed|Tombstone) == Claimed && !l.live(it.Origin) {
			l.adopt(f, it)
			return
		}
		v := l.view
		if v.full || old.full {
			return // comparisons do it
		}
		slot := SlotOf(f)
		before, after := old.place.Holders(slot), v.place.Holders(slot)
		push := it.Origin == l.self
		if !l.live(it.Origin) {
			push = l.spokesman(old, before)
			if died[it.Origin] && v.holds(slot, v.self) {
				push = true
			}
		}
		if !push {
			return
		}
		for _, h := range after {
			p := l.order[h]
			if p == nil || !died[it.Origin] && contains(old, before, p.m.Name) {
				continue
			}
			l.stats.Moved++
			l.enqueue(p, &f)
		}
	})
}

// spokesman says whether this member is the first of the former holders that is still there.
func (l *Layer) spokesman(old *view, holders []uint16) bool {
	for _, h := range holders {
		name := old.place.Names()[h]
		if name == l.cfg.Self.Name {
			return true
		}
		if p := l.peers[name]; p != nil && p.m == old.members[h] {
			return false
		}
	}
	return false
}

func contains(v *view, holders []uint16, name string) bool {
	for _, h := range holders {
		if v.place.Names()[h] == name {
			return true
		}
	}
	return false
}

// adopt makes this balancer the origin of an item.
func (l *Layer) adopt(f Flow, it Item) {
	l.stats.Adopted++
	n := Item{Version: l.tick(it.Version), Origin: l.self, Value: it.Value, Flags: Claimed}
	l.values.use(it.Value)
	l.origins.use(l.self)
	l.put(f, n)
	l.spread(&f, &n)
}

// Members returns who is there, this balancer included, by name.
func (l *Layer) Members() []Member {
	l.lock()
	defer l.unlock()
	return slices.Clone(l.view.members)
}

// mine says whether this member should have an item.
func (l *Layer) mine(f *Flow, it *Item) bool {
	return l.view.full || it.Origin == l.self || l.view.holds(SlotOf(*f), l.view.self)
}
