package healthcheck

import "github.com/lbprim/lbprim/internal/enum"

// Truth is a value of three-valued logic. The zero Truth is [IsUnknown].
type Truth uint8

const (
	IsUnknown Truth = iota // not known, or not yet
	IsUp                   // true
	IsDown                 // false
)

var truthNames = enum.Of[Truth]("healthcheck: truth", "unknown", "up", "down")

// Not returns the negation of t; that of unknown is unknown.
func (t Truth) Not() Truth {
	switch t {
	case IsUp:
		return IsDown
	case IsDown:
		return IsUp
	}
	return IsUnknown
}

// And returns down if t or u is down, up if both are up, else unknown.
func (t Truth) And(u Truth) Truth {
	switch {
	case t == IsDown || u == IsDown:
		return IsDown
	case t == IsUp && u == IsUp:
		return IsUp
	}
	return IsUnknown
}

// Or returns up if t or u is up, down if both are down, else unknown.
func (t Truth) Or(u Truth) Truth { return t.Not().And(u.Not()).Not() }

// String returns the name of t.
func (t Truth) String() string { return truthNames.String(t) }

// AppendText implements [encoding.TextAppender].
func (t Truth) AppendText(b []byte) ([]byte, error) { return truthNames.Append(b, t) }

// MarshalText implements [encoding.TextMarshaler].
func (t Truth) MarshalText() ([]byte, error) { return t.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Truth) UnmarshalText(text []byte) error { return truthNames.Parse(t, text) }
