package healthcheck

import "github.com/lbprim/lbprim/internal/enum"

// Verdict is the outcome of one probe. The zero Verdict is [Inconclusive], which
// changes nothing, so that a forgotten verdict neither raises nor fells a target.
type Verdict uint8

const (
	// Inconclusive: the probe says nothing about the target, since it failed for
	// a reason on this machine.
	Inconclusive Verdict = iota
	// Pass: the target answered as it should.
	Pass
	// AssumedAlive: the target said nothing, and the check takes silence for
	// life, as a plain UDP check must. It counts as a pass.
	AssumedAlive
	// Fail: the target answered wrongly, too late, or not at all.
	Fail
)

var verdictNames = enum.Of[Verdict]("healthcheck: verdict", "inconclusive", "pass", "assumed-alive", "fail")

// OK reports whether v counts towards a rise.
func (v Verdict) OK() bool { return v == Pass || v == AssumedAlive }

// String returns the name of v.
func (v Verdict) String() string { return verdictNames.String(v) }

// AppendText implements [encoding.TextAppender].
func (v Verdict) AppendText(b []byte) ([]byte, error) { return verdictNames.Append(b, v) }

// MarshalText implements [encoding.TextMarshaler].
func (v Verdict) MarshalText() ([]byte, error) { return v.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (v *Verdict) UnmarshalText(text []byte) error { return verdictNames.Parse(v, text) }
