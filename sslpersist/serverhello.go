package sslpersist

import (
	"encoding/binary"
)

// ServerHello is what persistence needs of a ServerHello. It holds no reference to the
// parsed bytes.
type ServerHello struct {
	// Version is the version selected.
	Version Version
	// LegacyVersion is the version field of the hello itself.
	LegacyVersion Version
	// SessionID is the ID of the hello: issued, or the client's own. In TLS 1.3 it is
	// always the client's and means nothing; drafts before 22 have none.
	SessionID SessionID
	// HelloRetryRequest says that this is no answer yet: the client must send a second
	// hello.
	HelloRetryRequest bool
	// HasPSK says that the server accepted the client's pre-shared key number PSK,
	// counted from 0: a resumption.
	HasPSK bool
	PSK    uint16
	// WillTicket says that a NewSessionTicket message will follow (TLS 1.2 and before).
	WillTicket bool
	// SSLv2 says that this is a hello of SSL 2.0 itself. It carries no session ID.
	SSLv2 bool
	// Hit says that a server of SSL 2.0 knows the client's session ID.
	Hit bool
}

// retryRandom marks a HelloRetryRequest (RFC 8446, section 4.1.3): it is the SHA-256 of
// that very word.
const retryRandom = "\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91" +
	"\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c"

// parseServerBody reads the body of a ServerHello (RFC 8446, section 4.1.3):
//
//	version 2 | random 32 | id 1+n | cipher suite 2 | compression 1 | extensions 2+n
//
// Drafts of TLS 1.3 before 22 say so in the version field and have neither the ID nor the
// compression method.
func parseServerBody(h *ServerHello, b []byte) error {
	const fixed = 2 + 32
	if len(b) < fixed {
		return errTruncated
	}
	h.LegacyVersion = Version(binary.BigEndian.Uint16(b))
	h.Version = h.LegacyVersion
	if h.Version.rank() == 0 || h.Version == SSL20 {
		return errVersion
	}
	h.HelloRetryRequest = string(b[2:fixed]) == retryRandom
	b = b[fixed:]
	tail := 2
	if !h.Version.IsTLS13() {
		if len(b) < 1 {
			return errTruncated
		}
		n := int(b[0])
		if n > maxKey {
			return errSessionID
		}
		if b = b[1:]; len(b) < n {
			return errTruncated
		}
		h.SessionID.k = makeKey(b[:n])
		b = b[n:]
		tail = 3
	}
	if len(b) < tail {
		return errNoCipherServer
	}
	return parseServerExtensions(h, b[tail:])
}

func parseServerExtensions(h *ServerHello, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
		return errTruncated
	}
	if len(b)-2 > int(binary.BigEndian.Uint16(b)) {
		return errTrailing
	}
	var seen uint64
	for b = b[2:]; len(b) > 0; {
		if len(b) < 4 {
			return errTruncated
		}
		typ, n := binary.BigEndian.Uint16(b), 4+int(binary.BigEndian.Uint16(b[2:]))
		if len(b) < n {
			return errTruncated
		}
		body := b[4:n]
		b = b[n:]
		switch typ {
		case extSessionTicket:
			h.WillTicket = true
		case extSupportedVersions:
			if len(body) != 2 {
				return errVersions
			}
			h.Version = Version(binary.BigEndian.Uint16(body))
		case extPreSharedKey:
			if len(body) != 2 {
				return errPSK
			}
			h.HasPSK, h.PSK = true, binary.BigEndian.Uint16(body)
		default:
			continue
		}
		if seen&(1<<typ) != 0 {
			return errDuplicate
		}
		seen |= 1 << typ
	}
	return nil
}

// parseRetryBody reads a HelloRetryRequest of the drafts before 22, a message of its own
// that begins with the version.
func parseRetryBody(h *ServerHello, b []byte) error {
	if len(b) < 2 {
		return errTruncated
	}
	h.LegacyVersion = Version(binary.BigEndian.Uint16(b))
	h.Version = h.LegacyVersion
	if !h.Version.IsTLS13() {
		return errVersion
	}
	h.HelloRetryRequest = true
	return nil
}
