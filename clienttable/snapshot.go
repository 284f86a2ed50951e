package clienttable

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"reflect"
	"sync/atomic"
	"time"
	"unsafe"
)

// A snapshot is a stream of little-endian numbers and of keys and values as they
// lie in memory:
//
//	header   "lbprimCT", version (u32), byte order mark (u32, native), key size,
//	         value size (u32), hash of the types (u64), time (i64, Unix ns),
//	         number of the last change before (u64), CRC-32C of the header
//	blocks   n (u32, not 0), n × (key, value, left ms (i64), TTL ms (i64),
//	         class (u8), fixed (u8), owner (u32)), CRC-32C of the block
//	end      0 (u32), number of entries (u64), number of names (u32), names ×
//	         (owner (u32), length (u32), name), CRC-32C of all that came before
const (
	snapMagic   = "lbprimCT"
	snapVersion = 1
	snapBOM     = 0x01020304
	maxName     = 1 << 16
	snapFixed   = 8 + 8 + 1 + 1 + 4 // of an entry, besides key and value
	snapLeft    = 1 << 40           // no entry has more or fewer milliseconds left
)

// ErrSnapshot is wrapped by the errors that refuse a snapshot. Such a snapshot has
// changed nothing.
var ErrSnapshot = errors.New("clienttable: snapshot refused")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Restored says what became of the entries of a snapshot.
type Restored struct {
	// Entries were stored.
	Entries int
	// Expired while nobody looked.
	Expired int
	// Unknown have an owner that has no number any more.
	Unknown int
	// Present were in the table already; these were left as they are.
	Present int
	// Refused found the table full.
	Refused int
	// Seq is where Changes of the table that was written go on.
	Seq uint64
	// Written is when the snapshot was begun.
	Written time.Time
}

// WriteTo writes a snapshot of all entries that are alive, while look-ups and
// stores go on, for [Table.ReadFrom]. It implements io.WriterTo. Entries that
// change meanwhile are written as they were or as they are; the changes after
// [Restored.Seq] tell. To replace a file by it in one step is the caller's
// business. Only the [Packed] layout can be written; the error for the other wraps
// errors.ErrUnsupported.
func (t *Table[K, V]) WriteTo(w io.Writer) (n int64, err error) {
	return t.WriteSnapshot(time.Now(), w)
}

// WriteSnapshot is [Table.WriteTo] at a time.
func (t *Table[K, V]) WriteSnapshot(now time.Time, w io.Writer) (n int64, err error) {
	if !t.packed {
		return 0, fmt.Errorf("clienttable: snapshot of the heap layout: %w", errors.ErrUnsupported)
	}
	sw := &snapWriter{w: bufio.NewWriterSize(w, 1<<16), all: crc32.New(castagnoli)}
	sw.write(t.snapHeader(now, t.Seq()))
	names := map[uint32]string{}
	var order []uint32
	var block []byte
	entries, total := 0, uint64(0)
	flush := func() {
		if entries > 0 {
			binary.LittleEndian.PutUint32(block, uint32(entries))
			sw.write(binary.LittleEndian.AppendUint32(block, crc32.Checksum(block, castagnoli)))
		}
		block, entries = append(block[:0], 0, 0, 0, 0), 0
	}
	flush()
	tick := t.tick(now)
	t.walk(tick, func(e *entry[K, V]) bool {
		owner := uint32(0)
		if t.cfg.Owner != nil {
			owner = t.cfg.Owner(e.v)
			if _, ok := names[owner]; !ok && owner != 0 && t.cfg.OwnerName != nil {
				names[owner] = t.cfg.OwnerName(owner)
				order = append(order, owner)
			}
		}
		l := e.in.lifeOf(e.meta)
		block = append(block, bytesOf(&e.k)...)
		block = append(block, bytesOf(&e.v)...)
		block = binary.LittleEndian.AppendUint64(block, uint64(metaLeft(e.meta, tick)))
		block = binary.LittleEndian.AppendUint64(block, uint64(l.TTL/time.Millisecond))
		fixed := byte(0)
		if l.Fixed {
			fixed = 1
		}
		block = append(block, byte(l.Class), fixed)
		block = binary.LittleEndian.AppendUint32(block, owner)
		total++
		if entries++; entries == segSlots {
			flush()
		}
		return sw.err == nil
	})
	flush()
	end := binary.LittleEndian.AppendUint64(block[:4], total)
	end = binary.LittleEndian.AppendUint32(end, uint32(len(order)))
	for _, o := range order {
		if len(names[o]) > maxName && sw.err == nil {
			sw.err = fmt.Errorf("the name of owner %d has %d bytes, at most %d are allowed", o, len(names[o]), maxName)
		}
		end = binary.LittleEndian.AppendUint32(end, o)
		end = binary.LittleEndian.AppendUint32(end, uint32(len(names[o])))
		end = append(end, names[o]...)
	}
	sw.write(end)
	sw.write(binary.LittleEndian.AppendUint32(nil, sw.all.Sum32()))
	if sw.err == nil {
		sw.err = sw.w.Flush()
	}
	if sw.err != nil {
		sw.err = fmt.Errorf("clienttable: writing a snapshot: %w", sw.err)
	}
	return sw.n, sw.err
}

type snapWriter struct {
	w   *bufio.Writer
	all hash.Hash32
	n   int64
	err error
}

