package probe

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5" // what RADIUS is made of
	"encoding/binary"
	"fmt"

	"github.com/lbprim/lbprim/healthcheck"
)

// Codes and attributes (RFC 2865 sections 3 and 5, RFC 3579 section 3.2, RFC 5997).
const (
	radiusAccessRequest  = 1
	radiusAccessAccept   = 2
	radiusAccessReject   = 3
	radiusAccounting     = 5
	radiusChallenge      = 11
	radiusStatusServer   = 12
	radiusUserName       = 1
	radiusUserPassword   = 2
	radiusNASIdentifier  = 32
	radiusMessageAuth    = 80
	radiusHeader         = 20
	radiusMaxPacket      = 4096
	radiusMessageAuthLen = 2 + md5.Size
)

// radiusRequest returns a packet:
//
//	code | identifier | length (2) | authenticator (16) | attributes: type, length, value
//
// Message-Authenticator comes first, as servers hardened against BlastRADIUS demand.
func radiusRequest(code, id byte, auth [16]byte, key, user, password, nas string) []byte {
	b := append([]byte{code, id, 0, 0}, auth[:]...)
	b = append(b, radiusMessageAuth, radiusMessageAuthLen)
	b = append(b, make([]byte, md5.Size)...)
	attr := func(t byte, v []byte) { b = append(append(b, t, byte(2+len(v))), v...) }
	if code == radiusAccessRequest {
		attr(radiusUserName, []byte(user))
		attr(radiusUserPassword, hidePassword(password, key, auth))
	}
	attr(radiusNASIdentifier, []byte(nas))
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	mac := hmac.New(md5.New, []byte(key))
	mac.Write(b)
	copy(b[radiusHeader+2:], mac.Sum(nil))
	return b
}

// hidePassword is RFC 2865 section 5.2.
func hidePassword(password, key string, auth [16]byte) []byte {
	out := make([]byte, max(16, (len(password)+15)/16*16))
	copy(out, password)
	last := auth[:]
	for i := 0; i < len(out); i += 16 {
		sum := md5.Sum(append([]byte(key), last...))
		for j := range sum {
			out[i+j] ^= sum[j]
		}
		last = out[i : i+16]
	}
	return out
}

// parseRADIUS returns the code of a reply to the request with id and auth, after
// checking its authenticators. It returns an *ignoredError for replies to others.
func parseRADIUS(b []byte, id byte, auth [16]byte, key string, needMA bool) (code byte, err error) {
	if len(b) < radiusHeader {
		return 0, healthcheck.Mismatch(b, "a packet of at least 20 bytes")
	}
	code = b[0]
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < radiusHeader || n > len(b) || n > radiusMaxPacket {
		return code, healthcheck.Mismatch(fmt.Sprintf("length %d in %d bytes", n, len(b)), "a length of 20 up to the packet's")
	}
	if b[1] != id {
		return code, ignoref("identifier %d, want %d", b[1], id)
	}
	b = b[:n] // what follows is padding
	// Response Authenticator = MD5(Code+ID+Length+RequestAuth+Attributes+Secret)
	h := md5.New()
	h.Write(b[:4])
	h.Write(auth[:])
	h.Write(b[radiusHeader:])
	h.Write([]byte(key))
	if !hmac.Equal(h.Sum(nil), b[4:radiusHeader]) {
		return code, healthcheck.Mismatch("a wrong response authenticator", "one made with the key")
	}
	seen := false
	for at := radiusHeader; at < n; {
		if n-at < 2 || b[at+1] < 2 || int(b[at+1]) > n-at {
			return code, healthcheck.Mismatch(b[at:n], "whole attributes")
		}
		end := at + int(b[at+1])
		if b[at] == radiusMessageAuth {
			if !goodMessageAuth(b, at, end, auth, key) {
				return code, healthcheck.Mismatch("a wrong Message-Authenticator", "one made with the key")
			}
			seen = true
		}
		at = end
	}
	if needMA && !seen {
		return code, healthcheck.Mismatch("no Message-Authenticator", "one, as RequireMessageAuthenticator is set")
	}
	return code, nil
}

// goodMessageAuth checks HMAC-MD5 over the packet with the request's authenticator in
// place of the reply's and zeros in place of the attribute's value.
func goodMessageAuth(b []byte, at, end int, auth [16]byte, key string) bool {
	if end-at != radiusMessageAuthLen {
		return false
	}
	c := bytes.Clone(b)
	copy(c[4:], auth[:])
	clear(c[at+2 : end])
	mac := hmac.New(md5.New, []byte(key))
	mac.Write(c)
	return hmac.Equal(mac.Sum(nil), b[at+2:end])
}
