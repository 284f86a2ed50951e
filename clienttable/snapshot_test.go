package clienttable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type snapValue struct{ owner, data uint32 }

// named is a configuration whose owners have names, and other numbers after a
// restart: by shift.
func named(size int, shift uint32, unknown string) *Config[Flow, snapValue] {
	return &Config[Flow, snapValue]{
		MaxEntries: size,
		Owner:      func(v snapValue) uint32 { return v.owner },
		OwnerName:  func(o uint32) string { return fmt.Sprintf("node-%d", o-shift) },
		Rebind: func(v snapValue, name string) (snapValue, bool) {
			if name == unknown {
				return v, false
			}
			_, err := fmt.Sscanf(name, "node-%d", &v.owner)
			v.owner += shift
			return v, err == nil
		},
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestSnapshot(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 257, 3000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			old := must(New(named(4000, 0, "")))
			defer old.Close()
			now := time.Now()
			lost := 0
			for i := range n {
				l := lives[i%7]
				if l.TTL > 0 && l.TTL <= 4*time.Second && l.Class != Static {
					lost++
				}
				require.NoError(t, old.StoreLife(now, flowOf(uint32(i)), snapValue{uint32(i%5) + 1, uint32(i)}, l))
			}
			var buf bytes.Buffer
			written, err := old.WriteSnapshot(now, &buf)
			require.NoError(t, err)
			require.EqualValues(t, buf.Len(), written)

			// Four seconds later, with other numbers for the owners.
			later := now.Add(4 * time.Second)
			fresh := must(New(named(4000, 100, "node-3")))
			defer fresh.Close()
			res, err := fresh.ReadSnapshot(later, iotest(&buf))
			require.NoError(t, err)
			require.Equal(t, lost, res.Expired)
			require.Equal(t, n, res.Entries+res.Expired+res.Unknown)
			require.Zero(t, res.Present+res.Refused)
			require.True(t, res.Written.Equal(now))
			for i := range n {
				v, in, ok := fresh.Info(later, flowOf(uint32(i)))
				l := lives[i%7]
				if i%5+1 == 3 || l.TTL > 0 && l.TTL <= 4*time.Second && l.Class != Static {
					require.False(t, ok)
					continue
				}
				require.True(t, ok)
				require.Equal(t, snapValue{uint32(i%5) + 101, uint32(i)}, v)
				if l.TTL == 0 {
					l.TTL = time.Minute
				}
				require.Equal(t, l, in.Life)
				if l.Class != Static {
					require.Equal(t, l.TTL-4*time.Second, in.Left)
				}
			}
			fresh.Invalidate(101)
			for i := range n {
				if i%5 == 0 {
					_, ok := fresh.PeekAt(later, flowOf(uint32(i)))
					require.False(t, ok, "restored entries have their owner")
				}
			}
		})
	}
}

// iotest hides all but Read.
func iotest(r io.Reader) io.Reader { return struct{ io.Reader }{r} }

func TestSnapshotFile(t *testing.T) {
	old := must(New(named(100, 0, "")))
	defer old.Close()
	for i := range 50 {
		require.NoError(t, old.Store(flowOf(uint32(i)), snapValue{1, uint32(i)}))
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "snapshot"))
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteString("before ")
	require.NoError(t, err)
	n, err := old.WriteTo(f)
	require.NoError(t, err)
	_, err = f.Seek(7, io.SeekStart)
	require.NoError(t, err)
	fresh := must(New(named(40, 0, "")))
	defer fresh.Close()
	require.NoError(t, fresh.Store(flowOf(0), snapValue{2, 77}))
	m, err := fresh.ReadFrom(f)
	require.NoError(t, err)
	require.Equal(t, n, m)
	require.Equal(t, 40, fresh.Len())
	v, _ := fresh.Load(flowOf(0))
	require.Equal(t, snapValue{2, 77}, v, "what was there is newer")
	_, err = f.Seek(7, io.SeekStart)
	require.NoError(t, err)
	res, err := fresh.ReadSnapshot(time.Now(), f)
	require.NoError(t, err)
	require.Equal(t, []int{0, 40, 10}, []int{res.Entries, res.Present, res.Refused})
}

