package clienttable

import "github.com/lbprim/lbprim/internal/enum"

// Mode says which entries a session of a farm makes, and what becomes of them when
// the session ends. The zero Mode is EntryPerSession.
//
//	mode                           entry's key     another source port of a known client   at session end
//	EntryPerSession                full Layer 4    new entry, same server                  ages out
//	Regular                        [RegularKey]    same entry, same server                 ages out
//	ServerPerSession               full Layer 4    new entry, new selection                ages out
//	RemoveOnEndEntryPerSession     full Layer 4    new entry, same server                  removed after the linger
//	RemoveOnEndServerPerSession    full Layer 4    new entry, new selection                removed after the linger
//
// That a new entry gets the same server is the work of a second, coarser entry,
// [FarmKey].
type Mode uint8

// The session modes.
const (
	EntryPerSession Mode = iota
	Regular
	ServerPerSession
	RemoveOnEndEntryPerSession
	RemoveOnEndServerPerSession
)

var modeNames = enum.Of[Mode]("clienttable: session mode", "entry-per-session", "regular", "server-per-session",
	"remove-on-end-entry-per-session", "remove-on-end-server-per-session")

// LegacyMode returns the mode that the two older switches stand for: a new entry,
// and a new server, for another source port of a known client. A new server needs
// a new entry, so the second switch includes the first.
func LegacyMode(newEntry, newServer bool) Mode {
	switch {
	case newServer:
		return ServerPerSession
	case newEntry:
		return EntryPerSession
	}
	return Regular
}

// FullKey reports whether sessions are found by their full Layer 4 key alone. In
// the mode Regular they are found by [RegularKey].
func (m Mode) FullKey() bool { return m != Regular }

// SameServer reports whether all sessions of a client go to one server.
func (m Mode) SameServer() bool {
	return m != ServerPerSession && m != RemoveOnEndServerPerSession
}

// RemoveOnEnd reports whether an entry is removed when its TCP session has ended.
func (m Mode) RemoveOnEnd() bool {
	return m == RemoveOnEndEntryPerSession || m == RemoveOnEndServerPerSession
}

// String returns the name of m.
func (m Mode) String() string { return modeNames.String(m) }

// AppendText implements encoding.TextAppender.
func (m Mode) AppendText(b []byte) ([]byte, error) { return modeNames.Append(b, m) }

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return m.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error { return modeNames.Parse(m, text) }
