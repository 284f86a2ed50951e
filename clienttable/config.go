package clienttable

import (
	"errors"
	"fmt"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// Defaults of [Config].
const (
	DefaultMaxEntries = 1 << 20
	DefaultTTL        = time.Minute
	DefaultFillWarn   = 85
)

// maxMaxEntries keeps slot numbers within 32 bits.
const maxMaxEntries = 1 << 30

// Errors of a Table.
var (
	// ErrFull is returned by methods that store when the table is full of entries
	// that may not be evicted.
	ErrFull = errors.New("clienttable: full")
	// ErrClosed is returned by methods that store after Close.
	ErrClosed = errors.New("clienttable: closed")
	// ErrInvalid is wrapped by the errors of New, one for each fault.
	ErrInvalid = errors.New("clienttable: invalid configuration")
)

// FullAction says what a new entry does to a full table.
type FullAction uint8

const (
	// RejectNew refuses the new entry with [ErrFull].
	RejectNew FullAction = iota
	// EvictOldest evicts the entry that was used least recently, of some hundred
	// that are looked at: of all, in a table of up to 512.
	EvictOldest
)

var fullNames = enum.Of[FullAction]("clienttable: full action", "reject-new", "evict-oldest")

// String returns the name of a.
func (a FullAction) String() string { return fullNames.String(a) }

// AppendText implements encoding.TextAppender.
func (a FullAction) AppendText(b []byte) ([]byte, error) { return fullNames.Append(b, a) }

// MarshalText implements encoding.TextMarshaler.
func (a FullAction) MarshalText() ([]byte, error) { return a.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *FullAction) UnmarshalText(text []byte) error { return fullNames.Parse(a, text) }

// Layout is how a table stores its entries.
type Layout uint8

const (
	// AutoLayout is Packed where the types allow it, else Heap.
	AutoLayout Layout = iota
	// Packed keeps entries as plain words outside the Go heap. Key and value must
	// be free of pointers and padding, the key free of floats.
	Packed
	// Heap keeps entries on the Go heap. Each store allocates.
	Heap
)

var layoutNames = enum.Of[Layout]("clienttable: layout", "auto", "packed", "heap")

// String returns the name of l.
func (l Layout) String() string { return layoutNames.String(l) }

// AppendText implements encoding.TextAppender.
func (l Layout) AppendText(b []byte) ([]byte, error) { return layoutNames.Append(b, l) }

// MarshalText implements encoding.TextMarshaler.
func (l Layout) MarshalText() ([]byte, error) { return l.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Layout) UnmarshalText(text []byte) error { return layoutNames.Parse(l, text) }

// Config configures a [Table]. A nil Config, and every zero field, takes the
// default. New keeps a copy.
//
// MaxEntries can change while the table is in use. The rest stays, as entries are
// stored by it; each can have a life of its own, and SetTTL and SetLife change that.
type Config[K comparable, V any] struct {
	// MaxEntries is the bound, and fixes the memory: about 1.09 × (key + value + 9
	// bytes) per entry, 8 bytes more with an Owner. Default 1,048,576; at most 2^30.
	// Grow and Shrink change it.
	MaxEntries int
	// TTL is the idle time of entries that are stored without another. Default one
	// minute; at most [MaxTTL].
	TTL time.Duration
	// Full says what a new entry does to a table full of established entries.
	Full FullAction
	// Layout of the storage. Default: packed where the types allow it.
	Layout Layout

	// OnRemove, if set, is called exactly once for every entry that leaves the
	// table, with the reason, outside of all locks, by the goroutine whose call
	// removed it. It may use the table.
	OnRemove func(k K, v V, why Reason)

	// Owner, if set, names the owner of a value, for Invalidate; 0 is nobody. It
	// must be fast and must not use the table.
	Owner func(v V) uint32

	// OnFill, if set, is called when a store leaves the table filled to FillWarn
	// per cent or more, at most once per minute, outside of all locks. It may use
	// the table.
	OnFill func(entries, maxEntries int)
	// FillWarn is in per cent, 1 to 100. Default 85.
	FillWarn int

	// ChangeLog is how many of the last changes are kept for Changes. Default none.
	// It takes memory for as many changes, and a lock common to all stores.
	ChangeLog int

	// OwnerName, if set, gives the owners in a snapshot names, because their numbers
	// may be others after a restart. It needs Owner and Rebind.
	OwnerName func(owner uint32) string
	// Rebind returns v with the owner that has a name now, or false if there is no
	// such owner, and the entry is not restored.
	Rebind func(v V, name string) (V, bool)

	// CountLookups keeps the Hits and Misses of Stats. It costs an atomic addition
	// per look-up (per batch, for LoadBatch).
	CountLookups bool

	// Seed of the hash; 0 is random. Fix it only in tests: who knows it can choose
	// keys that collide.
	Seed uint64
}

// withDefaults returns cfg with its zero fields filled in, or all its faults.
func (cfg *Config[K, V]) withDefaults() (Config[K, V], error) {
	var c Config[K, V]
	if cfg != nil {
		c = *cfg
	}
	var errs []error
	bad := func(field string, value any, valid string) {
		errs = append(errs, fmt.Errorf("%w: %s %v: must be %s", ErrInvalid, field, value, valid))
	}
	switch {
	case c.MaxEntries == 0:
		c.MaxEntries = DefaultMaxEntries
	case c.MaxEntries < 0 || c.MaxEntries > maxMaxEntries:
		bad("MaxEntries", c.MaxEntries, fmt.Sprintf("1 to %d, or 0 for %d", maxMaxEntries, DefaultMaxEntries))
	}
	switch {
	case c.TTL == 0:
		c.TTL = DefaultTTL
	case c.TTL < 0 || c.TTL > MaxTTL:
		bad("TTL", c.TTL, fmt.Sprintf("positive and at most %v, or 0 for %v", MaxTTL, DefaultTTL))
	}
	switch {
	case c.FillWarn == 0:
		c.FillWarn = DefaultFillWarn
	case c.FillWarn < 0 || c.FillWarn > 100:
		bad("FillWarn", c.FillWarn, fmt.Sprintf("1 to 100, or 0 for %d", DefaultFillWarn))
	}
	if c.ChangeLog < 0 || c.ChangeLog > maxMaxEntries {
		bad("ChangeLog", c.ChangeLog, fmt.Sprintf("0 to %d", maxMaxEntries))
	}
	if (c.OwnerName == nil) != (c.Rebind == nil) || c.OwnerName != nil && c.Owner == nil {
		bad("OwnerName", "and Rebind", "set together, and with Owner")
	}
	if c.Full > EvictOldest {
		bad("Full", c.Full, "one of "+fullNames.List())
	}
	switch {
	case c.Layout > Heap:
		bad("Layout", c.Layout, "one of "+layoutNames.List())
	case c.Layout != Heap:
		why := whyNotPacked[K, V]()
		if c.Layout == AutoLayout {
			c.Layout = Packed
			if why != "" {
				c.Layout = Heap
			}
		} else if why != "" {
			bad("Layout", c.Layout, "heap or auto, because "+why)
		}
	}
	return c, errors.Join(errs...)
}

func tooLarge(entries int, size uint64) error {
	return fmt.Errorf("%w: MaxEntries %d: must be smaller, as %d bytes of storage exceed the address space", ErrInvalid, entries, size)
}
