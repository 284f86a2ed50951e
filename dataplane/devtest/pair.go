package devtest

import (
	"fmt"
	"os"
)

// Device is one end of a cable. Its methods are safe for concurrent use.
type Device struct {
	cfg     *Config
	in, out *direction
}

// Pair returns the two ends of a cable. The error lists every fault of cfg.
func Pair(cfg *Config) (a, b *Device, err error) {
	c, err := cfg.complete()
	if err != nil {
		return nil, nil, err
	}
	there, back := newDirection(&c, 1), newDirection(&c, 2)
	return &Device{cfg: &c, in: back, out: there}, &Device{cfg: &c, in: there, out: back}, nil
}

const (
	headroom  = 16 // where an interface index begins, before the packet
	virtioLen = 10
)

// front is how many bytes before a packet travel with it.
func (d *Device) front() int {
	switch {
	case d.cfg.Ports:
		return headroom
	case d.cfg.Virtio:
		return virtioLen
	}
	return 0
}

// Read waits for a packet from the other end and returns as many as have arrived, at most
// len(bufs). Packet i is bufs[i][offset:offset+sizes[i]]. After Close of either end the error wraps
// os.ErrClosed.
func (d *Device) Read(bufs [][]byte, sizes []int, offset int) (n int, err error) {
	front := d.front()
	if offset < front {
		return 0, fmt.Errorf("devtest: read: offset %d: must be at least %d", offset, front)
	}
	if len(bufs) == 0 {
		return 0, nil
	}
	n, err = d.in.take(bufs, sizes, offset, front)
	if err != nil {
		err = fmt.Errorf("devtest: read: %w", err)
	}
	return n, err
}

// Write sends bufs[i][offset:] to the other end, where a reader gets a copy. It waits while the
// cable is full. After Close of either end the error wraps os.ErrClosed.
func (d *Device) Write(bufs [][]byte, offset int) (n int, err error) {
	front := d.front()
	if offset < front {
		return 0, fmt.Errorf("devtest: write: offset %d: must be at least %d", offset, front)
	}
	for n < len(bufs) {
		if len(bufs[n]) <= offset {
			return n, fmt.Errorf("devtest: write: packet %d is empty: %w", n, os.ErrInvalid)
		}
		if err := d.out.put(bufs[n], offset-front); err != nil {
			return n, fmt.Errorf("devtest: write: %w", err)
		}
		n++
	}
	return n, nil
}

// BatchSize returns the Batch configured.
func (d *Device) BatchSize() int { return d.cfg.Batch }

// VirtioHeader returns 10 if packets carry a virtio-net header, else 0.
func (d *Device) VirtioHeader() int {
	if d.cfg.Virtio {
		return virtioLen
	}
	return 0
}

// Ethernet reports whether packets begin with an Ethernet header.
func (d *Device) Ethernet() bool { return d.cfg.Ethernet }

// Ports reports whether packets carry an interface index.
func (d *Device) Ports() bool { return d.cfg.Ports }

// Stats counts what was written to this end, and what became of it.
func (d *Device) Stats() Stats {
	d.out.mu.Lock()
	defer d.out.mu.Unlock()
	return d.out.stats
}

// Close ends both directions; what is in flight is lost. Closing again does nothing.
func (d *Device) Close() error {
	d.in.close()
	d.out.close()
	return nil
}
