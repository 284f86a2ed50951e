package dataplane

import (
	"runtime"
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
	aged     atomic.Uint32 // 1 once the session was found to have aged, and twice its packedTags
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