func (w *snapWriter) write(b []byte) {
	if w.err != nil {
		return
	}
	w.all.Write(b)
	var n int
	n, w.err = w.w.Write(b)
	w.n += int64(n)
}

// bytesOf returns the memory of a value without pointers or padding.
func bytesOf[T any](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}

func (t *Table[K, V]) snapHeader(now time.Time, seq uint64) []byte {
	var k K
	var v V
	b := append(make([]byte, 0, 64), snapMagic...)
	b = binary.LittleEndian.AppendUint32(b, snapVersion)
	b = binary.NativeEndian.AppendUint32(b, snapBOM)
	b = binary.LittleEndian.AppendUint32(b, uint32(unsafe.Sizeof(k)))
	b = binary.LittleEndian.AppendUint32(b, uint32(unsafe.Sizeof(v)))
	sum := crc32.Update(0, castagnoli, layoutOf(nil, reflect.TypeFor[K]()))
	sum2 := crc32.Update(0, castagnoli, layoutOf(nil, reflect.TypeFor[V]()))
	b = binary.LittleEndian.AppendUint64(b, uint64(sum)<<32|uint64(sum2))
	b = binary.LittleEndian.AppendUint64(b, uint64(now.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, seq)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// layoutOf appends a description of the fields of a type, so that a snapshot is
// refused by a program in which they are others.
func layoutOf(b []byte, t reflect.Type) []byte {
	switch t.Kind() {
	case reflect.Struct:
		b = append(b, '{')
		for i := range t.NumField() {
			f := t.Field(i)
			b = layoutOf(append(append(b, f.Name...), ' '), f.Type)
		}
		return append(b, '}')
	case reflect.Array:
		return layoutOf(fmt.Appendf(b, "[%d]", t.Len()), t.Elem())
	}
	return fmt.Appendf(b, "%v %d;", t.Kind(), t.Size())
}

// ReadFrom restores the snapshot in r, to its end, as [Table.ReadSnapshot] does,
// and returns its length. It implements io.ReaderFrom.
func (t *Table[K, V]) ReadFrom(r io.Reader) (n int64, err error) {
	_, n, err = t.readSnapshot(time.Now(), r)
	return n, err
}

// ReadSnapshot restores the entries of a snapshot at a time. Idle times have gone
// on since it was written. Entries that are in the table already are left alone.
//
// A snapshot that is damaged, cut short, of another version or of other types is
// refused as a whole: the error wraps [ErrSnapshot] and says why and where, and
// nothing was stored. For that it is read twice if r can seek, else kept in memory.
func (t *Table[K, V]) ReadSnapshot(now time.Time, r io.Reader) (Restored, error) {
	res, _, err := t.readSnapshot(now, r)
	return res, err
}

func (t *Table[K, V]) readSnapshot(now time.Time, r io.Reader) (res Restored, n int64, err error) {
	if !t.packed {
		return res, 0, fmt.Errorf("clienttable: snapshot for the heap layout: %w", errors.ErrUnsupported)
	}
	first, again := keep(r)
	check := snapReader[K, V]{t: t, names: map[uint32]string{}}
	if err := check.read(first, nil); err != nil {
		return res, check.at, err
	}
	second, err := again()
	if err != nil {
		return res, check.at, fmt.Errorf("clienttable: reading a snapshot again: %w", err)
	}
	res.Seq, res.Written = check.seq, check.written
	passed := max(now.Sub(check.written), 0).Milliseconds()
	tick := t.tick(now)
	load := snapReader[K, V]{t: t, names: map[uint32]string{}}
	err = load.read(second, func(k *K, v *V, left int64, l Life, owner uint32) error {
		return t.restore(&res, tick, k, v, left-passed, l, owner, check.names)
	})
	return res, check.at, err
}

// restore stores one entry of a snapshot.
func (t *Table[K, V]) restore(res *Restored, now int64, k *K, v *V, left int64, l Life, owner uint32, names map[uint32]string) error {
	if left <= 0 && l.Class != Static {
		res.Expired++
		return nil
	}
	if name, ok := names[owner]; ok && t.cfg.Rebind != nil {
		if *v, ok = t.cfg.Rebind(*v, name); !ok {
			res.Unknown++
			return nil
		}
	}
	if _, present := t.load(t.hashOf(k), k, now, touchNot); present {
		res.Present++ // and its idle time goes on
		return nil
	}
	_, loaded, err := t.put(now, k, v, l, false)
	switch {
	case errors.Is(err, ErrFull):
		res.Refused++
		return nil
	case err != nil:
		return err
	case loaded:
		res.Present++
		return nil
	}
	res.Entries++
	if l.Class != Static {
		t.shorten(now, k, left)
	}
	return nil
}

// shorten sets the time until an entry expires, once, without a change of its TTL.
func (t *Table[K, V]) shorten(now int64, k *K, left int64) {
	t, s, home, tag := t.lock(k, now)
	defer t.unlock(s)
	slot, ok := t.find(s, home, tag, k)
	if !ok {
		return
	}
	meta := t.metaOf(slot)
	m := atomic.LoadUint64(meta)
	if left < metaLeft(m, now) {
		// Who looked it up meanwhile wins.
		if atomic.CompareAndSwapUint64(meta, m, m&^metaExp|uint64(now+left)<<metaExpAt) {
			t.expect(s, slot, now+left)
		}
	}
}
