package healthcheck

import "github.com/lbprim/lbprim/internal/enum"

// State is what is believed of a server, a port or a check. The zero State,
// [Enabled], is not usable.
type State uint8

const (
	// Enabled: nothing is known yet. A server without link or still resolving, a
	// port whose server is not up, a check without a result.
	Enabled State = iota
	// Testing: being brought up, with not enough passes so far.
	Testing
	// Active: healthy.
	Active
	// Suspect: something is amiss, but not often or long enough to give up. Still
	// in use.
	Suspect
	// Failed: the retries are used up.
	Failed
	// Graceful: shutting down; existing sessions only.
	Graceful
	// Unbound: a port no virtual port is bound to.
	Unbound

	numStates = int(Unbound) + 1
)

// Shorter names for those who only ask whether a target is up.
const (
	Unknown = Enabled
	Up      = Active
	Down    = Failed
)

var stateNames = enum.Of[State]("healthcheck: state", "enabled", "testing", "active", "suspect", "failed", "graceful", "unbound")

// Usable reports whether a target in state s may be given new sessions.
func (s State) Usable() bool { return s == Active || s == Suspect }

// KeepsSessions reports whether a target in state s may keep the sessions it has.
func (s State) KeepsSessions() bool { return s.Usable() || s == Graceful }

// Truth is what s means to a boolean policy: down if failed, unbound or shutting
// down, unknown while nothing is settled.
func (s State) Truth() Truth {
	switch s {
	case Active, Suspect:
		return IsUp
	case Failed, Graceful, Unbound:
		return IsDown
	}
	return IsUnknown
}

// String returns the name of s.
func (s State) String() string { return stateNames.String(s) }

// AppendText implements [encoding.TextAppender].
func (s State) AppendText(b []byte) ([]byte, error) { return stateNames.Append(b, s) }

// MarshalText implements [encoding.TextMarshaler].
func (s State) MarshalText() ([]byte, error) { return s.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *State) UnmarshalText(text []byte) error { return stateNames.Parse(s, text) }
