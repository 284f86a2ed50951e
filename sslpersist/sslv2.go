package sslpersist

import "encoding/binary"

// Message types of SSL 2.0.
const (
	v2Error       = 0
	v2ClientHello = 1
	v2ServerHello = 4
)

// v2Fixed is the part of either hello before its variable fields.
const (
	v2ClientFixed = 9
	v2ServerFixed = 11
)

// parseV2Client reads a client hello in the SSLv2-compatible format (RFC 5246, appendix
// E.2), without its two-byte header:
//
//	type 1 | version 2 | cipher specs' length 2 | ID's length 2 | challenge's length 2 | …
func parseV2Client(h *ClientHello, b []byte) error {
	h.SSLv2 = true
	if len(b) < v2ClientFixed {
		return errSSLv2
	}
	h.LegacyVersion = Version(binary.BigEndian.Uint16(b[1:]))
	h.Version = h.LegacyVersion
	ciphers := int(binary.BigEndian.Uint16(b[3:]))
	id := int(binary.BigEndian.Uint16(b[5:]))
	challenge := int(binary.BigEndian.Uint16(b[7:]))
	if id > maxKey {
		return errSessionID
	}
	if ciphers == 0 || ciphers%3 != 0 || v2ClientFixed+ciphers+id+challenge != len(b) {
		return errSSLv2
	}
	at := v2ClientFixed + ciphers
	h.SessionID.k = makeKey(b[at : at+id])
	return nil
}

// parseV2Server reads a server hello of SSL 2.0, without its two-byte header:
//
//	type 1 | session ID hit 1 | certificate type 1 | version 2 | three lengths 6 | …
//
// It holds a connection ID, but no session ID: that one follows encrypted.
func parseV2Server(h *ServerHello, b []byte) error {
	h.SSLv2 = true
	if len(b) < v2ServerFixed {
		return errSSLv2
	}
	h.Hit = b[1] != 0
	h.LegacyVersion = Version(binary.BigEndian.Uint16(b[3:]))
	h.Version = h.LegacyVersion
	sum := v2ServerFixed
	for i := 5; i < v2ServerFixed; i += 2 {
		sum += int(binary.BigEndian.Uint16(b[i:]))
	}
	if sum != len(b) {
		return errSSLv2
	}
	return nil
}
