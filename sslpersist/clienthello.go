package sslpersist

import (
	"encoding/binary"
	"iter"
)

// Extension numbers of the IANA registry "TLS ExtensionType Values".
const (
	extServerName        = 0
	extALPN              = 16
	extSessionTicket     = 35
	extPreSharedKey      = 41
	extEarlyData         = 42
	extSupportedVersions = 43
)

// ClientHello is what persistence and Layer 7 rules need of a ClientHello. Its slices
// alias the parsed bytes (the caller's, or the buffer of the [Parser]), so they are valid
// as long as those are; the rest is a copy. The zero value is a hello that says nothing.
type ClientHello struct {
	// Version is the highest version offered; GREASE is ignored.
	Version Version
	// LegacyVersion is the version field of the hello itself, which TLS 1.3 freezes at 1.2.
	LegacyVersion Version
	// SessionID is the session the client wants to resume. A client that offers TLS 1.3
	// may send a random one on first contact.
	SessionID SessionID
	// ServerName is the host name of the SNI extension as sent, or nil.
	ServerName []byte
	// Ticket is the session ticket of RFC 5077: nil without the extension, empty if the
	// client only says that it takes tickets.
	Ticket []byte
	// HasPSK says that the client offers pre-shared keys, as TLS 1.3 resumption does.
	HasPSK bool
	// EarlyData says that the client sends 0-RTT data behind the hello.
	EarlyData bool
	// SSLv2 says that the hello came in the SSLv2-compatible format.
	SSLv2 bool

	alpn, psks []byte // lists as on the wire, lengths checked
}

// ALPN returns the application protocols offered, in order.
func (h *ClientHello) ALPN() iter.Seq[[]byte] {
	list := h.alpn
	return func(yield func([]byte) bool) {
		for b := list; len(b) > 0; {
			n := 1 + int(b[0])
			if !yield(b[1:n:n]) {
				return
			}
			b = b[n:]
		}
	}
}

// PSKIdentities returns the pre-shared key identities offered, in order. In a resumption
// an identity is a session ticket.
func (h *ClientHello) PSKIdentities() iter.Seq[[]byte] {
	list := h.psks
	return func(yield func([]byte) bool) {
		for len(list) > 0 {
			var id []byte
			if id, list = nextPSK(list); !yield(id) {
				return
			}
		}
	}
}

// nextPSK takes the first identity off a checked list (RFC 8446, section 4.2.11).
func nextPSK(list []byte) (id, rest []byte) {
	n := 2 + int(binary.BigEndian.Uint16(list))
	return list[2:n:n], list[n+4:]
}

// parseClientBody reads the body of a ClientHello (RFC 8446, section 4.1.2):
//
//	version 2 | random 32 | id 1+n | cipher suites 2+n | compression 1+n | extensions 2+n
//
// Extensions may be missing. On an error h holds what was read until then.
func parseClientBody(h *ClientHello, b []byte) error {
	const fixed = 2 + 32
	if len(b) < fixed+1 {
		return errTruncated
	}
	h.LegacyVersion = Version(binary.BigEndian.Uint16(b))
	h.Version = h.LegacyVersion
	if b[0] != 3 {
		return errVersion
	}
	n := int(b[fixed])
	if n > maxKey {
		return errSessionID
	}
	b = b[fixed+1:]
	if len(b) < n+2 {
		return errTruncated
	}
	h.SessionID.k = makeKey(b[:n])
	b = b[n:]
	n = int(binary.BigEndian.Uint16(b))
	if n == 0 || n&1 != 0 {
		return errCiphers
	}
	b = b[2:]
	if len(b) < n+1 {
		return errTruncated
	}
	b = b[n:]
	n = int(b[0])
	if n == 0 {
		return errCompression
	}
	b = b[1:]
	if len(b) < n {
		return errTruncated
	}
	b = b[n:]
	if len(b) == 0 {
		return nil
	}
	if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
		return errTruncated
	}
	if len(b)-2 > int(binary.BigEndian.Uint16(b)) {
		return errTrailing
	}
	return parseClientExtensions(h, b[2:])
}

func parseClientExtensions(h *ClientHello, b []byte) error {
	var seen uint64
	for len(b) > 0 {
		if len(b) < 4 {
			return errTruncated
		}
		typ, n := binary.BigEndian.Uint16(b), 4+int(binary.BigEndian.Uint16(b[2:]))
		if len(b) < n {
			return errTruncated
		}
		body := b[4:n:n]
		b = b[n:]
		if typ > extSupportedVersions {
			continue
		}
		var err error
		switch typ {
		case extServerName:
			h.ServerName, err = parseServerName(body)
		case extALPN:
			h.alpn, err = parseALPN(body)
		case extSessionTicket:
			h.Ticket = body
		case extEarlyData:
			h.EarlyData = true
		case extSupportedVersions:
			h.Version, err = highestVersion(h.Version, body)
		case extPreSharedKey:
			h.HasPSK = true
			h.psks, err = parsePSKs(body)
		default:
			continue
		}
		if err != nil {
			return err
		}
		if seen&(1<<typ) != 0 {
			return errDuplicate
		}
		seen |= 1 << typ
	}
	return nil
}

// parseServerName returns the first host name of the list (RFC 6066, section 3).
func parseServerName(b []byte) (name []byte, err error) {
	if len(b) < 2 || int(binary.BigEndian.Uint16(b)) != len(b)-2 {
		return nil, errServerName
	}
	for b = b[2:]; len(b) > 0; {
		if len(b) < 3 {
			return nil, errServerName
		}
		n := 3 + int(binary.BigEndian.Uint16(b[1:]))
		if n == 3 || len(b) < n {
			return nil, errServerName
		}
		if b[0] == 0 && name == nil {
			name = b[3:n:n]
		}
		b = b[n:]
	}
	if name == nil {
		return nil, errServerName
	}
	return name, nil
}

// parseALPN checks the list of protocol names (RFC 7301, section 3.1).
func parseALPN(b []byte) (list []byte, err error) {
	if len(b) < 4 || int(binary.BigEndian.Uint16(b)) != len(b)-2 {
		return nil, errALPN
	}
	list = b[2:]
	for b = list; len(b) > 0; {
		n := 1 + int(b[0])
		if n == 1 || len(b) < n {
			return nil, errALPN
		}
		b = b[n:]
	}
	return list, nil
}

// highestVersion returns the highest version of the list that is known (RFC 8446, section
// 4.2.1), or legacy if none is.
func highestVersion(legacy Version, b []byte) (Version, error) {
	if len(b) < 3 || len(b)&1 != 1 || int(b[0]) != len(b)-1 {
		return legacy, errVersions
	}
	best, rank := legacy, 0
	for b = b[1:]; len(b) > 0; b = b[2:] {
		v := Version(binary.BigEndian.Uint16(b))
		if r := v.rank(); r > rank {
			best, rank = v, r
		}
	}
	return best, nil
}

// parsePSKs checks the list of identities (RFC 8446, section 4.2.11). The binders behind
// it prove something to the server only; their presence is not looked at, since early
// drafts had none.
func parsePSKs(b []byte) (list []byte, err error) {
	if len(b) < 2 {
		return nil, errPSK
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	if n == 2 || len(b) < n {
		return nil, errPSK
	}
	list = b[2:n:n]
	for b = list; len(b) > 0; {
		if len(b) < 2 {
			return nil, errPSK
		}
		n := 2 + int(binary.BigEndian.Uint16(b)) + 4
		if n == 6 || len(b) < n {
			return nil, errPSK
		}
		b = b[n:]
	}
	return list, nil
}
