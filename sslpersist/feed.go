package sslpersist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// Op says what a [Delta] did. The zero Op is none.
type Op uint8

const (
	_         Op = iota
	OpLearn      // bound to the node, newly or away from another one
	OpRefresh    // used; told at most eight times in an idle time
	OpForget     // everything bound to the node is void
	OpDelete     // this one binding is void
)

var opNames = enum.Of[Op]("sslpersist: operation", "none", "learn", "refresh", "forget", "delete")

// AppendText appends the name of o.
func (o Op) AppendText(b []byte) ([]byte, error) { return opNames.Append(b, o) }

// MarshalText is AppendText into a new slice.
func (o Op) MarshalText() ([]byte, error) { return o.AppendText(nil) }

// String returns the name of o.
func (o Op) String() string { return opNames.String(o) }

// UnmarshalText reads what AppendText writes.
func (o *Op) UnmarshalText(text []byte) error { return opNames.Parse(o, text) }

// Delta is one change of a table, for a copy elsewhere to follow. Changes made by Apply
// and Restore are not told again, so two tables can follow each other. What expires is not
// told either: the copy has the time of the last use, or hears of one at most an eighth of
// the idle time late. The zero Delta changes nothing and is an error to Apply. It can be
// copied.
type Delta[N comparable] struct {
	// Seq numbers the changes of one table from 1, without gaps. A new table begins anew.
	Seq uint64
	Op  Op
	// ID is the session ID; of a [KeyTable] it is the key name, as KeyName(d.ID), and of an
	// [AddrTable] the 16 bytes of the address. It is zero for OpForget.
	ID   SessionID
	Node N
	// At is when the binding was used, by the clock of the table; OpForget and OpDelete leave
	// it zero. Copies on other machines are as good as their clocks agree.
	At time.Time
}

// feed remembers the last changes of an engine in a ring.
type feed[N comparable] struct {
	mu   sync.Mutex
	ring []Delta[N]
	seq  uint64 // of the last change
}

func newFeed[N comparable](size int) *feed[N] { return &feed[N]{ring: make([]Delta[N], size)} }

// add tells of a change to a binding. If its node is forgotten by now, that was told first
// and the change is void.
func (f *feed[N]) add(op Op, k key, o *owner[N], at time.Time) {
	f.mu.Lock()
	if !o.gone.Load() {
		f.tell(Delta[N]{Op: op, ID: SessionID{k}, Node: o.node, At: at})
	}
	f.mu.Unlock()
}

// forget marks the owner of n, if it has one, as gone, and tells of it. A copy may have
// bindings that this table has not, so it is told in any case. Without a feed it only marks.
func (f *feed[N]) forget(n N, o *owner[N]) {
	if f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.tell(Delta[N]{Op: OpForget, Node: n})
	}
	if o != nil {
		o.gone.Store(true)
	}
}

func (f *feed[N]) tell(d Delta[N]) {
	f.seq++
	d.Seq = f.seq
	f.ring[d.Seq%uint64(len(f.ring))] = d
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
	if d.Op == OpForget {
		if e.owners.forget(d.Node, nil) > 0 {
			e.hurry()
		}
		return nil
	}
	if d.Op == 0 || d.Op > OpDelete {
		return fmt.Errorf("sslpersist: delta %d has operation %d: want 1 to %d", d.Seq, d.Op, OpDelete)
	}
	k := d.ID.k
	if !e.takes(&k) {
		return fmt.Errorf("sslpersist: delta %d has a key of %d bytes: want %s", d.Seq, k.n, e.wanted())
	}
	if d.Op == OpDelete {
		e.removeFrom(&k, d.Node)
		return nil
	}
	at := min(e.nano(d.At), e.nano(now))
	if e.nano(now)-at >= int64(e.idleTime(d.Node)) {
		return nil // idle too long by now
	}
	_, err := e.store(&k, d.Node, at, d.Op == OpRefresh, false)
	return err
}

// takes reports whether k is of the length the table's keys have.
func (e *engine[N]) takes(k *key) bool {
	return k.n > 0 && k.n <= maxKey && (e.want == 0 || k.n == e.want)
}

func (e *engine[N]) wanted() string {
	if e.want != 0 {
		return strconv.FormatUint(e.want, 10)
	}
	return "1 to 32"
}

// Changes appends the changes after number after to dst. It returns ErrLagged if they are
// no longer remembered: then read LastSeq, take a snapshot, and go on from that number.
// Changes are remembered if [Config.Feed] says so.
func (t *Table[N]) Changes(dst []Delta[N], after uint64) ([]Delta[N], error) {
	return t.e.changes(dst, after)
}

// LastSeq returns the number of the last change, 0 if there was none.
func (t *Table[N]) LastSeq() uint64 { return t.e.lastSeq() }

// Apply makes a change of another table here, and does not tell of it. What is newer here
// stays, what is too old by now is passed over, and a use long past may count as a later
// one: such an entry lives longer by at most its idle time. Apply changes in the order of their
// numbers; to apply some again does no harm if all that follow them are applied again too.
// It returns ErrFull if there is no room, and an error for a delta that makes no sense.
func (t *Table[N]) Apply(now time.Time, d Delta[N]) error { return t.e.apply(now, d) }

// Changes is [Table.Changes] for key names.
func (t *KeyTable[N]) Changes(dst []Delta[N], after uint64) ([]Delta[N], error) {
	return t.e.changes(dst, after)
}

// LastSeq is [Table.LastSeq] for key names.
func (t *KeyTable[N]) LastSeq() uint64 { return t.e.lastSeq() }

// Apply is [Table.Apply] for key names. One that is not as long as those of t is an error.
func (t *KeyTable[N]) Apply(now time.Time, d Delta[N]) error {
	if d.Op == OpForget {
		t.giveUp(d.Node)
	}
	return t.e.apply(now, d)
}

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
	if len(b) < deltaFixed || b[0] != deltaVersion || b[1] == 0 || b[1] > byte(OpDelete) || b[deltaFixed-1] > maxKey {
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
