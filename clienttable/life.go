package clienttable

import (
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// Class says how much an entry is worth when the table is full, and whether it
// ages. The zero Class is Established.
type Class uint8

const (
	// Established is a session in use. It is evicted only by [EvictOldest].
	Established Class = iota
	// HalfOpen is a session whose handshake is not complete.
	HalfOpen
	// Lingering is a session that has ended, kept for late packets.
	Lingering
	// Static is a configured entry: it never ages and is never evicted.
	Static
)

var classNames = enum.Of[Class]("clienttable: class", "established", "half-open", "lingering", "static")

// String returns the name of c.
func (c Class) String() string { return classNames.String(c) }

// AppendText implements encoding.TextAppender.
func (c Class) AppendText(b []byte) ([]byte, error) { return classNames.Append(b, c) }

// MarshalText implements encoding.TextMarshaler.
func (c Class) MarshalText() ([]byte, error) { return c.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Class) UnmarshalText(text []byte) error { return classNames.Parse(c, text) }

// Life is for how long an entry lives, and as what. The zero Life is an
// established entry that slides by the table's TTL. A Life may be copied.
type Life struct {
	// TTL is the idle time after which the entry is gone; 0 means the table's. It
	// is rounded up to whole milliseconds and at most [MaxTTL]. A negative TTL
	// means that the entry is gone at once.
	TTL time.Duration
	// Fixed entries live for TTL whether they are used or not.
	Fixed bool
	Class Class
}

// MaxTTL is the longest life of an entry that is not [Static]: about 8.7 years.
const MaxTTL = 1 << 38 * time.Millisecond

// Reason says why an entry left the table.
type Reason uint8

const (
	// Expired: it was idle for its whole TTL.
	Expired Reason = iota + 1
	// Deleted: by Delete, LoadAndDelete, DeleteFunc or Clear.
	Deleted
	// Replaced: Store put another value under its key.
	Replaced
	// Evicted: a new entry took its place in a full table.
	Evicted
	// NodeGone: its owner was invalidated.
	NodeGone
)

var reasonNames = enum.Of[Reason]("clienttable: reason", "", "expired", "deleted", "replaced", "evicted", "node-gone")

// String returns the name of r.
func (r Reason) String() string { return reasonNames.String(r) }

// AppendText implements encoding.TextAppender.
func (r Reason) AppendText(b []byte) ([]byte, error) { return reasonNames.Append(b, r) }

// MarshalText implements encoding.TextMarshaler.
func (r Reason) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Reason) UnmarshalText(text []byte) error { return reasonNames.Parse(r, text) }
