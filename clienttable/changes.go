package clienttable

import (
	"errors"
	"sync"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// ErrChangesLost is returned by [Table.Changes] when some of the changes asked for
// are not kept any more, or have not happened: the follower needs a snapshot.
var ErrChangesLost = errors.New("clienttable: changes lost")

// ChangeOp says what a [Change] did.
type ChangeOp uint8

const (
	// Stored: the entry was stored, or its value or life was changed.
	Stored ChangeOp = iota + 1
	// Removed: the entry has left the table.
	Removed
)

var changeNames = enum.Of[ChangeOp]("clienttable: change", "", "stored", "removed")

// String returns the name of o.
func (o ChangeOp) String() string { return changeNames.String(o) }

// AppendText implements encoding.TextAppender.
func (o ChangeOp) AppendText(b []byte) ([]byte, error) { return changeNames.Append(b, o) }

// MarshalText implements encoding.TextMarshaler.
func (o ChangeOp) MarshalText() ([]byte, error) { return o.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *ChangeOp) UnmarshalText(text []byte) error { return changeNames.Parse(o, text) }

// Change is one change of a table's entries. That an idle time was restarted is
// none: a follower learns of it by a snapshot now and then.
type Change[K comparable, V any] struct {
	Seq   uint64   // 1, 2, 3 …
	Op    ChangeOp // what happened
	Why   Reason   // of Removed
	Key   K        // of the entry
	Value V        // of Stored
	Life  Life     // of Stored
}

// changeLog is a ring of the last changes. A nil changeLog keeps none.
type changeLog[K comparable, V any] struct {
	mu   sync.Mutex
	ring []Change[K, V]
	seq  uint64 // of the last change
}

func (l *changeLog[K, V]) store(k *K, v *V, life Life) {
	if l != nil {
		l.add(Change[K, V]{Op: Stored, Key: *k, Value: *v, Life: life})
	}
}

func (l *changeLog[K, V]) remove(k *K, why Reason) {
	if l != nil {
		l.add(Change[K, V]{Op: Removed, Key: *k, Why: why})
	}
}

// add is called with the lock of the key's shard held, so that the changes of one
// key are in their order.
func (l *changeLog[K, V]) add(c Change[K, V]) {
	l.mu.Lock()
	l.seq++
	c.Seq = l.seq
	l.ring[l.seq%uint64(len(l.ring))] = c
	l.mu.Unlock()
}

// Seq returns the number of the last change; 0 if there was none or without
// Config.ChangeLog.
func (t *Table[K, V]) Seq() uint64 {
	if t.log == nil {
		return 0
	}
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	return t.log.seq
}

// Changes copies the changes that follow number after into buf, as many as fit, in
// their order, and returns how many. To go on, pass the Seq of the last one. The
// error is [ErrChangesLost] if the change after that is not kept any more, if after
// lies in the future, or without Config.ChangeLog.
func (t *Table[K, V]) Changes(after uint64, buf []Change[K, V]) (n int, err error) {
	l := t.log
	if l == nil {
		return 0, ErrChangesLost
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if after > l.seq || l.seq-after > uint64(len(l.ring)) {
		return 0, ErrChangesLost
	}
	for n < len(buf) && after < l.seq {
		after++
		buf[n] = l.ring[after%uint64(len(l.ring))]
		n++
	}
	return n, nil
}

// Apply makes changes of another table in this one, at a time: idle times start
// anew. It goes on after an error, [ErrFull] or [ErrClosed], and returns the first.
// To apply changes twice does no harm, as long as the last ones come last.
func (t *Table[K, V]) Apply(now time.Time, changes ...Change[K, V]) (err error) {
	for i := range changes {
		c := &changes[i]
		switch c.Op {
		case Stored:
			if e := t.StoreLife(now, c.Key, c.Value, c.Life); e != nil && err == nil {
				err = e
			}
		case Removed:
			t.DeleteAt(now, c.Key)
		}
	}
	return err
}
