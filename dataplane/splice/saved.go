package splice

import "time"

// Saved is a Relay between two requests, in a form that outlives the process: another one goes on with the connection. It has neither pointers nor
// padding. The zero Saved is of no use; see [Relay.Save].
type Saved struct {
	base, ours, client        uint32 // the client's next byte, ours, and what the client's numbers lack
	clientVal, lastVal        uint32
	isn, serverVal, serverWin uint32
	seq, ts, first            uint32 // see Translation
	clientMSS, ourMSS, mss    uint16
	clientWin                 uint16
	clientScale, offer, scale uint8
	options                   uint8
}

const (
	savedScaled = 1 << iota
	savedSACK
	savedTimestamps
)

// Save returns what is to be known of the connection to go on with it elsewhere, and whether it can be: nothing must be under way, and neither side
// be closing.
func (r *Relay) Save() (s Saved, ok bool) {
	if !r.Quiet() || r.Holding() || r.finKnown || r.open {
		return Saved{}, false
	}
	s = Saved{
		base: r.base, ours: r.ours, client: r.client, clientVal: r.clientVal, lastVal: later(r.lastVal, r.serverVal+r.tr.TS),
		isn: r.isn, serverVal: r.serverVal, serverWin: uint32(r.serverWin), seq: r.tr.Seq, ts: r.tr.TS, first: r.tr.First,
		clientMSS: r.start.clientMSS, ourMSS: r.start.ourMSS, mss: uint16(r.mss), clientWin: r.clientWin,
		clientScale: r.start.clientScale, offer: r.start.offer.Scale, scale: r.scale,
	}
	for bit, on := range map[uint8]bool{savedScaled: r.start.scaled, savedSACK: r.start.sack, savedTimestamps: r.start.timestamps} {
		if on {
			s.options |= bit
		}
	}
	return s, true
}

// Numbers returns the client's next number and ours.
func (s *Saved) Numbers() (client, ours uint32) { return s.base, s.ours }

// Relay goes on with the connection. cookies are those of its service now; what the client was promised once stays so. Limits of zero take the
// defaults; others must be ones that [Limits.WithDefaults] accepts.
func (s *Saved) Relay(now time.Time, limits Limits, cookies *Cookies) *Relay {
	limits, err := limits.WithDefaults()
	if err != nil {
		panic(err)
	}
	limits.Budget = relayRoom
	start := Start{
		clientISN: s.base - 1, ourISN: s.ours - 1, clientMSS: s.clientMSS, ourMSS: s.ourMSS, clientScale: min(s.clientScale, 14),
		scaled: s.options&savedScaled != 0, sack: s.options&savedSACK != 0, timestamps: s.options&savedTimestamps != 0,
		val: s.lastVal, offer: cookies.offer, cookies: cookies, ahead: s.lastVal - cookies.clock(now),
	}
	start.offer.Scale = min(s.offer, 14)
	r := &Relay{
		start: start, limits: limits, client: s.client, base: s.base, clientWin: s.clientWin, clientVal: s.clientVal, owned: s.base, promised: s.base,
		acked: s.ours, told: s.ours, toldWin: s.clientWin, first: s.ours, ours: s.ours, lastVal: s.lastVal,
		isn: s.isn, serverVal: s.serverVal, serverWin: int(min(s.serverWin, 0xffff<<14)), scale: min(s.scale, 14),
		sent: s.base, high: s.base, proven: true, firstRTO: relayRTO, rto: relayRTO,
		tr: Translation{Seq: s.seq, TS: s.ts, First: s.first, Timestamps: start.timestamps},
	}
	r.mss = max(int(s.mss), leastMSS-12)
	if start.scaled {
		r.tr.Shift = int8(r.scale) - int8(start.offer.Scale)
	}
	return r
}
