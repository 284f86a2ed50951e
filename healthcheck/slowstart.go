package healthcheck

import (
	"fmt"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// SlowStartMode is how a target that came back is given work.
type SlowStartMode uint8

const (
	// NoSlowStart: all at once.
	NoSlowStart SlowStartMode = iota
	// ServerSlowStart limits the sessions of a server: t whole seconds after it
	// came back to 10·t up to 20 s, to 20·t up to 29 s, and no longer from 30 s on.
	ServerSlowStart
	// PortSlowStart lets the session limit of a port grow in proportion to the
	// time, over 60 s. A port without limit has its weight grow instead.
	PortSlowStart
	// LinearSlowStart lets the weight grow in proportion to the time.
	LinearSlowStart
)

var slowStartNames = enum.Of[SlowStartMode]("healthcheck: slowStartMode", "none", "server", "port", "linear")

// String returns the name of m.
func (m SlowStartMode) String() string { return slowStartNames.String(m) }

// AppendText implements [encoding.TextAppender].
func (m SlowStartMode) AppendText(b []byte) ([]byte, error) { return slowStartNames.Append(b, m) }

// MarshalText implements [encoding.TextMarshaler].
func (m SlowStartMode) MarshalText() ([]byte, error) { return m.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *SlowStartMode) UnmarshalText(text []byte) error { return slowStartNames.Parse(m, text) }

// DefaultRamp is the length of a port's and of a linear slow start.
const DefaultRamp = 60 * time.Second

// SlowStart says how much a target may take at a time after it came back, see
// [Status.RampFrom]. The zero SlowStart limits nothing. It is a plain value; its
// methods are pure.
type SlowStart struct {
	Mode SlowStartMode // how much by when. Default: no slow start
	// Window is the length of a linear ramp; default 60 s. The lengths of the other
	// modes are fixed; it must be 0 there.
	Window time.Duration
}

// Validate reports a wrong field.
func (s SlowStart) Validate() error {
	switch {
	case int(s.Mode) >= slowStartNames.Len():
		return fmt.Errorf("healthcheck: SlowStart.Mode %d, want none, server, port or linear", s.Mode)
	case s.Mode != LinearSlowStart && s.Window != 0:
		return fmt.Errorf("healthcheck: SlowStart.Window %v with mode %v, want 0: only a linear ramp has a choice", s.Window, s.Mode)
	case s.Window < 0 || s.Window > MaxInterval:
		return fmt.Errorf("healthcheck: SlowStart.Window %v, want up to 24h", s.Window)
	}
	return nil
}

// Length returns how long the slow start takes.
func (s SlowStart) Length() time.Duration {
	switch s.Mode {
	case ServerSlowStart:
		return 30 * time.Second
	case PortSlowStart:
		return DefaultRamp
	case LinearSlowStart:
		if s.Window == 0 {
			return DefaultRamp
		}
		return s.Window
	}
	return 0
}

// Done reports whether the slow start is over when since has passed.
func (s SlowStart) Done(since time.Duration) bool { return since >= s.Length() }

// Sessions returns how many sessions the target may have when since has passed.
// limit is what it may have normally, negative meaning no limit, and so is the
// answer.
func (s SlowStart) Sessions(since time.Duration, limit int) int {
	if s.Done(since) {
		return limit
	}
	n := limit
	switch s.Mode {
	case ServerSlowStart:
		t := int(max(since, 0) / time.Second)
		n = 10 * t
		if t > 20 {
			n = 20 * t
		}
	case PortSlowStart:
		if limit >= 0 {
			n = share(since, s.Length(), limit)
		}
	}
	if limit >= 0 {
		n = min(n, limit)
	}
	return n
}

// Weight returns the weight the target has when since has passed. limit is as in
// Sessions. A weight that is not 0 is at least 1, so that the target is tried at
// all.
func (s SlowStart) Weight(since time.Duration, weight, limit int) int {
	if s.Done(since) || weight <= 0 || s.Mode == ServerSlowStart || s.Mode == PortSlowStart && limit >= 0 {
		return weight
	}
	return max(1, share(since, s.Length(), weight))
}

// share returns n·since/length without overflow on any machine.
func share(since, length time.Duration, n int) int {
	if since <= 0 {
		return 0
	}
	return int(float64(n) * (float64(since) / float64(length)))
}

// MinimumServers reports whether a virtual server that wants at least n usable
// servers may answer: it is silent below. It always needs one.
func MinimumServers(n int, states ...State) bool {
	usable := 0
	for _, s := range states {
		if s.Usable() {
			usable++
		}
	}
	return usable >= max(n, 1)
}
