package sslpersist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Op says what a [Delta] did. The zero Op is none.
type Op uint8

const (
	_         Op = iota
	OpLearn      // bound to the node, newly or away from another one
	OpRefresh    // used; told at most eight times in an idle time
	OpForget     // everything bound to the node is void
)

var opNames = enum{"none", "learn", "refresh", "forget"}

// AppendText appends the name of o.
func (o Op) AppendText(b []byte) ([]byte, error) { return opNames.append(b, uint8(o), "operation") }

// MarshalText is AppendText into a new slice.
func (o Op) MarshalText() ([]byte, error) { return o.AppendText(nil) }

// String returns the name of o.
func (o Op) String() string { return opNames.name(uint8(o)) }

// UnmarshalText reads what AppendText writes.
func (o *Op) UnmarshalText(text []byte) error { return opNames.parse((*uint8)(o), text, "operation") }

// Delta is one change of a table, for a copy elsewhere to follow. Changes made by Apply
// and Restore are not told again, so two tables can follow each other.
type Delta[N comparable] struct {
	// Seq numbers the changes of one table from 1, without gaps.
	Seq uint64
	Op  Op
	// ID is the session ID; of a [KeyTable] it is the key name, as KeyName(d.ID).
	ID   SessionID
	Node N
	// At is when the binding was used, by the clock of the table. Copies on other machines
	// are as good as their clocks agree.
	At time.Time
}

// feed remembers the last changes of an engine in a ring.
type feed[N comparable] struct {
	mu   sync.Mutex
	ring []Delta[N]
	seq  uint64 // of the last change
}

func newFeed[N comparable](size int) *feed[N] { return &feed[N]{ring: make([]Delta[N], size)} }

func (f *feed[N]) add(op Op, k key, n N, at time.Time) {
	f.mu.Lock()
	f.seq++
	f.ring[f.seq%uint64(len(f.ring))] = Delta[N]{f.seq, op, SessionID{k}, n, at}
	f.mu.Unlock()
}

// ErrLagged says that changes asked for are no longer remembered, or that there is no feed:
// the copy needs a snapshot.
var ErrLagged = errors.New("sslpersist: changes no longer remembered")

