package splice

import (
	"bytes"
	"encoding/binary"
	"time"
)

// host is a plain TCP: go-back-N, in-order delivery, and a fatal complaint about everything a translation could get wrong.
type host struct {
	w            *world
	name         string
	emit         func([]byte)
	passive      bool
	refuse, mute bool
	opt          Options // what it offers
	window       int     // that it grants, in bytes
	paused       bool    // reads nothing: the window closes as it fills
	edge         uint32  // the right one of the window, as far as it was promised
	dead         bool    // has reset the connection, and answers what still comes

	begun, established, closed bool
	reset                      bool
	isn, una, nxt, max         uint32
	out                        []byte
	fin                        bool // to be sent after out
	mss                        int
	peerWindow                 uint32
	peerScale, scale           uint8
	ts, sack                   bool
	tsOffset, tsRecent, tsLast uint32
	rcvNxt                     uint32
	irs                        uint32
	in                         []byte
	ooo                        map[uint32][]byte
	peerFIN                    bool
	peerFINAt                  uint32
	peerFINKnown               bool
	timer                      int
	challenged                 time.Time
	armed                      bool
	onData                     func()
	peerOffered                Options
}

func (h *host) clock() uint32 { return uint32(h.w.now.Sub(epoch).Milliseconds()) + h.tsOffset }

func (h *host) segment(flags uint8, seq uint32, payload []byte) {
	s := Segment{Seq: seq, Flags: flags, Payload: payload}
	if flags&ACK != 0 {
		s.Ack = h.rcvNxt
	}
	if flags&SYN != 0 {
		s.Options = h.opt
		if h.passive {
			s.Options.HasScale = h.opt.HasScale && h.peerOffered.HasScale
			s.Options.SACKPermitted = h.opt.SACKPermitted && h.peerOffered.SACKPermitted
			s.Options.Timestamps = h.opt.Timestamps && h.peerOffered.Timestamps
		}
		s.Window = uint16(min(h.window, 0xffff))
		h.edge = later(h.edge, h.rcvNxt+uint32(s.Window))
	} else {
		s.Options.Timestamps = h.ts
		win := h.window
		if h.paused {
			win = max(0, int(int32(h.edge-h.rcvNxt)))
		}
		s.Window = uint16(min(win>>h.scale, 0xffff))
		h.edge = later(h.edge, h.rcvNxt+uint32(s.Window)<<h.scale)
	}
	if s.Options.Timestamps {
		h.tsLast = h.clock()
		s.Options.TSVal = h.tsLast
		if flags&ACK != 0 {
			s.Options.TSEcr = h.tsRecent
		}
	}
	b := s.Append(nil, 1, 2)
	if h.sack && len(h.ooo) > 0 && flags&SYN == 0 {
		b = h.addSACK(b)
	}
	h.emit(b)
}

// addSACK puts one SACK block behind the options.
func (h *host) addSACK(b []byte) []byte {
	var at uint32
	for k := range h.ooo {
		if at == 0 || before(k, at) {
			at = k
		}
	}
	head := int(b[12]>>4) * 4
	block := []byte{kindNOP, kindNOP, kindSACK, 10}
	block = binary.BigEndian.AppendUint32(block, at)
	block = binary.BigEndian.AppendUint32(block, at+uint32(len(h.ooo[at])))
	out := append(append(bytes.Clone(b[:head]), block...), b[head:]...)
	out[12] = byte((head + len(block)) / 4 << 4)
	return out
}

// ack sends an acknowledgement with the latest number that the peer's window allows.
func (h *host) ack() {
	h.segment(ACK, later(h.una, earlierOf(h.max, h.una+h.peerWindow)), nil)
}

// challenge answers what is refused, seldom if it carries nothing, as else two hosts could go on for ever (RFC 5961, 7).
func (h *host) challenge(s *Segment) {
	if len(s.Payload) > 0 || h.w.now.Sub(h.challenged) >= 300*time.Millisecond {
		h.challenged = h.w.now
		h.ack()
	}
}

func earlierOf(a, b uint32) uint32 {
	if before(a, b) {
		return a
	}
	return b
}

// resume reads again and says so.
func (h *host) resume() {
	if h.paused {
		h.paused = false
		if h.established && !h.reset {
			h.ack()
		}
	}
}

// abort resets the connection.
func (h *host) abort() {
	h.dead, h.reset = true, true
	h.segment(RST|ACK, h.max, nil)
}

// isnNow is often close to the wrap.
func (w *world) isnNow() uint32 {
	n := w.rng.Uint32()
	if n%3 == 0 {
		return -(n % 5000)
	}
	return n
}

func (h *host) connect() {
	h.isn = h.w.isnNow()
	h.una, h.nxt, h.max = h.isn, h.isn+1, h.isn+1
	h.segment(SYN, h.isn, nil)
	h.arm()
}

