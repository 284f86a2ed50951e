package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/dataplane/pcapng"
)

// CaptureConfig says what a [Capture] keeps, and how much of it. A nil CaptureConfig keeps all packets, within the defaults.
type CaptureConfig struct {
	Filter
	// SnapLen is how many octets of a packet are kept. Default 262,144: all of any packet.
	SnapLen int
	// MaxPackets and MaxOctets end the capture: packets written, and octets of the file. Default 10,000
	// packets and 64 MiB.
	MaxPackets int
	MaxOctets  int64
	// Queue is how many packets may wait to be written. What finds no room is forwarded all the same, and counted
	// as lost. Default 1,024.
	Queue int
}

// Capture writes packets as they came to a Plane, with what became of each as its comment, in the pcapng format. Use
// [Plane.Capture]. Its methods are safe for concurrent use.
type Capture struct {
	p     *Plane
	cfg   CaptureConfig
	file  *pcapng.Writer
	ether bool
	queue chan queued
	seen  atomic.Int64 // put into the queue
	lost  atomic.Uint64
}

type queued struct {
	at   time.Time
	size int
	data []byte
	e    Explanation
}

// CaptureStats counts what a Capture did.
type CaptureStats struct {
	Packets uint64 // written
	Octets  int64  // of the file
	Lost    uint64 // found no room in the queue
}

// Capture begins to capture packets, and writes the head of the file to w. The packets wait in a queue until
// [Capture.Run] writes them, which must be called. The link type is Ethernet if the Plane's first link has
// frames, else the packets begin with their IP header; packets of links of the other kind are not captured.
func (p *Plane) Capture(w io.Writer, cfg *CaptureConfig) (*Capture, error) {
	c := &Capture{p: p, ether: p.cfg.Link.Ethernet}
	if len(p.cfg.Devices) > 0 {
		c.ether = linkOf(p.cfg.Devices[0]).Ethernet
	}
	if cfg != nil {
		c.cfg = *cfg
		c.cfg.Filter = cfg.clone()
	}
	errs := c.cfg.validate("CaptureConfig")
	for _, n := range []struct {
		name     string
		value    *int
		fallback int
	}{{"SnapLen", &c.cfg.SnapLen, 1 << 18}, {"MaxPackets", &c.cfg.MaxPackets, 10_000}, {"Queue", &c.cfg.Queue, 1 << 10}} {
		if *n.value == 0 {
			*n.value = n.fallback
		}
		if *n.value < 0 || *n.value > 1<<30 {
			errs = append(errs, invalid("CaptureConfig."+n.name, *n.value, fmt.Sprintf("1 to %d, or 0 for %d", 1<<30, n.fallback)))
		}
	}
	if c.cfg.MaxOctets == 0 {
		c.cfg.MaxOctets = 64 << 20
	}
	if c.cfg.MaxOctets < 0 {
		errs = append(errs, invalid("CaptureConfig.MaxOctets", c.cfg.MaxOctets, "a positive number, or 0 for 64 MiB"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	conf := pcapng.Config{LinkType: pcapng.Raw, SnapLen: c.cfg.SnapLen, MaxBytes: c.cfg.MaxOctets}
	if c.ether {
		conf.LinkType = pcapng.Ethernet
	}
	var err error
	if c.file, err = pcapng.NewWriter(w, &conf); err != nil {
		return nil, err
	}
	c.queue = make(chan queued, c.cfg.Queue)
	p.watch(func(on *watchers) { on.captures = append(on.captures, c) })
	return c, nil
}

// Stop ends the capture. Packets in the queue are written by Run, which returns then.
func (c *Capture) Stop() {
	c.p.watch(func(on *watchers) {
		on.captures = slices.DeleteFunc(on.captures, func(o *Capture) bool { return o == c })
	})
}

// Run writes the packets until ctx is done, [Capture.Stop] is called or a bound of the CaptureConfig is reached, and
// returns nil then. It must be called once.
func (c *Capture) Run(ctx context.Context) error {
	defer c.Stop()
	tick := time.NewTicker(time.Second / 10)
	defer tick.Stop()
	for ctx.Err() == nil && c.active() {
		select {
		case <-ctx.Done():
		case <-tick.C:
		case k := <-c.queue:
			if done, err := c.write(&k); done || err != nil {
				return err
			}
		}
	}
	c.Stop()
	c.p.quiesce() // whoever has begun to put a packet into the queue
	for {
		select {
		case k := <-c.queue:
			if done, err := c.write(&k); done || err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (c *Capture) active() bool {
	on := c.p.watchers.Load()
	return on != nil && slices.Contains(on.captures, c)
}

// write writes a packet, and reports whether it was the last one.
func (c *Capture) write(k *queued) (done bool, err error) {
	err = c.file.WriteCut(k.at, 0, k.data, k.size, k.e.decision())
	if errors.Is(err, pcapng.ErrFull) {
		return true, nil
	}
	return err == nil && c.file.Stats().Packets >= uint64(c.cfg.MaxPackets), err
}

// add puts a packet into the queue.
func (c *Capture) add(w *Worker, s *sight, e *Explanation) {
	if w.link.Ethernet != c.ether {
		return
	}
	if c.seen.Add(1) > int64(c.cfg.MaxPackets) {
		return
	}
	k := queued{at: w.now, size: s.size, data: slices.Clone(s.raw[:min(len(s.raw), c.cfg.SnapLen)]), e: *e}
	select {
	case c.queue <- k:
	default:
		c.seen.Add(-1)
		c.lost.Add(1)
	}
}

// Stats returns the counts so far.
func (c *Capture) Stats() CaptureStats {
	s := c.file.Stats()
	return CaptureStats{Packets: s.Packets, Octets: s.Bytes, Lost: c.lost.Load()}
}

// decision is what became of a packet, in one line, and how, if that is known.
func (e *Explanation) decision() string {
	var b strings.Builder
	b.WriteString(e.Verdict.String())
	if e.Verdict == Dropped {
		fmt.Fprintf(&b, ": %v", e.Reason)
	}
	if e.Service != "" {
		fmt.Fprintf(&b, "; service %q", e.Service)
	}
	if e.Node != "" {
		from := "to"
		if e.Backwards {
			from = "from"
		}
		fmt.Fprintf(&b, ", %s node %q", from, e.Node)
	}
	if e.Verdict == Forwarded {
		fmt.Fprintf(&b, "; as %v", e.Out)
	}
	return b.String()
}
