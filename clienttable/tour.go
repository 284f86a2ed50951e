package clienttable

import (
	"slices"
	"sync"
)

// tour is an iteration over all entries, of a table and of those that take its place
// meanwhile. An entry that is handed over is neither missed nor met twice.
type tour[K comparable, V any] struct {
	mu     sync.Mutex
	tables []*Table[K, V]
	shard  int        // shards of the last table before it have been visited
	at     *walker[K] // in this one; its fields are guarded by the shard's lock
	seen   map[K]struct{}
}

// begin goes on with a table.
func (r *tour[K, V]) begin(t *Table[K, V]) {
	r.mu.Lock()
	r.tables = append(r.tables, t)
	r.shard, r.at = 0, nil
	r.mu.Unlock()
	t.grow.toursMu.Lock()
	t.grow.tours = append(t.grow.tours, r)
	t.grow.toursMu.Unlock()
}

// to goes on with a shard.
func (r *tour[K, V]) to(shard int, at *walker[K]) {
	r.mu.Lock()
	r.shard, r.at = shard, at
	r.mu.Unlock()
}

func (r *tour[K, V]) end() {
	for _, t := range r.tables {
		t.grow.toursMu.Lock()
		t.grow.tours = slices.DeleteFunc(t.grow.tours, func(o *tour[K, V]) bool { return o == r })
		t.grow.toursMu.Unlock()
	}
}

// met reports whether k was met before it was handed over.
func (r *tour[K, V]) met(k K) bool {
	if len(r.tables) == 1 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.seen[k]
	return ok
}

// tell tells the iterations that k, in a slot of a shard that is locked, is handed over.
func (t *Table[K, V]) tell(s *shard[K, V], slot uint32, k K) {
	t.grow.toursMu.Lock()
	defer t.grow.toursMu.Unlock()
	for _, r := range t.grow.tours {
		r.mu.Lock()
		visited := int(s.no) < r.shard || r.tables[len(r.tables)-1] != t
		if !visited && int(s.no) == r.shard && r.at != nil {
			visited = r.at.leaves(k, (slot-s.first)/segSlots)
		}
		if visited {
			if r.seen == nil {
				r.seen = make(map[K]struct{})
			}
			r.seen[k] = struct{}{}
		}
		r.mu.Unlock()
	}
}

// leaves is told, under the shard's lock, that k leaves a segment for another table, and reports
// whether it was met.
func (w *walker[K]) leaves(k K, from uint32) bool {
	if i := slices.Index(w.missed, k); i >= 0 {
		w.missed = slices.Delete(w.missed, i, i+1)
		return false
	}
	if _, ok := w.skip[k]; ok {
		delete(w.skip, k)
		return true
	}
	return from < w.at
}
