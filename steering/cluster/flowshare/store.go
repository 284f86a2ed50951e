package flowshare

// An Item is an entry as a [Store] keeps it. Its numbers mean something to the Layer that
// made it only. It has no pointers and may be copied.
type Item struct {
	Version uint64 // which of two items is newer
	Origin  uint32 // the member whose flow it is
	Value   uint32 // a number for the flow's Value
	// Stamp is when the item was changed, in seconds of the Layer.
	Stamp uint32
	Flags uint8
}

// Flags of an Item.
const (
	// Tombstone marks an entry that was taken back.
	Tombstone = 1 << iota
	// Claimed: this balancer forwards the flow.
	Claimed
	// Unsent: all balancers would choose alike, nobody was told.
	Unsent
)

// A Store keeps the items of a [Layer], which calls it with its lock held: it need not
// be safe for concurrent use, and must not call the Layer. It may keep them outside the
// heap or on disk; it must not be shared between Layers.
type Store interface {
	// Load returns the item of f.
	Load(f Flow) (Item, bool)
	// Save keeps an item, in place of the one f had.
	Save(f Flow, it Item)
	// Delete forgets the item of f.
	Delete(f Flow)
	// Range calls visit for the items of one of Parts parts, until it returns false. Visit may
	// save and delete the item it was called with, and no other.
	Range(part int, visit func(Flow, Item) bool)
	// Len returns the number of items.
	Len() int
}

// Parts is how many parts a [Store] has: walks of all items pause after each, so that nobody
// waits for the whole. The part of a flow is up to the Store.
const Parts = 64

// memory is the Store of those who bring none: a map a part. The zero memory is empty.
type memory struct {
	parts [Parts]map[Flow]Item
	n     int
}

func (m *memory) part(f *Flow) *map[Flow]Item {
	h := uint32(f.aPort)*0x9e3779b1 ^ uint32(f.bPort)*0x85ebca6b ^ uint32(f.a[15])<<8 ^ uint32(f.b[15])
	h ^= h >> 15
	h *= 0x2c1b3c6d
	return &m.parts[h>>26]
}

func (m *memory) Load(f Flow) (Item, bool) {
	it, ok := (*m.part(&f))[f]
	return it, ok
}

func (m *memory) Save(f Flow, it Item) {
	p := m.part(&f)
	if *p == nil {
		*p = map[Flow]Item{}
	}
	before := len(*p)
	(*p)[f] = it
	m.n += len(*p) - before
}

func (m *memory) Delete(f Flow) {
	p := m.part(&f)
	before := len(*p)
	delete(*p, f)
	if m.n -= before - len(*p); len(*p) == 0 {
		*p = nil // a map never gives memory back
	}
}

func (m *memory) Range(part int, visit func(Flow, Item) bool) {
	for f, it := range m.parts[part] {
		if !visit(f, it) {
			return
		}
	}
}

func (m *memory) Len() int { return m.n }
