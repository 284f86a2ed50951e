package flowshare

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A frame is
//
//	kind 1 | logical clock | body
//
// where numbers are unsigned varints unless a size is given, and these big-endian:
//
//	items   origins n × (name 1+m | epoch 8) | values n × (node 1+m | note 1+m) |
//	        n × (flags 1 | flow | version | origin | value unless a tombstone)
//	digest  view 8 | round | groups | groups × sum 8
//	diff    view 8 | round | groups | a bit for each group, lowest first
//	ask     number | flow
//	answer  number | found 1 | if found: node 1+m | note 1+m
//
// Flows are described at appendFlow.
const (
	kindItems = iota + 1
	kindDigest
	kindDiff
	kindAsk
	kindAnswer
)

// maxClock keeps the logical clock from overflowing. It stands still there.
const maxClock = 1 << 62

// maxGroups bounds the groups of a comparison.
const maxGroups = 1 << 12

// ErrFrame is wrapped by the errors that refuse a frame. A frame that is refused has changed
// nothing.
var ErrFrame = errors.New("flowshare: frame refused")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrFrame}, args...)...)
}

// A wireItem is an item of a frame; origin and value are places in the frame's lists.
type wireItem struct {
	flow    Flow
	version uint64
	origin  int
	value   int // -1 for a tombstone
}

// message is a frame, parsed. It shares nothing with the bytes.
type message struct {
	kind    byte
	clock   uint64
	origins []Member
	values  []Value
	items   []wireItem
	view    uint64
	round   uint64
	groups  int
	sums    []uint64
	bits    []byte
	number  uint64
	flow    Flow
	found   bool
}

// reader is a cursor that stays failed.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) uint64() uint64 {
	if len(r.b) < 8 {
		r.bad, r.b = true, nil
		return 0
	}
	v := binary.BigEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

