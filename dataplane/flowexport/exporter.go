package flowexport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Version is an export protocol. Its zero value is IPFIX.
type Version uint8

const (
	IPFIX    Version = iota // RFC 7011
	NetFlow9                // RFC 3954
)

var versions = [...]string{IPFIX: "ipfix", NetFlow9: "netflow9"}

func (v Version) String() string {
	if int(v) < len(versions) {
		return versions[v]
	}
	return fmt.Sprintf("Version(%d)", uint8(v))
}

// AppendText appends "ipfix" or "netflow9".
func (v Version) AppendText(b []byte) ([]byte, error) {
	if int(v) >= len(versions) {
		return b, fmt.Errorf("flowexport: version %d: want ipfix or netflow9", uint8(v))
	}
	return append(b, versions[v]...), nil
}

// MarshalText is AppendText of nothing.
func (v Version) MarshalText() ([]byte, error) { return v.AppendText(nil) }

// UnmarshalText accepts what AppendText writes.
func (v *Version) UnmarshalText(text []byte) error {
	for i, s := range versions {
		if s == string(text) {
			*v = Version(i)
			return nil
		}
	}
	return fmt.Errorf("flowexport: version %q: want ipfix or netflow9", text)
}

// Config configures an [Exporter].
type Config struct {
	// Collector gets one message per Write: a connected UDP socket, usually. Required.
	Collector io.Writer
	// Version of the protocol. Default IPFIX.
	Version Version
	// Domain is the observation domain (IPFIX) or source ID (NetFlow): it tells exporters behind one
	// address apart.
	Domain uint32
	// MaxMessage is the longest message in bytes. Default 1400; 512 to 65507.
	MaxMessage int
	// TemplateInterval is how often the templates are sent again. Default 1 minute.
	TemplateInterval time.Duration
	// EnterpriseNumber is your private enterprise number (IANA); with it, IPFIX records carry the
	// node's name as your element 1. Default 0: they do not.
	EnterpriseNumber uint32
}

// Stats counts what an Exporter did.
type Stats struct {
	Records  uint64 // put into messages
	Messages uint64 // sent
	Failed   uint64 // messages the collector's Write refused; their records are lost
	Invalid  uint64 // records refused: addresses of two families, or none
}

// Exporter sends flow records. Use [New].
type Exporter struct {
	cfg  Config
	boot time.Time

	mu        sync.Mutex
	templates [2]template // IPv4, IPv6
	buf       []byte
	set       int // where the open data set begins in buf, 0: none
	setID     uint16
	records   uint32 // data records in buf, and for NetFlow templates too
	sequence  uint32
	sent      time.Time // when the templates were sent last
	stats     Stats
}

