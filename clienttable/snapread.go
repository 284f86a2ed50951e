package clienttable

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"
	"unsafe"
)

// keep returns a reader for a first pass and says how to begin a second: by seeking
// where r can, else from memory.
func keep(r io.Reader) (first io.Reader, again func() (io.Reader, error)) {
	if s, ok := r.(io.Seeker); ok {
		if start, err := s.Seek(0, io.SeekCurrent); err == nil {
			return r, func() (io.Reader, error) {
				_, err := s.Seek(start, io.SeekStart)
				return r, err
			}
		}
	}
	var all bytes.Buffer
	return io.TeeReader(r, &all), func() (io.Reader, error) { return &all, nil }
}

// snapReader checks a snapshot and takes it apart.
type snapReader[K comparable, V any] struct {
	t       *Table[K, V]
	r       *bufio.Reader
	all     hash.Hash32
	at      int64
	written time.Time
	seq     uint64
	names   map[uint32]string
}

func (p *snapReader[K, V]) refuse(format string, args ...any) error {
	return fmt.Errorf("%w: at byte %d: %s", ErrSnapshot, p.at, fmt.Sprintf(format, args...))
}

// take fills b.
func (p *snapReader[K, V]) take(b []byte, what string) error {
	n, err := io.ReadFull(p.r, b)
	p.at += int64(n)
	p.all.Write(b[:n])
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return p.refuse("cut short within %s", what)
	case err != nil:
		return fmt.Errorf("clienttable: reading a snapshot: %w", err)
	}
	return nil
}

// read reads a whole snapshot and calls f, if not nil, for its entries.
func (p *snapReader[K, V]) read(r io.Reader, f func(k *K, v *V, left int64, l Life, owner uint32) error) error {
	p.r, p.all = bufio.NewReaderSize(r, 1<<16), crc32.New(castagnoli)
	if err := p.header(); err != nil {
		return err
	}
	var k K
	var v V
	size := len(bytesOf(&k)) + len(bytesOf(&v)) + snapFixed
	buf := make([]byte, 4+segSlots*size+4)
	total := uint64(0)
	for {
		if err := p.take(buf[:4], "a block"); err != nil {
			return err
		}
		n := binary.LittleEndian.Uint32(buf)
		if n == 0 {
			return p.end(total)
		}
		if n > segSlots {
			return p.refuse("a block of %d entries, the most is %d", n, segSlots)
		}
		b := buf[:4+int(n)*size+4]
		if err := p.take(b[4:], "a block"); err != nil {
			return err
		}
		body := b[:len(b)-4]
		if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
			return p.refuse("the checksum of the block that ends here is wrong")
		}
		for e := body[4:]; len(e) > 0; e = e[size:] {
			total++
			copy(bytesOf(&k), e)
			copy(bytesOf(&v), e[unsafe.Sizeof(k):])
			rest := e[size-snapFixed:]
			left, ttl := int64(binary.LittleEndian.Uint64(rest)), int64(binary.LittleEndian.Uint64(rest[8:]))
			l := Life{TTL: time.Duration(ttl) * time.Millisecond, Class: Class(rest[16]), Fixed: rest[17] == 1}
			if left != min(max(left, -snapLeft), snapLeft) {
				return p.refuse("an entry with %d ms left", left)
			}
			if ttl <= 0 || ttl > int64(MaxTTL/time.Millisecond) || l.Class > Static || rest[17] > 1 {
				return p.refuse("an entry with TTL %d ms, class %d, fixed %d", ttl, rest[16], rest[17])
			}
			if f == nil {
				continue
			}
			if err := f(&k, &v, left, l, binary.LittleEndian.Uint32(rest[18:])); err != nil {
				return err
			}
		}
	}
}

func (p *snapReader[K, V]) header() error {
	want := p.t.snapHeader(time.Time{}, 0)
	got := make([]byte, len(want))
	if err := p.take(got[:12], "the header"); err != nil {
		return err
	}
	if string(got[:8]) != snapMagic {
		return p.refuse("it begins with %q and is no snapshot of a table", got[:8])
	}
	if v := binary.LittleEndian.Uint32(got[8:]); v != snapVersion {
		return p.refuse("its version is %d, known is %d", v, snapVersion)
	}
	if err := p.take(got[12:], "the header"); err != nil {
		return err
	}
	body := got[:len(got)-4]
	switch {
	case crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(got[len(body):]):
		return p.refuse("the checksum of the header is wrong")
	case !bytes.Equal(got[12:16], want[12:16]):
		return p.refuse("it is of a machine with another byte order")
	case !bytes.Equal(got[16:24], want[16:24]):
		return p.refuse("its keys and values are of %d and %d bytes, not %d and %d",
			binary.LittleEndian.Uint32(got[16:]), binary.LittleEndian.Uint32(got[20:]),
			binary.LittleEndian.Uint32(want[16:]), binary.LittleEndian.Uint32(want[20:]))
	case !bytes.Equal(got[24:32], want[24:32]):
		return p.refuse("its keys or values have other fields")
	}
	p.written = time.Unix(0, int64(binary.LittleEndian.Uint64(got[32:])))
	p.seq = binary.LittleEndian.Uint64(got[40:])
	return nil
}

func (p *snapReader[K, V]) end(total uint64) error {
	var b [12]byte
	if err := p.take(b[:], "the end"); err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(b[:]); n != total {
		return p.refuse("%d entries, but it says %d", total, n)
	}
	for range binary.LittleEndian.Uint32(b[8:]) {
		if err := p.take(b[:8], "a name"); err != nil {
			return err
		}
		n := binary.LittleEndian.Uint32(b[4:])
		if n > maxName {
			return p.refuse("a name of %d bytes", n)
		}
		name := make([]byte, n)
		if err := p.take(name, "a name"); err != nil {
			return err
		}
		p.names[binary.LittleEndian.Uint32(b[:])] = string(name)
	}
	sum := p.all.Sum32()
	if err := p.take(b[:4], "the checksum"); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(b[:]) != sum {
		return p.refuse("the checksum of the whole is wrong")
	}
	if _, err := p.r.ReadByte(); err == nil {
		return p.refuse("there is more after its end")
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("clienttable: reading a snapshot: %w", err)
	}
	return nil
}
