package tun

import "time"

// spinner decides how often an empty device is read again before the thread sleeps. Spinning
// that ends in sleep was in vain and halves the budget; a sleep so short that spinning would have
// bridged it doubles it. So a busy device spins and an idle one does not.
type spinner struct {
	most   int
	budget int
}

// worthSpinning is a sleep that spinning would have been cheaper than, about as long as
// 200 empty reads take.
const worthSpinning = 100 * time.Microsecond

// hit says that a packet came after that many empty reads.
func (s *spinner) hit(misses int) {
	if misses > s.budget/2 {
		s.grow()
	}
}

// slept says that spinning did not help, and for how long the thread has slept since.
func (s *spinner) slept(d time.Duration) {
	if d < worthSpinning {
		s.grow()
	} else {
		s.budget /= 2
	}
}

func (s *spinner) grow() { s.budget = min(s.most, 2*s.budget+8) }
