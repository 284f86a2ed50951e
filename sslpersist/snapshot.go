package sslpersist

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"slices"
	"time"
)

// A snapshot is
//
//	magic 8 | version 2 | time 8 | sections | end 1 | SHA-256 32
//
// where a section is
//
//	kind 1 | records | 0
//
// and a record is a node's name, which numbers the node from 0 on, or an entry:
//
//	255 | name 2+n
//	key's length 1..32 | key | node 4 | idle since 8
//
// Times are nanoseconds, the first since 1970. All numbers are big-endian.
const (
	snapshotMagic   = "LBPRSSLP"
	snapshotVersion = 1
	snapshotHead    = len(snapshotMagic) + 2 + 8
)

// Kinds of sections.
const (
	sectionEnd uint8 = iota
	sectionIDs
	sectionKeys
	sectionAddrs
)

const (
	recordEnd  = 0
	recordNode = 255
)

type section[N comparable] struct {
	kind uint8
	e    *engine[N]
}

// RestoreStats says what became of the entries of a snapshot.
type RestoreStats struct {
	Restored int // bound, or known better already
	Expired  int // idle too long by now
	Unknown  int // of a node whose name is not known, or of no use here
	Refused  int // full
}

// snapshotWriter remembers the first error, so that it can be asked for once at the end.
type snapshotWriter struct {
	w    *bufio.Writer
	sum  hash.Hash
	err  error
	data []byte
}

func (w *snapshotWriter) write(b []byte) {
	if w.err == nil {
		w.sum.Write(b)
		_, w.err = w.w.Write(b)
	}
}

func writeSnapshot[N comparable](to io.Writer, now time.Time, name func(N) string, sections ...section[N]) error {
	w := &snapshotWriter{w: bufio.NewWriterSize(to, 1<<16), sum: sha256.New()}
	head := binary.BigEndian.AppendUint16([]byte(snapshotMagic), snapshotVersion)
	w.write(binary.BigEndian.AppendUint64(head, uint64(now.UnixNano())))
	for _, s := range sections {
		w.write([]byte{s.kind})
		if err := writeSection(w, s.e, now, name); err != nil {
			return err
		}
		w.write([]byte{recordEnd})
	}
	w.write([]byte{sectionEnd})
	if w.err == nil {
		_, w.err = w.w.Write(w.sum.Sum(nil))
	}
	if w.err == nil {
		w.err = w.w.Flush()
	}
	if w.err != nil {
		return fmt.Errorf("sslpersist: write snapshot: %w", w.err)
	}
	return nil
}

func writeSection[N comparable](w *snapshotWriter, e *engine[N], now time.Time, name func(N) string) error {
	numbers := map[N]uint32{}
	at := e.nano(now)
	for b := range e.all(at) {
		number, ok := numbers[b.node]
		if !ok {
			s := name(b.node)
			if len(s) > maxName {
				return fmt.Errorf("sslpersist: node name of %d bytes: want at most %d", len(s), maxName)
			}
			number = uint32(len(numbers))
			numbers[b.node] = number
			w.data = binary.BigEndian.AppendUint16(append(w.data[:0], recordNode), uint16(len(s)))
			w.write(append(w.data, s...))
		}
		w.data = append(append(w.data[:0], byte(b.k.n)), b.k.bytes()...)
		w.data = binary.BigEndian.AppendUint32(w.data, number)
		w.data = binary.BigEndian.AppendUint64(w.data, uint64(max(0, at-b.last)))
		w.write(w.data)
		if w.err != nil {
			break // told by the caller
		}
	}
	return nil
}

// restored is an entry of a snapshot that was checked.
type restored struct {
	kind uint8
	node uint32 // among the names of its section
	idle int64
	k    key
}

// readSnapshot checks all of a snapshot before anything of it is used. Names of the
// sections are in one list, one after the other.
func readSnapshot(b []byte) (saved time.Time, names []string, entries []restored, err error) {
	fault := func(what string) (time.Time, []string, []restored, error) {
		return time.Time{}, nil, nil, fmt.Errorf("%w: %s", ErrSnapshot, what)
	}
	if len(b) < snapshotHead+1+sha256.Size || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return fault("not a snapshot")
	}
	if v := binary.BigEndian.Uint16(b[len(snapshotMagic):]); v != snapshotVersion {
		return fault(fmt.Sprintf("version %d, want %d", v, snapshotVersion))
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return fault("checksum differs")
	}
	saved = time.Unix(0, int64(binary.BigEndian.Uint64(b[len(snapshotMagic)+2:])))
	body = body[snapshotHead:]
	for len(body) > 0 && body[0] != sectionEnd {
		kind := body[0]
		body = body[1:]
		if kind > sectionAddrs {
			return fault(fmt.Sprintf("section of unknown kind %d", kind))
		}
		first := len(names)
		for {
			if len(body) == 0 {
				return fault("section without an end")
			}
			n := int(body[0])
			body = body[1:]
			if n == recordEnd {
				break
			}
			if n == recordNode {
				if len(body) < 2 || len(body)-2 < int(binary.BigEndian.Uint16(body)) {
					return fault("name cut short")
				}
				n = 2 + int(binary.BigEndian.Uint16(body))
				names = append(names, string(body[2:n]))
				body = body[n:]
				continue
			}
			if n > maxKey || len(body) < n+12 {
				return fault("entry cut short")
			}
			e := restored{kind: kind, k: makeKey(body[:n]), node: binary.BigEndian.Uint32(body[n:]), idle: int64(binary.BigEndian.Uint64(body[n+4:]))}
			if int64(e.node) >= int64(len(names)-first) || e.idle < 0 {
				return fault("entry of a node without a name, or of negative age")
			}
			e.node += uint32(first)
			entries = append(entries, e)
			body = body[n+12:]
		}
	}
	if len(body) != 1 {
		return fault("bytes behind its end")
	}
	return saved, names, entries, nil
}