// New returns an Exporter, or all faults of cfg at once.
func New(cfg *Config) (*Exporter, error) {
	if cfg == nil || cfg.Collector == nil {
		return nil, errors.New("flowexport: config: Collector: nil, want a connection to a collector")
	}
	c := *cfg
	var faults []error
	if int(c.Version) >= len(versions) {
		faults = append(faults, fmt.Errorf("flowexport: config: Version: %d: want ipfix or netflow9", uint8(c.Version)))
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = 1400
	}
	if c.MaxMessage < 512 || c.MaxMessage > 65507 {
		faults = append(faults, fmt.Errorf("flowexport: config: MaxMessage: %d: want 512 to 65507 bytes, or 0 for 1400", c.MaxMessage))
	}
	if c.TemplateInterval == 0 {
		c.TemplateInterval = time.Minute
	}
	if c.TemplateInterval < 0 {
		faults = append(faults, fmt.Errorf("flowexport: config: TemplateInterval: %v: want a positive duration, or 0 for 1m", c.TemplateInterval))
	}
	if c.EnterpriseNumber != 0 && c.Version != IPFIX {
		faults = append(faults, fmt.Errorf("flowexport: config: EnterpriseNumber: %d: only IPFIX has enterprise elements", c.EnterpriseNumber))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	x := &Exporter{cfg: c, boot: time.Now()}
	for i, v4 := range []bool{true, false} {
		x.templates[i] = template{id: uint16(256 + i), elements: elements(c.Version, v4, c.EnterpriseNumber != 0, longestName(c.MaxMessage))}
	}
	return x, nil
}

// longestName is how long names may be so that a record of the longest template, 170 bytes without its two names, fits a message.
func longestName(message int) int { return min(255, (message-200)/2-3) }

// headerLen is the length of a message's header.
func (x *Exporter) headerLen() int {
	if x.cfg.Version == IPFIX {
		return 16
	}
	return 20
}

// Add puts a record into the next message, and sends that when it is full.
func (x *Exporter) Add(f *Flow) error { return x.AddAt(time.Now(), f) }

// AddAt is Add at a given time.
func (x *Exporter) AddAt(now time.Time, f *Flow) error {
	src, dst := f.Src.Addr().Unmap(), f.Dst.Addr().Unmap()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() {
		x.stats.Invalid++
		return fmt.Errorf("flowexport: flow %v > %v: want two addresses of one family", f.Src, f.Dst)
	}
	t := &x.templates[1]
	if src.Is4() {
		t = &x.templates[0]
	}
	var err error
	for range 2 {
		if len(x.buf) == 0 {
			x.begin(now)
		}
		mark, set, id := len(x.buf), x.set, x.setID
		if x.set == 0 || x.setID != t.id {
			x.endSet()
			x.set, x.setID = len(x.buf), t.id
			x.buf = binary.BigEndian.AppendUint16(x.buf, t.id)
			x.buf = append(x.buf, 0, 0)
		}
		x.buf = t.appendRecord(x.buf, f, x.boot)
		if len(x.buf)+3 <= x.cfg.MaxMessage { // 3: padding of the set
			x.records++
			x.stats.Records++
			return err
		}
		x.buf, x.set, x.setID = x.buf[:mark], set, id
		err = x.flush(now)
	}
	return errors.Join(err, fmt.Errorf("flowexport: a record does not fit MaxMessage %d", x.cfg.MaxMessage))
}

// begin starts a message, with the templates where they are due.
func (x *Exporter) begin(now time.Time) {
	x.buf = append(x.buf[:0], make([]byte, x.headerLen())...)
	x.set, x.records = 0, 0
	if !x.sent.IsZero() && now.Sub(x.sent) < x.cfg.TemplateInterval {
		return
	}
	x.sent = now
	id := uint16(2)
	if x.cfg.Version == NetFlow9 {
		id = 0
	}
	at := len(x.buf)
	x.buf = binary.BigEndian.AppendUint16(x.buf, id)
	x.buf = append(x.buf, 0, 0)
	for i := range x.templates {
		x.buf = x.templates[i].appendTo(x.buf, x.cfg.EnterpriseNumber)
		if x.cfg.Version == NetFlow9 {
			x.records++ // RFC 3954, 5.1: templates count
		}
	}
	binary.BigEndian.PutUint16(x.buf[at+2:], uint16(len(x.buf)-at))
}

// endSet pads the open set to four bytes and writes its length.
func (x *Exporter) endSet() {
	if x.set == 0 {
		return
	}
	for (len(x.buf)-x.set)%4 != 0 {
		x.buf = append(x.buf, 0)
	}
	binary.BigEndian.PutUint16(x.buf[x.set+2:], uint16(len(x.buf)-x.set))
	x.set = 0
}

// Flush sends what is buffered.
func (x *Exporter) Flush() error { return x.FlushAt(time.Now()) }

// FlushAt is Flush at a given time.
func (x *Exporter) FlushAt(now time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.flush(now)
}

// flush finishes the message. x.mu is held.
//
//	IPFIX (RFC 7011, 3.1): version(2)=10 length(2) export time(4) sequence(4) domain(4)
//	NetFlow (RFC 3954, 5.1): version(2)=9 count(2) uptime(4) seconds(4) sequence(4) source(4)
func (x *Exporter) flush(now time.Time) error {
	if len(x.buf) == 0 {
		return nil
	}
	x.endSet()
	b := x.buf
	be := binary.BigEndian
	if x.cfg.Version == IPFIX {
		be.PutUint16(b, 10)
		be.PutUint16(b[2:], uint16(len(b)))
		be.PutUint32(b[4:], uint32(now.Unix()))
		be.PutUint32(b[8:], x.sequence) // counts data records before this message
		be.PutUint32(b[12:], x.cfg.Domain)
		x.sequence += x.records
	} else {
		be.PutUint16(b, 9)
		be.PutUint16(b[2:], uint16(x.records))
		be.PutUint32(b[4:], uint32(max(0, now.Sub(x.boot).Milliseconds())))
		be.PutUint32(b[8:], uint32(now.Unix()))
		be.PutUint32(b[12:], x.sequence) // counts messages
		be.PutUint32(b[16:], x.cfg.Domain)
		x.sequence++
	}
	_, err := x.cfg.Collector.Write(b)
	x.buf = x.buf[:0]
	if err != nil {
		x.stats.Failed++
		// The message may have held the templates; and where a socket reports that nobody listened, an
		// earlier one may have been lost with them as well.
		x.sent = time.Time{}
		return fmt.Errorf("flowexport: send: %w", err)
	}
	x.stats.Messages++
	return nil
}

// Stats returns the counts so far.
func (x *Exporter) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stats
}
