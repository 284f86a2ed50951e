package afpacket

// spinner decides how often an empty device is looked at again before its reader sleeps. Spins that find
// something are worth a wake-up each; when they find nothing, fewer are made next time, down to a few,
// so that an idle device costs no CPU and a busy one never sleeps.
type spinner struct {
	most  int
	now   int // allowed at present
	left  int
	spins int // made since the last frame
}

// found is told that a look was not in vain.
func (s *spinner) found() {
	if s.spins > 0 { // a spin paid: allow more
		s.now = min(s.most, s.now*2+1)
	}
	s.left, s.spins = s.now, 0
}

// again reports whether to look again at once.
func (s *spinner) again() bool {
	if s.left > 0 {
		s.left--
		s.spins++
		return true
	}
	// All in vain: allow fewer, but always enough to notice that traffic is back.
	if s.spins > 0 {
		s.now = max(s.now/2, min(s.most, 4))
	}
	s.left, s.spins = s.now, 0
	return false
}