func (h *host) arm() {
	h.timer++
	id := h.timer
	h.armed = true
	h.w.after(400*time.Millisecond, func() {
		if id != h.timer {
			return
		}
		h.armed = false
		if h.closed || h.reset || h.una == h.nxt && h.established && (len(h.out) == 0 || h.peerWindow != 0) {
			return
		}
		switch {
		case !h.established && h.passive:
			h.segment(SYN|ACK, h.isn, nil)
		case !h.established:
			h.segment(SYN, h.isn, nil)
		case h.peerWindow == 0:
			h.segment(ACK, h.una-1, nil) // a probe
		default:
			h.nxt = h.una
			h.push()
		}
		h.arm()
	})
}

// push sends what the window allows.
func (h *host) push() {
	base := h.isn + 1
	for {
		from := int(h.nxt - base)
		if from > len(h.out) { // the FIN is out
			return
		}
		room := int(int32(h.una + h.peerWindow - h.nxt))
		n := min(h.mss, len(h.out)-from, max(0, room))
		flags := uint8(ACK)
		last := from+n == len(h.out)
		if last && h.fin {
			flags |= FIN
		}
		if n == 0 && flags&FIN == 0 {
			if from < len(h.out) && !h.armed {
				h.arm() // to probe the window
			}
			return
		}
		if h.w.rng.IntN(20) == 0 && n > 1 && h.w.jitter > 0 {
			n, flags = 1, ACK // a short segment
		}
		h.segment(flags, h.nxt, h.out[from:from+n])
		h.nxt += uint32(n)
		if flags&FIN != 0 {
			h.nxt++
		}
		h.max = later(h.max, h.nxt)
		h.arm()
		if flags&FIN != 0 {
			return
		}
	}
}

func (h *host) write(b []byte, fin bool) {
	h.out, h.fin = append(h.out, b...), fin
	if h.established {
		h.push()
	}
}

func (h *host) receive(b []byte) {
	var s Segment
	if !Parse(b, &s) {
		h.w.fail("%s got a malformed segment % x", h.name, b)
	}
	if h.dead && s.Flags&(RST|ACK) == ACK {
		r := Segment{Seq: s.Ack, Flags: RST}
		h.emit(r.Append(nil, 1, 2))
	}
	if h.reset || h.mute {
		return
	}
	if h.passive && s.Flags&(SYN|ACK) == SYN && !h.established {
		if h.refuse {
			h.rcvNxt = s.Seq + 1
			r := Segment{Ack: s.Seq + 1, Flags: RST | ACK}
			h.emit(r.Append(nil, 2, 1))
			return
		}
		if !h.begun {
			h.isn = h.w.isnNow()
			h.una, h.nxt, h.max = h.isn, h.isn+1, h.isn+1
		}
		h.begun, h.irs, h.rcvNxt, h.edge = true, s.Seq, s.Seq+1, s.Seq+1
		h.negotiate(&s)
		h.segment(SYN|ACK, h.isn, nil)
		h.arm()
		return
	}
	if !h.passive && !h.established {
		if s.Flags&(SYN|ACK) == SYN|ACK && s.Ack == h.isn+1 {
			h.begun, h.irs, h.rcvNxt, h.edge, h.una = true, s.Seq, s.Seq+1, s.Seq+1, s.Ack
			h.negotiate(&s)
			h.established = true
			h.segment(ACK, h.nxt, nil)
			h.push()
		} else if s.Flags&RST != 0 && s.Ack == h.isn+1 {
			h.reset = true
		}
		return
	}
	if !h.begun {
		return // before any SYN
	}
	if s.Flags&RST != 0 {
		if s.Seq == h.rcvNxt {
			h.reset = true
		} else if s.Seq-h.rcvNxt < h.edge-h.rcvNxt {
			h.challenge(&s)
		}
		return
	}
	if s.Flags&SYN != 0 {
		h.challenge(&s)
		return
	}
	if h.ts != s.Options.Timestamps {
		h.w.fail("%s: timestamps %v, agreed %v", h.name, s.Options.Timestamps, h.ts)
	}
	if h.ts {
		if before(s.Options.TSVal, h.tsRecent) {
			h.challenge(&s) // PAWS
			return
		}
		if before(h.clock(), s.Options.TSEcr) || h.established && s.Options.TSEcr-h.tsOffset > uint32(10*time.Minute/time.Millisecond) {
			h.w.fail("%s: echo %d of a timestamp never sent (clock %d)", h.name, s.Options.TSEcr, h.clock())
		}
		if !before(h.rcvNxt, s.Seq) {
			h.tsRecent = s.Options.TSVal
		}
	}
	if !h.acceptable(&s) {
		h.challenge(&s)
		return
	}
	if before(h.max, s.Ack) {
		h.w.fail("%s: acknowledges %d beyond %d", h.name, s.Ack-h.isn, h.max-h.isn)
	}
	if h.passive && !h.established && s.Ack == h.isn+1 {
		h.established = true
		h.una = s.Ack
	}
	h.checkSACK(b)
	if before(h.una, s.Ack) {
		h.una = s.Ack
		h.nxt = later(h.nxt, h.una)
		h.arm()
	}
	if !before(s.Ack, h.una) {
		h.peerWindow = uint32(s.Window) << h.peerScale
	}
	if beyond := int32(s.end() - h.edge); beyond > h.slack() && len(s.Payload) > 1 {
		h.w.fail("%s: %d bytes beyond its window of %d", h.name, beyond, h.window)
	} else if beyond > 0 && (beyond != 1 || s.Flags&FIN == 0) {
		s.Payload = s.Payload[:max(0, len(s.Payload)-int(beyond))] // a probe, or by a scale that is coarser
		s.Flags &^= FIN
		if h.paused && len(s.Payload) == 0 {
			h.ack()
			return
		}
	}
	h.take(&s)
	if h.established {
		h.push()
	}
}

