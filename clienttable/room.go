package clienttable

import (
	"math/bits"
	"sync/atomic"
)

// searchMax bounds the search for a chain of moves: that many groups are looked
// at, of which only the tags are read.
const searchMax = 256

// step is a group in the search: the entry in lane of the group of step from could
// move here.
type step struct {
	group uint32
	from  int16
	lane  uint8
}

// room returns a free slot for a key of a home group and tag. Entries are moved to
// their other groups where both groups of the key are full, and as a last resort
// the stash is used. The shard is locked.
func (t *Table[K, V]) room(s *shard[K, V], home uint32, tag uint8, now int64) (slot uint32, ok bool) {
	base := s.first / groupSlots
	if slot, ok = t.freeIn(base+home, tag); ok {
		return
	}
	second := t.other(home, tag)
	if slot, ok = t.freeIn(base+second, tag); ok {
		return
	}
	if slot, ok = t.makeRoom(s, home, second, now); ok {
		return
	}
	return t.freeIn(base+t.groups, tag)
}

// freeIn returns a free slot of a group, the one that tag prefers if it is free.
func (t *Table[K, V]) freeIn(group uint32, tag uint8) (slot uint32, ok bool) {
	m := lanes(atomic.LoadUint64(t.tagsOf(group)), 0)
	if m == 0 {
		return 0, false
	}
	at := uint32(tag) % groupSlots
	next := uint32(bits.TrailingZeros64(bits.RotateLeft64(m, -8*int(at)))) >> 3
	return group*groupSlots + (at+next)%groupSlots, true
}

// preferred returns the slot of a group where an entry with a tag goes if it can: a
// look-up can ask for it before it has seen the group's tags.
func preferred(group uint32, tag uint8) (slot uint32) {
	return group*groupSlots + uint32(tag)%groupSlots
}

// makeRoom looks breadth first for the shortest chain of moves that frees a slot
// in one of two full groups, and makes it, last move first.
func (t *Table[K, V]) makeRoom(s *shard[K, V], first, second uint32, now int64) (slot uint32, ok bool) {
	var steps [searchMax]step
	steps[0], steps[1] = step{first, -1, 0}, step{second, -1, 0}
	base := s.first / groupSlots
	n := 2
	for i := 0; i < n; i++ {
		g := steps[i].group
		for lane := uint32(0); lane < groupSlots; lane++ {
			from := (base+g)*groupSlots + lane
			tag := t.tagAt(from)
			o := t.other(g, tag)
			if onPath(&steps, i, o) {
				continue
			}
			if free, ok := t.freeIn(base+o, tag); ok {
				for {
					t.move(s, from, free, now)
					free = from
					at := steps[i]
					if at.from < 0 {
						return free, true
					}
					i = int(at.from)
					from = (base+steps[i].group)*groupSlots + uint32(at.lane)
				}
			}
			if n < searchMax {
				steps[n] = step{o, int16(i), uint8(lane)}
				n++
			}
		}
	}
	return 0, false
}

// onPath reports whether group g is on the way to step i: a chain that used a
// group twice could move one slot twice.
func onPath(steps *[searchMax]step, i int, g uint32) bool {
	for ; i >= 0; i = int(steps[i].from) {
		if steps[i].group == g {
			return true
		}
	}
	return false
}

// move moves the entry in one slot to a free one of its other group, or removes it
// if it is not alive any more. Afterwards the first slot is free. The shard is
// locked.
func (t *Table[K, V]) move(s *shard[K, V], from, to uint32, now int64) {
	if t.large {
		t.prefetchSlot(to)
	}
	k, v := t.key(from), t.value(from)
	if t.ends(from, now, &v) != 0 {
		t.dismiss(s, from, now)
		return
	}
	// From here on no look-up restarts the idle time in the old slot; they wait.
	m := t.unlive(from)
	tag := t.tagAt(from)
	t.write(to, m&^(metaVersion|metaLive), &k, &v, t.birth(from))
	t.setTag(to, tag)
	s.moves.Add(1)
	t.setTag(from, 0)
	if !t.packed {
		t.pairs[from].Store(nil)
	}
	c := metaClassOf(m)
	t.mark(s, from, c, Established)
	t.mark(s, to, Established, c)
	exp := now + metaLeft(m, now)
	if c == Static {
		exp = never
	}
	t.expect(s, to, exp)
	for _, w := range s.walkers {
		w.moved(k, (from-s.first)/segSlots, (to-s.first)/segSlots)
	}
}
