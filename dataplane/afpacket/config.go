package afpacket

import (
	"errors"
	"fmt"
)

// Config configures a [Device].
type Config struct {
	// Interfaces are the names of the interfaces to read from and write to. At least
	// one is required; a name may appear once.
	Interfaces []string
	// BatchSize is the most frames one Read returns and one system call sends.
	// Default 64; at most 1024.
	BatchSize int
	// ReceiveBuffer is the size in bytes of each socket's receive buffer, where frames wait while the reader is busy. It takes memory as
	// they do; a hundred streams have as many super-packets of 64 KiB on their way, which the kernel counts with all that belongs to them. Default 64 MiB. Beyond
	// net.core.rmem_max it needs CAP_NET_ADMIN. Before it there is a ring of frames of up to 2,048 bytes each, of the same size but 8 MiB at most, whose memory is
	// taken at once.
	ReceiveBuffer int
	// NoRing has frames read by system calls, without a ring that is shared with the kernel; so it is, too, where the kernel has no
	// memory for one. It saves memory and costs speed.
	NoRing bool
	// SendBuffer is the size in bytes of each socket's send buffer. Default 8 MiB.
	SendBuffer int
	// Promiscuous makes the interfaces accept frames for any MAC. Frames for another
	// host are still not delivered; it serves interfaces that must be given a MAC which is not theirs.
	Promiscuous bool
	// Spin is how many times an empty Read looks again before it sleeps in the kernel, at most;
	// it saves a wake-up under load. Default 200; negative: none. It adapts: an idle device
	// sleeps at once and costs no CPU.
	Spin int
}

const (
	defaultBatch   = 64
	maxBatch       = 1024
	defaultReceive = 64 << 20
	defaultSend    = 8 << 20
	maxRing        = 8 << 20
	defaultSpin    = 200
	maxQueues      = 256
)

// MostFanoutVIPs is how many VIPs a Device of several queues may have: the program that the kernel runs for each frame compares
// its destination with one after another.
const MostFanoutVIPs = 256

// withDefaults returns a copy with every zero field set, or all faults at once.
func (c *Config) withDefaults() (Config, error) {
	if c == nil {
		return Config{}, errors.New("afpacket: config: Interfaces: empty, want at least one interface name")
	}
	d := *c
	d.Interfaces = append([]string(nil), c.Interfaces...)
	var faults []error
	if len(d.Interfaces) == 0 {
		faults = append(faults, errors.New("afpacket: config: Interfaces: empty, want at least one interface name"))
	}
	seen := map[string]bool{}
	for i, name := range d.Interfaces {
		switch {
		case name == "" || len(name) > 15:
			faults = append(faults, fmt.Errorf("afpacket: config: Interfaces[%d]: %q: want 1 to 15 characters", i, name))
		case seen[name]:
			faults = append(faults, fmt.Errorf("afpacket: config: Interfaces[%d]: %q: named twice", i, name))
		}
		seen[name] = true
	}
	positive := func(field string, v *int, def, most int) {
		switch {
		case *v == 0:
			*v = def
		case *v < 0 || *v > most:
			faults = append(faults, fmt.Errorf("afpacket: config: %s: %d: want 1 to %d, or 0 for %d", field, *v, most, def))
		}
	}
	positive("BatchSize", &d.BatchSize, defaultBatch, maxBatch)
	positive("ReceiveBuffer", &d.ReceiveBuffer, defaultReceive, 1<<30)
	positive("SendBuffer", &d.SendBuffer, defaultSend, 1<<30)
	if d.Spin == 0 {
		d.Spin = defaultSpin
	}
	return d, errors.Join(faults...)
}

// complete returns a copy of the Config of n queues, or all faults at once.
func (c *Config) complete(queues int) (Config, error) {
	d, err := c.withDefaults()
	if queues < 1 || queues > maxQueues {
		err = errors.Join(err, fmt.Errorf("afpacket: %d queues: want 1 to %d", queues, maxQueues))
	}
	return d, err
}

// Stats counts what happened to a Device's frames. All counts only grow.
type Stats struct {
	Received   uint64 // frames delivered by Read
	Sent       uint64 // frames taken by the kernel
	OtherHost  uint64 // frames for another MAC, not delivered
	Truncated  uint64 // frames longer than the caller's buffer, dropped
	KernelDrop uint64 // frames the kernel dropped because the receive buffer was full
	SendFailed uint64 // frames the kernel refused, for whatever reason
	QueueFull  uint64 // of these, frames refused because a queue was full (ENOBUFS)
	Refused    uint64 // of these, frames refused as malformed (EINVAL), such as odd segment sizes
	Down       uint64 // of these, frames refused because the interface was down or gone
	Split      uint64 // super-packets the kernel refused (EINVAL), sent as single packets
	Sleeps     uint64 // how often Read found nothing for long enough to sleep
	Answered   uint64 // ARP and Neighbor Discovery requests for a VIP answered
}
