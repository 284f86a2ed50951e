package clienttable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"time"
	"unsafe"
)

// A Feed gives the changes of a table a form for the wire, so that tables of several balancers can
// follow each other, as a cluster's replicas do. What it applies it does not tell again. Entries that aged or were
// evicted are not told either: the follower has its own clock, and its own room. Owners go by their names, see
// [Config.OwnerName]. Only the [Packed] layout has a form for the wire, and the table needs a
// [Config.ChangeLog].
//
// A Feed must not be copied after its first use, is safe for concurrent use, and there should be one for a table.
type Feed[K comparable, V any] struct {
	Table *Table[K, V] // to be followed; required

	// Name, if set, says what an entry's numbers stand for, in keys too, and Bind returns the key and the value that say the same here, or
	// false if there is no such thing. They take the place of [Config.OwnerName] and Rebind, are set together, at all
	// balancers or at none, and may be called by several goroutines at once. Of what was removed the value is zero.
	Name func(k K, v V) string
	Bind func(k K, v V, name string) (K, V, bool)

	// Prefer says of two values of an entry whether the one that is told there is to take the place of the one here. It must come to the same
	// everywhere, or members that follow each other do not agree: so it should go by when values were made, which they say themselves, and in
	// a tie by something else. It may be called by several goroutines at once. Default: what is told last wins, and in a snapshot what is
	// here.
	Prefer func(k K, here, there V) bool

	mu   sync.Mutex
	echo map[uint64]bool // numbers of changes that Apply made
	buf  []Change[K, V]
}

// ErrFeed is wrapped by the errors that refuse changes, which have changed nothing.
var ErrFeed = errors.New("clienttable: changes refused")

// Changes on the wire are
//
//	hash of the types 8 | native byte order 4 | n × (op 1 | key | if stored: value | TTL ms 8 | class 1 | fixed 1 | name 2+n)
//
// where the name is that of the value's owner, and keys and values are as in a snapshot. Numbers are little-endian. With [Feed.Name] removals have
// an operation of their own, and a name; and a snapshot is any number of such messages, each after its length (4), of stored entries.
const (
	feedHead  = 8 + 4
	feedBatch = 256
	feedPart  = 32 << 10 // about how long a message of a snapshot is
	feedLimit = 1 << 20  // what is refused as too long for one

	removedByName = ChangeOp(3)
)

func (f *Feed[K, V]) head() []byte { return f.Table.snapHeader(time.Time{}, 0)[24:32:32] }

// LastSeq returns the number of the last change.
func (f *Feed[K, V]) LastSeq() uint64 { return f.Table.Seq() }

// AppendChanges appends changes after a number to b, up to about limit bytes, and returns the
// number of the last one, which may be one that is not told. The error is [ErrChangesLost], or that of a table that is not
// packed.
func (f *Feed[K, V]) AppendChanges(b []byte, after uint64, limit int) ([]byte, uint64, error) {
	t := f.Table
	if !t.packed {
		return b, after, fmt.Errorf("clienttable: changes of the heap layout: %w", errors.ErrUnsupported)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.buf == nil {
		f.buf = make([]Change[K, V], feedBatch)
	}
	start := len(b)
	for len(b)-start < limit {
		n, err := t.Changes(after, f.buf)
		if err != nil {
			return b, after, err
		}
		if n == 0 {
			break
		}
		for i := range f.buf[:n] {
			c := &f.buf[i]
			if len(b)-start >= limit {
				break
			}
			after = c.Seq
			if f.echo[c.Seq] || c.Op == Removed && c.Why != Deleted {
				continue
			}
			if len(b) == start {
				b = f.begin(b)
			}
			b = f.append(b, c)
		}
	}
	return b, after, nil
}

func (f *Feed[K, V]) begin(b []byte) []byte {
	return binary.NativeEndian.AppendUint32(append(b, f.head()...), snapBOM)
}

func appendName(b []byte, name string) []byte {
	name = name[:min(len(name), 1<<16-1)]
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(name))), name...)
}

