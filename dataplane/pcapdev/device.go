package pcapdev

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// Config configures a [Device]. A nil Config takes every default.
type Config struct {
	// Out receives what is written to the device, as a pcap file. Default: nothing is kept.
	Out io.Writer
	// Speed paces Read by the capture's timestamps: 1 as it was, 10 ten times as fast. Default 0: as fast as
	// packets are asked for.
	Speed float64
	// BatchSize is the most packets a Read returns. Default 64; at most 65536. A paced
	// device returns packets one by one as they are due.
	BatchSize int
	// Wait makes Read wait for Close at the end of the capture, as an interface would that falls silent, instead of
	// returning an error that wraps io.EOF.
	Wait bool
}

// Device reads a capture. Use [Open]. One goroutine may call Read and another Write.
type Device struct {
	cfg  Config
	in   source
	link layers.LinkType
	done chan struct{}
	once sync.Once

	first time.Time // of the capture
	start time.Time // of the replay

	mu    sync.Mutex
	out   *pcapgo.Writer
	times []time.Time

	now     atomic.Int64 // of the packet read last, in nanoseconds since 1970
	read    atomic.Uint64
	skipped atomic.Uint64
	wrote   atomic.Uint64
}

type source interface {
	ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	LinkType() layers.LinkType
}

// Open begins to read a capture from r.
func Open(r io.Reader, cfg *Config) (*Device, error) {
	d := &Device{done: make(chan struct{})}
	if cfg != nil {
		d.cfg = *cfg
	}
	if d.cfg.BatchSize == 0 {
		d.cfg.BatchSize = 64
	}
	var faults []error
	if d.cfg.BatchSize < 0 || d.cfg.BatchSize > 1<<16 {
		faults = append(faults, fmt.Errorf("pcapdev: config: BatchSize: %d: want 1 to 65536, or 0 for 64", d.cfg.BatchSize))
	}
	if !(d.cfg.Speed >= 0) {
		faults = append(faults, fmt.Errorf("pcapdev: config: Speed: %v: want a positive factor, or 0 for no pace", d.cfg.Speed))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	br := bufio.NewReaderSize(r, 1<<16)
	magic, err := br.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("pcapdev: not a capture: %w", err)
	}
	if bytes.Equal(magic, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
		d.in, err = ng(&blocks{r: br})
	} else {
		var in *pcapgo.Reader
		if in, err = pcapgo.NewReader(br); err == nil {
			in.SetSnaplen(mostPacket) // the file's own may be damaged, or say less than it holds
			d.in = in
		}
	}
	if err != nil {
		return nil, fmt.Errorf("pcapdev: not a capture: %w", err)
	}
	d.link = d.in.LinkType()
	if _, err := strip(d.link, nil); err != nil {
		return nil, err
	}
	if d.cfg.Out != nil {
		d.out = pcapgo.NewWriterNanos(d.cfg.Out)
		link := layers.LinkTypeRaw
		if d.Ethernet() {
			link = layers.LinkTypeEthernet
		}
		if err := d.out.WriteFileHeader(1<<16, link); err != nil {
			return nil, fmt.Errorf("pcapdev: write: %w", err)
		}
	}
	return d, nil
}

// ng reads pcapng. What its blocks contain may still be damaged in ways that the reader panics at, so that is an error here.
func ng(r io.Reader) (in source, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
	}()
	return pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions)
}

func (d *Device) next() (b []byte, info gopacket.CaptureInfo, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
	}()
	return d.in.ReadPacketData()
}

// strip takes a link header away that is not Ethernet.
func strip(link layers.LinkType, b []byte) ([]byte, error) {
	n := 0
	switch link {
	case layers.LinkTypeEthernet, layers.LinkTypeRaw, layers.LinkTypeIPv4, layers.LinkTypeIPv6, 12, 14:
	case layers.LinkTypeNull, layers.LinkTypeLoop:
		n = 4
	case layers.LinkTypeLinuxSLL:
		n = 16
	default:
		return nil, fmt.Errorf("pcapdev: link type %d (%v): want Ethernet, raw IP, loopback or Linux cooked", uint8(link), link)
	}
	return b[min(n, len(b)):], nil
}

