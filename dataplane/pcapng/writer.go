// Package pcapng writes packet captures whose packets carry comments, such as what a balancer decided about
// each and why, in the pcapng format (draft-ietf-opsawg-pcapng). Wireshark shows the comments beside the packets.
//
// A [Writer] is bounded: it stops at a size, and says so, rather than fill a disk.
package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

// LinkType says what packets begin with (IANA's registry of PCAP link types). The zero LinkType is
// Raw in a Config.
type LinkType uint16

const (
	Ethernet LinkType = 1   // an Ethernet header
	Raw      LinkType = 101 // an IPv4 or IPv6 header
)

// ErrFull is returned by Write when the capture has reached its size.
var ErrFull = errors.New("pcapng: the capture has reached its size")

// Config configures a [Writer]. A nil Config takes every default.
type Config struct {
	// LinkType of the packets. Default Raw.
	LinkType LinkType
	// SnapLen is how many bytes of a packet are kept. Default 262144, all of any packet.
	SnapLen int
	// MaxBytes is the size of the capture, above which packets are refused with ErrFull. Default 64 MiB; negative: no
	// bound.
	MaxBytes int64
	// Interfaces are the names that packets refer to by their index here. Default one without a name.
	Interfaces []string
	// Application is named in the file as its writer. Default "lbprim".
	Application string
}

// Writer writes a capture. Use [NewWriter]. It is safe for concurrent use. Packets are written in one call each; wrap a file in a
// bufio.Writer, and flush that, where many are expected.
type Writer struct {
	mu      sync.Mutex
	w       io.Writer
	cfg     Config
	buf     []byte
	written int64
	packets uint64
	refused uint64
	err     error
}

// Options of blocks (draft-ietf-opsawg-pcapng, 3.5, 4.1, 4.2).
const (
	optEnd     = 0
	optComment = 1
	optAppl    = 4 // of a section
	optName    = 2 // of an interface
	optTsresol = 9 // of an interface
)

const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6
)

// maxComment is the longest comment kept: an option has two bytes of length.
const maxComment = 1 << 14

// NewWriter writes the section header and the interfaces to w.
func NewWriter(w io.Writer, cfg *Config) (*Writer, error) {
	p := &Writer{w: w}
	if cfg != nil {
		p.cfg = *cfg
	}
	if p.cfg.LinkType == 0 {
		p.cfg.LinkType = Raw
	}
	if p.cfg.SnapLen == 0 {
		p.cfg.SnapLen = 262144
	}
	var faults []error
	if p.cfg.SnapLen < 0 || int64(p.cfg.SnapLen) > math.MaxInt32 {
		faults = append(faults, fmt.Errorf("pcapng: config: SnapLen: %d: want 1 to %d bytes, or 0 for 262144", p.cfg.SnapLen, math.MaxInt32))
	}
	if len(p.cfg.Application) > maxComment {
		faults = append(faults, fmt.Errorf("pcapng: config: Application: %d bytes: want at most %d", len(p.cfg.Application), maxComment))
	}
	for i, name := range p.cfg.Interfaces {
		if len(name) > maxComment {
			faults = append(faults, fmt.Errorf("pcapng: config: Interfaces[%d]: %d bytes: want at most %d", i, len(name), maxComment))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	p.cfg.Interfaces = slices.Clone(p.cfg.Interfaces)
	if p.cfg.MaxBytes == 0 {
		p.cfg.MaxBytes = 64 << 20
	}
	if p.cfg.Application == "" {
		p.cfg.Application = "lbprim"
	}
	if len(p.cfg.Interfaces) == 0 {
		p.cfg.Interfaces = []string{""}
	}
	// byte-order magic(4) version 1.0(4) section length(8): unknown
	p.block(blockSection, func() {
		p.u32(0x1a2b3c4d)
		p.u32(1)
		p.u32(0xffffffff)
		p.u32(0xffffffff)
		p.option(optAppl, p.cfg.Application)
		p.u32(optEnd)
	})
	for _, name := range p.cfg.Interfaces {
		// link type(2) reserved(2) snap length(4)
		p.block(blockInterface, func() {
			p.u32(uint32(p.cfg.LinkType))
			p.u32(uint32(p.cfg.SnapLen))
			if name != "" {
				p.option(optName, name)
			}
			p.option(optTsresol, "\x09") // nanoseconds
			p.u32(optEnd)
		})
	}
	return p, p.flush()
}

func (p *Writer) u32(v uint32) { p.buf = binary.LittleEndian.AppendUint32(p.buf, v) }

func (p *Writer) pad() {
	for len(p.buf)%4 != 0 {
		p.buf = append(p.buf, 0)
	}
}

func (p *Writer) option(code uint16, value string) {
	p.buf = binary.LittleEndian.AppendUint16(p.buf, code)
	p.buf = binary.LittleEndian.AppendUint16(p.buf, uint16(len(value)))
	p.buf = append(p.buf, value...)
	p.pad()
}

// block appends type(4) length(4) body length(4).
func (p *Writer) block(typ uint32, body func()) {
	at := len(p.buf)
	p.u32(typ)
	p.u32(0)
	body()
	p.pad()
	n := uint32(len(p.buf) - at + 4)
	binary.LittleEndian.PutUint32(p.buf[at+4:], n)
	p.u32(n)
}

func (p *Writer) flush() error {
	n, err := p.w.Write(p.buf)
	p.written += int64(n)
	p.buf = p.buf[:0]
	if err != nil {
		p.err = fmt.Errorf("pcapng: write: %w", err)
	}
	return p.err
}

// Write appends a packet that passed the interface with an index in Config.Interfaces, with a comment
// where that is not empty. After an error of the underlying writer, every call returns that error, since the file is damaged.
func (p *Writer) Write(at time.Time, iface int, packet []byte, comment string) error {
	return p.WriteCut(at, iface, packet, len(packet), comment)
}

// WriteCut is [Writer.Write] for a packet of which only the first bytes are at hand: size is how many there were.
func (p *Writer) WriteCut(at time.Time, iface int, packet []byte, size int, comment string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	if iface < 0 || iface >= len(p.cfg.Interfaces) {
		return fmt.Errorf("pcapng: interface %d: want 0 to %d", iface, len(p.cfg.Interfaces)-1)
	}
	kept := packet[:min(len(packet), p.cfg.SnapLen)]
	if len(comment) > maxComment {
		end := maxComment
		for end > 0 && !utf8.RuneStart(comment[end]) { // whole characters
			end--
		}
		comment = comment[:end]
	}
	// interface(4) timestamp high(4) low(4) captured length(4) original length(4) packet options
	p.block(blockPacket, func() {
		ns := uint64(at.UnixNano())
		p.u32(uint32(iface))
		p.u32(uint32(ns >> 32))
		p.u32(uint32(ns))
		p.u32(uint32(len(kept)))
		p.u32(uint32(max(size, len(packet))))
		p.buf = append(p.buf, kept...)
		p.pad()
		if comment != "" {
			p.option(optComment, comment)
			p.u32(optEnd)
		}
	})
	if p.cfg.MaxBytes > 0 && p.written+int64(len(p.buf)) > p.cfg.MaxBytes {
		p.buf = p.buf[:0]
		p.refused++
		return ErrFull
	}
	if err := p.flush(); err != nil {
		return err
	}
	p.packets++
	return nil
}

// Stats counts a Writer's packets.
type Stats struct {
	Packets uint64 // written
	Refused uint64 // because the capture is full
	Bytes   int64  // of the file
}

// Stats returns the counts so far.
func (p *Writer) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Packets: p.packets, Refused: p.refused, Bytes: p.written}
}
