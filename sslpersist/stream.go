package sslpersist

import "encoding/binary"

// Record types (RFC 8446, section 5.1).
const (
	recChangeCipherSpec = 20
	recAlert            = 21
	recHandshake        = 22
	recApplicationData  = 23
	recHeartbeat        = 24
)

// Message types (RFC 8446, section 4).
const (
	msgHelloRequest     = 0
	msgClientHello      = 1
	msgServerHello      = 2
	msgNewSessionTicket = 4
	msgRetryRequest     = 6 // drafts of TLS 1.3 before 22
)

const (
	recordHeader  = 5
	messageHeader = 4
	maxRecord     = 16384 + 2048 // RFC 5246, section 6.2.3
)

// eventKind says what a stream came upon.
type eventKind uint8

const (
	evNone    eventKind = iota // nothing but a need for more bytes
	evMessage                  // a handshake message that is wanted
	evV2                       // an SSLv2 message, which only begins a stream
	evAlert
	evCipher // ChangeCipherSpec
	evData   // application data or a heartbeat
)

// event is one thing a stream came upon. Its body is valid until the next call.
type event struct {
	kind  eventKind
	typ   uint8 // of the message; severity of an alert
	body  []byte
	count int // bytes of the chunk used
}

// stream cuts one direction of a connection into records and handshake messages, from
// chunks of any size, without reading a byte twice. A message that lies in one chunk and
// one record is not copied. The zero stream reads what a client sends.
type stream struct {
	buf    []byte   // a message in several pieces; its array is kept for the next one
	pool   *buffers // lends buf; nil: it is made
	left   int32    // bytes to come of the record whose header is complete
	mleft  int32    // bytes to come of the message whose header is complete
	server bool     // reads what a server sends
	begun  bool     // the first record header was good
	first  bool     // the first message header was good
	v2     bool     // the first message is in the SSLv2 format
	keep   bool     // the message at hand is wanted
	dry    bool     // messages are followed, but not collected
	deaf   bool     // hellos of the client are passed over
	nh     uint8    // bytes of hdr
	nm     uint8    // bytes of mh
	na     uint8    // bytes of alert
	hdr    [recordHeader]byte
	mh     [messageHeader]byte
	alert  [2]byte
}

// next reads b up to the next event. With evNone all of b was used.
func (s *stream) next(b []byte) (ev event, err error) {
	whole := len(b)
	for len(b) > 0 {
		if s.v2 {
			n, done := s.collect(b, len(b))
			b = b[n:]
			if done != nil {
				s.v2, s.nh, s.keep, s.first = false, 0, false, true
				return event{kind: evV2, body: done, count: whole - len(b)}, nil
			}
			continue
		}
		if s.nh < recordHeader {
			n := copy(s.hdr[s.nh:], b)
			s.nh += uint8(n)
			b = b[n:]
			if err := s.checkHeader(); err != nil {
				return event{}, err
			}
			if s.v2 {
				// The three bytes behind the length already belong to the message.
				s.mleft = int32(s.hdr[0]&0x7f)<<8 | int32(s.hdr[1]) - 3
				if !s.dry {
					s.room(int(s.mleft) + 3)
					s.buf = append(s.buf[:0], s.hdr[2:]...)
				}
			}
			continue
		}
		used, ev, err := s.record(b)
		b = b[used:]
		if s.left == 0 {
			s.nh = 0
		}
		if err != nil {
			return event{}, err
		}
		if ev.kind != evNone {
			ev.count = whole - len(b)
			return ev, nil
		}
	}
	return event{count: whole}, nil
}

// checkHeader judges the bytes of the record header that are there. On the last one it
// sets what the record's body needs.
func (s *stream) checkHeader() error {
	h := s.hdr[:s.nh]
	if !s.begun {
		if err := checkFirstHeader(h, s.server); err != nil {
			return err
		}
		if h[0]&0x80 != 0 {
			s.v2 = len(h) == recordHeader
			s.begun = s.v2
			return nil
		}
	} else if h[0] < recChangeCipherSpec || h[0] > recHeartbeat || len(h) > 1 && h[1] != 3 {
		return errRecordType
	}
	if len(h) < recordHeader {
		return nil
	}
	s.begun = true
	n := int32(binary.BigEndian.Uint16(h[3:]))
	if n > maxRecord || n == 0 && h[0] != recApplicationData {
		return errRecordLength
	}
	if s.nm > 0 && h[0] != recHandshake {
		return errInterleaved
	}
	s.left, s.na = n, 0
	if n == 0 {
		s.nh = 0
	}
	return nil
}

// checkFirstHeader judges up to five bytes at the start of a stream: is this TLS at all?
func checkFirstHeader(h []byte, server bool) error {
	if h[0]&0x80 != 0 {
		return checkV2Header(h, server)
	}
	if h[0] != recHandshake && (h[0] != recAlert || !server) {
		return ErrNotTLS
	}
	if len(h) > 1 && h[1] != 3 || len(h) > 2 && h[2] > 4 {
		return ErrNotTLS
	}
	return nil
}

