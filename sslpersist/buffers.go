package sslpersist

import "sync"

const (
	helloRoom   = 2048     // made at once for a hello in pieces: a usual one fits
	keptBuffers = 64       // that lie idle in a pool
	keptRoom    = 16 << 10 // of a buffer that is kept
)

// buffers lends memory for hellos that come in pieces. What is given back is kept for the
// next, up to 64 buffers of 16 KiB; what never comes back is the collector's. The zero
// buffers is ready, and safe for concurrent use.
type buffers struct {
	mu   sync.Mutex
	idle [][]byte
}

// get returns an empty buffer with some room, which may be grown.
func (p *buffers) get() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		b := p.idle[last]
		p.idle[last] = nil
		p.idle = p.idle[:last]
		return b
	}
	return make([]byte, 0, helloRoom)
}

// put takes back what get returned, grown or not. Nothing may look at it any more.
func (p *buffers) put(b []byte) {
	if cap(b) > keptRoom {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) < keptBuffers {
		p.idle = append(p.idle, b[:0])
	}
}
