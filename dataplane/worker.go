package dataplane

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/wire"
)

// ReadOffset is the offset at which to read packets so that every header which this package
// may put before one finds room.
const ReadOffset = 128

// chunk is how many packets are handled together: enough for look-ups to overlap.
const chunk = 32

// Worker handles packets, one batch at a time. Use [Plane.NewWorker]. A Plane's workers share its
// tables; each has counters and buffers of its own.
type Worker struct {
	p    *Plane
	link Link
	name string // for WorkerStats

	// mu is held during a batch. It orders batches with those who read the counters, and with the
	// reuse of records; nobody else ever holds it for long.
	mu    sync.Mutex
	stats workerStats

	recs []record // the Plane's

	// Of the batch under way:
	snap    *snapshot
	now     time.Time
	tick    uint32
	fresh   bool // a session has been made in this batch, look-ups made before are stale
	out     [][]byte
	arena   arena
	scratch record // of a session that is in no table

	packets [chunk]packet
	keys    [chunk]clienttable.Flow
	refs    [chunk]ref
	found   [chunk]bool
	who     [chunk]uint8 // the packet that keys[i] belongs to

	others others

	asked bool        // the packet has waited for the peers
	sums  sums        // of the segment under way
	kept  keptNumbers // the same, of a connection that is followed

	sight sight // of the packet under way, if somebody watches

	// Of connections with delayed binding:
	talk         *held       // that emit is for
	emit1        splice.Emit // see emitter
	spent, spare []*held     // see newHeld

	dry bool    // nothing is changed but the packet
	tr  *tracer // nil unless somebody asks for an explanation
}

// packet is a packet on its way through a worker.
type packet struct {
	buf     []byte // begins Headroom before the packet
	ip      []byte // from the IP header to the end of buf
	l3      int    // where ip begins in buf
	v       wire.View
	frame   wire.Frame
	mtu     int  // not 0: to be broken into fragments of this size
	partial bool // the transport checksum is left to be completed
	verdict Verdict
	key     clienttable.Flow

	rec    *record // not nil: the packet has been translated for this session
	dir    uint32
	tr     *splice.Translation // not nil: and its numbers
	client uint32              // that much is added to the client's
	export bool                // its flow is to be exported
	inner  bool                // it came in a tunnel, and its frame is from the other end of that

	// For those who watch:
	reason  Reason // of a drop
	known   bool   // session is set
	session ref
	service uint32 // that refused the packet, plus 1; or 0
}

// NewWorker returns a further worker, for packets that look as link says. Workers cannot be
// removed from a Plane.
func (p *Plane) NewWorker(link Link) *Worker { return p.newWorker(link, "") }

func (p *Plane) newWorker(link Link, name string) *Worker {
	w := &Worker{p: p, link: link, name: name, recs: p.slab.recs}
	w.emit1 = func(to splice.Side, s *splice.Segment) { w.say(w.talk, to, s) }
	p.wmu.Lock()
	p.workers = append(p.workers, w)
	p.wmu.Unlock()
	return w
}

// setLink makes w a worker for packets of another device.
func (w *Worker) setLink(l Link) {
	if w.link != l {
		w.mu.Lock()
		w.link = l
		w.mu.Unlock()
	}
}

