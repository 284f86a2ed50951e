package sslpersist

import (
	"math"
	"sync"
	"sync/atomic"
)

// entry is one binding: 56 bytes without a pointer, so that the collector does not look
// at it.
type entry struct {
	b          [maxKey]byte
	last       int64 // last use, nanoseconds since the table's epoch
	prev, next uint32
	meta       uint32 // owner<<6 | length of the key
	hash       uint32
}

func (e *entry) owner() uint32 { return e.meta >> 6 }

func (e *entry) key() key { return key{b: e.b, n: uint64(e.meta & 63)} }

func (e *entry) is(k *key) bool { return uint64(e.meta&63) == k.n && e.b == k.b }

const (
	chunkBits = 9 // 512 entries fill a size class of the allocator to the byte
	chunkSize = 1 << chunkBits

	slotBits = 21 // of an index cell; the rest is a tag, part of the hash
	maxSlots = 1<<slotBits - 1

	minIndex = 64
)

// order is the list of one owner's entries in a shard, by last use. All of them have the
// same idle time, so the list is also the order of expiry. One list for all owners would
// not be: an entry of a short idle time could hide behind one of a long.
type order struct{ head, tail uint32 }

// shard is a part of a table with a lock of its own: an index by linear probing into
// entries that stay where they are.
type shard struct {
	mu     sync.Mutex
	index  []uint32 // tag | slot; 0 is empty, so slot 0 is not used
	chunks []*[chunkSize]entry
	free   uint32 // first of the freed slots, linked by next
	top    uint32 // slots ever used
	n      int
	orders []order // by owner

	// due is not later than the first expiry in the shard. It is read without the lock.
	due atomic.Int64
	_   [64]byte // shards lie side by side
}

func (s *shard) at(slot uint32) *entry { return &s.chunks[slot>>chunkBits][slot&(chunkSize-1)] }

func tag(hash uint32) uint32 { return hash &^ maxSlots }

// find returns the slot of k, or 0.
func (s *shard) find(k *key, hash uint32) uint32 {
	if len(s.index) == 0 {
		return 0
	}
	mask := uint32(len(s.index) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		c := s.index[i]
		if c == 0 {
			return 0
		}
		if tag(c) == tag(hash) {
			if slot := c & maxSlots; s.at(slot).is(k) {
				return slot
			}
		}
	}
}

// insert adds k, which is not there, and returns its slot, or 0 without room.
func (s *shard) insert(k *key, hash uint32, owner uint32, last int64) uint32 {
	if (s.n+1)*4 > len(s.index)*3 {
		s.grow()
	}
	slot := s.free
	if slot != 0 {
		s.free = s.at(slot).next
	} else {
		if s.top == maxSlots {
			return 0
		}
		s.top++
		slot = s.top
		if int(slot>>chunkBits) == len(s.chunks) {
			s.chunks = append(s.chunks, new([chunkSize]entry))
		}
	}
	*s.at(slot) = entry{b: k.b, last: last, meta: owner<<6 | uint32(k.n), hash: hash}
	s.place(hash, slot)
	s.n++
	s.link(slot, last)
	return slot
}

func (s *shard) place(hash, slot uint32) {
	mask := uint32(len(s.index) - 1)
	i := hash & mask
	for s.index[i] != 0 {
		i = (i + 1) & mask
	}
	s.index[i] = tag(hash) | slot
}

func (s *shard) grow() {
	old := s.index
	s.index = make([]uint32, max(minIndex, 2*len(old)))
	for _, c := range old {
		if c != 0 {
			s.place(s.at(c&maxSlots).hash, c&maxSlots)
		}
	}
}

// remove frees a slot. The cells behind it move up, so that no marks are left behind.
func (s *shard) remove(slot uint32) {
	e := s.at(slot)
	s.unlink(slot)
	mask := uint32(len(s.index) - 1)
	i := e.hash & mask
	for s.index[i]&maxSlots != slot {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; s.index[j] != 0; j = (j + 1) & mask {
		// A cell may move to i unless its home lies behind i.
		home := s.at(s.index[j]&maxSlots).hash & mask
		if (j-home)&mask >= (j-i)&mask {
			s.index[i] = s.index[j]
			i = j
		}
	}
	s.index[i] = 0
	*e = entry{next: s.free}
	s.free = slot
	s.n--
}

// link puts a slot where last belongs in its owner's order: at the head, or a few entries
// behind it, since clocks of callers differ a little, or at the tail, as what a snapshot
// knows. Where it belongs in between it is given the time of its neighbour: an order that
// is true matters more.
func (s *shard) link(slot uint32, last int64) {
	const near = 4
	e := s.at(slot)
	own := e.owner()
	for int(own) >= len(s.orders) {
		s.orders = append(s.orders, order{})
	}
	o := &s.orders[own]
	var newer uint32
	older := o.head
	for i := 0; older != 0 && s.at(older).last > last; i++ {
		if i == near {
			if last <= s.at(o.tail).last {
				newer, older = o.tail, 0
			} else {
				last = s.at(older).last
			}
			break
		}
		newer, older = older, s.at(older).next
	}
	e.last, e.prev, e.next = last, newer, older
	if newer == 0 {
		o.head = slot
	} else {
		s.at(newer).next = slot
	}
	if older == 0 {
		o.tail = slot
	} else {
		s.at(older).prev = slot
	}
}

func (s *shard) unlink(slot uint32) {
	e := s.at(slot)
	o := &s.orders[e.owner()]
	if e.prev == 0 {
		o.head = e.next
	} else {
		s.at(e.prev).next = e.next
	}
	if e.next == 0 {
		o.tail = e.prev
	} else {
		s.at(e.next).prev = e.prev
	}
}

// lower makes due no later than t.
func (s *shard) lower(t int64) {
	if t < s.due.Load() {
		s.due.Store(t)
	}
}

// Times beyond all others.
const (
	never  = math.MaxInt64
	always = math.MinInt64
)
