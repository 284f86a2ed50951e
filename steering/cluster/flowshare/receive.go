package flowshare

import (
	"time"
)

// Receive takes a frame that a member sent. The error wraps [ErrFrame] if the frame is none, and
// the sender should not be listened to further; frames of those who are no members are
// passed over. The Layer keeps nothing of frame.
func (l *Layer) Receive(now time.Time, from Member, frame []byte) error {
	m, err := parseFrame(frame)
	l.lock()
	defer l.rouse()
	defer l.unlock()
	l.at(now)
	l.stats.FramesReceived++
	l.stats.BytesReceived += uint64(len(frame))
	if err != nil {
		l.stats.Malformed++
		return err
	}
	p := l.peers[from.Name]
	if p == nil || p.m != from {
		l.stats.Strangers++
		return nil
	}
	l.clock = max(l.clock, m.clock)
	l.drain()
	switch m.kind {
	case kindItems:
		l.apply(p, m)
	case kindDigest:
		l.onDigest(p, m)
	case kindDiff:
		l.onDiff(p, m)
	case kindAsk:
		l.stats.Answered++
		v, ok := l.known(m.flow, true)
		l.transmit(p, answerFrame(l.clock, m.number, v, ok), true)
	case kindAnswer:
		l.onAnswer(p, m)
	}
	return nil
}

// apply merges the items of a frame.
func (l *Layer) apply(p *peer, m *message) {
	for i := range m.items {
		w := &m.items[i]
		l.stats.ItemsReceived++
		l.clock = max(l.clock, w.version)
		l.merge(p, w, m.origins[w.origin], m)
	}
}

// beats says whether a foreign item is newer than what is here.
func (l *Layer) beats(w *wireItem, origin Member, old *Item) bool {
	if w.version != old.Version {
		return w.version > old.Version
	}
	if mine := l.origins.things[old.Origin]; mine != origin {
		return mine.before(origin)
	}
	return w.value < 0 && old.Flags&Tombstone == 0
}

func (l *Layer) merge(p *peer, w *wireItem, origin Member, m *message) {
	old, had := l.store.Load(w.flow)
	if had && !l.beats(w, origin, &old) {
		if old.Version > w.version && old.Flags&Unsent == 0 {
			l.enqueue(p, &w.flow) // it should know better
		}
		return
	}
	claimed := had && old.Flags&(Claimed|Tombstone) == Claimed
	dead := origin != l.cfg.Self && l.view.find(origin) < 0
	switch {
	case claimed && (w.value < 0 || dead || origin == l.cfg.Self):
		// This balancer forwards the flow: nobody else can take it back.
		old.Version = w.version
		l.adopt(w.flow, old)
		l.enqueue(p, &w.flow)
		return
	case !had && l.store.Len() >= l.cfg.MaxFlows:
		l.stats.Refused++
		return
	case origin == l.cfg.Self && w.value >= 0:
		// Only this balancer says what it announces.
		l.stats.Refuted++
		l.bury(w.flow, l.tick(w.version))
		l.enqueue(p, &w.flow)
		return
	}
	it := Item{Version: w.version, Flags: Tombstone}
	if w.value >= 0 {
		it.Flags = 0
		it.Value = l.value(m.values[w.value])
	}
	if claimed {
		it.Flags |= Claimed
		if mine := l.values.things[old.Value]; mine != m.values[w.value] {
			l.conflict(w.flow, mine, m.values[w.value])
		}
	}
	it.Origin = l.origin(origin)
	if !had && !l.mine(&w.flow, &it) {
		l.stats.Astray++
		l.origins.drop(it.Origin)
		if w.value >= 0 {
			l.values.drop(it.Value)
		}
		return
	}
	var forward *peer
	if had && old.Origin != l.self && l.origins.things[old.Origin] != origin {
		if at := l.about[old.Origin].at; at >= 0 {
			forward = l.order[at]
		}
	}
	l.put(w.flow, it)
	if forward != nil && forward != p && !l.view.full {
		l.enqueue(forward, &w.flow) // the origin until now
	}
}