// Process handles the packets in bufs[i][offset:offset+sizes[i]] and writes what became of each to
// verdicts, which may be nil. It returns the packets to be sent, in order: each begins at
// Headroom of its slice, as Device.Write wants it, and is valid until the next call. Most of
// them are packets of bufs, changed in place. offset must be at least [Headroom], and
// better [ReadOffset]. Process does no I/O and allocates nothing in the long run.
func (w *Worker) Process(now time.Time, bufs [][]byte, sizes []int, offset int, verdicts []Verdict) (out [][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.p.closed.Load() {
		return nil
	}
	w.snap, w.now, w.tick = w.p.snap.Load(), now, w.p.tick(now)
	w.fresh = false
	w.stats.fit(w.snap)
	w.out = w.out[:0]
	w.arena.reset()
	if w.others.some() && w.tick != w.others.tick {
		w.keepOthers()
	}
	w.reuse()
	w.takePending()
	w.takeAsked()
	w.tickHeld()
	for len(bufs) > 0 {
		n := min(len(bufs), chunk)
		w.chunk(bufs[:n], sizes[:n], offset)
		if verdicts != nil {
			for i := range n {
				verdicts[i] = w.packets[i].verdict
			}
			verdicts = verdicts[n:]
		}
		bufs, sizes = bufs[n:], sizes[n:]
	}
	return w.out
}

// chunk handles up to chunk packets: parses all, looks all up, then deals with each in order.
func (w *Worker) chunk(bufs [][]byte, sizes []int, offset int) {
	n := 0
	for i := range bufs {
		pk := &w.packets[i]
		end := offset + sizes[i]
		pk.buf = bufs[i][offset-Headroom : end]
		if r := w.parse(pk); r != NotDropped {
			pk.ip = nil
			w.unread(pk, r)
			continue
		}
		if pk.ip == nil {
			continue
		}
		putFlow(&w.keys[n], pk.ip, &pk.v)
		w.who[n] = uint8(i)
		n++
	}
	if n == 0 {
		return
	}
	if w.dry { // one packet, which keeps no session alive
		w.refs[0], w.found[0] = w.p.sessions().PeekAt(w.now, w.keys[0])
	} else {
		w.p.sessions().LoadBatch(w.now, w.keys[:n], w.refs[:n], w.found[:n])
	}
	// Touch the records, so that these waits for memory overlap, too.
	var sink uint32
	for j := range n {
		if w.found[j] {
			rec := &w.recs[w.refs[j].record()]
			sink += rec.alive[0].Load() + uint32(rec.entries.Load())
		}
	}
	if w.snap.delays {
		// The same for the third line, which only these sessions need.
		for j := range n {
			if w.found[j] {
				if rec := &w.recs[w.refs[j].record()]; rec.flags&isDelayed != 0 {
					sink += rec.seam.stage.Load()
				}
			}
		}
	}
	w.stats.sink = sink
	watched := w.p.watchers.Load() != nil
	for j := range n {
		pk := &w.packets[w.who[j]]
		pk.key = w.keys[j]
		if watched {
			w.see(pk, w.refs[j], w.found[j])
		}
		if w.found[j] && pk.v.Mark&(wire.ICMPError|wire.LaterFrag) == 0 {
			w.hit(pk, w.refs[j])
		} else {
			w.miss(pk)
		}
		if watched {
			w.seen(pk)
		}
	}
	if w.others.n >= chunk {
		w.keepOthers()
	}
}

// parse finds the packet's headers. pk.ip is nil if it is dealt with already.
func (w *Worker) parse(pk *packet) Reason {
	w.stats.in.add(len(pk.buf) - Headroom)
	pk.l3, pk.partial, pk.mtu, pk.rec, pk.tr, pk.client = Headroom, false, 0, nil, nil, 0
	pk.known, pk.service, pk.export, pk.inner = false, 0, false, false
	pk.ip = nil
	if w.link.Ethernet {
		f, s := wire.ParseEthernet(pk.buf[Headroom:])
		if s != wire.OK {
			return BadFrame
		}
		if f.Type != wire.EtherIPv4 && f.Type != wire.EtherIPv6 {
			// The kernel gets every frame as well: ARP and its like are its business.
			pk.verdict = Passed
			w.stats.passed++
			return NotDropped
		}
		pk.frame = f
		pk.l3 += f.L3
	}
	ip := pk.buf[pk.l3:]
	if s := wire.Parse(ip, &pk.v); s != wire.OK {
		return parseReason[s]
	}
	if w.link.Ethernet && (pk.frame.Type == wire.EtherIPv4) != (pk.v.Version == 4) {
		return BadVersion
	}
	v := &pk.v
	if w.link.Virtio {
		o := readOffload(pk.buf[Headroom-virtioLen:])
		pk.partial = v.SumOff != 0 && o.partial(pk.l3-Headroom+int(v.SumOff))
		if v.Proto == wire.ProtoSCTP && v.Mark&wire.Fragment == 0 && o.partial(pk.l3-Headroom+int(v.L4)+8) {
			// A CRC, which a virtio-net header cannot ask for: whoever reads it would put a sum there, and tunnels and fragments have none.
			v.FixSCTP(ip, castagnoli)
			clear(pk.buf[Headroom-virtioLen : Headroom])
		}
	}
	// Link padding ends here.
	pk.buf = pk.buf[:pk.l3+int(v.End)]
	pk.ip = pk.buf[pk.l3:]
	return NotDropped
}

// drop counts a packet that goes nowhere.
func (w *Worker) drop(pk *packet, r Reason) {
	pk.verdict, pk.reason = Dropped, r
	w.stats.drops[r]++
	if w.tr != nil {
		w.tr.drop(r)
	}
}

// pass sends a packet on as it came, but for its DSCP.
func (w *Worker) pass(pk *packet) {
	w.setDSCP(pk, w.markOf(pk, false).DSCP)
	w.passOn(pk)
}

// passOn sends a packet on as it is.
func (w *Worker) passOn(pk *packet) {
	if w.link.Ethernet && !w.route(pk) {
		return
	}
	pk.verdict = Passed
	w.stats.passed++
	w.emitPacket(pk)
}

// forward sends a packet of a session on.
func (w *Worker) forward(pk *packet) {
	if w.link.Ethernet {
		if !w.route(pk) {
			return
		}
	} else if pk.v.TTL(pk.ip) <= 1 {
		// The host behind the device would not let it out any more, and would tell the sender of addresses that it
		// does not know.
		w.expired(pk)
		return
	}
	pk.verdict = Forwarded
	w.emitPacket(pk)
}

// emit queues what begins Headroom into buf.
func (w *Worker) emit(buf []byte) {
	w.stats.out.add(len(buf) - Headroom)
	w.out = append(w.out, buf)
}

// route gives a frame the addresses and the interface of its next hop.
func (w *Worker) route(pk *packet) bool { return w.routeVia(pk, addrOf(pk.v.Dst(pk.ip))) }

// routeVia is route towards another host than the packet's destination.
func (w *Worker) routeVia(pk *packet, to netip.Addr) bool {
	hop, ok := w.p.cfg.NextHop(to)
	if !ok {
		w.drop(pk, NoRoute)
		return false
	}
	return w.routeBy(pk, &hop)
}

// routeBy is route by a hop that is known.
func (w *Worker) routeBy(pk *packet, hop *Hop) bool {
	ttl := pk.v.TTL(pk.ip)
	if ttl <= 1 {
		w.expired(pk)
		return false
	}
	if hop.MTU > 0 && !w.fits(pk, hop.MTU) {
		return false
	}
	pk.v.SetTTL(pk.ip, ttl-1)
	hop.frame(pk.buf)
	return true
}

// frame gives what begins Headroom into buf the addresses and the interface of the hop.
func (h *Hop) frame(buf []byte) {
	f := buf[Headroom:]
	copy(f[0:6], h.Dst[:])
	copy(f[6:12], h.Src[:])
	binary.NativeEndian.PutUint32(buf, h.Port)
}

// fits reports whether a packet, or the segments of a super-packet, are small enough for a way. A
// router drops what is not and says so (RFC 1191, RFC 8200), or breaks it into fragments if it may.
func (w *Worker) fits(pk *packet, mtu int) bool {
	n := len(pk.ip)
	if size := w.segmentSize(pk); size > 0 {
		n = int(pk.v.Payload) + min(size, pk.v.PayloadLen())
	}
	if n <= mtu {
		return true
	}
	if !pk.v.DontFragment(pk.ip) && mtu >= 68 {
		if pk.mtu == 0 || mtu < pk.mtu {
			pk.mtu = mtu
		}
		return true
	}
	w.tellTooBig(pk, mtu)
	w.drop(pk, TooBig)
	return false
}

// segmentSize returns how many bytes of payload each packet of a super-packet has, or 0 if pk is none.
func (w *Worker) segmentSize(pk *packet) int {
	if !w.link.Virtio {
		return 0
	}
	if o := readOffload(pk.buf[Headroom-virtioLen:]); o.gsoType != gsoNone {
		return int(o.gsoSize)
	}
	return 0
}

// emitPacket queues pk, in fragments if that is how it fits its way.
func (w *Worker) emitPacket(pk *packet) {
	if pk.mtu == 0 {
		w.emit(pk.buf)
		return
	}
	size := w.segmentSize(pk)
	// A stream may as well be put together from fragments; datagrams must not become one.
	if pk.v.Mark&wire.Fragment != 0 || pk.v.Segments(size) == 1 || pk.v.Segments(size) > maxSegments && pk.v.Proto != wire.ProtoUDP ||
		pk.v.Proto != wire.ProtoTCP && pk.v.Proto != wire.ProtoUDP {
		if pk.partial {
			wire.Complete(pk.ip, int(pk.v.L4), int(pk.v.SumOff), pk.v.Proto == wire.ProtoUDP)
		}
		w.emitFragments(pk, pk.ip)
		return
	}
	for i := range pk.v.Segments(size) {
		segment := w.arena.take(int(pk.v.Payload) + size)
		w.emitFragments(pk, segment[:pk.v.PutSegment(segment, pk.ip, i, size)])
	}
}

// emitFragments queues an IPv4 packet of pk's in fragments.
func (w *Worker) emitFragments(pk *packet, ip []byte) {
	id := uint32(binary.BigEndian.Uint16(ip[4:]))
	if pk.rec != nil && pk.v.Mark&wire.Fragment == 0 { // its addresses are not those that it has the identification for
		id = w.p.fragments.identify(w.now, pk.key, ip, &pk.v)
	}
	h := int(pk.v.L4)
	n := (pk.mtu - h) &^ 7
	for off := 0; h+off < len(ip); off += n {
		part := w.arena.take(pk.l3 + h + n + 40)
		copy(part, pk.buf[:pk.l3])
		clear(part[Headroom-virtioLen : Headroom])
		w.emit(part[:pk.l3+wire.PutFragment(part[pk.l3:], ip, off, n, id)])
	}
}

// reply returns room for an answer to pk of up to n bytes, whose IP header is to begin at
// the returned slice. [Worker.answer] sends it.
func (w *Worker) reply(pk *packet, n int) []byte {
	return w.arena.take(pk.l3 + n)[pk.l3:]
}

// answer sends the n bytes that have been written into the room that reply gave out last, to
// where pk came from: if that is a tunnel, whoever put it in there is not asked to pass the answer on.
func (w *Worker) answer(pk *packet, n int) {
	buf := w.arena.last[:pk.l3+n]
	copy(buf[:Headroom-virtioLen], pk.buf)
	clear(buf[Headroom-virtioLen : Headroom])
	if w.link.Ethernet {
		from, to := pk.buf[Headroom:], buf[Headroom:]
		copy(to[0:6], from[6:12])
		copy(to[6:12], from[0:6])
		copy(to[12:pk.frame.L3], from[12:])
		if pk.inner {
			hop, ok := w.p.cfg.NextHop(addrOf(pk.v.Dst(buf[pk.l3:])))
			if !ok {
				w.drop(pk, NoRoute)
				return
			}
			hop.frame(buf)
		}
	}
	pk.verdict = Answered
	w.emit(buf)
}

// arena gives out buffers that live for one batch.
type arena struct {
	blocks   [][]byte
	at, used int
	last     []byte
}

const arenaBlock = 1 << 17

func (a *arena) reset() { a.at, a.used = 0, 0 }

// take returns n bytes, at most arenaBlock, with unknown content.
func (a *arena) take(n int) []byte {
	if len(a.blocks) == 0 || a.used+n > arenaBlock {
		if len(a.blocks) > 0 {
			a.at++
		}
		a.used = 0
	}
	for a.at >= len(a.blocks) {
		a.blocks = append(a.blocks, make([]byte, arenaBlock))
	}
	a.last = a.blocks[a.at][a.used : a.used+n : a.used+n]
	a.used += n
	return a.last
}
