package flowshare

// A Value is what a flow's entry says. It is comparable.
type Value struct {
	// Node is the name of the node the flow has, 1 to 255 bytes; or [Itself].
	Node string
	// Note is what the caller wants to be told with it, at most [MaxNote] bytes: service,
	// translated address, whatever another balancer needs to take the flow over. Entries
	// with the same Value share it, so it should say nothing that differs for each flow
	// unless it must.
	Note string
}

// Itself is the Node of flows that only the balancer that announced them can deal with: nobody can take them over, and their entries are
// forgotten as soon as it is gone.
const Itself = "@"

// Limits of a [Value] and of a [Member].
const (
	MaxNode = 255
	MaxNote = 255
	MaxName = 255
)

func (v *Value) fits() bool {
	return v.Node != "" && len(v.Node) <= MaxNode && len(v.Note) <= MaxNote
}

// A Member is a balancer in one of its lives. It is comparable.
type Member struct {
	// Name of the balancer within the cluster, 1 to 255 bytes.
	Name string
	// Epoch tells the lives of a balancer apart: each start has a higher one.
	Epoch uint64
}

// before orders members, for ties.
func (m Member) before(o Member) bool {
	if m.Name != o.Name {
		return m.Name < o.Name
	}
	return m.Epoch < o.Epoch
}

// An interner gives out numbers for things that many items share, and takes them back
// when no item has one any more.
type interner[T comparable] struct {
	things []T
	refs   []int32
	index  map[T]uint32
	free   []uint32
}

func newInterner[T comparable]() *interner[T] { return &interner[T]{index: map[T]uint32{}} }

// take returns the number of v and counts a use of it. fresh is set if it had none.
func (in *interner[T]) take(v T) (no uint32, fresh bool) {
	if no, ok := in.index[v]; ok {
		in.refs[no]++
		return no, false
	}
	if n := len(in.free); n > 0 {
		no, in.free = in.free[n-1], in.free[:n-1]
		in.things[no], in.refs[no] = v, 1
	} else {
		no = uint32(len(in.things))
		in.things, in.refs = append(in.things, v), append(in.refs, 1)
	}
	in.index[v] = no
	return no, true
}

// use counts a further use.
func (in *interner[T]) use(no uint32) { in.refs[no]++ }

// drop gives a use back.
func (in *interner[T]) drop(no uint32) {
	if in.refs[no]--; in.refs[no] > 0 {
		return
	}
	var zero T
	delete(in.index, in.things[no])
	in.things[no] = zero
	in.free = append(in.free, no)
}
