package flowshare

import (
	"time"
)

// A peer is another member and what is to be sent to it.
type peer struct {
	m    Member
	at   int // in the view
	gone bool

	pending []Flow   // changed; what is sent is how they are then
	frames  [][]byte // ready
	busy    bool     // in Layer.busy

	dirty    bool      // it may lack something, or have more
	repairAt time.Time // when to compare, or to give a comparison up
	open     bool      // a comparison is under way
	round    uint64    // its number
	digest   *message  // of the peer's, to be answered
	transfer *transfer
}

// A transfer is items of some groups on their way, part by part, from any part on.
type transfer struct {
	groups int
	bits   []byte
	part   int // the next one
	left   int // parts
}

func (t *transfer) has(group int) bool { return t.bits[group/8]&(1<<(group%8)) != 0 }

func (p *peer) reset() {
	p.pending, p.frames, p.transfer, p.digest, p.dirty, p.open = nil, nil, nil, nil, false, false
}

// enqueue notes that p should be told of a flow.
func (l *Layer) enqueue(p *peer, f *Flow) {
	if len(p.pending) >= l.cfg.MaxPending {
		l.stats.Overflowed += uint64(len(p.pending)) + 1
		p.pending = p.pending[:0]
		l.soil(p, time.Second)
		return
	}
	p.pending = append(p.pending, *f)
	l.work(p)
}

// soil notes that p may lack something, to be compared after a while.
func (l *Layer) soil(p *peer, after time.Duration) {
	at := l.now.Add(after)
	if !p.open && (!p.dirty || at.Before(p.repairAt)) {
		p.repairAt = at
	}
	p.dirty = true
	l.work(p)
}

func (l *Layer) work(p *peer) {
	if !p.busy {
		p.busy = true
		l.busy = append(l.busy, p)
	}
}

// spread tells all who should have an item.
func (l *Layer) spread(f *Flow, it *Item) {
	if it.Flags&Unsent != 0 {
		return
	}
	if l.view.full {
		for _, p := range l.order {
			if p != nil {
				l.enqueue(p, f)
			}
		}
		return
	}
	for _, h := range l.view.place.Holders(SlotOf(*f)) {
		if p := l.order[h]; p != nil {
			l.enqueue(p, f)
		}
	}
}

// Lost says that frames to a member may have been lost: both will compare. A Transport calls
// it when a stream broke and when another one is there.
func (l *Layer) Lost(now time.Time, to Member) {
	l.lock()
	l.at(now)
	if p := l.peers[to.Name]; p != nil && p.m == to {
		l.stats.Lost++
		l.soil(p, 0)
	}
	l.unlock()
	l.rouse()
}

// pump sends what is to be sent to p, as far as there is room. It returns false if it must be
// tried again.
func (l *Layer) pump(p *peer) bool {
	for {
		for len(p.frames) > 0 {
			if !l.send(p, p.frames[0]) {
				return false
			}
			p.frames = p.frames[1:]
		}
		p.frames = nil
		if len(p.pending) == 0 {
			return true
		}
		l.pack(p)
	}
}

// pack makes frames of the pending flows, as they are now.
func (l *Layer) pack(p *peer) {
	for i := range p.pending {
		f := &p.pending[i]
		it, ok := l.store.Load(*f)
		if !ok || it.Flags&Unsent != 0 {
			continue
		}
		l.add(p, f, &it)
	}
	p.pending = p.pending[:0]
	if cap(p.pending) > max(8, 8192/len(l.order)) {
		p.pending = nil // there may be a thousand peers
	}
	l.cut(p)
}

func (l *Layer) add(p *peer, f *Flow, it *Item) {
	l.stats.ItemsSent++
	l.build.add(l, f, it)
	if l.build.size() > l.cfg.MaxFrame-itemMost {
		l.cut(p)
	}
}

// itemMost is the most an item adds to a frame.
const itemMost = 1 + flow6 + 3*10 + 3 + MaxName + 8 + MaxNode + MaxNote

func (l *Layer) cut(p *peer) {
	if l.build.n > 0 {
		p.frames = append(p.frames, l.build.frame(l.clock))
	}
}

// send hands a frame to the transport if the rate allows it.
func (l *Layer) send(p *peer, frame []byte) bool {
	if l.cfg.MaxRate > 0 {
		most := float64(max(l.cfg.MaxRate/10, l.cfg.MaxFrame))
		l.tokens = min(l.tokens+l.now.Sub(l.tokensAt).Seconds()*float64(l.cfg.MaxRate), most)
		l.tokensAt = l.now
		if l.tokens <= 0 {
			l.stats.Throttled++
			return false
		}
	}
	return l.transmit(p, frame, false)
}

func (l *Layer) transmit(p *peer, frame []byte, urgent bool) bool {
	if !l.cfg.Transport.Send(p.m, frame, urgent) {
		l.stats.Busy++
		return false
	}
	l.tokens -= float64(len(frame))
	l.stats.FramesSent++
	l.stats.BytesSent += uint64(len(frame))
	return true
}
