package dataplane

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// ref is the value of a session entry: the session's record and the direction its key
// has, and the node, so that all of a node's entries can be invalidated at once. With its
// key and what the table adds it fills one cache line.
type ref struct {
	at   uint32 // record<<1 | direction
	node uint32
}

// Directions of a session.
const (
	toNode   = uint32(clienttable.FromClient)
	toClient = uint32(clienttable.FromServer)
)

func (r ref) record() uint32 { return r.at >> 1 }
func (r ref) dir() uint32    { return r.at & 1 }

// record is what both directions of a session share: three cache lines next to each other. A packet
// changes the first one, looks up in the second one what it becomes, and leaves the third one alone.
//
//	client > vip   becomes   client, or local if set > node
//	node > client or local   becomes   vip > client
type record struct {
	word [2]atomic.Uint64 // packets and octets, see meter.go
	// alive is when the entry of a direction was last used or kept alive, in ticks of the Plane's
	// clock, and never later than it was.
	alive   [2]atomic.Uint32
	lock    spinLock // guards tcp and spilt
	flags   uint16
	way     uint16 // in the Plane's list of ways
	tcp     clienttable.TCPState
	nodeNo  uint32 // in the Plane's list of nodes
	service uint32 // in the Plane's list of services

	// Second line.
	entries           atomic.Int32 // how many of the two are still in the table
	node, vip, client wire.End
	shiftHigh         uint16        // see shift
	accel             atomic.Uint32 // how many of the two directions an accelerator has

	// Third line.
	local    wire.End // if hasLocal
	shiftLow uint16
	aged     atomic.Uint32 // 1 once the session was found to have aged
	begun    uint32        // in ticks of the Plane's clock
	spilt    [2]spill
	seam     seam // if isDelayed
}

// shift is what the client's sequence numbers lack to those the node knows: of a connection with delayed binding that has been with another
// node, and was spliced since. Its halves lie where there is room.
func (r *record) shift() uint32 { return uint32(r.shiftHigh)<<16 | uint32(r.shiftLow) }

func (r *record) setShift(n uint32) { r.shiftHigh, r.shiftLow = uint16(n>>16), uint16(n) }

// Flags of a record.
const (
	isTCP = 1 << iota
	isSCTP
	hasLocal  // the source is translated, too
	oneWay    // the node answers past the balancer: there is one entry, and nothing is translated
	isDelayed // it is two connections
	isInline  // both directions go to the node as they are, which is not their destination
	isExported
)

// asIs are the flags of sessions whose packets are not translated.
const asIs = oneWay | isInline

// ends returns what the packets of a direction get; nil stays.
func (r *record) ends(dir uint32) (src, dst *wire.End) {
	if dir == toNode {
		dst = &r.node
		if r.flags&hasLocal != 0 {
			src = &r.local
		}
		return src, dst
	}
	src = &r.vip
	if r.flags&hasLocal != 0 {
		dst = &r.client
	}
	return src, dst
}

// other returns the key of the other direction's entry.
func (r *record) other(proto uint8, dir uint32) clienttable.Flow {
	if dir == toClient {
		return clienttable.MakeFlow6(proto, r.client.Addr, r.vip.Addr, r.client.Port, r.vip.Port)
	}
	if r.flags&isInline != 0 {
		return clienttable.MakeFlow6(proto, r.vip.Addr, r.client.Addr, r.vip.Port, r.client.Port)
	}
	to := &r.client
	if r.flags&hasLocal != 0 {
		to = &r.local
	}
	return clienttable.MakeFlow6(proto, r.node.Addr, to.Addr, r.node.Port, to.Port)
}

// spinLock guards a few instructions. The zero spinLock is open.
type spinLock struct{ v atomic.Uint32 }

func (l *spinLock) acquire() {
	for i := 1; !l.v.CompareAndSwap(0, 1); i++ {
		if i%64 == 0 {
			runtime.Gosched()
		}
	}
}

func (l *spinLock) release() { l.v.Store(0) }

// slab is the store of records. A record that a worker may still be reading, because it
// looked its entry up before that left the table, is not given out again: records given
// back wait in limbo until every batch that was under way has ended.
type slab struct {
	recs []record

	mu    sync.Mutex
	free  []uint32
	fresh uint32 // never used from here on
	limbo []uint32

	// Records below ready have been given memory ahead of their use; low tells that few of these are left. 0 if
	// nobody sees to it.
	ready uint32
	asked bool
	low   chan struct{}

	crowded chan struct{} // tells that many records are in limbo
	forget  func()        // gives the memory back, when no record is needed any more
}

func newSlab(n int) *slab {
	s := &slab{crowded: make(chan struct{}, 1), low: make(chan struct{}, 1)}
	s.recs, s.forget = allocRecords(n, s)
	return s
}

// alloc returns a record whose fields the caller sets, all of them.
func (s *slab) alloc() (at uint32, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		at, s.free = s.free[n-1], s.free[:n-1]
		return at, true
	}
	if int(s.fresh) == len(s.recs) {
		return 0, false
	}
	s.fresh++
	if s.ready != 0 && !s.asked && s.fresh+readyRecords/2 > s.ready {
		s.asked = true
		s.low <- struct{}{} // nobody else sends, and once for each prepare
	}
	return s.fresh - 1, true
}

// readyRecords is how many fresh records are given memory ahead: two huge pages of them.
const readyRecords = 4 << 20 / 192

// prepare has the system provide the memory of the records that will be used next: clearing a huge page takes longer
// than a session, and no packet should wait for it.
func (s *slab) prepare() {
	s.mu.Lock()
	from := max(s.ready, s.fresh)
	to := uint32(min(uint64(from)+readyRecords, uint64(len(s.recs))))
	s.ready, s.asked = to, to == uint32(len(s.recs))
	s.mu.Unlock()
	if from < to {
		populate(s.recs[from:to])
	}
}

// giveBack puts a record into limbo.
func (s *slab) giveBack(at uint32) {
	s.mu.Lock()
	s.limbo = append(s.limbo, at)
	crowd := len(s.limbo) > len(s.recs)/32
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

// inUse returns how many records hold a session.
func (s *slab) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.fresh) - len(s.free) - len(s.limbo)
}