// slack is how far its peer may be misled: by a promised scale that is coarser than a host's window, and by the room that the balancer had.
func (h *host) slack() int32 {
	n := int32(1) << max(h.w.lb.cookies.offer.Scale, h.scale, 1)
	if h.passive {
		n += int32(max(h.w.lb.limits.Budget, int(h.w.lb.cookies.offer.Window)))
	}
	return n
}

// acceptable is the first test of a segment (RFC 9293, 3.10.7.4), with the slack.
func (h *host) acceptable(s *Segment) bool {
	win := h.edge - h.rcvNxt
	in := func(seq uint32) bool { return seq-h.rcvNxt < win+uint32(h.slack()) }
	switch n := s.end() - s.Seq; {
	case n == 0 && win == 0:
		return s.Seq == h.rcvNxt
	case n == 0:
		return in(s.Seq)
	case win == 0:
		return s.Seq == h.rcvNxt // its acknowledgement counts
	default:
		return in(s.Seq) || in(s.end()-1)
	}
}

func (h *host) negotiate(s *Segment) {
	o := &s.Options
	h.mss = int(o.MSS)
	if h.mss == 0 {
		h.mss = 536
	}
	h.ts = o.Timestamps && h.opt.Timestamps
	h.sack = o.SACKPermitted && h.opt.SACKPermitted
	h.tsRecent = o.TSVal
	if o.HasScale && h.opt.HasScale {
		h.peerScale, h.scale = o.Scale, h.opt.Scale
	}
	if h.ts {
		h.mss -= 12
	}
	h.peerWindow = uint32(s.Window)
	h.peerOffered = *o
}

func (h *host) checkSACK(b []byte) {
	head := b[20 : int(b[12]>>4)*4]
	for len(head) > 1 && head[0] != kindEnd {
		if head[0] == kindNOP {
			head = head[1:]
			continue
		}
		if head[0] == kindSACK {
			from, to := binary.BigEndian.Uint32(head[2:]), binary.BigEndian.Uint32(head[6:])
			if before(from, h.isn) || before(h.max, to) || !before(from, to) {
				h.w.fail("%s: SACK %d-%d outside of %d-%d", h.name, from-h.isn, to-h.isn, h.una-h.isn, h.max-h.isn)
			}
		}
		head = head[head[1]:]
	}
}

// take delivers what is in order and acknowledges.
func (h *host) take(s *Segment) {
	if s.Flags&FIN != 0 {
		h.peerFINKnown, h.peerFINAt = true, s.Seq+uint32(len(s.Payload))
	}
	if len(s.Payload) > 0 {
		if h.ooo == nil {
			h.ooo = map[uint32][]byte{}
		}
		if old, ok := h.ooo[s.Seq]; !ok || len(old) < len(s.Payload) {
			h.ooo[s.Seq] = s.Payload
		}
	}
	for again := true; again; {
		again = false
		for seq, p := range h.ooo {
			if before(h.rcvNxt, seq) {
				continue
			}
			if skip := int(h.rcvNxt - seq); skip < len(p) {
				h.in = append(h.in, p[skip:]...)
				h.rcvNxt += uint32(len(p) - skip)
				again = true
			}
			delete(h.ooo, seq)
		}
	}
	if h.peerFINKnown && h.rcvNxt == h.peerFINAt && !h.peerFIN {
		h.peerFIN = true
		h.rcvNxt++
	}
	if len(s.Payload) > 0 || s.Flags&FIN != 0 {
		h.ack()
	}
	if h.onData != nil {
		h.onData()
	}
}