// Whatever byte is wrong and wherever it is cut, the snapshot is refused as a
// whole.
func TestSnapshotDamaged(t *testing.T) {
	old := must(New(named(100, 0, "")))
	defer old.Close()
	now := time.Now()
	for i := range 20 {
		require.NoError(t, old.StoreAt(now, flowOf(uint32(i)), snapValue{1, uint32(i)}))
	}
	var buf bytes.Buffer
	must(old.WriteSnapshot(now, &buf))
	fresh := must(New(named(100, 0, "")))
	defer fresh.Close()
	refused := func(b []byte, what string, i int) {
		t.Helper()
		_, err := fresh.ReadSnapshot(now, bytes.NewReader(b))
		require.ErrorIs(t, err, ErrSnapshot, "%s %d", what, i)
		require.Contains(t, err.Error(), "at byte")
		require.Zero(t, fresh.Stats().Stores, "%s %d", what, i)
	}
	for i := range buf.Len() {
		b := bytes.Clone(buf.Bytes())
		b[i] ^= 0x10
		refused(b, "byte", i)
		refused(buf.Bytes()[:i], "cut at", i)
	}
	refused(append(bytes.Clone(buf.Bytes()), 0), "longer", 0)
	refused(append(bytes.Clone(buf.Bytes()), buf.Bytes()...), "twice", 0)

	other := must(New(&Config[Flow, [2]uint32]{MaxEntries: 100}))
	defer other.Close()
	_, err := other.ReadSnapshot(now, bytes.NewReader(buf.Bytes()))
	require.ErrorContains(t, err, "other fields")
	wide := must(New(&Config[Flow, [3]uint32]{MaxEntries: 100}))
	defer wide.Close()
	_, err = wide.ReadSnapshot(now, bytes.NewReader(buf.Bytes()))
	require.ErrorContains(t, err, "are of 40 and 8 bytes, not 40 and 12")
	heap := must(New(&Config[string, int]{MaxEntries: 10}))
	defer heap.Close()
	_, err = heap.WriteTo(io.Discard)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = heap.ReadFrom(&buf)
	require.ErrorIs(t, err, errors.ErrUnsupported)

	_, err = old.WriteTo(failWriter{})
	require.ErrorIs(t, err, io.ErrClosedPipe)
	_, err = fresh.ReadFrom(failReader{})
	require.ErrorIs(t, err, io.ErrClosedPipe)
	require.NotErrorIs(t, err, ErrSnapshot)
}

type failWriter struct{}

func (failWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

type failReader struct{}

func (failReader) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func FuzzSnapshot(f *testing.F) {
	old := must(New(named(100, 0, "")))
	for i := range 3 {
		_ = old.Store(flowOf(uint32(i)), snapValue{uint32(i), uint32(i)})
	}
	var buf bytes.Buffer
	must(old.WriteTo(&buf))
	f.Add(buf.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		tab := must(New(named(100, 0, "")))
		defer tab.Close()
		if _, err := tab.ReadFrom(iotest(bytes.NewReader(b))); err != nil {
			require.Zero(t, tab.Stats().Stores)
		}
	})
}

// sign makes the checksums of a snapshot right, as far as it can be followed.
func sign(b []byte, entry int) []byte {
	le := binary.LittleEndian
	sum := func(from, to int) { le.PutUint32(b[to:], crc32.Checksum(b[from:to], castagnoli)) }
	const header = 52
	if len(b) < header+4 {
		return b
	}
	sum(0, header-4)
	at := header
	for at+4 <= len(b)-4 {
		n := int(le.Uint32(b[at:]))
		end := at + 4 + n*entry
		if n == 0 || n > segSlots || end+4 > len(b) {
			break
		}
		sum(at, end)
		at = end + 4
	}
	sum(0, len(b)-4)
	return b
}

// Whatever stands in a snapshot whose checksums are right: it is refused whole, or
// its entries can be used.
func FuzzSnapshotSigned(f *testing.F) {
	old := must(New(named(100, 0, "")))
	for i := range 3 {
		_ = old.StoreLife(time.Now(), flowOf(uint32(i)), snapValue{uint32(i), uint32(i)}, Life{Class: Class(i + 1)})
	}
	var buf bytes.Buffer
	must(old.WriteTo(&buf))
	entry := len(Flow{}.bytes()) + 8 + snapFixed
	require.Equal(f, buf.Bytes(), sign(bytes.Clone(buf.Bytes()), entry))
	f.Add(uint16(0), []byte{}, uint16(0))
	f.Add(uint16(52+4+48), []byte{0, 0, 0, 0, 0, 0, 0, 0x80}, uint16(0))
	f.Add(uint16(52+4+48), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, uint16(0))
	f.Add(uint16(52), []byte{2}, uint16(3))
	f.Fuzz(func(t *testing.T, at uint16, patch []byte, cut uint16) {
		b := bytes.Clone(buf.Bytes())
		copy(b[int(at)%len(b):], patch)
		b = sign(b[:len(b)-int(cut)%len(b)], entry)
		tab := must(New(named(100, 0, "")))
		defer tab.Close()
		res, err := tab.ReadSnapshot(time.Now(), bytes.NewReader(b))
		st := tab.Stats()
		if err != nil {
			require.Zero(t, st.Stores)
			return
		}
		require.EqualValues(t, res.Entries, st.Stores)
		for k := range tab.All() {
			_, in, ok := tab.Info(time.Now(), k)
			require.True(t, ok)
			require.LessOrEqual(t, in.Left, max(in.Life.TTL, MaxTTL))
			tab.Delete(k)
		}
	})
}

