package sslpersist

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a protocol version as on the wire. Drafts of TLS 1.3 are 0x7f00 plus their
// number. The zero Version means unknown.
type Version uint16

// The released versions.
const (
	SSL20 Version = 0x0002
	SSL30 Version = 0x0300
	TLS10 Version = 0x0301
	TLS11 Version = 0x0302
	TLS12 Version = 0x0303
	TLS13 Version = 0x0304
)

// IsTLS13 reports whether v is TLS 1.3, a draft of it, or something newer. From there on
// a session ID means nothing.
func (v Version) IsTLS13() bool { return v >= TLS13 }

// rank orders versions by age: a draft is older than the release. Unknown ones are 0,
// among them the values 0x?A?A of RFC 8701 (GREASE), which mean nothing.
func (v Version) rank() int {
	switch v >> 8 {
	case 3:
		if v < TLS13 {
			return int(v)
		}
		return int(v) + 0x100
	case 0x7f:
		if v > 0x7f00 {
			return int(TLS13) + int(v&0xff)
		}
	case 0:
		if v == SSL20 {
			return 1
		}
	}
	return 0
}

var versionNames = [...]string{"SSL 3.0", "TLS 1.0", "TLS 1.1", "TLS 1.2", "TLS 1.3"}

const draftName = "TLS 1.3 draft "

// AppendText appends the name of v, "TLS 1.2" for example, and never fails. Versions
// without a name are written in hexadecimal.
func (v Version) AppendText(b []byte) ([]byte, error) {
	switch {
	case v == SSL20:
		return append(b, "SSL 2.0"...), nil
	case v >= SSL30 && v <= TLS13:
		return append(b, versionNames[v-SSL30]...), nil
	case v > 0x7f00 && v <= 0x7fff:
		return strconv.AppendUint(append(b, draftName...), uint64(v&0xff), 10), nil
	}
	return fmt.Appendf(b, "0x%04x", uint16(v)), nil
}

// MarshalText is AppendText into a new slice.
func (v Version) MarshalText() ([]byte, error) { return v.AppendText(nil) }

// String returns the name of v.
func (v Version) String() string {
	b, _ := v.AppendText(nil)
	return string(b)
}

// UnmarshalText reads what AppendText writes.
func (v *Version) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "SSL 2.0" {
		*v = SSL20
		return nil
	}
	for i, name := range versionNames {
		if s == name {
			*v = SSL30 + Version(i)
			return nil
		}
	}
	if d, ok := strings.CutPrefix(s, draftName); ok {
		if n, err := strconv.ParseUint(d, 10, 8); err == nil && n > 0 {
			*v = 0x7f00 + Version(n)
			return nil
		}
	}
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		if n, err := strconv.ParseUint(h, 16, 16); err == nil {
			*v = Version(n)
			return nil
		}
	}
	return fmt.Errorf("sslpersist: version %q: want \"SSL 3.0\", \"TLS 1.2\" and the like, \"TLS 1.3 draft 23\" or \"0x7f17\"", s)
}
