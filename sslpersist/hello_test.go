package sslpersist

import (
	"encoding/binary"
)

// helloSpec builds hellos for the tests, valid ones unless asked otherwise.
type helloSpec struct {
	legacy   Version // 0 is TLS 1.2
	id       []byte
	versions []Version
	sni      string
	alpn     []string
	ticket   []byte // nil: no extension
	psks     [][]byte
	early    bool
	extra    []byte // further extensions, encoded
	noExt    bool
	pad      int // size of a padding extension
	idLen    int // if not 0, what the length byte of the ID says
	suites   int // number of cipher suites, 0 is 3
	random   string
	selected int // server: PSK selected+1
	will     bool
}

func u16(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }

func vec8(b []byte) []byte { return append([]byte{byte(len(b))}, b...) }

func vec16(b []byte) []byte { return append(u16(len(b)), b...) }

func extension(typ int, body []byte) []byte { return append(u16(typ), vec16(body)...) }

func message(typ byte, body []byte) []byte {
	n := len(body)
	return append([]byte{typ, byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

// records cuts a message into records of at most size bytes; 0 is one record.
func records(typ byte, msg []byte, size int) (out []byte) {
	if size == 0 {
		size = 16384
	}
	for len(msg) > 0 {
		n := min(size, len(msg))
		out = append(out, typ, 3, 1)
		out = append(out, vec16(msg[:n])...)
		msg = msg[n:]
	}
	return out
}

func (s helloSpec) head() []byte {
	legacy := s.legacy
	if legacy == 0 {
		legacy = TLS12
	}
	b := u16(int(legacy))
	random := s.random
	if random == "" {
		random = "0123456789abcdef0123456789abcdef"
	}
	b = append(b, random...)
	n := len(s.id)
	if s.idLen != 0 {
		n = s.idLen
	}
	return append(append(b, byte(n)), s.id...)
}

func (s helloSpec) clientMessage() []byte {
	b := s.head()
	suites := s.suites
	if suites == 0 {
		suites = 3
	}
	var list []byte
	for i := range suites {
		list = append(list, 0x13, byte(i))
	}
	b = append(b, vec16(list)...)
	b = append(b, 1, 0)
	if s.noExt {
		return message(msgClientHello, b)
	}
	ext := extension(0x3a3a, nil) // GREASE
	if s.sni != "" {
		ext = append(ext, extension(extServerName, vec16(append([]byte{0}, vec16([]byte(s.sni))...)))...)
	}
	if s.alpn != nil {
		var l []byte
		for _, p := range s.alpn {
			l = append(l, vec8([]byte(p))...)
		}
		ext = append(ext, extension(extALPN, vec16(l))...)
	}
	if s.ticket != nil {
		ext = append(ext, extension(extSessionTicket, s.ticket)...)
	}
	if s.versions != nil {
		var l []byte
		for _, v := range s.versions {
			l = append(l, u16(int(v))...)
		}
		ext = append(ext, extension(extSupportedVersions, vec8(l))...)
	}
	if s.early {
		ext = append(ext, extension(extEarlyData, nil)...)
	}
	if s.pad > 0 {
		ext = append(ext, extension(21, make([]byte, s.pad))...)
	}
	ext = append(ext, s.extra...)
	if s.psks != nil {
		var ids, binders []byte
		for _, p := range s.psks {
			ids = append(append(ids, vec16(p)...), 0, 0, 0, 0)
			binders = append(binders, vec8(make([]byte, 32))...)
		}
		ext = append(ext, extension(extPreSharedKey, append(vec16(ids), vec16(binders)...))...)
	}
	return message(msgClientHello, append(b, vec16(ext)...))
}

func (s helloSpec) client() []byte { return records(recHandshake, s.clientMessage(), 0) }

// serverMessage selects versions[0] by extension, if there is one.
func (s helloSpec) serverMessage() []byte {
	b := append(s.head(), 0xc0, 0x2f, 0)
	if s.noExt {
		return message(msgServerHello, b)
	}
	ext := extension(23, nil)
	if len(s.versions) > 0 {
		ext = append(ext, extension(extSupportedVersions, u16(int(s.versions[0])))...)
	}
	if s.will {
		ext = append(ext, extension(extSessionTicket, nil)...)
	}
	if s.selected > 0 {
		ext = append(ext, extension(extPreSharedKey, u16(s.selected-1))...)
	}
	return message(msgServerHello, append(b, vec16(ext)...))
}

func (s helloSpec) server() []byte { return records(recHandshake, s.serverMessage(), 0) }

// v2Hello builds an SSLv2-compatible hello.
func v2Hello(v Version, id []byte) []byte {
	b := append([]byte{v2ClientHello}, u16(int(v))...)
	b = append(b, u16(6)...)
	b = append(b, u16(len(id))...)
	b = append(b, u16(16)...)
	b = append(b, 0, 0, 0x2f, 0, 0, 0x35)
	b = append(b, id...)
	b = append(b, make([]byte, 16)...)
	return append([]byte{0x80 | byte(len(b)>>8), byte(len(b))}, b...)
}

func newTicketMessage(ticket []byte) []byte {
	return message(msgNewSessionTicket, append([]byte{0, 0, 1, 44}, vec16(ticket)...))
}

var changeCipherSpec = []byte{recChangeCipherSpec, 3, 3, 0, 1, 1}

func fill(n int, first byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

func sid(b ...byte) SessionID {
	id, _ := SessionIDFrom(b)
	return id
}
