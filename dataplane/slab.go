package dataplane

import (
	"fmt"
	"math"
	"sync"
	"unsafe"
)

// slab is the store of records. A record that a worker may still be reading, because it
// looked its entry up before that left the table, is not given out again: records given
// back wait in limbo until every batch that was under way has ended.
//
// A record never moves, so that workers reach it by one index into recs, which never changes: it spans
// as much address space as there may ever be records, as far as the system gives that, of which the
// first ones have memory.
type slab struct {
	recs []record
	mem  memory

	mu    sync.Mutex
	size  uint32 // records that have memory, or will when they are touched
	limit uint32 // how many to make do with: below size after it was lowered
	free  []uint32
	spare []uint32 // free, too, and not below split, which was the limit when settle looked
	split uint32
	fresh uint32 // never used from here on
	limbo []uint32

	// Records below ready have been given memory ahead of their use; low tells that few of these are left. 0 if
	// nobody sees to it.
	ready uint32
	asked bool
	low   chan struct{}

	crowded chan struct{} // tells that many records are in limbo
}

// memory is that of a slab's records.
type memory interface {
	// use has the records from one number to below another one ready to be touched.
	use(from, to uint32) error
	// drop forgets the content of records, and leaves them ready.
	drop(from, to uint32)
}

const recordSize = int64(unsafe.Sizeof(record{}))

// newSlab returns a slab of n records, which can become most, or as many as the system has address space for.
func newSlab(n, most int) (*slab, error) {
	if int64(n)*recordSize > math.MaxInt {
		return nil, fmt.Errorf("%d bytes of records exceed the address space", int64(n)*recordSize)
	}
	s := &slab{crowded: make(chan struct{}, 1), low: make(chan struct{}, 1)}
	s.recs, s.mem = reserve(n, most, s)
	return s, s.setLimit(n)
}

// setLimit changes how many records are given out. Those in use stay. One caller at a time.
func (s *slab) setLimit(n int) error {
	if n > len(s.recs) {
		return fmt.Errorf("address space for %d records was set aside at the start, %d are wanted", len(s.recs), n)
	}
	to := uint32(n)
	if to > s.size { // which nobody else changes
		if err := s.mem.use(s.size, to); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size, s.limit = max(s.size, to), to
	if s.ready != 0 {
		s.asked = s.ready >= to
	}
	return nil
}

// alloc returns a record whose fields the caller sets, all of them. After the limit was lowered there may be more records in use than it
// allows: over has one given out all the same, to a caller who leaves it to the table whether there is room.
func (s *slab) alloc(over bool) (at uint32, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !over && s.taken() >= int(s.limit) {
		return 0, false
	}
	if n := len(s.free); n > 0 {
		at, s.free = s.free[n-1], s.free[:n-1]
		return at, true
	}
	if n := len(s.spare); s.fresh >= s.limit && n > 0 {
		at, s.spare = s.spare[n-1], s.spare[:n-1]
		return at, true
	}
	if s.fresh == s.size {
		return 0, false
	}
	s.fresh++
	if s.ready != 0 && !s.asked && s.fresh+readyRecords/2 > s.ready {
		s.asked = true
		select {
		case s.low <- struct{}{}:
		default: // it has been told, and what is told now will be seen
		}
	}
	return s.fresh - 1, true
}

// taken returns how many records are in use or in limbo. s.mu is held.
func (s *slab) taken() int { return int(s.fresh) - len(s.free) - len(s.spare) }

// readyRecords is how many fresh records are given memory ahead: two huge pages of them.
const readyRecords = 4 << 20 / 192

// prepare has the system provide the memory of the records that will be used next: clearing a huge page takes longer
// than a session, and no packet should wait for it.
func (s *slab) prepare() {
	s.mu.Lock()
	from := max(s.ready, s.fresh)
	to := uint32(min(uint64(from)+readyRecords, uint64(max(s.limit, from))))
	s.ready, s.asked = to, to >= s.limit
	s.mu.Unlock()
	if from < to {
		populate(s.recs[from:to])
	}
}

// giveBack puts a record into limbo.
func (s *slab) giveBack(at uint32) {
	s.recs[at].entries.Store(0) // also of a session that came to nothing
	s.mu.Lock()
	s.limbo = append(s.limbo, at)
	crowd := len(s.limbo) > int(s.limit)/32
	s.mu.Unlock()
	if crowd {
		select {
		case s.crowded <- struct{}{}:
		default:
		}
	}
}

// recycle makes the records given back so far available again, after pass has waited
// for every batch that was under way to end.
func (s *slab) recycle(pass func()) {
	s.mu.Lock()
	old := s.limbo
	s.limbo = nil
	s.mu.Unlock()
	if len(old) == 0 {
		return
	}
	pass()
	s.mu.Lock()
	s.free = append(s.free, old...)
	s.mu.Unlock()
}

// settleStep is how many free records settle looks at under one lock.
const settleStep = 4096

// settle has the memory of records go, after the limit was lowered, once none of those beyond is in use. Not while setLimit is called.
func (s *slab) settle() {
	for i, more := 0, true; more; {
		s.mu.Lock()
		if s.split != s.limit {
			s.free, s.spare, s.split = append(s.free, s.spare...), nil, s.limit
		}
		if s.fresh <= s.limit {
			s.mu.Unlock()
			return
		}
		for range settleStep {
			if more = i < len(s.free); !more {
				break
			}
			if at := s.free[i]; at >= s.limit {
				last := len(s.free) - 1
				s.free[i], s.free = s.free[last], s.free[:last]
				s.spare = append(s.spare, at)
			} else {
				i++
			}
		}
		from, to := s.limit, s.fresh
		empty := len(s.spare) == int(to-from)
		if empty {
			s.spare, s.size, s.fresh, s.ready = nil, from, from, min(s.ready, from)
		}
		s.mu.Unlock()
		if empty {
			s.mem.drop(from, to)
			return
		}
	}
}

// each calls seen with the record of every session. Sessions that begin or end meanwhile may be missing.
func (s *slab) each(g *gate, seen func(rec *record)) {
	s.mu.Lock()
	all := s.fresh
	s.mu.Unlock()
	for from := uint32(0); from < all; {
		to := min(from+lookStep, all)
		turn := g.enter() // what is in use stays what it is
		for i := range s.recs[from:to] {
			if rec := &s.recs[from+uint32(i)]; rec.entries.Load() > 0 {
				seen(rec)
			}
		}
		g.leave(turn)
		from = to
	}
}

// forget has the memory go, when no record is needed any more. What is read late is still readable.
func (s *slab) forget() { s.mem.drop(0, s.size) }

// inUse returns how many records hold a session.
func (s *slab) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken() - len(s.limbo)
}