// uvarint reads a number of up to most, in its shortest form.
func (r *reader) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > most || n > 1 && r.b[n-1] == 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) string() string {
	n := int(r.byte())
	if len(r.b) < n {
		r.bad, r.b = true, nil
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) flow() Flow {
	f, rest, ok := parseFlow(r.b)
	r.b = rest
	if !ok {
		r.bad, r.b = true, nil
	}
	return f
}

// count reads how many things of at least size bytes follow.
func (r *reader) count(size int) int { return int(r.uvarint(uint64(len(r.b) / size))) }

func (r *reader) value() Value { return Value{Node: r.string(), Note: r.string()} }

// parseFrame reads a frame, all of it, or says what is wrong.
func parseFrame(b []byte) (*message, error) {
	if len(b) > MaxFrame {
		return nil, refuse("%d bytes, at most %d are allowed", len(b), MaxFrame)
	}
	r := &reader{b: b}
	m := &message{kind: r.byte(), clock: r.uvarint(maxClock)}
	switch m.kind {
	case kindItems:
		m.readItems(r)
	case kindDigest, kindDiff:
		m.view, m.round, m.groups = r.uint64(), r.uvarint(1<<62), int(r.uvarint(maxGroups))
		if m.groups == 0 || m.groups&(m.groups-1) != 0 {
			r.bad = true
			break
		}
		if m.kind == kindDiff {
			n := (m.groups + 7) / 8
			if len(r.b) != n {
				r.bad = true
				break
			}
			m.bits, r.b = append([]byte(nil), r.b...), nil
			break
		}
		if len(r.b) != 8*m.groups {
			r.bad = true
			break
		}
		m.sums = make([]uint64, m.groups)
		for i := range m.sums {
			m.sums[i] = r.uint64()
		}
	case kindAsk:
		m.number, m.flow = r.uvarint(1<<62), r.flow()
	case kindAnswer:
		m.number = r.uvarint(1 << 62)
		switch r.byte() {
		case 0:
		case 1:
			m.found, m.values = true, []Value{r.value()}
			r.bad = r.bad || !m.values[0].fits()
		default:
			r.bad = true
		}
	default:
		return nil, refuse("unknown kind %d", m.kind)
	}
	if r.bad || len(r.b) > 0 {
		return nil, refuse("malformed, kind %d of %d bytes", m.kind, len(b))
	}
	return m, nil
}

func (m *message) readItems(r *reader) {
	for range r.count(10) {
		o := Member{Name: r.string(), Epoch: r.uint64()}
		r.bad = r.bad || o.Name == ""
		m.origins = append(m.origins, o)
	}
	for range r.count(3) {
		v := r.value()
		r.bad = r.bad || !v.fits()
		m.values = append(m.values, v)
	}
	n := r.count(flow4 + 3)
	if r.bad {
		return
	}
	m.items = make([]wireItem, 0, n)
	for range n {
		flags := r.byte()
		it := wireItem{flow: r.flow(), version: r.uvarint(maxClock), origin: int(r.uvarint(uint64(len(m.origins)))), value: -1}
		if flags == 0 {
			it.value = int(r.uvarint(uint64(len(m.values))))
		}
		if r.bad || flags > Tombstone || it.origin == len(m.origins) || it.value == len(m.values) {
			r.bad = true
			return
		}
		m.items = append(m.items, it)
	}
}

// An itemFrame collects items into a frame.
type itemFrame struct {
	origins, values map[uint32]int
	head, list      []byte // of origins, of values
	vals            []byte
	n               int
}

func newItemFrame() *itemFrame {
	return &itemFrame{origins: map[uint32]int{}, values: map[uint32]int{}}
}

// add appends an item. The names behind its numbers are l's.
func (w *itemFrame) add(l *Layer, f *Flow, it *Item) {
	o, ok := w.origins[it.Origin]
	if !ok {
		o = len(w.origins)
		w.origins[it.Origin] = o
		m := l.origins.things[it.Origin]
		w.head = append(append(w.head, byte(len(m.Name))), m.Name...)
		w.head = binary.BigEndian.AppendUint64(w.head, m.Epoch)
	}
	w.list = append(w.list, it.Flags&Tombstone)
	w.list = appendFlow(w.list, f)
	w.list = binary.AppendUvarint(w.list, it.Version)
	w.list = binary.AppendUvarint(w.list, uint64(o))
	if it.Flags&Tombstone == 0 {
		v, ok := w.values[it.Value]
		if !ok {
			v = len(w.values)
			w.values[it.Value] = v
			w.vals = appendValue(w.vals, l.values.things[it.Value])
		}
		w.list = binary.AppendUvarint(w.list, uint64(v))
	}
	w.n++
}

func (w *itemFrame) size() int { return len(w.head) + len(w.vals) + len(w.list) + 24 }

// frame returns the bytes and begins anew.
func (w *itemFrame) frame(clock uint64) []byte {
	b := make([]byte, 0, w.size()+8)
	b = binary.AppendUvarint(append(b, kindItems), clock)
	b = append(binary.AppendUvarint(b, uint64(len(w.origins))), w.head...)
	b = append(binary.AppendUvarint(b, uint64(len(w.values))), w.vals...)
	b = append(binary.AppendUvarint(b, uint64(w.n)), w.list...)
	clear(w.origins)
	clear(w.values)
	w.head, w.vals, w.list, w.n = w.head[:0], w.vals[:0], w.list[:0], 0
	return b
}

func appendValue(b []byte, v Value) []byte {
	b = append(append(b, byte(len(v.Node))), v.Node...)
	return append(append(b, byte(len(v.Note))), v.Note...)
}

func digestFrame(clock, view, round uint64, sums []uint64) []byte {
	b := binary.AppendUvarint([]byte{kindDigest}, clock)
	b = binary.BigEndian.AppendUint64(b, view)
	b = binary.AppendUvarint(binary.AppendUvarint(b, round), uint64(len(sums)))
	for _, s := range sums {
		b = binary.BigEndian.AppendUint64(b, s)
	}
	return b
}

func diffFrame(clock, view, round uint64, groups int, bits []byte) []byte {
	b := binary.AppendUvarint([]byte{kindDiff}, clock)
	b = binary.BigEndian.AppendUint64(b, view)
	b = binary.AppendUvarint(binary.AppendUvarint(b, round), uint64(groups))
	return append(b, bits...)
}

func askFrame(clock, number uint64, f *Flow) []byte {
	b := binary.AppendUvarint([]byte{kindAsk}, clock)
	return appendFlow(binary.AppendUvarint(b, number), f)
}

func answerFrame(clock, number uint64, v Value, found bool) []byte {
	b := binary.AppendUvarint([]byte{kindAnswer}, clock)
	b = binary.AppendUvarint(b, number)
	if !found {
		return append(b, 0)
	}
	return appendValue(append(b, 1), v)
}
