package devtest

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config describes a cable. A nil Config and the zero Config describe a good one: nothing is
// lost and the order is kept.
type Config struct {
	// Queue is how many packets each direction holds; a Write to a full one waits for
	// a Read. Default 1024.
	Queue int

	// Batch is what BatchSize returns. Default 32.
	Batch int

	// Virtio has each packet carry a virtio-net header of ten bytes before it.
	Virtio bool

	// Ethernet says that packets begin with an Ethernet header. It changes nothing here, but tells the
	// user of the device.
	Ethernet bool

	// Ports has each packet carry an interface index in the four bytes at offset-16.
	Ports bool

	// Seed of the cable's faults. Each direction has a sequence of its own.
	Seed uint64

	// Loss, Duplicate and Reorder are the shares of packets, 0 to 1, that are lost, arrive twice, and are
	// held back by Hold so that later ones may overtake them.
	Loss, Duplicate, Reorder float64

	// Delay of every packet. Default none.
	Delay time.Duration

	// Hold is how much longer a reordered packet, or a packet's duplicate, takes. Default 1 ms.
	Hold time.Duration
}

func (cfg *Config) complete() (Config, error) {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("devtest: "+format, args...)) }
	for _, n := range []struct {
		name     string
		value    *int
		fallback int
	}{{"Queue", &c.Queue, 1024}, {"Batch", &c.Batch, 32}} {
		if *n.value < 0 {
			fault("%s %d: must be positive, or 0 for %d", n.name, *n.value, n.fallback)
		}
		if *n.value == 0 {
			*n.value = n.fallback
		}
	}
	for _, p := range []struct {
		name  string
		share float64
	}{{"Loss", c.Loss}, {"Duplicate", c.Duplicate}, {"Reorder", c.Reorder}} {
		if math.IsNaN(p.share) || p.share < 0 || p.share > 1 {
			fault("%s %v: must be 0 to 1", p.name, p.share)
		}
	}
	if c.Delay < 0 {
		fault("Delay %v: must not be negative", c.Delay)
	}
	if c.Hold < 0 {
		fault("Hold %v: must not be negative", c.Hold)
	}
	if c.Hold == 0 {
		c.Hold = time.Millisecond
	}
	return c, errors.Join(errs...)
}

// Stats counts the packets written to one end.
type Stats struct {
	Written, Lost, Duplicated, Reordered uint64 // of those written: Lost and Reordered by the cable, Duplicated ones arrive twice
	Oversized                            uint64 // lost because the reader's buffer was too short
}