func restoreSnapshot[N comparable](r io.Reader, now time.Time, byName func(string) (N, bool), sections ...section[N]) (st RestoreStats, err error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return st, fmt.Errorf("sslpersist: read snapshot: %w", err)
	}
	saved, names, entries, err := readSnapshot(b)
	if err != nil {
		return st, err
	}
	type node struct {
		n     N
		known bool
	}
	nodes := make([]node, len(names))
	for i, s := range names {
		nodes[i].n, nodes[i].known = byName(s)
	}
	// Newest first: each goes to the tail of the order of expiry, behind what is there
	// already, and if there is not room for all the oldest are left out.
	slices.SortFunc(entries, func(a, b restored) int { return cmp.Compare(a.idle, b.idle) })
	away := max(0, now.Sub(saved)) // a clock set back makes nothing younger
	for i := range entries {
		en := &entries[i]
		at := slices.IndexFunc(sections, func(s section[N]) bool { return s.kind == en.kind })
		if at < 0 || !nodes[en.node].known || !sections[at].e.takes(&en.k) {
			st.Unknown++
			continue
		}
		e, n := sections[at].e, nodes[en.node].n
		idle := en.idle + int64(away)
		if idle < 0 || idle >= int64(e.idleTime(n)) {
			st.Expired++
			continue
		}
		if _, err := e.store(&en.k, n, e.nano(now)-idle, false, false); err != nil {
			st.Refused++
			continue
		}
		st.Restored++
	}
	return st, nil
}

// idleTime returns the idle time of entries of n.
func (e *engine[N]) idleTime(n N) time.Duration {
	if o := e.owners.live(n); o != nil {
		return time.Duration(o.ttl.Load())
	}
	return e.ttl(n)
}

// WriteSnapshot writes the live bindings to w, with nodes by the names that name gives
// them. The table can be used meanwhile; what changes may or may not be in it.
func (t *Table[N]) WriteSnapshot(w io.Writer, now time.Time, name func(N) string) error {
	return writeSnapshot(w, now, name, section[N]{sectionIDs, t.e})
}

// Restore adds the bindings of a snapshot, which is read into memory and checked as a
// whole first: of a damaged one nothing is used and ErrSnapshot returned. Time goes on
// while a snapshot lies around. Of what is bound already to another node the binding that was used last stays, and if there
// is not room for all the oldest are refused. Entries of nodes that byName
// does not know are dropped and counted. Beside the table it takes about 120 bytes an
// entry while it works.
func (t *Table[N]) Restore(r io.Reader, now time.Time, byName func(string) (N, bool)) (RestoreStats, error) {
	return restoreSnapshot(r, now, byName, section[N]{sectionIDs, t.e})
}

// WriteSnapshot is [Table.WriteSnapshot] for key names.
func (t *KeyTable[N]) WriteSnapshot(w io.Writer, now time.Time, name func(N) string) error {
	return writeSnapshot(w, now, name, section[N]{sectionKeys, t.e})
}

// Restore is [Table.Restore] for key names. Those not as long as the names of t count as
// Unknown.
func (t *KeyTable[N]) Restore(r io.Reader, now time.Time, byName func(string) (N, bool)) (RestoreStats, error) {
	return restoreSnapshot(r, now, byName, section[N]{sectionKeys, t.e})
}

// WriteSnapshot is [Table.WriteSnapshot] for client addresses.
func (t *AddrTable[N]) WriteSnapshot(w io.Writer, now time.Time, name func(N) string) error {
	return writeSnapshot(w, now, name, section[N]{sectionAddrs, t.e})
}

// Restore is [Table.Restore] for client addresses.
func (t *AddrTable[N]) Restore(r io.Reader, now time.Time, byName func(string) (N, bool)) (RestoreStats, error) {
	return restoreSnapshot(r, now, byName, section[N]{sectionAddrs, t.e})
}

func (f *Farm[N]) sections() []section[N] {
	s := []section[N]{{sectionIDs, f.ids.e}}
	if f.keys != nil {
		s = append(s, section[N]{sectionKeys, f.keys.e})
	}
	if f.addrs != nil {
		s = append(s, section[N]{sectionAddrs, f.addrs.e})
	}
	return s
}

// WriteSnapshot writes all that f knows, as [Table.WriteSnapshot] does.
func (f *Farm[N]) WriteSnapshot(w io.Writer, now time.Time, name func(N) string) error {
	return writeSnapshot(w, now, name, f.sections()...)
}

// Restore adds what a snapshot of a farm or of one of its tables knows, as [Table.Restore]
// does. Bindings of a table that f does not have count as Unknown.
func (f *Farm[N]) Restore(r io.Reader, now time.Time, byName func(string) (N, bool)) (RestoreStats, error) {
	return restoreSnapshot(r, now, byName, f.sections()...)
}