func (e *engine[N]) changes(dst []Delta[N], after uint64) ([]Delta[N], error) {
	f := e.feed
	if f == nil {
		return dst, fmt.Errorf("%w: there is no feed", ErrLagged)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	first := uint64(1)
	if n := uint64(len(f.ring)); f.seq > n {
		first = f.seq - n + 1
	}
	if after > f.seq || after+1 < first {
		return dst, fmt.Errorf("%w: asked for those after %d, have %d to %d", ErrLagged, after, first, f.seq)
	}
	for seq := after + 1; seq <= f.seq; seq++ {
		dst = append(dst, f.ring[seq%uint64(len(f.ring))])
	}
	return dst, nil
}

func (e *engine[N]) lastSeq() uint64 {
	if e.feed == nil {
		return 0
	}
	e.feed.mu.Lock()
	defer e.feed.mu.Unlock()
	return e.feed.seq
}

// apply makes the change of another table. One that is older than what is known here
// loses; a time in the future counts as now.
func (e *engine[N]) apply(now time.Time, d Delta[N]) error {
	at := min(e.nano(d.At), e.nano(now))
	k := d.ID.k
	switch d.Op {
	case OpForget:
		if e.owners.forget(d.Node) > 0 {
			e.hurry()
		}
		return nil
	case OpLearn, OpRefresh:
		if k.n == 0 || k.n > maxKey {
			return fmt.Errorf("sslpersist: delta %d has a key of %d bytes: want 1 to %d", d.Seq, k.n, maxKey)
		}
		if e.newer(&k, d.Node, at) {
			return nil
		}
		_, err := e.store(&k, d.Node, at, d.Op == OpRefresh, false)
		return err
	}
	return fmt.Errorf("sslpersist: delta %d has operation %d: want %v, %v or %v", d.Seq, d.Op, OpLearn, OpRefresh, OpForget)
}

// newer reports whether a change at a time comes too late: its idle time is over, or
// another node has k since.
func (e *engine[N]) newer(k *key, n N, at int64) bool {
	s, hash := e.locate(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.find(k, hash)
	if slot == 0 {
		return false
	}
	en := s.at(slot)
	o := e.owners.get(en.owner())
	return !dead(en, o, at) && o.node != n && en.last > at
}

// Changes appends the changes after number after to dst. It returns ErrLagged if they are
// no longer remembered: then read LastSeq, take a snapshot, and go on from that number.
// Changes are remembered if [Config.Feed] says so.
func (t *Table[N]) Changes(dst []Delta[N], after uint64) ([]Delta[N], error) {
	return t.e.changes(dst, after)
}

// LastSeq returns the number of the last change, 0 if there was none.
func (t *Table[N]) LastSeq() uint64 { return t.e.lastSeq() }

// Apply makes a change of another table here. What is newer here stays.
func (t *Table[N]) Apply(now time.Time, d Delta[N]) error { return t.e.apply(now, d) }

// Changes is [Table.Changes] for key names.
func (t *KeyTable[N]) Changes(dst []Delta[N], after uint64) ([]Delta[N], error) {
	return t.e.changes(dst, after)
}

// LastSeq is [Table.LastSeq] for key names.
func (t *KeyTable[N]) LastSeq() uint64 { return t.e.lastSeq() }

// Apply is [Table.Apply] for key names.
func (t *KeyTable[N]) Apply(now time.Time, d Delta[N]) error { return t.e.apply(now, d) }

// AppendDelta appends d in a form for the wire, with nodes by the names that name gives
// them:
//
//	version 1 | op 1 | seq 8 | at 8 | key 1+n | name 2+n
//
// It returns an error if a name is longer than 65,535 bytes.
func AppendDelta[N comparable](b []byte, d Delta[N], name func(N) string) ([]byte, error) {
	s := name(d.Node)
	if len(s) > maxName {
		return b, fmt.Errorf("sslpersist: node name of %d bytes: want at most %d", len(s), maxName)
	}
	b = append(b, deltaVersion, byte(d.Op))
	b = binary.BigEndian.AppendUint64(b, d.Seq)
	b = binary.BigEndian.AppendUint64(b, uint64(d.At.UnixNano()))
	b = append(b, byte(d.ID.k.n))
	b = append(b, d.ID.k.bytes()...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...), nil
}

const (
	deltaVersion = 1
	deltaFixed   = 1 + 1 + 8 + 8 + 1
	maxName      = 1<<16 - 1
)

// ErrDelta says that bytes are no delta, or one of an unknown version.
var ErrDelta = errors.New("sslpersist: not a delta")

// ParseDelta reads what AppendDelta wrote at the start of b, and returns the rest. A
// node that byName does not know gives ok false: skip the delta.
func ParseDelta[N comparable](b []byte, byName func(string) (N, bool)) (d Delta[N], rest []byte, ok bool, err error) {
	if len(b) < deltaFixed || b[0] != deltaVersion || b[1] == 0 || b[1] > byte(OpForget) || b[deltaFixed-1] > maxKey {
		return d, b, false, ErrDelta
	}
	d.Op = Op(b[1])
	d.Seq = binary.BigEndian.Uint64(b[2:])
	d.At = time.Unix(0, int64(binary.BigEndian.Uint64(b[10:])))
	n := int(b[deltaFixed-1])
	rest = b[deltaFixed:]
	if len(rest) < n+2 {
		return d, b, false, ErrDelta
	}
	d.ID.k = makeKey(rest[:n])
	rest = rest[n:]
	n = int(binary.BigEndian.Uint16(rest))
	if rest = rest[2:]; len(rest) < n {
		return d, b, false, ErrDelta
	}
	d.Node, ok = byName(string(rest[:n]))
	return d, rest[n:], ok, nil
}
