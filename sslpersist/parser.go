package sslpersist

import (
	"encoding/binary"
	"errors"
)

// ParseClientHello parses the hello at the start of b, what a client sent. Bytes behind
// it are ignored. It returns ErrShort if b may be the beginning of a hello, so that more
// bytes can help, else ErrNotTLS, ErrTooLarge, or an error that wraps ErrMalformed; then
// the ClientHello holds what could be read.
//
// The result aliases b if the hello lies in one record, as nearly all do, and nothing is
// allocated. Otherwise it aliases one buffer made for it; a [Parser] can be given one.
func ParseClientHello(b []byte) (ClientHello, error) {
	var h ClientHello
	if body := inOneRecord(b, msgClientHello); body != nil {
		err := parseClientBody(&h, body)
		return h, err
	}
	if body := inOneV2(b); body != nil {
		err := parseV2Client(&h, body)
		return h, err
	}
	p := Parser{s: stream{dry: true}}
	if _, err := p.next(b, false); err != nil {
		return h, err
	}
	p = Parser{}
	return p.Client(b)
}

// ParseSessionID returns the session ID of the hello at the start of b, what a client
// sent. It is for those who need nothing else, and several times faster. Of a hello whose
// first record and first 76 bytes hold the ID, what follows is not looked at and may be
// missing. Its errors are those of [ParseClientHello].
func ParseSessionID(b []byte) (id SessionID, err error) {
	// Up to the ID: headers of record and message, version, random, length of the ID.
	const (
		head = recordHeader + messageHeader + 2 + 32 + 1
		rest = 2 + 32 + 1 + maxKey // of the message
	)
	if len(b) >= head+maxKey {
		h := (*[head + maxKey]byte)(b)
		// One word holds 22, 3, minor version, record length 2, 1, 0, and half a length.
		w := binary.BigEndian.Uint64(h[:8])
		record, body := uint(w>>24&0xffff), uint(w&0xff)<<8|uint(h[8])
		if w&^0xffff_ff00_00ff == recHandshake<<56|3<<48|msgClientHello<<16 && h[2] <= 4 && h[9] == 3 && h[head-1] == maxKey &&
			record-(messageHeader+rest) <= maxRecord-(messageHeader+rest) && body-rest <= MaxHello-messageHeader-rest {
			id.k = fullKey
			id.k.b = [maxKey]byte(h[head:])
			return id, nil
		}
	}
	return sessionIDByParsing(b)
}

// sessionIDByParsing is apart so that its frame does not burden the short way.
//
//go:noinline
func sessionIDByParsing(b []byte) (SessionID, error) {
	h, err := ParseClientHello(b)
	return h.SessionID, err
}

// ParseServerHello parses the hello at the start of b, what a server sent. Warnings before
// it are skipped, bytes behind it are ignored. Its errors are those of [ParseClientHello],
// and ErrAlert.
func ParseServerHello(b []byte) (ServerHello, error) {
	var h ServerHello
	if body := inOneRecord(b, msgServerHello); body != nil {
		err := parseServerBody(&h, body)
		return h, err
	}
	p := Parser{s: stream{dry: true}}
	if _, err := p.next(b, true); err != nil {
		return h, err
	}
	p = Parser{}
	return p.Server(b)
}

// inOneRecord returns the body of the message of type typ that begins b, if it lies
// wholly in b and in the first record, else nil.
func inOneRecord(b []byte, typ byte) []byte {
	const head = recordHeader + messageHeader
	if len(b) < head || b[0] != recHandshake || b[1] != 3 || b[2] > 4 || b[5] != typ {
		return nil
	}
	record := int(binary.BigEndian.Uint16(b[3:]))
	end := head + int(b[6])<<16 + int(b[7])<<8 + int(b[8])
	if record > maxRecord || end > recordHeader+record || end > len(b) {
		return nil
	}
	return b[head:end:end]
}

