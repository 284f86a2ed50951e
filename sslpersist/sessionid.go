package sslpersist

import (
	"encoding/hex"
	"fmt"
)

// maxKey is the longest session ID, and the longest ticket prefix.
const maxKey = 32

// key is what the tables are keyed by: up to 32 bytes, the rest zero. The length is a whole
// word behind them so that a key is copied in aligned pieces: with a byte in front, loads
// straddled two stores that were not yet done, at 20 ns a copy. The word behind it makes
// the last piece whole: 7 of 21 ns of ParseSessionID.
type key struct {
	b [maxKey]byte
	n uint64
	_ uint64
}

// fullKey is all zero but for its length, and never changed. Copied as a whole it writes
// the length and the word behind it as one piece, as they are read again.
var fullKey = key{n: maxKey}

func makeKey(b []byte) (k key) {
	if len(b) == maxKey {
		k.n, k.b = maxKey, [maxKey]byte(b)
		return k
	}
	k.n = uint64(copy(k.b[:], b))
	return k
}

func (k *key) bytes() []byte { return k.b[:k.n] }

// SessionID is a TLS session identifier of up to 32 bytes. It is comparable and can be
// copied and used as a map key. The zero SessionID is the empty one, which means none.
type SessionID struct{ k key }

// SessionIDFrom returns the ID with the given bytes, or false if there are more than 32.
func SessionIDFrom(b []byte) (id SessionID, ok bool) {
	if len(b) > maxKey {
		return SessionID{}, false
	}
	return SessionID{makeKey(b)}, true
}

// IsZero reports whether id is empty.
func (id SessionID) IsZero() bool { return id.k.n == 0 }

// Len returns the number of bytes, 0 to 32.
func (id SessionID) Len() int { return int(id.k.n) }

// AppendTo appends the bytes of id to b.
func (id SessionID) AppendTo(b []byte) []byte { return append(b, id.k.bytes()...) }

// AppendText appends id in hexadecimal, and never fails.
func (id SessionID) AppendText(b []byte) ([]byte, error) {
	return hex.AppendEncode(b, id.k.bytes()), nil
}

// MarshalText is AppendText into a new slice.
func (id SessionID) MarshalText() ([]byte, error) { return id.AppendText(nil) }

// String returns id in hexadecimal.
func (id SessionID) String() string { return hex.EncodeToString(id.k.bytes()) }

// UnmarshalText reads hexadecimal.
func (id *SessionID) UnmarshalText(text []byte) error { return id.k.unmarshal("session ID", text) }

// KeyName is the beginning of a session ticket, by which servers find the key that
// encrypted it. It is comparable and can be copied. The zero KeyName means none.
type KeyName struct{ k key }

// IsZero reports whether n is empty.
func (n KeyName) IsZero() bool { return n.k.n == 0 }

// Len returns the number of bytes, 0 to 32.
func (n KeyName) Len() int { return int(n.k.n) }

// AppendTo appends the bytes of n to b.
func (n KeyName) AppendTo(b []byte) []byte { return append(b, n.k.bytes()...) }

// AppendText appends n in hexadecimal, and never fails.
func (n KeyName) AppendText(b []byte) ([]byte, error) { return hex.AppendEncode(b, n.k.bytes()), nil }

// MarshalText is AppendText into a new slice.
func (n KeyName) MarshalText() ([]byte, error) { return n.AppendText(nil) }

// String returns n in hexadecimal.
func (n KeyName) String() string { return hex.EncodeToString(n.k.bytes()) }

// UnmarshalText reads hexadecimal.
func (n *KeyName) UnmarshalText(text []byte) error { return n.k.unmarshal("key name", text) }

func (k *key) unmarshal(what string, text []byte) error {
	if len(text) > 2*maxKey {
		return fmt.Errorf("sslpersist: %s of %d hexadecimal digits: want at most %d", what, len(text), 2*maxKey)
	}
	var b [maxKey]byte
	n, err := hex.Decode(b[:], text)
	if err != nil {
		return fmt.Errorf("sslpersist: %s %q: %w", what, text, err)
	}
	*k = key{b: b, n: uint64(n)}
	return nil
}