func (f *Feed[K, V]) append(b []byte, c *Change[K, V]) []byte {
	op := c.Op
	if op == Removed && f.Name != nil {
		op = removedByName
	}
	b = append(append(b, byte(op)), bytesOf(&c.Key)...)
	switch op {
	case Removed:
		return b
	case removedByName:
		var none V
		return appendName(b, f.Name(c.Key, none))
	}
	b = append(b, bytesOf(&c.Value)...)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Life.TTL/time.Millisecond))
	fixed := byte(0)
	if c.Life.Fixed {
		fixed = 1
	}
	b = append(b, byte(c.Life.Class), fixed)
	name := ""
	if cfg := &f.Table.cfg; f.Name != nil {
		name = f.Name(c.Key, c.Value)
	} else if cfg.OwnerName != nil {
		if owner := cfg.Owner(c.Value); owner != 0 {
			name = cfg.OwnerName(owner)
		}
	}
	return appendName(b, name)
}

// Apply makes the changes that AppendChanges of another balancer's Feed wrote, now. Entries of owners
// that are not known here are left out. It goes on after an error of the table, such as [ErrFull], and returns the
// first.
func (f *Feed[K, V]) Apply(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	changes, err := f.parse(b)
	if err != nil {
		return err
	}
	return f.apply(changes)
}

func (f *Feed[K, V]) apply(changes []Change[K, V]) (first error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.Table
	most := len(changes) + 1
	if t.log != nil { // only what the log still has can be told from changes of this table's own
		most = max(len(t.log.ring)/2, 1)
	}
	for part := range slices.Chunk(changes, most) {
		before := t.Seq()
		var err error
		if f.Prefer == nil {
			err = t.Apply(time.Now(), part...)
		} else {
			err = f.merge(time.Now(), part)
		}
		if err != nil && first == nil {
			first = err
		}
		f.remember(before, t.Seq(), part)
	}
	return first
}

// merge is Table.Apply for those changes that are preferred to what is here.
func (f *Feed[K, V]) merge(now time.Time, changes []Change[K, V]) (first error) {
	t := f.Table
	for i := range changes {
		c := &changes[i]
		if c.Op == Removed {
			t.DeleteAt(now, c.Key)
			continue
		}
		here, loaded, err := t.LoadOrStoreLife(now, c.Key, c.Value, c.Life)
		if err != nil && first == nil {
			first = err
		}
		if err != nil || !loaded || !f.Prefer(c.Key, here, c.Value) {
			continue
		}
		t.Update(now, c.Key, func(v V, l Life) (V, Life) {
			if !f.Prefer(c.Key, v, c.Value) {
				return v, l // it has changed meanwhile
			}
			return c.Value, c.Life
		})
	}
	return first
}

// remember finds the numbers that changes just made have got.
func (f *Feed[K, V]) remember(before, last uint64, changes []Change[K, V]) {
	if last == before {
		return
	}
	if f.echo == nil {
		f.echo = map[uint64]bool{}
	}
	made := make(map[K]*Change[K, V], len(changes))
	for i := range changes {
		made[changes[i].Key] = &changes[i] // the last one of a key is how it is now
	}
	buf := make([]Change[K, V], min(last-before, 4096))
	for before < last {
		n, err := f.Table.Changes(before, buf)
		if err != nil || n == 0 {
			break
		}
		for i := range buf[:n] {
			c := &buf[i]
			if m := made[c.Key]; m != nil && m.Op == c.Op && (c.Op == Removed || string(bytesOf(&m.Value)) == string(bytesOf(&c.Value))) {
				f.echo[c.Seq] = true
			}
		}
		before = buf[n-1].Seq
	}
	// What the log has forgotten nobody asks for.
	if keep := len(f.Table.log.ring); len(f.echo) > 2*keep {
		for seq := range f.echo {
			if seq+uint64(keep) <= last {
				delete(f.echo, seq)
			}
		}
	}
}

