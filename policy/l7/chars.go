package l7

import (
	"bytes"
	"strings"
)

func isSpace(c byte) bool { return c == ' ' || c == '\t' }

// isToken reports whether c may be in a token, RFC 9110 section 5.6.2.
func isToken(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c > ' ' && c < 0x7f && strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func allToken(b []byte) bool {
	for _, c := range b {
		if !isToken(c) {
			return false
		}
	}
	return len(b) > 0
}

func isScheme(b []byte) bool {
	for i, c := range b {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '+' && c != '-' && c != '.') {
			return false
		}
	}
	return len(b) > 0
}

// isHostByte reports whether c may be in a host that is not in brackets.
func isHostByte(c byte) bool {
	return c > ' ' && c < 0x7f && strings.IndexByte("\"#,/:<>?@[\\]^`{|}", c) < 0
}

// validHost reports whether b can be a host with or without port, or is empty: no user, no
// list, no path, no white space. RFC 3986 section 3.2 without userinfo and with non-ASCII names
// refused.
func validHost(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	var rest []byte
	if b[0] == '[' {
		end := bytes.IndexByte(b, ']')
		if end < 0 {
			return false
		}
		for _, c := range b[1:end] {
			if !isHex(c) && c != ':' && c != '.' {
				return false
			}
		}
		rest = b[end+1:]
		if len(rest) > 0 && rest[0] != ':' {
			return false
		}
	} else {
		i := bytes.IndexByte(b, ':')
		if i < 0 {
			i = len(b)
		}
		for _, c := range b[:i] {
			if !isHostByte(c) {
				return false
			}
		}
		if i == 0 {
			return false
		}
		rest = b[i:]
	}
	for i, c := range rest {
		if i > 0 && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// hostName strips port, brackets' surroundings and the root dot.
func hostName(b []byte) []byte {
	if len(b) > 0 && b[0] == '[' {
		return b[:bytes.IndexByte(b, ']')+1]
	}
	if i := bytes.IndexByte(b, ':'); i >= 0 {
		b = b[:i]
	}
	return bytes.TrimSuffix(b, []byte("."))
}

// sameHost compares two hosts, with ports if both have one: the Host field may leave out
// the scheme's default port.
func sameHost(a, b []byte) bool {
	if !bytes.EqualFold(hostName(a), hostName(b)) {
		return false
	}
	p, q := hostPort(a), hostPort(b)
	return len(p) == 0 || len(q) == 0 || bytes.Equal(p, q)
}

func hostPort(b []byte) []byte {
	if i := bytes.LastIndexByte(b, ':'); i >= 0 && bytes.IndexByte(b[i:], ']') < 0 {
		return b[i+1:]
	}
	return nil
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}

// equalFold compares ASCII letters in any case; s is in lower case.
func equalFold(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i := range len(b) {
		if lower(b[i]) != s[i] {
			return false
		}
	}
	return true
}