// Ethernet reports whether packets begin with an Ethernet header.
func (d *Device) Ethernet() bool { return d.link == layers.LinkTypeEthernet }

// BatchSize is Config.BatchSize.
func (d *Device) BatchSize() int { return d.cfg.BatchSize }

// Now is the capture's time of the packet read last, so that a replay can use the capture's clock.
func (d *Device) Now() time.Time { return time.Unix(0, d.now.Load()) }

// Times returns the capture's times of the packets that the last Read returned, until the next one. It belongs to
// the goroutine that calls Read.
func (d *Device) Times() []time.Time { return d.times }

// Stats counts a Device's packets.
type Stats struct {
	Read    uint64 // packets returned by Read
	Skipped uint64 // packets too long for the caller's buffer
	Written uint64 // packets taken by Write
}

// Stats returns the counts so far. It may be called from any goroutine.
func (d *Device) Stats() Stats {
	return Stats{Read: d.read.Load(), Skipped: d.skipped.Load(), Written: d.wrote.Load()}
}

// Read fills bufs with the next packets. At the end of the capture it returns an error that wraps io.EOF, and after Close one that
// wraps os.ErrClosed. A capture that ends within a packet gives an error that says so.
func (d *Device) Read(bufs [][]byte, sizes []int, offset int) (n int, err error) {
	d.times = d.times[:0]
	for n < min(len(bufs), d.cfg.BatchSize) {
		select {
		case <-d.done:
			return n, fmt.Errorf("pcapdev: read: %w", os.ErrClosed)
		default:
		}
		b, info, err := d.next()
		if err != nil {
			if n > 0 && errors.Is(err, io.EOF) {
				return n, nil // the next Read says it
			}
			if errors.Is(err, io.EOF) && d.cfg.Wait {
				<-d.done
				return n, fmt.Errorf("pcapdev: read: %w", os.ErrClosed)
			}
			return n, fmt.Errorf("pcapdev: read: packet %d: %w", d.read.Load()+d.skipped.Load()+1, err)
		}
		if b, err = strip(d.link, b); err != nil {
			return n, err
		}
		if len(bufs[n]) < offset+len(b) {
			d.skipped.Add(1)
			continue
		}
		clear(bufs[n][max(0, offset-16):offset])
		sizes[n] = copy(bufs[n][offset:], b)
		d.times = append(d.times, info.Timestamp)
		d.now.Store(info.Timestamp.UnixNano())
		d.read.Add(1)
		n++
		if d.cfg.Speed > 0 {
			return n, d.pace(info.Timestamp)
		}
	}
	return n, nil
}

// pace waits until a packet of that time is due.
func (d *Device) pace(at time.Time) error {
	if d.first.IsZero() {
		d.first, d.start = at, time.Now()
	}
	due := d.start.Add(time.Duration(float64(at.Sub(d.first)) / d.cfg.Speed))
	ctx, cancel := context.WithDeadline(context.Background(), due)
	defer cancel()
	select {
	case <-d.done:
		return fmt.Errorf("pcapdev: read: %w", os.ErrClosed)
	case <-ctx.Done():
		return nil
	}
}

// Write appends packets to Config.Out, with the time of the packet read last. A packet with a virtio-net header in front is not
// expected: the device says that it has none.
func (d *Device) Write(bufs [][]byte, offset int) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, b := range bufs {
		if len(b) <= offset {
			return i, fmt.Errorf("pcapdev: write: packet %d is empty: %w", i, os.ErrInvalid)
		}
		select {
		case <-d.done:
			return i, fmt.Errorf("pcapdev: write: %w", os.ErrClosed)
		default:
		}
		if d.out == nil {
			d.wrote.Add(1)
			continue
		}
		p := b[offset:]
		if err := d.out.WritePacket(gopacket.CaptureInfo{Timestamp: d.Now(), CaptureLength: len(p), Length: len(p)}, p); err != nil {
			return i, fmt.Errorf("pcapdev: write: %w", err)
		}
		d.wrote.Add(1)
	}
	return len(bufs), nil
}

// Close ends Read and Write. It does not close the files.
func (d *Device) Close() error {
	d.once.Do(func() { close(d.done) })
	return nil
}
