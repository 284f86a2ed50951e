package cluster

import (
	"sync"
	"time"
)

// A rate bounds bytes a second. The zero rate is no bound.
type rate struct {
	most float64 // a second; 0 is no bound

	mu   sync.Mutex
	left float64
	at   time.Time
}

// wait returns for how long nothing may be sent.
func (r *rate) wait(now time.Time) time.Duration {
	if r.most == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = min(r.left+now.Sub(r.at).Seconds()*r.most, r.most/10)
	r.at = now
	if r.left > 0 {
		return 0
	}
	return time.Duration(-r.left/r.most*float64(time.Second)) + time.Millisecond
}

// piece bounds a message, so that none takes more than a tenth of a second of what may be sent: whoever takes turns is heard of often enough.
func (r *rate) piece(most int) int {
	if r.most == 0 {
		return most
	}
	return max(1<<10, min(most, int(r.most/10)))
}

// spend takes note of bytes that were sent.
func (r *rate) spend(n int) {
	r.mu.Lock()
	r.left -= float64(n)
	r.mu.Unlock()
}
