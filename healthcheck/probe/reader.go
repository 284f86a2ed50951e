package probe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxReply bounds what a probe reads of a reply, where the protocol's prober sets
// no other bound.
const maxReply = 64 << 10

// reader reads a reply that arrives in pieces, up to a bound. Parsers of replies take
// a reader, so that they can be tested and fuzzed without connections.
type reader struct {
	br   *bufio.Reader
	left int    // bytes that may still be consumed
	last []byte // the last whole line, for errors
	line []byte // scratch
}

func newReader(src io.Reader, limit int) *reader {
	return &reader{br: bufio.NewReaderSize(src, 1024), left: limit}
}

// errTooLong is returned where a reply passes its bound.
var errTooLong = errors.New("reply too long")

func (r *reader) take(n int) error {
	if n > r.left {
		return tooLong(r.last)
	}
	r.left -= n
	return nil
}

func tooLong(last []byte) error {
	return fmt.Errorf("%w, bound reached after %q", errTooLong, shorten(string(last)))
}

// readLine returns the next line without its end, LF or CR LF. It is valid until the next
// call.
func (r *reader) readLine() ([]byte, error) {
	r.line = r.line[:0]
	for {
		part, err := r.br.ReadSlice('\n')
		if e := r.take(len(part)); e != nil {
			return nil, e
		}
		r.line = append(r.line, part...)
		switch {
		case err == nil:
			l := bytes.TrimSuffix(r.line[:len(r.line)-1], []byte("\r"))
			r.last = append(r.last[:0], l...)
			return l, nil
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			seen := string(r.line)
			if seen == "" {
				seen = string(r.last)
			}
			return nil, &cutError{seen: seen, err: err}
		}
	}
}

// readFull returns the next n bytes, in a new slice.
func (r *reader) readFull(n int) ([]byte, error) {
	if err := r.take(n); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	got, err := io.ReadFull(r.br, b)
	if err != nil {
		return nil, &cutError{seen: string(b[:got]), err: err}
	}
	return b, nil
}

// readByte returns the next byte.
func (r *reader) readByte() (byte, error) {
	if err := r.take(1); err != nil {
		return 0, err
	}
	b, err := r.br.ReadByte()
	if err != nil {
		return 0, &cutError{err: err}
	}
	return b, nil
}

// readSome returns what is there, at least one byte and at most the bound. It is valid
// until the next call.
func (r *reader) readSome() ([]byte, error) { return r.readAtMost(r.left) }

// readAtMost returns what is there, 1 to n bytes. It is valid until the next call.
func (r *reader) readAtMost(n int) ([]byte, error) {
	if r.left == 0 || n == 0 {
		return nil, r.take(1)
	}
	if _, err := r.br.Peek(1); err != nil {
		return nil, err
	}
	b, err := r.br.Peek(min(r.br.Buffered(), n))
	if err == nil {
		err = r.take(len(b))
	}
	if err != nil {
		return nil, err
	}
	r.line = append(r.line[:0], b...)
	_, err = r.br.Discard(len(b))
	return r.line, err
}

// buffered returns, without waiting, how many bytes have arrived that nobody asked for.
func (r *reader) buffered() int { return r.br.Buffered() }

// Read makes a reader an [io.Reader] that ends with an error at its bound.
func (r *reader) Read(b []byte) (int, error) {
	if len(b) > r.left {
		if r.left == 0 && len(b) > 0 {
			return 0, r.take(1)
		}
		b = b[:r.left]
	}
	n, err := r.br.Read(b)
	r.left -= n
	return n, err
}
