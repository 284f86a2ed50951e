package dataplane

import "time"

// synWatch tells an attack by SYNs: it counts those that were answered, and whose clients have not confirmed the answer in time.
type synWatch struct {
	last      time.Time
	answered  uint64
	confirmed uint64
	recent    [synSeconds]int64 // answered less confirmed, by seconds
	at        int
	halfOpen  int64
	alarm     bool
	alarms    uint64
}

// synSeconds is how long a client may take to answer, with one SYN-ACK lost.
const synSeconds = 4

// step takes a sample, once a second at most. It reports whether the alarm began or ended.
func (s *synWatch) step(now time.Time, answered, confirmed uint64, threshold int) (changed bool) {
	if now.Sub(s.last) < time.Second {
		return false
	}
	s.last = now
	s.at = (s.at + 1) % synSeconds
	s.recent[s.at] = int64(answered-s.answered) - int64(confirmed-s.confirmed)
	s.answered, s.confirmed = answered, confirmed
	s.halfOpen = 0
	for _, n := range s.recent {
		s.halfOpen += n
	}
	s.halfOpen = max(s.halfOpen, 0)
	was := s.alarm
	switch {
	case s.halfOpen >= int64(threshold):
		s.alarm = true
	case s.halfOpen < int64(threshold)/2:
		s.alarm = false
	}
	if s.alarm && !was {
		s.alarms++
	}
	return s.alarm != was
}

// watchSYNs looks at how many handshakes are half-open, and says so when they are too many.
func (p *Plane) watchSYNs(now time.Time) {
	var answered, confirmed uint64
	p.each(func(s *workerStats) {
		answered += s.cookies
		confirmed += s.confirmed
	})
	p.synMu.Lock()
	threshold := p.synAlarm
	changed := p.syns.step(now, answered, confirmed, threshold)
	alarm, n := p.syns.alarm, p.syns.halfOpen
	p.synMu.Unlock()
	switch {
	case changed && alarm:
		p.cfg.Logger.Warn("SYN attack: too many half-open connections", "half-open", n, "threshold", threshold)
	case changed:
		p.cfg.Logger.Info("SYN attack is over", "half-open", n)
	}
}