func checkV2Header(h []byte, server bool) error {
	if len(h) < 3 {
		return nil
	}
	if server {
		// The version comes later; a message type and a yes or no are all there is to see.
		if h[2] != v2ServerHello || len(h) > 3 && h[3] > 1 || len(h) > 4 && h[4] > 1 {
			return ErrNotTLS
		}
	} else if h[2] != v2ClientHello || len(h) > 3 && h[3] != 0 && h[3] != 3 ||
		len(h) > 4 && h[3] == 0 && h[4] != 2 || len(h) > 4 && h[3] == 3 && h[4] > 4 {
		return ErrNotTLS
	}
	// Judged last, so that the verdict does not depend on how the bytes come.
	if len(h) < recordHeader {
		return nil
	}
	if n := int(h[0]&0x7f)<<8 | int(h[1]); n < v2ClientFixed || server && n < v2ServerFixed {
		return errSSLv2
	}
	return nil
}

// record reads from the body of a record, of which s.left bytes are to come.
func (s *stream) record(b []byte) (used int, ev event, err error) {
	b = b[:min(len(b), int(s.left))]
	switch s.hdr[0] {
	case recHandshake:
		return s.handshake(b)
	case recAlert:
		s.left -= int32(len(b))
		for _, c := range b {
			if s.na < 2 {
				s.alert[s.na] = c
				s.na++
			}
		}
		if s.left == 0 {
			ev = event{kind: evAlert, typ: s.alert[0]}
		}
	case recChangeCipherSpec:
		if s.left -= int32(len(b)); s.left == 0 {
			ev = event{kind: evCipher}
		}
	default:
		if s.left -= int32(len(b)); s.left == 0 {
			ev = event{kind: evData}
		}
	}
	return len(b), ev, nil
}

// handshake reads at most one message from the body of a record.
func (s *stream) handshake(b []byte) (used int, ev event, err error) {
	whole := len(b)
	if s.nm < messageHeader {
		n := copy(s.mh[s.nm:], b)
		s.nm += uint8(n)
		s.left -= int32(n)
		b = b[n:]
		if err := s.checkMessage(); err != nil || s.nm < messageHeader {
			return whole - len(b), event{}, err
		}
		if s.mleft > 0 && len(b) == 0 {
			return whole - len(b), event{}, nil
		}
	}
	var n int
	var done []byte
	if s.keep {
		n, done = s.collect(b, len(b))
	} else {
		n = min(len(b), int(s.mleft))
		s.mleft -= int32(n)
	}
	s.left -= int32(n)
	b = b[n:]
	if s.mleft == 0 {
		s.nm = 0
		if s.keep {
			ev = event{kind: evMessage, typ: s.mh[0], body: done}
		}
	}
	return whole - len(b), ev, nil
}

// checkMessage judges the message header: its type at once, its length when complete.
func (s *stream) checkMessage() error {
	typ := s.mh[0]
	if !s.first && !s.server && typ != msgClientHello {
		return errNoClientHello
	}
	if !s.first && s.server && typ != msgServerHello && typ != msgRetryRequest && typ != msgHelloRequest {
		return errNoServerHello
	}
	if s.nm < messageHeader {
		return nil
	}
	s.mleft = int32(s.mh[1])<<16 | int32(s.mh[2])<<8 | int32(s.mh[3])
	fits := s.mleft <= MaxHello-messageHeader
	if s.server {
		hello := typ == msgServerHello || typ == msgRetryRequest
		if hello && !fits {
			return ErrTooLarge
		}
		s.keep = hello || typ == msgNewSessionTicket && fits
		s.first = s.first || hello
	} else {
		if s.keep = typ == msgClientHello && !s.deaf; s.keep && !fits {
			return ErrTooLarge
		}
		s.first = true
	}
	s.buf = s.buf[:0]
	return nil
}

// collect takes what b has of a message of which s.mleft bytes are to come, and returns
// the message once it is complete: b itself where that has all of it.
func (s *stream) collect(b []byte, limit int) (used int, done []byte) {
	n := min(limit, int(s.mleft))
	s.mleft -= int32(n)
	if s.mleft == 0 && len(s.buf) == 0 && !s.dry {
		return n, b[:n:n]
	}
	if s.dry {
		if s.mleft > 0 {
			return n, nil
		}
		return n, b[:0:0]
	}
	s.room(n + int(s.mleft))
	s.buf = append(s.buf, b[:n]...)
	if s.mleft > 0 {
		return n, nil
	}
	return n, s.buf
}

// room sees to it that there is a buffer. The length is what the sender says: room is made
// for a usual hello at once, for a large one as its bytes come.
func (s *stream) room(n int) {
	if cap(s.buf) > 0 {
		return
	}
	if s.pool != nil {
		s.buf = s.pool.get()
		return
	}
	s.buf = make([]byte, 0, min(n, helloRoom))
}

// giveBack returns the buffer to the pool it came from, unless a message is half in it.
func (s *stream) giveBack() {
	if s.pool != nil && cap(s.buf) > 0 && s.nm == 0 && !s.v2 {
		s.pool.put(s.buf)
		s.buf = nil
	}
}
