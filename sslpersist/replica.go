package sslpersist

import (
	"io"
	"time"
)

// Followed is what a [Feed] needs of a table. [Table], [KeyTable] and [AddrTable] have it.
type Followed[N comparable] interface {
	// Changes appends the changes after a number to dst. The error wraps ErrLagged if they are not remembered any more.
	Changes(dst []Delta[N], after uint64) ([]Delta[N], error)
	// LastSeq returns the number of the last change, 0 if there was none.
	LastSeq() uint64
	// Apply makes a change of another table's.
	Apply(now time.Time, d Delta[N]) error
	// WriteSnapshot writes all entries, their nodes by name.
	WriteSnapshot(w io.Writer, now time.Time, name func(N) string) error
	// Restore takes the entries of a snapshot whose nodes byName knows.
	Restore(r io.Reader, now time.Time, byName func(string) (N, bool)) (RestoreStats, error)
}

// A Feed gives the changes of a table a form for the wire, so that tables of several balancers can
// follow each other, as a cluster's replicas do. The table needs a [Config.Feed]. All fields are required. It is
// safe for concurrent use as far as its functions are.
type Feed[N comparable] struct {
	Table  Followed[N]            // to be followed
	Name   func(N) string         // of a node, the same at all balancers, at most 65,535 bytes
	ByName func(string) (N, bool) // the node of a name here; false if there is none
}

// LastSeq returns the number of the last change.
func (f *Feed[N]) LastSeq() uint64 { return f.Table.LastSeq() }

// AppendChanges appends changes after a number to b, up to about limit bytes, as AppendDelta writes them, and returns the
// number of the last one. The error wraps [ErrLagged], or says that a name is too long.
func (f *Feed[N]) AppendChanges(b []byte, after uint64, limit int) ([]byte, uint64, error) {
	if f.Table.LastSeq() == after {
		return b, after, nil
	}
	ds, err := f.Table.Changes(nil, after)
	if err != nil {
		return b, after, err
	}
	start := len(b)
	for _, d := range ds {
		if len(b)-start >= limit {
			break
		}
		if b, err = AppendDelta(b, d, f.Name); err != nil {
			return b, after, err
		}
		after = d.Seq
	}
	return b, after, nil
}

// Apply makes the changes that AppendChanges wrote. Those of nodes that are not known here are left out. It goes on
// after an error of the table, such as [ErrFull], and returns the first; a damaged message is [ErrDelta], from where
// it is damaged on.
func (f *Feed[N]) Apply(b []byte) (first error) {
	now := time.Now()
	for len(b) > 0 {
		d, rest, ok, err := ParseDelta(b, f.ByName)
		if err != nil {
			return err
		}
		if b = rest; !ok {
			continue
		}
		if err := f.Table.Apply(now, d); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Snapshot writes all bindings.
func (f *Feed[N]) Snapshot(w io.Writer) error { return f.Table.WriteSnapshot(w, time.Now(), f.Name) }

// Restore takes the bindings of another balancer's Snapshot.
func (f *Feed[N]) Restore(r io.Reader) error {
	_, err := f.Table.Restore(r, time.Now(), f.ByName)
	return err
}
