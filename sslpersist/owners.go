package sslpersist

import (
	"sync"
	"sync/atomic"
	"time"
)

// owner is a node that entries are bound to. Entries name it by number, so that they
// hold no pointer, that all entries of a node can be forgotten at once, and that one
// place knows the node's idle time.
type owner[N comparable] struct {
	node  N
	ttl   atomic.Int64 // nanoseconds
	count atomic.Int64 // entries
	refs  atomic.Int64 // entries, and insertions under way
	gone  atomic.Bool  // forgotten: its entries are invisible, and freed as time allows
}

// maxOwners bounds the number of nodes, forgotten ones with entries left included.
const maxOwners = 1 << 26

// owners numbers the nodes. Numbers of forgotten nodes are used again once their last
// entry is gone.
type owners[N comparable] struct {
	mu     sync.Mutex
	byNode map[N]uint32
	list   atomic.Pointer[[]*owner[N]] // replaced, never changed
}

func (os *owners[N]) get(id uint32) *owner[N] { return (*os.list.Load())[id] }

// live returns the owner for n if there is one.
func (os *owners[N]) live(n N) *owner[N] {
	os.mu.Lock()
	defer os.mu.Unlock()
	if id, ok := os.byNode[n]; ok {
		return os.get(id)
	}
	return nil
}

// pin returns the number of n, making one if needed, or a nil owner if there are too
// many. The owner stays until refs is counted down again.
func (os *owners[N]) pin(n N, ttl func(N) time.Duration) (uint32, *owner[N]) {
	os.mu.Lock()
	defer os.mu.Unlock()
	if id, ok := os.byNode[n]; ok {
		o := os.get(id)
		o.refs.Add(1)
		return id, o
	}
	old := *os.list.Load()
	id := uint32(len(old))
	for i, o := range old {
		if o.gone.Load() && o.refs.Load() == 0 {
			id = uint32(i)
			break
		}
	}
	if id >= maxOwners {
		return 0, nil
	}
	list := append(make([]*owner[N], 0, len(old)+1), old...)
	o := &owner[N]{node: n}
	o.ttl.Store(int64(ttl(n)))
	o.refs.Store(1)
	if int(id) == len(old) {
		list = append(list, o)
	} else {
		list[id] = o
	}
	os.list.Store(&list)
	os.byNode[n] = id
	return id, o
}

// forget makes the entries of n invisible, tells f if there is one, and returns how many
// they were. It tells with the lock held, so that what is learned later is told later.
func (os *owners[N]) forget(n N, f *feed[N]) int {
	os.mu.Lock()
	defer os.mu.Unlock()
	id, ok := os.byNode[n]
	var o *owner[N]
	if ok {
		o = os.get(id)
		delete(os.byNode, n)
	}
	f.forget(n, o)
	if !ok {
		return 0
	}
	return int(o.count.Load())
}

// len counts the entries of the nodes not forgotten.
func (os *owners[N]) len() int {
	var n int64
	for _, o := range *os.list.Load() {
		if !o.gone.Load() {
			n += o.count.Load()
		}
	}
	return int(n)
}
