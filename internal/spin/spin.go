// Package spin decides how often an empty device is looked at again before its reader sleeps.
package spin

import "time"

// Spinner adapts to the traffic. Spinning that ends in sleep was in vain and halves the budget; a sleep so short that
// spinning would have bridged it doubles it. So a busy device spins and an idle one does not, and costs no
// CPU time. The zero Spinner never spins; use [New]. It belongs to one goroutine.
type Spinner struct {
	most   int
	budget int
}

// New returns a Spinner that allows at most that many looks in vain, and at first none.
func New(most int) Spinner { return Spinner{most: max(most, 0)} }

// worth is a sleep that spinning would have been cheaper than, about as long as 200 empty reads take.
const worth = 100 * time.Microsecond

// Again reports whether to look once more after that many looks in vain.
func (s *Spinner) Again(misses int) bool { return misses <= s.budget }

// Hit says that a packet came after that many looks in vain.
func (s *Spinner) Hit(misses int) {
	if misses > s.budget/2 {
		s.grow()
	}
}

// Slept says that spinning did not help, and for how long the reader has slept since.
func (s *Spinner) Slept(d time.Duration) {
	if d < worth {
		s.grow()
	} else {
		s.budget /= 2
	}
}

func (s *Spinner) grow() { s.budget = min(s.most, 2*s.budget+8) }
