package path

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/lbprim/lbprim/internal/enum"
)

var fallbackNames = enum.Of[Fallback]("path: fallback", "relay", "drop")

// String returns "relay" or "drop".
func (f Fallback) String() string { return fallbackNames.String(f) }

// AppendText implements [encoding.TextAppender].
func (f Fallback) AppendText(b []byte) ([]byte, error) { return fallbackNames.Append(b, f) }

// MarshalText implements [encoding.TextMarshaler].
func (f Fallback) MarshalText() ([]byte, error) { return f.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *Fallback) UnmarshalText(text []byte) error { return fallbackNames.Parse(f, text) }

var outcomeNames = enum.Of[Outcome]("path: outcome", "relayed", "sent", "dropped")

// String returns "relayed", "sent" or "dropped".
func (o Outcome) String() string { return outcomeNames.String(o) }

// AppendText implements [encoding.TextAppender].
func (o Outcome) AppendText(b []byte) ([]byte, error) { return outcomeNames.Append(b, o) }

// MarshalText implements [encoding.TextMarshaler].
func (o Outcome) MarshalText() ([]byte, error) { return o.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (o *Outcome) UnmarshalText(text []byte) error { return outcomeNames.Parse(o, text) }

// String returns the code point in decimal, or "none".
func (d DSCP) String() string {
	if v, ok := d.Value(); ok {
		return strconv.Itoa(int(v))
	}
	return "none"
}

// AppendText implements [encoding.TextAppender].
func (d DSCP) AppendText(b []byte) ([]byte, error) {
	if d > 64 {
		return b, fmt.Errorf("path: DSCP %d: want 0 to 63", uint8(d)-1)
	}
	return append(b, d.String()...), nil
}

// MarshalText implements [encoding.TextMarshaler].
func (d DSCP) MarshalText() ([]byte, error) { return d.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *DSCP) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*d = 0
		return nil
	}
	v, err := strconv.ParseUint(string(text), 10, 8)
	if err != nil || v > 63 {
		return fmt.Errorf("path: DSCP %q: want 0 to 63, or none", text)
	}
	*d = CodePoint(uint8(v))
	return nil
}

const fileVersion = 1

type file struct {
	Version int `json:"version"`
	Config
}

// Export returns the whole configuration as one file of JSON, the same bytes for the
// same configuration.
func (c *Config) Export() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(file{fileVersion, *c}, "", "  ")
	return append(b, '\n'), err
}

// Import reads a file of [Config.Export]. Unknown fields, other versions and faults are
// errors. Push the result to a running Engine with Set.
func Import(b []byte) (*Config, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var f file
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("path: import: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("path: import: more than one value in the file")
	}
	if f.Version != fileVersion {
		return nil, fmt.Errorf("path: import: version %d: want %d", f.Version, fileVersion)
	}
	if err := f.Validate(); err != nil {
		return nil, err
	}
	return &f.Config, nil
}