func (f Flow) bytes() []byte { return bytesOf(&f) }

// An entry that is in the table already is left alone: its idle time goes on.
func TestSnapshotLeavesWhatIsThere(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{MaxEntries: 10}))
	defer tab.Close()
	now := time.Now()
	require.NoError(t, tab.StoreAt(now, 1, 1))
	var buf bytes.Buffer
	must(tab.WriteSnapshot(now, &buf))
	res, err := tab.ReadSnapshot(now.Add(30*time.Second), &buf)
	require.NoError(t, err)
	require.Equal(t, 1, res.Present)
	_, ok := tab.PeekAt(now.Add(time.Minute), 1)
	require.False(t, ok)
}

// A follower that starts from a snapshot and goes on with the changes has the same
// entries, although the snapshot was written while the table changed.
func TestChanges(t *testing.T) {
	const keys = 500
	now := time.Now()
	cfg := Config[uint64, val]{MaxEntries: 400, ChangeLog: 1 << 16, Full: EvictOldest, TTL: time.Hour}
	lead, follow := must(New(&cfg)), must(New(&cfg))
	defer lead.Close()
	defer follow.Close()
	r := rng(77)
	change := func(i int) {
		k := uint64(r.next(keys))
		switch r.next(8) {
		case 0:
			lead.DeleteAt(now, k)
		case 1:
			lead.SetLife(now, k, Life{TTL: time.Duration(1+r.next(3)) * time.Hour, Class: Class(r.next(3))})
		case 2:
			lead.Update(now, k, func(v val, l Life) (val, Life) { v.data++; return v, l })
		default:
			_ = lead.StoreAt(now, k, val{1, uint32(i)})
		}
	}
	for i := range 2000 {
		change(i)
	}
	var buf bytes.Buffer
	_, err := lead.WriteSnapshot(now, writerFunc(func(b []byte) (int, error) {
		for i := range 500 {
			change(i)
		}
		return buf.Write(b)
	}))
	require.NoError(t, err)
	for i := range 1000 {
		change(i)
	}
	res, err := follow.ReadSnapshot(now, &buf)
	require.NoError(t, err)
	seq := res.Seq
	require.Positive(t, seq)
	var batch [100]Change[uint64, val]
	for {
		n, err := lead.Changes(seq, batch[:])
		require.NoError(t, err)
		if n == 0 {
			break
		}
		for i := range n {
			require.Equal(t, seq+1+uint64(i), batch[i].Seq)
		}
		require.NoError(t, follow.Apply(now, batch[:n]...))
		seq = batch[n-1].Seq
	}
	require.Equal(t, lead.Seq(), seq)
	require.Equal(t, maps.Collect(lead.AllAt(now)), maps.Collect(follow.AllAt(now)))
	for k := range lead.AllAt(now) {
		_, a, _ := lead.Info(now, k)
		_, b, _ := follow.Info(now, k)
		require.Equal(t, a.Life, b.Life)
	}
	_, err = lead.Changes(seq+1, batch[:])
	require.ErrorIs(t, err, ErrChangesLost, "the future")
	n, err := lead.Changes(seq, batch[:])
	require.NoError(t, err)
	require.Zero(t, n)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestChangesKept(t *testing.T) {
	tab := must(New(&Config[uint64, uint64]{ChangeLog: 4, MaxEntries: 10}))
	defer tab.Close()
	var buf [10]Change[uint64, uint64]
	for i := range uint64(6) {
		require.NoError(t, tab.Store(i, i))
	}
	_, err := tab.Changes(1, buf[:])
	require.ErrorIs(t, err, ErrChangesLost)
	n, err := tab.Changes(2, buf[:])
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, Change[uint64, uint64]{Seq: 3, Op: Stored, Key: 2, Value: 2, Life: Life{TTL: time.Minute}}, buf[0])
	tab.Delete(2)
	n, err = tab.Changes(6, buf[:])
	require.NoError(t, err)
	require.Equal(t, []Change[uint64, uint64]{{Seq: 7, Op: Removed, Key: 2, Why: Deleted}}, buf[:n])

	none := must(New(&Config[uint64, uint64]{MaxEntries: 10}))
	defer none.Close()
	_, err = none.Changes(0, buf[:])
	require.ErrorIs(t, err, ErrChangesLost)
	require.Zero(t, none.Seq())
}