// inOneV2 is inOneRecord for the SSLv2-compatible hello of a client.
func inOneV2(b []byte) []byte {
	if len(b) < recordHeader || b[0]&0x80 == 0 || checkV2Header(b[:recordHeader], false) != nil {
		return nil
	}
	end := 2 + int(b[0]&0x7f)<<8 + int(b[1])
	if end > len(b) {
		return nil
	}
	return b[2:end:end]
}

// Parser reads the hello of one direction of a stream from chunks of any size. Every byte
// is looked at once, so feeding a stream byte by byte costs no more than its length. The
// zero Parser is ready. It must not be copied after use, nor used concurrently.
type Parser struct {
	// Buffer, if it has capacity, takes a hello that does not lie in one record of one
	// chunk; 64 KiB are always enough. Without it one is made and grown as bytes come.
	// It is read once, by the first call after the zero value or Reset.
	Buffer []byte

	s    stream
	used bool
	err  error
}

var errParsed = errors.New("sslpersist: parser has delivered its hello, Reset it first")

// Client takes the next bytes of what a client sends. It returns ErrShort until the hello
// is complete, then the hello, else an error as [ParseClientHello] does, which is also
// returned to every later call. The hello aliases chunk or the buffer, so it is
// valid until either is used again.
func (p *Parser) Client(chunk []byte) (ClientHello, error) {
	var h ClientHello
	ev, err := p.next(chunk, false)
	if err == nil {
		if ev.kind == evV2 {
			err = parseV2Client(&h, ev.body)
		} else {
			err = parseClientBody(&h, ev.body)
		}
		p.end(err)
	}
	return h, err
}

// Server takes the next bytes of what a server sends, and is like Client otherwise.
func (p *Parser) Server(chunk []byte) (ServerHello, error) {
	var h ServerHello
	ev, err := p.next(chunk, true)
	if err == nil {
		err = parseServerEvent(&h, ev)
		p.end(err)
	}
	return h, err
}

func parseServerEvent(h *ServerHello, ev event) error {
	switch {
	case ev.kind == evV2:
		return parseV2Server(h, ev.body)
	case ev.typ == msgRetryRequest:
		return parseRetryBody(h, ev.body)
	}
	return parseServerBody(h, ev.body)
}

// EOF says what it means that the stream ends here: nil if the hello was complete, else
// an error that is not ErrShort.
func (p *Parser) EOF() error {
	switch {
	case p.err == nil && p.used:
		return errEOF
	case p.err == nil:
		return ErrNotTLS
	case errors.Is(p.err, errParsed):
		return nil
	}
	return p.err
}

// Reset makes p ready for another stream. It keeps the buffer.
func (p *Parser) Reset() { *p = Parser{Buffer: p.Buffer, s: stream{buf: p.s.buf[:0]}} }

func (p *Parser) next(chunk []byte, server bool) (event, error) {
	if p.err != nil {
		return event{}, p.err
	}
	if !p.used && len(chunk) > 0 {
		p.used = true
		p.s.server = server
		if cap(p.Buffer) > 0 {
			p.s.buf = p.Buffer[:0]
		}
	}
	for len(chunk) > 0 {
		ev, err := p.s.next(chunk)
		if err == nil && ev.kind == evAlert && (!server || ev.typ == alertFatal) {
			err = ErrAlert
		}
		if err == nil && (ev.kind == evCipher || ev.kind == evData) {
			err = errNoServerHello
		}
		if err != nil {
			p.end(err)
			return event{}, err
		}
		if ev.kind == evMessage && ev.typ == msgNewSessionTicket {
			ev.kind = evNone // cannot be the first, and is not asked for here
		}
		if ev.kind == evMessage || ev.kind == evV2 {
			return ev, nil
		}
		chunk = chunk[ev.count:]
	}
	return event{}, ErrShort
}

// alertFatal is the level of an alert that ends the connection.
const alertFatal = 2

func (p *Parser) end(err error) {
	if p.err = err; err == nil {
		p.err = errParsed
		return
	}
	p.s.buf = nil
}
