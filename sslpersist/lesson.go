package sslpersist

import "github.com/lbprim/lbprim/internal/enum"

// LessonKind says what a [Lesson] is about.
type LessonKind uint8

const (
	// NoLesson is the zero LessonKind.
	NoLesson LessonKind = iota
	// LearnID says that the server holds the session of ID: bind it.
	LearnID
	// RefreshID says that ID was used, but perhaps not understood: if it is known, it
	// lives on; never bind it anew.
	RefreshID
	// LearnKey says that the server issued or accepted a ticket with this mark.
	LearnKey
	// Finished says that the server ended a handshake of TLS 1.2 or older: what it issued
	// is good, and whoever asked for it really did a handshake.
	Finished
)

var lessonNames = enum.Of[LessonKind]("sslpersist: lesson kind", "none", "learn ID", "refresh ID", "learn key", "finished")

// AppendText appends the name of k.
func (k LessonKind) AppendText(b []byte) ([]byte, error) { return lessonNames.Append(b, k) }

// MarshalText is AppendText into a new slice.
func (k LessonKind) MarshalText() ([]byte, error) { return k.AppendText(nil) }

// String returns the name of k.
func (k LessonKind) String() string { return lessonNames.String(k) }

// UnmarshalText reads what AppendText writes.
func (k *LessonKind) UnmarshalText(text []byte) error { return lessonNames.Parse(k, text) }

// Lesson is one thing that a server's reply teaches. The zero Lesson teaches nothing. It
// holds no reference to the parsed bytes.
type Lesson struct {
	Kind   LessonKind // what is to be done with it
	ID     SessionID  // of lessons about session IDs
	Ticket TicketMark // of lessons about tickets
}

// TicketMark is what is remembered of a session ticket: its first 32 bytes, which begin
// with the key name, and a fingerprint to tell it from another ticket. The zero
// TicketMark is that of no ticket. It is comparable and can be copied.
type TicketMark struct {
	start key
	print uint64
}

// MarkTicket returns the mark of a ticket, which is the zero one if the ticket is empty.
func MarkTicket(ticket []byte) TicketMark {
	if len(ticket) == 0 {
		return TicketMark{}
	}
	return TicketMark{makeKey(ticket[:min(maxKey, len(ticket))]), fingerprint(ticket)}
}

// IsZero reports whether m is the mark of no ticket.
func (m TicketMark) IsZero() bool { return m.start.n == 0 }

// KeyName returns the first n bytes of the ticket, or the zero KeyName if it does not
// have more than that: then it is not a ticket of a server that marks its tickets so.
func (m *TicketMark) KeyName(n int) KeyName {
	if n < 1 || n > int(m.start.n) || n == int(m.start.n) && n < maxKey {
		return KeyName{}
	}
	return KeyName{makeKey(m.start.b[:n])}
}