// parse checks all changes before any is made.
func (f *Feed[K, V]) parse(b []byte) (changes []Change[K, V], err error) {
	t := f.Table
	if !t.packed {
		return nil, fmt.Errorf("clienttable: changes for the heap layout: %w", errors.ErrUnsupported)
	}
	if len(b) < feedHead || string(b[:8]) != string(f.head()) || binary.NativeEndian.Uint32(b[8:]) != snapBOM {
		return nil, fmt.Errorf("%w: of other types, or of a machine of another kind", ErrFeed)
	}
	keyLen, valueLen := int(reflect.TypeFor[K]().Size()), int(reflect.TypeFor[V]().Size())
	short := fmt.Errorf("%w: cut short or damaged", ErrFeed)
	text := func() (name string, ok bool) {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			return "", false
		}
		n := 2 + int(binary.LittleEndian.Uint16(b))
		name, b = string(b[2:n]), b[n:]
		return name, true
	}
	for b = b[feedHead:]; len(b) > 0; {
		if len(b) < 1+keyLen {
			return nil, short
		}
		c := Change[K, V]{Op: ChangeOp(b[0])}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&c.Key)), keyLen), b[1:])
		b = b[1+keyLen:]
		switch c.Op {
		case Removed:
			c.Why = Deleted
			changes = append(changes, c)
			continue
		case removedByName:
			name, ok := text()
			if !ok || f.Bind == nil {
				return nil, short
			}
			if c.Key, c.Value, ok = f.Bind(c.Key, c.Value, name); ok {
				c.Op, c.Why = Removed, Deleted
				changes = append(changes, c)
			}
			continue
		case Stored:
		default:
			return nil, short
		}
		if len(b) < valueLen+8+2+2 {
			return nil, short
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&c.Value)), valueLen), b)
		b = b[valueLen:]
		ms := binary.LittleEndian.Uint64(b)
		if ms > snapLeft || b[8] > byte(Static) || b[9] > 1 {
			return nil, short
		}
		c.Life = Life{TTL: time.Duration(ms) * time.Millisecond, Class: Class(b[8]), Fixed: b[9] == 1}
		b = b[10:]
		name, ok := text()
		switch {
		case !ok:
			return nil, short
		case f.Bind != nil:
			if c.Key, c.Value, ok = f.Bind(c.Key, c.Value, name); !ok {
				continue
			}
		case name != "" && t.cfg.Rebind != nil:
			if c.Value, ok = t.cfg.Rebind(c.Value, name); !ok {
				continue
			}
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// Snapshot is [Table.WriteTo], or with Name a form of its own.
func (f *Feed[K, V]) Snapshot(w io.Writer) error {
	if f.Name == nil {
		_, err := f.Table.WriteTo(w)
		return err
	}
	now := time.Now()
	b := f.begin(make([]byte, 4, feedPart+1024))
	flush := func() error {
		binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
		_, err := w.Write(b)
		b = f.begin(b[:4])
		return err
	}
	for k := range f.Table.AllAt(now) {
		v, in, ok := f.Table.Info(now, k)
		if !ok {
			continue
		}
		b = f.append(b, &Change[K, V]{Op: Stored, Key: k, Value: v, Life: in.Life})
		if len(b) >= feedPart {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// Restore is [Table.ReadFrom], or with Bind takes what Snapshot wrote at a balancer with Name: as it comes, and what is there already stays, unless Prefer
// says otherwise. Entries live for their whole idle time again.
func (f *Feed[K, V]) Restore(r io.Reader) error {
	if f.Bind == nil {
		_, err := f.Table.ReadFrom(r)
		return err
	}
	var first error
	for {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) {
			return first
		} else if err != nil {
			return err
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n > feedLimit {
			return fmt.Errorf("%w: a part of %d bytes, want at most %d", ErrFeed, n, feedLimit)
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("%w: cut short: %w", ErrFeed, err)
		}
		changes, err := f.parse(b)
		if err != nil {
			return err
		}
		// What is known is no change, or two tables that follow each other would never come to rest.
		if f.Prefer == nil {
			changes = slices.DeleteFunc(changes, func(c Change[K, V]) bool {
				_, ok := f.Table.Peek(c.Key)
				return ok
			})
		}
		if err := f.apply(changes); err != nil && first == nil {
			first = err
		}
	}
}
